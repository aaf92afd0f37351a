//! The data folder and its lock against a second process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fs_ops::sync_dir;
use super::shared::SharedFolder;
use super::storage::FileStorage;

/// The name of the lock file in a data folder. It contains the id of the process that locked it last. Only the lock on
/// the file counts, not its existence; the system releases the lock when the process ends, however it ends.
pub const LOCK_FILE: &str = "lock";

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Another process has locked it.
    #[error("data folder {} is in use by another driftqd (lock file {}, process {})", .folder.display(),
            .folder.join(LOCK_FILE).display(), .process.as_deref().unwrap_or("unknown"))]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process id in the lock file.
        process: Option<String>,
    },
    /// The folder does not exist, and it was not to be created.
    #[error("there is no data folder {}", .0.display())]
    NotFound(PathBuf),
    /// The path exists, but is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The operating system refused.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |error| FolderError::Io { doing, path: path.to_owned(), error }
}

/// A folder of log files that this process has locked. The lock is held until this value and every [`FileStorage`]
/// created from it are dropped.
#[derive(Debug)]
pub struct DataFolder {
    shared: Arc<SharedFolder>,
}

impl DataFolder {
    /// Locks the folder exclusively. Creates it and its missing parents durably if it does not exist.
    ///
    /// # Errors
    /// [`FolderError::InUse`] with the process that has locked it; [`FolderError::NotAFolder`], [`FolderError::Io`].
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        create_folder(path)?;
        Self::lock(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
    }

    /// Locks an existing folder exclusively without creating any file. Without a lock file no broker has ever used the
    /// folder, and no lock is taken. The folder may be on a read-only medium.
    ///
    /// # Errors
    /// As [`DataFolder::open`]; [`FolderError::NotFound`].
    pub fn open_existing(path: &Path) -> Result<Self, FolderError> {
        check_exists(path)?;
        Self::lock(path, OpenOptions::new().read(true).write(true))
    }

    /// Locks an existing folder for shared reading: excludes writers, but not other readers. Changes nothing in the
    /// folder, the lock file included, so a refused writer sees the id of the last process that wrote.
    ///
    /// # Errors
    /// As [`DataFolder::open_existing`].
    pub fn open_read_only(path: &Path) -> Result<Self, FolderError> {
        check_exists(path)?;
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
        let shared = SharedFolder::open(path, lock).map_err(failed("opening", path))?;
        Ok(Self { shared })
    }

    /// A storage on the folder, for one thread.
    #[must_use]
    pub fn storage(&self) -> FileStorage {
        FileStorage::new(self.shared.clone())
    }

    /// The path of the folder.
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
            // Only for the error message of a second process, so it is not synced, and a read-only file is no error.
            let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        }
        let shared = SharedFolder::open(path, lock).map_err(failed("opening", path))?;
        Ok(Self { shared })
    }
}

fn check_exists(path: &Path) -> Result<(), FolderError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(FolderError::NotAFolder(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FolderError::NotFound(path.to_owned())),
        Err(error) => Err(failed("opening", path)(error)),
    }
}

/// The process id in the lock file.
fn process_in(mut lock: &File) -> Option<String> {
    let mut text = String::new();
    lock.rewind().and_then(|()| lock.take(32).read_to_string(&mut text)).ok()?;
    let digits = text.trim();
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.to_owned())
}

/// Creates the folder and its missing parents from the top, each durable before the next.
fn create_folder(path: &Path) -> Result<(), FolderError> {
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
    create_folder(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("creating", path)(error)),
        _ => {}
    }
    sync_dir(parent).map_err(failed("syncing", parent))
}
