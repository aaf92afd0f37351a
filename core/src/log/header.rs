//! The block every file of the log begins with: what kind of file, which version, whose log; and its checksum.
//!
//! The checksum's place and what it covers are the same in every version, so that "written by a newer version" and
//! "damaged" can always be told apart.

use std::fmt;

/// The bytes at the start of a segment or snapshot that belong to its header; frames follow.
///
/// A whole page, so that no later write of a frame touches a sector of the header.
pub const HEADER_BYTES: usize = 4096;

/// The version of the file format this code writes, and the only one it reads.
pub(super) const FORMAT_VERSION: u32 = 1;

/// The part of the header that means something; the rest is zeros. It fits the smallest disk sector.
const BLOCK_BYTES: usize = 128;
const CRC_AT: usize = BLOCK_BYTES - 4;

/// The highest number a header may carry. Everything counted from it on stays far from overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// Which log a file belongs to. Drawn at random, outside the core, when the log is made; never changes.
///
/// It is not told to clients: the checksums of all frames depend on it, so that nobody who does not know it can write
/// a message whose bytes pass for frames of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub [u8; 16]);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why the first bytes of a file are not its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file ends within it.
    #[error("the file is too short for its header")]
    TooShort,
    /// It does not begin with the signature of such a file.
    #[error("the header's signature is wrong")]
    BadMagic,
    /// Its checksum does not fit.
    #[error("the header's checksum is wrong")]
    BadChecksum,
    /// Its checksum fits, but this version of the program does not know this version of the format.
    #[error("format version {0} is not known to this program")]
    UnknownVersion(u32),
    /// Its checksum fits, but its numbers contradict each other.
    #[error("the header contradicts itself")]
    Contradiction,
}

/// Lays fields one behind the other, then seals the block.
pub(super) struct BlockWriter {
    bytes: Vec<u8>,
}

impl BlockWriter {
    pub(super) fn new(magic: [u8; 8], log_id: LogId) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&magic);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&log_id.0);
        Self { bytes }
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// The whole header, and its checksum.
    pub(super) fn seal(mut self) -> (Vec<u8>, u32) {
        assert!(self.bytes.len() <= CRC_AT, "the header's fields outgrew their block");
        self.bytes.resize(CRC_AT, 0);
        let crc = crc32fast::hash(&self.bytes);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.bytes.resize(HEADER_BYTES, 0);
        (self.bytes, crc)
    }
}

/// Takes the fields out again, in the order they were laid.
pub(super) struct BlockReader<'a> {
    block: &'a [u8; BLOCK_BYTES],
    at: usize,
    pub(super) log_id: LogId,
    pub(super) crc: u32,
}

impl<'a> BlockReader<'a> {
    pub(super) fn new(bytes: &'a [u8], magic: [u8; 8]) -> Result<Self, HeaderError> {
        if bytes.len() < HEADER_BYTES {
            return Err(HeaderError::TooShort);
        }
        let block: &[u8; BLOCK_BYTES] = bytes.first_chunk().ok_or(HeaderError::TooShort)?;
        let mut reader = Self { block, at: 0, log_id: LogId([0; 16]), crc: 0 };
        if reader.take::<8>() != magic {
            return Err(HeaderError::BadMagic);
        }
        reader.crc = crc32fast::hash(&block[..CRC_AT]);
        if block[CRC_AT..] != reader.crc.to_le_bytes() {
            return Err(HeaderError::BadChecksum);
        }
        let version = reader.u32();
        if version != FORMAT_VERSION {
            return Err(HeaderError::UnknownVersion(version));
        }
        if reader.u32() as usize != HEADER_BYTES {
            return Err(HeaderError::Contradiction);
        }
        reader.log_id = LogId(reader.take());
        Ok(reader)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.block[self.at..self.at + N]);
        self.at += N;
        field
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A number that something will be counted on from.
    pub(super) fn count(&mut self) -> Result<u64, HeaderError> {
        let value = self.u64();
        if value > NUMBER_MAX { Err(HeaderError::Contradiction) } else { Ok(value) }
    }
}

/// Whether every byte is zero. Vectorised, since the unused part of a segment is long.
pub(super) fn all_zero(bytes: &[u8]) -> bool {
    let mut chunks = bytes.chunks_exact(64);
    chunks.all(|chunk| chunk.iter().fold(0, |sum, byte| sum | byte) == 0)
        && chunks.remainder().iter().all(|byte| *byte == 0)
}
