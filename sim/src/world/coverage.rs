//! Detects when a coverage point is hit.

use driftq_core::command::{Ack, DeleteGroup, Purge, Redrive, RedriveSelection, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::{Event, Record};
use driftq_core::reply::{Blocked, Delivery, Overload, Peeked, RouterUse, StoreReply};
use driftq_core::state::{Group, Partition, Progress, State, Topic};
use driftq_core::types::{DeadReason, Limits, MessageRef, Position};
use driftq_core::{Command, Pipeline, Refusal, Reply};

use crate::coverage::{Coverage, Point};

/// Before a command is decided.
pub(super) fn command(coverage: &mut Coverage, state: &State, command: &Command) {
    match command {
        Command::Ack(Ack(claim)) => {
            let topic = state.topic_named(&claim.topic);
            let progress = topic.and_then(|topic| topic.group_named(&claim.group)?.progress(claim.partition));
            let entry = progress.and_then(|progress| progress.find_delivery(claim.offset));
            let is_late = entry.is_some_and(|(_, entry)| {
                entry.leased_until().is_none() && claim.token == TokenClaim::Shown(entry.token)
            });
            coverage.hit_if(is_late, Point::LateAck);
        }
        Command::DeleteGroup(DeleteGroup { topic, group }) => {
            let group = state.topic_named(topic).and_then(|topic| topic.group_named(group));
            let mut partitions = group.into_iter().flat_map(Group::partitions);
            coverage.hit_if(partitions.any(|(_, progress)| progress.in_flight() > 0), Point::GroupDeleted);
        }
        Command::Purge(Purge { topic }) => {
            let Some(topic) = state.topic_named(topic) else { return };
            let mut progress = topic.groups().flat_map(Group::partitions);
            coverage.hit_if(progress.any(|(_, progress)| progress.in_flight() > 0), Point::PurgedLeased);
            let mut messages = topic.partitions().flat_map(|(_, partition)| partition.messages());
            let is_delayed = messages.any(|(_, message)| state.is_delayed(&message, state.clock()));
            coverage.hit_if(is_delayed, Point::PurgedDelayed);
        }
        Command::Redrive(Redrive { topic, which: RedriveSelection::Rest(rest), .. }) => {
            let dead = topic.dead_letter().and_then(|name| state.topic_named(&name));
            let is_later = dead.is_some_and(|dead| dead.id() == rest.dead_topic && dead.next_offset() > rest.below);
            coverage.hit_if(is_later, Point::RedriveContinued);
        }
        _ => {}
    }
}

/// After a record was written.
pub(super) fn record<F: Faults>(coverage: &mut Coverage, broker: Option<&Pipeline<F>>, record: &Record) {
    match &record.event {
        Event::Released { .. } => coverage.hit(Point::Released),
        Event::Expired { .. } => coverage.hit(Point::Expired),
        Event::Relocated(_) => coverage.hit(Point::Relocated),
        Event::GroupSought { .. } => coverage.hit(Point::Sought),
        Event::RetentionExpired { .. } => coverage.hit(Point::RetentionExpired),
        Event::Produced { skipped, .. } => coverage.hit_if(!skipped.is_empty(), Point::Skipped),
        Event::EffectsExpired { .. } => coverage.hit(Point::EffectExpired),
        Event::Acked { message_ref, .. } => {
            let Some((progress, partition)) = broker.and_then(|broker| find(broker.state(), message_ref)) else {
                return;
            };
            coverage.hit_if(progress.acked().floor() <= message_ref.position, Point::AckOutOfOrder);
            coverage.hit_if(partition.retained().next().is_some(), Point::Retained);
        }
        Event::Delivered { message_ref, .. } => {
            let Some((progress, partition)) = broker.and_then(|broker| find(broker.state(), message_ref)) else {
                return;
            };
            let floor = progress.acked().floor();
            coverage.hit_if(overtakes(progress, partition, message_ref.position, floor), Point::PriorityFirst);
            let is_committed = broker.is_some_and(|broker| is_committed(broker.state(), message_ref));
            coverage.hit_if(is_committed, Point::DeliveredThoughDone);
        }
        _ => {}
    }
}

/// Covers a start with more stored or leased than its limits allow.
pub(super) fn limits(coverage: &mut Coverage, state: &State, limits: &Limits) {
    let topics = || state.topics();
    let is_over = |partition: &Partition| {
        let load = partition.backlog();
        load.messages > limits.partition_messages_max || load.bytes > limits.partition_bytes_max
    };
    let has_backlog = topics().flat_map(Topic::partitions).any(|(_, partition)| is_over(partition));
    let groups = topics().flat_map(Topic::groups);
    let mut progress = groups.flat_map(Group::partitions);
    let has_leases = progress.any(|(_, progress)| progress.in_flight() > limits.in_flight_max);
    coverage.hit_if(has_backlog || has_leases, Point::LimitLowered);
}

/// After the broker started.
pub(super) fn started(coverage: &mut Coverage, state: &State) {
    let progress = state.topics().flat_map(Topic::groups).flat_map(Group::partitions);
    let has_gap = |progress: &Progress| progress.acked().runs().next().is_some();
    coverage.hit_if(progress.into_iter().any(|(_, progress)| has_gap(progress)), Point::GapAfterCrash);
}

/// When a reply leaves the broker.
pub(super) fn reply(coverage: &mut Coverage, result: &Result<Reply, Refusal>) {
    match result {
        Ok(reply) => replied(coverage, reply),
        Err(refusal) => refused(coverage, refusal),
    }
}

/// When a delivery leaves the broker.
pub(super) fn delivery(coverage: &mut Coverage, delivery: &Delivery) {
    coverage.hit_if(delivery.attempts > 1, Point::Retried);
    if !delivery.body.has_metadata() {
        return;
    }
    let meta = delivery.body.metadata();
    let is_delayed = meta.envelope.deliver_at.is_some() || meta.envelope.delayed_until.is_some();
    coverage.hit_if(is_delayed, Point::Delayed);
    coverage.hit_if(meta.redrive.is_some_and(|redrive| redrive.count > 1), Point::RedrivenTwice);
    if let Some(dead) = &meta.dead_letter {
        match dead.reason {
            DeadReason::MaxAttempts => coverage.hit(Point::DeadByAttempts),
            DeadReason::DeadlineExceeded => coverage.hit(Point::DeadByDeadline),
            DeadReason::NonRetryable => coverage.hit(Point::DeadByWorker),
            DeadReason::PayloadDamaged => coverage.hit(Point::LostDelivered),
        }
    }
}

/// Whether the identity of the message is committed in the group.
fn is_committed(state: &State, message_ref: &MessageRef) -> bool {
    let effect = || {
        let topic = state.topic(message_ref.topic)?;
        let message = topic.partition(message_ref.partition)?.message(message_ref.position)?;
        state.store().consumed(topic.name(), topic.group(message_ref.group)?.name(), message.identity()?)
    };
    effect().is_some_and(|effect| effect.committed)
}

fn find<'a>(state: &'a State, message_ref: &MessageRef) -> Option<(&'a Progress, &'a Partition)> {
    let topic = state.topic(message_ref.topic)?;
    Some((topic.group(message_ref.group)?.progress(message_ref.partition)?, topic.partition(message_ref.partition)?))
}

/// Whether the message at `position` was delivered before the one at `first`, which has a lower priority.
fn overtakes(progress: &Progress, partition: &Partition, position: Position, first: Position) -> bool {
    let (Some(message), Some(waiting)) = (partition.message(position), partition.message(first)) else { return false };
    first < position
        && progress.delivery(first).is_none()
        && message.flags().priority > waiting.flags().priority
        && !waiting.flags().has_delay
}

fn replied(coverage: &mut Coverage, reply: &Reply) {
    match reply {
        Reply::Produced(produced) => {
            coverage.hit_if(produced.duplicate, Point::DuplicateProduce);
            coverage.hit_if(produced.router == RouterUse::Followed, Point::Routed);
            coverage.hit_if(produced.router == RouterUse::Ignored, Point::RouteIgnored);
        }
        Reply::Extended { .. } => coverage.hit(Point::Extended),
        Reply::Completed(outputs) => coverage.hit_if(!outputs.is_empty(), Point::StepCompleted),
        Reply::Peeked(peeked) => {
            let is_lost = |peeked: &Peeked| peeked.body.has_metadata() && peeked.body.metadata().lost.is_some();
            coverage.hit_if(peeked.iter().any(is_lost), Point::LostPeeked);
        }
        Reply::Store(StoreReply::Replay { result_lost, .. }) => coverage.hit_if(*result_lost, Point::LostReplayed),
        Reply::Store(StoreReply::Retryable { .. }) => coverage.hit(Point::Retryable),
        Reply::Redriven { count, .. } => coverage.hit_if(*count > 0, Point::Redriven),
        Reply::Topic(info) => {
            for progress in info.groups.iter().flat_map(|group| &group.partitions) {
                match progress.blocked {
                    Some(Blocked::Paused) => coverage.hit(Point::Paused),
                    Some(Blocked::NoCredit) => coverage.hit(Point::NoCredit),
                    Some(Blocked::InFlightLimit) => coverage.hit(Point::InFlightLimit),
                    Some(Blocked::NotYetDue) => coverage.hit(Point::BackedOff),
                    Some(Blocked::NoConsumers) | None => {}
                }
            }
        }
        _ => {}
    }
}

fn refused(coverage: &mut Coverage, refusal: &Refusal) {
    coverage.hit(match refusal {
        Refusal::StaleLease => Point::StaleToken,
        Refusal::NotOwner => Point::NotOwner,
        Refusal::StorageFull => Point::DiskFull,
        Refusal::Overloaded { reason: Overload::Log, .. } => Point::LogBusy,
        Refusal::Overloaded { reason: Overload::Memory, .. } => Point::StateFull,
        Refusal::Overloaded { reason: Overload::Backlog, .. } => Point::Backpressure,
        Refusal::Overloaded { reason: Overload::DeadLetters, .. } => Point::DeadLettersFull,
        Refusal::Overloaded { reason: Overload::DedupeKeys, .. } => Point::IdentitiesFull,
        Refusal::Overloaded { reason: Overload::Effects, .. } => Point::Quota,
        Refusal::InProgress { .. } => Point::InProgress,
        Refusal::OtherOutcome => Point::OtherOutcome,
        Refusal::HashMismatch => Point::HashMismatch,
        _ => return,
    });
}
