//! The reads that a pipeline asks for, and what they bring.

use super::Pipeline;
use super::cleaning::LogFigures;
use super::damage::DamagedRecords;
use super::reads::{ATTEMPTS, Brought, ReadJob};
use super::walk::WalkPurpose;
use super::writer::NextSegment;
use crate::broker::{Damaged, SpaceClass};
use crate::faults::Faults;
use crate::log::{FileId, StorageFault};
use crate::types::{Lsn, Now, Timestamp};

/// The most notices that wait to be polled; later ones are dropped.
const NOTICES_MAX: usize = 1_024;

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogNotice {
    /// Records are damaged on disk. Payloads in them to which anything referred are lost.
    #[error("{file}: damaged at byte {position}, records {first} to {last}: {why}; {lost} payloads are lost")]
    Damaged {
        /// The segment.
        file: FileId,
        /// The byte at which the damage begins.
        position: u64,
        /// The first damaged record.
        first: Lsn,
        /// The last damaged record.
        last: Lsn,
        /// What is wrong there.
        why: String,
        /// The payloads that are lost by it: something referred to them.
        lost: u64,
    },
}

impl<F: Faults> Pipeline<F> {
    /// The next read: of a payload for which an output waits, of those that will be needed next, of a segment that is
    /// cleaned, or of one that is searched for damage. `None` if there is none, or as many reads are under way as may
    /// be.
    ///
    /// Call it after every [`Pipeline::handle`], [`Pipeline::handle_timeout`], [`Pipeline::complete`] and
    /// [`Pipeline::complete_read`], until it returns `None`. Reads may be performed at the same time as jobs, in any
    /// order. A read that is not performed keeps outputs from leaving, and its segment from being removed.
    pub fn poll_read(&mut self) -> Option<ReadJob> {
        let attempts = self.broker.faults().read_attempts(ATTEMPTS);
        while !self.has_failed() {
            let wanted = |lsn| self.broker.first_wanted(lsn);
            match self.reads.next(&self.log, wanted, attempts) {
                Some(Ok(job)) => return Some(job),
                // Its segment is removed, so nothing refers to it any more.
                Some(Err(payload)) => self.broker.on_gone(payload),
                None => return self.next_read_ahead().or_else(|| self.next_walk_read(attempts)),
            }
        }
        None
    }

    fn next_read_ahead(&mut self) -> Option<ReadJob> {
        while !self.closing {
            let (asked, block_bytes) = (|lsn| self.broker.first_read_ahead(lsn), self.broker.read_ahead_bytes());
            match self.reads.next_ahead(&self.log, asked, block_bytes)? {
                Ok((job, records)) => {
                    self.broker.forget_read_ahead(&records);
                    return Some(job);
                }
                Err(record) => self.broker.forget_read_ahead(&(record..=record)),
            }
        }
        None
    }

    fn next_walk_read(&mut self, attempts: u32) -> Option<ReadJob> {
        if self.closing {
            return None;
        }
        let cleaning = match self.reads.is_walking(WalkPurpose::Clean) {
            false => self.cleaning.walk(&self.log),
            true => None,
        };
        let read = cleaning.and_then(|walk| self.reads.next_of_walk(&walk, WalkPurpose::Clean, &self.log, attempts));
        if read.is_some() {
            return read;
        }
        let scrub = match self.reads.is_walking(WalkPurpose::Scrub) {
            false => self.scrub.walk(&self.log),
            true => None,
        };
        scrub.and_then(|walk| self.reads.next_of_walk(&walk, WalkPurpose::Scrub, &self.log, attempts))
    }

    /// Reports the result of a read.
    ///
    /// Call it exactly once per read, with the result of [`ReadJob::perform`]. Bytes that are not what was written are
    /// read again, twice, a second apart. Outputs that waited for what it brought may leave.
    pub fn complete_read(&mut self, now: impl Into<Now>, job: &ReadJob, result: Result<Vec<u8>, StorageFault>) {
        let now = now.into();
        self.log.begin_call();
        let as_found = |bytes, seed| self.broker.faults().read_bytes(bytes, seed);
        let Brought { records, damaged, walk } = self.reads.complete(job, result, &mut self.log, now.mono, as_found);
        if self.has_failed() || self.closing && walk.is_some() {
            return;
        }
        let is_reported = self.broker.faults().reports_damage();
        for damaged in damaged.into_iter().filter(|_| is_reported) {
            self.damaged(now, job, damaged);
        }
        match walk {
            None => self.broker.on_read(now, &records),
            Some((WalkPurpose::Scrub, walk)) => self.scrub.moved(walk, job.len(), now.mono),
            Some((WalkPurpose::Clean, walk)) if records.is_empty() => self.cleaning.stands_at(walk),
            Some((WalkPurpose::Clean, walk)) => {
                // On a full disk cleaning is what frees room.
                let is_full = self.log.next_segment() == NextSegment::NoSpace;
                let class = if is_full { SpaceClass::Churn } else { SpaceClass::Growth };
                let cleaned = self.broker.relocate(now, &records, class, &mut self.log);
                self.cleaning.moved(walk, job.len(), cleaned, now.mono);
            }
        }
    }

    /// Records are damaged for good.
    fn damaged(&mut self, now: Now, job: &ReadJob, damaged: DamagedRecords) {
        let DamagedRecords { lsns, position, why } = damaged;
        let (file, position) = (job.file(), job.position() + position as u64);
        let damage = format!("{file}, byte {position}: {why}");
        let newest = self.maintenance.newest().map(|newest| newest.frame).unwrap_or_default();
        let is_covered = { self.log.closed_through(newest) }.any(|sequence| FileId::Segment(sequence) == file);
        // A start must not need the damaged records.
        self.snapshot_wanted |= !is_covered;
        let before = self.broker.counters().payloads_lost;
        let (first, last) = (*lsns.start(), *lsns.end());
        self.broker.on_damaged(now, Damaged { lsns, damage: damage.as_str().into() }, &mut self.log);
        if self.notices.len() < NOTICES_MAX {
            let lost = self.broker.counters().payloads_lost - before;
            self.notices.push_back(LogNotice::Damaged { file, position, first, last, why, lost });
        }
    }

    /// The next thing that an operator should know.
    pub fn poll_notice(&mut self) -> Option<LogNotice> {
        self.notices.pop_front()
    }

    /// The number of reads since the start, and their bytes.
    #[must_use]
    pub fn reads(&self) -> (u64, u64) {
        self.reads.totals()
    }

    /// The number of those reads that were made before an output needed what they bring.
    #[must_use]
    pub fn reads_ahead(&self) -> u64 {
        self.reads.ahead()
    }

    /// Figures of the log: its size, what of it is live, what cleaning and scrub have done.
    #[must_use]
    pub fn log_figures(&self) -> LogFigures {
        let log_bytes = self.log.closed_bytes() + self.log.end();
        LogFigures { log_bytes, ..self.scrub.figures(self.cleaning.figures()) }
    }

    pub(super) fn reads_on_time(&mut self, now: Timestamp) {
        self.reads.on_time(now);
        self.cleaning.on_time(now);
        let newest = self.maintenance.newest();
        let (log, covered) = (&self.log, newest.map(|newest| newest.frame).unwrap_or_default());
        let is_live = |sequence: u64| {
            let is_listed = newest.is_some_and(|newest| newest.refers_to(sequence));
            is_listed || !log.closed_through(covered).any(|covered| covered == sequence)
        };
        self.scrub.on_time(now, log, is_live);
    }

    pub(super) fn next_read_at(&self) -> Option<Timestamp> {
        [self.reads.retry_at(), self.cleaning.next_at(), self.scrub.next_at()].into_iter().flatten().min()
    }

    /// Chooses the segments to clean, after a snapshot was taken.
    pub(super) fn plan_cleaning(&mut self) {
        if let Some(newest) = self.maintenance.newest() {
            self.cleaning.plan(newest, &self.log);
        }
        let log = &self.log;
        self.reads.forget_removed(|sequence| log.place_of_segment(sequence).is_some());
    }
}
