//! Limits and what follows from them: where there is room, what a refusal may do, how long done messages are kept.

use driftq_core::Refusal;
use driftq_core::reply::{Overload, Produced};
use driftq_core::state::partition::Partition;
use driftq_core::state::topic::Topic;
use driftq_core::types::{PartitionId, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{Asked, Known, PartitionView};
use super::verdict::Verdict;

#[doc = sentence!(accepted_within_limits)]
pub(super) fn accepted_within_limits(asked: &Asked, produced: &Produced) -> Verdict {
    let place = asked.produce.as_ref();
    let good = place.is_some_and(|place| (place.fits || !asked.quiet) && place.partition == produced.partition);
    catalog::ACCEPTED_WITHIN_LIMITS.holds(good, || format!("{produced:?}, to be {place:?}"))
}

#[doc = sentence!(refused_only_when_full)]
pub(super) fn refused_only_when_full(asked: &Asked, refusal: &Refusal) -> Verdict {
    let backlog = matches!(refusal, Refusal::Overloaded { reason: Overload::Backlog, .. });
    let fits = asked.produce.as_ref().is_some_and(|place| place.fits);
    catalog::REFUSED_ONLY_WHEN_FULL.holds(!(backlog && asked.quiet && fits), || format!("{:?}", asked.produce))
}

#[doc = sentence!(refusal_is_noop)]
pub(super) fn refusal_is_noop(asked: &Asked, refusal: &Refusal) -> Verdict {
    catalog::REFUSAL_IS_NOOP.holds(asked.left_no_record(), || format!("{refusal:?} to {:?}", asked.command))
}

#[doc = sentence!(query_is_noop)]
pub(super) fn query_is_noop(asked: &Asked) -> Verdict {
    catalog::QUERY_IS_NOOP.holds(!asked.only_looks() || asked.left_no_record(), || format!("{:?}", asked.command))
}

#[doc = sentence!(retained_bytes)]
pub(super) fn retained_bytes(partition_view: &PartitionView<'_>, bytes: u64) -> Verdict {
    let within = partition_view.topic.retention().bytes.is_none_or(|most| bytes <= most);
    catalog::RETAINED_BYTES
        .holds(within, || format!("{partition_view}: {bytes}, {:?}", partition_view.topic.retention()))
}

#[doc = sentence!(retained_as_configured)]
///
/// Of those that went from a partition at once, the last was the youngest and the last to be let go of.
pub(super) fn retained_as_configured(topic: &Topic, partition: &Partition, last: &Known, now: Timestamp) -> Verdict {
    let retention = topic.retention();
    let too_old = retention.age.is_some_and(|age| last.produced_at.after(age) <= now);
    let kept = partition.retained().filter_map(|at| partition.message(at)).map(|kept| kept.body.payload_len());
    let with_it = kept.sum::<u64>() + last.body.payload_len();
    let too_much = retention.bytes.is_some_and(|most| with_it > most);
    let fine = !retention.keeps_done() || too_old || too_much;
    catalog::RETAINED_AS_CONFIGURED.holds(fine, || format!("{last:?} at {now}, {retention:?}"))
}

#[doc = sentence!(retention_ends)]
pub(super) fn retention_ends(topic: &Topic, id: PartitionId, partition: &Partition, now: Timestamp) -> Verdict {
    let oldest = partition.oldest_retained().zip(topic.retention().age);
    let good = oldest.is_none_or(|((_, message), age)| message.produced_at.after(age) > now);
    catalog::RETENTION_ENDS.holds(good, || format!("{} {id} at {now}: {oldest:?}", topic.name()))
}

#[cfg(test)]
mod tests {
    use driftq_core::Command;
    use driftq_core::types::Lsn;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn more_done_bytes_than_asked_for_are_too_many() {
        let world = world(r#"{"ask":{"create":{"topic":"t0","keep_ms":1000,"keep_bytes":10}}}"#);
        let topic = world.broker().expect("it runs").state().topics().next().expect("made");
        let (id, partition) = topic.partitions().next().expect("one at least");
        let partition_view = PartitionView::new(topic, id, partition);
        fine(retained_bytes(&partition_view, 10));
        breaks(catalog::RETAINED_BYTES, retained_bytes(&partition_view, 11));
        // Of ten bytes and a second, seven bytes were let go of at once.
        let last = Known { produced_at: Timestamp(5_000), ..known() };
        breaks(catalog::RETAINED_AS_CONFIGURED, retained_as_configured(topic, partition, &last, Timestamp(5_999)));
        fine(retained_as_configured(topic, partition, &last, Timestamp(6_000)));
    }

    #[test]
    fn looking_leaves_no_record_and_neither_does_a_refusal() {
        let looked = Asked { after: Lsn(6), ..asked(Command::ListTopics) };
        fine(query_is_noop(&asked(Command::ListTopics)));
        fine(query_is_noop(&Asked { quiet: false, ..looked.clone() }));
        breaks(catalog::QUERY_IS_NOOP, query_is_noop(&looked));
        breaks(catalog::REFUSAL_IS_NOOP, refusal_is_noop(&looked, &Refusal::StorageFull));
    }
}
