//! Where a message is: kept or trimmed, and for each group done, held, waiting or ready. What is done was ended by somebody's
//! word, and what is gone was done.

use driftq_core::record::MessageRef;
use driftq_core::reply::Delivery;
use driftq_core::state::State;
use driftq_core::state::group::{Group, Progress};
use driftq_core::state::partition::Message;
use driftq_core::state::topic::Topic;
use driftq_core::types::{Offset, Position};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, Known, PartitionView, Start, Waiting};
use super::verdict::Verdict;

#[doc = sentence!(stored_or_trimmed)]
pub(super) fn stored_or_trimmed(partition_view: &PartitionView<'_>) -> Verdict {
    let (trimmed, end) = (partition_view.partition.trimmed(), partition_view.partition.next_position().0);
    let kept = partition_view.partition.messages().map(|(position, _)| position.0);
    let odd = misplaced(kept, |position| trimmed.contains(Position(position)), trimmed.floor().0, end);
    catalog::STORED_OR_TRIMMED
        .holds(odd.is_none(), || format!("{partition_view}: position {odd:?} of {end}, trimmed {trimmed:?}"))
}

/// A position below `end` that is both kept and trimmed or neither, or one beyond that is either. Below the floor everything
/// is trimmed.
fn misplaced(kept: impl Iterator<Item = u64>, is_trimmed: impl Fn(u64) -> bool, floor: u64, end: u64) -> Option<u64> {
    let mut kept = kept.peekable();
    // Two beyond the end is far enough to see that one went too far.
    let odd = (floor.min(end)..end + 2).find(|position| {
        let is_kept = kept.next_if_eq(position).is_some();
        if *position < end { is_kept == is_trimmed(*position) } else { is_kept || is_trimmed(*position) }
    });
    // What is kept below the floor has met nobody.
    odd.or_else(|| kept.next())
}

#[doc = sentence!(offsets_ascend)]
pub(super) fn offsets_ascend(partition_view: &PartitionView<'_>) -> Verdict {
    let offsets = || partition_view.partition.messages().map(|(_, message)| message.offset);
    let below = partition_view
        .partition
        .last_message()
        .is_none_or(|(_, last)| last.offset < partition_view.topic.next_offset());
    catalog::OFFSETS_ASCEND.holds(offsets().is_sorted() && below, || {
        format!("{partition_view}: offsets {:?}", offsets().collect::<Vec<_>>())
    })
}

#[doc = sentence!(one_message_state)]
pub(super) fn one_message_state(partition_view: &PartitionView<'_>, group: &Group, progress: &Progress) -> Verdict {
    let odd = progress.entries().find(|(position, entry)| {
        let message = partition_view.partition.message(*position);
        progress.done().contains(*position) || message.is_none_or(|message| message.offset != entry.offset)
    });
    catalog::ONE_MESSAGE_STATE
        .holds(odd.is_none(), || format!("{partition_view} {}: {odd:?} in {progress:?}", group.name()))
}

#[doc = sentence!(unacked_is_stored)]
pub(super) fn unacked_is_stored(partition_view: &PartitionView<'_>, group: &Group, progress: &Progress) -> Verdict {
    let (trimmed, done) = (partition_view.partition.trimmed(), progress.done());
    // Below its floor the group is done with everything.
    let mut above = (done.floor().0..partition_view.partition.next_position().0 + 2).map(Position);
    let lost = above.find(|position| trimmed.contains(*position) && !done.contains(*position));
    catalog::UNACKED_IS_STORED
        .holds(lost.is_none(), || format!("{partition_view} {}: {lost:?} of {progress:?}", group.name()))
}

#[doc = sentence!(acked_is_trimmed)]
pub(super) fn acked_is_trimmed(
    partition_view: &PartitionView<'_>,
    message: &Message,
    is_done_everywhere: bool,
) -> Verdict {
    let good = !is_done_everywhere || partition_view.topic.retention().keeps_done();
    catalog::ACKED_IS_TRIMMED.holds(good, || format!("{partition_view}: {message:?} stays"))
}

#[doc = sentence!(trimmed_stays_trimmed)]
pub(super) fn trimmed_stays_trimmed(known: &Known) -> Verdict {
    catalog::TRIMMED_STAYS_TRIMMED.holds(known.gone.is_none(), || format!("{known:?}"))
}

#[doc = sentence!(unconsumed_is_stored)]
pub(super) fn unconsumed_is_stored(topic: &Topic, known: &Known, is_kept: bool) -> Verdict {
    let taken = topic.group_count() > 0 || is_kept || known.redriven.is_some();
    catalog::UNCONSUMED_IS_STORED.holds(taken, || format!("{known:?} though nobody consumes {}", topic.name()))
}

#[doc = sentence!(ack_is_justified)]
pub(super) fn ack_is_justified(waiting: &Waiting<'_>, offset: Offset, known: &Known) -> Verdict {
    let book = waiting.book;
    let word = book.acked.contains(&offset) || book.maybe.contains(&offset) || waiting.acks.contains(&offset);
    let start = match book.start() {
        Start::Unknown => true,
        Start::Below(first) => offset < first,
    };
    let other = known.visible_to.is_some_and(|group| group != waiting.group.id());
    let skipped = book.skipped.contains(&offset);
    let fine = word || start || other || skipped || book.dead.contains_key(&offset) || known.redriven.is_some();
    catalog::ACK_IS_JUSTIFIED.holds(fine, || format!("{known:?} for {}: {book:?}", waiting.group.name()))
}

#[doc = sentence!(skipped_is_acked)]
///
/// Unless a seek has brought it back since, or the group is gone.
pub(crate) fn skipped_is_acked(state: &State, message_ref: &MessageRef) -> Verdict {
    let group = state.topic(message_ref.topic).and_then(|topic| topic.group(message_ref.group));
    let progress = group.and_then(|group| group.progress(message_ref.partition));
    let is_done = |progress: &Progress| {
        message_ref.position < progress.replayed_below() || progress.done().contains(message_ref.position)
    };
    catalog::SKIPPED_IS_ACKED.holds(progress.is_none_or(is_done), || format!("{message_ref:?} in {progress:?}"))
}

#[doc = sentence!(confirmed_ack_holds)]
pub(super) fn confirmed_ack_holds(waiting: &Waiting<'_>, offset: Offset, known: &Known) -> Verdict {
    let acked = waiting.book.acked.contains(&offset) && !waiting.is_sought;
    catalog::CONFIRMED_ACK_HOLDS.holds(!acked, || format!("{known:?} for {}", waiting.group.name()))
}

#[doc = sentence!(acked_not_redelivered)]
pub(super) fn acked_not_redelivered(book: &GroupModel, delivery: &Delivery) -> Verdict {
    catalog::ACKED_NOT_REDELIVERED.holds(!book.acked.contains(&delivery.offset), || format!("{delivery:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn every_position_is_kept_or_trimmed_and_none_is_both() {
        let trimmed = |position| [0, 1, 3].contains(&position);
        let look = |kept: &[u64], end| misplaced(kept.iter().copied(), trimmed, 2, end);
        assert_eq!(look(&[2, 4], 5), None);
        assert_eq!(look(&[2], 5), Some(4), "neither");
        assert_eq!(look(&[2, 3, 4], 5), Some(3), "both");
        assert_eq!(look(&[1, 2, 4], 5), Some(2), "kept below the floor");
        assert_eq!(look(&[2, 4, 5], 5), Some(5), "kept beyond the end");
        assert_eq!(look(&[2], 3), Some(3), "trimmed beyond the end");
        assert_eq!(look(&[], 1), Some(1), "a floor beyond the end");
    }

    #[test]
    fn offsets_beyond_the_next_one_do_not_rise() {
        let world = world(
            r#"{"ask":{"create":{"topic":"t0"}}}
               {"ask":{"create":{"topic":"t1"}}}
               {"ask":{"produce":{"message":"m0","topic":"t0"}}}"#,
        );
        let state = world.broker().expect("it runs").state();
        let full = state.topic_named(&topic("t0")).expect("made");
        let empty = state.topic_named(&topic("t1")).expect("made");
        let (id, partition) = full.partitions().find(|(_, p)| p.last_message().is_some()).expect("stored");
        fine(offsets_ascend(&PartitionView::new(full, id, partition)));
        breaks(catalog::OFFSETS_ASCEND, offsets_ascend(&PartitionView::new(empty, id, partition)));
    }
}
