//! The log's files on a real disk.
//!
//! A [`DataFolder`] is a folder that this process alone works in; a [`FileStorage`] is a handle on it through which the core's
//! I/O is performed. Handles are cheap, one for each thread: what one creates the other may append to. What is promised is
//! the contract of [`Storage`]; what is done about the system's cache stands in the `medium` room, how room is made for a segment
//! in `prepare`.

#![forbid(unsafe_code)]

mod ahead;
mod fault;
mod folder;
mod medium;
mod null;
mod prepare;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use self::fault::{UnlessFull, is_full, storage_fault};
pub use self::folder::{DataFolder, FolderError, LOCK_FILE};
use self::medium::MediumReader;
pub use self::medium::ReadPath;
pub use self::null::{NullStorage, fresh_log_id};
pub use self::prepare::Prepare;

/// A file that a storage of this process has created. Its content is known, so it is read through the system's cache.
#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Bytes that room was made for; 0 where the file just grows.
    capacity: u64,
    /// The end of the written data.
    end: AtomicU64,
    /// The end of what was synced on the way; see [`SMOOTH_BYTES`].
    smoothed: AtomicU64,
}

/// A file that just grows, a snapshot, is synced whenever so much more of it was written. One sync of all of it at the end would
/// keep the log's own syncs waiting behind hundreds of megabytes.
const SMOOTH_BYTES: u64 = 2 << 20;

/// What all handles on one folder have in common.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    folder: File,
    /// Held as long as any handle lives; `None` in a folder that is locked by the one around it.
    lock: Option<File>,
    /// Every file created by this process and still there. The mutex is held to look something up, never during I/O.
    created: Mutex<BTreeMap<FileId, Arc<OpenFile>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing would do, but for a child process that is just being started and still has a copy of everything open. If this
        // fails the lock is lifted when that has ended.
        drop(self.lock.as_ref().map(File::unlock));
    }
}

impl Shared {
    fn open(path: &Path, lock: Option<File>) -> io::Result<Arc<Self>> {
        let folder = File::open(path)?;
        Ok(Arc::new(Self { path: path.to_owned(), folder, lock, created: Mutex::default() }))
    }

    fn created(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<OpenFile>>> {
        // Nothing that can panic happens while it is held, and each change is a single insertion or removal.
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path_of(&self, file: FileId) -> PathBuf {
        self.path.join(file.to_string())
    }
}

/// A handle on a folder of log files, to be used by one thread.
///
/// Clones work on the same folder and know of each other's files, so that the thread that writes the log may append to a segment that
/// a thread in the background has created. They differ in nothing but what they are in the middle of reading.
///
/// Files of an earlier process are read from the medium, past the system's cache; files that this process created, which it would
/// not go on with after a failed sync, are read the usual way. Only the latter take appends.
#[derive(Debug)]
pub struct FileStorage {
    shared: Arc<Shared>,
    prepare: Prepare,
    sync_delay: Duration,
    read_path: ReadPath,
    reader: Option<MediumReader>,
}

impl Clone for FileStorage {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), reader: None, ..*self }
    }
}

impl FileStorage {
    fn over(shared: Arc<Shared>) -> Self {
        let (prepare, sync_delay, read_path) = (Prepare::Zeros, Duration::ZERO, ReadPath::Medium);
        Self { shared, prepare, sync_delay, read_path, reader: None }
    }

    /// A storage over a folder inside a locked one: nobody else may write there, and no lock is taken.
    pub fn within(path: &Path) -> io::Result<Self> {
        Ok(Self::over(Shared::open(path, None)?))
    }

    /// This handle, making room for new segments in another way. [`Prepare::Zeros`] unless told.
    #[must_use]
    pub fn preparing(mut self, prepare: Prepare) -> Self {
        self.prepare = prepare;
        self
    }

    /// This handle on a disk that takes so much longer for every sync of a file. For measuring.
    #[must_use]
    pub fn with_sync_delay(mut self, delay: Duration) -> Self {
        self.sync_delay = delay;
        self
    }

    /// This handle, reading the files of earlier processes in another way. For measuring and for tests:
    /// [`ReadPath::Medium`] is the only way that keeps the contract of [`Storage`].
    #[must_use]
    pub fn reading(mut self, read_path: ReadPath) -> Self {
        self.read_path = read_path;
        self
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    fn find(&self, file: FileId) -> Option<Arc<OpenFile>> {
        self.shared.created().get(&file).cloned()
    }
}

impl Storage for FileStorage {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        // Whoever writes has read what there is to read: what was read ahead is given back.
        self.reader = None;
        let path = self.shared.path_of(file);
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let made = made.map_err(|error| storage_fault("creating", file, &error))?;
        if let Err(error) = prepare::make_room(&made, capacity, self.prepare) {
            let fault = storage_fault("making room for", file, &error);
            // Half a file is no file. If it cannot be removed either, that is the graver news.
            fs::remove_file(&path).map_err(|error| storage_fault("removing", file, &error))?;
            return Err(fault);
        }
        let open = Arc::new(OpenFile { file: made, capacity, end: AtomicU64::new(0), smoothed: AtomicU64::new(0) });
        self.shared.created().insert(file, open);
        Ok(())
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let open = self.find(file).ok_or(StorageFault::NotFound)?;
        let expected = open.end.load(Ordering::Acquire);
        if at.position != expected {
            return Err(StorageFault::Misplaced { expected, actual: at.position });
        }
        let end = expected + bytes.len() as u64;
        if open.capacity > 0 && end > open.capacity {
            return Err(StorageFault::Full);
        }
        if let Err(error) = open.file.write_all_at(bytes, at.position) {
            if !is_full(&error) || open.capacity > 0 {
                // Where room had been made there may be half a write in it now: this is no orderly "full".
                return Err(storage_fault("writing", file, &error).unless_full());
            }
            open.file.set_len(expected).map_err(|error| storage_fault("cutting back", file, &error).unless_full())?;
            return Err(StorageFault::Full);
        }
        open.end.store(end, Ordering::Release);
        if open.capacity == 0 && end - open.smoothed.load(Ordering::Relaxed) >= SMOOTH_BYTES {
            open.smoothed.store(end, Ordering::Relaxed);
            return open.file.sync_data().map_err(|error| storage_fault("syncing", file, &error).unless_full());
        }
        Ok(())
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        let failed = |error: io::Error| storage_fault("syncing", file, &error).unless_full();
        let open = self.find(file);
        if !self.sync_delay.is_zero() {
            std::thread::sleep(self.sync_delay);
        }
        match open {
            Some(open) => open.file.sync_data().map_err(failed),
            None => {
                let old =
                    File::open(self.shared.path_of(file)).map_err(|error| storage_fault("opening", file, &error))?;
                old.sync_data().map_err(failed)
            }
        }
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let failed = |error: io::Error| storage_fault("reading", file, &error);
        if let Some(open) = self.find(file) {
            return medium::read_full(&open.file, position, buffer).map_err(failed);
        }
        if self.reader.as_ref().is_none_or(|reader| reader.file() != file) {
            let before = self.reader.take();
            let reader = MediumReader::open(file, &self.shared.path, self.read_path, before);
            self.reader = Some(reader.map_err(failed)?);
        }
        let reader = self.reader.as_mut().ok_or(StorageFault::NotFound)?;
        reader.read(position, buffer).map_err(failed)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let failed = |error: io::Error| StorageFault::Io(format!("listing {}: {error}", self.shared.path.display()));
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.shared.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(file) = name.to_str().and_then(|name| name.parse::<FileId>().ok()) else { continue };
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => files.push(FileInfo { file, len: metadata.len() }),
                Ok(_) => {}
                // Removed by the other lane since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        files.sort_by_key(|info| info.file);
        Ok(files)
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        rename_new(&self.shared.path_of(from), &self.shared.path_of(to))
            .map_err(|error| storage_fault("renaming", from, &error))?;
        self.reader = None;
        let mut created = self.shared.created();
        if let Some(open) = created.remove(&from) {
            created.insert(to, open);
        }
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        fs::remove_file(self.shared.path_of(file)).map_err(|error| storage_fault("removing", file, &error))?;
        self.reader = None;
        // Closing the last handle gives the blocks back, which takes a while: not under the mutex.
        let open = self.shared.created().remove(&file);
        drop(open);
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        let failed = |error: io::Error| StorageFault::Io(format!("syncing {}: {error}", self.shared.path.display()));
        self.shared.folder.sync_all().map_err(failed)
    }
}

/// Renames, and refuses to replace what is there.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know how. Only this process works in the folder, so looking first does as well.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if to.try_exists()? {
                return Err(Errno::EXIST.into());
            }
            fs::rename(from, to)
        }
        done => done.map_err(Into::into),
    }
}

/// Returns when every creation, rename and removal in the folder is durable.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
