//! A folder of log files that shows less than it has, and takes nothing.

use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt};

/// A storage in which only the oldest snapshots are seen, so that recovery reads records that a newer one would save it.
pub(super) struct OldestSnapshots<'a, S> {
    pub(super) inner: &'a mut S,
    /// How many.
    pub(super) count: usize,
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
        let mut left = self.count;
        files.retain(|info| match info.file {
            FileId::Snapshot(_) if left == 0 => false,
            FileId::Snapshot(_) => {
                left -= 1;
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

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.inner.sync_folder()
    }
}

fn read_only() -> StorageFault {
    StorageFault::Io("the log is only being looked at".to_owned())
}
