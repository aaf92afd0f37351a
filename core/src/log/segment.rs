//! A segment: one file of the log, a header and then frames, with zeros behind them.
//!
//! This module says what is in a segment's bytes and where they stop making sense; whether stopping there is the end,
//! a torn tail or corruption is for [`recovery`](super::recovery) to say.

use super::frame::{self, CrcSeed, Frame, FrameChain, FrameError};
use super::header::{BlockReader, BlockWriter, HEADER_BYTES, HeaderError, LogId, all_zero};
use super::storage::{FileId, IoOp, WriteAt};
use crate::types::Lsn;

const MAGIC: [u8; 8] = *b"DRIFTQWL";

/// What a segment says before its first frame.
///
/// It must be durable before the first frame is written, and everything in the segment before must be durable before
/// it is written: recovery takes it as proof of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Whose log this is.
    pub log_id: LogId,
    /// Its place in the row of segments, counted from 1; also in its name.
    pub sequence: u64,
    /// The last LSN of the segment before, 0 for none. What stands there beyond it is dead ever after.
    pub previous_lsn: Lsn,
    /// The checksum of the frame with that LSN, 0 for none.
    pub previous_crc: u32,
    /// The highest LSN known to be synced when the header was written.
    pub synced: Lsn,
}

impl SegmentHeader {
    /// The LSN its first frame has or will have.
    #[must_use]
    pub const fn first_lsn(&self) -> Lsn {
        self.previous_lsn.next()
    }

    /// The file it belongs to.
    #[must_use]
    pub const fn file(&self) -> FileId {
        FileId::Segment(self.sequence)
    }

    /// What the checksums of its frames start from.
    #[must_use]
    pub fn seed(&self) -> CrcSeed {
        CrcSeed::new(self.log_id, self.file())
    }

    /// The chain its frames are written with, before the first.
    #[must_use]
    pub fn chain(&self) -> FrameChain {
        FrameChain::new(self.seed(), self.previous_lsn, self.previous_crc)
    }

    /// The header as it stands in the file: [`HEADER_BYTES`] bytes.
    ///
    /// # Panics
    /// If it claims more synced than there is.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.synced <= self.previous_lsn, "a segment header knows only of what came before");
        let block = BlockWriter::new(MAGIC, self.log_id)
            .u64(self.sequence)
            .u64(self.first_lsn().0)
            .u64(self.previous_lsn.0)
            .u32(self.previous_crc)
            .u64(self.synced.0);
        block.seal().0
    }

    /// Reads the header at the start of a segment's bytes.
    ///
    /// # Errors
    /// [`HeaderError`] says why there is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut block = BlockReader::new(bytes, MAGIC)?;
        let sequence = block.count()?;
        let first_lsn = Lsn(block.count()?);
        let header = Self {
            log_id: block.log_id,
            sequence,
            previous_lsn: Lsn(block.count()?),
            previous_crc: block.u32(),
            synced: Lsn(block.count()?),
        };
        if header.first_lsn() != first_lsn || header.synced > header.previous_lsn {
            return Err(HeaderError::Contradiction);
        }
        Ok(header)
    }

    /// What makes this segment ready for its first frame, in the order that keeps recovery's promises.
    ///
    /// A file of that name must not be there, and the segment before must be wholly synced. Where the file was
    /// prepared ahead, leave out the first op.
    #[must_use]
    pub fn create_ops(&self, epoch: u64, capacity: u64) -> Vec<IoOp> {
        let file = self.file();
        let at = WriteAt { epoch, position: 0 };
        vec![
            IoOp::Create { file, capacity },
            IoOp::Append { file, at, bytes: self.encode() },
            IoOp::Sync { file },
            IoOp::SyncFolder,
        ]
    }
}

/// Why a reader went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// Nothing but zeros follows, or nothing at all.
    #[error("the data ends")]
    End,
    /// What follows is not a frame.
    #[error("not a frame: {0}")]
    BadFrame(#[from] FrameError),
    /// A frame follows, but not the next one.
    #[error("the frame there has LSN {found}")]
    WrongLsn {
        /// The number it has.
        found: Lsn,
    },
    /// A frame with the right number follows, but it does not continue the one before.
    #[error("the frame there follows one with checksum {found:#010x}, the frame before has {expected:#010x}")]
    BrokenChain {
        /// The checksum of the frame before.
        expected: u32,
        /// The checksum it names.
        found: u32,
    },
}

/// Where and why a reader went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The byte after the last good frame.
    pub position: usize,
    /// The LSN the next frame would have had.
    pub expected: Lsn,
    /// What was wrong with it.
    pub reason: StopReason,
}

/// Gives a segment's frames for as long as each verifies, has the next LSN and continues the one before.
#[derive(Clone, Debug)]
pub struct SegmentReader<'a> {
    bytes: &'a [u8],
    seed: CrcSeed,
    position: usize,
    last_lsn: Lsn,
    last_crc: u32,
    stop: Option<StopReason>,
}

impl<'a> SegmentReader<'a> {
    /// A reader over a segment's bytes, the header included.
    #[must_use]
    pub fn new(header: &SegmentHeader, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            seed: header.seed(),
            position: HEADER_BYTES.min(bytes.len()),
            last_lsn: header.previous_lsn,
            last_crc: header.previous_crc,
            stop: None,
        }
    }

    /// The byte after the last frame given.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// The LSN of the last frame given; before the first, that of the segment before.
    #[must_use]
    pub const fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// The checksum of that frame.
    #[must_use]
    pub const fn last_crc(&self) -> u32 {
        self.last_crc
    }

    /// Where it stopped and why, once it has given `None`.
    #[must_use]
    pub fn stop(&self) -> Option<Stop> {
        self.stop.map(|reason| Stop { position: self.position, expected: self.last_lsn.next(), reason })
    }

    fn op(&mut self) -> Result<Frame<'a>, StopReason> {
        let rest = &self.bytes[self.position..];
        let frame = match frame::decode(rest, self.seed) {
            Ok(frame) => frame,
            Err(FrameError::Unwritten | FrameError::TooShort { .. }) if all_zero(rest) => return Err(StopReason::End),
            Err(error) => return Err(error.into()),
        };
        if frame.head.lsn != self.last_lsn.next() {
            return Err(StopReason::WrongLsn { found: frame.head.lsn });
        }
        if frame.head.prev_crc != self.last_crc {
            return Err(StopReason::BrokenChain { expected: self.last_crc, found: frame.head.prev_crc });
        }
        self.position += frame.size();
        self.last_lsn = frame.head.lsn;
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
        self.op().inspect_err(|reason| self.stop = Some(*reason)).ok()
    }
}
