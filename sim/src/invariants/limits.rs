//! Limits and what follows from them: where there is room, what a refusal may do, how long done messages are kept.

use driftq_core::Refusal;
use driftq_core::reply::{Overload, Produced};
use driftq_core::state::partition::Partition;
use driftq_core::state::topic::Topic;
use driftq_core::types::{PartitionId, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{Asked, Known, PartitionView};
use super::verdict::Verdict;

#[doc = sentence!(only_with_room)]
pub(super) fn only_with_room(asked: &Asked, produced: &Produced) -> Verdict {
    let place = asked.produce.as_ref();
    let good = place.is_some_and(|place| (place.fits || !asked.quiet) && place.partition == produced.partition);
    catalog::ONLY_WITH_ROOM.holds(good, || format!("{produced:?}, to be {place:?}"))
}

#[doc = sentence!(refused_when_full)]
pub(super) fn refused_when_full(asked: &Asked, refusal: &Refusal) -> Verdict {
    let backlog = matches!(refusal, Refusal::Overloaded { reason: Overload::Backlog, .. });
    let fits = asked.produce.as_ref().is_some_and(|place| place.fits);
    catalog::REFUSED_WHEN_FULL.holds(!(backlog && asked.quiet && fits), || format!("{:?}", asked.produce))
}

#[doc = sentence!(refused_is_nothing)]
pub(super) fn refused_is_nothing(asked: &Asked, refusal: &Refusal) -> Verdict {
    catalog::REFUSED_IS_NOTHING.holds(asked.left_no_record(), || format!("{refusal:?} to {:?}", asked.command))
}

#[doc = sentence!(looking_is_nothing)]
pub(super) fn looking_is_nothing(asked: &Asked) -> Verdict {
    catalog::LOOKING_IS_NOTHING.holds(!asked.only_looks() || asked.left_no_record(), || format!("{:?}", asked.command))
}

#[doc = sentence!(retained_bytes)]
pub(super) fn retained_bytes(partition_view: &PartitionView<'_>, bytes: u64) -> Verdict {
    let within = partition_view.topic.retention().bytes.is_none_or(|most| bytes <= most);
    catalog::RETAINED_BYTES
        .holds(within, || format!("{partition_view}: {bytes}, {:?}", partition_view.topic.retention()))
}

#[doc = sentence!(retained_while_asked)]
///
/// Of those that went from a partition at once, the last was the youngest and the last to be let go of.
pub(super) fn retained_while_asked(topic: &Topic, partition: &Partition, last: &Known, now: Timestamp) -> Verdict {
    let retention = topic.retention();
    let too_old = retention.age.is_some_and(|age| last.produced_at.after(age) <= now);
    let kept = partition.retained().filter_map(|at| partition.message(at)).map(|kept| kept.body.payload_len());
    let with_it = kept.sum::<u64>() + last.body.payload_len();
    let too_much = retention.bytes.is_some_and(|most| with_it > most);
    let fine = !retention.keeps_done() || too_old || too_much;
    catalog::RETAINED_WHILE_ASKED.holds(fine, || format!("{last:?} at {now}, {retention:?}"))
}

#[doc = sentence!(gone_in_time)]
pub(super) fn gone_in_time(topic: &Topic, id: PartitionId, partition: &Partition, now: Timestamp) -> Verdict {
    let oldest = partition.oldest_retained().zip(topic.retention().age);
    let good = oldest.is_none_or(|((_, message), age)| message.produced_at.after(age) > now);
    catalog::GONE_IN_TIME.holds(good, || format!("{} {id} at {now}: {oldest:?}", topic.name()))
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
        breaks(catalog::RETAINED_WHILE_ASKED, retained_while_asked(topic, partition, &last, Timestamp(5_999)));
        fine(retained_while_asked(topic, partition, &last, Timestamp(6_000)));
    }

    #[test]
    fn looking_leaves_no_record_and_neither_does_a_refusal() {
        let looked = Asked { after: Lsn(6), ..asked(Command::ListTopics) };
        fine(looking_is_nothing(&asked(Command::ListTopics)));
        fine(looking_is_nothing(&Asked { quiet: false, ..looked.clone() }));
        breaks(catalog::LOOKING_IS_NOTHING, looking_is_nothing(&looked));
        breaks(catalog::REFUSED_IS_NOTHING, refused_is_nothing(&looked, &Refusal::StorageFull));
    }
}
