//! The shadow log: every record the broker ever wrote, applied in order and never read back. Recovery must arrive at
//! its state, whatever part of it the disk still holds.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;

use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::frame;
use driftq_core::log::{CrcSeed, FileId, HEADER_BYTES, LogId, LogPosition};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{FrameNumber, LeaseToken, Lsn, MessageRef, PayloadId};

use crate::disk::Disk;

/// A written frame and what it proves.
#[derive(Clone, Debug)]
pub struct WrittenFrame {
    /// Its number, and the LSN of the last record up to it.
    pub at: LogPosition,
    /// The file it was written to.
    pub file: FileId,
    /// Its bytes in the file.
    pub range: Range<usize>,
    /// The frame that it must record at least as synced: what had been reported to the broker when it was encoded.
    /// Damage at or below it can be detected.
    pub proves: FrameNumber,
    /// Whether it is a mark or a footer, after which an idle log needs no other.
    pub is_mark: bool,
}

/// A frame that does not record as synced what it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misrecorded {
    /// Its number.
    pub number: FrameNumber,
    /// What it records.
    pub recorded: FrameNumber,
    /// What had been reported when it was encoded.
    pub reported: FrameNumber,
    /// What the disk had synced when it was written.
    pub durable: FrameNumber,
}

/// What was written, and how much of it is durable.
#[derive(Clone, Debug)]
pub struct Shadow<F> {
    log_id: LogId,
    faults: F,
    /// The state after the durable records.
    state: State,
    durable: FrameNumber,
    /// The last durable record.
    last_record: Lsn,
    records: u64,
    last_token: Option<LeaseToken>,
    /// Durable deliveries since the last start.
    deliveries: Vec<(MessageRef, LeaseToken)>,
    /// Written and not known to be durable.
    tail: VecDeque<(WrittenFrame, Option<Record>)>,
    /// All frames that are part of the log.
    frames: Vec<WrittenFrame>,
    /// What stands for the payloads that were written.
    contents: BTreeMap<PayloadId, u64>,
    /// What frames behind the last written one must record as synced.
    floor: FrameNumber,
    /// Reports of later syncs: the last record encoded before, and the frame that was synced.
    reports: VecDeque<(Lsn, FrameNumber)>,
    /// The log is being closed: nothing is encoded behind its footer.
    closing: bool,
    /// The first frame that records something else, since the last call.
    misrecorded: Option<Misrecorded>,
}

impl<F: Faults> Shadow<F> {
    /// The shadow of a new log.
    pub fn new(log_id: LogId, faults: F) -> Self {
        Self {
            log_id,
            faults,
            state: State::default(),
            durable: FrameNumber(0),
            last_record: Lsn(0),
            records: 0,
            last_token: None,
            deliveries: Vec::new(),
            tail: VecDeque::new(),
            frames: Vec::new(),
            contents: BTreeMap::new(),
            floor: FrameNumber(0),
            reports: VecDeque::new(),
            closing: false,
            misrecorded: None,
        }
    }

    /// Adds `bytes` written to a segment and returns the frames in them, with their records.
    pub fn appended(
        &mut self,
        file: FileId,
        position: u64,
        bytes: &[u8],
    ) -> impl Iterator<Item = (&WrittenFrame, Option<&Record>)> {
        let tail_len = self.tail.len();
        self.push_frames(file, position, bytes);
        self.tail.iter().skip(tail_len).map(|(frame, record)| (frame, record.as_ref()))
    }

    fn push_frames(&mut self, file: FileId, position: u64, bytes: &[u8]) {
        let FileId::Segment(_) = file else { return };
        let mut at = position as usize;
        let mut rest = bytes;
        if at == 0 {
            at += HEADER_BYTES.min(rest.len());
            rest = &rest[HEADER_BYTES.min(rest.len())..];
        }
        let seed = CrcSeed::new(self.log_id, file);
        while let Ok(frame) = frame::decode(rest, seed) {
            let range = at..at + frame.size();
            let (number, recorded) = (frame.head.number, frame.head.synced);
            // Records are counted here, not read from the header of the segment.
            let before = self.frames.last().map_or(Lsn(0), |last| last.at.lsn);
            self.check_recorded(number, before, recorded);
            let lsn = if frame.is_record() { before.next() } else { before };
            let position = LogPosition { frame: number, lsn };
            let is_mark = !frame.is_record();
            let written = WrittenFrame { at: position, file, range, proves: self.floor, is_mark };
            at += frame.size();
            rest = &rest[frame.size()..];
            let record = frame
                .is_record()
                .then(|| codec::decode(frame.head.kind, frame.head.version, frame.payload).ok())
                .flatten();
            if self.frames.last().is_some_and(|last| last.at.frame >= number) {
                // Written again by a recovery that did not rely on the tail.
                continue;
            }
            for (part, body) in record.iter().flat_map(|record| record.event.bodies()) {
                self.contents.insert(PayloadId { lsn, part }, body.content_hash());
            }
            self.frames.push(written.clone());
            self.tail.push_back((written, record));
        }
    }

    /// A frame records what was reported when it was encoded, and no more than is synced when it is written. `before`
    /// is the last record before it.
    fn check_recorded(&mut self, number: FrameNumber, before: Lsn, recorded: FrameNumber) {
        while let Some((encoded, synced)) = self.reports.front()
            && *encoded <= before
        {
            self.floor = *synced;
            self.reports.pop_front();
        }
        let (reported, durable) = (self.floor, self.durable);
        if !(reported..=durable).contains(&recorded) && self.misrecorded.is_none() {
            self.misrecorded = Some(Misrecorded { number, recorded, reported, durable });
        }
    }

    /// The broker was told that everything written is synced; `encoded` is its last record at that time.
    pub fn report_synced(&mut self, encoded: Lsn) {
        if self.closing {
            return;
        }
        if encoded <= self.last_record {
            self.floor = self.durable;
            self.reports.clear();
        } else {
            self.reports.push_back((encoded, self.durable));
        }
    }

    /// The broker has encoded its last footer.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// The first frame since the last call that does not record as synced what it must.
    pub fn take_misrecorded(&mut self) -> Option<Misrecorded> {
        self.misrecorded.take()
    }

    /// Whether the last written frame is a mark or a footer, or there is none.
    pub fn ends_in_mark(&self) -> bool {
        self.frames.last().is_none_or(|last| last.is_mark)
    }

    /// Where the last frame of a segment ends, and whether it is a mark or a footer.
    pub fn end_of(&self, file: FileId) -> Option<(usize, bool)> {
        let last = self.frames.iter().rev().find(|written| written.file == file)?;
        Some((last.range.end, last.is_mark))
    }

    /// Whether a part of a segment holds frames of a log that ends at `last`.
    pub fn holds_frames(&self, file: FileId, range: &Range<usize>, last: FrameNumber) -> bool {
        let hits = |written: &WrittenFrame| written.range.start < range.end && range.start < written.range.end;
        self.frames.iter().any(|written| written.file == file && written.at.frame <= last && hits(written))
    }

    /// Whether the disk has lost the record, or some before and some behind it in its segment.
    pub fn is_damaged(&self, lsn: Lsn, disk: &Disk) -> bool {
        let Some(record) = self.frame_of(lsn) else { return true };
        let mut hit =
            self.frames.iter().filter(|frame| frame.file == record.file && disk.is_hit(frame.file, &frame.range));
        let Some(first) = hit.next() else { return false };
        let last = hit.next_back().unwrap_or(first);
        first.at.frame <= record.at.frame && record.at.frame <= last.at.frame
    }

    /// After a sync: applies the records that have become durable.
    pub fn advance_durable(&mut self, disk: &Disk) {
        while let Some((written, _)) = self.tail.front()
            && disk.is_durable(written.file, written.range.clone())
        {
            self.apply_next();
        }
    }

    /// Recovery found the log to end at `last`: later frames are lost.
    pub fn rewind(&mut self, last: FrameNumber) {
        while self.tail.front().is_some_and(|(written, _)| written.at.frame <= last) {
            self.apply_next();
        }
        self.tail.clear();
        let kept = self.frames.partition_point(|written| written.at.frame <= last);
        self.frames.truncate(kept);
        // Recovery has synced what it found.
        self.floor = last;
        self.reports.clear();
        self.closing = false;
    }

    fn apply_next(&mut self) {
        let Some((written, record)) = self.tail.pop_front() else { return };
        self.durable = written.at.frame;
        let Some(record) = record else { return };
        if let Event::Delivered { message_ref, token, .. } = record.event {
            self.deliveries.push((message_ref, token));
            self.last_token = self.last_token.max(Some(token));
        }
        // A record that does not apply shows as a digest that differs from the live state's.
        let _ = self.faults.replay(&mut self.state, &record);
        self.last_record = written.at.lsn;
        self.records += 1;
    }

    /// The last durable frame.
    pub fn durable(&self) -> FrameNumber {
        self.durable
    }

    /// The last durable record.
    pub fn last_record(&self) -> Lsn {
        self.last_record
    }

    /// The number of durable records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The durable deliveries since the last call.
    pub fn take_deliveries(&mut self) -> Vec<(MessageRef, LeaseToken)> {
        std::mem::take(&mut self.deliveries)
    }

    /// The newest durable lease token.
    pub fn last_token(&self) -> Option<LeaseToken> {
        self.last_token
    }

    /// The digest of the durable state.
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }

    /// The last written record and the digest of the state after it.
    pub fn digest_written(&self) -> (Lsn, u64) {
        let (mut state, mut last) = (self.state.clone(), self.last_record);
        for (written, record) in &self.tail {
            if let Some(record) = record {
                let _ = self.faults.replay(&mut state, record);
                last = written.at.lsn;
            }
        }
        (last, state.digest())
    }

    /// Writes the durable state and the non-durable records for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            log_id: _,
            faults: _,
            state,
            durable,
            last_record,
            records: _,
            last_token,
            deliveries: _,
            tail,
            frames: _,
            contents,
            floor,
            reports,
            closing,
            misrecorded,
        } = self;
        let ends_in_mark = self.ends_in_mark();
        let digest = state.digest_by_content(|payload| contents.get(&payload).copied().unwrap_or_default());
        write!(out, "{} {durable:?} {last_record:?} {last_token:?} {ends_in_mark} ", digest)?;
        write!(out, "{floor:?} {reports:?} {closing} {misrecorded:?} ")?;
        for (WrittenFrame { at, file, range, proves, is_mark }, record) in tail {
            write!(out, "{at:?} {file:?} {} {proves:?} {is_mark} {record:?} ", range.len())?;
        }
        Ok(())
    }

    /// The frame of a record.
    pub fn frame_of(&self, lsn: Lsn) -> Option<&WrittenFrame> {
        let at = self.frames.partition_point(|frame| frame.at.lsn < lsn);
        self.frames.get(at).filter(|frame| frame.at.lsn == lsn)
    }

    /// The state after the durable records.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// All frames that are part of the log.
    pub fn frames(&self) -> &[WrittenFrame] {
        &self.frames
    }
}
