//! Checks whether a log is intact: every file on its own, and all of them together as broker startup reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, LogPosition, Notice, RecoveryError, ReferredSegment, Storage, read_whole};
use driftq_core::pipeline::{inspect, inspect_start_with};
use driftq_core::types::Lsn;
use driftq_files::DataFolder;

use super::error::WalError;
use super::footers::FooterCheck;
use super::salvage::Contents;
use super::scan::{LogFiles, ScanItem, Segment};

/// The content of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// The file.
    pub file: FileId,
    /// A description of its content.
    pub content: String,
    /// Descriptions of its damage. A tail that was never synced is no damage.
    pub damage: Vec<String>,
}

/// The result of verifying a data folder.
#[derive(Debug)]
pub struct Verification {
    /// Every file of the log, in order.
    pub files: Vec<FileReport>,
    /// What recovery reports without refusing the log.
    pub notices: Vec<Notice>,
    /// The last LSN of the log and its contents, or why it cannot be read as a whole.
    pub recovery: Result<(Lsn, Contents), RecoveryError>,
    /// Whether a broker would start on it. It does not read the payloads before the snapshot, so it may start where the
    /// log is damaged.
    pub starts: bool,
}

impl Verification {
    /// Whether the log can be read as a whole and no file of it is damaged.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.recovery.is_ok() && self.files.iter().all(|file| file.damage.is_empty())
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
        match &self.recovery {
            Ok((lsn, contents)) if self.is_intact() => writeln!(f, "ok: LSN {lsn}, {contents}"),
            Ok((lsn, contents)) => writeln!(
                f,
                "damaged, but nothing is lost: a broker starts on this log and ignores the damage (LSN {lsn}, \
                    {contents})"
            ),
            Err(error) if self.starts => writeln!(
                f,
                "damaged: {error}. A broker starts on this log, but payloads before its snapshot cannot be delivered"
            ),
            Err(error) => writeln!(f, "refused: {error}"),
        }
    }
}

/// Reads every file of the log in `dir`, then the whole log as recovery does: more than broker startup, which does not
/// read the payloads before the snapshot. A segment that is missing is damage
/// if it is needed to recover the log, or if one of the two newest intact snapshots refers to it. Changes nothing.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log, cannot be read, or was written by another version or a cluster.
pub fn verify(dir: &Path) -> Result<Verification, WalError> {
    let folder = DataFolder::open_existing(dir)?;
    let mut storage = folder.storage();
    let recovery = inspect(&mut storage, None);
    let starts = recovery.is_ok() || inspect_start_with(&mut storage, None, &NoFaults).is_ok();
    let torn_tail = match &recovery {
        Err(error) if !error.is_damage() => return Err(WalError::Recovery(error.clone())),
        Ok((_, recovered)) => recovered.notices.iter().find_map(|notice| match notice {
            Notice::TornTail { file, position, .. } => Some((*file, *position)),
            _ => None,
        }),
        Err(_) => None,
    };
    let files = match LogFiles::read(&mut storage) {
        Ok(files) => file_reports(&mut storage, &files, torn_tail)?,
        // The refusal of recovery covers this.
        Err(WalError::NoIdentity) => Vec::new(),
        Err(error) => return Err(error),
    };
    let (notices, recovery) = match recovery {
        Ok((state, recovered)) => (recovered.notices, Ok((recovered.last.lsn, Contents::of(&state)))),
        Err(error) => (Vec::new(), Err(error)),
    };
    Ok(Verification { files, notices, recovery, starts })
}

fn file_reports(
    storage: &mut impl Storage,
    files: &LogFiles,
    torn_tail: Option<(FileId, u64)>,
) -> Result<Vec<FileReport>, WalError> {
    let mut reports = Vec::new();
    let mut bytes = Vec::new();
    let mut whole = BTreeMap::new();
    for segment in &files.segments {
        read_whole(storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
        let (report, through) = segment_report(segment, &bytes, torn_tail);
        whole.insert(segment.file, through);
        reports.push(report);
    }
    for (frame, head) in &files.snapshots {
        let content = match head {
            Ok(head) => {
                let listed = files.referred.get(frame).map_or(0, Vec::len);
                format!("snapshot of LSN {}, frame {frame}, refers to {listed} segments, intact", head.at.lsn)
            }
            Err(_) => "snapshot".to_owned(),
        };
        let mut damage: Vec<String> = head.err().map(|error| error.to_string()).into_iter().collect();
        let listed = files.kept_snapshots().find(|(kept, _)| kept == frame).map_or(&[][..], |(_, listed)| listed);
        damage.extend(listed.iter().filter_map(|segment| unusable(segment, whole.get(&segment.file()).copied())));
        reports.push(FileReport { file: FileId::Snapshot(*frame), content, damage });
    }
    for (file, _) in &files.foreign {
        let damage = vec!["it belongs to another log".to_owned()];
        reports.push(FileReport { file: *file, content: "not read".to_owned(), damage });
    }
    let drafts = files.files.iter().filter(|file| matches!(file, FileId::SnapshotDraft(_)));
    reports.extend(drafts.map(|file| FileReport {
        file: *file,
        content: "unfinished snapshot, ignored".to_owned(),
        damage: Vec::new(),
    }));
    reports.sort_by_key(|report| report.file);
    Ok(reports)
}

/// Why the payloads in a listed segment cannot be read, if so; `whole` is the end of what is intact from its beginning
/// on, `None` if it is missing.
fn unusable(segment: &ReferredSegment, whole: Option<LogPosition>) -> Option<String> {
    let why = match whole {
        None => "is missing".to_owned(),
        Some(through) if through.frame < segment.last.frame => {
            format!("is intact through frame {} only, not through frame {}", through.frame, segment.last.frame)
        }
        Some(_) => return None,
    };
    Some(format!("it refers to {} bytes in {}, which {why}", segment.live_bytes, segment.file()))
}

/// The report on a segment, and the end of what is intact from its beginning on.
fn segment_report(segment: &Segment, bytes: &[u8], torn_tail: Option<(FileId, u64)>) -> (FileReport, LogPosition) {
    let (mut frames, mut first, mut last, mut damage) = (0_u64, None, None, Vec::new());
    let header = segment.header.ok().filter(|header| header.file() == segment.file);
    let (mut whole, mut is_whole) = (header.map_or(LogPosition::default(), |header| header.previous), header.is_some());
    let mut lsns: Option<(Lsn, Lsn)> = None;
    let mut footer = FooterCheck::new(segment);
    let mut scanner = segment.scan(bytes);
    for item in &mut scanner {
        match item {
            ScanItem::Frame { position, frame, lsn } => {
                frames += 1;
                if is_whole {
                    whole = whole.after(frame.head.kind);
                    let wrong = footer.pass(&frame, position as u64, whole.lsn);
                    damage.extend(wrong.map(|wrong| format!("byte {position}, {wrong}")));
                }
                first = first.or(Some(frame.head.number));
                last = Some(frame.head.number);
                if let Some(lsn) = lsn.filter(|_| frame.is_record()) {
                    lsns = Some((lsns.map_or(lsn, |(first, _)| first), lsn));
                }
            }
            ScanItem::Damage(found) if torn_tail == Some((segment.file, found.position as u64)) => break,
            ScanItem::Damage(found) => {
                is_whole = false;
                let frame = found.expected.map_or_else(String::new, |number| format!(", frame {number}"));
                let resumes = found
                    .resumes_at
                    .map_or_else(|| "no frame follows".to_owned(), |at| format!("the next frame is at byte {at}"));
                damage.push(format!("byte {}{frame}: {}; {resumes}", found.position, found.reason));
            }
        }
    }
    let lsns = lsns.map_or_else(String::new, |(first, last)| format!("LSN {first} to {last}, "));
    let range = match (first, last) {
        (Some(first), Some(last)) => format!("{lsns}{frames} frames from {first} to {last}, "),
        _ => "no frames, ".to_owned(),
    };
    let content = match segment.header {
        Err(_) if frames == 0 => "preallocated, or its header is lost; no frames".to_owned(),
        _ => {
            let footer = footer.found.map_or_else(String::new, |found| format!(", {found}"));
            format!("{range}{} of {} bytes used{footer}", scanner.position(), segment.len)
        }
    };
    match segment.header {
        Err(error) if frames > 0 => damage.insert(0, format!("byte 0: {error}")),
        Ok(header) if header.file() != segment.file => {
            damage.insert(0, format!("byte 0: by its header it is {}", header.file()));
        }
        _ => {}
    }
    (FileReport { file: segment.file, content, damage }, whole)
}
