//! Why a `driftqd wal` command cannot do its work.

use std::io;
use std::path::{Path, PathBuf};

use driftq_core::log::{FileId, RecoveryError, StorageFault};
use driftq_files::FolderError;
use driftq_inspect::InspectError;

/// Why a `driftqd wal` command cannot do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The folder is in use or cannot be opened.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file of the log cannot be read or written. This says nothing about its content.
    #[error("{}{fault}", .file.map_or_else(String::new, |file| format!("{file}: ")))]
    Storage {
        /// The file; `None` for the folder.
        file: Option<FileId>,
        /// What the storage reports.
        fault: StorageFault,
    },
    /// Recovery failed before it could check the data.
    #[error(transparent)]
    Recovery(RecoveryError),
    /// No segment header and no snapshot is valid, so the id of the log is unknown and no frame can be verified.
    #[error("no segment header and no snapshot is valid, so the id of the log is unknown and no frame can be verified")]
    NoIdentity,
    /// What a salvage kept is not a consistent state. Nothing was changed.
    #[error("what is left contradicts itself ({0}); nothing was changed")]
    InconsistentState(String),
    /// The result of a salvage cannot be opened. The old files are in the quarantine folder.
    #[error("the salvaged log cannot be opened ({error}); the old files are in {}", .quarantine.display())]
    NotOpenable {
        /// The folder with the old files.
        quarantine: PathBuf,
        /// Why the new files are refused.
        error: RecoveryError,
    },
    /// The log cannot be inspected, or does not hold what was requested.
    #[error("{}: {error}", .dir.display())]
    Inspect {
        /// The data folder.
        dir: PathBuf,
        /// What is wrong.
        error: InspectError,
    },
    /// The operating system refused an operation outside the log.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its subject.
        path: PathBuf,
        /// What the operating system reports.
        #[source]
        error: io::Error,
    },
}

impl WalError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error }
    }

    pub(super) fn storage(file: FileId) -> impl FnOnce(StorageFault) -> Self {
        move |fault| Self::Storage { file: Some(file), fault }
    }

    /// For results of writing to standard output.
    pub(super) fn output(error: io::Error) -> Self {
        Self::io("writing to", Path::new("standard output"))(error)
    }
}
