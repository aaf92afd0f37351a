//! A soak's folder: its state, the traces of what it found, and a lock, so that there is one soak at a time.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::state::State;
use crate::trace::Trace;

/// What the state is called.
const STATE: &str = "state.json";
/// What the lock is called. Whoever holds it soaks; the file means nothing.
const LOCK: &str = "lock";
/// How the name of a trace ends that has not been made short yet.
const WHOLE: &str = ".whole.jsonl";

/// Why there can be no soak in a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be used.
    #[error("{} cannot be used: {cause}", path.display())]
    Unusable {
        /// What cannot.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Another soak is there.
    #[error("another soak is running in {}; stop it, or name another folder with --dir", .0.display())]
    Locked(PathBuf),
    /// What it says about how far it is makes no sense.
    #[error("{} is not the state of a soak: {cause}. Nothing was changed; move it away to begin anew", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// It is about other lives.
    #[error("the soak in {} is {found}, not {wanted}; name another folder with --dir", path.display())]
    Another {
        /// The folder.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What was asked for.
        wanted: String,
    },
}

/// A folder that nobody else soaks in.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Takes a folder, which is made where there is none.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn take(path: &Path) -> Result<Self, FolderError> {
        let unusable = |cause| FolderError::Unusable { path: path.to_owned(), cause };
        fs::create_dir_all(path).map_err(unusable)?;
        let lock = File::options().write(true).create(true).truncate(false).open(path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::Locked(path.to_owned())),
            Err(TryLockError::Error(cause)) => Err(unusable(cause)),
        }
    }

    /// How far the soak is; nothing if there was none.
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

    /// Writes down how far it is: the whole of it, or nothing.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn write_state(&self, state: &State) -> Result<(), FolderError> {
        self.replace(&self.path.join(STATE), &state.to_json())
    }

    /// Keeps the trace of a seed as it was lived.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn keep(&self, seed: u64, trace: &Trace) -> Result<PathBuf, FolderError> {
        let path = self.path.join(format!("seed-{seed}{WHOLE}"));
        self.replace(&path, &trace.to_jsonl())?;
        Ok(path)
    }

    /// The traces that have not been made short yet.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn whole(&self) -> Result<Vec<PathBuf>, FolderError> {
        let unusable = |cause| FolderError::Unusable { path: self.path.clone(), cause };
        let mut found = Vec::new();
        for file in fs::read_dir(&self.path).map_err(unusable)? {
            let path = file.map_err(unusable)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(WHOLE)) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Puts the short trace in the place of the whole one.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn shorten(&self, whole: &Path, short: &Trace) -> Result<PathBuf, FolderError> {
        let path = short_name(whole);
        self.replace(&path, &short.to_jsonl())?;
        fs::remove_file(whole).map_err(|cause| FolderError::Unusable { path: whole.to_owned(), cause })?;
        Ok(path)
    }

    /// Whoever dies in the middle of it leaves what was there before.
    fn replace(&self, path: &Path, text: &str) -> Result<(), FolderError> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".tmp");
        let write = || {
            let mut file = File::create(&aside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        write().map_err(|cause| FolderError::Unusable { path: path.to_owned(), cause })
    }
}

/// What a trace is called when it has been made short.
#[must_use]
pub fn short_name(whole: &Path) -> PathBuf {
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    whole.with_file_name(format!("{}.jsonl", name.strip_suffix(WHOLE).unwrap_or(&name)))
}
