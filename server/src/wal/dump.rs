//! Prints the records of a log, one per line.

use std::io::{self, Write};
use std::path::Path;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, Frame, RECORD_KIND_MAX, ReferredSegment, SnapshotHead, frame, read_whole};
use driftq_core::types::{FrameNumber, Lsn, Timestamp};
use driftq_files::DataFolder;
use driftq_inspect::format::{Detail, fields, kind};
use serde_json::{Value, json};

use super::error::WalError;
use super::footers;
use super::scan::{LogFiles, ScanItem, Segment};

/// What to print.
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
    /// At the end of the log or of the requested range.
    Complete,
    /// At a byte where no frame can be read. The last line names it.
    Damaged,
}

/// Prints the records in the segments of the log in `dir`: LSN, time, kind, content; marks and footers have no LSN but
/// a frame number. A record behind a damaged first header has no known LSN. The intact snapshots follow, each with the
/// segments that it refers to. Segments that no snapshot refers to may be missing before the newest of them. Stops at
/// the first byte where no frame can be read, which in the last segment may be a harmless torn tail;
/// [`verify`](super::verify()) distinguishes the two. Changes nothing.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log or cannot be read, or if `out` cannot be written to.
pub fn dump(dir: &Path, options: &DumpOptions, out: &mut impl Write) -> Result<DumpEnd, WalError> {
    let folder = DataFolder::open_existing(dir)?;
    let mut storage = folder.storage();
    let files = LogFiles::read(&mut storage)?;
    let mut bytes = Vec::new();
    let mut next: Option<FrameNumber> = None;
    let mut last_lsn: Option<Lsn> = None;
    let holes = Holes::of(&files);
    for segment in &files.segments {
        read_whole(&mut storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
        let mut stop = None;
        for item in segment.scan(&bytes) {
            match item {
                ScanItem::Frame { position, frame, lsn } => {
                    let number = frame.head.number;
                    let is_hole = |missing: FrameNumber| holes.contain(segment, missing);
                    if let Some(missing) = next.filter(|next| number > *next && !is_hole(*next)) {
                        stop = Some(format!("byte {position}: frame {missing} is missing, found frame {number}"));
                        break;
                    }
                    next = Some(number.next());
                    // Without a valid header, LSNs continue from the segment before.
                    let counted = if frame.is_record() { last_lsn.map(Lsn::next) } else { last_lsn };
                    last_lsn = lsn.or(counted);
                    let lsn = last_lsn.unwrap_or_default();
                    if lsn > options.to {
                        return Ok(DumpEnd::Complete);
                    }
                    if lsn >= options.from {
                        let place = (segment, position as u64);
                        print(&frame, place, last_lsn, options, out).map_err(WalError::output)?;
                    }
                }
                ScanItem::Damage(damage) => {
                    let frame = damage.expected.map_or_else(String::new, |number| format!(", frame {number}"));
                    stop = Some(format!("byte {}{frame}: {}", damage.position, damage.reason));
                    break;
                }
            }
        }
        if let Some(stop) = stop {
            print_stop(segment.file, &stop, options, out).map_err(WalError::output)?;
            return Ok(DumpEnd::Damaged);
        }
    }
    print_snapshots(&files, options, out).map_err(WalError::output)?;
    Ok(DumpEnd::Complete)
}

/// Where segments may be missing.
struct Holes<'a> {
    /// The newest intact snapshot, and the segments that it refers to.
    newest: Option<(FrameNumber, &'a [ReferredSegment])>,
    present: Vec<u64>,
}

impl<'a> Holes<'a> {
    fn of(files: &'a LogFiles) -> Self {
        let present = files.segments.iter().map(|segment| segment.sequence).collect();
        Self { newest: files.kept_snapshots().next(), present }
    }

    /// Whether the frames from number `missing` on to the first of `segment` may be missing: the snapshot is of them,
    /// and it does not refer to their segments.
    fn contain(&self, segment: &Segment, missing: FrameNumber) -> bool {
        let (Some((newest, referred)), Ok(header)) = (self.newest, segment.header) else { return false };
        let before = referred.iter().filter(|referred| referred.sequence < segment.sequence);
        let is_there = |referred: &ReferredSegment| self.present.binary_search(&referred.sequence).is_ok();
        let all_there = before.filter(|referred| referred.last.frame >= missing).all(is_there);
        header.first_frame() > missing && header.previous.frame <= newest && all_there
    }
}

fn print_snapshots(files: &LogFiles, options: &DumpOptions, out: &mut impl Write) -> io::Result<()> {
    let heads = files.snapshots.iter().rev().filter_map(|(_, head)| head.ok());
    for head in heads.filter(|head| (options.from..=options.to).contains(&head.at.lsn)) {
        let referred = files.referred.get(&head.at.frame).map_or(&[][..], Vec::as_slice);
        print_snapshot(&head, referred, options, out)?;
    }
    Ok(())
}

fn print_snapshot(
    head: &SnapshotHead,
    referred: &[ReferredSegment],
    options: &DumpOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let (file, frame, lsn) = (head.file().to_string(), head.at.frame.0, head.at.lsn.0);
    let segment = |segment: &ReferredSegment| {
        let (file, last) = (segment.file().to_string(), segment.last);
        let (end, live_bytes) = (segment.end, segment.live_bytes);
        json!({ "file": file, "frame": last.frame.0, "lsn": last.lsn.0, "end": end, "live_bytes": live_bytes })
    };
    let segments: Vec<Value> = referred.iter().map(segment).collect();
    if options.json {
        let content = json!({ "file": file, "frame": frame, "lsn": lsn, "segments": segments });
        return writeln!(out, "{}", json!({ "lsn": null, "at_ms": null, "kind": "snapshot", "is": content }));
    }
    write_line(None, None, "snapshot", &json!({ "file": file, "frame": frame, "lsn": lsn }), out)?;
    segments.iter().try_for_each(|segment| write_line(None, None, "refers to", segment, out))
}

fn print_stop(file: FileId, stop: &str, options: &DumpOptions, out: &mut impl Write) -> io::Result<()> {
    if options.json {
        return writeln!(out, "{}", json!({ "stopped": { "file": file.to_string(), "reason": stop } }));
    }
    writeln!(out, "stopped: {file}, {stop}")
}

/// Prints a frame that stands at a byte of a segment; `up_to` is the last LSN up to it.
fn print(
    frame: &Frame<'_>,
    (segment, position): (&Segment, u64),
    up_to: Option<Lsn>,
    options: &DumpOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let (head, lsn) = (&frame.head, up_to.filter(|_| frame.is_record()));
    let control = || json!({ "frame": head.number.0, "synced": head.synced.0 });
    let detail = if options.full { Detail::Full } else { Detail::Shortened };
    let (at, name, content) = match head.kind {
        frame::SYNCED_MARK => (None, "synced mark", control()),
        frame::FOOTER => (None, "footer", footers::fields(segment, frame, position, up_to)),
        ..=RECORD_KIND_MAX => match codec::decode(head.kind, head.version, frame.payload) {
            Ok(record) => (Some(record.at), kind(&record.event), Value::Object(fields(&record, detail))),
            Err(error) => (None, "not understood", unknown(frame, &error.to_string())),
        },
        _ => (None, "not understood", unknown(frame, "unknown kind of mark")),
    };
    if options.json {
        let line = json!({ "lsn": lsn.map(|lsn| lsn.0), "at_ms": at.map(|at| at.0), "kind": name, "is": content });
        return writeln!(out, "{line}");
    }
    write_line(lsn, at, name, &content, out)
}

fn write_line(
    lsn: Option<Lsn>,
    at: Option<Timestamp>,
    name: &str,
    content: &Value,
    out: &mut impl Write,
) -> io::Result<()> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    write!(out, "{:>12}  {:>14}  {name}", number(lsn.map(|lsn| lsn.0)), number(at.map(|at| at.0)))?;
    if let Value::Object(fields) = content {
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            write!(out, " {name}={value}")?;
        }
    }
    writeln!(out)
}

fn unknown(frame: &Frame<'_>, why: &str) -> Value {
    json!({ "kind": frame.head.kind, "version": frame.head.version, "bytes": frame.payload.len(), "why": why })
}
