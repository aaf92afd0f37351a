//! The bound on the memory of the state: beyond it nothing is appended that makes the state grow.

use crate::broker::SpaceClass;
use crate::record::Event;
use crate::state::State;
use crate::types::{Lsn, Millis, Timestamp};

/// What a record adds to the estimate until the next count, whatever it does.
const BYTES_PER_RECORD: u64 = 256;

/// The fewest records between two counts.
const RECORDS_MIN: u64 = 16;

/// A count visits every topic and group, so that it is made once per this many records for each part visited.
const RECORDS_PER_PART: u64 = 8;

/// A state that is too large by its estimate is counted again after this fraction of the records.
const SOONER: u64 = 64;

/// It is also counted again after this time, if there was a record: much can have been removed.
const RECOUNT_AFTER: Millis = Millis(1_000);

/// The bound on the memory of the state, and its estimate.
///
/// The state is counted once in a while. Every record since then counts as a bit of growth, so that the estimate is
/// never far too low.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateBound {
    max: u64,
    counted: Option<Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    bytes: u64,
    /// The last record, and the time.
    lsn: Lsn,
    at: Timestamp,
    /// The records until the next count.
    records: u64,
}

impl StateBound {
    pub(super) const fn new(max: u64) -> Self {
        Self { max, counted: None }
    }

    pub(super) const fn max(&self) -> u64 {
        self.max
    }

    /// Whether the state may not grow at `now`.
    pub(super) fn is_reached(&mut self, state: &State, now: Timestamp) -> bool {
        if self.max == u64::MAX {
            return false;
        }
        let last = state.last_lsn();
        let count = match self.counted {
            Some(count) if !self.is_due(&count, last, now) => count,
            _ => {
                let memory = state.memory();
                let records = RECORDS_MIN.max(memory.parts.saturating_mul(RECORDS_PER_PART));
                Count { bytes: memory.bytes, lsn: last, at: now, records }
            }
        };
        self.counted = Some(count);
        count.estimate(last) > self.max
    }

    fn is_due(&self, count: &Count, last: Lsn, now: Timestamp) -> bool {
        let records = last.0.saturating_sub(count.lsn.0);
        let is_large = count.estimate(last) > self.max;
        let may_be_smaller = records >= RECORDS_MIN.max(count.records / SOONER);
        let is_old = records > 0 && count.at.after(RECOUNT_AFTER) <= now;
        records >= count.records || is_large && (may_be_smaller || is_old)
    }
}

impl Count {
    /// The estimate after the record `last`.
    fn estimate(&self, last: Lsn) -> u64 {
        self.bytes.saturating_add(last.0.saturating_sub(self.lsn.0).saturating_mul(BYTES_PER_RECORD))
    }
}

/// Whether a record makes the state grow, and nothing drains by it.
pub(super) fn grows(event: &Event, class: SpaceClass) -> bool {
    class == SpaceClass::Growth || matches!(event, Event::GroupCreated { .. })
}
