//! What the system remembers of a file is not what is read.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use driftq_core::log::{FileId, Storage, WriteAt};
use driftq_files::{DataFolder, ReadPath};

use crate::mounts::Mount;

const FILE: FileId = FileId::Segment(1);
const BYTES: usize = 256 << 10;

/// The state that a failed sync leaves: pages in memory that count as clean and differ from the disk. Here the disk is changed
/// under them.
#[test]
fn an_old_file_is_read_from_the_medium_and_not_from_memory() {
    let Some(disk) = Mount::ext4(32) else { return };
    let mark: Vec<u8> = (0..BYTES).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    {
        let mut storage = DataFolder::open(&disk.path).unwrap().storage();
        storage.create(FILE, BYTES as u64).unwrap();
        storage.append(FILE, WriteAt { epoch: 1, position: 0 }, &mark).unwrap();
        storage.sync(FILE).unwrap();
        storage.sync_folder().unwrap();
    }
    let cached = fs::read(disk.path.join(FILE.to_string())).unwrap();
    assert_eq!(cached, mark);

    let image = fs::read(disk.image()).unwrap();
    let place = image.windows(64).position(|window| window == &mark[..64]).expect("the data is on the disk");
    let below = OpenOptions::new().write(true).open(disk.image()).unwrap();
    below.write_all_at(b"what the disk really holds", place as u64).unwrap();
    below.sync_all().unwrap();
    let mut remembered = [0; 26];
    File::open(disk.path.join(FILE.to_string())).unwrap().read_exact_at(&mut remembered, 0).unwrap();
    assert_eq!(remembered, mark[..26], "the system's memory shows what it held before");

    let folder = DataFolder::open(&disk.path).unwrap();
    let read = |path| {
        let mut bytes = [0; 26];
        assert_eq!(folder.storage().reading(path).read(FILE, 0, &mut bytes), Ok(26));
        bytes
    };
    assert_eq!(read(ReadPath::Cache), mark[..26], "the canary: so it would be read by the cache");
    let mut unasked = [0; 26];
    assert_eq!(folder.storage().read(FILE, 0, &mut unasked), Ok(26));
    assert_eq!(&unasked, b"what the disk really holds", "so it is unless told otherwise");
    assert_eq!(&read(ReadPath::Medium), b"what the disk really holds");
    assert_eq!(&read(ReadPath::Forgotten), b"what the disk really holds");
}

#[test]
fn where_there_is_no_direct_way_files_are_read_all_the_same() {
    let Some(disk) = Mount::tmpfs("4m") else { return };
    {
        let mut storage = DataFolder::open(&disk.path).unwrap().storage();
        storage.create(FILE, 0).unwrap();
        storage.append(FILE, WriteAt { epoch: 1, position: 0 }, b"hello").unwrap();
    }
    let mut bytes = [0; 9];
    assert_eq!(DataFolder::open(&disk.path).unwrap().storage().read(FILE, 1, &mut bytes), Ok(4));
    assert_eq!(&bytes[..4], b"ello");
}
