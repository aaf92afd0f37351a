//! What the disk shows of the space of the log: which segments are ready, and where each record lies in them.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::LogRefusal;
use driftq_core::log::{FileId, HEADER_BYTES};
use driftq_core::pipeline::RefusedAppend;
use driftq_core::record::Record;
use driftq_core::types::Lsn;

use super::job::RunningJob;
use crate::disk::Disk;
use crate::invariants::Verdict;
use crate::invariants::room::{SegmentRoom, refused_without_room, reserve_is_kept};
use crate::setup::Setup;
use crate::shadow::WrittenFrame;

/// The most refusals that wait for the next record.
const WAITING_MAX: usize = 256;

/// The space of the log since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct LogRoom {
    /// For each segment, when it became ready, with its size, or was to be created.
    changes: BTreeMap<u64, Vec<Change>>,
    change_count: usize,
    /// The disk had no space for the smallest segment when it was last tried.
    is_full: bool,
    /// The last frame that was written, and the LSN of the first record of its segment.
    last: Option<(WrittenFrame, Lsn)>,
    /// Refused records. They are checked when the next one is written.
    refused: Vec<Refused>,
}

/// A segment became ready, or ceased to be.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// How many changes there were before.
    nth: usize,
    /// The last record then.
    after: Lsn,
    /// Its size, if it is ready.
    ready: Option<u64>,
}

/// A record that the log refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// The last record when the call began, and when it ended.
    call: (Lsn, Lsn),
    append: RefusedAppend,
    is_full: bool,
    change_count: usize,
}

impl LogRoom {
    /// Writes it for [a fingerprint](super::Fingerprint), without what follows from the positions of frames.
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { changes: _, change_count: _, is_full, last: _, refused } = self;
        write!(out, "{is_full} ")?;
        refused.iter().try_for_each(|refused| write!(out, "{:?} {:?} ", refused.call, refused.append))
    }

    /// A job begins, when `after` is the last record. One that creates a segment may replace the one that was ready.
    pub(super) fn begun(&mut self, running: &RunningJob, after: Lsn) {
        if let Some((sequence, _)) = running.created_segment() {
            self.is_full = false;
            self.change(sequence, after, None);
        }
    }

    /// A job that creates a segment has succeeded.
    pub(super) fn created(&mut self, (sequence, bytes): (u64, u64), after: Lsn) {
        self.change(sequence, after, Some(bytes));
    }

    /// The disk had no space for the smallest segment.
    pub(super) fn not_created(&mut self) {
        self.is_full = true;
    }

    fn change(&mut self, sequence: u64, after: Lsn, ready: Option<u64>) {
        let change = Change { nth: self.change_count, after, ready };
        self.changes.entry(sequence).or_default().push(change);
        self.change_count += 1;
        // Only the segment that is written and those after it matter.
        if let Some((WrittenFrame { file: FileId::Segment(written), .. }, _)) = &self.last {
            self.changes = self.changes.split_off(written);
        }
    }

    /// A call that began after the first of these records and ended after the second refused records.
    pub(super) fn refused(&mut self, call: (Lsn, Lsn), refused: &[RefusedAppend]) {
        let left = WAITING_MAX.saturating_sub(self.refused.len());
        let (is_full, change_count) = (self.is_full, self.change_count);
        // What memory the state takes has nothing to do with the room in the log.
        let refused = refused.iter().filter(|append| append.refusal != LogRefusal::Memory);
        let refused = refused.take(left).map(|append| Refused { call, append: *append, is_full, change_count });
        self.refused.extend(refused);
    }

    /// A frame of the log is written.
    pub(super) fn written(
        &mut self,
        frame: &WrittenFrame,
        record: Option<&Record>,
        (setup, disk): (&Setup, &Disk),
    ) -> Verdict {
        let first = match &self.last {
            Some((last, first)) if last.file == frame.file => *first,
            _ if record.is_some() => frame.at.lsn,
            _ => frame.at.lsn.next(),
        };
        let Some(record) = record else {
            self.last = Some((frame.clone(), first));
            return Ok(());
        };
        if !self.refused.is_empty() {
            let waiting = std::mem::take(&mut self.refused);
            let (due, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|refused| refused.call.1 < frame.at.lsn);
            self.refused = rest;
            due.iter().try_for_each(|refused| self.check_refused(refused, frame, (setup, disk)))?;
        }
        let is_before = |change: &&Change| change.after < frame.at.lsn;
        // A segment less the reserve is to hold any record; where it does not, the first one uses the reserve.
        let is_first = frame.range.start <= HEADER_BYTES;
        if let Some(room) = self.room(frame, frame.range.end, is_before, (setup, disk)).filter(|_| !is_first) {
            reserve_is_kept(&record.event, room)?;
        }
        self.last = Some((frame.clone(), first));
        Ok(())
    }

    /// The next record after a refused one is written as `frame`: what lies before it was there when that was refused,
    /// or came with the same call.
    fn check_refused(&self, refused: &Refused, frame: &WrittenFrame, disk: (&Setup, &Disk)) -> Verdict {
        let Some((last, first)) = &self.last else { return Ok(()) };
        // A segment that was begun by the same call or later says nothing about the one before.
        if *first > refused.call.0 {
            return Ok(());
        }
        let is_before = |change: &&Change| change.nth < refused.change_count;
        let check = |room: Option<SegmentRoom>| match room {
            Some(room) => refused_without_room(&refused.append, room, refused.is_full),
            None => Ok(()),
        };
        let behind_last = check(self.room(last, last.range.end, is_before, disk));
        if frame.file == last.file {
            return behind_last;
        }
        // A log at rest begins a segment without a record, so the record may have been refused there.
        behind_last.or_else(|_| check(self.room(frame, frame.range.start, is_before, disk)))
    }

    /// The space of a frame's segment behind `end`, given the changes before.
    fn room(
        &self,
        frame: &WrittenFrame,
        end: usize,
        is_before: impl Fn(&&Change) -> bool,
        (setup, disk): (&Setup, &Disk),
    ) -> Option<SegmentRoom> {
        let FileId::Segment(sequence) = frame.file else { return None };
        let mut changes = self.changes.get(&(sequence + 1)).into_iter().flatten().rev();
        let next = changes.find(is_before).and_then(|change| change.ready);
        let (reserve, largest) = (setup.reserve_bytes, setup.segment_bytes);
        Some(SegmentRoom { capacity: disk.capacity(frame.file)?, end: end as u64, next, reserve, largest })
    }
}
