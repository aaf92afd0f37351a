//! The directory of a soak: its state, the traces it found, and a lock, so that only one soak uses it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::state::State;
use crate::trace::Trace;

/// The file name of the state.
const STATE: &str = "state.json";
/// The file name of the lock. Its content is irrelevant.
const LOCK: &str = "lock";
/// The suffix of a trace that is not yet shrunk.
const UNSHRUNK_SUFFIX: &str = ".whole.jsonl";

/// Why a directory cannot be used for a soak.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file or directory cannot be used.
    #[error("{} cannot be used: {cause}", path.display())]
    Unusable {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Another soak holds the lock.
    #[error("another soak is running in {}; stop it, or choose another directory with --dir", .0.display())]
    Locked(PathBuf),
    /// The state cannot be parsed.
    #[error("{} is not the state of a soak: {cause}. Nothing was changed; move the file away to start anew", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The directory belongs to a soak with other options.
    #[error("the soak in {} is {found}, not {wanted}; choose another directory with --dir", path.display())]
    Another {
        /// The directory.
        path: PathBuf,
        /// Its options.
        found: String,
        /// The requested options.
        wanted: String,
    },
}

/// A locked soak directory.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Locks a directory and creates it if needed.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn lock(path: &Path) -> Result<Self, FolderError> {
        let unusable = |cause| FolderError::Unusable { path: path.to_owned(), cause };
        fs::create_dir_all(path).map_err(unusable)?;
        let lock = File::options().write(true).create(true).truncate(false).open(path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::Locked(path.to_owned())),
            Err(TryLockError::Error(cause)) => Err(unusable(cause)),
        }
    }

    /// The state; `None` if there is none.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn state(&self) -> Result<Option<State>, FolderError> {
        let path = self.path.join(STATE);
        match fs::read(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(FolderError::Unusable { path, cause }),
            Ok(bytes) => {
                let text = String::from_utf8(bytes).map_err(|cause| cause.to_string());
                let state = text.and_then(|text| State::from_json(&text));
                state.map(Some).map_err(|cause| FolderError::State { path, cause })
            }
        }
    }

    /// Replaces the state atomically.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn write_state(&self, state: &State) -> Result<(), FolderError> {
        self.replace(&self.path.join(STATE), &state.to_json())
    }

    /// Writes the unshrunk trace of a seed.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn write_unshrunk(&self, seed: u64, trace: &Trace) -> Result<PathBuf, FolderError> {
        let path = self.path.join(format!("seed-{seed}{UNSHRUNK_SUFFIX}"));
        self.replace(&path, &trace.to_jsonl())?;
        Ok(path)
    }

    /// The traces that are not yet shrunk.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn unshrunk(&self) -> Result<Vec<PathBuf>, FolderError> {
        let unusable = |cause| FolderError::Unusable { path: self.path.clone(), cause };
        let mut found = Vec::new();
        for file in fs::read_dir(&self.path).map_err(unusable)? {
            let path = file.map_err(unusable)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(UNSHRUNK_SUFFIX)) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Replaces an unshrunk trace by its shrunk form.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn replace_shrunk(&self, unshrunk: &Path, shrunk: &Trace) -> Result<PathBuf, FolderError> {
        let path = shrunk_path(unshrunk);
        self.replace(&path, &shrunk.to_jsonl())?;
        fs::remove_file(unshrunk).map_err(|cause| FolderError::Unusable { path: unshrunk.to_owned(), cause })?;
        Ok(path)
    }

    /// Replaces a file atomically: a crash leaves the old content.
    fn replace(&self, path: &Path, text: &str) -> Result<(), FolderError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().map_err(|cause| FolderError::Unusable { path: path.to_owned(), cause })
    }
}

/// The path of a trace after shrinking.
#[must_use]
pub fn shrunk_path(unshrunk: &Path) -> PathBuf {
    let name = unshrunk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    unshrunk.with_file_name(format!("{}.jsonl", name.strip_suffix(UNSHRUNK_SUFFIX).unwrap_or(&name)))
}
