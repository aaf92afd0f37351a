//! Walks through a segment, block by block: of cleaning and of scrub.

use super::writer::Writer;
use crate::log::{HEADER_BYTES, LogPosition};

/// Where a walk through a segment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// The segment.
    pub(super) sequence: u64,
    /// The number of the next frame, and the LSN of the next record.
    pub(super) next: LogPosition,
    /// The byte at which the next frame begins.
    pub(super) position: u64,
    /// At least so many bytes are needed to read it.
    pub(super) needed: u64,
}

impl Walk {
    /// A walk from the first frame of a segment on; `None` if it was removed or is not known.
    pub(super) fn of(sequence: u64, log: &Writer) -> Option<Self> {
        let next = log.place_of_segment(sequence)?.first;
        Some(Self { sequence, next, position: HEADER_BYTES as u64, needed: 0 })
    }
}

/// What a walk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkPurpose {
    /// Payloads that are still referred to are written again.
    Clean,
    /// Only to find damage.
    Scrub,
}
