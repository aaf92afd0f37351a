//! What recovery makes of the files in the folder, in whatever order they are listed.

use super::support::*;
use driftq_core::log::{
    FileId, FileInfo, HEADER_BYTES, HeaderError, MemoryStorage, Notice, RecoveryError, Storage, StorageFault, WriteAt,
};

/// A folder that is listed backwards.
struct Backwards(MemoryStorage);

impl Storage for Backwards {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        self.0.create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.0.append(file, at, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.0.sync(file)
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        self.0.read(file, position, buffer)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        self.0.list().map(|mut files| {
            files.reverse();
            files
        })
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.0.rename(from, to)
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.0.remove(file)
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        self.0.trim(file, len)
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.0.sync_folder()
    }
}

#[test]
fn order_in_which_files_are_listed_does_not_matter() {
    let mut sample = SampleLog::new();
    for number in [sample.a, sample.b] {
        sample.storage.put_file(FileId::SnapshotDraft(number), vec![1; 10]);
    }
    let forwards = recovered(&mut sample.storage).unwrap();
    let backwards = recovered(&mut Backwards(sample.storage.clone())).unwrap();
    assert_eq!(forwards.1, backwards.1);
    assert_eq!(format!("{:?}", forwards.0), format!("{:?}", backwards.0));
}

#[test]
fn damaged_header_before_the_snapshot_is_reported_and_harmless() {
    let mut sample = SampleLog::new();
    let damaged = FileId::Segment(2);
    sample.storage.bytes_mut(damaged).unwrap().flip(100);
    let (found, records) = recovered(&mut sample.storage).unwrap();
    assert_eq!(records, sample.records);
    let named = found.notices.iter().filter_map(|notice| match notice {
        Notice::UnneededDamage { file, error } => Some((*file, *error)),
        _ => None,
    });
    assert_eq!(named.collect::<Vec<_>>(), [(damaged, HeaderError::BadChecksum)]);
}

#[test]
fn damaged_first_header_is_reported_with_what_is_wrong_with_it() {
    let mut writer = LogWriter::new();
    writer.record(b"first");
    writer.rotate();
    writer.record(b"second");
    writer.sync();
    let mut storage = writer.storage.crash();
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip(100);
    let error = recovered(&mut storage).unwrap_err();
    let RecoveryError::DamagedHeader { file, error, .. } = error else { panic!("{error:?}") };
    assert_eq!((file, error), (FileId::Segment(1), HeaderError::BadChecksum));
}

#[test]
fn folder_without_segments_is_refused_with_its_newest_snapshot_as_witness() {
    let mut sample = SampleLog::new();
    let (a, b) = (sample.a, sample.b);
    for sequence in 1..=5 {
        sample.storage.take_file(FileId::Segment(sequence)).unwrap();
    }
    let witness = |storage: &mut MemoryStorage| match recovered(storage) {
        Err(RecoveryError::NoSegments { witness }) => witness,
        other => panic!("{other:?}"),
    };
    assert_eq!(witness(&mut sample.storage), FileId::Snapshot(b));
    for number in [a, b] {
        sample.storage.take_file(FileId::Snapshot(number)).unwrap();
        sample.storage.put_file(FileId::SnapshotDraft(number), vec![1; 10]);
    }
    assert_eq!(witness(&mut sample.storage), FileId::SnapshotDraft(b));
}

#[test]
fn rest_of_a_header_is_zeros() {
    let writer = LogWriter::new();
    let bytes = writer.header.encode();
    assert_eq!(bytes.len(), HEADER_BYTES);
    let written = bytes.iter().filter(|byte| **byte != 0).count();
    assert!((20..200).contains(&written), "{written} bytes of the fields are not 0");
}
