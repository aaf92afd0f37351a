//! One process for one folder.

use std::fs;

use driftq_files::{DataFolder, FolderError, LOCK_FILE};

#[test]
fn a_folder_in_use_is_refused_by_name_and_free_when_every_handle_is_gone() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("a/b/data");
    let first = DataFolder::open(&path).unwrap();
    let storage = first.storage();
    drop(first);
    for refused in [DataFolder::open(&path), DataFolder::look(&path)] {
        let error = refused.expect_err("the folder is in use");
        let expected = format!(
            "data folder {0} is in use by another driftqd (lock file {0}/lock, process {1})",
            path.display(),
            std::process::id()
        );
        assert_eq!(error.to_string(), expected);
    }
    drop(storage);
    drop(DataFolder::look(&path).unwrap());
    DataFolder::open(&path).unwrap();
}

#[test]
fn to_look_makes_nothing() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("data");
    assert!(matches!(DataFolder::look(&path), Err(FolderError::NotThere(_))));
    fs::create_dir(&path).unwrap();
    DataFolder::look(&path).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn who_reads_keeps_out_who_works_but_not_who_reads_and_leaves_the_lock_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(DataFolder::read(&folder.path().join("none")), Err(FolderError::NotThere(_))));
    let worker = DataFolder::open(folder.path()).unwrap();
    assert!(matches!(DataFolder::read(folder.path()), Err(FolderError::InUse { .. })));
    drop(worker);
    let lock = folder.path().join(LOCK_FILE);
    fs::write(&lock, "12345\n").unwrap();
    let (first, second) = (DataFolder::read(folder.path()).unwrap(), DataFolder::read(folder.path()).unwrap());
    for refused in [DataFolder::open(folder.path()), DataFolder::look(folder.path())] {
        assert!(matches!(refused, Err(FolderError::InUse { process: Some(process), .. }) if process == "12345"));
    }
    drop((first, second));
    assert_eq!(fs::read_to_string(&lock).unwrap(), "12345\n");
    DataFolder::open(folder.path()).unwrap();
}

#[test]
fn what_is_no_folder_is_said_to_be_none() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("data");
    fs::write(&path, "text").unwrap();
    assert!(matches!(DataFolder::open(&path), Err(FolderError::NotAFolder(_))));
    assert!(matches!(DataFolder::look(&path), Err(FolderError::NotAFolder(_))));
}

#[test]
fn a_lock_file_that_somebody_left_is_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(LOCK_FILE), "1\n").unwrap();
    DataFolder::open(folder.path()).unwrap();
}
