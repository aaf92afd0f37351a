//! Log folders built from the input: the golden log with files altered, renamed or removed.

use arbitrary::Unstructured;
use driftq_core::log::{
    FileId, HEADER_BYTES, LogId, LogPosition, MemoryStorage, SegmentHeader, SnapshotHead, SnapshotWriter,
};
use driftq_core::types::{FrameNumber, Lsn};

use crate::damage::damage;
use crate::forgery::Forgery;
use crate::golden::GoldenLog;
use crate::input::{below, choose, take_bytes};

/// The most operations on the files of one folder.
const OPERATIONS_MAX: usize = 5;
/// A limit for numbers of files, above the frame and sequence numbers of the golden log.
const FILE_NUMBER_END: usize = 120;

/// Whether a broker wrote the contents of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Files were only damaged, renamed or removed: a broker wrote every frame that passes its checksum.
    Genuine,
    /// Some contents were replaced, or altered with their checksums corrected.
    Forged,
}

/// A log folder in memory.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) storage: MemoryStorage,
    pub(crate) origin: Origin,
}

impl Folder {
    /// Builds a folder from the input: empty or the golden log, then a few operations on its files.
    pub(crate) fn read(input: &mut Unstructured<'_>) -> Self {
        let golden = GoldenLog::get();
        let mut storage = MemoryStorage::new();
        let mut origin = Origin::Genuine;
        if input.arbitrary().unwrap_or(false) {
            golden.files.iter().for_each(|(file, bytes)| storage.put_file(*file, bytes.clone()));
        }
        for _ in 0..below(input, OPERATIONS_MAX + 1) {
            let (file, bytes) = &golden.files[below(input, golden.files.len())];
            match below(input, 6) {
                0 => drop(storage.take_file(*file)),
                1 => storage.put_file(file_id(input), bytes.clone()),
                2 => {
                    let other = file_id(input);
                    let alteration = choose(input, &Alteration::FORGING);
                    storage.put_file(other, alteration.apply(input, other, bytes));
                    origin = Origin::Forged;
                }
                _ => {
                    let alteration = choose(input, &Alteration::DAMAGING);
                    storage.put_file(*file, alteration.apply(input, *file, bytes));
                }
            }
        }
        Self { storage, origin }
    }
}

/// A way to alter a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// Bytes of the input replace it, after a valid header or without one.
    Replace,
    /// Its frames are altered and its checksums corrected.
    Forge,
    /// Its bytes are damaged.
    Damage,
    /// Its bytes after the header are damaged. Most of a header is padding, where damage has no effect.
    DamageAfterHeader,
}

impl Alteration {
    /// All of them, in the order in which the input numbers them.
    pub(crate) const ALL: [Self; 4] = [Self::Replace, Self::Forge, Self::Damage, Self::DamageAfterHeader];
    const FORGING: [Self; 2] = [Self::Replace, Self::Forge];
    const DAMAGING: [Self; 2] = [Self::Damage, Self::DamageAfterHeader];

    /// The origin of a folder with a file altered this way.
    pub(crate) fn origin(self) -> Origin {
        match self {
            Self::Replace | Self::Forge => Origin::Forged,
            Self::Damage | Self::DamageAfterHeader => Origin::Genuine,
        }
    }

    /// The altered `bytes`, for a file with the name `file`.
    pub(crate) fn apply(self, input: &mut Unstructured<'_>, file: FileId, bytes: &[u8]) -> Vec<u8> {
        let log_id = GoldenLog::get().log_id;
        match self {
            Self::Replace => {
                let has_header = input.arbitrary().unwrap_or(true);
                let mut out = if has_header { valid_header(input, log_id, file) } else { Vec::new() };
                out.extend_from_slice(take_bytes(input, usize::MAX - 1));
                out
            }
            Self::Forge => {
                let mut forgery = Forgery::parse(bytes);
                forgery.alter(input);
                forgery.encode(log_id, file)
            }
            Self::Damage => damaged_from(input, 0, bytes),
            Self::DamageAfterHeader => damaged_from(input, HEADER_BYTES, bytes),
        }
    }
}

fn damaged_from(input: &mut Unstructured<'_>, start: usize, bytes: &[u8]) -> Vec<u8> {
    let (unchanged, rest) = bytes.split_at(start);
    let mut damaged = rest.to_vec();
    damage(input, &mut damaged);
    [unchanged, &damaged].concat()
}

fn file_id(input: &mut Unstructured<'_>) -> FileId {
    let number = match below(input, 4) {
        0 => input.arbitrary().unwrap_or(0),
        _ => below(input, FILE_NUMBER_END) as u64,
    };
    match below(input, 4) {
        0 => FileId::Snapshot(FrameNumber(number)),
        1 => FileId::SnapshotDraft(FrameNumber(number)),
        // Small numbers are reduced to the range of the golden log's segments.
        _ => FileId::Segment(if number < FILE_NUMBER_END as u64 { number % 10 } else { number }),
    }
}

fn valid_header(input: &mut Unstructured<'_>, log_id: LogId, file: FileId) -> Vec<u8> {
    match file {
        FileId::Segment(sequence) => {
            let previous = below(input, FILE_NUMBER_END);
            let synced = FrameNumber(below(input, previous + 1) as u64);
            let previous_crc = input.arbitrary().unwrap_or(0);
            // Any number up to the frame's will do; drawing one would change what the inputs of the corpus mean.
            let previous = LogPosition { frame: FrameNumber(previous as u64), lsn: Lsn(synced.0) };
            SegmentHeader { log_id, sequence, previous, previous_crc, synced, capacity: 0 }.encode()
        }
        FileId::Snapshot(frame) | FileId::SnapshotDraft(frame) => {
            let mut out = Vec::new();
            let crc = input.arbitrary().unwrap_or(0);
            let at = LogPosition { frame, lsn: Lsn(frame.0 / 2) };
            let head = SnapshotHead { log_id, at, crc, epoch: 1 };
            drop(SnapshotWriter::begin(&head, &mut out));
            out
        }
    }
}
