//! The log's space: what the reserve is for, and when a record is refused.

use driftq_core::log::HEADER_BYTES;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::pipeline::RefusedAppend;
use driftq_core::record::Event;
use driftq_core::types::WallAdjustment;
use driftq_core::{LogRefusal, SpaceClass};

use super::catalog::{self, sentence};
use super::verdict::Verdict;

/// The end of a segment: its footer.
const FOOTER_BYTES: u64 = FRAME_HEAD_BYTES as u64;

/// Two marks, which fit into the last segment whatever is appended.
const MARKS_BYTES: u64 = 2 * FRAME_HEAD_BYTES as u64;

/// The segment that a record was appended to, or was to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRoom {
    /// Bytes of the segment.
    pub(crate) capacity: u64,
    /// Bytes up to the end of what is written to it.
    pub(crate) end: u64,
    /// Bytes of the next segment, if it was ready.
    pub(crate) next: Option<u64>,
    /// The configured reserve.
    pub(crate) reserve: u64,
    /// The configured size of the largest segment.
    pub(crate) largest: u64,
}

impl SegmentRoom {
    /// Whether `end` leaves what a record of the class may not use.
    fn leaves_reserve(&self, end: u64, class: SpaceClass) -> bool {
        let kept = match class {
            SpaceClass::Growth => self.reserve,
            SpaceClass::Churn => self.reserve / 2,
            SpaceClass::Drain => 0,
        };
        end + FOOTER_BYTES + kept.max(MARKS_BYTES) <= self.capacity
    }
}

#[doc = sentence!(reserve_is_kept)]
///
/// For a record that was written and ends at `room.end`.
pub(crate) fn reserve_is_kept(event: &Event, room: SegmentRoom) -> Verdict {
    let good = room.next.is_some() || room.leaves_reserve(room.end, least_class(event));
    catalog::RESERVE_IS_KEPT.holds(good, || format!("{event:?} in {room:?}"))
}

#[doc = sentence!(refused_without_room)]
///
/// `is_full` is whether the disk had no space for another segment. What is appended behind the refused record counts as
/// written before it.
pub(crate) fn refused_without_room(refused: &RefusedAppend, room: SegmentRoom, is_full: bool) -> Verdict {
    let segment_bytes = HEADER_BYTES as u64 + refused.bytes + FOOTER_BYTES;
    let good = match (refused.refusal, room.next) {
        (LogRefusal::TooLong, _) => refused.bytes == 0 || segment_bytes > room.largest,
        (LogRefusal::Full, _) if !is_full => false,
        (LogRefusal::Busy, None) if is_full => false,
        (_, Some(next)) => segment_bytes > next,
        (_, None) => !room.leaves_reserve(room.end + refused.bytes, refused.class),
    };
    catalog::REFUSED_WITHOUT_ROOM.holds(good, || format!("{refused:?} in {room:?}"))
}

/// The part of the reserve that a record may use at most. What a worker may begin by two commands counts as the lesser.
fn least_class(event: &Event) -> SpaceClass {
    match event {
        Event::Produced { .. } | Event::TopicCreated { .. } | Event::Redriven { .. } => SpaceClass::Growth,
        Event::KeyCreated(_) | Event::KeyBound { .. } | Event::TenantCreated { .. } | Event::Audited(_) => {
            SpaceClass::Growth
        }
        Event::Completed(step) if step.stored() > 0 => SpaceClass::Growth,
        Event::Delivered { .. }
        | Event::Expired { .. }
        | Event::Extended { .. }
        | Event::EffectBegun(_)
        | Event::EffectFinished { .. }
        | Event::EffectRenewed { .. } => SpaceClass::Churn,
        Event::WallClockAdjusted(WallAdjustment::Rebase { .. }) => SpaceClass::Drain,
        Event::WallClockAdjusted(_) => SpaceClass::Churn,
        _ => SpaceClass::Drain,
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{GroupId, MessageRef, PartitionId, Position, Timestamp, TopicId};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    const ROOM: SegmentRoom = SegmentRoom { capacity: 10_000, end: 9_000, next: None, reserve: 1_000, largest: 20_000 };

    fn message_ref() -> MessageRef {
        MessageRef { topic: TopicId(0), group: GroupId(0), partition: PartitionId(0), position: Position(0) }
    }

    fn refused(bytes: u64, class: SpaceClass, refusal: LogRefusal) -> RefusedAppend {
        RefusedAppend { attempt: 0, class, bytes, refusal }
    }

    #[test]
    fn lease_in_the_last_half_of_the_reserve_is_a_violation() {
        let event = Event::Expired { message_ref: message_ref(), not_before: Timestamp(0) };
        holds(reserve_is_kept(&event, SegmentRoom { end: 9_470, ..ROOM }));
        violates(catalog::RESERVE_IS_KEPT, reserve_is_kept(&event, SegmentRoom { end: 9_471, ..ROOM }));
        holds(reserve_is_kept(&event, SegmentRoom { end: 9_971, next: Some(9_000), ..ROOM }));
        let released = Event::Released { message_ref: message_ref() };
        holds(reserve_is_kept(&released, SegmentRoom { end: 9_910, ..ROOM }));
        violates(catalog::RESERVE_IS_KEPT, reserve_is_kept(&released, SegmentRoom { end: 9_911, ..ROOM }));
    }

    #[test]
    fn refusal_of_a_record_that_fits_is_a_violation() {
        let (growth, drain) = (SpaceClass::Growth, SpaceClass::Drain);
        let violated = |bytes, class, refusal, room, is_full| {
            violates(
                catalog::REFUSED_WITHOUT_ROOM,
                refused_without_room(&refused(bytes, class, refusal), room, is_full),
            );
        };
        let justified = |bytes, class, refusal, room, is_full| {
            holds(refused_without_room(&refused(bytes, class, refusal), room, is_full));
        };
        justified(1, growth, LogRefusal::Full, ROOM, true);
        violated(1, growth, LogRefusal::Full, ROOM, false);
        violated(1, growth, LogRefusal::Busy, ROOM, true);
        violated(910, drain, LogRefusal::Full, ROOM, true);
        justified(911, drain, LogRefusal::Full, ROOM, true);
        let ready = SegmentRoom { next: Some(6_000), ..ROOM };
        violated(500, growth, LogRefusal::Busy, ready, false);
        justified(2_000, growth, LogRefusal::Busy, ready, false);
        violated(2_000, growth, LogRefusal::TooLong, ready, false);
        justified(16_000, growth, LogRefusal::TooLong, ready, false);
        justified(0, growth, LogRefusal::TooLong, ready, false);
    }
}
