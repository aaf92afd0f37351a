//! A segment: one file of the log, with a header, frames, and preallocated zeros behind them.
//!
//! This module reads the frames of a segment up to the first invalid one. [`recovery`](super::recovery) decides whether
//! that is the end of the log, a torn tail or corruption.

use super::frame::{self, CrcSeed, Frame, FrameChain, FrameError, FrameSum, LogPosition};
use super::header::{BlockReader, BlockWriter, HEADER_BYTES, HeaderError, LogId, all_zero, count};
use super::segment_index::IndexEntry;
use super::storage::{FileId, IoOp, WriteAt};
use crate::types::{FrameNumber, Lsn};

const MAGIC: [u8; 8] = *b"DRIFTQWL";

/// Bytes of the fields of a cluster: first index, cluster id, node id.
const CLUSTER_BYTES: usize = 8 + 16 + 8;

/// The header of a segment.
///
/// It must be durable before the first frame is written, and everything in the previous segment must be durable before
/// the header is written: recovery treats a header as proof of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub log_id: LogId,
    /// Its sequence number, counted from 1; also in its file name.
    pub sequence: u64,
    /// The end of the previous segment, 0 for none. Bytes behind it in that segment are dead.
    pub previous: LogPosition,
    /// The checksum of the frame there, 0 for none.
    pub previous_crc: u32,
    /// The highest frame number known to be synced when the header was written.
    pub synced: FrameNumber,
    /// The size that the file was made with, 0 if it is not known. A shorter file was trimmed by the log, which leaves
    /// a footer or [`END_ZEROS`] behind its data, or it was cut by something else.
    pub capacity: u64,
}

/// The zeros that the log leaves behind the data of a segment without a footer when it trims the file.
pub const END_ZEROS: u64 = 512;

impl SegmentHeader {
    /// The number of its first frame.
    #[must_use]
    pub const fn first_frame(&self) -> FrameNumber {
        self.previous.frame.next()
    }

    /// The LSN of its first record. If it has no record, its successor has the same.
    #[must_use]
    pub const fn first_lsn(&self) -> Lsn {
        self.previous.lsn.next()
    }

    /// Where its first frame begins.
    #[must_use]
    pub const fn first_entry(&self) -> IndexEntry {
        IndexEntry { lsn: self.first_lsn(), frame: self.first_frame(), position: HEADER_BYTES as u64 }
    }

    /// Its file.
    #[must_use]
    pub const fn file(&self) -> FileId {
        FileId::Segment(self.sequence)
    }

    /// The seed of the checksums of its frames.
    #[must_use]
    pub fn seed(&self) -> CrcSeed {
        CrcSeed::new(self.log_id, self.file())
    }

    /// A frame chain that continues from this header.
    #[must_use]
    pub fn chain(&self) -> FrameChain {
        FrameChain::new(self.seed(), self.previous, self.previous_crc)
    }

    /// The encoded header: [`HEADER_BYTES`] bytes.
    ///
    /// # Panics
    /// If `synced` is above the previous frame, or there are more records than frames before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.synced <= self.previous.frame, "a segment header can only record earlier frames as synced");
        assert!(self.previous.lsn.0 <= self.previous.frame.0, "every record has a frame");
        let block = BlockWriter::new(MAGIC, self.log_id)
            .u64(self.sequence)
            .u64(self.first_frame().0)
            .u64(self.first_lsn().0)
            .u32(self.previous_crc)
            .u64(self.synced.0)
            .u64(self.capacity)
            .cluster_zeros(CLUSTER_BYTES);
        block.seal().0
    }

    /// Decodes the header at the start of a segment.
    ///
    /// # Errors
    /// [`HeaderError`] if the bytes are not a valid segment header.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut block = BlockReader::new(bytes, MAGIC)?;
        let [sequence, first_frame, first_lsn] = [block.u64(), block.u64(), block.u64()];
        let previous_crc = block.u32();
        let [synced, capacity] = [block.u64(), block.u64()];
        block.cluster_zeros::<CLUSTER_BYTES>()?;
        let first = [count(first_frame)?, count(first_lsn)?];
        let [Some(frame), Some(lsn)] = first.map(|first| first.checked_sub(1)) else {
            return Err(HeaderError::Contradiction);
        };
        // Every record before has a frame.
        if count(synced)? > frame || lsn > frame {
            return Err(HeaderError::Contradiction);
        }
        Ok(Self {
            log_id: block.log_id,
            sequence: count(sequence)?,
            previous: LogPosition { frame: FrameNumber(frame), lsn: Lsn(lsn) },
            previous_crc,
            synced: FrameNumber(synced),
            capacity: count(capacity)?,
        })
    }

    /// The operations that prepare this segment for its first frame, in the order that recovery relies on. The header
    /// records `capacity`.
    ///
    /// The file must not exist, and the previous segment must be fully synced. If the file was created ahead, skip the
    /// first operation.
    #[must_use]
    pub fn create_ops(&self, epoch: u64, capacity: u64) -> Vec<IoOp> {
        let file = self.file();
        let at = WriteAt { epoch, position: 0 };
        vec![
            IoOp::Create { file, capacity },
            IoOp::Append { file, at, bytes: Self { capacity, ..*self }.encode() },
            IoOp::Sync { file },
            IoOp::SyncFolder,
        ]
    }
}

/// Why a reader stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// Only zeros follow, or the end of the file.
    #[error("the data ends")]
    End,
    /// The next bytes are not a frame.
    #[error("not a frame: {0}")]
    BadFrame(#[from] FrameError),
    /// The next frame has another number than expected.
    #[error("the frame there has number {found}")]
    WrongNumber {
        /// Its number.
        found: FrameNumber,
    },
    /// The next frame has the expected number, but does not link to the previous frame.
    #[error("the frame there follows one with checksum {found:#010x}, the frame before has {expected:#010x}")]
    BrokenChain {
        /// The checksum of the previous frame.
        expected: u32,
        /// The previous checksum that it contains.
        found: u32,
    },
}

/// Where and why a reader stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The byte after the last valid frame.
    pub position: usize,
    /// The number of the frame expected there.
    pub expected: FrameNumber,
    /// Why it stopped.
    pub reason: StopReason,
}

/// Iterates over the frames of a segment as long as each verifies, has the next number and links to the previous
/// frame.
#[derive(Clone, Debug)]
pub struct SegmentReader<'a> {
    bytes: &'a [u8],
    sum: FrameSum,
    position: usize,
    last: LogPosition,
    last_crc: u32,
    stop: Option<StopReason>,
}

impl<'a> SegmentReader<'a> {
    /// A reader over the bytes of a segment, header included.
    #[must_use]
    pub fn new(header: &SegmentHeader, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            sum: FrameSum::new(header.seed()),
            position: HEADER_BYTES.min(bytes.len()),
            last: header.previous,
            last_crc: header.previous_crc,
            stop: None,
        }
    }

    /// The byte after the last returned frame.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// The position in the log behind the last returned frame: its number and, if it is a record, its LSN. Before the
    /// first frame, the end of the previous segment.
    #[must_use]
    pub const fn log_position(&self) -> LogPosition {
        self.last
    }

    /// The checksum of that frame.
    #[must_use]
    pub const fn last_crc(&self) -> u32 {
        self.last_crc
    }

    /// Where and why it stopped, once it has returned `None`.
    #[must_use]
    pub fn stop(&self) -> Option<Stop> {
        self.stop.map(|reason| Stop { position: self.position, expected: self.last.frame.next(), reason })
    }

    fn next_frame(&mut self) -> Result<Frame<'a>, StopReason> {
        let rest = &self.bytes[self.position..];
        let frame = match frame::decode_with(rest, &self.sum) {
            Ok(frame) => frame,
            Err(FrameError::Unwritten | FrameError::TooShort { .. }) if all_zero(rest) => return Err(StopReason::End),
            Err(error) => return Err(error.into()),
        };
        if frame.head.number != self.last.frame.next() {
            return Err(StopReason::WrongNumber { found: frame.head.number });
        }
        if frame.head.prev_crc != self.last_crc {
            return Err(StopReason::BrokenChain { expected: self.last_crc, found: frame.head.prev_crc });
        }
        self.position += frame.size();
        self.last = self.last.after(frame.head.kind);
        self.last_crc = frame.crc;
        Ok(frame)
    }
}

impl<'a> Iterator for SegmentReader<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        if self.stop.is_some() {
            return None;
        }
        self.next_frame().inspect_err(|reason| self.stop = Some(*reason)).ok()
    }
}
