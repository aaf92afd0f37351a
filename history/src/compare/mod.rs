//! Compares a history with the broker's own log, with the core as oracle.
//!
//! Only this module uses the core. The log is replayed as broker startup does, from the oldest usable snapshot, and
//! every record goes through [`State::apply`](driftq_core::state::State::apply). Then every answer that a client
//! received is looked up among the records, and every record among the calls.

mod digests;
mod log;
mod verify;

use std::path::Path;

use driftq_core::log::{RecoveryError, Storage};
use driftq_files::{DataFolder, FolderError};
use driftq_inspect::PayloadError;

use crate::entry::Entry;
use crate::parsed::parse;
use crate::report::{Check, Report};

/// Why a log cannot be compared with a history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The folder is in use or cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The log is damaged or missing.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The bytes of a message cannot be read.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

/// Compares a history with the log in the data folder of its broker, which must have stopped. Changes nothing.
///
/// # Errors
/// [`CompareError`] if the folder is in use or holds no intact log.
pub fn compare(entries: &[Entry], folder: &Path) -> Result<Report, CompareError> {
    compare_storage(entries, &mut DataFolder::open_read_only(folder)?.storage())
}

/// Compares a history with the log in `storage`; see [`compare`].
///
/// # Errors
/// [`CompareError`] if there is no intact log.
pub fn compare_storage(entries: &[Entry], storage: &mut impl Storage) -> Result<Report, CompareError> {
    let mut report = Report::default();
    report.list(&Check::OF_LOG);
    let digests = digests::reported(entries, &mut report);
    let log = log::read(storage, digests.iter().map(|digest| digest.lsn).collect())?;
    verify::verify(&parse(entries), &log, &mut report);
    digests::verify(&digests, &log, &mut report);
    Ok(report)
}
