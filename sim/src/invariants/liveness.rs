//! Liveness: timers, I/O and deliveries make progress.

use driftq_core::state::{Message, Progress};
use driftq_core::types::{Millis, Phase, Position, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{PartitionView, StreamModel};
use super::verdict::Verdict;

/// The most timeout calls at one time.
const CALLS_MAX: usize = 1_000;
/// How long after a sync an idle log writes a mark.
const MARK_AFTER: Millis = Millis(100);
/// The most I/O operations at one time.
const OPERATIONS_MAX: usize = 10_000;

#[doc = sentence!(not_stuck)]
///
/// For an idle world, a stream with credit and a group below its in-flight limit.
pub(super) fn not_stuck(
    partition_view: &PartitionView<'_>,
    progress: &Progress,
    with_credit: &StreamModel,
    (now, wall): (Timestamp, Timestamp),
) -> Verdict {
    let undelivered =
        partition_view.partition.messages().find(|(at, message)| is_deliverable(progress, *at, message, (now, wall)));
    catalog::NOT_STUCK
        .holds(undelivered.is_none(), || format!("{partition_view} at {now}: {undelivered:?} for {with_credit:?}"))
}

#[doc = sentence!(timers_quiesce)]
///
/// Called before every timeout call at one time.
pub(crate) fn timers_quiesce(calls: usize, now: Timestamp) -> Verdict {
    if calls < CALLS_MAX {
        return Ok(());
    }
    Err(catalog::TIMERS_QUIESCE.violated_by(format!("{calls} calls at {now}, and another is due")))
}

#[doc = sentence!(timers_are_set)]
pub(crate) fn timers_are_set(due: Timestamp, next_timeout: Option<Timestamp>) -> Verdict {
    catalog::TIMERS_ARE_SET.holds(next_timeout.is_some_and(|at| at <= due), || format!("{due}, not {next_timeout:?}"))
}

#[doc = sentence!(io_quiesces)]
///
/// Called before every I/O operation at one time.
pub(crate) fn io_quiesces(operations: usize) -> Verdict {
    if operations < OPERATIONS_MAX {
        return Ok(());
    }
    Err(catalog::IO_QUIESCES.violated_by(format!("{operations} operations, and another is pending")))
}

#[doc = sentence!(idle_log_is_marked)]
///
/// For an idle log that was last synced at `synced_at` and does not end in a mark; `timeout` is the broker's next.
pub(crate) fn idle_log_is_marked(synced_at: Timestamp, now: Timestamp, timeout: Option<Timestamp>) -> Verdict {
    let due = synced_at.after(MARK_AFTER).max(now);
    catalog::IDLE_LOG_IS_MARKED.holds(timeout.is_some_and(|at| at <= due), || {
        format!("synced at {synced_at}, no mark at {now}; the next timeout is {timeout:?}")
    })
}

#[doc = sentence!(drains)]
///
/// `left` describes the undelivered messages.
pub(crate) fn drains(left: &[String]) -> Verdict {
    catalog::DRAINS.holds(left.is_empty(), || left.join("; "))
}

#[doc = sentence!(accepts_again)]
///
/// `refused` is the number of records that the log refused.
pub(crate) fn accepts_again(refused: u64) -> Verdict {
    catalog::ACCEPTS_AGAIN.holds(refused == 0, || format!("{refused} records of a produce were refused"))
}

pub(super) fn is_deliverable(
    progress: &Progress,
    position: Position,
    message: &Message,
    (now, wall): (Timestamp, Timestamp),
) -> bool {
    let is_queued = progress.delivery(position).is_none_or(|entry| match entry.phase {
        Phase::Leased { .. } => false,
        Phase::Queued { not_before } => not_before <= now,
    });
    is_queued
        && !progress.acked().contains(position)
        && message.deliver_at().is_none_or(|at| at <= wall)
        && message.delayed_until().is_none_or(|until| until <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn idle_log_without_a_mark_is_a_violation() {
        let (synced_at, due) = (Timestamp(1_000), Timestamp(1_100));
        holds(idle_log_is_marked(synced_at, Timestamp(1_050), Some(due)));
        violates(catalog::IDLE_LOG_IS_MARKED, idle_log_is_marked(synced_at, Timestamp(1_050), None));
        violates(catalog::IDLE_LOG_IS_MARKED, idle_log_is_marked(synced_at, Timestamp(1_050), Some(Timestamp(1_101))));
        violates(catalog::IDLE_LOG_IS_MARKED, idle_log_is_marked(synced_at, due, Some(Timestamp(1_101))));
    }

    #[test]
    fn endless_timers_or_io_are_a_violation() {
        holds(timers_quiesce(999, Timestamp(0)));
        violates(catalog::TIMERS_QUIESCE, timers_quiesce(1_000, Timestamp(0)));
        holds(timers_are_set(Timestamp(7), Some(Timestamp(7))));
        violates(catalog::TIMERS_ARE_SET, timers_are_set(Timestamp(7), Some(Timestamp(8))));
        violates(catalog::TIMERS_ARE_SET, timers_are_set(Timestamp(7), None));
        holds(io_quiesces(9_999));
        violates(catalog::IO_QUIESCES, io_quiesces(10_000));
        holds(drains(&[]));
        violates(catalog::DRAINS, drains(&["m1 in g0".to_owned()]));
    }
}
