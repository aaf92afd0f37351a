//! Snapshots: the whole state after one frame of the log, in a file of the same frames as the log.
//!
//! A snapshot is written under a draft name in slices while the broker runs, then synced and renamed; only after the
//! folder is synced may older files be removed. It is complete only with its footer. The payloads of its records are
//! opaque here.

use super::frame::{
    self, CONTROL_VERSION, CrcSeed, EncodeError, FOOTER, FrameChain, FrameError, LogPosition, RECORD_KIND_MAX, REFERRED,
};
use super::header::{BlockReader, BlockWriter, HEADER_BYTES, HeaderError, LogId, all_zero, count};
use super::storage::{FileId, Storage, StorageFault, read_more};
use crate::types::{FrameNumber, Lsn};

const MAGIC: [u8; 8] = *b"DRIFTQSN";

/// Bytes of the fields of a cluster: index and term.
const CLUSTER_BYTES: usize = 8 + 8;

/// The header of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The log it belongs to.
    pub log_id: LogId,
    /// The last frame included in it, and the last record. The log must be synced through that frame before the
    /// snapshot gets its final name.
    pub at: LogPosition,
    /// The checksum of that frame, 0 for frame 0. Links the snapshot to the log.
    pub crc: u32,
    /// The boot number of its writer.
    pub epoch: u64,
}

impl SnapshotHead {
    /// Its final file.
    #[must_use]
    pub const fn file(&self) -> FileId {
        FileId::Snapshot(self.at.frame)
    }

    /// The file it is written to before the rename.
    #[must_use]
    pub const fn draft(&self) -> FileId {
        FileId::SnapshotDraft(self.at.frame)
    }

    fn seed(&self) -> CrcSeed {
        CrcSeed::new(self.log_id, self.file())
    }

    /// The encoded header and its checksum.
    fn encode(&self) -> (Vec<u8>, u32) {
        assert!(self.at.lsn.0 <= self.at.frame.0, "every record has a frame");
        BlockWriter::new(MAGIC, self.log_id)
            .u64(self.at.frame.0)
            .u64(self.at.lsn.0)
            .u32(self.crc)
            .u64(self.epoch)
            .cluster_zeros(CLUSTER_BYTES)
            .seal()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, u32), HeaderError> {
        let mut block = BlockReader::new(bytes, MAGIC)?;
        let [frame, lsn] = [block.u64(), block.u64()];
        let (crc, epoch) = (block.u32(), block.u64());
        block.cluster_zeros::<CLUSTER_BYTES>()?;
        // Every record has a frame.
        if lsn > count(frame)? {
            return Err(HeaderError::Contradiction);
        }
        let at = LogPosition { frame: FrameNumber(frame), lsn: Lsn(lsn) };
        Ok((Self { log_id: block.log_id, at, crc, epoch }, block.crc))
    }
}

/// Encodes a snapshot in any number of slices.
///
/// The concatenation of everything it appends to the given buffers is the file.
#[derive(Clone, Debug)]
pub struct SnapshotWriter {
    chain: FrameChain,
}

impl SnapshotWriter {
    /// Appends the header.
    #[must_use]
    pub fn begin(head: &SnapshotHead, out: &mut Vec<u8>) -> Self {
        let (bytes, crc) = head.encode();
        out.extend_from_slice(&bytes);
        Self { chain: FrameChain::new(head.seed(), LogPosition::default(), crc) }
    }

    /// Appends one record. `write` appends the payload.
    ///
    /// # Errors
    /// [`EncodeError`]; nothing has been written then.
    #[inline]
    pub fn record(
        &mut self,
        out: &mut Vec<u8>,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), EncodeError> {
        self.chain.record(out, FrameNumber(0), kind, version, write).map(|_| ())
    }

    /// Appends the segments that the snapshot refers to, and the footer, which completes it.
    pub fn finish(mut self, segments: &[ReferredSegment], out: &mut Vec<u8>) {
        let records = self.chain.last().frame.0;
        let mut list = Vec::with_capacity(segments.len() * REFERRED_BYTES);
        segments.iter().for_each(|segment| segment.encode(&mut list));
        self.chain.control(out, FrameNumber(0), REFERRED, &list);
        self.chain.control(out, FrameNumber(0), FOOTER, &records.to_le_bytes());
    }
}

/// A segment that holds payloads to which a snapshot refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferredSegment {
    /// Its sequence number.
    pub sequence: u64,
    /// The position behind its last frame, or behind the last one before the snapshot.
    pub last: LogPosition,
    /// The byte at which that frame ends.
    pub end: u64,
    /// The bytes of the payloads.
    pub live_bytes: u64,
}

/// The bytes of an entry in the list of segments.
const REFERRED_BYTES: usize = 5 * 8;

impl ReferredSegment {
    /// Its file.
    #[must_use]
    pub const fn file(&self) -> FileId {
        FileId::Segment(self.sequence)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.sequence, self.last.frame.0, self.last.lsn.0, self.end, self.live_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; REFERRED_BYTES]) -> Self {
        let mut numbers = bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().expect("an entry has five numbers");
        let (sequence, frame, lsn) = (next(), FrameNumber(next()), Lsn(next()));
        Self { sequence, last: LogPosition { frame, lsn }, end: next(), live_bytes: next() }
    }

    /// Decodes the list of a snapshot at `at`: ascending, and nothing in it behind the snapshot.
    fn decode_list(bytes: &[u8], at: LogPosition) -> Option<Vec<Self>> {
        let (entries, rest) = bytes.as_chunks();
        let list: Vec<_> = entries.iter().map(Self::decode).collect();
        let ascends = list.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
        let is_before = |segment: &Self| segment.last.frame <= at.frame && segment.last.lsn <= at.lsn;
        (rest.is_empty() && ascends && list.iter().all(is_before)).then_some(list)
    }
}

/// Why a file is not a valid snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The header is invalid.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The frame number in the header differs from the one in the file name.
    #[error("its header has frame {found}, not the one in its file name")]
    Misnamed {
        /// The frame number in its header.
        found: FrameNumber,
    },
    /// A frame does not verify, or the file ends before its footer.
    #[error("not a frame at byte {position}: {error}")]
    BadFrame {
        /// Where the frame should start.
        position: u64,
        /// Why it is invalid.
        error: FrameError,
    },
    /// A frame verifies, but does not follow the previous one.
    #[error("the frame at byte {position} does not follow the one before it")]
    OutOfPlace {
        /// Where the frame starts.
        position: u64,
    },
    /// A control frame that is not allowed in a snapshot.
    #[error("unexpected frame of kind {kind:#04x}, version {version}, at byte {position}")]
    BadKind {
        /// Where the frame starts.
        position: u64,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
    },
    /// The record count in the footer is wrong.
    #[error("the footer at byte {position} has a wrong record count")]
    BadFooter {
        /// Where the footer starts.
        position: u64,
    },
    /// The list of the segments that it refers to is invalid, or missing.
    #[error("no valid list of segments before the footer at byte {position}")]
    BadList {
        /// Where the list or the footer starts.
        position: u64,
    },
    /// Data follows the footer.
    #[error("data follows the footer, which ends at byte {position}")]
    Trailing {
        /// Where the footer ends.
        position: u64,
    },
}

/// Why a snapshot could not be read.
#[derive(Debug)]
pub enum SnapshotReadError<E> {
    /// The storage failed, which says nothing about the snapshot.
    Storage(StorageFault),
    /// The file is not a valid snapshot.
    Damaged(SnapshotError),
    /// The snapshot is valid so far, but the caller refused a record.
    Refused {
        /// The position in the log that the snapshot is of.
        at: LogPosition,
        /// Where the frame of the record starts.
        position: u64,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
        /// The caller's reason.
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

/// Reads only the header of the snapshot of frame `number`; its records may be damaged.
///
/// # Errors
/// Of the storage.
pub fn read_snapshot_head(
    storage: &mut (impl Storage + ?Sized),
    number: FrameNumber,
) -> Result<Result<SnapshotHead, SnapshotError>, StorageFault> {
    let mut bytes = Vec::new();
    read_more(storage, FileId::Snapshot(number), 0, &mut bytes, HEADER_BYTES)?;
    Ok(checked_head(&bytes, number).map(|(head, _)| head))
}

fn checked_head(bytes: &[u8], number: FrameNumber) -> Result<(SnapshotHead, u32), SnapshotError> {
    let (head, crc) = SnapshotHead::decode(bytes)?;
    if head.at.frame != number {
        return Err(SnapshotError::Misnamed { found: head.at.frame });
    }
    Ok((head, crc))
}

/// Reads the finished snapshot of frame `number`, passes the kind, version and payload of each record to `each`, in
/// order, and returns its header and the segments that it refers to.
///
/// Records are passed on as they are read. They may be relied on only once this returns `Ok`, which means that the
/// whole snapshot was valid. Memory use stays near the size of the largest frame, however large the file. `window` is a
/// scratch buffer; its contents are overwritten.
///
/// # Errors
/// [`SnapshotReadError`] distinguishes a storage error, a damaged file and a refusal by `each`.
pub fn read_snapshot<E>(
    storage: &mut (impl Storage + ?Sized),
    number: FrameNumber,
    window: &mut Vec<u8>,
    mut each: impl FnMut(u8, u8, &[u8]) -> Result<(), E>,
) -> Result<(SnapshotHead, Vec<ReferredSegment>), SnapshotReadError<E>> {
    let file = FileId::Snapshot(number);
    let window_bytes = storage.read_sizes().window;
    window.clear();
    read_more(storage, file, 0, window, window_bytes.max(HEADER_BYTES))?;
    let (head, header_crc) = checked_head(window, number)?;
    let seed = head.seed();
    let (mut records, mut last_crc) = (0_u64, header_crc);
    let mut segments = None;
    // The window holds the file from `base` on; the next frame starts at `at` within it.
    let (mut base, mut at) = (0_u64, HEADER_BYTES);
    loop {
        let position = base + at as u64;
        let frame = match frame::decode(&window[at..], seed) {
            Ok(frame) => frame,
            Err(error @ FrameError::TooShort { needed, .. }) => {
                window.drain(..at);
                (base, at) = (position, 0);
                let end = base + window.len() as u64;
                if read_more(storage, file, end, window, window_bytes.max(needed - window.len()))? == 0 {
                    return Err(SnapshotError::BadFrame { position, error }.into());
                }
                continue;
            }
            Err(error) => return Err(SnapshotError::BadFrame { position, error }.into()),
        };
        if frame.head.number != FrameNumber(records + 1 + u64::from(segments.is_some()))
            || frame.head.prev_crc != last_crc
        {
            return Err(SnapshotError::OutOfPlace { position }.into());
        }
        let (kind, version) = (frame.head.kind, frame.head.version);
        at += frame.size();
        last_crc = frame.crc;
        if kind == REFERRED && version == CONTROL_VERSION && segments.is_none() {
            let list = ReferredSegment::decode_list(frame.payload, head.at);
            segments = Some(list.ok_or(SnapshotError::BadList { position })?);
        } else if kind <= RECORD_KIND_MAX && segments.is_none() {
            records += 1;
            each(kind, version, frame.payload).map_err(|reason| SnapshotReadError::Refused {
                at: head.at,
                position,
                kind,
                version,
                reason,
            })?;
        } else if kind != FOOTER || version != CONTROL_VERSION {
            return Err(SnapshotError::BadKind { position, kind, version }.into());
        } else if frame.payload != records.to_le_bytes() {
            return Err(SnapshotError::BadFooter { position }.into());
        } else {
            break;
        }
    }
    let position = base + at as u64;
    let segments = segments.ok_or(SnapshotError::BadList { position })?;
    let footer_end = base + at as u64;
    window.drain(..at);
    let mut end = footer_end;
    while all_zero(window) {
        end += window.len() as u64;
        window.clear();
        if read_more(storage, file, end, window, window_bytes)? == 0 {
            return Ok((head, segments));
        }
    }
    Err(SnapshotError::Trailing { position: footer_end }.into())
}
