//! The header block of every log file: signature, format version, log id, fields and checksum.
//!
//! The position and the range of the checksum are the same in every format version, so that a file of an older or newer
//! version is never mistaken for a damaged one.

use std::fmt;

/// The size of the header at the start of a segment or snapshot; frames follow.
///
/// A whole page, so that no later append touches a sector of the header.
pub const HEADER_BYTES: usize = 4096;

/// The file format version that this code writes, and the only one it reads.
pub(super) const FORMAT_VERSION: u32 = 2;

/// The part of the header that holds fields; the rest is zeros. It fits the smallest disk sector.
const BLOCK_BYTES: usize = 128;
const CRC_AT: usize = BLOCK_BYTES - 4;

/// The highest number a header may contain, so that counting on from it cannot overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// The identity of a log. Generated at random outside the core when the log is created; never changes.
///
/// It is never sent to clients: the checksums of all frames depend on it, so that a client who does not know it cannot
/// produce a message whose bytes verify as frames of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub [u8; 16]);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why the first bytes of a file are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file ends within the header.
    #[error("the file is too short for its header")]
    TooShort,
    /// The signature is not that of such a file.
    #[error("the header's signature is wrong")]
    BadMagic,
    /// The checksum does not match.
    #[error("the header's checksum is wrong")]
    BadChecksum,
    /// The checksum matches, but this program does not know the format version.
    #[error("format version {0} is not known to this program")]
    UnknownVersion(u32),
    /// The checksum matches, but the header has fields of a cluster, which are zeros in the log of a single node.
    #[error("it belongs to a node of a cluster")]
    OfCluster,
    /// The checksum matches, but the numbers contradict each other.
    #[error("the header contradicts itself")]
    Contradiction,
}

/// Writes the fields of a header block in order.
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

    /// Fields of a cluster, which are zeros in the log of a single node.
    pub(super) fn cluster_zeros(mut self, len: usize) -> Self {
        self.bytes.resize(self.bytes.len() + len, 0);
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// The whole header and its checksum.
    pub(super) fn seal(mut self) -> (Vec<u8>, u32) {
        assert!(self.bytes.len() <= CRC_AT, "the header fields exceed their block");
        self.bytes.resize(CRC_AT, 0);
        let crc = crc32fast::hash(&self.bytes);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.bytes.resize(HEADER_BYTES, 0);
        (self.bytes, crc)
    }
}

/// Reads the fields of a header block in the order they were written.
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

    /// Fields of a cluster, which are zeros in the log of a single node.
    pub(super) fn cluster_zeros<const N: usize>(&mut self) -> Result<(), HeaderError> {
        if self.take::<N>() == [0; N] { Ok(()) } else { Err(HeaderError::OfCluster) }
    }
}

/// A number that later numbers are counted from, limited by [`NUMBER_MAX`].
pub(super) fn count(value: u64) -> Result<u64, HeaderError> {
    if value > NUMBER_MAX { Err(HeaderError::Contradiction) } else { Ok(value) }
}

/// What unused bytes are compared with, many at a time: the unused part of a segment is long.
const ZEROS: [u8; 4_096] = [0; 4_096];

/// Whether every byte is zero.
pub(super) fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// The position of the first byte that is not zero.
pub(super) fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    let zeros = bytes.chunks(ZEROS.len()).take_while(|chunk| all_zero(chunk)).count() * ZEROS.len();
    bytes.iter().skip(zeros).position(|byte| *byte != 0).map(|at| zeros + at)
}

/// The position of the last byte that is not zero.
pub(super) fn last_nonzero(bytes: &[u8]) -> Option<usize> {
    let zeros = bytes.rchunks(ZEROS.len()).take_while(|chunk| all_zero(chunk)).map(<[u8]>::len).sum::<usize>();
    bytes[..bytes.len() - zeros].iter().rposition(|byte| *byte != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_among_zeros_is_found_from_both_ends() {
        for len in [1, 4_095, 4_096, 4_097, 9_000] {
            let mut bytes = vec![0; len];
            assert!(all_zero(&bytes));
            assert_eq!((first_nonzero(&bytes), last_nonzero(&bytes)), (None, None));
            for at in [0, len / 2, len - 1] {
                bytes[at] = 1;
                assert!(!all_zero(&bytes));
                assert_eq!((first_nonzero(&bytes), last_nonzero(&bytes)), (Some(at), Some(at)), "{at} of {len}");
                bytes[at] = 0;
            }
            (bytes[0], bytes[len - 1]) = (1, 1);
            assert_eq!((first_nonzero(&bytes), last_nonzero(&bytes)), (Some(0), Some(len - 1)));
        }
        assert_eq!((all_zero(&[]), first_nonzero(&[]), last_nonzero(&[])), (true, None, None));
    }

    #[test]
    fn number_from_which_counting_could_overflow_is_refused() {
        assert_eq!(count(NUMBER_MAX), Ok(1 << 62));
        assert_eq!([count(NUMBER_MAX + 1), count(u64::MAX)], [Err(HeaderError::Contradiction); 2]);
    }

    #[test]
    fn fields_of_a_cluster_are_refused_by_name() {
        let magic = *b"a header";
        let block = |field| BlockWriter::new(magic, LogId([7; 16])).cluster_zeros(8).u64(field).seal().0;
        let read = |bytes: &[u8]| BlockReader::new(bytes, magic)?.cluster_zeros::<16>();
        assert_eq!(read(&block(0)), Ok(()));
        assert_eq!(read(&block(1 << 56)), Err(HeaderError::OfCluster));
    }
}
