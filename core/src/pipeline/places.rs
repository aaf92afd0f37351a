//! Where the records of the log stand: its segments as a snapshot lists them, and the segment of a record.

use std::sync::Arc;

use super::writer::Writer;
use crate::log::{HEADER_BYTES, LogPosition, ReferredSegment, SegmentIndex, SegmentInfo};
use crate::types::Lsn;

/// The segment of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPlace<'a> {
    pub(super) sequence: u64,
    pub(super) index: &'a SegmentIndex,
    /// The number of its first frame, and the LSN of its first record.
    pub(super) first: LogPosition,
    /// The byte at which its synced frames end.
    pub(super) end: u64,
    /// The number of the frame behind them, and the LSN of the record behind them.
    pub(super) behind: LogPosition,
}

impl Writer {
    /// All segments as a snapshot of the current state refers to them, each with its first LSN; without live bytes.
    pub(super) fn extents(&self) -> Vec<(Lsn, ReferredSegment)> {
        let of_closed = |segment: &SegmentInfo| {
            let last_lsn = Lsn(segment.lsns.end.0.saturating_sub(1));
            let last = LogPosition { frame: segment.last_frame, lsn: last_lsn };
            let referred = ReferredSegment { sequence: segment.sequence, last, end: segment.frames_end, live_bytes: 0 };
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
            return Some(self.current_place());
        }
        let at = self.closed.partition_point(|segment| segment.lsns.start <= lsn);
        let segment = self.closed[..at].iter().rev().find(|segment| segment.lsns.contains(&lsn))?;
        Some(self.closed_place(segment))
    }

    /// The segment `sequence`; `None` if it was removed, or what it contains is not known.
    pub(super) fn place_of_segment(&self, sequence: u64) -> Option<RecordPlace<'_>> {
        if sequence == self.sequence {
            return Some(self.current_place());
        }
        let at = self.closed.binary_search_by_key(&sequence, |segment| segment.sequence).ok()?;
        Some(&self.closed[at]).filter(|segment| !segment.lsns.is_empty()).map(|segment| self.closed_place(segment))
    }

    fn current_place(&self) -> RecordPlace<'_> {
        let first = LogPosition { frame: self.first_frame, lsn: self.first_lsn };
        let (end, behind) = self.synced_in(self.sequence, first);
        RecordPlace { sequence: self.sequence, index: self.footer.index(), first, end, behind }
    }

    /// A closed segment may have frames that are not synced, or not even written.
    fn closed_place<'a>(&self, segment: &'a SegmentInfo) -> RecordPlace<'a> {
        let first = LogPosition { frame: segment.first_frame, lsn: segment.lsns.start };
        let (end, behind) = match segment.last_frame <= self.synced().frame {
            true => (segment.frames_end, LogPosition { frame: segment.last_frame.next(), lsn: segment.lsns.end }),
            false => self.synced_in(segment.sequence, first),
        };
        RecordPlace { sequence: segment.sequence, index: &segment.index, first, end, behind }
    }

    /// Where the synced frames of a segment end that has others, and what stands behind them.
    fn synced_in(&self, sequence: u64, first: LogPosition) -> (u64, LogPosition) {
        match self.synced_end {
            (synced, end) if synced == sequence => (end, self.synced().following()),
            _ => (HEADER_BYTES as u64, first),
        }
    }

    /// The index of a closed segment, if it does not know all of the segment yet.
    pub(super) fn growing_index(&mut self, sequence: u64) -> Option<&mut SegmentIndex> {
        let at = self.closed.binary_search_by_key(&sequence, |segment| segment.sequence).ok()?;
        let index = &mut self.closed[at].index;
        index.unknown_from()?;
        Some(Arc::make_mut(index))
    }
}
