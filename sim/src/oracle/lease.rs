//! When a lease ends.

use driftq_core::types::{Millis, Timestamp};

/// How long a lease runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Runs {
    /// It begins when this record is durable.
    From {
        record: u64,
        lease: Millis,
        begun_by: BegunBy,
    },
    Until(Timestamp),
}

/// What a lease began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BegunBy {
    Delivery,
    Extension,
}

impl Runs {
    pub(super) fn has_ended(self, now: Timestamp) -> bool {
        matches!(self, Self::Until(end) if end <= now)
    }

    /// The record behind it may be durable since `now`. Returns whether it begins to run.
    pub(super) fn release(&mut self, now: Timestamp, durable: u64) -> bool {
        match *self {
            Self::From { record, lease, .. } if record <= durable => {
                *self = Self::Until(now.after(lease));
                true
            }
            _ => false,
        }
    }
}
