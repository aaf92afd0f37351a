//! The records of a log, one a line.

use std::io::Write;
use std::path::Path;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, Frame, RECORD_KIND_MAX, frame, read_whole};
use driftq_core::types::Lsn;
use serde_json::{Value, json};

use super::WalError;
use super::scan::{Folder, Found};
use driftq_files::DataFolder;
use driftq_inspect::format::{Detail, fields, kind};

/// What to print, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// The first LSN.
    pub from: Lsn,
    /// The last LSN.
    pub to: Lsn,
    /// Whether each line is a JSON object.
    pub json: bool,
    /// Whether long values are printed in full.
    pub full: bool,
}

impl Default for DumpOptions {
    fn default() -> Self {
        Self { from: Lsn(0), to: Lsn(u64::MAX), json: false, full: false }
    }
}

/// How a dump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpEnd {
    /// At the end of the log or of what was asked for.
    Whole,
    /// At a place where no frame can be read. The last line says where.
    Damaged,
}

/// Prints the records in the segments of the log in `dir`: LSN, moment, kind, content. Stops at the first place where no frame can be
/// read, which in the last segment may be a torn tail and harmless; [`verify`](super::verify()) tells. Changes nothing.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log or cannot be read, or if `out` takes no more.
pub fn dump(dir: &Path, options: &DumpOptions, out: &mut impl Write) -> Result<DumpEnd, WalError> {
    let folder = DataFolder::look(dir)?;
    let mut storage = folder.storage();
    let found = Folder::survey(&mut storage)?;
    let failed = || WalError::io("writing to", Path::new("standard output"));
    let mut bytes = Vec::new();
    let mut next: Option<Lsn> = None;
    for source in &found.segments {
        read_whole(&mut storage, source.file, &mut bytes).map_err(WalError::storage(source.file))?;
        let mut stop = None;
        for item in source.scan(&bytes) {
            match item {
                Found::Frame(position, frame) => {
                    let lsn = frame.head.lsn;
                    if let Some(missing) = next.filter(|next| lsn > *next) {
                        stop = Some(format!("byte {position}: LSN {missing} should stand here, not {lsn}"));
                        break;
                    }
                    next = Some(lsn.next());
                    if lsn > options.to {
                        return Ok(DumpEnd::Whole);
                    }
                    if lsn >= options.from {
                        print(&frame, options, out).map_err(failed())?;
                    }
                }
                Found::Damage(damage) => {
                    let lsn = damage.expected.map_or_else(String::new, |lsn| format!(", LSN {lsn}"));
                    stop = Some(format!("byte {}{lsn}: {}", damage.position, damage.reason));
                    break;
                }
            }
        }
        if let Some(stop) = stop {
            print_stop(source.file, &stop, options, out).map_err(failed())?;
            return Ok(DumpEnd::Damaged);
        }
    }
    Ok(DumpEnd::Whole)
}

fn print_stop(file: FileId, stop: &str, options: &DumpOptions, out: &mut impl Write) -> std::io::Result<()> {
    if options.json {
        return writeln!(out, "{}", json!({ "stopped": { "file": file.to_string(), "reason": stop } }));
    }
    writeln!(out, "stopped: {file}, {stop}")
}

fn print(frame: &Frame<'_>, options: &DumpOptions, out: &mut impl Write) -> std::io::Result<()> {
    let head = &frame.head;
    let detail = if options.full { Detail::Full } else { Detail::Shortened };
    let (at, name, content) = match head.kind {
        frame::SYNCED_MARK => (None, "synced mark", json!({ "synced": head.synced.0 })),
        frame::FOOTER => (None, "footer", json!({ "synced": head.synced.0 })),
        ..=RECORD_KIND_MAX => match codec::decode(head.kind, head.version, frame.payload) {
            Ok(record) => (Some(record.at), kind(&record.event), Value::Object(fields(&record, detail))),
            Err(error) => (None, "not understood", unknown(frame, &error.to_string())),
        },
        _ => (None, "not understood", unknown(frame, "this kind of mark is not known")),
    };
    if options.json {
        let line = json!({ "lsn": head.lsn.0, "at_ms": at.map(|at| at.0), "kind": name, "is": content });
        return writeln!(out, "{line}");
    }
    write!(out, "{:>12}  {:>14}  {name}", head.lsn.0, at.map_or_else(|| "-".to_owned(), |at| at.0.to_string()))?;
    if let Value::Object(fields) = &content {
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            write!(out, " {name}={value}")?;
        }
    }
    writeln!(out)
}

fn unknown(frame: &Frame<'_>, why: &str) -> Value {
    json!({ "kind": frame.head.kind, "version": frame.head.version, "bytes": frame.payload.len(), "why": why })
}
