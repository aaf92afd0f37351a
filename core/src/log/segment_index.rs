//! The index of a segment: where its records stand, about every 16 KiB.

use super::frame::LogPosition;
use crate::types::{FrameNumber, Lsn};

/// The least distance of two entries, in bytes.
pub(super) const STEP_BYTES: u64 = 16 << 10;

/// A place in a segment at which a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The LSN of the first record that begins here or behind.
    pub lsn: Lsn,
    /// The number of the frame that begins here.
    pub frame: FrameNumber,
    /// The byte at which it begins.
    pub position: u64,
}

/// Where the records of a segment stand: its beginning, and then about one record every 16 KiB.
///
/// The index of a segment whose footer is missing knows only the beginning. It grows as the segment is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentIndex {
    entries: Vec<IndexEntry>,
    unknown: Option<Unknown>,
}

/// The part of a segment that is not indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unknown {
    from: IndexEntry,
    /// At least as many bytes must be read to get the first frame; 0 if that is not known.
    bytes: u64,
}

impl SegmentIndex {
    /// The index of a segment that begins at `first`, as far as it is written or read.
    #[must_use]
    pub fn new(first: IndexEntry) -> Self {
        Self { entries: vec![first], unknown: None }
    }

    /// The index of a segment that begins at `first` and has not been read.
    #[must_use]
    pub fn unread(first: IndexEntry) -> Self {
        Self { entries: vec![first], unknown: Some(Unknown { from: first, bytes: 0 }) }
    }

    /// Its entries: the beginning of the segment first.
    #[must_use]
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Adds a record that follows all before: it stands at `at`, its frame begins at byte `position`. Returns whether
    /// the index has grown.
    pub fn add(&mut self, at: LogPosition, position: u64) -> bool {
        self.push(IndexEntry { lsn: at.lsn, frame: at.frame, position })
    }

    fn push(&mut self, entry: IndexEntry) -> bool {
        let is_due = self.entries.last().is_none_or(|last| entry.position >= last.position + STEP_BYTES);
        if is_due {
            self.entries.push(entry);
        }
        is_due
    }

    /// The last known place at or before the record `lsn`; `None` if the segment begins behind it.
    #[must_use]
    pub fn find(&self, lsn: Lsn) -> Option<IndexEntry> {
        if let Some(unknown) = self.unknown.filter(|unknown| unknown.from.lsn <= lsn) {
            return Some(unknown.from);
        }
        let after = self.entries.partition_point(|entry| entry.lsn <= lsn);
        self.entries.get(after.checked_sub(1)?).copied()
    }

    /// The first known place behind the record `lsn`.
    #[must_use]
    pub fn next_after(&self, lsn: Lsn) -> Option<IndexEntry> {
        let next = self.entries.get(self.entries.partition_point(|entry| entry.lsn <= lsn)).copied();
        next.or(self.unknown.map(|unknown| unknown.from).filter(|from| lsn < from.lsn))
    }

    /// The last entry that begins before byte `position`.
    #[must_use]
    pub fn last_before(&self, position: u64) -> Option<IndexEntry> {
        let after = self.entries.partition_point(|entry| entry.position < position);
        self.entries.get(after.checked_sub(1)?).copied()
    }

    /// The place from which on nothing is known; `None` if the whole segment is indexed.
    #[must_use]
    pub fn unknown_from(&self) -> Option<IndexEntry> {
        self.unknown.map(|unknown| unknown.from)
    }

    /// At least as many bytes must be read from [`SegmentIndex::unknown_from`] on to get one more frame.
    #[must_use]
    pub fn unknown_bytes(&self) -> u64 {
        self.unknown.map_or(0, |unknown| unknown.bytes)
    }

    /// Learns that an intact frame of `size` bytes begins at byte `position`. That is news only if nothing was known
    /// from there on; otherwise nothing changes.
    pub fn learn(&mut self, position: u64, size: u64, is_record: bool) {
        let Some(Unknown { from, .. }) = self.unknown.filter(|unknown| unknown.from.position == position) else {
            return;
        };
        if is_record {
            self.push(from);
        }
        let lsn = if is_record { from.lsn.next() } else { from.lsn };
        let from = IndexEntry { lsn, frame: from.frame.next(), position: position + size };
        self.unknown = Some(Unknown { from, bytes: 0 });
    }

    /// Learns that the frame at byte `position` has at least `bytes`. Returns whether that is news.
    pub fn learn_size(&mut self, position: u64, bytes: u64) -> bool {
        match &mut self.unknown {
            Some(unknown) if unknown.from.position == position && unknown.bytes < bytes => {
                unknown.bytes = bytes;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: IndexEntry = IndexEntry { lsn: Lsn(5), frame: FrameNumber(9), position: 4_096 };

    /// Frames of growing sizes, every seventh no record: where each begins, its size, and its record if it is one.
    fn frames() -> Vec<(IndexEntry, u64, bool)> {
        let (mut at, mut frames) = (FIRST, Vec::new());
        for number in 0..400_u64 {
            let (size, is_record) = (30 + number * 17 % 3_000, number % 7 != 0);
            frames.push((at, size, is_record));
            let lsn = Lsn(at.lsn.0 + u64::from(is_record));
            at = IndexEntry { lsn, frame: at.frame.next(), position: at.position + size };
        }
        frames
    }

    fn scanned() -> SegmentIndex {
        let mut index = SegmentIndex::new(FIRST);
        for (at, _, _) in frames().iter().filter(|(_, _, is_record)| *is_record) {
            index.add(LogPosition { frame: at.frame, lsn: at.lsn }, at.position);
        }
        index
    }

    #[test]
    fn lookups_agree_with_a_scan() {
        let (index, frames) = (scanned(), frames());
        assert!(index.entries().len() > 20);
        for (at, _, _) in frames.iter().filter(|(_, _, is_record)| *is_record) {
            let found = index.find(at.lsn).unwrap();
            assert!(found.position <= at.position && at.position - found.position < STEP_BYTES + 3_030, "{at:?}");
            let walked = frames.iter().skip_while(|(start, _, _)| *start != found);
            let between = walked.take_while(|(start, _, _)| start != at).filter(|(_, _, is_record)| *is_record).count();
            assert_eq!(found.lsn.0 + between as u64, at.lsn.0);
            assert!(index.next_after(at.lsn).is_none_or(|next| next.position > at.position && next.lsn > at.lsn));
        }
        assert_eq!(index.find(Lsn(4)), None);
    }

    #[test]
    fn index_that_grows_ends_as_the_one_of_a_scan() {
        let mut index = SegmentIndex::unread(FIRST);
        assert_eq!(index.find(Lsn(300)), Some(FIRST));
        for (at, size, is_record) in frames() {
            assert_eq!(index.unknown_from(), Some(at));
            // What is known already, or not reached yet, changes nothing.
            index.learn(at.position - 1, 7, true);
            assert!(index.learn_size(at.position, 40) && !index.learn_size(at.position, 40));
            index.learn(at.position, size, is_record);
            assert_eq!(index.unknown_bytes(), 0);
            if is_record {
                assert!(index.find(at.lsn).unwrap().position <= at.position);
                assert_eq!(index.find(at.lsn.next()), index.unknown_from());
                assert!(index.next_after(at.lsn).is_some());
            }
        }
        assert_eq!(index.entries(), scanned().entries());
    }
}
