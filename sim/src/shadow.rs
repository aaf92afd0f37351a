//! The shadow log: every record the broker ever wrote, applied in order and never read back. Recovery must arrive at
//! its state, whatever part of it the disk still holds.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::frame::{self, RECORD_KIND_MAX};
use driftq_core::log::{CrcSeed, FileId, HEADER_BYTES, LogId};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{LeaseToken, Lsn};

use crate::disk::Disk;

/// A written frame and what it proves.
#[derive(Clone, Debug)]
pub struct WrittenFrame {
    /// Its LSN.
    pub lsn: Lsn,
    /// The file it was written to.
    pub file: FileId,
    /// Its bytes in the file.
    pub range: Range<usize>,
    /// The synced LSN it records.
    pub synced: Lsn,
}

/// What was written, and how much of it is durable.
#[derive(Clone, Debug)]
pub struct Shadow<F> {
    log_id: LogId,
    faults: F,
    /// The state after the durable records.
    state: State,
    durable: Lsn,
    /// The last durable record.
    last_record: Lsn,
    records: u64,
    last_token: Option<LeaseToken>,
    /// Written and not known to be durable.
    tail: VecDeque<(WrittenFrame, Option<Record>)>,
    /// All frames that are part of the log.
    frames: Vec<WrittenFrame>,
}

impl<F: Faults> Shadow<F> {
    /// The shadow of a new log.
    pub fn new(log_id: LogId, faults: F) -> Self {
        Self {
            log_id,
            faults,
            state: State::default(),
            durable: Lsn(0),
            last_record: Lsn(0),
            records: 0,
            last_token: None,
            tail: VecDeque::new(),
            frames: Vec::new(),
        }
    }

    /// Adds `bytes` written to a segment and returns the records in them.
    pub fn appended(&mut self, file: FileId, position: u64, bytes: &[u8]) -> impl Iterator<Item = &Record> {
        let tail_len = self.tail.len();
        self.push_frames(file, position, bytes);
        self.tail.iter().skip(tail_len).filter_map(|(_, record)| record.as_ref())
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
            let written = WrittenFrame { lsn: frame.head.lsn, file, range, synced: frame.head.synced };
            at += frame.size();
            rest = &rest[frame.size()..];
            let record = (frame.head.kind <= RECORD_KIND_MAX)
                .then(|| codec::decode(frame.head.kind, frame.head.version, frame.payload).ok())
                .flatten();
            if self.frames.last().is_some_and(|last| last.lsn >= written.lsn) {
                // Written again by a recovery that did not rely on the tail.
                continue;
            }
            self.frames.push(written.clone());
            self.tail.push_back((written, record));
        }
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
    pub fn rewind(&mut self, last: Lsn) {
        while self.tail.front().is_some_and(|(written, _)| written.lsn <= last) {
            self.apply_next();
        }
        self.tail.clear();
        let kept = self.frames.partition_point(|written| written.lsn <= last);
        self.frames.truncate(kept);
    }

    fn apply_next(&mut self) {
        let Some((written, record)) = self.tail.pop_front() else { return };
        self.durable = written.lsn;
        let Some(record) = record else { return };
        if let Event::Delivered { token, .. } = record.event {
            self.last_token = self.last_token.max(Some(token));
        }
        // A record that does not apply shows as a digest that differs from the live state's.
        let _ = self.faults.replay(&mut self.state, &record);
        self.last_record = written.lsn;
        self.records += 1;
    }

    /// The last durable LSN.
    pub fn durable(&self) -> Lsn {
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
                last = written.lsn;
            }
        }
        (last, state.digest())
    }

    /// Writes the durable state and the non-durable records for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { log_id: _, faults: _, state, durable, last_record, records: _, last_token, tail, frames: _ } = self;
        write!(out, "{} {durable:?} {last_record:?} {last_token:?} ", state.digest())?;
        for (WrittenFrame { lsn, file, range, synced }, record) in tail {
            write!(out, "{lsn:?} {file:?} {} {synced:?} {record:?} ", range.len())?;
        }
        Ok(())
    }

    /// All frames that are part of the log.
    pub fn frames(&self) -> &[WrittenFrame] {
        &self.frames
    }
}
