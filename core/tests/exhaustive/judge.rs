//! Says what came of one damage, against what was written.

use std::collections::BTreeSet;
use std::fmt;

use driftq_core::faults::{Fault, NoFaults, Planted};
use driftq_core::log::{
    FileId, Head, Malformed, MemoryStorage, Notice, Recovered, RecoveryError, Replay, SegmentHeader, SegmentReader,
    frame, recover,
};
use driftq_core::pipeline::inspect;
use driftq_core::types::Lsn;

use super::truth::Truth;

/// What may come of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is no start.
    Refused,
    /// Something is lost, above all that is proven synced, and it is said.
    Torn,
    /// Something is lost together with every proof that it was there.
    Ended,
    /// Nothing is lost.
    Identical,
}

/// How often each came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub refused: u64,
    pub torn: u64,
    pub ended: u64,
    pub identical: u64,
}

impl Counts {
    pub fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Refused => &mut self.refused,
            Outcome::Torn => &mut self.torn,
            Outcome::Ended => &mut self.ended,
            Outcome::Identical => &mut self.identical,
        } += 1;
    }

    pub fn all(&self) -> u64 {
        self.refused + self.torn + self.ended + self.identical
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, torn, ended, identical } = self;
        write!(
            f,
            "{refused} refused, {torn} torn, {ended} ended, {identical} identical, 0 silent, {} in all",
            self.all()
        )
    }
}

/// A log under damage.
pub struct Judge<'a> {
    truth: &'a Truth,
    storage: MemoryStorage,
    fault: Option<Fault>,
    /// The ends for which the state itself has been built and compared.
    compared: BTreeSet<Lsn>,
    /// How often a damaged snapshot was passed over.
    pub passed_over: u64,
}

impl<'a> Judge<'a> {
    pub fn new(truth: &'a Truth, fault: Option<Fault>) -> Self {
        Self { truth, storage: truth.storage.clone(), fault, compared: BTreeSet::new(), passed_over: 0 }
    }

    pub fn len(&self, file: FileId) -> usize {
        self.truth.len(file)
    }

    /// What comes of one flipped bit. It is flipped back.
    pub fn flipped(&mut self, file: FileId, bit: usize) -> Result<Outcome, String> {
        self.storage.bytes_mut(file).expect("is there").flip(bit);
        let hit = |frame: &super::truth::Placed| frame.file == file && frame.bytes.contains(&(bit / 8));
        let frames = self.truth.frames.iter();
        let outcome = self.judge_by(|| frames.filter(|frame| !hit(frame)).map(|frame| frame.synced).max());
        self.storage.bytes_mut(file).expect("is there").flip(bit);
        outcome
    }

    /// What comes of a file cut to `len` bytes. It is put back.
    pub fn cut(&mut self, file: FileId, len: usize) -> Result<Outcome, String> {
        self.storage.bytes_mut(file).expect("is there").truncate(len);
        let whole = |frame: &super::truth::Placed| frame.file != file || frame.bytes.end <= len;
        let frames = self.truth.frames.iter();
        let outcome = self.judge_by(|| frames.filter(|frame| whole(frame)).map(|frame| frame.synced).max());
        let bytes = self.truth.storage.bytes(file).expect("is there");
        self.storage.bytes_mut(file).expect("is there").overwrite(len, &bytes[len..]);
        outcome
    }

    /// Inverts a bit of a payload and puts every checksum of the segment right.
    pub fn flip_unseen(&mut self, file: FileId, byte: usize) {
        let bytes = self.truth.storage.bytes(file).expect("is there").to_vec();
        let header = SegmentHeader::decode(&bytes).expect("a header");
        let (mut again, mut before) = (header.encode(), header.previous_crc);
        let mut reader = SegmentReader::new(&header, &bytes);
        while let Some(found) = reader.next() {
            let (start, mut payload) = (reader.position() - found.payload.len(), found.payload.to_vec());
            if (start..reader.position()).contains(&byte) {
                payload[byte - start] ^= 1;
            }
            let head = Head { prev_crc: before, ..found.head };
            let written = frame::encode_with(&mut again, header.seed(), &head, |out| out.extend_from_slice(&payload));
            before = written.expect("no longer than it was");
        }
        self.storage.plant(file, again);
    }

    /// What comes of the storage as it is, of which LSNs through `proven` are proven synced.
    pub fn judge(&mut self, proven: &Lsn) -> Result<Outcome, String> {
        self.judge_by(|| Some(*proven))
    }

    fn judge_by(&mut self, proven: impl FnOnce() -> Option<Lsn>) -> Result<Outcome, String> {
        let mut compare = Compare::new(self.truth, self.fault);
        let recovered = match recover(&mut self.storage, None, &mut compare) {
            Ok(recovered) => recovered,
            Err(error @ (RecoveryError::Storage { .. } | RecoveryError::NoLog)) => {
                return Err(format!("refused for another reason: {error}"));
            }
            // What is handed on is as it was written, or the checksums were for nothing.
            Err(error @ (RecoveryError::Malformed { .. } | RecoveryError::Contradictory { .. })) => {
                return Err(format!("another record was believed: {error}"));
            }
            Err(_) => return Ok(Outcome::Refused),
        };
        compare.end(&recovered)?;
        let is = |kind: fn(&Notice) -> bool| recovered.notices.iter().any(kind);
        self.passed_over += u64::from(is(|notice| matches!(notice, Notice::DamagedSnapshot { .. })));
        self.compare_state(&recovered)?;
        let last = recovered.last_lsn;
        if last == self.truth.last {
            return Ok(Outcome::Identical);
        }
        let names = self.truth.pieces.keys().last().copied();
        let proven = proven().max(names).unwrap_or_default();
        if last < proven {
            return Err(format!("it ends at LSN {last}, and LSN {proven} is proven synced"));
        }
        Ok(if recovered.has_torn_tail() { Outcome::Torn } else { Outcome::Ended })
    }

    /// Once for every end: the state itself.
    fn compare_state(&mut self, recovered: &Recovered) -> Result<(), String> {
        let last = recovered.last_lsn;
        if !self.compared.insert(last) {
            return Ok(());
        }
        let state = match self.fault {
            None => inspect(&mut self.storage, None, &NoFaults),
            Some(fault) => inspect(&mut self.storage, None, &Planted(fault)),
        };
        let (state, _) = state.map_err(|error| format!("refused the second time: {error}"))?;
        let same = state.digest() == self.truth.digest_after(last);
        if same { Ok(()) } else { Err(format!("another state after LSN {last} than there was")) }
    }
}

/// Takes what recovery hands on, and compares it with what was written.
struct Compare<'a> {
    truth: &'a Truth,
    fault: Option<Fault>,
    /// How many pieces of a snapshot came, and whether they were not those of any.
    pieces: usize,
    strangers: bool,
    /// The first record by its index, and the one that must come next.
    first: Option<usize>,
    next: usize,
    differs: Option<Lsn>,
}

impl<'a> Compare<'a> {
    fn new(truth: &'a Truth, fault: Option<Fault>) -> Self {
        Self { truth, fault, pieces: 0, strangers: false, first: None, next: 0, differs: None }
    }

    /// Whether everything from the snapshot to the end has come, and nothing else.
    fn end(&self, recovered: &Recovered) -> Result<(), String> {
        let upto = |lsn: Lsn| self.truth.records.partition_point(|(known, _)| *known <= lsn);
        let base = recovered.snapshot.unwrap_or_default();
        let pieces = self.truth.pieces.get(&base).map_or(0, Vec::len);
        if self.strangers || self.pieces != pieces {
            return Err(format!("another snapshot than was written for LSN {base}"));
        }
        if let Some(lsn) = self.differs {
            return Err(format!("another record than was written at LSN {lsn}"));
        }
        let (first, end) = (upto(base), upto(recovered.last_lsn).max(upto(base)));
        let (found_first, found_end) = self.first.map_or((first, first), |found| (found, self.next));
        if (found_first, found_end) != (first, end) {
            return Err(format!("records {found_first} to {found_end} came instead of {first} to {end}"));
        }
        Ok(())
    }
}

impl Replay for Compare<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.truth, self.fault);
    }

    fn planted(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn restore(&mut self, kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
        // Which snapshot it is nobody says; it must be one of them.
        let said = |(known, bytes): &(u8, Vec<u8>)| *known == kind && bytes == payload;
        self.strangers |= !self.truth.pieces.values().any(|pieces| pieces.get(self.pieces).is_some_and(said));
        self.pieces += 1;
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let records = &self.truth.records;
        let next = match self.first {
            Some(_) => self.next,
            None => records.partition_point(|(known, _)| *known < lsn),
        };
        self.first = self.first.or(Some(next));
        let same =
            records.get(next).is_some_and(|(at, (known, bytes))| *at == lsn && *known == kind && bytes == payload);
        self.differs = self.differs.or((!same).then_some(lsn));
        self.next = next + 1;
        Ok(())
    }
}
