//! Reads: bring the payloads back for which outputs wait.

use std::collections::BTreeMap;

use super::writer::Writer;
use crate::codec::record as codec;
use crate::log::frame::{FrameError, decode};
use crate::log::{CrcSeed, FileId, LogId, LogPosition, RECORD_KIND_MAX, Storage, StorageFault};
use crate::record::Record;
use crate::types::{FrameNumber, Lsn, PayloadId};

/// Bytes of a read, unless a record is longer.
const READ_BYTES: u64 = 256 << 10;

/// The most reads under way.
const READS_MAX: usize = 4;

/// How often the same bytes are read until they count as damaged.
const ATTEMPTS: u32 = 3;

/// A read of a segment. Several may be under way, in any order; each keeps its segment from being removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "outputs wait for a read that is not performed and completed"]
pub struct ReadJob {
    id: u64,
    file: FileId,
    position: u64,
    len: usize,
}

impl ReadJob {
    /// The segment.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The byte from which on it reads.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a read is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Performs the read. The result is for [`Pipeline::complete_read`](super::Pipeline::complete_read).
    ///
    /// # Errors
    /// Of the storage.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<Vec<u8>, StorageFault> {
        let mut bytes = vec![0; self.len];
        let read = storage.read(self.file, self.position, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// The reads of a pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    next_id: u64,
    under_way: BTreeMap<u64, Planned>,
    /// How often the read of a record has failed.
    failures: BTreeMap<Lsn, u32>,
    count: u64,
    bytes: u64,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct Planned {
    sequence: u64,
    /// The position of the first frame.
    first: LogPosition,
    /// The records that it brings; the last may be cut off.
    through: Lsn,
    /// The payload for which it was planned.
    wanted: PayloadId,
}

/// What a read has brought.
pub(super) enum Brought {
    /// Records, in the order of the log.
    Records(Vec<(Lsn, Record)>),
    /// Not the record for which it was planned; it is read again.
    Nothing,
    /// Not the record for which it was planned, again and again: why.
    Damaged(String),
}

impl Reads {
    /// The number of reads since the start, and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.count, self.bytes)
    }

    /// Whether the segment is being read.
    pub(super) fn is_reading(&self, sequence: u64) -> bool {
        self.under_way.values().any(|planned| planned.sequence == sequence)
    }

    /// The next read for the `wanted` payloads; or one of them whose segment is removed.
    pub(super) fn next(
        &mut self,
        log: &Writer,
        wanted: impl Iterator<Item = PayloadId>,
    ) -> Option<Result<ReadJob, PayloadId>> {
        if self.under_way.len() >= READS_MAX {
            return None;
        }
        let is_coming =
            |lsn: Lsn| self.under_way.values().any(|planned| planned.first.lsn <= lsn && lsn <= planned.through);
        let payload = { wanted }.find(|payload| !is_coming(payload.lsn))?;
        let lsn = payload.lsn;
        let place = log.place_of(lsn);
        let Some((place, entry)) = place.and_then(|place| Some((place, place.index.find(lsn)?))) else {
            return Some(Err(payload));
        };
        // An entry stands at the beginning of a record, so the record ends at the next one at the latest.
        let behind = place.index.next_after(lsn).map_or(place.end, |next| next.position);
        let end = (entry.position + READ_BYTES).max(behind).min(place.end);
        let through = place.index.last_before(end).map_or(lsn, |last| Lsn(last.lsn.0 - 1)).max(lsn);
        let id = self.next_id;
        self.next_id += 1;
        let first = LogPosition { frame: entry.frame, lsn: entry.lsn };
        self.under_way.insert(id, Planned { sequence: place.sequence, first, through, wanted: payload });
        let len = (end - entry.position) as usize;
        Some(Ok(ReadJob { id, file: FileId::Segment(place.sequence), position: entry.position, len }))
    }

    /// What a performed read has brought.
    pub(super) fn complete(&mut self, job: &ReadJob, result: Result<Vec<u8>, StorageFault>, log_id: LogId) -> Brought {
        let Some(planned) = self.under_way.remove(&job.id) else { return Brought::Nothing };
        self.count += 1;
        let why = match result {
            Ok(bytes) => {
                self.bytes += bytes.len() as u64;
                let (records, why) = records(&bytes, CrcSeed::new(log_id, job.file), planned.first);
                let PayloadId { lsn, part } = planned.wanted;
                match records.iter().find(|(found, _)| *found == lsn) {
                    Some((_, record)) if record.event.bodies().any(|(found, _)| found == part) => {
                        self.failures.remove(&lsn);
                        return Brought::Records(records);
                    }
                    // Else it would be read again and again.
                    Some(_) => format!("it has no payload {part}"),
                    None => why,
                }
            }
            Err(fault) => fault.to_string(),
        };
        let failures = self.failures.entry(planned.wanted.lsn).or_default();
        *failures += 1;
        match *failures >= ATTEMPTS {
            true => Brought::Damaged(format!("{}, record {}: {why}", job.file, planned.wanted.lsn)),
            false => Brought::Nothing,
        }
    }
}

/// The records in `bytes`, which begin with the frame at `first`, up to the first that is cut off or damaged; and why
/// they end there.
fn records(bytes: &[u8], seed: CrcSeed, first: LogPosition) -> (Vec<(Lsn, Record)>, String) {
    let (mut found, mut at, mut expected, mut lsn) = (Vec::new(), 0, first.frame, first.lsn);
    loop {
        let frame = match decode(&bytes[at..], seed) {
            Ok(frame) if frame.head.number == expected => frame,
            Ok(frame) => return (found, wrong_number(frame.head.number, expected)),
            Err(error) => return (found, describe(error)),
        };
        let head = frame.head;
        if head.kind <= RECORD_KIND_MAX {
            match codec::decode(head.kind, head.version, frame.payload) {
                Ok(record) => found.push((lsn, record)),
                Err(error) => return (found, error.to_string()),
            }
            lsn = lsn.next();
        }
        expected = expected.next();
        at += frame.size();
    }
}

fn wrong_number(found: FrameNumber, expected: FrameNumber) -> String {
    format!("frame {found} where frame {expected} should be")
}

fn describe(error: FrameError) -> String {
    format!("not a frame: {error}")
}
