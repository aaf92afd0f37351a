//! Everything comes to an end: work, waiting, and the messages themselves.

use driftq_core::state::entry::Phase;
use driftq_core::state::group::Progress;
use driftq_core::state::partition::Message;
use driftq_core::types::{Position, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{PartitionView, Stream};
use super::verdict::Verdict;

/// How often a broker may ask to be called again at the same moment.
const CALLS_MAX: usize = 1_000;
/// How much I/O a broker may ask for at the same moment.
const PIECES_MAX: usize = 10_000;

#[doc = sentence!(not_stuck)]
///
/// For a world at rest, a stream that wants more, and a group that is allowed more.
pub(super) fn not_stuck(
    partition_view: &PartitionView<'_>,
    progress: &Progress,
    hungry: &Stream,
    now: Timestamp,
) -> Verdict {
    let lying = partition_view.partition.messages().find(|(at, message)| is_deliverable(progress, *at, message, now));
    catalog::NOT_STUCK.holds(lying.is_none(), || format!("{partition_view} at {now}: {lying:?} for {hungry:?}"))
}

#[doc = sentence!(timers_quiesce)]
///
/// To be asked before every call of those that are made at one moment.
pub(crate) fn timers_quiesce(calls: usize, now: Timestamp) -> Verdict {
    if calls < CALLS_MAX {
        return Ok(());
    }
    Err(catalog::TIMERS_QUIESCE.violated_by(format!("{calls} calls at {now}, and more wanted")))
}

#[doc = sentence!(io_quiesces)]
///
/// To be asked before every piece of I/O of those that are done at once.
pub(crate) fn io_quiesces(pieces: usize) -> Verdict {
    if pieces < PIECES_MAX {
        return Ok(());
    }
    Err(catalog::IO_QUIESCES.violated_by(format!("{pieces} pieces of I/O, and more wanted")))
}

#[doc = sentence!(drains)]
///
/// `left` says what is left lying, and why.
pub(crate) fn drains(left: &[String]) -> Verdict {
    catalog::DRAINS.holds(left.is_empty(), || left.join("; "))
}

fn is_deliverable(progress: &Progress, position: Position, message: &Message, now: Timestamp) -> bool {
    let free = progress.entry(position).is_none_or(|entry| match entry.phase {
        Phase::Leased { .. } => false,
        Phase::Queued { not_before } => not_before <= now,
    });
    free && !progress.done().contains(position)
        && message.body.metadata().envelope.deliver_at.is_none_or(|at| at <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn what_never_ends_is_told() {
        fine(timers_quiesce(999, Timestamp(0)));
        breaks(catalog::TIMERS_QUIESCE, timers_quiesce(1_000, Timestamp(0)));
        fine(io_quiesces(9_999));
        breaks(catalog::IO_QUIESCES, io_quiesces(10_000));
    }
}
