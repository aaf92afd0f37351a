//! Bugs in what a broker decides about: its limits and the commands that reach it.

use std::sync::Arc;

use super::Fault;
use crate::command::{
    Ack, Begin, Claim, Command, CreateGroup, ExpireLease, Finish, Forget, Purge, Redrive, RedriveSelection, Release,
    StoreCommand, Subscribe, TokenClaim,
};
use crate::state::{EffectTable, Partition, State};
use crate::types::{
    DeliveryState, EffectNamespace, GroupName, GroupStart, Limits, Millis, Offset, PartitionId, Scope, TopicName,
};

/// The limits under which the broker decides.
pub(super) fn limits(fault: Fault, limits: Limits) -> Limits {
    match fault {
        Fault::InFlightOffByOne => Limits { in_flight_max: limits.in_flight_max + 1, ..limits },
        Fault::BackpressureIgnoresBytes => Limits { partition_bytes_max: u64::MAX, ..limits },
        Fault::LeaseUnbounded => Limits { lease_min: Millis(1), lease_max: Millis(u64::MAX), ..limits },
        Fault::RetainedBoundIgnored => Limits { retained_bytes_max: u64::MAX, ..limits },
        Fault::IdleGroupStays => Limits { group_idle: None, ..limits },
        Fault::DelayUnbounded => Limits { delay_max: Millis(u64::MAX), ..limits },
        Fault::IdTooLongByOne => Limits { id_bytes_max: limits.id_bytes_max + 1, ..limits },
        Fault::IdempotencyKeyTooLongByOne => {
            Limits { idempotency_key_bytes_max: limits.idempotency_key_bytes_max + 1, ..limits }
        }
        Fault::KeyTooShortByOne => Limits { key_bytes_max: limits.key_bytes_max - 1, ..limits },
        Fault::MessageTooLongByOne => Limits { message_bytes_max: limits.message_bytes_max + 1, ..limits },
        Fault::MetadataTooShortByOne => Limits { metadata_bytes_max: limits.metadata_bytes_max - 1, ..limits },
        Fault::ErrorTooShortByOne => Limits { error_text_bytes_max: limits.error_text_bytes_max - 1, ..limits },
        Fault::OnePartitionTooMany => Limits { partitions_max: limits.partitions_max + 1, ..limits },
        _ => limits,
    }
}

/// Changes a command before it is decided. Returns one to decide before it.
pub(super) fn command(fault: Fault, state: &State, limits: &Limits, command: &mut Command) -> Option<Command> {
    match (fault, command) {
        (Fault::PrefetchOffByOne, Command::Subscribe(Subscribe { prefetch, .. })) => {
            *prefetch = prefetch.saturating_add(1);
        }
        (Fault::RedriveTakesFirstOnly, Command::Redrive(Redrive { which: RedriveSelection::Offsets(offsets), .. })) => {
            offsets.truncate(1);
        }
        (Fault::LabelsDropped, Command::Produce(produce)) => produce.envelope.labels.clear(),
        (Fault::EmptyIdDropped, Command::Produce(produce)) => {
            let run_id = &mut produce.envelope.run_id;
            *run_id = run_id.take().filter(|id| !id.is_empty());
        }
        (Fault::ListIgnoresKind, Command::Store(asked)) => {
            if let StoreCommand::List(list) = &mut **asked {
                list.kind = None;
            }
        }
        (Fault::GroupCreatedByFailedAck, Command::Ack(Ack(claim))) => {
            let (topic, group) = (claim.topic.clone(), claim.group.clone());
            return Some(CreateGroup { topic, group, start: GroupStart::Earliest }.into());
        }
        (Fault::LoweredLimitPurges, Command::Produce(produce)) => {
            let topic = state.topic_named(&produce.topic)?;
            let mut partitions = topic.partitions();
            let is_over = |partition: &Partition| partition.backlog().messages > limits.partition_messages_max;
            let is_over = partitions.any(|(_, partition)| is_over(partition));
            return is_over.then(|| Purge { topic: produce.topic.clone() }.into());
        }
        (Fault::ExpireCountsNothing, command @ Command::ExpireLease(_)) => {
            let Command::ExpireLease(ExpireLease { topic, group, partition, offset }) = command else {
                return None;
            };
            let newest = newest(state, topic, group, (*partition, *offset))?;
            newest.leased_until()?;
            let (topic, group, owner) = (topic.clone(), group.clone(), newest.owner.clone());
            let (partition, offset, token) = (*partition, *offset, TokenClaim::Shown(newest.token));
            *command = Release(Claim { topic, group, partition, offset, owner, token }).into();
        }
        (Fault::DeadLetterFinishUnfenced, Command::Store(asked)) => {
            let StoreCommand::Finish(Finish { identity, dead_letter: Some(claim), .. }) = &mut **asked else {
                return None;
            };
            let Scope::Consume { topic, group } = &identity.scope else { return None };
            let newest = newest(state, topic, group, (claim.partition, claim.offset))?;
            claim.token = TokenClaim::Shown(newest.token);
        }
        (Fault::ListIgnoresStatus, Command::Store(asked)) => {
            if let StoreCommand::List(list) = &mut **asked {
                list.status = None;
            }
        }
        (Fault::QuotaEvictsLive, Command::Store(asked)) => {
            let StoreCommand::Begin(Begin { identity, .. }) = &**asked else { return None };
            let store = state.store();
            if store.get(identity).is_some() || store.len_of(identity.tenant()) < limits.effects_max {
                return None;
            }
            let keys = |(namespace, table): (EffectNamespace, &Arc<EffectTable>)| {
                table.effects().map(|(key, _)| namespace.identity(key)).collect::<Vec<_>>()
            };
            let oldest = store.tables().flat_map(keys).find(|other| other.tenant() == identity.tenant());
            return oldest.map(|identity| Forget { identity }.into());
        }
        _ => {}
    }
    None
}

fn newest<'a>(
    state: &'a State,
    topic: &TopicName,
    group: &GroupName,
    (partition, offset): (PartitionId, Offset),
) -> Option<&'a DeliveryState> {
    let progress = state.topic_named(topic)?.group_named(group)?.progress(partition)?;
    progress.deliveries().map(|(_, delivery)| delivery).find(|delivery| delivery.offset == offset)
}
