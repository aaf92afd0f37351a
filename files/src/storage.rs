//! [`FileStorage`]: the storage trait on the files of one folder.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt};

use super::direct_io::read_full;
use super::fault::{UnlessFull, is_full, storage_fault};
use super::fs_ops::rename_new;
use super::medium::{MediumReader, ReadPath};
use super::prepare::{Prepare, reserve_space};
use super::shared::{OpenFile, SharedFolder};

/// A growing file, such as a snapshot, is synced every time this many bytes were appended. A single sync at its end
/// would delay the syncs of the log behind hundreds of megabytes.
const SYNC_EVERY_BYTES: u64 = 2 << 20;

/// A [`Storage`] on a folder of log files, to be used by one thread.
///
/// Clones share the folder and its open files, so that the thread that writes the log can append to a segment created
/// by a background thread. Only the position of the current sequential read is separate.
///
/// Files of an earlier process are read from the medium, past the page cache. Files created by this process are read
/// through the cache as long as they are open, since the process stops after a failed sync.
///
/// Only files created by this process accept appends, and a segment only until a later one has data: then it is closed,
/// so that the number of descriptors does not grow with the log.
#[derive(Debug)]
pub struct FileStorage {
    shared: Arc<SharedFolder>,
    prepare: Prepare,
    sync_delay: Duration,
    read_path: ReadPath,
    reads_by_position: bool,
    reader: Option<MediumReader>,
}

impl Clone for FileStorage {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), reader: None, ..*self }
    }
}

impl FileStorage {
    pub(super) fn new(shared: Arc<SharedFolder>) -> Self {
        let (prepare, sync_delay, read_path) = (Prepare::Zeros, Duration::ZERO, ReadPath::Medium);
        Self { shared, prepare, sync_delay, read_path, reads_by_position: false, reader: None }
    }

    /// A storage on a subfolder of a locked folder. Takes no lock.
    ///
    /// # Errors
    /// Any error of opening the folder.
    pub fn open_unlocked(path: &Path) -> io::Result<Self> {
        Ok(Self::new(SharedFolder::open(path, None)?))
    }

    /// Sets how space is reserved for new segments. The default is [`Prepare::Zeros`].
    #[must_use]
    pub fn with_prepare(mut self, prepare: Prepare) -> Self {
        self.prepare = prepare;
        self
    }

    /// Delays every sync of a file, to measure the effect of a slow disk.
    #[must_use]
    pub fn with_sync_delay(mut self, delay: Duration) -> Self {
        self.sync_delay = delay;
        self
    }

    /// Sets how files of earlier processes are read, for measurements and tests. Only the default,
    /// [`ReadPath::Medium`], keeps the contract of [`Storage`].
    #[must_use]
    pub fn with_read_path(mut self, read_path: ReadPath) -> Self {
        self.read_path = read_path;
        self
    }

    /// Reads through the page cache, each read at its position, with descriptors that all such storages on the folder
    /// share: a bounded number, each closed when its file is removed. No lock is held during a read, so that neither a
    /// sync nor another read delays it.
    ///
    /// For payloads of a recovered log: recovery has read every segment that it refers to from the medium, and what is
    /// read here is checked against the checksum of its frame.
    #[must_use]
    pub fn with_reads_by_position(mut self) -> Self {
        self.reads_by_position = true;
        self
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Closes the segments before `sequence`: the log syncs a segment before it begins the next.
    fn close_segments_before(&self, sequence: u64) {
        let mut created = self.shared.created();
        let current = created.split_off(&FileId::Segment(sequence));
        let old = std::mem::replace(&mut *created, current);
        drop(created);
        drop(old);
    }

    fn find(&self, file: FileId) -> Option<Arc<OpenFile>> {
        self.shared.created().get(&file).cloned()
    }
}

/// What is under a name of the log, if not a file.
fn kind_of(found: fs::FileType) -> &'static str {
    match found {
        found if found.is_dir() => "a folder",
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    }
}

impl Storage for FileStorage {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        // Writing starts after recovery has read everything: the read-ahead is no longer needed.
        self.reader = None;
        let path = self.shared.path_of(file);
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let created = created.map_err(|error| storage_fault("creating", file, &error))?;
        if let Err(error) = reserve_space(&created, capacity, self.prepare) {
            let fault = storage_fault("allocating", file, &error);
            // A partial file is removed. If that fails as well, its error is reported instead.
            fs::remove_file(&path).map_err(|error| storage_fault("removing", file, &error))?;
            return Err(fault);
        }
        let open = Arc::new(OpenFile {
            file: created,
            capacity: AtomicU64::new(capacity),
            end: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        });
        self.shared.created().insert(file, open);
        Ok(())
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let open = self.find(file).ok_or(StorageFault::NotFound)?;
        let expected = open.end.load(Ordering::Acquire);
        if at.position != expected {
            return Err(StorageFault::Misplaced { expected, actual: at.position });
        }
        if let (FileId::Segment(sequence), 0) = (file, at.position) {
            self.close_segments_before(sequence);
        }
        let end = expected + bytes.len() as u64;
        let capacity = open.capacity.load(Ordering::Relaxed);
        if capacity > 0 && end > capacity {
            return Err(StorageFault::Full);
        }
        if let Err(error) = open.file.write_all_at(bytes, at.position) {
            if !is_full(&error) || capacity > 0 {
                // A preallocated file may contain a partial write now, so this is not a clean `Full`.
                return Err(storage_fault("writing", file, &error).unless_full());
            }
            open.file.set_len(expected).map_err(|error| storage_fault("truncating", file, &error).unless_full())?;
            return Err(StorageFault::Full);
        }
        open.end.store(end, Ordering::Release);
        if capacity == 0 && end - open.synced.load(Ordering::Relaxed) >= SYNC_EVERY_BYTES {
            open.synced.store(end, Ordering::Relaxed);
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
        if self.reads_by_position {
            let open = self.shared.descriptors.get(file, &self.shared.path_of(file)).map_err(failed)?;
            return read_full(&open, position, buffer).map_err(failed);
        }
        if let Some(open) = self.find(file) {
            return read_full(&open.file, position, buffer).map_err(failed);
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
            // Links are followed. Anything but a file under a name of the log is refused before it is opened: opening a
            // pipe would wait for its other end.
            match fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_file() => files.push(FileInfo { file, len: metadata.len() }),
                Ok(metadata) => {
                    let what = kind_of(metadata.file_type());
                    return Err(StorageFault::Io(format!("{file} is {what}, not a file; move it away")));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // Removed by another thread since the folder was read, or a link to nothing.
                    if fs::symlink_metadata(entry.path()).is_ok() {
                        return Err(StorageFault::Io(format!("{file} is a link to nothing; move it away")));
                    }
                }
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
        self.shared.descriptors.close(from);
        let mut created = self.shared.created();
        if let Some(open) = created.remove(&from) {
            created.insert(to, open);
        }
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        fs::remove_file(self.shared.path_of(file)).map_err(|error| storage_fault("removing", file, &error))?;
        self.reader = None;
        // Closing the last handle frees the blocks, which takes a while: not under the mutex.
        let open = self.shared.created().remove(&file);
        drop(open);
        self.shared.descriptors.close(file);
        Ok(())
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        let failed = |error: io::Error| storage_fault("trimming", file, &error).unless_full();
        let cut = |file: &File| if file.metadata()?.len() > len { file.set_len(len) } else { Ok(()) };
        match self.find(file) {
            Some(open) => {
                if open.capacity.load(Ordering::Relaxed) > 0 {
                    open.capacity.fetch_min(len.max(1), Ordering::Relaxed);
                }
                cut(&open.file).map_err(failed)
            }
            None => {
                self.reader = None;
                let old = OpenOptions::new().write(true).open(self.shared.path_of(file));
                let old = old.map_err(|error| storage_fault("opening", file, &error))?;
                cut(&old).map_err(failed)
            }
        }
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        let failed = |error: io::Error| StorageFault::Io(format!("syncing {}: {error}", self.shared.path.display()));
        self.shared.folder.sync_all().map_err(failed)
    }
}
