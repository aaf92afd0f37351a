//! The lifecycle of a message: stored or trimmed, and in each group ready, delayed, in flight or acked.

use driftq_core::reply::{Delivery, Produced};
use driftq_core::state::{Group, Message, Progress, Topic};
use driftq_core::types::{Offset, Position};

use super::catalog::{self, sentence};
use super::tracker::model::{
    AckedAtOnce, BeforePurge, DoneIdentity, GroupModel, GroupView, PartitionView, StartPoint, StoredMessage,
};
use super::verdict::Verdict;

#[doc = sentence!(stored_or_trimmed)]
pub(super) fn stored_or_trimmed(partition_view: &PartitionView<'_>) -> Verdict {
    let (trimmed, end) = (partition_view.partition.trimmed(), partition_view.partition.next_position().0);
    let kept = partition_view.partition.messages().map(|(position, _)| position.0);
    let wrong = misplaced(kept, |position| trimmed.contains(Position(position)), trimmed.floor().0, end);
    catalog::STORED_OR_TRIMMED
        .holds(wrong.is_none(), || format!("{partition_view}: position {wrong:?} of {end}, trimmed {trimmed:?}"))
}

/// A position below `end` that is both stored and trimmed or neither, or one at or beyond `end` that is either. All
/// positions below the floor are trimmed.
fn misplaced(kept: impl Iterator<Item = u64>, is_trimmed: impl Fn(u64) -> bool, floor: u64, end: u64) -> Option<u64> {
    let mut kept = kept.peekable();
    // Two positions beyond the end are enough to detect an overrun.
    let wrong = (floor.min(end)..end + 2).find(|position| {
        let is_kept = kept.next_if_eq(position).is_some();
        if *position < end { is_kept == is_trimmed(*position) } else { is_kept || is_trimmed(*position) }
    });
    // A message stored below the floor was not visited.
    wrong.or_else(|| kept.next())
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
    let conflict = progress.deliveries().find(|(position, entry)| {
        let message = partition_view.partition.message(*position);
        progress.acked().contains(*position) || message.is_none_or(|message| message.offset != entry.offset)
    });
    catalog::ONE_MESSAGE_STATE
        .holds(conflict.is_none(), || format!("{partition_view} {}: {conflict:?} in {progress:?}", group.name()))
}

#[doc = sentence!(unacked_is_stored)]
pub(super) fn unacked_is_stored(partition_view: &PartitionView<'_>, group: &Group, progress: &Progress) -> Verdict {
    let (trimmed, acked) = (partition_view.partition.trimmed(), progress.acked());
    // Below its floor the group has acked everything.
    let mut above = (acked.floor().0..partition_view.partition.next_position().0 + 2).map(Position);
    let lost = above.find(|position| trimmed.contains(*position) && !acked.contains(*position));
    catalog::UNACKED_IS_STORED
        .holds(lost.is_none(), || format!("{partition_view} {}: {lost:?} of {progress:?}", group.name()))
}

#[doc = sentence!(acked_is_trimmed)]
pub(super) fn acked_is_trimmed(
    partition_view: &PartitionView<'_>,
    message: &Message,
    is_acked_by_all: bool,
) -> Verdict {
    let good = !is_acked_by_all || partition_view.topic.retention().keeps_acked();
    catalog::ACKED_IS_TRIMMED.holds(good, || format!("{partition_view}: {message:?} is stored"))
}

#[doc = sentence!(trimmed_stays_trimmed)]
pub(super) fn trimmed_stays_trimmed(known: &StoredMessage) -> Verdict {
    catalog::TRIMMED_STAYS_TRIMMED.holds(known.trimmed_at.is_none(), || format!("{known:?}"))
}

#[doc = sentence!(unconsumed_is_stored)]
///
/// Of a topic that had no group at the last observation of this boot either: a group that was deleted since may have
/// acked a message that retention then removed.
pub(super) fn unconsumed_is_stored(topic: &Topic, known: &StoredMessage, is_kept: bool) -> Verdict {
    let good = topic.group_count() > 0 || is_kept || known.is_removed();
    catalog::UNCONSUMED_IS_STORED.holds(good, || format!("{known:?} though {} has no group", topic.name()))
}

#[doc = sentence!(ack_is_justified)]
pub(super) fn ack_is_justified(view: &GroupView<'_>, offset: Offset, known: &StoredMessage) -> Verdict {
    let model = view.model;
    let acked = model.acked.contains(&offset) || model.maybe_acked.contains(&offset) || view.acks.contains(&offset);
    let is_before_start = match model.start() {
        StartPoint::Unknown => true,
        StartPoint::Below(first) => offset < first,
    };
    let is_invisible = known.visible_to.is_some_and(|group| group != view.group.id());
    let skipped = model.skipped.contains(&offset);
    let is_justified =
        acked || is_before_start || is_invisible || skipped || model.dead.contains_key(&offset) || known.is_removed();
    catalog::ACK_IS_JUSTIFIED.holds(is_justified, || format!("{known:?} for {}: {model:?}", view.group.name()))
}

#[doc = sentence!(skipped_is_acked)]
pub(super) fn skipped_is_acked(produced: &Produced, at_once: &AckedAtOnce) -> Verdict {
    let good = !produced.already_done || !at_once.groups.is_empty() && at_once.acked == at_once.groups.len();
    catalog::SKIPPED_IS_ACKED.holds(good, || format!("{produced:?}: {at_once:?}"))
}

#[doc = sentence!(skip_is_told)]
pub(super) fn skip_is_told(produced: &Produced, at_once: &AckedAtOnce) -> Verdict {
    let good = produced.already_done || at_once.acked == 0;
    catalog::SKIP_IS_TOLD.holds(good, || format!("{produced:?}: {at_once:?}"))
}

#[doc = sentence!(skip_is_justified)]
pub(super) fn skip_is_justified(produced: &Produced, groups: &[&GroupModel], identity: &DoneIdentity) -> Verdict {
    let undone = groups.iter().find(|model| !model.done.contains(identity));
    let good = !produced.already_done || undone.is_none();
    catalog::SKIP_IS_JUSTIFIED
        .holds(good, || format!("{produced:?} of {identity:?}: {:?} is not done", undone.map(|model| &model.name)))
}

#[doc = sentence!(confirmed_ack_holds)]
pub(super) fn confirmed_ack_holds(view: &GroupView<'_>, offset: Offset, known: &StoredMessage) -> Verdict {
    let is_lost = view.model.acked.contains(&offset) && !view.is_sought;
    catalog::CONFIRMED_ACK_HOLDS.holds(!is_lost, || format!("{known:?} for {}", view.group.name()))
}

#[doc = sentence!(acked_not_redelivered)]
pub(super) fn acked_not_redelivered(model: &GroupModel, delivery: &Delivery) -> Verdict {
    catalog::ACKED_NOT_REDELIVERED.holds(!model.acked.contains(&delivery.offset), || format!("{delivery:?}"))
}

#[doc = sentence!(purge_removes_what_was_there)]
pub(super) fn purge_removes_what_was_there(topic: &Topic, before: &BeforePurge) -> Verdict {
    let stored = topic.partitions().flat_map(|(_, partition)| partition.messages());
    let left: Vec<_> = stored.map(|(_, message)| message.offset).filter(|at| before.stored.contains(at)).collect();
    catalog::PURGE_REMOVES_WHAT_WAS_THERE.holds(left.is_empty(), || format!("{}: {left:?} are left", topic.name()))
}

#[doc = sentence!(purge_counts_what_was_there)]
pub(super) fn purge_counts_what_was_there(count: u64, before: &BeforePurge) -> Verdict {
    let stored = before.stored.len() as u64;
    catalog::PURGE_COUNTS_WHAT_WAS_THERE.holds(count == stored, || format!("{count} of {stored} messages"))
}

#[doc = sentence!(purged_not_redelivered)]
pub(super) fn purged_not_redelivered(known: &StoredMessage, delivery: &Delivery) -> Verdict {
    // Deliveries that were decided before the purge leave before its reply.
    let is_confirmed = matches!(known.purged, Some((_, true)));
    catalog::PURGED_NOT_REDELIVERED.holds(!is_confirmed, || format!("{delivery:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::Lsn;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn position_stored_and_trimmed_or_neither_is_a_violation() {
        let trimmed = |position| [0, 1, 3].contains(&position);
        let check = |kept: &[u64], end| misplaced(kept.iter().copied(), trimmed, 2, end);
        assert_eq!(check(&[2, 4], 5), None);
        assert_eq!(check(&[2], 5), Some(4), "neither");
        assert_eq!(check(&[2, 3, 4], 5), Some(3), "both");
        assert_eq!(check(&[1, 2, 4], 5), Some(2), "stored below the floor");
        assert_eq!(check(&[2, 4, 5], 5), Some(5), "stored beyond the end");
        assert_eq!(check(&[2], 3), Some(3), "trimmed beyond the end");
        assert_eq!(check(&[], 1), Some(1), "a floor beyond the end");
    }

    #[test]
    fn offset_beyond_the_next_one_is_a_violation() {
        let world = world(
            r#"{"ask":{"create":{"topic":"t0"}}}
               {"ask":{"create":{"topic":"t1"}}}
               {"ask":{"produce":{"message":"m0","topic":"t0"}}}"#,
        );
        let state = world.broker().expect("the broker runs").state();
        let stored = state.topic_named(&topic("t0")).expect("the topic exists");
        let empty = state.topic_named(&crate::names::Topic::new(1).name()).expect("the topic exists");
        let (id, partition) =
            stored.partitions().find(|(_, p)| p.last_message().is_some()).expect("a message is stored");
        holds(offsets_ascend(&PartitionView::new(stored, id, partition)));
        violates(catalog::OFFSETS_ASCEND, offsets_ascend(&PartitionView::new(empty, id, partition)));
    }

    #[test]
    fn purge_that_miscounts_or_leaves_a_message_is_a_violation() {
        let before = BeforePurge { stored: [Offset(1), Offset(3)].into(), leased: Vec::new() };
        holds(purge_counts_what_was_there(2, &before));
        violates(catalog::PURGE_COUNTS_WHAT_WAS_THERE, purge_counts_what_was_there(1, &before));
        holds(purged_not_redelivered(&known(), &delivery()));
        holds(purged_not_redelivered(&StoredMessage { purged: Some((Lsn(7), false)), ..known() }, &delivery()));
        let purged = StoredMessage { purged: Some((Lsn(7), true)), ..known() };
        violates(catalog::PURGED_NOT_REDELIVERED, purged_not_redelivered(&purged, &delivery()));
    }
}
