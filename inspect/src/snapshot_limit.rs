//! A read-only view of a storage that hides its newest snapshots.

use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt};

/// Shows only the oldest snapshots of a storage, so that recovery also replays the records that a newer snapshot
/// covers. Refuses every change.
pub(crate) struct OldestSnapshots<'a, S> {
    pub(crate) inner: &'a mut S,
    /// How many snapshots are visible.
    pub(crate) count: usize,
}

impl<S: Storage> Storage for OldestSnapshots<'_, S> {
    fn create(&mut self, _file: FileId, _capacity: u64) -> Result<(), StorageFault> {
        Err(read_only())
    }

    fn append(&mut self, _file: FileId, _at: WriteAt, _bytes: &[u8]) -> Result<(), StorageFault> {
        Err(read_only())
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.inner.sync(file)
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        self.inner.read(file, position, buffer)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let mut files = self.inner.list()?;
        files.sort_by_key(|info| info.file);
        let mut visible = self.count;
        files.retain(|info| match info.file {
            FileId::Snapshot(_) if visible == 0 => false,
            FileId::Snapshot(_) => {
                visible -= 1;
                true
            }
            FileId::Segment(_) | FileId::SnapshotDraft(_) => true,
        });
        Ok(files)
    }

    fn rename(&mut self, _from: FileId, _to: FileId) -> Result<(), StorageFault> {
        Err(read_only())
    }

    fn remove(&mut self, _file: FileId) -> Result<(), StorageFault> {
        Err(read_only())
    }

    fn trim(&mut self, _file: FileId, _len: u64) -> Result<(), StorageFault> {
        Err(read_only())
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.inner.sync_folder()
    }
}

fn read_only() -> StorageFault {
    StorageFault::Io("the log is opened for reading only".to_owned())
}
