//! What a command refers to: a topic and a group, a delivery, a dead letter.

use driftq_core::Command;
use driftq_core::command::{
    Ack, AckCumulative, ChangeRetention, Claim, CloseStream, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic,
    DeliveryClaim, DescribeTopic, ExpireLease, Extend, Finish, ListGroups, ListTopics, Nack, Pause, Peek, Purge,
    Redrive, Release, Resume, Retry, Seek, SetPrefetch, StoreCommand, Unsubscribe, Withdraw,
};
use driftq_core::types::{GroupName, Offset, Scope, TopicName};

/// The topic and group that a command names.
pub(crate) fn names(command: &Command) -> (Option<&TopicName>, Option<&GroupName>) {
    match command {
        Command::CreateTopic(CreateTopic { name, .. })
        | Command::ChangeRetention(ChangeRetention { name, .. })
        | Command::DeleteTopic(DeleteTopic { name })
        | Command::DescribeTopic(DescribeTopic { name })
        | Command::Purge(Purge { topic: name }) => (Some(name), None),
        Command::Peek(Peek { topic, .. })
        | Command::ListGroups(ListGroups { topic })
        | Command::Redrive(Redrive { topic, .. }) => (Some(topic), None),
        Command::Produce(produce) => (Some(&produce.topic), None),
        Command::Subscribe(subscribe) => (Some(&subscribe.topic), Some(&subscribe.group)),
        Command::CreateGroup(CreateGroup { topic, group, .. })
        | Command::DeleteGroup(DeleteGroup { topic, group })
        | Command::Seek(Seek { topic, group, .. })
        | Command::Pause(Pause { topic, group })
        | Command::Resume(Resume { topic, group }) => (Some(topic), Some(group)),
        Command::Ack(Ack(claim)) | Command::Release(Release(claim)) | Command::Withdraw(Withdraw(claim)) => {
            (Some(&claim.topic), Some(&claim.group))
        }
        Command::Nack(Nack { claim, .. }) | Command::Extend(Extend { claim, .. }) => {
            (Some(&claim.topic), Some(&claim.group))
        }
        Command::Complete(complete) => (Some(&complete.claim.topic), Some(&complete.claim.group)),
        Command::AckCumulative(AckCumulative { topic, group, .. })
        | Command::ExpireLease(ExpireLease { topic, group, .. }) => (Some(topic), Some(group)),
        Command::ListTopics(ListTopics { .. })
        | Command::SetPrefetch(SetPrefetch { .. })
        | Command::Unsubscribe(Unsubscribe { .. })
        | Command::CloseStream(CloseStream { .. })
        | Command::CreateKey(_)
        | Command::RevokeKey(_)
        | Command::BindKey(_)
        | Command::ListKeys(_)
        | Command::CreateTenant(_)
        | Command::DeleteTenant(_)
        | Command::ListTenants(_)
        | Command::ListAudit(_) => (None, None),
        Command::Store(store) => match dead_lettered_by(store) {
            Some((topic, group, _)) => (Some(topic), Some(group)),
            None => (None, None),
        },
    }
}

/// The topic, the group and the delivery that a finish dead-letters, if it does.
pub(crate) fn dead_lettered_by(store: &StoreCommand) -> Option<(&TopicName, &GroupName, &DeliveryClaim)> {
    let StoreCommand::Finish(Finish { identity, dead_letter: Some(delivery), .. }) = store else { return None };
    let Scope::Consume { topic, group } = &identity.scope else { return None };
    Some((topic, group, delivery))
}

/// The message that a command asks to dead-letter, if it does: topic, group, offset.
pub(crate) fn dead_letter_request(command: &Command) -> Option<(TopicName, GroupName, Offset)> {
    let of = |claim: &Claim| (claim.topic.clone(), claim.group.clone(), claim.offset);
    match command {
        Command::Nack(Nack { claim, retry: Retry::Never, .. }) => Some(of(claim)),
        Command::Complete(complete) if complete.failed.is_some() => Some(of(&complete.claim)),
        Command::Store(store) => {
            let (topic, group, delivery) = dead_lettered_by(store)?;
            Some((topic.clone(), group.clone(), delivery.offset))
        }
        _ => None,
    }
}

/// Whether a command acks the message of its claim.
pub(crate) fn is_ack(command: &Command) -> bool {
    match command {
        Command::Ack(_) => true,
        Command::Complete(complete) => complete.failed.is_none(),
        _ => false,
    }
}

/// The claim in a command, if it has one.
pub(crate) fn claim(command: &Command) -> Option<&Claim> {
    match command {
        Command::Ack(Ack(claim)) | Command::Release(Release(claim)) | Command::Withdraw(Withdraw(claim)) => Some(claim),
        Command::Nack(Nack { claim, .. }) | Command::Extend(Extend { claim, .. }) => Some(claim),
        Command::Complete(complete) => Some(&complete.claim),
        _ => None,
    }
}
