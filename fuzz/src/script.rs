//! What is done to a good log, read from a fuzzer's bytes.
//!
//! There are two kinds. [`damage`] changes bytes and leaves checksums as they are: it stands for what disks do. A [`Forgery`] takes
//! a file apart, changes what its frames say and puts it together with every checksum right: it stands for programs with bugs, and
//! leads behind the checksums. Checksums are computed here from the words of `docs/wal.md`, not by the core.

use arbitrary::Unstructured;
use crc32fast::Hasher;
use driftq_core::log::{FileId, HEADER_BYTES, LogId};
use driftq_core::types::Lsn;

/// Bytes of a frame before its payload.
const HEAD_BYTES: usize = 30;
/// Bytes of a header that its checksum covers.
const COVERED_BYTES: usize = 124;

/// A number below `end`, or 0 where the input is at its end.
pub fn below(input: &mut Unstructured<'_>, end: usize) -> usize {
    if end == 0 { 0 } else { input.int_in_range(0..=end - 1).unwrap_or(0) }
}

/// Some bytes of the input, at most `most`.
pub fn some<'a>(input: &mut Unstructured<'a>, most: usize) -> &'a [u8] {
    let len = below(input, most.min(input.len()) + 1);
    input.bytes(len.min(input.len())).unwrap_or_default()
}

/// Does a few things to bytes: flips, cuts, overwrites, zeroes, copies within, leaves out, puts in.
pub fn damage(input: &mut Unstructured<'_>, bytes: &mut Vec<u8>) {
    for _ in 0..below(input, 5) {
        let at = below(input, bytes.len() + 1);
        let end = (at + 1 + below(input, 64)).min(bytes.len());
        match below(input, 8) {
            0 => bytes.truncate(at),
            1 => bytes[at..end].fill(0),
            2 => {
                let with = some(input, 40);
                let len = with.len().min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&with[..len]);
            }
            3 => {
                let (piece, to) = (bytes[at..end].to_vec(), below(input, bytes.len() + 1));
                bytes.splice(to..to, piece);
            }
            4 => drop(bytes.drain(at..end)),
            5 => drop(bytes.splice(at..at, some(input, 40).iter().copied())),
            _ => {
                let bit = below(input, 8);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
        }
    }
}

/// The checksum of a frame, given all its bytes; by the words of `docs/wal.md`.
fn sum(frame: &[u8], log_id: LogId, file: FileId) -> u32 {
    let (tag, number) = match file {
        FileId::Segment(sequence) => (b'w', sequence),
        FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => (b's', lsn.0),
    };
    let mut hasher = Hasher::new();
    hasher.update(&log_id.0);
    hasher.update(&[tag]);
    hasher.update(&number.to_le_bytes());
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// Makes the first frame in `bytes` as long as they are, and its checksum right. Too few bytes stay as they are.
pub fn fix_checksum(bytes: &mut [u8], log_id: LogId, file: FileId) {
    if bytes.len() >= HEAD_BYTES {
        let len = (bytes.len() - HEAD_BYTES) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        let sum = sum(bytes, log_id, file);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// What a frame says, without what follows from its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The highest LSN it knows to be synced.
    pub synced: Lsn,
    /// Its kind.
    pub kind: u8,
    /// The version of that kind.
    pub version: u8,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A file of the log in pieces.
#[derive(Clone, Debug)]
pub struct Forgery {
    /// The header.
    pub header: Vec<u8>,
    /// The frames, in their order.
    pub frames: Vec<Said>,
}

impl Forgery {
    /// Takes a good file apart.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let (header, mut rest) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
        let mut frames = Vec::new();
        while let Some((head, behind)) = rest.split_at_checked(HEAD_BYTES).filter(|(head, _)| head[28] != 0) {
            let len = head.first_chunk().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
            let Some((payload, behind)) = behind.split_at_checked(len) else { break };
            let synced = Lsn(u64::from_le_bytes(head[20..28].try_into().unwrap_or_default()));
            frames.push(Said { synced, kind: head[28], version: head[29], payload: payload.to_vec() });
            rest = behind;
        }
        Self { header: header.to_vec(), frames }
    }

    /// Changes what it says: leaves frames out, has them twice or in another order, changes kinds, versions, marks and payloads; now
    /// and then a field of the header.
    pub fn change(&mut self, input: &mut Unstructured<'_>) {
        for _ in 0..below(input, 5) {
            let (at, other) = (below(input, self.frames.len()), below(input, self.frames.len()));
            let Some(frame) = self.frames.get_mut(at) else { return };
            match below(input, 10) {
                0 => drop(self.frames.remove(at)),
                1 => {
                    let copy = frame.clone();
                    self.frames.insert(other, copy);
                }
                2 => self.frames.swap(at, other),
                3 => frame.kind = input.arbitrary().unwrap_or(1).max(1),
                4 => frame.version = input.arbitrary().unwrap_or(1),
                5 => frame.synced = Lsn(below(input, 200) as u64),
                6 => self.frames.truncate(at),
                7 => {
                    let field = 32 + 4 * below(input, (COVERED_BYTES - 32) / 4);
                    let with = some(input, 8);
                    let end = (field + with.len()).min(COVERED_BYTES);
                    if let Some(bytes) = self.header.get_mut(field..end) {
                        bytes.copy_from_slice(&with[..end - field]);
                    }
                }
                _ => damage(input, &mut frame.payload),
            }
        }
    }

    /// Puts the file together, every length, number and checksum right for a file of this name and what its header says.
    #[must_use]
    pub fn sealed(&self, log_id: LogId, file: FileId) -> Vec<u8> {
        let mut out = self.header.clone();
        if out.len() < HEADER_BYTES {
            return out;
        }
        let header_sum = crc32fast::hash(&out[..COVERED_BYTES]);
        out[COVERED_BYTES..COVERED_BYTES + 4].copy_from_slice(&header_sum.to_le_bytes());
        let number = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap_or_default());
        let (mut lsn, mut before) = match file {
            FileId::Segment(_) => (number(48), u32::from_le_bytes(out[56..60].try_into().unwrap_or_default())),
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => (0, header_sum),
        };
        for said in &self.frames {
            lsn = lsn.wrapping_add(1);
            let mut frame = vec![0; 8];
            frame.extend_from_slice(&lsn.to_le_bytes());
            frame.extend_from_slice(&before.to_le_bytes());
            frame.extend_from_slice(&said.synced.0.min(lsn.saturating_sub(1)).to_le_bytes());
            frame.extend_from_slice(&[said.kind, said.version]);
            frame.extend_from_slice(&said.payload);
            fix_checksum(&mut frame, log_id, file);
            before = u32::from_le_bytes(frame[4..8].try_into().unwrap_or_default());
            out.extend_from_slice(&frame);
        }
        out
    }
}
