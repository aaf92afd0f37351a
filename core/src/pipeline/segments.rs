//! The segment after the current one, the sizes of segments, and what is written at once.

use crate::log::{IoOp, LogPosition};

/// The segment after the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextSegment {
    /// It must be created.
    Missing,
    /// It is being created.
    Creating,
    /// It is created and empty.
    Ready,
    /// The disk was full when it was to be created.
    NoSpace,
}

/// The sizes of segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of the largest segment.
    pub(super) segment_bytes: u64,
    /// Bytes of the smallest segment, except on a full disk.
    pub(super) segment_bytes_min: u64,
    /// Bytes reserved for acks and deletions while there is no next segment.
    pub(super) reserve_bytes: u64,
    /// Bytes of the first segment.
    pub(super) capacity: u64,
}

/// Ops to perform, and the position through which the log is synced then.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) ops: Vec<IoOp>,
    pub(super) through: LogPosition,
    /// The segment and the byte at which it ends.
    pub(super) end: (u64, u64),
}
