//! Segments, snapshots and whole folders of arbitrary files, through recovery.

use arbitrary::Unstructured;
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::log::{
    FileId, HEADER_BYTES, MemoryStorage, RecoveryError, SegmentHeader, SnapshotHead, SnapshotWriter,
};
use driftq_core::types::{Boot, Lsn};

use crate::golden::Golden;
use crate::opened::Opened;
use crate::script::{Forgery, below, damage, some};

/// The golden log's only snapshot.
const SNAPSHOT: FileId = FileId::Snapshot(Lsn(101));

/// A segment of arbitrary bytes, or a good one with something done to it, among the others of its log.
///
/// Recovery never panics; what it accepts is sound, recovers again to the same, and a broker starts on it. Where bytes were only damaged, the
/// state must be one that was, with everything in it that is proven synced.
pub fn segment(data: &[u8]) {
    segment_with(data, &NoFaults);
}

/// As [`segment`], with a bug planted in recovery.
///
/// # Panics
/// If something is wrong.
pub fn segment_with(data: &[u8], faults: &impl Faults) {
    let mut input = Unstructured::new(data);
    let golden = Golden::log();
    let mut storage = MemoryStorage::new();
    let segments: Vec<_> = golden.files.iter().filter(|(file, _)| matches!(file, FileId::Segment(_))).collect();
    let (hit, way) = (below(&mut input, segments.len()), below(&mut input, 4));
    for (index, (file, bytes)) in segments.iter().enumerate() {
        if index != hit {
            // Behind a forged segment no good one follows, since it would name another checksum.
            if way != 1 || index < hit {
                storage.put_file(*file, bytes.clone());
            }
            continue;
        }
        storage.put_file(*file, changed(&mut input, *file, bytes, way));
    }
    judge(&mut storage, way >= 2 && !data.len().is_multiple_of(8), way >= 2, faults);
}

/// A snapshot of arbitrary bytes, or a good one with something done to it, in front of its log.
///
/// A damaged one is passed over and the state is as it was; a forged one is refused or makes a sound state; and the state is the same when
/// it is written down as a snapshot again and read from there.
pub fn snapshot(data: &[u8]) {
    snapshot_with(data, &NoFaults);
}

/// As [`snapshot`], with a bug planted in recovery.
///
/// # Panics
/// If something is wrong.
pub fn snapshot_with(data: &[u8], faults: &impl Faults) {
    let mut input = Unstructured::new(data);
    let golden = Golden::log();
    let way = below(&mut input, 4);
    let mut storage = MemoryStorage::new();
    for (file, bytes) in &golden.files {
        let bytes = if *file == SNAPSHOT { changed(&mut input, *file, bytes, way) } else { bytes.clone() };
        storage.put_file(*file, bytes);
    }
    judge(&mut storage, way >= 2 && !data.len().is_multiple_of(8), way >= 2, faults);
}

/// A folder of files with names and contents from the input: some arbitrary, some of the golden log, some of that with something done
/// to them.
///
/// Opening never panics, and recovering twice gives the same. Where bytes were only damaged, moved or taken away, the state must be one
/// that was, with everything in it that is proven synced.
pub fn recovery(data: &[u8]) {
    recovery_with(data, &NoFaults);
}

/// As [`recovery`], with a bug planted in recovery.
///
/// # Panics
/// If something is wrong.
pub fn recovery_with(data: &[u8], faults: &impl Faults) {
    let mut input = Unstructured::new(data);
    let (mut storage, genuine) = folder(&mut input);
    judge(&mut storage, genuine && !data.len().is_multiple_of(8), genuine, faults);
}

/// A folder by the input, and whether nothing in it was forged.
pub(crate) fn folder(input: &mut Unstructured<'_>) -> (MemoryStorage, bool) {
    let golden = Golden::log();
    let mut storage = MemoryStorage::new();
    let mut genuine = true;
    if input.arbitrary().unwrap_or(false) {
        golden.files.iter().for_each(|(file, bytes)| storage.put_file(*file, bytes.clone()));
    }
    for _ in 0..below(input, 6) {
        let (file, bytes) = &golden.files[below(input, golden.files.len())];
        match below(input, 6) {
            0 => drop(storage.take_file(*file)),
            1 => {
                let other = name(input);
                storage.put_file(other, bytes.clone());
            }
            2 => {
                let other = name(input);
                let way = below(input, 2);
                storage.put_file(other, changed(input, other, bytes, way));
                genuine = false;
            }
            _ => {
                let way = 2 + below(input, 2);
                let changed = changed(input, *file, bytes, way);
                storage.put_file(*file, changed);
            }
        }
    }
    (storage, genuine)
}

/// The name of a file of the log.
fn name(input: &mut Unstructured<'_>) -> FileId {
    let number = match below(input, 4) {
        0 => input.arbitrary().unwrap_or(0),
        _ => below(input, 120) as u64,
    };
    match below(input, 4) {
        0 => FileId::Snapshot(Lsn(number)),
        1 => FileId::SnapshotDraft(Lsn(number)),
        _ => FileId::Segment(if number < 120 { number % 10 } else { number }),
    }
}

/// A file's bytes with something done to them: 0 replaces them, 1 forges them, 2 and 3 damage them.
fn changed(input: &mut Unstructured<'_>, file: FileId, bytes: &[u8], way: usize) -> Vec<u8> {
    let golden = Golden::log();
    match way {
        0 => {
            let mut out = if input.arbitrary().unwrap_or(true) { header(input, file) } else { Vec::new() };
            out.extend_from_slice(some(input, usize::MAX - 1));
            out
        }
        1 => {
            let mut forgery = Forgery::of(bytes);
            forgery.change(input);
            forgery.sealed(golden.log_id, file)
        }
        _ => {
            let mut bytes = bytes.to_vec();
            // Most of a header is zeros that nobody looks at; most damage is to go elsewhere.
            let from = if way == 2 { 0 } else { HEADER_BYTES };
            let mut tail = bytes.split_off(from);
            damage(input, &mut tail);
            bytes.append(&mut tail);
            bytes
        }
    }
}

/// A good header for a file of this name.
fn header(input: &mut Unstructured<'_>, file: FileId) -> Vec<u8> {
    let log_id = Golden::log().log_id;
    match file {
        FileId::Segment(sequence) => {
            let previous = below(input, 120) as u64;
            let (previous_lsn, synced) = (Lsn(previous), Lsn(below(input, previous as usize + 1) as u64));
            let previous_crc = input.arbitrary().unwrap_or(0);
            SegmentHeader { log_id, sequence, previous_lsn, previous_crc, synced }.encode()
        }
        FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => {
            let mut out = Vec::new();
            let head = SnapshotHead { log_id, lsn, crc: input.arbitrary().unwrap_or(0), epoch: 1 };
            drop(SnapshotWriter::begin(&head, &mut out));
            out
        }
    }
}

/// Opens the folder and checks what must hold; of a genuine one, that it tells the truth. A state that was is not gone on with where it
/// is to be `brief`: that was tried before, and takes most of the time.
fn judge(storage: &mut MemoryStorage, brief: bool, genuine: bool, faults: &impl Faults) {
    let proven = Golden::log().proven(storage);
    let opened = match Opened::from(storage, faults) {
        Ok(opened) => opened,
        Err(error @ (RecoveryError::Malformed { .. } | RecoveryError::Contradictory { .. })) if genuine => {
            panic!("only true records are there, and one is not believed: {error}");
        }
        Err(_) => return,
    };
    if genuine {
        let last = opened.recovered.last_lsn;
        let digest = Golden::log().history.get(&last);
        assert_eq!(Some(&opened.state.digest()), digest, "the state after LSN {last} is not what it was");
        assert!(last >= proven, "it ends at LSN {last}, and LSN {proven} is proven synced");
    }
    if brief {
        return;
    }
    if opened.state.boot() > Boot(0) {
        opened.snapshot_again();
    }
    opened.go_on(storage);
}
