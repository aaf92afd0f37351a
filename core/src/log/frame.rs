//! One frame: the smallest thing the log writes, and the unit in which it is found good or bad.
//!
//! A frame knows nothing of files but through its [`CrcSeed`], and nothing of meaning but a kind and a version.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | payload length |
//! | 4 | 4 | CRC-32 of everything else in the frame, continued from the seed |
//! | 8 | 8 | LSN |
//! | 16 | 4 | CRC of the frame before |
//! | 20 | 8 | highest LSN known to be synced when this frame was written |
//! | 28 | 1 | kind, never 0 |
//! | 29 | 1 | version of the kind |
//! | 30 | | payload |
//!
//! All numbers are little-endian.

use crc32fast::Hasher;

use super::{FileId, LogId};
use crate::types::Lsn;

/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 30;
/// The longest payload, in bytes. Checked before anything is allocated or summed.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 20;

/// The highest kind a record may have; kinds above it are the log's own.
pub const RECORD_KIND_MAX: u8 = 0xEF;
/// A frame without payload, written when the log falls idle after a sync: its `synced` field is all it says.
pub const SYNCED_MARK: u8 = 0xF0;
/// The last frame of a segment that was rotated or closed, and of every finished snapshot.
pub const FOOTER: u8 = 0xF1;
/// The version marks and footers are written in.
pub const OWN_VERSION: u8 = 1;

/// Where in a frame its checksum stands, and where what follows it begins.
const CRC_AT: usize = 4;
const AFTER_CRC: usize = 8;

/// What the checksums in one file start from: which log, and which file of it.
///
/// Bytes that stand anywhere else, in another file of this log, in another log or in a message of a client who does
/// not know the log's identity, do not verify here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcSeed(u32);

impl CrcSeed {
    /// The seed of this file of this log. A snapshot and its draft have the same.
    #[must_use]
    pub fn new(log_id: LogId, file: FileId) -> Self {
        let (tag, number) = match file {
            FileId::Segment(sequence) => (b'w', sequence),
            FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => (b's', lsn.0),
        };
        let mut hasher = Hasher::new();
        hasher.update(&log_id.0);
        hasher.update(&[tag]);
        hasher.update(&number.to_le_bytes());
        Self(hasher.finalize())
    }

    /// The checksum of a frame, given all its bytes.
    fn sum(self, frame: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.0);
        hasher.update(&frame[..CRC_AT]);
        hasher.update(&frame[AFTER_CRC..]);
        hasher.finalize()
    }

    /// The checksum of a frame whose length stands directly before what follows the checksum.
    fn sum_piece(self, length_and_rest: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.0);
        hasher.update(length_and_rest);
        hasher.finalize()
    }

    /// The part of a frame's checksum that precedes its payload, as a running sum.
    pub(super) fn sum_head(self, head: &[u8; FRAME_HEAD_BYTES]) -> u32 {
        self.sum(head)
    }
}

/// What a frame says besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its place in the log; one more than that of the frame before.
    pub lsn: Lsn,
    /// The checksum of the frame before.
    pub prev_crc: u32,
    /// The highest LSN known to be synced. Always below `lsn`.
    pub synced: Lsn,
    /// What the payload is. Not 0.
    pub kind: u8,
    /// In which version of the kind it is written.
    pub version: u8,
}

/// A frame that verified, its payload borrowed from the bytes it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it says of itself.
    pub head: Head,
    /// Its checksum, which the next frame repeats.
    pub crc: u32,
    /// What it carries.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// How many bytes the frame takes.
    #[must_use]
    pub fn size(&self) -> usize {
        FRAME_HEAD_BYTES + self.payload.len()
    }
}

/// Why a frame could not be written. Nothing of it has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The payload is longer than [`MAX_PAYLOAD_BYTES`].
    #[error("a payload of {len} bytes is longer than the {MAX_PAYLOAD_BYTES} a frame can carry")]
    TooLong {
        /// How long it is.
        len: usize,
    },
    /// Kind 0 stands for nothing, and kinds above [`RECORD_KIND_MAX`] are not for records.
    #[error("kind {kind:#04x} is not a record's")]
    BadKind {
        /// The kind asked for.
        kind: u8,
    },
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Zeros, where a head would be: nothing has been written here.
    #[error("nothing written")]
    Unwritten,
    /// The bytes end before the frame does.
    #[error("cut short: {needed} bytes needed, {found} there")]
    TooShort {
        /// Bytes the frame would take, as far as can be told.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// It claims more payload than any frame may have.
    #[error("claims a payload of {len} bytes")]
    TooLong {
        /// The length it claims.
        len: u32,
    },
    /// Kind 0 is never written.
    #[error("has kind 0")]
    BadKind,
    /// The checksum does not fit.
    #[error("wrong checksum: {stored:#010x} stored, {computed:#010x} computed")]
    BadChecksum {
        /// What the frame says.
        stored: u32,
        /// What its bytes sum up to.
        computed: u32,
    },
    /// The checksum fits, but it claims to know itself synced before it was written.
    #[error("LSN {lsn} claims that LSN {synced} was synced before it")]
    Impossible {
        /// Its place in the log.
        lsn: Lsn,
        /// What it claims.
        synced: Lsn,
    },
}

/// Writes one frame behind `out`, its payload put in place by `write`, which may only add. Gives the frame's checksum.
///
/// # Errors
/// [`EncodeError`]; `out` is then as it was.
///
/// # Panics
/// If `head` says what no frame can say (`synced` not below `lsn`), or `write` takes bytes away: both are mistakes of
/// the caller's own making.
#[inline]
pub fn encode_with(
    out: &mut Vec<u8>,
    seed: CrcSeed,
    head: &Head,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<u32, EncodeError> {
    assert!(head.synced < head.lsn, "a frame cannot know itself synced");
    if head.kind == 0 {
        return Err(EncodeError::BadKind { kind: 0 });
    }
    let start = out.len();
    let mut bytes = [0; FRAME_HEAD_BYTES];
    bytes[8..16].copy_from_slice(&head.lsn.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&head.prev_crc.to_le_bytes());
    bytes[20..28].copy_from_slice(&head.synced.0.to_le_bytes());
    bytes[28] = head.kind;
    bytes[29] = head.version;
    out.extend_from_slice(&bytes);
    write(out);
    assert!(out.len() >= start + FRAME_HEAD_BYTES, "writing a payload took bytes away");
    let len = out.len() - start - FRAME_HEAD_BYTES;
    if len > MAX_PAYLOAD_BYTES {
        out.truncate(start);
        return Err(EncodeError::TooLong { len });
    }
    let frame = &mut out[start..];
    let len = (len as u32).to_le_bytes();
    // Summed are the length and what follows the checksum. With the length in the checksum's place that is one piece.
    frame[CRC_AT..AFTER_CRC].copy_from_slice(&len);
    let crc = seed.sum_piece(&frame[CRC_AT..]);
    frame[..CRC_AT].copy_from_slice(&len);
    frame[CRC_AT..AFTER_CRC].copy_from_slice(&crc.to_le_bytes());
    Ok(crc)
}

/// Reads the frame at the start of `bytes`.
///
/// # Errors
/// [`FrameError`] says why there is none. No bytes whatever make it panic, allocate, or sum more than
/// [`MAX_PAYLOAD_BYTES`] and a head.
#[inline]
pub fn decode(bytes: &[u8], seed: CrcSeed) -> Result<Frame<'_>, FrameError> {
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
    let computed = seed.sum(frame);
    if computed != raw.crc {
        return Err(FrameError::BadChecksum { stored: raw.crc, computed });
    }
    if raw.head.synced >= raw.head.lsn {
        return Err(FrameError::Impossible { lsn: raw.head.lsn, synced: raw.head.synced });
    }
    Ok(Frame { head: raw.head, crc: raw.crc, payload: &frame[FRAME_HEAD_BYTES..] })
}

/// A head as its bytes say, nothing checked.
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
                lsn: Lsn(u64::from_le_bytes([*n0, *n1, *n2, *n3, *n4, *n5, *n6, *n7])),
                prev_crc: u32::from_le_bytes([*p0, *p1, *p2, *p3]),
                synced: Lsn(u64::from_le_bytes([*s0, *s1, *s2, *s3, *s4, *s5, *s6, *s7])),
                kind: *kind,
                version: *version,
            },
        }
    }
}

/// Writes frames one behind the other: numbers them and links each to the one before.
///
/// A frame that is refused leaves the chain as it was, so the next one takes its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameChain {
    seed: CrcSeed,
    last_lsn: Lsn,
    last_crc: u32,
}

impl FrameChain {
    /// A chain that goes on behind the frame with `last_lsn` and `last_crc`; both 0 where there is none.
    #[must_use]
    pub const fn new(seed: CrcSeed, last_lsn: Lsn, last_crc: u32) -> Self {
        Self { seed, last_lsn, last_crc }
    }

    /// The number of the frame written last.
    #[must_use]
    pub const fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// The checksum of the frame written last.
    #[must_use]
    pub const fn last_crc(&self) -> u32 {
        self.last_crc
    }

    /// Writes a record behind `out`, its payload put in place by `write`; gives its LSN. Nothing is allocated but what
    /// `out` itself needs to grow.
    ///
    /// # Errors
    /// [`EncodeError`]; `out` and the chain are then as they were.
    ///
    /// # Panics
    /// If `synced` lies beyond what was written, or `write` takes bytes away.
    #[inline]
    pub fn record(
        &mut self,
        out: &mut Vec<u8>,
        synced: Lsn,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Lsn, EncodeError> {
        if kind > RECORD_KIND_MAX {
            return Err(EncodeError::BadKind { kind });
        }
        self.link(out, synced, kind, version, write)
    }

    /// Writes a [`SYNCED_MARK`]; gives its LSN.
    ///
    /// # Panics
    /// If `synced` lies beyond what was written.
    pub fn mark(&mut self, out: &mut Vec<u8>, synced: Lsn) -> Lsn {
        self.own(out, synced, SYNCED_MARK, &[])
    }

    /// Writes a segment's [`FOOTER`]; gives its LSN.
    ///
    /// # Panics
    /// If `synced` lies beyond what was written.
    pub fn footer(&mut self, out: &mut Vec<u8>, synced: Lsn) -> Lsn {
        self.own(out, synced, FOOTER, &[])
    }

    /// Writes a frame of the log's own.
    pub(super) fn own(&mut self, out: &mut Vec<u8>, synced: Lsn, kind: u8, payload: &[u8]) -> Lsn {
        match self.link(out, synced, kind, OWN_VERSION, |buffer| buffer.extend_from_slice(payload)) {
            Ok(lsn) => lsn,
            Err(error) => unreachable!("marks and footers are short and of a good kind: {error}"),
        }
    }

    #[inline]
    fn link(
        &mut self,
        out: &mut Vec<u8>,
        synced: Lsn,
        kind: u8,
        version: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Lsn, EncodeError> {
        let head = Head { lsn: self.last_lsn.next(), prev_crc: self.last_crc, synced, kind, version };
        self.last_crc = encode_with(out, self.seed, &head, write)?;
        self.last_lsn = head.lsn;
        Ok(head.lsn)
    }
}
