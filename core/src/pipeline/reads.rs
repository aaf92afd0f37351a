//! Reads of segments: for outputs that wait for payloads, for cleaning and for scrub.
//!
//! Bytes that are not what was written are read again a second later, in case the fault was of the way and not of the
//! disk. The third time, whatever can be read of the place is examined: intact records are used, the others are lost.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::damage::{Block, DamagedRecords, Examined, Frames, OnDamage, Stop, examine};
use super::walk::{Walk, WalkPurpose};
use super::writer::Writer;
use crate::log::{CrcSeed, FileId, IndexEntry, LogPosition, SegmentIndex, Storage, StorageFault};
use crate::record::Record;
use crate::types::{Lsn, Millis, PayloadId, Timestamp};

/// Bytes of a read, unless a record is longer.
const READ_BYTES: u64 = 256 << 10;

/// The most reads for outputs under way.
const READS_MAX: usize = 4;

/// The most reads ahead of outputs under way.
const READS_AHEAD_MAX: usize = 2;

/// How often a place is read until it counts as damaged.
pub(super) const ATTEMPTS: u32 = 3;

/// How long after a failed read the next one of the same place follows.
const RETRY: Millis = Millis(1_000);

/// How long a failed read is remembered at most.
const FORGET: Millis = Millis(60_000);

/// The bytes that are read at a time of a place of which not everything can be read.
const SECTOR_BYTES: usize = 512;

/// A read of a segment. Several may be under way, in any order; each keeps its segment from being removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "outputs wait for a read that is not performed and completed"]
pub struct ReadJob {
    id: u64,
    file: FileId,
    position: u64,
    len: usize,
    /// Whether zeros stand for what cannot be read.
    is_piecewise: bool,
}

impl ReadJob {
    /// The segment.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The byte from which on it reads.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a read is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Performs the read. The result is for [`Pipeline::complete_read`](super::Pipeline::complete_read).
    ///
    /// # Errors
    /// Of the storage.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<Vec<u8>, StorageFault> {
        let mut bytes = vec![0; self.len];
        match storage.read(self.file, self.position, &mut bytes) {
            Ok(read) => bytes.truncate(read),
            Err(StorageFault::NoDescriptor) => return Err(StorageFault::NoDescriptor),
            Err(fault) if !self.is_piecewise => return Err(fault),
            Err(_) => self.read_piecewise(&mut bytes, storage),
        }
        Ok(bytes)
    }

    /// Reads sector by sector; what cannot be read becomes zeros.
    fn read_piecewise(&self, bytes: &mut [u8], storage: &mut (impl Storage + ?Sized)) {
        bytes.fill(0);
        for (index, piece) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            let position = self.position + (index * SECTOR_BYTES) as u64;
            if storage.read(self.file, position, piece).is_err() {
                piece.fill(0);
            }
        }
    }
}

/// The reads of a pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    next_id: u64,
    under_way: BTreeMap<u64, Planned>,
    /// Failed reads, by the place that they were for.
    failures: BTreeMap<Wanted, Failure>,
    /// The first intact records behind damage, each with its segment: reads of later records begin there.
    behind_damage: BTreeMap<Lsn, (u64, IndexEntry)>,
    now: Timestamp,
    count: u64,
    /// Of these, the ones that were made before an output needed what they bring.
    ahead: u64,
    bytes: u64,
}

/// What a read is to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    /// The segment.
    sequence: u64,
    /// The record. Behind the last record of the segment: the first one of the next segment, for the frames between.
    lsn: Lsn,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    count: u32,
    retry_at: Timestamp,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct Planned {
    sequence: u64,
    /// The position of the first frame.
    first: LogPosition,
    /// The byte at which it begins.
    position: u64,
    /// The last record that it brings, which may be cut off, or that waits for what it brings.
    through: Lsn,
    purpose: Purpose,
    /// Whether it reads to the end of the segment.
    is_last: bool,
    examination: Option<Examination>,
}

/// A place is examined.
#[derive(Clone, Copy, Debug)]
struct Examination {
    /// What stands behind it.
    behind: LogPosition,
    /// How often it had failed. If a read brings the record meanwhile, the place is not damaged.
    failures: u32,
}

/// What a read for a record reads.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Where it begins.
    walk: Walk,
    end: ReadEnd,
    /// The last record that it brings, or that waits for what it brings.
    through: Lsn,
    /// Whether the record stands somewhere behind what is indexed, so that it may take several reads.
    goes_on: bool,
}

/// Where a read ends.
#[derive(Clone, Copy, Debug)]
struct ReadEnd {
    position: u64,
    /// Whether that is the end of the segment.
    is_last: bool,
}

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// An output lacks this payload.
    Output(PayloadId),
    /// An output will need a payload of this record.
    Ahead(Lsn),
    /// A walk, which stands at the beginning of the read.
    Walk(WalkPurpose),
}

/// What a read has brought.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// Intact records, in the order of the log.
    pub(super) records: Vec<(Lsn, Record)>,
    /// Records that are damaged for good.
    pub(super) damaged: Vec<DamagedRecords>,
    /// If it was of a walk: where that goes on.
    pub(super) walk: Option<(WalkPurpose, Walk)>,
}

impl Reads {
    /// The number of reads since the start, and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.count, self.bytes)
    }

    /// The number of reads that were made before an output needed what they bring.
    pub(super) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// As [`Pipeline::canonical`](super::Pipeline::canonical).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for Planned { first, through, purpose, examination, .. } in self.under_way.values() {
            write!(out, "{first:?} {through:?} {purpose:?} {examination:?} ")?;
        }
        write!(out, "{:?} ", self.failures)
    }

    /// Whether the segment is being read.
    pub(super) fn is_reading(&self, sequence: u64) -> bool {
        self.under_way.values().any(|planned| planned.sequence == sequence)
    }

    /// Whether a walk has a read under way.
    pub(super) fn is_walking(&self, purpose: WalkPurpose) -> bool {
        self.under_way.values().any(|planned| planned.purpose == Purpose::Walk(purpose))
    }

    pub(super) fn on_time(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// When a failed read can be repeated.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.failures.values().map(|failure| failure.retry_at).filter(|at| *at > self.now).min()
    }

    fn may_read(&self, wanted: Wanted) -> bool {
        self.failures.get(&wanted).is_none_or(|failure| failure.retry_at <= self.now)
    }

    /// The next read for payloads that outputs lack; or one of them whose segment is removed. `first_wanted` finds the
    /// first one from a record on.
    pub(super) fn next(
        &mut self,
        log: &Writer,
        first_wanted: impl Fn(Lsn) -> Option<PayloadId>,
        attempts: u32,
    ) -> Option<Result<ReadJob, PayloadId>> {
        if self.count_under_way(|purpose| matches!(purpose, Purpose::Output(_))) >= READS_MAX {
            return None;
        }
        let payload = self.first_not_coming(log, first_wanted, |payload| payload.lsn)?;
        let lsn = payload.lsn;
        let Some(extent) = self.extent(lsn, log, READ_BYTES) else { return Some(Err(payload)) };
        let purpose = Purpose::Output(payload);
        Some(Ok(match self.is_last_attempt(extent.walk.wanted(lsn), attempts) {
            true => self.plan_examination(&extent.walk, lsn, purpose, log)?,
            false => self.plan(&extent.walk, extent.end, extent.through, purpose),
        }))
    }

    /// The next read of records that outputs will need, and the records that it brings; or one that is not read ahead.
    /// `first_asked` finds the first one from a record on.
    pub(super) fn next_ahead(
        &mut self,
        log: &Writer,
        first_asked: impl Fn(Lsn) -> Option<Lsn>,
        block_bytes: u64,
    ) -> Option<Result<(ReadJob, RangeInclusive<Lsn>), Lsn>> {
        if self.count_under_way(|purpose| matches!(purpose, Purpose::Ahead(_))) >= READS_AHEAD_MAX {
            return None;
        }
        let lsn = self.first_not_coming(log, first_asked, |lsn| *lsn)?;
        let extent = self.extent(lsn, log, block_bytes);
        // What is not indexed, or has failed, is left to the output that needs it.
        let has_failed = |extent: &Extent| self.failures.contains_key(&extent.walk.wanted(lsn));
        let Some(extent) = extent.filter(|extent| !extent.goes_on && !has_failed(extent)) else {
            return Some(Err(lsn));
        };
        let job = self.plan(&extent.walk, extent.end, extent.through, Purpose::Ahead(lsn));
        Some(Ok((job, lsn..=extent.through)))
    }

    fn count_under_way(&self, is_counted: impl Fn(Purpose) -> bool) -> usize {
        self.under_way.values().filter(|planned| is_counted(planned.purpose)).count()
    }

    /// The first that may be read and that no read under way brings; `first` finds the first one from a record on.
    fn first_not_coming<T>(
        &self,
        log: &Writer,
        first: impl Fn(Lsn) -> Option<T>,
        lsn: impl Fn(&T) -> Lsn,
    ) -> Option<T> {
        let coming = |lsn: Lsn| {
            let reads = self.under_way.values();
            reads.filter(|read| read.first.lsn <= lsn && lsn <= read.through).map(|read| read.through).max()
        };
        let may_read = |lsn: Lsn| {
            let place = if self.failures.is_empty() { None } else { log.place_of(lsn) };
            place.is_none_or(|place| self.may_read(Wanted { sequence: place.sequence, lsn }))
        };
        let mut from = Lsn(0);
        loop {
            let found = first(from)?;
            let at = lsn(&found);
            match coming(at) {
                None if may_read(at) => return Some(found),
                through => from = through.unwrap_or(at).next(),
            }
        }
    }

    /// What is read to get the record `lsn`: about `block_bytes` from a known place before it on. `None` if its segment
    /// is removed.
    fn extent(&self, lsn: Lsn, log: &Writer, block_bytes: u64) -> Option<Extent> {
        let place = log.place_of(lsn)?;
        let mut entry = place.index.find(lsn)?;
        if let Some((_, (sequence, behind_damage))) = self.behind_damage.range(..=lsn).next_back()
            && *sequence == place.sequence
            && behind_damage.lsn > entry.lsn
        {
            entry = *behind_damage;
        }
        let next = LogPosition { frame: entry.frame, lsn: entry.lsn };
        let walk = Walk { sequence: place.sequence, next, position: entry.position, needed: 0 };
        // Where nothing is known behind the entry, reads go on from it until one of them has brought the record.
        let goes_on = place.index.unknown_from() == Some(entry);
        if goes_on {
            let behind = entry.position.saturating_add(place.index.unknown_bytes());
            let end = (entry.position + READ_BYTES).max(behind).min(place.end);
            let end = ReadEnd { position: end, is_last: end == place.end };
            return Some(Extent { walk, end, through: Lsn(place.behind.lsn.0 - 1), goes_on });
        }
        // What has failed is read again by itself: the fault may be elsewhere in the block.
        let block = if self.failures.contains_key(&walk.wanted(lsn)) { 0 } else { block_bytes.min(READ_BYTES) };
        // An entry stands at the beginning of a record, so the record ends at the next one at the latest. There the
        // read ends, or at a later one, so that the next read begins where this one ends.
        let at_most = entry.position.saturating_add(block);
        let last = place.index.last_before(at_most.saturating_add(1)).filter(|last| lsn < last.lsn);
        let next = last.or_else(|| place.index.next_after(lsn)).filter(|next| next.position < place.end);
        let (end, behind) = match next {
            Some(next) if place.end > at_most => (next.position, next.lsn),
            _ => (place.end, place.behind.lsn),
        };
        let end = ReadEnd { position: end, is_last: end == place.end };
        Some(Extent { walk, end, through: Lsn(behind.0 - 1).max(lsn), goes_on })
    }

    /// The next read of a walk. `None` if it must wait, or is at its end.
    pub(super) fn next_of_walk(
        &mut self,
        walk: &Walk,
        purpose: WalkPurpose,
        log: &Writer,
        attempts: u32,
    ) -> Option<ReadJob> {
        let lsn = walk.next.lsn;
        if self.is_walking(purpose) || !self.may_read(walk.wanted(lsn)) {
            return None;
        }
        let place = log.place_of_segment(walk.sequence)?;
        let purpose = Purpose::Walk(purpose);
        if walk.position >= place.end {
            return None;
        }
        if self.is_last_attempt(walk.wanted(lsn), attempts) {
            return self.plan_examination(walk, lsn, purpose, log);
        }
        let end = (walk.position + READ_BYTES.max(walk.needed)).min(place.end);
        // Outputs do not wait for what a walk may bring.
        let end = ReadEnd { position: end, is_last: end == place.end };
        Some(self.plan(walk, end, Lsn(0), purpose))
    }

    fn is_last_attempt(&self, wanted: Wanted, attempts: u32) -> bool {
        self.failure_count(wanted) + 1 >= attempts
    }

    /// How often reads have not brought it in a row.
    fn failure_count(&self, wanted: Wanted) -> u32 {
        self.failures.get(&wanted).map_or(0, |failure| failure.count)
    }

    /// Plans to read from `walk` to the next place behind the record `lsn` of which the frame number is known.
    fn plan_examination(&mut self, walk: &Walk, lsn: Lsn, purpose: Purpose, log: &Writer) -> Option<ReadJob> {
        let place = log.place_of_segment(walk.sequence)?;
        let anchor =
            place.index.next_after(lsn).filter(|entry| (walk.position + 1..=place.end).contains(&entry.position));
        let (end, behind) = match anchor {
            Some(entry) => (entry.position, LogPosition { frame: entry.frame, lsn: entry.lsn }),
            None => (place.end, place.behind),
        };
        let through = match purpose {
            Purpose::Output(_) | Purpose::Ahead(_) => Lsn(behind.lsn.0 - 1),
            Purpose::Walk(_) => Lsn(0),
        };
        let mut job = self.plan(walk, ReadEnd { position: end, is_last: false }, through, purpose);
        job.is_piecewise = true;
        let planned = self.under_way.get_mut(&job.id).expect("it was just planned");
        let failures = self.failures.get(&planned.wanted()).map_or(0, |failure| failure.count);
        planned.examination = Some(Examination { behind, failures });
        Some(job)
    }

    fn plan(&mut self, walk: &Walk, end: ReadEnd, through: Lsn, purpose: Purpose) -> ReadJob {
        let ReadEnd { position: end, is_last } = end;
        let Walk { sequence, next: first, position, .. } = *walk;
        let id = self.next_id;
        self.next_id += 1;
        self.under_way.insert(id, Planned { sequence, first, position, through, purpose, is_last, examination: None });
        let len = (end - position) as usize;
        ReadJob { id, file: FileId::Segment(sequence), position, len, is_piecewise: false }
    }

    /// What a performed read has brought at `now`; `as_found` passes on what was found.
    pub(super) fn complete(
        &mut self,
        job: &ReadJob,
        result: Result<Vec<u8>, StorageFault>,
        log: &mut Writer,
        now: Timestamp,
        as_found: impl FnOnce(Vec<u8>, CrcSeed) -> Vec<u8>,
    ) -> Brought {
        self.on_time(now);
        let Some(planned) = self.under_way.remove(&job.id) else { return Brought::default() };
        self.count += 1;
        self.ahead += u64::from(matches!(planned.purpose, Purpose::Ahead(_)));
        let seed = CrcSeed::new(log.log_id(), job.file);
        let bytes = match result {
            Ok(bytes) => as_found(bytes, seed),
            // The output that needs it will read it again.
            Err(_) if matches!(planned.purpose, Purpose::Ahead(_)) => return Brought::default(),
            // Says nothing of the bytes.
            Err(StorageFault::NoDescriptor) => {
                let count = self.failure_count(planned.wanted());
                self.failures.insert(planned.wanted(), Failure { count, retry_at: self.now.after(RETRY) });
                return Brought { walk: planned.walk_at(planned.first, planned.position, 0), ..Brought::default() };
            }
            Err(_) => {
                self.failed(planned.wanted());
                return Brought { walk: planned.walk_at(planned.first, planned.position, 0), ..Brought::default() };
            }
        };
        self.bytes += bytes.len() as u64;
        match planned.examination {
            Some(Examination { behind, failures }) if self.failure_count(planned.wanted()) >= failures => {
                self.examined(&planned, job, bytes, seed, behind)
            }
            _ => self.read(&planned, job, &bytes, seed, log.growing_index(planned.sequence)),
        }
    }

    fn read(
        &mut self,
        planned: &Planned,
        job: &ReadJob,
        bytes: &[u8],
        seed: CrcSeed,
        mut index: Option<&mut SegmentIndex>,
    ) -> Brought {
        let on_damage = match planned.purpose {
            Purpose::Output(_) | Purpose::Ahead(_) => OnDamage::Skip,
            Purpose::Walk(_) => OnDamage::Stop,
        };
        let block = Block { bytes, position: planned.position, first: planned.first, seed };
        let Frames { records, end, next, stop, is_news } = block.read(index.as_deref_mut(), on_damage);
        let is_short = bytes.len() < job.len;
        match planned.purpose {
            Purpose::Output(PayloadId { lsn, part }) => {
                let found = records.iter().find(|(found, _)| *found == lsn);
                // Without the part it would be read again and again.
                let has_part = |record: &Record| record.event.bodies().any(|(found, _)| found == part);
                let is_ahead = index.and_then(|index| index.unknown_from()).is_some_and(|from| from.lsn <= lsn);
                self.brought(planned.sequence, &records, lsn);
                match found {
                    Some((_, record)) if has_part(record) => self.forget_failures(planned.wanted()),
                    // It has come nearer to the record, and goes on from another place.
                    None if is_news && is_ahead => self.forget_failures(planned.wanted()),
                    _ => self.failed(planned.wanted()),
                }
                Brought { records, ..Brought::default() }
            }
            Purpose::Ahead(_) => {
                self.brought(planned.sequence, &records, Lsn(0));
                Brought { records, ..Brought::default() }
            }
            Purpose::Walk(_) => {
                let is_cut_off = stop == Some(Stop::CutOff) && !is_short && !planned.is_last;
                let needed = if is_cut_off && end == 0 { 2 * job.len as u64 } else { 0 };
                if end > 0 {
                    self.forget_failures(planned.wanted());
                }
                self.brought(planned.sequence, &records, Lsn(0));
                let next_wanted = Wanted { sequence: planned.sequence, lsn: next.lsn };
                if is_short || stop.is_some() && !is_cut_off {
                    self.failed(next_wanted);
                } else if stop.is_none() {
                    // An earlier walk may have failed at what stands between the last record and the next one.
                    self.forget_failures(next_wanted);
                }
                let walk = planned.walk_at(next, planned.position + end as u64, needed);
                Brought { records, walk, ..Brought::default() }
            }
        }
    }

    fn examined(
        &mut self,
        planned: &Planned,
        job: &ReadJob,
        mut bytes: Vec<u8>,
        seed: CrcSeed,
        behind: LogPosition,
    ) -> Brought {
        // A file that was cut off.
        bytes.resize(job.len, 0);
        self.forget_failures(planned.wanted());
        let Examined { records, damaged, resumed } = examine(&bytes, seed, planned.first, behind);
        self.brought(planned.sequence, &records, Lsn(0));
        for (at, position) in resumed {
            let entry = IndexEntry { lsn: at.lsn, frame: at.frame, position: planned.position + position as u64 };
            self.behind_damage.insert(at.lsn, (planned.sequence, entry));
        }
        let walk = planned.walk_at(behind, planned.position + job.len as u64, 0);
        Brought { records, damaged, walk }
    }

    /// Forgets the damage of segments that were removed.
    pub(super) fn forget_removed(&mut self, is_there: impl Fn(u64) -> bool) {
        self.failures.retain(|wanted, _| is_there(wanted.sequence));
        self.behind_damage.retain(|_, (sequence, _)| is_there(*sequence));
    }

    /// Forgets the failures of records that a read has brought after all, but for the one that it was planned for.
    fn brought(&mut self, sequence: u64, records: &[(Lsn, Record)], planned_for: Lsn) {
        if !self.failures.is_empty() {
            for (lsn, _) in records.iter().filter(|(lsn, _)| *lsn != planned_for) {
                self.failures.remove(&Wanted { sequence, lsn: *lsn });
            }
        }
    }

    fn forget_failures(&mut self, wanted: Wanted) {
        self.failures.remove(&wanted);
    }

    /// A read did not bring it.
    fn failed(&mut self, wanted: Wanted) {
        let now = self.now;
        self.failures.retain(|_, failure| now < failure.retry_at.after(FORGET));
        let count = self.failure_count(wanted);
        self.failures.insert(wanted, Failure { count: count + 1, retry_at: now.after(RETRY) });
    }
}

impl Walk {
    fn wanted(&self, lsn: Lsn) -> Wanted {
        Wanted { sequence: self.sequence, lsn }
    }
}

impl Planned {
    /// What it was planned for.
    fn wanted(&self) -> Wanted {
        let lsn = match self.purpose {
            Purpose::Output(payload) => payload.lsn,
            Purpose::Ahead(lsn) => lsn,
            Purpose::Walk(_) => self.first.lsn,
        };
        Wanted { sequence: self.sequence, lsn }
    }

    /// Its walk, if it is of one, at another place of the segment.
    fn walk_at(&self, next: LogPosition, position: u64, needed: u64) -> Option<(WalkPurpose, Walk)> {
        match self.purpose {
            Purpose::Output(_) | Purpose::Ahead(_) => None,
            Purpose::Walk(purpose) => Some((purpose, Walk { sequence: self.sequence, next, position, needed })),
        }
    }
}
