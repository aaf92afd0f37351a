//! The core as oracle: the server's own log, replayed, must tell the story that the clients tell.
//!
//! This is the only part of the checker that knows the core. The log is read as a start reads it, from as far back as its files
//! reach, and every record goes through [`State::apply`](driftq_core::state::State::apply); then each answer that a client was given is
//! looked for among the records.

mod records;
mod verify;

use std::path::Path;

use driftq_core::log::{RecoveryError, Storage};
use driftq_files::{DataFolder, FolderError};
use serde_json::Value;

use super::Entry;
use super::parsed::Facts;
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
    compare_storage(entries, &mut DataFolder::read(folder)?.storage())
}

/// Replays the log in `storage` and holds it against a history of its server; see [`compare`].
///
/// # Errors
/// [`CompareError`] if there is no log that can be relied on.
pub fn compare_storage(entries: &[Entry], storage: &mut impl Storage) -> Result<Report, CompareError> {
    let mut report = Report::default();
    report.begin(&Check::OF_LOG);
    let digests = digests(entries, &mut report);
    let log = records::read(storage, digests.iter().map(|digest| digest.lsn).collect())?;
    let facts = Facts::of(entries);
    verify::judge(&facts, &log, &mut report);
    judge_digests(&digests, &log, &mut report);
    Ok(report)
}

/// A state hash that the server told.
struct Digest {
    lsn: u64,
    told: u64,
    seq: u64,
}

fn digests(entries: &[Entry], report: &mut Report) -> Vec<Digest> {
    let mut digests = Vec::new();
    for entry in entries.iter().filter(|entry| entry.op == "digest" && entry.phase == super::Phase::Ok) {
        let lsn = entry.result.get("lsn").and_then(Value::as_u64);
        let hex = entry.result.get("digest").and_then(Value::as_str).filter(|hex| hex.len() == 16);
        match lsn.zip(hex.and_then(|hex| u64::from_str_radix(hex, 16).ok())) {
            Some((lsn, told)) => digests.push(Digest { lsn, told, seq: entry.seq }),
            None => report.accuse(Check::LogDigest, [entry.seq], || {
                "a digest must name its lsn and 16 hexadecimal digits".to_owned()
            }),
        }
    }
    digests.sort_by_key(|digest| digest.lsn);
    digests
}

fn judge_digests(digests: &[Digest], log: &records::Log, report: &mut Report) {
    let mut unseen = 0;
    for Digest { lsn, told, seq } in digests {
        if *lsn < log.base {
            unseen += 1;
            continue;
        }
        report.looked_at(Check::LogDigest, 1);
        match log.digests.get(lsn) {
            Some(found) if found == told => {}
            Some(found) => report.accuse(Check::LogDigest, [*seq], || {
                format!("at LSN {lsn} the server's state hash was {told:016x}, and the log gives {found:016x}")
            }),
            None => report.accuse(Check::LogDigest, [*seq], || {
                format!("the server told its state hash at LSN {lsn}, and the log ends at LSN {}", log.last)
            }),
        }
    }
    if unseen > 0 {
        report.note(format!("{unseen} digests lie before LSN {}, where what is left of the log begins", log.base));
    }
}
