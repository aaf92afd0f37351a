//! The overview of a log: its files, records by kind, rates, and the state at one point.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::log::{
    FileId, FileInfo, HEADER_BYTES, LogPosition, Notice, Recovered, SegmentHeader, Storage, read_snapshot_head,
};
use driftq_core::state::State;
use driftq_core::types::Timestamp;
use serde::Serialize;

use crate::error::InspectError;
use crate::format::{grouped, kind, timestamp};
use crate::point::LogPoint;
use crate::rates::Rates;
use crate::reader::LogReader;
use crate::replay::{LoggedRecord, ReplayLimit, ReplayObserver, Replayed};
use crate::summary::StateSummary;

/// The overview of a log, up to one of its points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The id of the log.
    pub log: String,
    /// The LSN of the first state that can be restored; 0 if the log is complete from its beginning.
    pub base: u64,
    /// The last LSN of the log.
    pub last: u64,
    /// How the log ends.
    pub ending: LogEnding,
    /// What recovery reports, except what every log has.
    pub notices: Vec<String>,
    /// Its files.
    pub files: Vec<FileSummary>,
    /// The number of replayed records.
    pub records: u64,
    /// Those records by kind, the most frequent first.
    pub kinds: Vec<KindCount>,
    /// Those records by time.
    pub rates: Rates,
    /// The LSN that the state belongs to.
    pub lsn: u64,
    /// The LSN of the last record at or before it: the same, as LSNs have no gaps.
    pub record_lsn: u64,
    /// The time of that record, in milliseconds since 1970.
    pub at_ms: u64,
    /// The state.
    #[serde(rename = "standing")]
    pub summary: StateSummary,
    /// The digest of the state, as `GET /v1/digest` returns it.
    pub digest: String,
}

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogEnding {
    /// The broker closed it.
    Clean,
    /// The broker was killed; the last frame is whole.
    Killed,
    /// The broker was killed during a write. Startup cuts the torn tail; no client was answered on its strength.
    Torn,
}

/// A file of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its first and last LSN; for a snapshot, its LSN twice.
    pub lsns: Option<(u64, u64)>,
    /// The times of its first and last replayed record, in milliseconds since 1970.
    #[serde(rename = "moments_ms")]
    pub times_ms: Option<(u64, u64)>,
    /// Its role, where it is not obvious.
    pub note: &'static str,
}

/// The records of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The kind.
    pub kind: &'static str,
    /// How many there are.
    pub records: u64,
    /// The size of their frames.
    pub bytes: u64,
}

/// Counts the replayed records.
#[derive(Debug, Default)]
struct Counter {
    kinds: BTreeMap<&'static str, (u64, u64)>,
    rates: Rates,
    /// The first LSN of each segment, in order.
    segments: Vec<u64>,
    /// The times of the first and the last record of each segment.
    times: Vec<Option<(Timestamp, Timestamp)>>,
    current: usize,
}

impl ReplayObserver for Counter {
    fn reset(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        *self = Self { times: vec![None; segments.len()], segments, ..Self::default() };
    }

    fn before_record(&mut self, _state: &State, logged: &LoggedRecord) {
        let record = &logged.record;
        let (records, bytes) = self.kinds.entry(kind(&record.event)).or_default();
        *records += 1;
        *bytes += logged.bytes;
        self.rates.count(record.at, &record.event);
        while self.segments.get(self.current + 1).is_some_and(|first| *first <= logged.lsn) {
            self.current += 1;
        }
        if let Some(times) = self.times.get_mut(self.current) {
            *times = Some((times.map_or(record.at, |(first, _)| first), record.at));
        }
    }
}

impl<S: Storage> LogReader<S> {
    /// The overview of the log with the state at `at`, or at its end.
    ///
    /// # Errors
    /// As [`LogReader::replay`].
    pub fn overview(&mut self, at: Option<LogPoint>) -> Result<Overview, InspectError> {
        let headers = self.segment_headers();
        let mut counter =
            Counter { segments: headers.iter().map(|(_, before)| before.lsn.0 + 1).collect(), ..Counter::default() };
        let replayed = self.replay(at, &mut counter)?;
        let files = self.files(&headers, &counter, &replayed);
        let lsn = replayed.through();
        let Replayed { state, base, reached, records, recovered, limit, .. } = replayed;
        let now = if let ReplayLimit::Time(time) = limit { time } else { state.clock() };
        let mut kinds: Vec<_> = counter
            .kinds
            .iter()
            .map(|(kind, (records, bytes))| KindCount { kind, records: *records, bytes: *bytes })
            .collect();
        kinds.sort_by_key(|count| std::cmp::Reverse(count.records));
        Ok(Overview {
            log: recovered.log_id.to_string(),
            base,
            last: recovered.last.lsn.0,
            ending: LogEnding::of(&recovered),
            notices: recovered.notices.iter().filter(|notice| !is_usual(notice)).map(ToString::to_string).collect(),
            files,
            records,
            kinds,
            rates: counter.rates,
            lsn,
            record_lsn: reached,
            at_ms: state.clock().0,
            summary: StateSummary::of(&state, now),
            digest: format!("{:016x}", state.digest()),
        })
    }

    /// The segments with a valid header and the position each begins behind, in order.
    fn segment_headers(&mut self) -> Vec<(FileId, LogPosition)> {
        let mut headers = Vec::new();
        for info in self.storage.list().unwrap_or_default() {
            let mut bytes = vec![0; HEADER_BYTES];
            let FileId::Segment(_) = info.file else { continue };
            // Recovery reports unreadable and invalid headers.
            let Ok(len) = self.storage.read(info.file, 0, &mut bytes) else { continue };
            if let Ok(header) = SegmentHeader::decode(&bytes[..len]) {
                headers.push((info.file, header.previous));
            }
        }
        headers.sort_unstable_by_key(|(file, _)| *file);
        headers
    }

    fn files(&mut self, headers: &[(FileId, LogPosition)], counter: &Counter, replayed: &Replayed) -> Vec<FileSummary> {
        let (base, last) = (replayed.recovered.snapshot, replayed.recovered.last);
        let files = self.storage.list().unwrap_or_default();
        let mut summary = |info: FileInfo| {
            let index = headers.iter().position(|(file, _)| *file == info.file);
            let end = |index: usize| headers.get(index + 1).map_or(last, |(_, before)| *before);
            let (lsns, note) = match info.file {
                FileId::Snapshot(frame) => {
                    let head = read_snapshot_head(&mut self.storage, frame).ok().and_then(Result::ok);
                    let is_base = base.is_some_and(|base| base.frame == frame);
                    let lsns = head.map(|head| (head.at.lsn.0, head.at.lsn.0));
                    (lsns, if is_base { "replay starts here" } else { "" })
                }
                FileId::SnapshotDraft(_) => (None, "unfinished"),
                FileId::Segment(_) => match index.map(|index| (headers[index].1, end(index))) {
                    None => (None, "preallocated, not in use"),
                    Some((before, end)) if end.frame <= before.frame => (None, "no frames"),
                    Some((before, end)) => {
                        let lsns = (end.lsn > before.lsn).then_some((before.lsn.0 + 1, end.lsn.0));
                        let is_covered = base.is_some_and(|base| end.frame <= base.frame);
                        let empty = if lsns.is_none() { "no records" } else { "" };
                        (lsns, if is_covered { "before the replay" } else { empty })
                    }
                },
            };
            let times = index.and_then(|index| counter.times.get(index).copied().flatten());
            let times_ms = times.map(|(first, last)| (first.0, last.0));
            FileSummary { name: info.file.to_string(), bytes: info.len, lsns, times_ms, note }
        };
        let mut files: Vec<_> = files.into_iter().map(&mut summary).collect();
        files.sort_by(|one, other| one.name.cmp(&other.name));
        files
    }
}

/// Every log has a segment that is preallocated.
fn is_usual(notice: &Notice) -> bool {
    matches!(notice, Notice::NeverBegun { .. })
}

impl LogEnding {
    fn of(recovered: &Recovered) -> Self {
        match recovered.has_torn_tail() {
            true => Self::Torn,
            false if recovered.clean => Self::Clean,
            false => Self::Killed,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Clean => "closed cleanly",
            Self::Killed => "not closed: the broker was killed or lost power",
            Self::Torn => "not closed: the broker was killed or lost power during a write",
        }
    }
}

impl Overview {
    /// The part of the text that is about the state: its counts and its digest.
    #[must_use]
    pub fn state(&self) -> String {
        let at = timestamp(Timestamp(self.at_ms));
        let Self { summary, digest, lsn, .. } = self;
        format!("state after LSN {lsn}, of {at}\n{summary}digest {digest} at LSN {lsn}\n")
    }
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "log {}, {}", self.log, self.ending.describe())?;
        match self.base {
            0 => writeln!(f, "complete from its beginning to LSN {}", self.last)?,
            base => writeln!(
                f,
                "readable from LSN {base} to LSN {}; a snapshot has replaced the records before",
                self.last
            )?,
        }
        for notice in &self.notices {
            writeln!(f, "note: {notice}")?;
        }
        writeln!(f, "\nfiles")?;
        for file in &self.files {
            writeln!(f, "{}", file_line(file).trim_end())?;
        }
        writeln!(f, "\nrecords: {}", grouped(self.records))?;
        for KindCount { kind, records, bytes } in &self.kinds {
            writeln!(f, "  {kind:<22}{:>14}{:>18} bytes", grouped(*records), grouped(*bytes))?;
        }
        write!(f, "\n{}\n{}", self.rates, self.state())
    }
}

fn file_line(file: &FileSummary) -> String {
    let lsns = match file.lsns {
        None => "-".to_owned(),
        Some((first, last)) if first == last => format!("LSN {first}"),
        Some((first, last)) => format!("LSN {first} to {last}"),
    };
    let times = file.times_ms.map_or_else(String::new, |(first, last)| {
        format!("{} to {}", timestamp(Timestamp(first)), timestamp(Timestamp(last)))
    });
    let (name, bytes) = (&file.name, grouped(file.bytes));
    format!("  {name:<30}{bytes:>14} bytes  {lsns:<24}{times:<54}{}", file.note)
}
