//! Steps and answers in plain words.

use driftq_core::idempotency::Outcome;
use driftq_core::reply::{CloseCause, Delivery, StoreReply};
use driftq_core::{Refusal, Reply};

use super::diff::{Clock, short, span};
use super::snapshot::{effect_name, name_in};
use super::timeline::Glyph;
use crate::actions::{
    Damage, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, Loss, NewMessage, Request, SeekTarget,
    Subscription, Tampering,
};
use crate::names::Worker;
use crate::world::effect_identity;

/// Who asks, where it is a worker.
pub(super) fn asker(request: &Request) -> Option<Worker> {
    match request {
        Request::Subscribe(Subscription { worker, .. }) | Request::BeginEffect(EffectBegin { worker, .. }) => {
            Some(*worker)
        }
        Request::SetPrefetch { worker, .. }
        | Request::Unsubscribe { worker }
        | Request::ReacquireEffect { worker, .. } => Some(*worker),
        Request::Ack(delivery) | Request::Release(delivery) => Some(delivery.worker),
        Request::Nack { delivery, .. } | Request::Extend { delivery, .. } | Request::Complete { delivery, .. } => {
            Some(delivery.worker)
        }
        Request::FinishEffect { grant, .. } | Request::RenewEffect { grant, .. } => Some(grant.worker),
        _ => None,
    }
}

/// By which delivery it is asked, where it is by one.
pub(super) fn delivery_ref(request: &Request) -> Option<&DeliveryRef> {
    match request {
        Request::Ack(delivery) | Request::Release(delivery) => Some(delivery),
        Request::Nack { delivery, .. } | Request::Extend { delivery, .. } | Request::Complete { delivery, .. } => {
            Some(delivery)
        }
        Request::BeginEffect(EffectBegin { delivery, .. }) => delivery.as_ref(),
        _ => None,
    }
}

/// The messages that are to be made.
pub(super) fn new_messages(request: &Request) -> &[NewMessage] {
    match request {
        Request::Produce(new_message) => std::slice::from_ref(new_message),
        Request::Complete { produce, .. } => produce,
        _ => &[],
    }
}

/// The topic and the group that a question names.
pub(super) fn named(request: &Request) -> (Option<String>, Option<String>) {
    let (topic, group) = match request {
        Request::CreateTopic { topic, .. }
        | Request::DeleteTopic { topic }
        | Request::DescribeTopic { topic }
        | Request::Peek { topic, .. } => (*topic, None),
        Request::Produce(NewMessage { topic, .. }) | Request::ListGroups { topic } | Request::Redrive { topic, .. } => {
            (*topic, None)
        }
        Request::Subscribe(Subscription { topic, group, .. }) => (*topic, Some(*group)),
        Request::CreateGroup { topic, group, .. } | Request::DeleteGroup { topic, group } => (*topic, Some(*group)),
        Request::Seek { topic, group, .. } | Request::Pause { topic, group } | Request::Resume { topic, group } => {
            (*topic, Some(*group))
        }
        _ => return (None, None),
    };
    (Some(topic.to_string()), group.map(|group| group.to_string()))
}

/// What a call looks like.
pub(super) fn glyph(request: &Request) -> Glyph {
    match request {
        Request::Produce(_) => Glyph::Produce,
        Request::Ack(_) | Request::Complete { .. } => Glyph::Ack,
        Request::Nack { .. } => Glyph::Nack,
        Request::BeginEffect(_)
        | Request::FinishEffect { .. }
        | Request::ReacquireEffect { .. }
        | Request::RenewEffect { .. } => Glyph::Effect,
        Request::GetEffect { .. } | Request::ForgetEffect { .. } => Glyph::Effect,
        _ => Glyph::Call,
    }
}

/// What is asked.
pub(super) fn question(request: &Request) -> String {
    match request {
        Request::CreateTopic { topic, partitions, keep_ms, keep_bytes } => {
            let mut notes = Vec::new();
            notes.extend(partitions.map(|count| format!("{count} partitions")));
            notes.extend(keep_ms.map(|ms| format!("done messages stay {}", span(u64::from(ms)))));
            notes.extend(keep_bytes.map(|bytes| format!("done messages stay up to {bytes} bytes")));
            format!("create topic {topic}{}", listed(&notes))
        }
        Request::DeleteTopic { topic } => format!("delete topic {topic}"),
        Request::ListTopics => "list the topics".to_owned(),
        Request::DescribeTopic { topic } => format!("describe {topic}"),
        Request::Peek { topic, offset, .. } => format!("peek into {topic} from offset {offset} on"),
        Request::Produce(new_message) => produce(new_message),
        Request::Subscribe(stream) => {
            let mut notes = Vec::new();
            notes.extend(stream.lease_ms.map(|ms| format!("leases of {}", span(u64::from(ms)))));
            notes.extend((stream.owner != stream.worker).then(|| format!("under the name {}", stream.owner)));
            notes.extend(stream.deliveries.map(|count| format!("{count} deliveries in all")));
            format!("{} subscribes to {} in {}{}", stream.worker, stream.topic, stream.group, listed(&notes))
        }
        Request::SetPrefetch { worker, to } => format!("{worker} sets its prefetch to {to}"),
        Request::Unsubscribe { worker } => format!("{worker} leaves"),
        Request::Ack(delivery) => format!("{} acks {}{}", delivery.worker, delivery.message, odd(delivery)),
        Request::Nack { delivery, .. } => format!("{} nacks {}{}", delivery.worker, delivery.message, odd(delivery)),
        Request::Extend { delivery, lease_ms } => {
            let by = lease_ms.map(|ms| format!(" to {} from now", span(u64::from(ms)))).unwrap_or_default();
            format!("{} extends its lease of {}{by}{}", delivery.worker, delivery.message, odd(delivery))
        }
        Request::Release(delivery) => format!("{} gives {} back{}", delivery.worker, delivery.message, odd(delivery)),
        Request::Complete { delivery, produce, .. } => {
            let next: Vec<String> =
                produce.iter().map(|new_message| format!("{} to {}", new_message.message, new_message.topic)).collect();
            let next = if next.is_empty() { String::new() } else { format!(", handing on {}", next.join(", ")) };
            format!("{} completes {}{next}{}", delivery.worker, delivery.message, odd(delivery))
        }
        Request::BeginEffect(begin) => {
            let by = begin.delivery.as_ref().map(|delivery| format!(", holding {}{}", delivery.message, odd(delivery)));
            format!("{} asks to run {}{}", begin.worker, name(&begin.effect), by.unwrap_or_default())
        }
        Request::FinishEffect { grant, outcome, .. } => {
            let how = match outcome {
                EffectOutcome::Succeeded => "succeeded",
                EffectOutcome::FailedFinal => "failed for good",
                EffectOutcome::FailedRetryable => "failed for now",
                EffectOutcome::InProgress => "is in progress",
            };
            format!("{} says {} {how}{}", grant.worker, name(&grant.effect), odd_grant(grant))
        }
        Request::ReacquireEffect { worker, effect, .. } => format!("{worker} asks for {} again", name(effect)),
        Request::RenewEffect { grant, .. } => {
            format!("{} needs longer for {}{}", grant.worker, name(&grant.effect), odd_grant(grant))
        }
        Request::GetEffect { effect } => format!("ask about {}", name(effect)),
        Request::ForgetEffect { effect } => format!("forget {}", name(effect)),
        Request::CreateGroup { topic, group, .. } => format!("create group {group} of {topic}"),
        Request::DeleteGroup { topic, group } => format!("delete group {group} of {topic}"),
        Request::ListGroups { topic } => format!("list the groups of {topic}"),
        Request::Seek { topic, group, to } => {
            let to = match to {
                SeekTarget::Earliest => "the earliest message".to_owned(),
                SeekTarget::Latest => "the end".to_owned(),
                SeekTarget::Offset(offset) => format!("offset {offset}"),
                SeekTarget::Time(ms) => span(*ms),
            };
            format!("seek {group} of {topic} to {to}")
        }
        Request::Pause { topic, group } => format!("pause {group} of {topic}"),
        Request::Resume { topic, group } => format!("resume {group} of {topic}"),
        Request::Redrive { topic, offset, .. } => match offset {
            Some(offset) => format!("redrive the dead letter at offset {offset} of {topic}"),
            None => format!("redrive the dead letters of {topic}"),
        },
    }
}

fn produce(new_message: &NewMessage) -> String {
    let mut notes = Vec::new();
    notes.extend(new_message.delay_ms.map(|ms| format!("held back {}", span(u64::from(ms)))));
    notes.extend(new_message.deliver_at.map(|ms| format!("held back until {}", span(ms))));
    notes.extend(new_message.deadline.map(|ms| format!("worthless after {}", span(ms))));
    notes.extend((new_message.priority > 0).then(|| format!("priority {}", new_message.priority)));
    notes.extend(new_message.policy.map(|policy| format!("at most {} attempts", policy.attempts)));
    notes.extend(new_message.identity.map(|nth| format!("identity {nth}")));
    format!("produce {} to {}{}", new_message.message, new_message.topic, listed(&notes))
}

fn listed(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}

/// The effect a step means.
pub(super) fn name(effect: &EffectRef) -> String {
    effect_name(&effect_identity(effect))
}

fn odd(delivery: &DeliveryRef) -> String {
    let back = if delivery.back > 0 { ", by an older delivery" } else { "" };
    let tampering = match delivery.tampering {
        Tampering::None => "",
        Tampering::NoToken => ", showing no token",
        Tampering::Unreadable => ", showing what is no token",
        Tampering::WrongOwner => ", under another name",
        Tampering::WrongPartition => ", in another partition",
        Tampering::WrongOffset => ", at another offset",
        Tampering::WrongGroup => ", for another group",
        Tampering::NoGroup => ", for a group that never was",
    };
    format!("{back}{tampering}")
}

fn odd_grant(grant: &GrantRef) -> String {
    let back = if grant.back > 0 { ", by an older grant" } else { "" };
    let tampering = match grant.tampering {
        Tampering::NoToken => ", showing no token",
        Tampering::Unreadable => ", showing what is no token",
        _ => "",
    };
    format!("{back}{tampering}")
}

/// What becomes of what was not synced.
pub(super) fn loss(loss: Loss) -> &'static str {
    match loss {
        Loss::All => "the power goes: all that was not synced is lost",
        Loss::Partial { .. } => "the power goes: some of what was not synced is left, in pieces",
        Loss::Cut { .. } => "the power goes: a beginning of what was not synced is left",
        Loss::Nothing => "the process dies: what it wrote is still there",
    }
}

/// What is done to a copy of the disk.
pub(super) fn damage(damage: Damage) -> String {
    match damage {
        Damage::Flip { bit } => format!("bit {bit} were flipped"),
        Damage::Zero { sector } => format!("sector {sector} were zeros again"),
        Damage::Misdirect { from, to } => format!("the write to sector {from} had gone to sector {to}"),
        Damage::Unreadable { sector } => format!("sector {sector} could not be read"),
    }
}

/// What the broker answers.
pub(super) fn answer(result: &Result<Reply, Refusal>, clock: Clock) -> String {
    let reply = match result {
        Ok(reply) => reply,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    match reply {
        Reply::Done => "done".to_owned(),
        Reply::TopicCreated { partitions } => {
            format!("the topic exists, with {}", counted(*partitions as usize, "partition"))
        }
        Reply::Topics(topics) => counted(topics.len(), "topic"),
        Reply::Topic(topic) => format!("{} has {}", topic.name, counted(topic.groups.len(), "group")),
        Reply::Produced(produced) if produced.duplicate => {
            format!("known already: it is the message at offset {}", produced.offset.0)
        }
        Reply::Produced(produced) => format!("stored at offset {}", produced.offset.0),
        Reply::Peeked(peeked) => counted(peeked.len(), "message"),
        Reply::Subscribed { .. } => "connected".to_owned(),
        Reply::Extended { lease_until } => format!("the lease runs until {}", clock.says(*lease_until)),
        Reply::Groups(groups) => counted(groups.len(), "group"),
        Reply::Redriven { count } => format!("{count} made live again"),
        Reply::Completed(outputs) if outputs.is_empty() => "completed".to_owned(),
        Reply::Completed(outputs) => format!("completed, {} handed on", counted(outputs.len(), "message")),
        Reply::Store(reply) => store_answer(reply, clock),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn store_answer(reply: &StoreReply, clock: Clock) -> String {
    match reply {
        StoreReply::Execute { attempt, lease_until, .. } => {
            format!("EXECUTE, attempt {attempt}, until {}", clock.says(*lease_until))
        }
        StoreReply::Replay(Outcome { status, .. }) => format!("REPLAY: it ended with {}", status.as_str()),
        StoreReply::Retryable { status, .. } => format!("it may be reacquired: {}", status.as_str()),
        StoreReply::Renewed { lease_until } => format!("granted until {}", clock.says(*lease_until)),
        StoreReply::Effect(effect) => format!("{}, attempt {}", effect.status.as_str(), effect.attempt),
    }
}

/// A delivery on its way to its reader.
pub(super) fn delivery(worker: Option<Worker>, delivery: &Delivery, clock: Clock) -> String {
    let to = worker.map_or("a stream that is gone".to_owned(), |worker| worker.to_string());
    format!(
        "to {to}: {} (offset {}, attempt {}, token {}, until {})",
        name_in(delivery.body.value()),
        delivery.offset.0,
        delivery.attempts,
        short(delivery.token),
        clock.says(delivery.lease_until),
    )
}

/// Why a stream is over.
pub(super) fn closed(worker: Option<Worker>, cause: CloseCause) -> String {
    let whose = worker.map_or("somebody".to_owned(), |worker| worker.to_string());
    let why = match cause {
        CloseCause::TopicDeleted => "its topic was deleted",
        CloseCause::GroupDeleted => "its group was deleted",
    };
    format!("to {whose}: your stream is over, {why}")
}
