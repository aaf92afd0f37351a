//! Frames: the unit of writing and of validation in the log.
//!
//! A frame is tied to its file by its [`CrcSeed`]. Its payload is opaque here, except for a kind and a version.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | payload length |
//! | 4 | 4 | CRC-32 of everything else in the frame, continued from the seed |
//! | 8 | 8 | frame number |
//! | 16 | 4 | CRC of the previous frame |
//! | 20 | 8 | highest frame number known to be synced when this frame was written |
//! | 28 | 1 | kind, never 0 |
//! | 29 | 1 | version of the kind |
//! | 30 | | payload |
//!
//! All numbers are little-endian. The LSN of a record is not stored with it: it follows from the segment header and the
//! records before it in the segment.
//!
//! Kinds from `0xF2` to `0xF5` are reserved for replicated logs (entries, hard state, members, payloads). This program
//! neither writes nor accepts them.

use crc32fast::Hasher;

use super::header::LogId;
use super::storage::FileId;
use crate::types::{FrameNumber, Lsn};

/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 30;
/// The longest payload, in bytes. Checked before anything is allocated or checksummed.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 20;

/// The highest kind of a record; higher kinds are control frames of the log.
pub const RECORD_KIND_MAX: u8 = 0xEF;
/// A control frame without payload, written when the log becomes idle after a sync, to record what is synced.
pub const SYNCED_MARK: u8 = 0xF0;
/// A control frame at the end of a segment that was rotated or closed, with its
/// [content](super::footer::SegmentFooter), and of every finished snapshot.
pub const FOOTER: u8 = 0xF1;
/// A control frame before the footer of a snapshot: the segments that the snapshot refers to.
pub const REFERRED: u8 = 0xF6;
/// The version of marks and footers.
pub const CONTROL_VERSION: u8 = 1;

/// The position of the checksum in a frame, and of what follows it.
pub(crate) const CRC_AT: usize = 4;
pub(crate) const AFTER_CRC: usize = 8;

/// The initial value of the checksums in one file, derived from the log id and the file.
///
/// Frames of another file of this log, of another log, or forged in a message by a client who does not know the log id
/// do not verify with this seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcSeed(u32);

impl CrcSeed {
    /// The seed of a file of a log. A snapshot and its draft have the same seed.
    #[must_use]
    pub fn new(log_id: LogId, file: FileId) -> Self {
        let (tag, number) = match file {
            FileId::Segment(sequence) => (b'w', sequence),
            FileId::Snapshot(frame) | FileId::SnapshotDraft(frame) => (b's', frame.0),
        };
        let mut hasher = Hasher::new();
        hasher.update(&log_id.0);
        hasher.update(&[tag]);
        hasher.update(&number.to_le_bytes());
        Self(hasher.finalize())
    }

    /// The checksum of a frame's head, to be continued over its payload.
    pub(super) fn sum_head(self, head: &[u8; FRAME_HEAD_BYTES]) -> u32 {
        FrameSum::new(self).sum(head)
    }
}

/// Computes the checksums of frames in one file. A hasher asks for the features of the processor when it is made, so
/// one is made per file, not per frame.
#[derive(Clone, Debug)]
pub(super) struct FrameSum(Hasher);

impl FrameSum {
    pub(super) fn new(seed: CrcSeed) -> Self {
        Self(Hasher::new_with_initial(seed.0))
    }

    /// The checksum of a whole frame.
    fn sum(&self, frame: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(&frame[..CRC_AT]);
        hasher.update(&frame[AFTER_CRC..]);
        hasher.finalize()
    }

    /// The checksum of a frame whose length field directly precedes the bytes behind the checksum field.
    fn sum_contiguous(&self, length_and_rest: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(length_and_rest);
        hasher.finalize()
    }
}

/// The fields of a frame besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its number, one above that of the previous frame.
    pub number: FrameNumber,
    /// The checksum of the previous frame.
    pub prev_crc: u32,
    /// The highest frame number known to be synced when the frame was written. Always below `number`.
    pub synced: FrameNumber,
    /// The kind of the payload. Not 0.
    pub kind: u8,
    /// The version of the kind.
    pub version: u8,
}

/// A verified frame; its payload is borrowed from the decoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its head.
    pub head: Head,
    /// Its checksum, which the next frame contains.
    pub crc: u32,
    /// Its payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Whether it is a record, and thus has an LSN.
    #[must_use]
    pub const fn is_record(&self) -> bool {
        self.head.kind <= RECORD_KIND_MAX
    }

    /// The size of the frame in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        FRAME_HEAD_BYTES + self.payload.len()
    }
}

/// Why a frame could not be encoded. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The payload is longer than [`MAX_PAYLOAD_BYTES`].
    #[error("a payload of {len} bytes is longer than the {MAX_PAYLOAD_BYTES} a frame can carry")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// Kind 0 is invalid, and kinds above [`RECORD_KIND_MAX`] are reserved for control frames.
    #[error("kind {kind:#04x} is not a record kind")]
    BadKind {
        /// The requested kind.
        kind: u8,
    },
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The head is all zeros: nothing has been written here.
    #[error("nothing written")]
    Unwritten,
    /// The bytes end before the frame does.
    #[error("truncated: {needed} bytes needed, {found} available")]
    TooShort {
        /// The size of the frame, as far as it is known.
        needed: usize,
        /// The available bytes.
        found: usize,
    },
    /// Its length exceeds the limit.
    #[error("claims a payload of {len} bytes")]
    TooLong {
        /// The claimed length.
        len: u32,
    },
    /// Kind 0 is never written.
    #[error("has kind 0")]
    BadKind,
    /// The checksum does not match.
    #[error("wrong checksum: {stored:#010x} stored, {computed:#010x} computed")]
    BadChecksum {
        /// The stored checksum.
        stored: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// The checksum matches, but the frame records its own or a later number as synced.
    #[error("frame {number} records frame {synced} as synced before it")]
    Impossible {
        /// Its number.
        number: FrameNumber,
        /// The frame it records as synced.
        synced: FrameNumber,
    },
}

/// Appends one frame to `out` and returns its checksum. `write` appends the payload and must not remove bytes.
///
/// # Errors
/// [`EncodeError`]; `out` is then unchanged.
///
/// # Panics
/// If `head.synced` is not below `head.number`, or `write` removes bytes.
#[inline]
pub fn encode_with(
    out: &mut Vec<u8>,
    seed: CrcSeed,
    head: &Head,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<u32, EncodeError> {
    encode(out, &FrameSum::new(seed), head, write)
}

#[inline]
fn encode(
    out: &mut Vec<u8>,
    sum: &FrameSum,
    head: &Head,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<u32, EncodeError> {
    assert!(head.synced < head.number, "a frame can only record earlier frames as synced");
    if head.kind == 0 {
        return Err(EncodeError::BadKind { kind: 0 });
    }
    let start = out.len();
    let mut bytes = [0; FRAME_HEAD_BYTES];
    bytes[8..16].copy_from_slice(&head.number.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&head.prev_crc.to_le_bytes());
    bytes[20..28].copy_from_slice(&head.synced.0.to_le_bytes());
    bytes[28] = head.kind;
    bytes[29] = head.version;
    out.extend_from_slice(&bytes);
    write(out);
    assert!(out.len() >= start + FRAME_HEAD_BYTES, "writing a payload removed bytes");
    let len = out.len() - start - FRAME_HEAD_BYTES;
    if len > MAX_PAYLOAD_BYTES {
        out.truncate(start);
        return Err(EncodeError::TooLong { len });
    }
    let frame = &mut out[start..];
    let len = (len as u32).to_le_bytes();
    // The checksum covers the length and everything behind the checksum field. With the length in that field it is one
    // slice.
    frame[CRC_AT..AFTER_CRC].copy_from_slice(&len);
    let crc = sum.sum_contiguous(&frame[CRC_AT..]);
    frame[..CRC_AT].copy_from_slice(&len);
    frame[CRC_AT..AFTER_CRC].copy_from_slice(&crc.to_le_bytes());
    Ok(crc)
}

/// Decodes the frame at the start of `bytes`.
///
/// # Errors
/// [`FrameError`]. Never panics or allocates, and never checksums more than [`MAX_PAYLOAD_BYTES`] and a head, whatever
/// the bytes.
#[inline]
pub fn decode(bytes: &[u8], seed: CrcSeed) -> Result<Frame<'_>, FrameError> {
    decode_with(bytes, &FrameSum::new(seed))
}

/// Like [`decode`], for many frames of one file.
#[inline]
pub(super) fn decode_with<'a>(bytes: &'a [u8], sum: &FrameSum) -> Result<Frame<'a>, FrameError> {
    let Some(head) = bytes.first_chunk::<FRAME_HEAD_BYTES>() else {
        return Err(FrameError::TooShort { needed: FRAME_HEAD_BYTES, found: bytes.len() });
    };
    let raw = RawHead::read(head);
    if raw.head.kind == 0 {
        return Err(if *head == [0; FRAME_HEAD_BYTES] { FrameError::Unwritten } else { FrameError::BadKind });
    }
    if raw.len as usize > MAX_PAYLOAD_BYTES {
        return Err(FrameError::TooLong { len: raw.len });
    }
    let size = FRAME_HEAD_BYTES + raw.len as usize;
    let Some(frame) = bytes.get(..size) else {
        return Err(FrameError::TooShort { needed: size, found: bytes.len() });
    };
    let computed = sum.sum(frame);
    if computed != raw.crc {
        return Err(FrameError::BadChecksum { stored: raw.crc, computed });
    }
    if raw.head.synced >= raw.head.number {
        return Err(FrameError::Impossible { number: raw.head.number, synced: raw.head.synced });
    }
    Ok(Frame { head: raw.head, crc: raw.crc, payload: &frame[FRAME_HEAD_BYTES..] })
}

/// The size of the damaged frame `number` at the start of `bytes`, and whether it is a record; `None` if that is not
/// certain. It is if the frame behind it is intact and follows one with the number and the checksum in the damaged
/// head: then no more than this frame is damaged, and not where its head says what it is.
#[must_use]
pub fn skip_damaged(bytes: &[u8], seed: CrcSeed, number: FrameNumber) -> Option<(usize, bool)> {
    let raw = RawHead::read(bytes.first_chunk()?);
    let size = FRAME_HEAD_BYTES + raw.len as usize;
    let next = decode(bytes.get(size..)?, seed).ok()?;
    let follows = raw.head.number == number && next.head.number == number.next() && next.head.prev_crc == raw.crc;
    // Kind and length, which no other field confirms, confirm each other: a mark has no payload, a record has one.
    let is_record = (1..=RECORD_KIND_MAX).contains(&raw.head.kind) && raw.len > 0;
    let is_mark = raw.head.kind == SYNCED_MARK && raw.len == 0;
    (follows && (is_record || is_mark)).then_some((size, is_record))
}

/// A decoded but unverified head.
pub(super) struct RawHead {
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) head: Head,
}

impl RawHead {
    #[inline]
    pub(super) fn read(bytes: &[u8; FRAME_HEAD_BYTES]) -> Self {
        let [l0, l1, l2, l3, c0, c1, c2, c3, rest @ ..] = bytes;
        let [n0, n1, n2, n3, n4, n5, n6, n7, rest @ ..] = rest;
        let [p0, p1, p2, p3, s0, s1, s2, s3, s4, s5, s6, s7, kind, version] = rest;
        Self {
            len: u32::from_le_bytes([*l0, *l1, *l2, *l3]),
            crc: u32::from_le_bytes([*c0, *c1, *c2, *c3]),
            head: Head {
                number: FrameNumber(u64::from_le_bytes([*n0, *n1, *n2, *n3, *n4, *n5, *n6, *n7])),
                prev_crc: u32::from_le_bytes([*p0, *p1, *p2, *p3]),
                synced: FrameNumber(u64::from_le_bytes([*s0, *s1, *s2, *s3, *s4, *s5, *s6, *s7])),
                kind: *kind,
                version: *version,
            },
        }
    }
}

/// A position in the log, behind a frame: the number of the frame, and the LSN of the last record up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogPosition {
    /// The number of the frame; 0 before the first.
    pub frame: FrameNumber,
    /// The LSN of the last record up to that frame; 0 before the first. Marks and footers do not change it.
    pub lsn: Lsn,
}

impl LogPosition {
    /// The number of the next frame, and the LSN of the next record.
    #[must_use]
    pub const fn following(self) -> Self {
        Self { frame: self.frame.next(), lsn: self.lsn.next() }
    }

    /// The position behind the next frame, which is of this kind.
    #[must_use]
    pub const fn after(self, kind: u8) -> Self {
        let lsn = if kind <= RECORD_KIND_MAX { self.lsn.next() } else { self.lsn };
        Self { frame: self.frame.next(), lsn }
    }
}

/// Writes consecutive frames: assigns frame numbers and LSNs, and links each frame to the previous one.
///
/// A refused frame leaves the chain unchanged, so the next frame gets its number.
#[derive(Clone, Debug)]
pub struct FrameChain {
    sum: FrameSum,
    last: LogPosition,
    last_crc: u32,
}

impl FrameChain {
    /// A chain that continues behind the frame at `last` with the checksum `last_crc`; both are 0 if there is none.
    #[must_use]
    pub fn new(seed: CrcSeed, last: LogPosition, last_crc: u32) -> Self {
        Self { sum: FrameSum::new(seed), last, last_crc }
    }

    /// The position behind the last written frame.
    #[must_use]
    pub const fn last(&self) -> LogPosition {
        self.last
    }

    /// The checksum of the last written frame.
    #[must_use]
    pub const fn last_crc(&self) -> u32 {
        self.last_crc
    }

    /// Where the chain stands, for [`FrameChain::rewind`].
    pub(crate) const fn point(&self) -> (LogPosition, u32) {
        (self.last, self.last_crc)
    }

    /// Goes back to an earlier [`FrameChain::point`]; the frames behind it were removed.
    pub(crate) const fn rewind(&mut self, (last, last_crc): (LogPosition, u32)) {
        (self.last, self.last_crc) = (last, last_crc);
    }

    /// Appends a record to `out` and returns its position. `write` appends the payload. Allocates only to grow `out`.
    ///
    /// # Errors
    /// [`EncodeError`]; `out` and the chain are then unchanged.
    ///
    /// # Panics
    /// If `synced` is beyond the last written frame, or `write` removes bytes.
    #[inline]
    pub fn record(
        &mut self,
        out: &mut Vec<u8>,
        synced: FrameNumber,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<LogPosition, EncodeError> {
        if kind > RECORD_KIND_MAX {
            return Err(EncodeError::BadKind { kind });
        }
        self.link(out, synced, kind, version, write)
    }

    /// Appends a [`SYNCED_MARK`] and returns its number.
    ///
    /// # Panics
    /// If `synced` is beyond the last written frame.
    pub fn mark(&mut self, out: &mut Vec<u8>, synced: FrameNumber) -> FrameNumber {
        self.control(out, synced, SYNCED_MARK, &[])
    }

    /// Appends the [`FOOTER`] of a segment and returns its number.
    ///
    /// # Panics
    /// If `synced` is beyond the last written frame.
    pub fn footer(&mut self, out: &mut Vec<u8>, synced: FrameNumber) -> FrameNumber {
        self.footer_with(out, synced, &[])
    }

    /// Appends the [`FOOTER`] of a segment with this payload and returns its number.
    ///
    /// # Panics
    /// If `synced` is beyond the last written frame, or the payload is too long.
    pub fn footer_with(&mut self, out: &mut Vec<u8>, synced: FrameNumber, payload: &[u8]) -> FrameNumber {
        self.control(out, synced, FOOTER, payload)
    }

    /// Appends a control frame.
    pub(super) fn control(&mut self, out: &mut Vec<u8>, synced: FrameNumber, kind: u8, payload: &[u8]) -> FrameNumber {
        match self.link(out, synced, kind, CONTROL_VERSION, |buffer| buffer.extend_from_slice(payload)) {
            Ok(position) => position.frame,
            Err(error) => unreachable!("marks and footers are short and have a valid kind: {error}"),
        }
    }

    #[inline]
    fn link(
        &mut self,
        out: &mut Vec<u8>,
        synced: FrameNumber,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<LogPosition, EncodeError> {
        let last = self.last.after(kind);
        let head = Head { number: last.frame, prev_crc: self.last_crc, synced, kind, version };
        self.last_crc = encode(out, &self.sum, &head, write)?;
        self.last = last;
        Ok(last)
    }
}
