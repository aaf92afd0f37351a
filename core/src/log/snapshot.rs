//! A snapshot: the whole state after one LSN, as a file of the same frames the log is made of.
//!
//! It is written under a draft name, slice by slice beside the running broker; synced, renamed, and only after the
//! folder is synced may anything older go. Complete it is only with its footer. What its records mean is not known
//! here.

use super::frame::{self, CrcSeed, EncodeError, FOOTER, FrameChain, FrameError, OWN_VERSION, RECORD_KIND_MAX};
use super::header::{BlockReader, BlockWriter, HEADER_BYTES, HeaderError, LogId, all_zero};
use super::storage::{FileId, Storage, StorageFault, read_more};
use crate::types::Lsn;

const MAGIC: [u8; 8] = *b"DRIFTQSN";

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Whose log it belongs to.
    pub log_id: LogId,
    /// The last LSN whose effect is in it. The log must be synced through it before the snapshot gets its final name.
    pub lsn: Lsn,
    /// The checksum of the frame with that LSN, 0 for LSN 0: ties the snapshot to this very log.
    pub crc: u32,
    /// The boot that wrote it.
    pub epoch: u64,
}

impl SnapshotHead {
    /// The file it stands in once it is finished.
    #[must_use]
    pub const fn file(&self) -> FileId {
        FileId::Snapshot(self.lsn)
    }

    /// The file it is written to.
    #[must_use]
    pub const fn draft(&self) -> FileId {
        FileId::SnapshotDraft(self.lsn)
    }

    fn seed(&self) -> CrcSeed {
        CrcSeed::new(self.log_id, self.file())
    }

    /// The header as it stands in the file, and its checksum.
    fn encode(&self) -> (Vec<u8>, u32) {
        let block = BlockWriter::new(MAGIC, self.log_id).u64(self.lsn.0).u32(self.crc).u64(self.epoch);
        block.seal()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, u32), HeaderError> {
        let mut block = BlockReader::new(bytes, MAGIC)?;
        let lsn = Lsn(block.count()?);
        let head = Self { log_id: block.log_id, lsn, crc: block.u32(), epoch: block.u64() };
        Ok((head, block.crc))
    }
}

/// Makes the bytes of a snapshot, in as many slices as the caller likes.
///
/// Everything it puts into the buffers it is given, one behind the other, is the file.
#[derive(Clone, Debug)]
pub struct SnapshotWriter {
    chain: FrameChain,
}

impl SnapshotWriter {
    /// Begins with the header.
    #[must_use]
    pub fn begin(head: &SnapshotHead, out: &mut Vec<u8>) -> Self {
        let (bytes, crc) = head.encode();
        out.extend_from_slice(&bytes);
        Self { chain: FrameChain::new(head.seed(), Lsn(0), crc) }
    }

    /// Goes on with one record, its payload put in place by `write`.
    ///
    /// # Errors
    /// [`EncodeError`]; nothing is then written.
    #[inline]
    pub fn record(
        &mut self,
        out: &mut Vec<u8>,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), EncodeError> {
        self.chain.record(out, Lsn(0), kind, version, write).map(|_| ())
    }

    /// Ends with the footer; without it the snapshot is worth nothing.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        let records = self.chain.last_lsn().0;
        self.chain.own(out, Lsn(0), FOOTER, &records.to_le_bytes());
    }
}

/// Why a file is not a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Its header is not one.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// It stands for another LSN than its name says.
    #[error("it stands for LSN {found}, not for the one in its name")]
    Misnamed {
        /// The LSN in its header.
        found: Lsn,
    },
    /// A frame does not verify, or the file ends before its footer.
    #[error("not a frame at byte {position}: {error}")]
    BadFrame {
        /// Where the frame should begin.
        position: u64,
        /// Why it is none.
        error: FrameError,
    },
    /// A frame verifies but is not the one that belongs there.
    #[error("the frame at byte {position} does not follow the one before it")]
    OutOfPlace {
        /// Where the frame begins.
        position: u64,
    },
    /// A frame of the log's own kinds that has no place in a snapshot.
    #[error("a frame of kind {kind:#04x}, version {version}, at byte {position}")]
    BadKind {
        /// Where the frame begins.
        position: u64,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
    },
    /// The footer counts other than what is there.
    #[error("the footer at byte {position} does not count what is there")]
    BadFooter {
        /// Where the footer begins.
        position: u64,
    },
    /// Something follows the footer.
    #[error("something follows the footer at byte {position}")]
    Trailing {
        /// Where the footer ends.
        position: u64,
    },
}

/// Why reading a snapshot came to nothing.
#[derive(Debug)]
pub enum SnapshotReadError<E> {
    /// The storage could not be read, which says nothing about the snapshot.
    Storage(StorageFault),
    /// The file is not a whole snapshot.
    Damaged(SnapshotError),
    /// The snapshot is good so far, but the caller refused a record.
    Refused {
        /// Where the record's frame begins.
        position: u64,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
        /// What the caller said.
        reason: E,
    },
}

impl<E> From<StorageFault> for SnapshotReadError<E> {
    fn from(fault: StorageFault) -> Self {
        Self::Storage(fault)
    }
}

impl<E> From<SnapshotError> for SnapshotReadError<E> {
    fn from(error: SnapshotError) -> Self {
        Self::Damaged(error)
    }
}

/// Reads only what the snapshot of `lsn` says of itself; the records may still turn out damaged.
pub(super) fn read_head(
    storage: &mut (impl Storage + ?Sized),
    lsn: Lsn,
) -> Result<Result<SnapshotHead, SnapshotError>, StorageFault> {
    let mut bytes = Vec::new();
    read_more(storage, FileId::Snapshot(lsn), 0, &mut bytes, HEADER_BYTES)?;
    Ok(checked_head(&bytes, lsn).map(|(head, _)| head))
}

fn checked_head(bytes: &[u8], lsn: Lsn) -> Result<(SnapshotHead, u32), SnapshotError> {
    let (head, crc) = SnapshotHead::decode(bytes)?;
    if head.lsn != lsn {
        return Err(SnapshotError::Misnamed { found: head.lsn });
    }
    Ok((head, crc))
}

const WINDOW_BYTES: usize = 64 << 10;

/// Reads the finished snapshot of `lsn` and hands each record's kind, version and payload to `each`, in order.
///
/// Records are handed on as they are read: only when this returns `Ok` was the snapshot whole, and only then may
/// anybody rely on what was handed on. Memory stays near the size of the largest frame, however large the file.
/// `window` is memory to work in; its content does not matter.
///
/// # Errors
/// [`SnapshotReadError`] tells a medium that cannot be read, a damaged file and a refusal by `each` apart.
pub fn read_snapshot<E>(
    storage: &mut (impl Storage + ?Sized),
    lsn: Lsn,
    window: &mut Vec<u8>,
    mut each: impl FnMut(u8, u8, &[u8]) -> Result<(), E>,
) -> Result<SnapshotHead, SnapshotReadError<E>> {
    let file = FileId::Snapshot(lsn);
    window.clear();
    read_more(storage, file, 0, window, WINDOW_BYTES)?;
    let (head, header_crc) = checked_head(window, lsn)?;
    let seed = head.seed();
    let (mut records, mut last_crc) = (0_u64, header_crc);
    // The window holds the file from `base` on; the next frame begins at `at` within it.
    let (mut base, mut at) = (0_u64, HEADER_BYTES);
    loop {
        let position = base + at as u64;
        let frame = match frame::decode(&window[at..], seed) {
            Ok(frame) => frame,
            Err(error @ FrameError::TooShort { needed, .. }) => {
                window.drain(..at);
                (base, at) = (position, 0);
                let end = base + window.len() as u64;
                if read_more(storage, file, end, window, WINDOW_BYTES.max(needed - window.len()))? == 0 {
                    return Err(SnapshotError::BadFrame { position, error }.into());
                }
                continue;
            }
            Err(error) => return Err(SnapshotError::BadFrame { position, error }.into()),
        };
        if frame.head.lsn != Lsn(records + 1) || frame.head.prev_crc != last_crc {
            return Err(SnapshotError::OutOfPlace { position }.into());
        }
        let (kind, version) = (frame.head.kind, frame.head.version);
        at += frame.size();
        last_crc = frame.crc;
        if kind <= RECORD_KIND_MAX {
            records += 1;
            each(kind, version, frame.payload).map_err(|reason| SnapshotReadError::Refused {
                position,
                kind,
                version,
                reason,
            })?;
        } else if kind != FOOTER || version != OWN_VERSION {
            return Err(SnapshotError::BadKind { position, kind, version }.into());
        } else if frame.payload != records.to_le_bytes() {
            return Err(SnapshotError::BadFooter { position }.into());
        } else {
            break;
        }
    }
    let footer_end = base + at as u64;
    window.drain(..at);
    let mut end = footer_end;
    while all_zero(window) {
        end += window.len() as u64;
        window.clear();
        if read_more(storage, file, end, window, WINDOW_BYTES)? == 0 {
            return Ok(head);
        }
    }
    Err(SnapshotError::Trailing { position: footer_end }.into())
}
