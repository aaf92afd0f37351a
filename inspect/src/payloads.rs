//! Reads the bytes of messages and results that a state only refers to, from the segments of a recovered log.

use driftq_core::codec::record as codec;
use driftq_core::log::frame;
use driftq_core::log::{CrcSeed, FileId, LogId, Recovered, SegmentInfo, Storage, StorageFault};
use driftq_core::record::Record;
use driftq_core::types::{Body, Lsn, PayloadId};

/// Why a payload cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// No segment that recovery has read holds the record.
    #[error("no segment of the log holds record {0}")]
    NoSegment(Lsn),
    /// The segment cannot be read. This says nothing about its content.
    #[error("reading {file}: {fault}")]
    Storage {
        /// The segment.
        file: FileId,
        /// The error of the storage.
        fault: StorageFault,
    },
    /// The segment does not hold the record where it should.
    #[error("{file}: no record {lsn} behind byte {position}: {reason}")]
    Damaged {
        /// The segment.
        file: FileId,
        /// The record.
        lsn: Lsn,
        /// Where the frames begin that were read for it.
        position: u64,
        /// What was found instead.
        reason: String,
    },
    /// The record has no such payload.
    #[error("record {} has no payload {}", .0.lsn, .0.part)]
    NoPart(PayloadId),
}

/// Reads payloads of a recovered log. Reads in the order of the log are cheap: the records read last are kept.
#[derive(Debug)]
pub struct PayloadReader<'a, S> {
    storage: &'a mut S,
    log_id: LogId,
    segments: &'a [SegmentInfo],
    /// Consecutive records, the first with this LSN.
    block: (Lsn, Vec<Record>),
}

impl<'a, S: Storage> PayloadReader<'a, S> {
    /// A reader of the payloads to which the state of the log refers that was recovered from `storage`.
    pub fn new(storage: &'a mut S, recovered: &'a Recovered) -> Self {
        let block = (Lsn(0), Vec::new());
        Self { storage, log_id: recovered.log_id, segments: &recovered.segments, block }
    }

    /// The body that stands at `payload`, as its producer wrote it. For a message,
    /// [`Message::body`](driftq_core::state::Message::body) completes it; a result is the value of a bare body.
    ///
    /// # Errors
    /// [`PayloadError`] if no intact record carries it.
    pub fn read(&mut self, payload: PayloadId) -> Result<Body, PayloadError> {
        if self.record(payload.lsn).is_none() {
            self.load(payload.lsn)?;
        }
        let record = self.record(payload.lsn).ok_or(PayloadError::NoSegment(payload.lsn))?;
        let found = record.event.bodies().find(|(part, _)| *part == payload.part);
        found.map(|(_, body)| body).ok_or(PayloadError::NoPart(payload))
    }

    fn record(&self, lsn: Lsn) -> Option<&Record> {
        let (first, records) = &self.block;
        records.get(usize::try_from(lsn.0.checked_sub(first.0)?).ok()?)
    }

    /// Reads the records from the last one in the index of its segment to `lsn`, and on to the next one in the index.
    fn load(&mut self, lsn: Lsn) -> Result<(), PayloadError> {
        let behind = self.segments.partition_point(|segment| segment.lsns.start <= lsn);
        let held = self.segments[..behind].iter().rev().find(|segment| segment.lsns.contains(&lsn));
        let found = held.and_then(|segment| Some((segment, segment.index.find(lsn)?)));
        let (segment, entry) = found.ok_or(PayloadError::NoSegment(lsn))?;
        let file = FileId::Segment(segment.sequence);
        let end = segment.index.next_after(lsn).map_or(segment.len, |next| next.position);
        let len = usize::try_from(end.saturating_sub(entry.position)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        let read = self.storage.read(file, entry.position, &mut bytes);
        bytes.truncate(read.map_err(|fault| PayloadError::Storage { file, fault })?);
        let damaged = |reason: String| PayloadError::Damaged { file, lsn, position: entry.position, reason };
        let (seed, mut at, mut number) = (CrcSeed::new(self.log_id, file), 0, entry.frame);
        self.block = (entry.lsn, Vec::new());
        while at < bytes.len() {
            let frame = match frame::decode(&bytes[at..], seed) {
                Ok(frame) if frame.head.number == number => frame,
                // Behind the record: the unused end of the segment.
                _ if self.record(lsn).is_some() => break,
                Ok(frame) => return Err(damaged(format!("frame {} instead of {number}", frame.head.number))),
                Err(error) => return Err(damaged(error.to_string())),
            };
            if frame.is_record() {
                let record = codec::decode(frame.head.kind, frame.head.version, frame.payload);
                self.block.1.push(record.map_err(|error| damaged(error.to_string()))?);
            }
            (at, number) = (at + frame.size(), number.next());
        }
        if self.record(lsn).is_none() {
            return Err(damaged("the segment ends".to_owned()));
        }
        Ok(())
    }
}
