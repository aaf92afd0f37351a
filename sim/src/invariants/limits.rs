//! Limits, refusals and retention.

use driftq_core::Refusal;
use driftq_core::reply::{Overload, Produced};
use driftq_core::state::{Partition, State, Topic};
use driftq_core::types::{Limits, Millis, PartitionId, Retention, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{PartitionView, PendingCommand, StoredMessage};
use super::verdict::Verdict;

#[doc = sentence!(lease_within_limits)]
pub(super) fn lease_within_limits(limits: &Limits, at: Timestamp, until: Timestamp) -> Verdict {
    let good = (limits.lease_min..=limits.lease_max).contains(&until.since(at));
    catalog::LEASE_WITHIN_LIMITS.holds(good, || format!("from {at} to {until}"))
}

#[doc = sentence!(delay_within_limit)]
pub(super) fn delay_within_limit(limits: &Limits, delay: Option<Millis>) -> Verdict {
    let good = delay.is_none_or(|delay| delay <= limits.delay_max);
    catalog::DELAY_WITHIN_LIMIT.holds(good, || format!("{delay:?}, at most {}", limits.delay_max))
}

#[doc = sentence!(accepted_within_limits)]
pub(super) fn accepted_within_limits(pending: &PendingCommand, produced: &Produced) -> Verdict {
    let destination = pending.produce.as_ref();
    let good = destination.is_some_and(|destination| {
        (destination.fits || !pending.no_timer_due) && destination.partition == produced.partition
    });
    catalog::ACCEPTED_WITHIN_LIMITS.holds(good, || format!("{produced:?}, to be {destination:?}"))
}

#[doc = sentence!(refused_only_when_full)]
pub(super) fn refused_only_when_full(pending: &PendingCommand, refusal: &Refusal) -> Verdict {
    let backlog = matches!(refusal, Refusal::Overloaded { reason: Overload::Backlog, .. });
    let fits = pending.produce.as_ref().is_some_and(|destination| destination.fits);
    catalog::REFUSED_ONLY_WHEN_FULL
        .holds(!(backlog && pending.no_timer_due && fits), || format!("{:?}", pending.produce))
}

#[doc = sentence!(refusal_is_noop)]
pub(super) fn refusal_is_noop(pending: &PendingCommand, refusal: &Refusal) -> Verdict {
    catalog::REFUSAL_IS_NOOP.holds(pending.left_no_record(), || format!("{refusal:?} to {:?}", pending.command))
}

#[doc = sentence!(query_is_noop)]
pub(super) fn query_is_noop(pending: &PendingCommand) -> Verdict {
    catalog::QUERY_IS_NOOP.holds(!pending.is_query() || pending.left_no_record(), || format!("{:?}", pending.command))
}

#[doc = sentence!(retained_bytes)]
pub(super) fn retained_bytes(partition_view: &PartitionView<'_>, bytes: u64) -> Verdict {
    let within = partition_view.topic.retention().bytes.is_none_or(|max| bytes <= max);
    catalog::RETAINED_BYTES
        .holds(within, || format!("{partition_view}: {bytes}, {:?}", partition_view.topic.retention()))
}

#[doc = sentence!(retained_as_configured)]
///
/// Of the messages trimmed from a partition at once, `last` is the newest, which is removed last; `kept` is the size of
/// those retained until then.
pub(super) fn retained_as_configured(retention: Retention, kept: u64, last: &StoredMessage, now: Timestamp) -> Verdict {
    let too_old = retention.age.is_some_and(|age| last.produced_at.after(age) <= now);
    let too_much = retention.bytes.is_some_and(|max| kept + last.message.payload.payload_len() > max);
    let is_due = !retention.keeps_acked() || too_old || too_much;
    catalog::RETAINED_AS_CONFIGURED.holds(is_due, || format!("{last:?} at {now}, {retention:?}"))
}

#[doc = sentence!(retained_within_bound)]
pub(super) fn retained_within_bound(state: &State, limits: &Limits) -> Verdict {
    let memory = retained_memory(state);
    catalog::RETAINED_WITHIN_BOUND
        .holds(memory <= limits.retained_bytes_max, || format!("{memory} of {}", limits.retained_bytes_max))
}

/// The memory of the retained messages of all topics.
pub(super) fn retained_memory(state: &State) -> u64 {
    let partitions = state.topics().flat_map(Topic::partitions).map(|(_, partition)| partition);
    let retained = partitions.flat_map(|partition| partition.retained().filter_map(|at| partition.message(at)));
    retained.map(|message| message.retained_bytes()).sum()
}

#[doc = sentence!(retention_ends)]
pub(super) fn retention_ends(topic: &Topic, id: PartitionId, partition: &Partition, now: Timestamp) -> Verdict {
    let oldest = partition.oldest_retained().zip(topic.retention().age);
    let good = oldest.as_ref().is_none_or(|((_, message), age)| message.produced_at.after(*age) > now);
    catalog::RETENTION_ENDS.holds(good, || format!("{} {id} at {now}: {oldest:?}", topic.name()))
}

#[cfg(test)]
mod tests {
    use driftq_core::Command;
    use driftq_core::types::Lsn;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn retention_beyond_its_size_or_short_of_its_age_is_a_violation() {
        let world = world(r#"{"ask":{"create":{"topic":"t0","keep_ms":1000,"keep_bytes":10}}}"#);
        let topic = world.broker().expect("the broker runs").state().topics().next().expect("the topic exists");
        let (id, partition) = topic.partitions().next().expect("at least one partition");
        let partition_view = PartitionView::new(topic, id, partition);
        holds(retained_bytes(&partition_view, 10));
        violates(catalog::RETAINED_BYTES, retained_bytes(&partition_view, 11));
        // Retention is ten bytes and one second; seven bytes were removed at once.
        let last = StoredMessage { produced_at: Timestamp(5_000), ..known() };
        violates(
            catalog::RETAINED_AS_CONFIGURED,
            retained_as_configured(topic.retention(), 0, &last, Timestamp(5_999)),
        );
        holds(retained_as_configured(topic.retention(), 0, &last, Timestamp(6_000)));
    }

    #[test]
    fn record_written_by_query_or_refusal_is_a_violation() {
        let with_record = PendingCommand {
            after: Lsn(6),
            ..pending(Command::ListTopics(driftq_core::command::ListTopics::default()))
        };
        holds(query_is_noop(&pending(Command::ListTopics(driftq_core::command::ListTopics::default()))));
        holds(query_is_noop(&PendingCommand { no_timer_due: false, ..with_record.clone() }));
        violates(catalog::QUERY_IS_NOOP, query_is_noop(&with_record));
        violates(catalog::REFUSAL_IS_NOOP, refusal_is_noop(&with_record, &Refusal::StorageFull));
    }
}
