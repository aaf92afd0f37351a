//! An I/O job in progress.

use std::fmt;

use driftq_core::Job;
use driftq_core::log::{IoOp, LogId};

/// The id of every simulated log.
pub(super) const LOG_ID: LogId = LogId(*b"driftq simulated");

/// A job in progress.
#[derive(Clone, Debug)]
pub(super) struct RunningJob {
    pub(super) job: Job,
    /// The index of the next operation.
    pub(super) next: usize,
}

impl RunningJob {
    /// Writes the job and its progress for [a fingerprint](super::Fingerprint).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { job, next } = self;
        write!(out, "{next} ")?;
        job.canonical(LOG_ID, out)
    }

    /// The last operation performed, if any.
    pub(super) fn last_done(&self) -> Option<&IoOp> {
        self.job.ops().get(self.next.checked_sub(1)?)
    }

    /// The next operation.
    pub(super) fn next_op(&self) -> Option<&IoOp> {
        self.job.ops().get(self.next)
    }
}
