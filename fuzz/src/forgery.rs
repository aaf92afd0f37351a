//! Log files with altered frames and valid checksums, as a broker with a bug could write them. They reach the code
//! behind the checksums. The checksums follow `docs/wal.md` and are computed without the code of the core.

use arbitrary::Unstructured;
use crc32fast::Hasher;
use driftq_core::log::{FileId, HEADER_BYTES, LogId};
use driftq_core::types::FrameNumber;

use crate::damage::damage;
use crate::input::{below, take_bytes};

/// Bytes of a frame before its payload.
const FRAME_HEAD_BYTES: usize = 30;
/// Bytes of a file's header that are never altered: signature, format version, header size and log id.
const HEADER_FIXED_BYTES: usize = 32;
/// Bytes of a file's header that its checksum covers. The checksum follows them.
const HEADER_COVERED_BYTES: usize = 124;
/// The most alterations made by one call of [`Forgery::alter`].
const ALTERATIONS_MAX: usize = 4;

/// Sets the length of the first frame in `bytes` to all of them, and corrects its checksum. Does nothing if `bytes` are
/// too short for a frame.
pub fn fix_checksum(bytes: &mut [u8], log_id: LogId, file: FileId) {
    if bytes.len() >= FRAME_HEAD_BYTES {
        let len = (bytes.len() - FRAME_HEAD_BYTES) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        let checksum = frame_checksum(bytes, log_id, file);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn frame_checksum(frame: &[u8], log_id: LogId, file: FileId) -> u32 {
    let (tag, number) = match file {
        FileId::Segment(sequence) => (b'w', sequence),
        FileId::Snapshot(frame) | FileId::SnapshotDraft(frame) => (b's', frame.0),
    };
    let mut hasher = Hasher::new();
    hasher.update(&log_id.0);
    hasher.update(&[tag]);
    hasher.update(&number.to_le_bytes());
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// A frame without the fields that follow from its position: length, checksums and number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgedFrame {
    /// The highest frame number that the frame states to be synced.
    pub synced: FrameNumber,
    /// Its kind.
    pub kind: u8,
    /// The version of that kind.
    pub version: u8,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A parsed file of the log that can be altered and encoded again.
#[derive(Clone, Debug)]
pub struct Forgery {
    /// The header.
    pub header: Vec<u8>,
    /// The frames, in their order.
    pub frames: Vec<ForgedFrame>,
}

impl Forgery {
    /// Parses an undamaged file, up to the first bytes that are no frame.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let (header, mut rest) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
        let mut frames = Vec::new();
        while let Some((head, after)) = rest.split_at_checked(FRAME_HEAD_BYTES).filter(|(head, _)| head[28] != 0) {
            let len = head.first_chunk().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
            let Some((payload, after)) = after.split_at_checked(len) else { break };
            let synced = FrameNumber(u64_at(head, 20));
            frames.push(ForgedFrame { synced, kind: head[28], version: head[29], payload: payload.to_vec() });
            rest = after;
        }
        Self { header: header.to_vec(), frames }
    }

    /// Removes, duplicates and reorders frames, changes their kinds, versions, synced frame numbers and payloads, and
    /// overwrites fields of the header.
    pub fn alter(&mut self, input: &mut Unstructured<'_>) {
        for _ in 0..below(input, ALTERATIONS_MAX + 1) {
            let (index, other) = (below(input, self.frames.len()), below(input, self.frames.len()));
            let Some(frame) = self.frames.get_mut(index) else { return };
            match below(input, 10) {
                0 => drop(self.frames.remove(index)),
                1 => {
                    let copy = frame.clone();
                    self.frames.insert(other, copy);
                }
                2 => self.frames.swap(index, other),
                3 => frame.kind = input.arbitrary().unwrap_or(1).max(1),
                4 => frame.version = input.arbitrary().unwrap_or(1),
                5 => frame.synced = FrameNumber(below(input, 200) as u64),
                6 => self.frames.truncate(index),
                7 => self.alter_header(input),
                _ => damage(input, &mut frame.payload),
            }
        }
    }

    fn alter_header(&mut self, input: &mut Unstructured<'_>) {
        let start = HEADER_FIXED_BYTES + 4 * below(input, (HEADER_COVERED_BYTES - HEADER_FIXED_BYTES) / 4);
        let written = take_bytes(input, 8);
        let end = (start + written.len()).min(HEADER_COVERED_BYTES);
        if let Some(field) = self.header.get_mut(start..end) {
            field.copy_from_slice(&written[..end - start]);
        }
    }

    /// Encodes the file under the name `file`, with the lengths, frame numbers and checksums that its header and its
    /// name require.
    #[must_use]
    pub fn encode(&self, log_id: LogId, file: FileId) -> Vec<u8> {
        let mut out = self.header.clone();
        if out.len() < HEADER_BYTES {
            return out;
        }
        let header_checksum = crc32fast::hash(&out[..HEADER_COVERED_BYTES]);
        out[HEADER_COVERED_BYTES..HEADER_COVERED_BYTES + 4].copy_from_slice(&header_checksum.to_le_bytes());
        let (mut number, mut previous_crc) = match file {
            FileId::Segment(_) => (u64_at(&out, 40).wrapping_sub(1), u32_at(&out, 56)),
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => (0, header_checksum),
        };
        for forged in &self.frames {
            number = number.wrapping_add(1);
            let mut frame = vec![0; 8];
            frame.extend_from_slice(&number.to_le_bytes());
            frame.extend_from_slice(&previous_crc.to_le_bytes());
            frame.extend_from_slice(&forged.synced.0.min(number.saturating_sub(1)).to_le_bytes());
            frame.extend_from_slice(&[forged.kind, forged.version]);
            frame.extend_from_slice(&forged.payload);
            fix_checksum(&mut frame, log_id, file);
            previous_crc = u32_at(&frame, 4);
            out.extend_from_slice(&frame);
        }
        out
    }
}

fn u64_at(bytes: &[u8], start: usize) -> u64 {
    u64::from_le_bytes(bytes[start..start + 8].try_into().unwrap_or_default())
}

fn u32_at(bytes: &[u8], start: usize) -> u32 {
    u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap_or_default())
}
