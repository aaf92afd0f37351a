//! Whether a log is whole: every file by itself, and all of them together as a start would read them.

use std::fmt;
use std::path::Path;

use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, Notice, RecoveryError, Storage, read_whole};
use driftq_core::pipeline::inspect;
use driftq_core::types::Lsn;

use super::WalError;
use super::salvage::Contents;
use super::scan::{Folder, Found};
use driftq_files::DataFolder;

/// What one file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Which file.
    pub file: FileId,
    /// What is in it, in words.
    pub content: String,
    /// What is wrong with it, in words; a tail that was never synced is nothing wrong.
    pub damage: Vec<String>,
}

/// What was found in a data folder.
#[derive(Debug)]
pub struct Verification {
    /// Every file of the log, in order.
    pub files: Vec<FileReport>,
    /// What a start would say on the way.
    pub notices: Vec<Notice>,
    /// Through which LSN the log reaches and what is in it, or why a start would be refused.
    pub outcome: Result<(Lsn, Contents), RecoveryError>,
}

impl Verification {
    /// Whether a broker would start on this log and not one bit of it is damaged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.outcome.is_ok() && self.files.iter().all(|file| file.damage.is_empty())
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            writeln!(f, "{}  {}", file.file, file.content)?;
            for damage in &file.damage {
                writeln!(f, "    damaged: {damage}")?;
            }
        }
        for notice in &self.notices {
            writeln!(f, "notice: {notice}")?;
        }
        match &self.outcome {
            Ok((lsn, contents)) if self.is_whole() => writeln!(f, "ok: LSN {lsn}, {contents}"),
            Ok((lsn, contents)) => writeln!(
                f,
                "damaged, but nothing is lost: a broker starts on this log and passes over the damage (LSN {lsn}, {contents})"
            ),
            Err(error) => writeln!(f, "refused: {error}"),
        }
    }
}

/// Reads every file of the log in `dir`, then all of it as a start would. Changes nothing.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log, or cannot be read; and if its files are of a newer version.
pub fn verify(dir: &Path) -> Result<Verification, WalError> {
    let folder = DataFolder::open_existing(dir)?;
    let mut storage = folder.storage();
    let outcome = inspect(&mut storage, None, &NoFaults);
    if let Err(error @ (RecoveryError::NoLog | RecoveryError::Storage { .. } | RecoveryError::UnknownVersion { .. })) =
        outcome
    {
        return Err(WalError::Recovery(error));
    }
    let torn = match &outcome {
        Ok((_, recovered)) => recovered.notices.iter().find_map(|notice| match notice {
            Notice::TornTail { file, position, .. } => Some((*file, *position)),
            _ => None,
        }),
        Err(_) => None,
    };
    let files = match Folder::survey(&mut storage) {
        Ok(found) => file_reports(&mut storage, &found, torn)?,
        // Then the refusal is all there is to say.
        Err(WalError::NoIdentity) => Vec::new(),
        Err(error) => return Err(error),
    };
    let (notices, outcome) = match outcome {
        Ok((state, recovered)) => (recovered.notices, Ok((recovered.last_lsn, Contents::of(&state)))),
        Err(error) => (Vec::new(), Err(error)),
    };
    Ok(Verification { files, notices, outcome })
}

fn file_reports(
    storage: &mut impl Storage,
    found: &Folder,
    torn: Option<(FileId, u64)>,
) -> Result<Vec<FileReport>, WalError> {
    let mut reports = Vec::new();
    let mut bytes = Vec::new();
    for source in &found.segments {
        read_whole(storage, source.file, &mut bytes).map_err(WalError::storage(source.file))?;
        reports.push(segment_report(source, &bytes, torn));
    }
    for (lsn, whole) in &found.snapshots {
        let damage = whole.err().map(|error| error.to_string());
        let content = if damage.is_none() { format!("snapshot of LSN {lsn}, whole") } else { "snapshot".to_owned() };
        reports.push(FileReport { file: FileId::Snapshot(*lsn), content, damage: damage.into_iter().collect() });
    }
    for (file, _) in &found.foreign {
        let damage = vec!["it belongs to another log".to_owned()];
        reports.push(FileReport { file: *file, content: "not read".to_owned(), damage });
    }
    let drafts = found.files.iter().filter(|file| matches!(file, FileId::SnapshotDraft(_)));
    reports.extend(drafts.map(|file| FileReport {
        file: *file,
        content: "snapshot that was never finished, of no worth".to_owned(),
        damage: Vec::new(),
    }));
    reports.sort_by_key(|report| report.file);
    Ok(reports)
}

fn segment_report(source: &super::scan::Source, bytes: &[u8], torn: Option<(FileId, u64)>) -> FileReport {
    let (mut frames, mut first, mut last, mut damage) = (0_u64, None, None, Vec::new());
    let mut scanner = source.scan(bytes);
    for found in &mut scanner {
        match found {
            Found::Frame(_, frame) => {
                frames += 1;
                first = first.or(Some(frame.head.lsn));
                last = Some(frame.head.lsn);
            }
            Found::Damage(bad) if torn == Some((source.file, bad.position as u64)) => break,
            Found::Damage(bad) => {
                let lsn = bad.expected.map_or_else(String::new, |lsn| format!(", LSN {lsn}"));
                let on = bad.resumes_at.map_or_else(
                    || "nothing behind it can be read".to_owned(),
                    |at| format!("frames go on at byte {at}"),
                );
                damage.push(format!("byte {}{lsn}: {}; {on}", bad.position, bad.reason));
            }
        }
    }
    let range = match (first, last) {
        (Some(first), Some(last)) => format!("LSN {first} to {last}, {frames} frames, "),
        _ => "no frames, ".to_owned(),
    };
    let content = match source.header {
        Err(_) if frames == 0 => "prepared, or its header is gone; no frames".to_owned(),
        _ => format!("{range}{} of {} bytes used", scanner.position(), source.len),
    };
    match source.header {
        Err(error) if frames > 0 => damage.insert(0, format!("byte 0: {error}")),
        Ok(header) if header.file() != source.file => {
            damage.insert(0, format!("byte 0: by its header it is {}", header.file()));
        }
        _ => {}
    }
    FileReport { file: source.file, content, damage }
}
