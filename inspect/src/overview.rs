//! A log at a glance: its files, what stands in it, what happened when, and what it all comes to.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::log::{FileId, HEADER_BYTES, Notice, Recovered, SegmentHeader, Storage};
use driftq_core::state::State;
use driftq_core::types::Timestamp;
use serde::Serialize;

use super::rates::Rates;
use super::replay::{Bound, Logged, Replayed, Watch};
use super::{At, Wal, WalError};
use crate::format::grouped;
use crate::format::names::moment;
use crate::summary::Standing;

/// A log at a glance, as it was at a point of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The identity of the log.
    pub log: String,
    /// Everything after this LSN can be told; 0 if the log is there from its beginning.
    pub base: u64,
    /// The last LSN of the log, marks of its own included.
    pub last: u64,
    /// How it ends.
    pub ending: Ending,
    /// What recovery found worth saying.
    pub notices: Vec<String>,
    /// Its files.
    pub files: Vec<FileLine>,
    /// How many records were replayed.
    pub records: u64,
    /// Those records by kind, the most frequent first.
    pub kinds: Vec<KindLine>,
    /// Those records by time.
    pub rates: Rates,
    /// The LSN this is the state of.
    pub lsn: u64,
    /// The LSN of the last record at or before it.
    pub record_lsn: u64,
    /// The moment of that record, in milliseconds since 1970.
    pub at_ms: u64,
    /// Where everything stood there.
    pub standing: Standing,
    /// The state's digest there, as `GET /v1/digest` tells it.
    pub digest: String,
}

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It was closed in an orderly way.
    Clean,
    /// Its broker was killed; the last thing it wrote is whole.
    Killed,
    /// Its broker was killed over something it was writing, which a start cuts: nobody was told of it.
    Torn,
}

/// A file of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileLine {
    /// Its name.
    pub name: String,
    /// How many bytes it takes.
    pub bytes: u64,
    /// Its first and its last LSN; for a snapshot, twice the one it stands for.
    pub lsns: Option<(u64, u64)>,
    /// The moments of its first and its last record that were replayed, in milliseconds since 1970.
    pub moments_ms: Option<(u64, u64)>,
    /// What it is good for.
    pub note: &'static str,
}

/// Records of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindLine {
    /// The kind.
    pub kind: &'static str,
    /// How many.
    pub records: u64,
    /// The bytes of their frames.
    pub bytes: u64,
}

/// Counts what passes by.
#[derive(Debug, Default)]
struct Counts {
    kinds: BTreeMap<&'static str, (u64, u64)>,
    rates: Rates,
    /// The first LSN of each segment, in order.
    segments: Vec<u64>,
    /// The moments of the first and the last record of each.
    moments: Vec<Option<(Timestamp, Timestamp)>>,
    current: usize,
}

impl Watch for Counts {
    fn reset(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        *self = Self { moments: vec![None; segments.len()], segments, ..Self::default() };
    }

    fn before(&mut self, _state: &State, logged: &Logged) {
        let record = &logged.record;
        let (records, bytes) = self.kinds.entry(crate::format::sentence::kind(&record.event)).or_default();
        *records += 1;
        *bytes += logged.bytes;
        self.rates.count(record.at, &record.event);
        while self.segments.get(self.current + 1).is_some_and(|first| *first <= logged.lsn) {
            self.current += 1;
        }
        if let Some(moments) = self.moments.get_mut(self.current) {
            *moments = Some((moments.map_or(record.at, |(first, _)| first), record.at));
        }
    }
}

impl<S: Storage> Wal<S> {
    /// The log at a glance, as it was at a point of it or as it is at its end.
    ///
    /// # Errors
    /// As [`Wal::replay`].
    pub fn overview(&mut self, at: Option<At>) -> Result<Overview, WalError> {
        let headers = self.headers();
        let mut counts = Counts { segments: headers.iter().map(|(_, first)| *first).collect(), ..Counts::default() };
        let replayed = self.replay(at, &mut counts)?;
        let files = self.files(&headers, &counts, &replayed);
        let lsn = replayed.through();
        let Replayed { state, base, reached, records, recovered, bound, .. } = replayed;
        let last = recovered.last_lsn.0;
        let now = if let Bound::Time(moment) = bound { moment } else { state.clock() };
        let mut kinds: Vec<_> = counts
            .kinds
            .iter()
            .map(|(kind, (records, bytes))| KindLine { kind, records: *records, bytes: *bytes })
            .collect();
        kinds.sort_by_key(|line| std::cmp::Reverse(line.records));
        Ok(Overview {
            log: recovered.log_id.to_string(),
            base,
            last,
            ending: Ending::of(&recovered),
            notices: recovered.notices.iter().filter(|notice| !is_usual(notice)).map(ToString::to_string).collect(),
            files,
            records,
            kinds,
            rates: counts.rates,
            lsn,
            record_lsn: reached,
            at_ms: state.clock().0,
            standing: Standing::of(&state, now),
            digest: format!("{:016x}", state.digest()),
        })
    }

    /// The segments whose headers can be read, by sequence, with the first LSN of each.
    fn headers(&mut self) -> Vec<(FileId, u64)> {
        let mut headers = Vec::new();
        for info in self.storage.list().unwrap_or_default() {
            let mut bytes = vec![0; HEADER_BYTES];
            let FileId::Segment(_) = info.file else { continue };
            // Whatever is wrong with it, recovery will say.
            let Ok(len) = self.storage.read(info.file, 0, &mut bytes) else { continue };
            if let Ok(header) = SegmentHeader::decode(&bytes[..len]) {
                headers.push((info.file, header.first_lsn().0));
            }
        }
        headers.sort_unstable();
        headers
    }

    fn files(&mut self, headers: &[(FileId, u64)], counts: &Counts, replayed: &Replayed) -> Vec<FileLine> {
        let last = replayed.recovered.last_lsn.0;
        let line = |info: driftq_core::log::FileInfo| {
            let index = headers.iter().position(|(file, _)| *file == info.file);
            let next = |index: usize| headers.get(index + 1).map_or(last, |(_, first)| first - 1);
            let (lsns, note) = match info.file {
                FileId::Snapshot(lsn) if lsn.0 == replayed.base => (Some((lsn.0, lsn.0)), "what is told begins here"),
                FileId::Snapshot(lsn) => (Some((lsn.0, lsn.0)), ""),
                FileId::SnapshotDraft(_) => (None, "unfinished"),
                FileId::Segment(_) => match index.map(|index| (headers[index].1, next(index))) {
                    None => (None, "made ready, never begun"),
                    Some((first, last)) if last < first => (None, "begun, nothing in it"),
                    Some((first, last)) if last <= replayed.base => (Some((first, last)), "before what is told"),
                    lsns => (lsns, ""),
                },
            };
            let moments = index.and_then(|index| counts.moments.get(index).copied().flatten());
            let moments_ms = moments.map(|(first, last)| (first.0, last.0));
            FileLine { name: info.file.to_string(), bytes: info.len, lsns, moments_ms, note }
        };
        let mut files: Vec<_> = self.storage.list().unwrap_or_default().into_iter().map(line).collect();
        files.sort_by(|one, other| one.name.cmp(&other.name));
        files
    }
}

/// A segment that is made ready ahead is there in every log.
fn is_usual(notice: &Notice) -> bool {
    matches!(notice, Notice::NeverBegun { .. })
}

impl Ending {
    fn of(recovered: &Recovered) -> Self {
        match recovered.has_torn_tail() {
            true => Self::Torn,
            false if recovered.clean => Self::Clean,
            false => Self::Killed,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Clean => "closed in an orderly way",
            Self::Killed => "not closed: its broker was killed, or its machine lost power",
            Self::Torn => "not closed: its broker was killed over something it was writing",
        }
    }
}

impl Overview {
    /// What is told of a point in the log: where everything stood, and the digest.
    #[must_use]
    pub fn state(&self) -> String {
        let at = moment(Timestamp(self.at_ms));
        let (standing, digest, lsn) = (&self.standing, &self.digest, self.lsn);
        format!(
            "the state after LSN {lsn}; the last record at or before it has LSN {}, of {at}\n{standing}digest {digest} at LSN {lsn}\n",
            self.record_lsn
        )
    }
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "log {}, {}", self.log, self.ending.words())?;
        match self.base {
            0 => writeln!(f, "it is there from its beginning to LSN {}", self.last)?,
            base => writeln!(
                f,
                "it can be told from LSN {base} to LSN {}; a snapshot has replaced what came before",
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
        for KindLine { kind, records, bytes } in &self.kinds {
            writeln!(f, "  {kind:<22}{:>14}{:>18} bytes", grouped(*records), grouped(*bytes))?;
        }
        write!(f, "\n{}\n{}", self.rates, self.state())
    }
}

fn file_line(file: &FileLine) -> String {
    let lsns = match file.lsns {
        None => "-".to_owned(),
        Some((first, last)) if first == last => format!("LSN {first}"),
        Some((first, last)) => format!("LSN {first} to {last}"),
    };
    let moments = file.moments_ms.map_or_else(String::new, |(first, last)| {
        format!("{} to {}", moment(Timestamp(first)), moment(Timestamp(last)))
    });
    let (name, bytes) = (&file.name, grouped(file.bytes));
    format!("  {name:<30}{bytes:>14} bytes  {lsns:<24}{moments:<54}{}", file.note)
}
