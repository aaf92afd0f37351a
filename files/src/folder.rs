//! The data folder, and the lock that keeps a second process out of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileStorage, Shared, sync_dir};

/// The name of the lock file in a data folder. It holds the number of the process that took it last; the file itself means
/// nothing, the lock on it does, and the system lifts that when the process ends, however it ends.
pub const LOCK_FILE: &str = "lock";

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Another process works in it.
    #[error("data folder {} is in use by another driftqd (lock file {}, process {})", .folder.display(),
            .folder.join(LOCK_FILE).display(), .process.as_deref().unwrap_or("unknown"))]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// What the lock file says of who has it.
        process: Option<String>,
    },
    /// There is no such folder, and it was not to be made.
    #[error("there is no data folder {}", .0.display())]
    NotThere(PathBuf),
    /// Something of this name is there, but it is no folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The system refused.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |error| FolderError::Io { doing, path: path.to_owned(), error }
}

/// A folder of log files in which this process, and no other, works. The lock is held until this and every [`FileStorage`] made
/// from it are gone.
#[derive(Debug)]
pub struct DataFolder {
    shared: Arc<Shared>,
}

impl DataFolder {
    /// Takes the folder for this process. Makes it, with whatever is missing above it, if it is not there; it is then durable.
    ///
    /// # Errors
    /// [`FolderError::InUse`] names the process that has it; [`FolderError::NotAFolder`], [`FolderError::Io`].
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        make_folder(path)?;
        Self::lock(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
    }

    /// Takes a folder that must be there, in order to look at it. No file is made: where there is no lock file nobody has ever
    /// worked in the folder. It may be on a read-only medium.
    ///
    /// # Errors
    /// As [`DataFolder::open`]; [`FolderError::NotThere`].
    pub fn look(path: &Path) -> Result<Self, FolderError> {
        must_be_there(path)?;
        Self::lock(path, OpenOptions::new().read(true).write(true))
    }

    /// Takes a folder that must be there, in order to read it and nothing else. Nobody works in it meanwhile; others may read at
    /// the same time. Nothing in it changes, and that goes for the lock file too: who is kept out by a reader is told of the
    /// process that worked there last.
    ///
    /// # Errors
    /// As [`DataFolder::look`].
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        must_be_there(path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = match File::open(&lock_path) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("opening", &lock_path)(error)),
        };
        match lock.as_ref().map(|lock| (lock, lock.try_lock_shared())) {
            None | Some((_, Ok(()))) => {}
            Some((lock, Err(TryLockError::WouldBlock))) => {
                return Err(FolderError::InUse { folder: path.to_owned(), process: process_in(lock) });
            }
            Some((_, Err(TryLockError::Error(error)))) => return Err(failed("locking", &lock_path)(error)),
        }
        let shared = Shared::open(path, lock).map_err(failed("opening", path))?;
        Ok(Self { shared })
    }

    /// A handle for one thread.
    #[must_use]
    pub fn storage(&self) -> FileStorage {
        FileStorage::over(self.shared.clone())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    fn lock(path: &Path, options: &OpenOptions) -> Result<Self, FolderError> {
        let lock_path = path.join(LOCK_FILE);
        let lock = match options.open(&lock_path) {
            Ok(lock) => Some(lock),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied) =>
            {
                Some(File::open(&lock_path).map_err(failed("opening", &lock_path))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("opening", &lock_path)(error)),
        };
        if let Some(mut lock) = lock.as_ref() {
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(FolderError::InUse { folder: path.to_owned(), process: process_in(lock) });
                }
                Err(TryLockError::Error(error)) => return Err(failed("locking", &lock_path)(error)),
            }
            // Only to be told to whoever comes second, so it is neither synced nor missed where the file is read-only.
            let told = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
            drop(told);
        }
        let shared = Shared::open(path, lock).map_err(failed("opening", path))?;
        Ok(Self { shared })
    }
}

fn must_be_there(path: &Path) -> Result<(), FolderError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(FolderError::NotAFolder(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FolderError::NotThere(path.to_owned())),
        Err(error) => Err(failed("opening", path)(error)),
    }
}

/// What the lock file says of who has the lock.
fn process_in(mut lock: &File) -> Option<String> {
    let mut text = String::new();
    lock.rewind().and_then(|()| lock.take(32).read_to_string(&mut text)).ok()?;
    let digits = text.trim();
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.to_owned())
}

/// Makes the folder and everything missing above it, from the top, each durable in the one above before the next.
fn make_folder(path: &Path) -> Result<(), FolderError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return Err(FolderError::NotAFolder(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("opening", path)(error)),
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    make_folder(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("making", path)(error)),
        _ => {}
    }
    sync_dir(parent).map_err(failed("syncing", parent))
}
