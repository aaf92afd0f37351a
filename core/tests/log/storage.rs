//! The storage in memory keeps the promises of the trait, and takes back what they do not cover.

use driftq_core::log::{
    CrashPlan, FileId, FolderChange, IoOp, MemoryStorage, SectorFate, Storage, StorageFault, WriteAt, read_whole,
};
use driftq_core::types::Lsn;

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
fn an_append_goes_behind_the_written_data_or_nowhere() {
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
fn reserved_room_is_there_when_the_disk_is_full() {
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
fn only_what_was_synced_survives() {
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
fn removals_and_renames_come_back_until_the_folder_is_synced() {
    let (draft, done) = (FileId::SnapshotDraft(Lsn(1)), FileId::Snapshot(Lsn(1)));
    let mut storage = MemoryStorage::new();
    storage.plant(draft, b"new".to_vec());
    storage.plant(FILE, b"old".to_vec());
    assert_eq!(storage.rename(draft, FILE), Err(StorageFault::Exists));
    storage.rename(draft, done).unwrap();
    storage.remove(FILE).unwrap();
    assert_eq!(storage.read(FILE, 0, &mut [0]), Err(StorageFault::NotFound));
    let mut before = storage.crash();
    assert_eq!((content(&mut before, draft), content(&mut before, FILE)), (b"new".to_vec(), b"old".to_vec()));
    storage.sync_folder().unwrap();
    let mut after = storage.crash();
    assert_eq!(after.list().unwrap().len(), 1);
    assert_eq!(content(&mut after, done), b"new");
}

#[test]
fn a_plan_decides_sector_by_sector_and_change_by_change() {
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
    assert_eq!(bytes[..600], [6; 600], "synced bytes stay, also in a sector that is lost");
    assert_eq!((&bytes[600..1024], &bytes[1024..]), (&[0; 424][..], &[7; 512][..]));
}

#[test]
fn a_step_does_what_it_says() {
    let mut storage = MemoryStorage::new();
    let (from, to) = (FileId::SnapshotDraft(Lsn(3)), FileId::Snapshot(Lsn(3)));
    for step in [
        IoOp::Create { file: from, capacity: 0 },
        IoOp::Append { file: from, at: at(0), bytes: b"abc".to_vec() },
        IoOp::Sync { file: from },
        IoOp::Rename { from, to },
        IoOp::Create { file: FILE, capacity: 0 },
        IoOp::Remove { file: FILE },
        IoOp::SyncFolder,
    ] {
        step.perform(&mut storage).unwrap();
    }
    let mut after = storage.crash();
    assert_eq!(after.list().unwrap().len(), 1);
    assert_eq!(content(&mut after, to), b"abc");
    assert_eq!(IoOp::Sync { file: FILE }.perform(&mut after), Err(StorageFault::NotFound));
}

#[test]
fn a_byte_that_cannot_be_read_is_an_error_only_where_it_is_touched() {
    let mut storage = MemoryStorage::new();
    storage.plant(FILE, b"abcdef".to_vec());
    storage.set_unreadable(Some((FILE, 3)));
    let mut buffer = [0; 3];
    assert_eq!(storage.read(FILE, 0, &mut buffer), Ok(3));
    assert_eq!(storage.read(FILE, 4, &mut buffer), Ok(2), "short only at the end");
    assert!(matches!(storage.read(FILE, 1, &mut buffer), Err(StorageFault::Io(_))));
}
