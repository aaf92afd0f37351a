//! The contract of the storage trait on real files; `core/tests/it/log/storage.rs` has the same tests for memory.

use std::path::Path;
use std::time::{Duration, Instant};

use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt, read_whole};
use driftq_core::types::FrameNumber;
use driftq_files::{DataFolder, FileStorage, Prepare, VolatileStorage, fresh_log_id};

use crate::mounts::Mount;

const FILE: FileId = FileId::Segment(1);
const OTHER: FileId = FileId::Segment(2);
const DRAFT: FileId = FileId::SnapshotDraft(FrameNumber(1));
const FINISHED: FileId = FileId::Snapshot(FrameNumber(1));

fn at(position: u64) -> WriteAt {
    WriteAt { epoch: 1, position }
}

fn content(storage: &mut FileStorage, file: FileId) -> Vec<u8> {
    let mut bytes = vec![9; 9];
    read_whole(storage, file, &mut bytes).unwrap();
    bytes
}

fn open(path: &Path) -> FileStorage {
    DataFolder::open(path).unwrap().storage()
}

fn with_storage(test: impl Fn(&Path, FileStorage)) {
    for prepare in [Prepare::Zeros, Prepare::ZerosThenReserve(4), Prepare::Reserve] {
        let folder = tempfile::tempdir().unwrap();
        test(folder.path(), open(folder.path()).with_prepare(prepare));
    }
}

#[test]
fn append_writes_at_end_of_data_or_not_at_all() {
    with_storage(|_, mut storage| {
        assert_eq!(storage.append(FILE, at(0), b"x"), Err(StorageFault::NotFound));
        storage.create(FILE, 8).unwrap();
        assert_eq!(storage.create(FILE, 8), Err(StorageFault::Exists));
        storage.append(FILE, at(0), b"abc").unwrap();
        for wrong in [0, 2, 8] {
            let misplaced = StorageFault::Misplaced { expected: 3, actual: wrong };
            assert_eq!(storage.append(FILE, at(wrong), b"x"), Err(misplaced));
        }
        assert_eq!(content(&mut storage, FILE), b"abc\0\0\0\0\0");
        assert_eq!(storage.list().unwrap(), [FileInfo { file: FILE, len: 8 }]);
    });
}

#[test]
fn append_beyond_capacity_is_refused_and_file_without_one_grows() {
    with_storage(|_, mut storage| {
        storage.create(FILE, 8).unwrap();
        storage.append(FILE, at(0), &[1; 8]).unwrap();
        assert_eq!(storage.append(FILE, at(8), &[1]), Err(StorageFault::Full));
        assert_eq!(content(&mut storage, FILE), [1; 8]);
        storage.create(DRAFT, 0).unwrap();
        assert_eq!(content(&mut storage, DRAFT), b"");
        storage.append(DRAFT, at(0), b"abc").unwrap();
        storage.append(DRAFT, at(3), b"de").unwrap();
        assert_eq!(content(&mut storage, DRAFT), b"abcde");
    });
}

#[test]
fn reopened_file_reads_written_data_then_zeros() {
    with_storage(|path, mut storage| {
        let data: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        storage.create(FILE, 300_000).unwrap();
        storage.append(FILE, at(0), &data).unwrap();
        storage.sync(FILE).unwrap();
        storage.create(DRAFT, 0).unwrap();
        storage.append(DRAFT, at(0), &data).unwrap();
        storage.sync_folder().unwrap();
        drop(storage);
        let mut storage = open(path);
        let bytes = content(&mut storage, FILE);
        assert_eq!((bytes.len(), &bytes[..data.len()]), (300_000, &data[..]));
        assert!(bytes[data.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(content(&mut storage, DRAFT), data, "data written but never synced survives a kill");
        // Reads of any range in any order, independent of block boundaries.
        for (position, len) in [(0, 1), (4095, 2), (99_000, 2_000), (12_345, 54_321), (7, 4096), (4096, 4096)] {
            let mut range = vec![7; len];
            let got = storage.read(DRAFT, position, &mut range).unwrap();
            let expected = &data[position as usize..data.len().min(position as usize + len)];
            assert_eq!(&range[..got], expected);
        }
        assert_eq!(storage.read(DRAFT, 100_000, &mut [0; 10]), Ok(0));
        assert_eq!(storage.read(DRAFT, 1 << 40, &mut [0; 10]), Ok(0));
        assert_eq!(
            storage.append(FILE, at(100_000), b"x"),
            Err(StorageFault::NotFound),
            "the file was created by another process"
        );
        storage.sync(FILE).unwrap();
    });
}

#[test]
fn rename_never_replaces_and_keeps_open_file() {
    with_storage(|_, mut storage| {
        assert_eq!(storage.rename(DRAFT, FINISHED), Err(StorageFault::NotFound));
        storage.create(DRAFT, 0).unwrap();
        storage.append(DRAFT, at(0), b"new").unwrap();
        storage.create(FILE, 4).unwrap();
        assert_eq!(storage.rename(DRAFT, FILE), Err(StorageFault::Exists));
        assert_eq!(content(&mut storage, FILE), [0; 4]);
        storage.rename(DRAFT, FINISHED).unwrap();
        assert_eq!(storage.read(DRAFT, 0, &mut [0]), Err(StorageFault::NotFound));
        storage.append(FINISHED, at(3), b"er").unwrap();
        storage.sync(FINISHED).unwrap();
        assert_eq!(content(&mut storage, FINISHED), b"newer");
    });
}

#[test]
fn removed_file_is_gone_and_its_name_is_free() {
    with_storage(|path, mut storage| {
        assert_eq!(storage.remove(FILE), Err(StorageFault::NotFound));
        storage.create(FILE, 8).unwrap();
        storage.append(FILE, at(0), b"abc").unwrap();
        drop(storage);
        let mut storage = open(path);
        assert_eq!(content(&mut storage, FILE), b"abc\0\0\0\0\0");
        storage.remove(FILE).unwrap();
        storage.sync_folder().unwrap();
        assert_eq!(storage.read(FILE, 0, &mut [0]), Err(StorageFault::NotFound));
        assert_eq!(storage.sync(FILE), Err(StorageFault::NotFound));
        assert_eq!(storage.append(FILE, at(0), b"x"), Err(StorageFault::NotFound));
        storage.create(FILE, 4).unwrap();
        assert_eq!(content(&mut storage, FILE), [0; 4]);
    });
}

#[test]
fn list_is_ordered_and_contains_log_files_only() {
    with_storage(|path, mut storage| {
        for file in [FINISHED, DRAFT, OTHER, FileId::Segment(10), FILE] {
            storage.create(file, 0).unwrap();
        }
        storage.append(OTHER, at(0), b"12345").unwrap();
        std::fs::create_dir(path.join("quarantine-x")).unwrap();
        std::fs::write(path.join("notes.txt"), "mine").unwrap();
        std::fs::write(path.join("wal-1.seg"), "not ours").unwrap();
        let expected = [(FILE, 0), (OTHER, 5), (FileId::Segment(10), 0), (FINISHED, 0), (DRAFT, 0)];
        let listed: Vec<_> = storage.list().unwrap().iter().map(|info| (info.file, info.len)).collect();
        assert_eq!(listed, expected);
        std::fs::create_dir(path.join("wal-00000000000000000009.seg")).unwrap();
        let refused = storage.list().unwrap_err().to_string();
        assert_eq!(refused, "wal-00000000000000000009.seg is a folder, not a file; move it away");
    });
}

#[test]
fn trimmed_file_is_shorter_and_takes_appends_up_to_its_new_end() {
    with_storage(|path, mut storage| {
        storage.create(FILE, 8_192).unwrap();
        storage.append(FILE, at(0), b"abc").unwrap();
        storage.trim(FILE, 5).unwrap();
        storage.trim(FILE, 4_096).unwrap();
        assert_eq!(std::fs::metadata(path.join(FILE.to_string())).unwrap().len(), 5);
        assert_eq!(storage.append(FILE, at(3), b"def"), Err(StorageFault::Full));
        storage.append(FILE, at(3), b"de").unwrap();
        assert_eq!(storage.trim(OTHER, 1), Err(StorageFault::NotFound));
    });
}

#[test]
fn handle_appends_to_file_created_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut background = open(folder.path());
    let mut log = background.clone();
    background.create(FILE, 8).unwrap();
    log.append(FILE, at(0), b"abc").unwrap();
    log.sync(FILE).unwrap();
    assert_eq!(background.append(FILE, at(0), b"x"), Err(StorageFault::Misplaced { expected: 3, actual: 0 }));
    assert_eq!(content(&mut background, FILE), b"abc\0\0\0\0\0");
    background.remove(FILE).unwrap();
    assert_eq!(log.append(FILE, at(3), b"x"), Err(StorageFault::NotFound));
}

#[test]
fn full_tmpfs_leaves_no_partial_file_and_keeps_reserved_space() {
    let Some(disk) = Mount::tmpfs("1m") else { return };
    let mut storage = open(&disk.path);
    assert_eq!(storage.create(FILE, 4 << 20), Err(StorageFault::Full));
    assert_eq!(storage.list().unwrap(), []);
    storage.create(FILE, 256 << 10).unwrap();
    storage.create(DRAFT, 0).unwrap();
    let mut written = 0;
    let chunk = vec![1; 100_000];
    while storage.append(DRAFT, at(written), &chunk) == Ok(()) {
        written += chunk.len() as u64;
        assert!(written < 1 << 20, "the disk is never full");
    }
    assert_eq!(storage.append(DRAFT, at(written), &chunk), Err(StorageFault::Full));
    assert_eq!(content(&mut storage, DRAFT).len() as u64, written, "the append that did not fit left nothing");
    storage.append(FILE, at(0), &vec![2; 256 << 10]).unwrap();
    storage.sync(FILE).unwrap();
    storage.remove(DRAFT).unwrap();
    storage.create(OTHER, 256 << 10).unwrap();
}

#[test]
fn full_ext4_leaves_no_partial_file_and_keeps_reserved_space() {
    let Some(disk) = Mount::ext4(16) else { return };
    let mut storage = open(&disk.path);
    assert_eq!(storage.create(FILE, 64 << 20), Err(StorageFault::Full));
    assert_eq!(storage.list().unwrap(), []);
    let mut sequence = 1;
    while storage.create(FileId::Segment(sequence), 1 << 20) == Ok(()) {
        sequence += 1;
        assert!(sequence < 32, "the disk is never full");
    }
    assert_eq!(storage.list().unwrap().len() as u64, sequence - 1);
    storage.append(FILE, at(0), &vec![3; 1 << 20]).unwrap();
    storage.sync(FILE).unwrap();
    storage.remove(FILE).unwrap();
    storage.create(FILE, 512 << 10).unwrap();
}

#[test]
fn sync_delay_delays_sync() {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = open(folder.path()).with_sync_delay(Duration::from_millis(50));
    storage.create(FILE, 0).unwrap();
    storage.append(FILE, at(0), b"x").unwrap();
    let begun = Instant::now();
    storage.clone().sync(FILE).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[test]
fn volatile_storage_keeps_segments_until_they_are_removed() {
    let mut storage = VolatileStorage::default();
    assert_eq!(storage.append(FILE, at(0), b"x"), Err(StorageFault::NotFound));
    storage.create(FILE, 8).unwrap();
    storage.append(FILE, at(0), b"abc").unwrap();
    assert_eq!(storage.append(FILE, at(2), b"x"), Err(StorageFault::Misplaced { expected: 3, actual: 2 }));
    storage.append(FILE, at(3), b"defgh").unwrap();
    storage.append(FILE, at(8), b"ij").unwrap();
    storage.sync(FILE).unwrap();
    for (position, len, expected) in
        [(0, 10, "abcdefghij"), (1, 5, "bcdef"), (3, 5, "defgh"), (8, 9, "ij"), (10, 1, "")]
    {
        let mut buffer = vec![0; len];
        let read = storage.read(FILE, position, &mut buffer).unwrap();
        assert_eq!(&buffer[..read], expected.as_bytes(), "{len} bytes from byte {position} on");
    }
    storage.create(DRAFT, 0).unwrap();
    storage.append(DRAFT, at(0), b"snapshot").unwrap();
    storage.rename(DRAFT, FINISHED).unwrap();
    assert_eq!(storage.bytes(), 10, "nothing is kept of a snapshot");
    storage.remove(FILE).unwrap();
    storage.sync_folder().unwrap();
    assert_eq!(storage.read(FILE, 0, &mut [0]), Err(StorageFault::NotFound));
    assert_eq!((storage.bytes(), storage.list().unwrap()), (0, Vec::new()));
}

#[test]
fn reads_by_position_share_few_descriptors_and_close_those_of_removed_files() {
    with_storage(|path, mut storage| {
        for sequence in 1..=20 {
            let segment = FileId::Segment(sequence);
            storage.create(segment, 8).unwrap();
            storage.append(segment, at(0), b"header").unwrap();
        }
        let before = open_files(path);
        let mut readers = [storage.clone().with_reads_by_position(), storage.clone().with_reads_by_position()];
        let mut buffer = [0; 4];
        for sequence in 1..=20 {
            for reader in &mut readers {
                assert_eq!(reader.read(FileId::Segment(sequence), 2, &mut buffer), Ok(4));
                assert_eq!(&buffer, b"ader");
            }
        }
        assert_eq!(readers[0].read(FileId::Segment(20), 7, &mut buffer), Ok(1), "to the end of the file");
        assert_eq!(open_files(path) - before, 8);
        storage.append(FileId::Segment(20), at(6), b"x").unwrap();
        assert_eq!(readers[1].read(FileId::Segment(20), 6, &mut buffer), Ok(2), "what was appended since");
        assert_eq!(&buffer[..2], b"x\0");
        storage.remove(FileId::Segment(20)).unwrap();
        assert_eq!(readers[0].read(FileId::Segment(20), 0, &mut buffer), Err(StorageFault::NotFound));
        storage.remove(FileId::Segment(19)).unwrap();
        assert_eq!(open_files(path), before + 6 - 1, "the last segment was still open for appends");
    });
}

#[test]
fn fresh_log_ids_differ() {
    assert_ne!(fresh_log_id().unwrap(), fresh_log_id().unwrap());
}

/// The descriptors that this process has on files of a folder.
fn open_files(folder: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(folder) && target.extension().is_some()).count()
}

#[test]
fn finished_segments_are_closed_and_stay_readable() {
    with_storage(|path, mut storage| {
        for sequence in 1..=20 {
            let segment = FileId::Segment(sequence);
            storage.create(segment, 8).unwrap();
            storage.append(segment, at(0), b"header").unwrap();
            storage.append(segment, at(6), b"x").unwrap();
            storage.sync(segment).unwrap();
        }
        storage.sync_folder().unwrap();
        assert_eq!(content(&mut storage, FILE), b"headerx\0");
        let open = open_files(path);
        assert!(open <= 2, "{open} files are open: the current segment, and the one that is read");
    });
}
