//! The open files of a folder, shared by all storages on it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driftq_core::log::FileId;

use super::descriptor_cache::DescriptorCache;

/// A file created by this process. It is read through the page cache.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// The number of preallocated bytes; 0 if the file grows.
    pub(super) capacity: AtomicU64,
    /// The end of the written data.
    pub(super) end: AtomicU64,
    /// The end of the data synced by intermediate syncs.
    pub(super) synced: AtomicU64,
}

/// The state shared by all storages on one folder.
#[derive(Debug)]
pub(super) struct SharedFolder {
    pub(super) path: PathBuf,
    pub(super) folder: File,
    /// Held until the last storage is dropped; `None` if the caller holds the lock of an enclosing folder.
    lock: Option<File>,
    /// The files that this process created, except closed segments. The mutex is held for lookups, never during I/O.
    created: Mutex<BTreeMap<FileId, Arc<OpenFile>>>,
    /// Descriptors of the storages that read by position.
    pub(super) descriptors: DescriptorCache,
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        // Closing is not enough while a child process that is being spawned still has copies of the descriptors. If
        // this fails, the lock is released when the child closes them.
        drop(self.lock.as_ref().map(File::unlock));
    }
}

impl SharedFolder {
    pub(super) fn open(path: &Path, lock: Option<File>) -> io::Result<Arc<Self>> {
        let folder = File::open(path)?;
        let (created, descriptors) = (Mutex::default(), DescriptorCache::default());
        Ok(Arc::new(Self { path: path.to_owned(), folder, lock, created, descriptors }))
    }

    pub(super) fn created(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<OpenFile>>> {
        // No code that can panic runs while it is held, and each change is a single insertion or removal.
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path_of(&self, file: FileId) -> PathBuf {
        self.path.join(file.to_string())
    }
}
