//! The data folder and its lock.

use std::fs;

use driftq_files::{DataFolder, FolderError, LOCK_FILE};

#[test]
fn folder_in_use_is_refused_until_every_handle_is_dropped() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("a/b/data");
    let first = DataFolder::open(&path).unwrap();
    let storage = first.storage();
    drop(first);
    for refused in [DataFolder::open(&path), DataFolder::open_existing(&path)] {
        let error = refused.expect_err("the folder is locked");
        let expected = format!(
            "data folder {0} is in use by another driftqd (lock file {0}/lock, process {1})",
            path.display(),
            std::process::id()
        );
        assert_eq!(error.to_string(), expected);
    }
    drop(storage);
    drop(DataFolder::open_existing(&path).unwrap());
    DataFolder::open(&path).unwrap();
}

#[test]
fn open_existing_creates_nothing() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("data");
    assert!(matches!(DataFolder::open_existing(&path), Err(FolderError::NotFound(_))));
    fs::create_dir(&path).unwrap();
    DataFolder::open_existing(&path).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn read_lock_excludes_writers_not_readers_and_keeps_lock_file() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(DataFolder::open_read_only(&folder.path().join("none")), Err(FolderError::NotFound(_))));
    let writer = DataFolder::open(folder.path()).unwrap();
    assert!(matches!(DataFolder::open_read_only(folder.path()), Err(FolderError::InUse { .. })));
    drop(writer);
    let lock = folder.path().join(LOCK_FILE);
    fs::write(&lock, "12345\n").unwrap();
    let (first, second) =
        (DataFolder::open_read_only(folder.path()).unwrap(), DataFolder::open_read_only(folder.path()).unwrap());
    for refused in [DataFolder::open(folder.path()), DataFolder::open_existing(folder.path())] {
        assert!(matches!(refused, Err(FolderError::InUse { process: Some(process), .. }) if process == "12345"));
    }
    drop((first, second));
    assert_eq!(fs::read_to_string(&lock).unwrap(), "12345\n");
    DataFolder::open(folder.path()).unwrap();
}

#[test]
fn path_that_is_no_folder_is_refused() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("data");
    fs::write(&path, "text").unwrap();
    assert!(matches!(DataFolder::open(&path), Err(FolderError::NotAFolder(_))));
    assert!(matches!(DataFolder::open_existing(&path), Err(FolderError::NotAFolder(_))));
}

#[test]
fn stale_lock_file_does_not_lock() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(LOCK_FILE), "1\n").unwrap();
    DataFolder::open(folder.path()).unwrap();
}
