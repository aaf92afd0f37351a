//! Recovers a damaged log and compares the result with the reference log.

use std::collections::BTreeSet;
use std::fmt;

use driftq_core::faults::{Fault, TamperedStorage};
use driftq_core::log::{
    FileId, Head, Malformed, MemoryStorage, Notice, Recovered, RecoveryError, Replay, SegmentHeader, SegmentReader,
    frame, recover,
};
use driftq_core::pipeline::inspect;
use driftq_core::types::{FrameNumber, Lsn};

use super::reference_log::ReferenceLog;

/// The acceptable results of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Recovery refuses.
    Refused,
    /// Records above everything proven synced are lost, with a notice.
    Torn,
    /// Records are lost together with every proof that they were synced.
    Ended,
    /// No record is lost.
    Identical,
}

/// The number of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub refused: u64,
    pub torn: u64,
    pub ended: u64,
    pub identical: u64,
}

impl Counts {
    pub fn count(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Refused => &mut self.refused,
            Verdict::Torn => &mut self.torn,
            Verdict::Ended => &mut self.ended,
            Verdict::Identical => &mut self.identical,
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

/// Applies damage to a copy of the reference log and checks its recovery.
pub struct DamageChecker<'a> {
    reference: &'a ReferenceLog,
    storage: MemoryStorage,
    fault: Option<Fault>,
    /// The last LSNs for which the state itself has been compared.
    compared: BTreeSet<Lsn>,
    /// How often a damaged snapshot was skipped.
    pub skipped_snapshots: u64,
}

impl<'a> DamageChecker<'a> {
    pub fn new(reference: &'a ReferenceLog, fault: Option<Fault>) -> Self {
        Self { reference, storage: reference.storage.clone(), fault, compared: BTreeSet::new(), skipped_snapshots: 0 }
    }

    pub fn len(&self, file: FileId) -> usize {
        self.reference.len(file)
    }

    /// The verdict on one flipped bit, which is flipped back afterwards.
    pub fn flipped(&mut self, file: FileId, bit: usize) -> Result<Verdict, String> {
        self.storage.bytes_mut(file).expect("the file exists").flip(bit);
        let hit = |frame: &super::reference_log::FrameSpan| frame.file == file && frame.bytes.contains(&(bit / 8));
        let frames = self.reference.frames.iter();
        let verdict = self.check_against(|| frames.filter(|frame| !hit(frame)).map(|frame| frame.synced).max());
        self.storage.bytes_mut(file).expect("the file exists").flip(bit);
        verdict
    }

    /// The verdict on a file truncated to `len` bytes, which is restored afterwards.
    pub fn truncated(&mut self, file: FileId, len: usize) -> Result<Verdict, String> {
        self.storage.bytes_mut(file).expect("the file exists").truncate(len);
        let whole = |frame: &super::reference_log::FrameSpan| frame.file != file || frame.bytes.end <= len;
        let frames = self.reference.frames.iter();
        let verdict = self.check_against(|| frames.filter(|frame| whole(frame)).map(|frame| frame.synced).max());
        let bytes = self.reference.storage.bytes(file).expect("the file exists");
        self.storage.bytes_mut(file).expect("the file exists").overwrite(len, &bytes[len..]);
        verdict
    }

    /// Flips a bit of a payload and recomputes every checksum of the segment.
    pub fn flip_with_valid_checksums(&mut self, file: FileId, byte: usize) {
        let bytes = self.reference.storage.bytes(file).expect("the file exists").to_vec();
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
            before = written.expect("fits as before");
        }
        self.storage.put_file(file, again);
    }

    /// The verdict on the current storage, in which frames through `proven` are proven synced.
    pub fn check(&mut self, proven: &FrameNumber) -> Result<Verdict, String> {
        self.check_against(|| Some(*proven))
    }

    fn check_against(&mut self, proven: impl FnOnce() -> Option<FrameNumber>) -> Result<Verdict, String> {
        let mut compare = Compare::new(self.reference);
        let recovered = match recover(&mut TamperedStorage::new(&mut self.storage, self.fault), None, &mut compare) {
            Ok(recovered) => recovered,
            Err(error @ (RecoveryError::Storage { .. } | RecoveryError::NoLog)) => {
                return Err(format!("refused for another reason: {error}"));
            }
            // Checksums must catch every changed record before it is decoded.
            Err(error @ (RecoveryError::Malformed { .. } | RecoveryError::Contradictory { .. })) => {
                return Err(format!("a changed record was accepted: {error}"));
            }
            Err(_) => return Ok(Verdict::Refused),
        };
        compare.end(&recovered)?;
        let is = |kind: fn(&Notice) -> bool| recovered.notices.iter().any(kind);
        self.skipped_snapshots += u64::from(is(|notice| matches!(notice, Notice::DamagedSnapshot { .. })));
        self.compare_state(&recovered)?;
        if recovered.last == self.reference.last {
            return Ok(Verdict::Identical);
        }
        let last = recovered.last.frame;
        let names = self.reference.images.keys().last().copied();
        let proven = proven().max(names).unwrap_or_default();
        if last < proven {
            return Err(format!("the log ends at frame {last}, but frame {proven} is proven synced"));
        }
        Ok(if recovered.has_torn_tail() { Verdict::Torn } else { Verdict::Ended })
    }

    /// Compares the state itself, once for every last LSN.
    fn compare_state(&mut self, recovered: &Recovered) -> Result<(), String> {
        let last = recovered.last.lsn;
        if !self.compared.insert(last) {
            return Ok(());
        }
        let state = inspect(&mut TamperedStorage::new(&mut self.storage, self.fault), None);
        let (state, _) = state.map_err(|error| format!("a second recovery was refused: {error}"))?;
        let same = state.digest() == self.reference.digest_after(last);
        if same { Ok(()) } else { Err(format!("the state after LSN {last} differs")) }
    }
}

/// Compares what recovery replays with the reference log.
struct Compare<'a> {
    reference: &'a ReferenceLog,
    /// The number of snapshot images so far, and whether one matched no snapshot.
    images: usize,
    unexpected_image: bool,
    /// The index of the first record, and the index of the next expected one.
    first: Option<usize>,
    next: usize,
    differs: Option<Lsn>,
}

impl<'a> Compare<'a> {
    fn new(reference: &'a ReferenceLog) -> Self {
        Self { reference, images: 0, unexpected_image: false, first: None, next: 0, differs: None }
    }

    /// Checks that exactly the records from the snapshot to the end were replayed.
    fn end(&self, recovered: &Recovered) -> Result<(), String> {
        let upto = |lsn: Lsn| self.reference.records.partition_point(|(known, _)| *known <= lsn);
        let base = recovered.snapshot.unwrap_or_default();
        let images = self.reference.images.get(&base.frame).map_or(0, Vec::len);
        if self.unexpected_image || self.images != images {
            return Err(format!("the snapshot of frame {} differs", base.frame));
        }
        if let Some(lsn) = self.differs {
            return Err(format!("the record at LSN {lsn} differs"));
        }
        let (first, end) = (upto(base.lsn), upto(recovered.last.lsn).max(upto(base.lsn)));
        let (found_first, found_end) = self.first.map_or((first, first), |found| (found, self.next));
        if (found_first, found_end) != (first, end) {
            return Err(format!("records {found_first} to {found_end} were replayed instead of {first} to {end}"));
        }
        Ok(())
    }
}

impl Replay for Compare<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.reference);
    }

    fn restore(&mut self, kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
        // The snapshot is not known here; the image must belong to one of them.
        let same = |(known, bytes): &(u8, Vec<u8>)| *known == kind && bytes == payload;
        self.unexpected_image |=
            !self.reference.images.values().any(|images| images.get(self.images).is_some_and(same));
        self.images += 1;
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let records = &self.reference.records;
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
