//! Files of an earlier process are read from the medium, not from the page cache.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use driftq_core::log::{FileId, Storage, WriteAt};
use driftq_files::{DataFolder, ReadPath};

use crate::mounts::Mount;

const FILE: FileId = FileId::Segment(1);
const BYTES: usize = 256 << 10;

/// Simulates the state after a failed sync: clean pages in the cache that differ from the disk. The disk is changed
/// under the cache.
#[test]
fn old_file_is_read_from_medium_not_from_cache() {
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
    let place = image.windows(64).position(|window| window == &mark[..64]).expect("the disk image contains the data");
    let below = OpenOptions::new().write(true).open(disk.image()).unwrap();
    below.write_all_at(b"contents only on the disk.", place as u64).unwrap();
    below.sync_all().unwrap();
    let mut cached_bytes = [0; 26];
    File::open(disk.path.join(FILE.to_string())).unwrap().read_exact_at(&mut cached_bytes, 0).unwrap();
    assert_eq!(cached_bytes, mark[..26], "the page cache still holds the old contents");

    let folder = DataFolder::open(&disk.path).unwrap();
    let read = |path| {
        let mut bytes = [0; 26];
        assert_eq!(folder.storage().with_read_path(path).read(FILE, 0, &mut bytes), Ok(26));
        bytes
    };
    assert_eq!(
        read(ReadPath::Cache),
        mark[..26],
        "a read through the cache returns the old contents, so this test can fail"
    );
    let mut by_default = [0; 26];
    assert_eq!(folder.storage().read(FILE, 0, &mut by_default), Ok(26));
    assert_eq!(&by_default, b"contents only on the disk.", "the default reads from the medium");
    assert_eq!(&read(ReadPath::Medium), b"contents only on the disk.");
    assert_eq!(&read(ReadPath::EvictedCache), b"contents only on the disk.");
}

#[test]
fn file_without_direct_io_is_read_through_cache() {
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
