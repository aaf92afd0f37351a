//! Moves the files of a log aside, so that the next start begins an empty one.

use std::path::PathBuf;

use driftq_core::log::Storage;
use driftq_files::DataFolder;

use super::error::WalError;
use super::quarantine::{self, Replacement};

/// Moves every file of the log to a quarantine folder, which it returns; `None` if there is no log. A salvage or a
/// reset that was interrupted is completed first, so that after a crash the same call can be repeated.
///
/// # Errors
/// [`WalError`]. No file is deleted; a broker does not start on the folder while some are moved and some are not.
pub fn reset(folder: &DataFolder) -> Result<Option<PathBuf>, WalError> {
    let dir = folder.path();
    if let Some(pending) = Replacement::pending(dir)? {
        pending.perform(dir)?;
    }
    let files = folder.storage().list().map_err(|fault| WalError::Storage { file: None, fault })?;
    if files.is_empty() {
        return Ok(None);
    }
    let old: Vec<String> = files.iter().map(|info| info.file.to_string()).collect();
    quarantine::prepare(dir, &old, true, |_| Ok(Vec::new()))?.perform(dir).map(Some)
}
