//! Where the records of the log stand: its segments as a snapshot lists them, and the segment of a record.

use super::writer::Writer;
use crate::log::{HEADER_BYTES, LogPosition, ReferredSegment, SegmentIndex, SegmentInfo};
use crate::types::Lsn;

/// The segment of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPlace<'a> {
    pub(super) sequence: u64,
    pub(super) index: &'a SegmentIndex,
    /// The byte at which its synced frames end.
    pub(super) end: u64,
}

impl Writer {
    /// All segments as a snapshot of the current state refers to them, each with its first LSN; without live bytes.
    pub(super) fn extents(&self) -> Vec<(Lsn, ReferredSegment)> {
        let of_closed = |segment: &SegmentInfo| {
            let last_lsn = Lsn(segment.lsns.end.0.saturating_sub(1));
            let last = LogPosition { frame: segment.last_frame, lsn: last_lsn };
            let referred = ReferredSegment { sequence: segment.sequence, last, end: segment.end, live_bytes: 0 };
            (segment.lsns.start, referred)
        };
        let with_records = self.closed.iter().filter(|segment| !segment.lsns.is_empty());
        let current =
            ReferredSegment { sequence: self.sequence, last: self.chain.last(), end: self.end(), live_bytes: 0 };
        with_records.map(of_closed).chain([(self.first_lsn, current)]).collect()
    }

    /// The segment of the record `lsn`, which is synced; `None` if it was removed.
    pub(super) fn place_of(&self, lsn: Lsn) -> Option<RecordPlace<'_>> {
        if self.first_lsn <= lsn {
            let (sequence, end) = self.synced_end;
            let end = if sequence == self.sequence { end } else { HEADER_BYTES as u64 };
            return Some(RecordPlace { sequence: self.sequence, index: &self.index, end });
        }
        let at = self.closed.partition_point(|segment| segment.lsns.start <= lsn);
        let segment = self.closed[..at].iter().rev().find(|segment| segment.lsns.contains(&lsn))?;
        Some(RecordPlace { sequence: segment.sequence, index: &segment.index, end: segment.end })
    }
}
