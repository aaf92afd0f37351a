//! Reads of payloads: what outputs wait for, performed and completed as steps, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use driftq_core::faults::Faults;
use driftq_core::log::{FileId, StorageFault};
use driftq_core::pipeline::LogNotice;
use driftq_core::record::{Event, Record};
use driftq_core::types::{FrameNumber, Lsn, PayloadId};
use driftq_core::{Broker, Pipeline, ReadJob};

use super::call_payloads::referrers;
use super::state::World;
use crate::actions::ReadFault;
use crate::coverage::Point;
use crate::invariants::liveness::io_quiesces;
use crate::invariants::payloads::{
    gone_is_unreferred, listed_segment_stays, live_bytes_match, live_payloads, live_segment_stays, memory_is_bounded,
    only_damaged_is_lost, read_failure_is_passing, reads_what_is_synced, relocated_is_moved, unsynced_stays_in_memory,
};
use crate::invariants::{Verdict, Violation};
use crate::oracle::{Damaged, PayloadOf};
use crate::sim_storage::SimStorage;

/// How often in a row the same bytes cannot be read: once more, and they count as damaged.
const FAULTS_MAX: u32 = 2;

/// What the record of a relocation takes beside its payload.
const RECORD_BYTES: u64 = 64;

/// The reads of payloads that are under way, and what they have failed at.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// In the order in which they were asked for.
    under_way: Vec<RunningRead>,
    /// By file, first byte and end: how many reads failed since one brought all of it.
    failures: BTreeMap<(FileId, u64, u64), u32>,
    /// The segments that were being read when a snapshot was last complete: they stay until the next one.
    kept: BTreeSet<FileId>,
    /// The records that carry relocated payloads.
    relocated: BTreeSet<Lsn>,
    /// Whether the order of deliveries was uncertain after the last call.
    was_uncertain: bool,
    /// The newest record when an output last waited for bytes.
    awaited_at: Lsn,
    /// The payloads that are recorded as lost, and the newest record when one was last found damaged: outputs may wait
    /// for it.
    losses: u64,
    lost_at: Lsn,
}

/// A read under way.
#[derive(Clone, Debug)]
struct RunningRead {
    job: ReadJob,
    /// What it has brought, once it is performed.
    result: Option<Result<Vec<u8>, StorageFault>>,
    /// Whether a fault was injected.
    is_faulty: bool,
}

impl RunningRead {
    fn key(&self) -> (FileId, u64, u64) {
        (self.job.file(), self.job.position(), self.end())
    }

    fn end(&self) -> u64 {
        self.job.position() + self.job.len() as u64
    }
}

impl Reads {
    /// After a call: notes which record the outputs wait for that lacked a lost payload.
    pub(super) fn note_losses<F: Faults>(&mut self, broker: &Broker<F>) {
        let losses = broker.counters().payloads_lost;
        if std::mem::replace(&mut self.losses, losses) != losses {
            self.lost_at = broker.appended();
        }
    }

    /// After a call: whether deliveries may leave in another order than they were decided in, or not at all. One that
    /// waits for bytes is overtaken by others, and an ack may end it meanwhile.
    pub(super) fn is_order_uncertain<F: Faults>(&mut self, broker: &Broker<F>) -> bool {
        let lacks = self.may_hold(broker) || broker.unsynced_payloads().next().is_some();
        if lacks {
            self.awaited_at = broker.appended();
        }
        let is_uncertain = lacks || broker.durable() < self.awaited_at;
        // What is durable since this call leaves only now.
        std::mem::replace(&mut self.was_uncertain, is_uncertain) || is_uncertain
    }

    /// Whether outputs may wait for bytes, or for the record of a payload that is lost.
    pub(super) fn may_hold<F: Faults>(&self, broker: &Broker<F>) -> bool {
        let is_new = self.losses != broker.counters().payloads_lost;
        broker.wanted_payloads().next().is_some() || broker.durable() < self.lost_at || is_new
    }

    /// The process has crashed: nothing of it is left.
    pub(super) fn crash(&mut self) {
        *self = Self { relocated: std::mem::take(&mut self.relocated), ..Self::default() };
    }

    /// A record was written, maybe in place of one that a crash has lost. It is in the state of the broker already.
    pub(super) fn written<F: Faults>(&mut self, broker: Option<&Pipeline<F>>, lsn: Lsn, record: &Record) -> Verdict {
        let (Event::Relocated(relocated), Some(broker)) = (&record.event, broker) else {
            self.relocated.remove(&lsn);
            return Ok(());
        };
        self.relocated.insert(lsn);
        relocated_is_moved(relocated.from, &live_payloads(broker.state()))
    }

    /// Whether the record carries a relocated payload.
    pub(super) fn is_relocated(&self, lsn: Lsn) -> bool {
        self.relocated.contains(&lsn)
    }

    /// Whether some read is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A snapshot is complete: segments may be removed, but for those that are being read.
    pub(super) fn snapshot_completed(&mut self) {
        self.kept = self.under_way.iter().map(|read| read.job.file()).collect();
    }

    /// Whether the segment was being read when a snapshot was last complete.
    pub(super) fn was_kept(&self, segment: FileId) -> bool {
        self.kept.contains(&segment)
    }

    /// The number of reads to perform, and of those to complete.
    pub(super) fn counts(&self) -> (usize, usize) {
        let performed = self.under_way.iter().filter(|read| read.result.is_some()).count();
        (self.under_way.len() - performed, performed)
    }

    /// The place of the `nth` read, counted round, that is performed or not.
    fn find(&self, nth: u8, is_performed: bool) -> Option<usize> {
        let all = self.under_way.iter().enumerate().filter(|(_, read)| read.result.is_some() == is_performed);
        let places: Vec<_> = all.map(|(at, _)| at).collect();
        places.get(usize::from(nth).checked_rem(places.len())?).copied()
    }

    /// Whether another fault of this read would be one too many.
    fn may_fail(&self, read: &RunningRead) -> bool {
        let (file, begin, end) = read.key();
        let overlaps = |at: &(FileId, u64, u64)| at.0 == file && at.1 < end && begin < at.2;
        let failures = self.failures.iter().filter(|(at, _)| overlaps(at));
        failures.map(|(_, count)| *count).sum::<u32>() < FAULTS_MAX
    }

    /// A performed read has failed, or brought all its bytes.
    fn note(&mut self, read: &RunningRead) {
        let (file, begin, end) = read.key();
        match read.is_faulty {
            true => *self.failures.entry(read.key()).or_default() += 1,
            false => self.failures.retain(|at, _| at.0 != file || at.1 < begin || end < at.2),
        }
    }

    /// Writes them for [a fingerprint](super::Fingerprint).
    pub(super) fn canonical(&self, durable: Lsn, out: &mut impl std::fmt::Write) -> std::fmt::Result {
        let Self { under_way, failures, kept, relocated: _, was_uncertain, awaited_at, losses: _, lost_at: _ } = self;
        for RunningRead { job, result, is_faulty } in under_way {
            write!(out, "{:?} {} {:?} {is_faulty} ", job.file(), job.position(), result.as_ref().map(Result::is_ok))?;
        }
        let awaited_at = Some(awaited_at).filter(|at| **at > durable);
        write!(out, "{failures:?} {kept:?} {was_uncertain} {awaited_at:?} ")
    }
}

impl<F: Faults, S: SimStorage> World<F, S> {
    /// The number of reads of payloads to perform, and of those to complete.
    #[must_use]
    pub fn reads_under_way(&self) -> (usize, usize) {
        self.reads.counts()
    }

    /// Begins the reads that the broker asks for, and ends them at once unless they are steps of their own.
    pub(super) fn begin_reads(&mut self) -> Verdict {
        for reads in 0.. {
            self.poll_reads()?;
            if self.setup.read_steps || self.reads.is_empty() {
                return Ok(());
            }
            io_quiesces(reads)?;
            self.end_next_read()?;
        }
        Ok(())
    }

    fn poll_reads(&mut self) -> Verdict {
        loop {
            let Some(broker) = &mut self.broker else { return Ok(()) };
            let wanted: Vec<_> = broker.broker().wanted_payloads().collect();
            let job = broker.poll_read();
            let gone = missing_from(wanted, broker.broker().wanted_payloads());
            if !gone.is_empty() {
                gone_is_unreferred(&gone, &live_payloads(broker.state()))?;
                if let Some(oracle) = &mut self.oracle {
                    oracle.gone(&gone);
                }
            }
            let Some(job) = job else { return Ok(()) };
            let range = job.position() as usize..job.position() as usize + job.len();
            reads_what_is_synced(&job, self.disk.model().reads_as_after_a_crash(job.file(), range))?;
            self.reads.under_way.push(RunningRead { job, result: None, is_faulty: false });
        }
    }

    /// Performs and completes one read without a fault; `false` if none is under way.
    pub(super) fn end_next_read(&mut self) -> Result<bool, Violation> {
        if let Some(at) = self.reads.find(0, true) {
            self.complete_read_at(at)?;
            return Ok(true);
        }
        let Some(at) = self.reads.find(0, false) else { return Ok(false) };
        self.perform_read_at(at, None);
        self.complete_read_at(at)?;
        Ok(true)
    }

    /// Performs a read that is under way, and completes it unless it is `late`.
    pub(super) fn perform_read(&mut self, nth: u8, fault: Option<ReadFault>, late: bool) -> Verdict {
        let Some(at) = self.reads.find(nth, false) else { return Ok(()) };
        self.perform_read_at(at, fault);
        if late {
            return Ok(());
        }
        self.complete_read_at(at)?;
        self.collect()
    }

    /// Completes a read that was performed before.
    pub(super) fn complete_read(&mut self, nth: u8) -> Verdict {
        let Some(at) = self.reads.find(nth, true) else { return Ok(()) };
        self.coverage.hit(Point::LateRead);
        self.complete_read_at(at)?;
        self.collect()
    }

    fn perform_read_at(&mut self, at: usize, fault: Option<ReadFault>) {
        self.counters.events += 1;
        let (file, begin, end) = self.reads.under_way[at].key();
        // Rot is a failure of its own: with another one beside it, more would be lost than is damaged.
        let is_rotten = self.disk.model().is_hit(file, &(begin as usize..end as usize));
        let fault = fault.filter(|_| !is_rotten && self.reads.may_fail(&self.reads.under_way[at]));
        let awaited = self.awaited_bytes(&self.reads.under_way[at].job);
        let read = &mut self.reads.under_way[at];
        let result = read.job.perform(&mut self.faults.storage(&mut self.disk));
        read.is_faulty = fault.is_some();
        read.result = Some(match (fault, result) {
            (Some(ReadFault::Fail), _) => Err(StorageFault::Io("injected: failed read".to_owned())),
            (Some(ReadFault::Short { bytes }), Ok(mut found)) => {
                found.truncate(usize::from(bytes));
                Ok(found)
            }
            (Some(ReadFault::Flip { bit }), Ok(mut found)) => {
                let nth = usize::from(bit / 8).checked_rem(awaited.len()).map(|nth| awaited.start + nth);
                if let Some(byte) = nth.and_then(|nth| found.get_mut(nth)) {
                    *byte ^= 1 << (bit % 8);
                }
                Ok(found)
            }
            (_, result) => result,
        });
        let point = match fault {
            Some(ReadFault::Fail) => Point::ReadFailed,
            Some(ReadFault::Short { .. }) => Point::ShortRead,
            Some(ReadFault::Flip { .. }) => Point::GarbledRead,
            None => return,
        };
        self.coverage.hit(point);
    }

    /// Where a read will find the first frame that an output waits for.
    fn awaited_bytes(&self, job: &ReadJob) -> Range<usize> {
        let wanted = self.broker.iter().flat_map(|broker| broker.broker().wanted_payloads());
        let start = job.position() as usize;
        let mut frames = wanted.filter_map(|payload| self.shadow.frame_of(payload.lsn));
        let frame = frames.find(|frame| frame.file == job.file() && start <= frame.range.start);
        frame.map_or(0..job.len(), |frame| frame.range.start - start..frame.range.end - start)
    }

    fn complete_read_at(&mut self, at: usize) -> Verdict {
        let now = self.clock();
        let mut read = self.reads.under_way.remove(at);
        let Some(result) = read.result.take() else { return Ok(()) };
        self.coverage.hit_if(at > 0, Point::ReadsReordered);
        self.reads.note(&read);
        let Some(broker) = &mut self.broker else { return Ok(()) };
        if broker.failure().is_some() {
            broker.complete_read(now, &read.job, result);
            return Ok(());
        }
        let wanted: Vec<_> = broker.broker().wanted_payloads().collect();
        let mut unsynced: Vec<_> = broker.broker().unsynced_payloads().collect();
        let (appended, relocated) = (broker.broker().appended(), broker.broker().counters().relocated);
        let before = if self.setup.rots { referrers(broker.state()) } else { Vec::new() };
        broker.complete_read(now, &read.job, result);
        let mut damaged = Vec::new();
        while let Some(notice) = broker.poll_notice() {
            let range = read.job.position() as usize..read.end() as usize;
            read_failure_is_passing(self.disk.model().is_hit(read.job.file(), &range), &notice)?;
            let LogNotice::Damaged { file, position, first, last, ref why, .. } = notice;
            let lost = || before.iter().filter(|(_, payload)| (first..=last).contains(&payload.lsn));
            let intact = lost()
                .map(|(_, payload)| *payload)
                .find(|payload| !self.shadow.is_damaged(payload.lsn, self.disk.model()));
            only_damaged_is_lost(intact, &notice)?;
            self.tracker.damaged(&(first..=last));
            let damage = format!("{file}, byte {position}: {why}").as_str().into();
            damaged.push(Damaged { lsns: first..=last, damage });
        }
        self.room.refused((appended, broker.broker().appended()), broker.refused_appends());
        let has_losses = !damaged.is_empty();
        if has_losses {
            self.reads.lost_at = broker.broker().appended();
        }
        let mut brought = missing_from(wanted, broker.broker().wanted_payloads());
        brought.retain(|payload| damaged.iter().all(|found| !found.lsns.contains(&payload.lsn)));
        let relocated = broker.broker().counters().relocated - relocated;
        let moved = match self.setup.rots {
            true => moved(&before, referrers(broker.state())),
            false => (0..relocated).map(|_| None).collect(),
        };
        let lacking: BTreeSet<_> = broker.broker().unsynced_payloads().collect();
        unsynced.retain(|payload| !lacking.contains(payload));
        if let Some(oracle) = &mut self.oracle {
            oracle.refuse(broker.refused_appends());
            oracle.damaged(now, damaged);
            if !brought.is_empty() {
                oracle.brought(now, &brought);
            }
            oracle.filled_unsynced(&unsynced);
            oracle.relocated(now, moved);
        }
        if has_losses {
            self.tracker.observe_losses(broker)?;
        }
        self.coverage.hit_if(broker.broker().counters().payloads_lost > 0, Point::PayloadLost);
        self.coverage.hit_if(broker.log_figures().scrubs > 0, Point::Scrubbed);
        self.check_payloads_in_memory()
    }
}

impl<F: Faults, S: SimStorage> World<F, S> {
    /// After a sync or a read, when payloads go: those in memory are no more than allowed, and no fewer than needed.
    pub(super) fn check_payloads_in_memory(&self) -> Verdict {
        let (Some(broker), Some(bytes_max)) = (&self.broker, self.setup.memory_bytes) else { return Ok(()) };
        let broker = broker.broker();
        if broker.appended() == broker.durable() {
            return memory_is_bounded(broker.payload_bytes(), bytes_max);
        }
        let unsynced = live_payloads(broker.state()).into_keys().filter(|payload| payload.lsn > broker.durable());
        let missing = { unsynced }.find(|payload| broker.cached_payload(*payload).is_none());
        unsynced_stays_in_memory(missing, broker.durable())
    }

    /// A segment was removed.
    pub(super) fn check_removed(&self, segment: FileId) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let mut frames = self.shadow.frames().iter().filter(|frame| frame.file == segment && !frame.is_mark);
        let first = frames.next().map(|frame| frame.at.lsn);
        let records = first.map(|first| first..=frames.next_back().map_or(first, |frame| frame.at.lsn));
        live_segment_stays(segment, records.as_ref(), &live_payloads(broker.state()))?;
        live_segment_stays(segment, records.as_ref(), &live_payloads(self.shadow.state()))?;
        let snapshots = broker.snapshots().into_iter().filter_map(|number| self.disk.model().referred_by(number));
        { snapshots }.try_for_each(|(_, listed)| listed_segment_stays(segment, &listed))
    }

    /// A snapshot got its name: recounts the live bytes of the segments that it lists.
    pub(super) fn check_listed(&self, snapshot: FrameNumber) -> Verdict {
        let Some((state, listed)) = self.disk.model().restored(snapshot, &self.faults) else { return Ok(()) };
        let mut counted = BTreeMap::new();
        for (payload, bytes) in live_payloads(&state) {
            if let Some(frame) = self.shadow.frame_of(payload.lsn) {
                *counted.entry(frame.file).or_default() += bytes + RECORD_BYTES;
            }
        }
        live_bytes_match(&listed, &counted)
    }
}

/// What refers to payloads that were written again, one for each of them, in the order of their records.
fn moved(before: &[(PayloadOf, PayloadId)], after: Vec<(PayloadOf, PayloadId)>) -> Vec<Option<PayloadOf>> {
    let mut moved = BTreeMap::new();
    for (of, to) in after.into_iter().filter(|(_, to)| !to.is_lost()) {
        if before.iter().any(|(known, from)| *known == of && *from != to) {
            moved.insert(to, Some(of));
        }
    }
    moved.into_values().collect()
}

/// What was wanted before and is not any more.
fn missing_from(before: Vec<PayloadId>, after: impl Iterator<Item = PayloadId>) -> Vec<PayloadId> {
    let after: Vec<_> = after.collect();
    before.into_iter().filter(|payload| after.binary_search(payload).is_err()).collect()
}
