//! An I/O job in progress.

use std::fmt;

use driftq_core::Job;
use driftq_core::log::{FileId, IoOp, LogId};

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

    /// The number and the bytes of the segment that it creates, if it does: somewhat more is reserved and then cut off.
    pub(super) fn created_segment(&self) -> Option<(u64, u64)> {
        let creates = |op: &IoOp| matches!(op, IoOp::Create { file: FileId::Segment(_), .. });
        let mut ops = self.job.ops().iter().skip_while(|op| !creates(op));
        ops.find_map(|op| match op {
            IoOp::Trim { file: FileId::Segment(sequence), len } => Some((*sequence, *len)),
            _ => None,
        })
    }

    /// The next operation.
    pub(super) fn next_op(&self) -> Option<&IoOp> {
        self.job.ops().get(self.next)
    }
}
