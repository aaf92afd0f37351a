//! `MemoryStorage` keeps the contract of `Storage`, and a crash drops what the contract does not cover.

use driftq_core::log::{
    CrashPlan, FileId, FolderChange, IoOp, MemoryStorage, SectorFate, Storage, StorageFault, WriteAt, read_whole,
};
use driftq_core::types::FrameNumber;

const FILE: FileId = FileId::Segment(1);
const OTHER: FileId = FileId::Segment(2);

fn at(position: u64) -> WriteAt {
    WriteAt { epoch: 1, position }
}

fn content(storage: &mut MemoryStorage, file: FileId) -> Vec<u8> {
    let mut bytes = vec![9; 9];
    read_whole(storage, file, &mut bytes).unwrap();
    bytes
}

#[test]
fn append_writes_at_end_of_data_or_not_at_all() {
    let mut storage = MemoryStorage::new();
    assert_eq!(storage.append(FILE, at(0), b"x"), Err(StorageFault::NotFound));
    storage.create(FILE, 8).unwrap();
    assert_eq!(storage.create(FILE, 8), Err(StorageFault::Exists));
    storage.append(FILE, at(0), b"abc").unwrap();
    let misplaced = StorageFault::Misplaced { expected: 3, actual: 8 };
    assert_eq!(storage.append(FILE, at(8), b"x"), Err(misplaced));
    assert_eq!(content(&mut storage, FILE), b"abc\0\0\0\0\0");
    assert_eq!(storage.list().unwrap()[0].len, 8);
}

#[test]
fn reserved_space_remains_on_full_disk() {
    let mut storage = MemoryStorage::new();
    storage.set_budget(Some(100));
    assert_eq!(storage.create(FILE, 101), Err(StorageFault::Full));
    storage.create(FILE, 90).unwrap();
    storage.create(OTHER, 0).unwrap();
    storage.append(OTHER, at(0), &[1; 10]).unwrap();
    assert_eq!(storage.append(OTHER, at(10), &[1]), Err(StorageFault::Full));
    storage.append(FILE, at(0), &[1; 90]).unwrap();
    assert_eq!(storage.append(FILE, at(90), &[1]), Err(StorageFault::Full));
    storage.remove(OTHER).unwrap();
    storage.append(FILE, at(90), &[1; 10]).unwrap();
}

#[test]
fn crash_keeps_only_synced_data() {
    let mut storage = MemoryStorage::new();
    storage.create(FILE, 0).unwrap();
    storage.append(FILE, at(0), b"abc").unwrap();
    storage.sync(FILE).unwrap();
    assert!(storage.crash().list().unwrap().is_empty(), "the folder was not synced");
    storage.sync_folder().unwrap();
    storage.append(FILE, at(3), b"def").unwrap();
    storage.create(OTHER, 0).unwrap();
    let mut after = storage.crash();
    assert_eq!(content(&mut after, FILE), b"abc");
    assert_eq!(after.bytes(OTHER), None);

    storage.fail_syncs(1);
    assert!(matches!(storage.sync(FILE), Err(StorageFault::Io(_))));
    assert_eq!(content(&mut storage.crash(), FILE), b"abc");
    storage.sync(FILE).unwrap();
    assert_eq!(content(&mut storage.crash(), FILE), b"abcdef");
}

#[test]
fn removals_and_renames_revert_until_folder_sync() {
    let (draft, snapshot) = (FileId::SnapshotDraft(FrameNumber(1)), FileId::Snapshot(FrameNumber(1)));
    let mut storage = MemoryStorage::new();
    storage.put_file(draft, b"new".to_vec());
    storage.put_file(FILE, b"old".to_vec());
    assert_eq!(storage.rename(draft, FILE), Err(StorageFault::Exists));
    storage.rename(draft, snapshot).unwrap();
    storage.remove(FILE).unwrap();
    assert_eq!(storage.read(FILE, 0, &mut [0]), Err(StorageFault::NotFound));
    let mut before = storage.crash();
    assert_eq!((content(&mut before, draft), content(&mut before, FILE)), (b"new".to_vec(), b"old".to_vec()));
    storage.sync_folder().unwrap();
    let mut after = storage.crash();
    assert_eq!(after.list().unwrap().len(), 1);
    assert_eq!(content(&mut after, snapshot), b"new");
}

#[test]
fn crash_plan_decides_per_sector_and_folder_change() {
    struct Plan;
    impl CrashPlan for Plan {
        fn keep_change(&mut self, change: FolderChange) -> bool {
            change == FolderChange::Created(FILE)
        }
        fn sector(&mut self, _file: FileId, sector: u64) -> SectorFate {
            [SectorFate::Kept, SectorFate::Lost, SectorFate::Garbage(1)][sector as usize]
        }
    }
    let mut storage = MemoryStorage::new();
    storage.create(FILE, 0).unwrap();
    storage.create(OTHER, 0).unwrap();
    storage.append(FILE, at(0), &[6; 600]).unwrap();
    storage.sync(FILE).unwrap();
    storage.append(FILE, at(600), &[6; 936]).unwrap();
    let mut after = storage.crash_with(&mut Plan);
    assert_eq!(after.bytes(OTHER), None);
    let bytes = content(&mut after, FILE);
    assert_eq!(bytes[..600], [6; 600], "synced bytes survive in a lost sector");
    assert_eq!((&bytes[600..1024], &bytes[1024..]), (&[0; 424][..], &[7; 512][..]));
}

#[test]
fn io_op_performs_its_storage_call() {
    let mut storage = MemoryStorage::new();
    let (from, to) = (FileId::SnapshotDraft(FrameNumber(3)), FileId::Snapshot(FrameNumber(3)));
    for op in [
        IoOp::Create { file: from, capacity: 0 },
        IoOp::Append { file: from, at: at(0), bytes: b"abc".to_vec() },
        IoOp::Sync { file: from },
        IoOp::Rename { from, to },
        IoOp::Create { file: FILE, capacity: 0 },
        IoOp::Remove { file: FILE },
        IoOp::SyncFolder,
    ] {
        op.perform(&mut storage).unwrap();
    }
    let mut after = storage.crash();
    assert_eq!(after.list().unwrap().len(), 1);
    assert_eq!(content(&mut after, to), b"abc");
    assert_eq!(IoOp::Sync { file: FILE }.perform(&mut after), Err(StorageFault::NotFound));
}

#[test]
fn unreadable_byte_fails_only_reads_that_touch_it() {
    let mut storage = MemoryStorage::new();
    storage.put_file(FILE, b"abcdef".to_vec());
    storage.set_unreadable(Some((FILE, 3)));
    let mut buffer = [0; 3];
    assert_eq!(storage.read(FILE, 0, &mut buffer), Ok(3));
    assert_eq!(storage.read(FILE, 4, &mut buffer), Ok(2), "a read is short only at the end of the file");
    assert!(matches!(storage.read(FILE, 1, &mut buffer), Err(StorageFault::Io(_))));
}
