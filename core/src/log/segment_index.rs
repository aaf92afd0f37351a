//! The index of a segment: where its records stand, about every 16 KiB.

use super::frame::LogPosition;
use crate::types::{FrameNumber, Lsn};

/// The least distance of two entries, in bytes.
const STEP_BYTES: u64 = 16 << 10;

/// The place of a record in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The record's LSN.
    pub lsn: Lsn,
    /// The number of its frame.
    pub frame: FrameNumber,
    /// The byte at which its frame begins.
    pub position: u64,
}

/// Where the records of a segment stand: the first, and then about one every 16 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentIndex {
    entries: Vec<IndexEntry>,
}

impl SegmentIndex {
    /// Adds a record that follows all before: it stands at `at`, its frame begins at byte `position`.
    pub fn add(&mut self, at: LogPosition, position: u64) {
        if self.entries.last().is_none_or(|last| position >= last.position + STEP_BYTES) {
            self.entries.push(IndexEntry { lsn: at.lsn, frame: at.frame, position });
        }
    }

    /// The last entry at or before the record `lsn`; `None` if the segment begins behind it.
    #[must_use]
    pub fn find(&self, lsn: Lsn) -> Option<IndexEntry> {
        let after = self.entries.partition_point(|entry| entry.lsn <= lsn);
        self.entries.get(after.checked_sub(1)?).copied()
    }

    /// The first entry behind the record `lsn`.
    #[must_use]
    pub fn next_after(&self, lsn: Lsn) -> Option<IndexEntry> {
        self.entries.get(self.entries.partition_point(|entry| entry.lsn <= lsn)).copied()
    }

    /// The last entry that begins before byte `position`.
    #[must_use]
    pub fn last_before(&self, position: u64) -> Option<IndexEntry> {
        let after = self.entries.partition_point(|entry| entry.position < position);
        self.entries.get(after.checked_sub(1)?).copied()
    }
}
