//! The whole log, as it was written: every record the broker ever handed to its disk, applied one by one and never read
//! back. What a start finds must be this, however little of it the disk still holds.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::frame::{self, RECORD_KIND_MAX};
use driftq_core::log::{CrcSeed, FileId, HEADER_BYTES, LogId};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::state::apply::Mode;
use driftq_core::types::{LeaseToken, Lsn};

use crate::disk::Disk;

/// Where a frame stands, and what it says was synced when it was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its place in the log.
    pub lsn: Lsn,
    /// The file it was written to.
    pub file: FileId,
    /// Its bytes there.
    pub range: Range<usize>,
    /// What it proves.
    pub synced: Lsn,
}

/// What was written, and how much of it a power loss cannot take.
#[derive(Clone, Debug)]
pub struct Shadow<F> {
    log_id: LogId,
    faults: F,
    /// The state after everything that is durable.
    state: State,
    durable: Lsn,
    /// The last record in it.
    last_record: Lsn,
    records: u64,
    last_token: Option<LeaseToken>,
    /// What is written and not known to be durable.
    tail: VecDeque<(Written, Option<Record>)>,
    /// Every frame that is still part of the log.
    frames: Vec<Written>,
}

impl<F: Faults> Shadow<F> {
    /// Of a log that is new.
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

    /// The broker has written `bytes` to a segment; gives the records in them.
    pub fn appended(&mut self, file: FileId, position: u64, bytes: &[u8]) -> impl Iterator<Item = &Record> {
        let known = self.tail.len();
        self.take_frames(file, position, bytes);
        self.tail.iter().skip(known).filter_map(|(_, record)| record.as_ref())
    }

    fn take_frames(&mut self, file: FileId, position: u64, bytes: &[u8]) {
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
            let written = Written { lsn: frame.head.lsn, file, range, synced: frame.head.synced };
            at += frame.size();
            rest = &rest[frame.size()..];
            let record = (frame.head.kind <= RECORD_KIND_MAX)
                .then(|| codec::decode(frame.head.kind, frame.head.version, frame.payload).ok())
                .flatten();
            if self.frames.last().is_some_and(|last| last.lsn >= written.lsn) {
                // Written once more, by a start that did not trust what it read.
                continue;
            }
            self.frames.push(written.clone());
            self.tail.push_back((written, record));
        }
    }

    /// Something was synced: takes in what a power loss can no longer take.
    pub fn settle(&mut self, disk: &Disk) {
        while let Some((written, _)) = self.tail.front()
            && disk.is_durable(written.file, written.range.clone())
        {
            self.take_in();
        }
    }

    /// The log was found to reach to `last`: what lies beyond is gone for good.
    pub fn rewind(&mut self, last: Lsn) {
        while self.tail.front().is_some_and(|(written, _)| written.lsn <= last) {
            self.take_in();
        }
        self.tail.clear();
        let kept = self.frames.partition_point(|written| written.lsn <= last);
        self.frames.truncate(kept);
    }

    fn take_in(&mut self) {
        let Some((written, record)) = self.tail.pop_front() else { return };
        self.durable = written.lsn;
        let Some(record) = record else { return };
        if let Event::Delivered { token, .. } = record.event {
            self.last_token = self.last_token.max(Some(token));
        }
        // A record that contradicts what came before it shows as another state than the live one.
        let _ = self.state.apply(&record, Mode::Replay, &self.faults);
        self.last_record = written.lsn;
        self.records += 1;
    }

    /// How far the log reaches that no power loss can take.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The last record in it.
    pub fn last_record(&self) -> Lsn {
        self.last_record
    }

    /// How many records that is.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The newest token that is in it.
    pub fn last_token(&self) -> Option<LeaseToken> {
        self.last_token
    }

    /// The digest of the state after it.
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }

    /// The digest of the state after everything written, and the last record there is.
    pub fn digest_written(&self) -> (Lsn, u64) {
        let (mut state, mut last) = (self.state.clone(), self.last_record);
        for (written, record) in &self.tail {
            if let Some(record) = record {
                let _ = state.apply(record, Mode::Replay, &self.faults);
                last = written.lsn;
            }
        }
        (last, state.digest())
    }

    /// Writes down what is durable, as the state it comes to, and what is not, record by record, for
    /// [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { log_id: _, faults: _, state, durable, last_record, records: _, last_token, tail, frames: _ } = self;
        write!(out, "{} {durable:?} {last_record:?} {last_token:?} ", state.digest())?;
        for (Written { lsn, file, range, synced }, record) in tail {
            write!(out, "{lsn:?} {file:?} {} {synced:?} {record:?} ", range.len())?;
        }
        Ok(())
    }

    /// Every frame that is still part of the log.
    pub fn frames(&self) -> &[Written] {
        &self.frames
    }
}
