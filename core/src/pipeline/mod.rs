//! The commit pipeline: batches records, syncs each batch once, and releases the outputs that depend on it.
//!
//! A pipeline performs no I/O. It returns [`Job`]s, which its driver performs and reports with [`Pipeline::complete`].
//! While one batch is written the next one is decided. A failed write or sync is final: everything held is refused, and
//! only a restart continues.

mod access;
mod canonical;
mod cleaning;
mod damage;
mod job;
mod maintenance;
mod open;
mod places;
mod reads;
mod referred;
mod room;
mod scrub;
mod segments;
mod state_bound;
mod storage_reads;
mod walk;
mod writer;

use std::collections::VecDeque;

use self::cleaning::Cleaning;
pub use self::cleaning::LogFigures;
use self::job::Purpose;
pub use self::job::{Job, JobClass};
use self::maintenance::{Maintenance, MaintenanceTask};
pub use self::open::{OpenError, OpenOptions, inspect, inspect_start_with, inspect_with};
pub use self::reads::ReadJob;
use self::reads::Reads;
use self::referred::LiveBytes;
pub use self::room::Room;
use self::scrub::Scrub;
use self::state_bound::StateBound;
pub use self::storage_reads::LogNotice;
pub use self::writer::RefusedAppend;
use self::writer::{NextSegment, Writer};
use crate::broker::{Broker, LogFault, LogRefusal};
use crate::command::Command;
use crate::faults::{Faults, NoFaults};
use crate::log::{LogPosition, SegmentInfo, SnapshotHead, Storage, StorageFault};
use crate::reply::Output;
use crate::state::State;
use crate::types::{Caller, FrameNumber, Limits, Lsn, Millis, Now, Ticket, Timestamp};

/// How long after the last sync an idle log appends a mark, a frame that records what is synced.
const MARK_AFTER: Millis = Millis(100);

/// How many times as long a log rests before snapshots that write more than they free.
const LONG_REST: u64 = 15;

/// The configuration of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineConfig {
    /// The broker's limits.
    pub limits: Limits,
    /// Bytes of the largest segment. A record that does not fit into an empty one is refused.
    pub segment_bytes: u64,
    /// Bytes of the first segment after a start and of the segments of a broker at rest; each segment that is filled is
    /// followed by one of twice the size, up to `segment_bytes`. Should hold the largest message beside the reserve,
    /// since a record that fits into neither the current nor the next segment is refused until a larger one is there.
    pub segment_bytes_min: u64,
    /// Bytes at the end of the last segment that are reserved for acks and deletions when the disk is full.
    pub reserve_bytes: u64,
    /// Log bytes between two snapshots; if the last one was more than half as large, twice its bytes, so that snapshots
    /// never cost more than half of what is logged.
    pub snapshot_every_bytes: u64,
    /// Segments between two snapshots: every start begins one, however little was written.
    pub snapshot_every_segments: usize,
    /// How long after the last record the log counts as at rest: then snapshots make its closed segments removable, and
    /// without live messages its segments become as small as possible. `None`: never.
    pub rest_after: Option<Millis>,
    /// Bytes of a snapshot per background job.
    pub slice_bytes: usize,
    /// Bytes of payloads that stay in memory, beside those that are not synced or that outputs wait for.
    pub memory_bytes: u64,
    /// Bytes that are read ahead of each group that drains a partition from the log, in order; all groups together get
    /// at most half of `memory_bytes`. 0: reads begin when outputs
    /// wait for them.
    pub read_ahead_bytes: u64,
    /// So many segments of the largest size the log may be larger than its live bytes; beyond that, and if it is more
    /// than twice as large, segments are cleaned.
    pub clean_spare_segments: u64,
    /// How often every segment with live payloads is read to find damage. `None`: never.
    pub scrub_interval: Option<Millis>,
    /// Bytes of the state itself, as [`State::memory`] estimates them. Beyond it, commands that make the state grow are
    /// refused with [`Overload::Memory`](crate::reply::Overload::Memory); whatever drains it goes on.
    pub state_bytes_max: u64,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            limits: Limits::production(),
            segment_bytes: 64 << 20,
            segment_bytes_min: 25 << 20,
            reserve_bytes: 8 << 20,
            snapshot_every_bytes: 64 << 20,
            snapshot_every_segments: 12,
            rest_after: Some(Millis(2_000)),
            slice_bytes: 256 << 10,
            memory_bytes: 256 << 20,
            read_ahead_bytes: 4 << 20,
            clean_spare_segments: 8,
            scrub_interval: Some(Millis(7 * 24 * 3_600_000)),
            state_bytes_max: u64::MAX,
        }
    }
}

/// A broker and its log.
///
/// A pipeline does nothing on its own: a *driver* passes commands and the time, performs its jobs, and collects its
/// outputs. No method blocks or performs I/O, except [`Pipeline::drive`]. A driver loops over these steps, in this
/// order:
///
/// 1. [`Pipeline::handle`] for every command that arrived, and [`Pipeline::handle_timeout`] if the time that
///    [`Pipeline::poll_timeout`] returned has come.
/// 2. [`Pipeline::complete`] for every job that was performed.
/// 3. [`Pipeline::poll_job`] for each [`JobClass`] without a job under way; a returned job is performed, possibly on
///    another thread.
/// 4. [`Pipeline::poll_output`] until it returns `None`.
/// 5. [`Pipeline::poll_timeout`], then wait for a command, a performed job or that time.
///
/// Dropping a pipeline is equivalent to a crash: what is not durable is lost, and was never reported as done.
///
/// A clone continues independently of the original. A simulator uses it to explore two futures; at most one of them can
/// continue the log on a given storage.
#[derive(Clone, Debug)]
pub struct Pipeline<F: Faults = NoFaults> {
    broker: Broker<F>,
    log: Writer,
    maintenance: Maintenance,
    reads: Reads,
    cleaning: Cleaning,
    scrub: Scrub,
    notices: VecDeque<LogNotice>,
    state_bound: StateBound,
    snapshot_every_bytes: u64,
    snapshot_every_segments: usize,
    rest_after: Option<Millis>,
    bytes_since_snapshot: u64,
    snapshot_wanted: bool,
    log_busy: bool,
    maintenance_busy: bool,
    mark_at: Option<Timestamp>,
    /// When the log counts as at rest.
    rest_at: Option<Timestamp>,
    /// Whether `rest_at` was put off, since the snapshots of a rest would write more than they free.
    rest_is_deferred: bool,
    /// The last record when the log came to rest; it is at rest until the next record.
    rested: Option<Rest>,
    /// When to remove retained messages, since the disk is full.
    reclaim_at: Option<Timestamp>,
    closing: bool,
}

/// A log without new records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    /// The last record.
    appended: Lsn,
    /// How often larger segments had been asked for.
    growths: u64,
    /// Whether the broker has messages that are not acked in every group.
    has_live: bool,
}

impl<F: Faults> Pipeline<F> {
    /// Decides `command` at `now` and returns the ticket that its reply will carry.
    ///
    /// Call it when a command arrives, in the order that all commands are to take effect in, also while jobs are under
    /// way. Call [`Pipeline::poll_job`], [`Pipeline::poll_output`] and [`Pipeline::poll_timeout`] afterwards, at the
    /// latest after a batch of commands.
    ///
    /// Every command gets exactly one reply or refusal from [`Pipeline::poll_output`], once every record decided so far
    /// is durable. A monotonic time before an earlier one counts as that one. After [`Pipeline::close`] or a failure
    /// every
    /// command is refused.
    ///
    /// The command is that of the program itself: see [`Pipeline::handle_as`].
    pub fn handle(&mut self, now: impl Into<Now>, command: Command) -> Ticket {
        self.handle_as(now, &Caller::TRUSTED, command)
    }

    /// As [`Pipeline::handle`], of a command that `caller` has sent.
    ///
    /// While there is no key, any caller may do everything. As soon as there is one, a command is refused with
    /// [`Refusal::Unauthenticated`](crate::Refusal::Unauthenticated) unless the caller's key is known and has not
    /// expired at `now`, and with [`Refusal::PermissionDenied`](crate::Refusal::PermissionDenied) unless it grants what
    /// the command needs. Commands of operators and administrators are audited, refused ones included.
    pub fn handle_as(&mut self, now: impl Into<Now>, caller: &Caller, mut command: Command) -> Ticket {
        let now = now.into();
        self.log.begin_call();
        self.log.refuse_growth(self.state_bound.is_reached(self.broker.state(), now.mono));
        self.broker.handle_in_place(now, caller, &mut command, &mut self.log)
    }

    /// Fires the timers due at `now`: lease expiries, retries, delays, retention.
    ///
    /// Call it when the time that [`Pipeline::poll_timeout`] returned has come. An early or repeated call is harmless;
    /// a late one delays redeliveries, and nothing is lost. One call does a bounded amount of work; if more is due,
    /// [`Pipeline::poll_timeout`] returns a time that has passed.
    pub fn handle_timeout(&mut self, now: impl Into<Now>) {
        let now = now.into();
        self.log.begin_call();
        if self.closing {
            // The footer is the last frame.
            return;
        }
        self.broker.handle_timeout(now, &mut self.log);
        self.maintenance.on_time(now.mono);
        self.reads_on_time(now.mono);
        if self.reclaim_at.is_some_and(|at| at <= now.mono) && !self.has_failed() {
            self.reclaim_retained(now.mono);
        }
        if self.rest_at.is_some_and(|at| at <= now.mono) {
            self.rest(now.mono);
        }
        if self.mark_at.is_some_and(|at| at <= now.mono) {
            self.mark_at = None;
            let is_unmarked = self.log.is_idle() && !self.log_busy && !self.log.ends_in_mark() && !self.has_failed();
            if is_unmarked && let Some(synced) = self.broker.faults().idle_mark(self.log.synced().frame) {
                // A full segment without a successor has no room.
                self.mark_at = (!self.log.mark(synced)).then(|| now.mono.after(MARK_AFTER));
            }
        }
    }

    /// The monotonic time at which to call [`Pipeline::handle_timeout`]; a time that has passed means at once,
    /// `None` that
    /// no timer is set.
    ///
    /// A wall clock that is set is noticed by the next call. A driver therefore calls [`Pipeline::handle_timeout`] at
    /// least once a second while [`Pipeline::has_wall_timers`].
    ///
    /// Call it after every [`Pipeline::handle`], [`Pipeline::handle_timeout`] and [`Pipeline::complete`]: each can
    /// change the result.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.has_failed() || self.closing {
            return None;
        }
        let times = [self.mark_at, self.rest_at, self.reclaim_at, self.maintenance.retry_at(), self.next_read_at()];
        let times = times.into_iter().chain([self.broker.poll_timeout()]);
        times.into_iter().flatten().min()
    }

    /// Whether a deadline or a `deliver_at` is scheduled: its time comes earlier if the wall clock is set forward.
    #[must_use]
    pub fn has_wall_timers(&self) -> bool {
        self.broker.has_wall_timers()
    }

    /// Sets wall time to the wall clock, also back. For an operator who mends wall time that is far ahead; no other
    /// operation sets it back.
    ///
    /// # Errors
    /// [`LogRefusal`] if the log has no space for the record.
    pub fn rebase_wall_clock(&mut self, now: impl Into<Now>) -> Result<(), LogRefusal> {
        self.log.begin_call();
        self.broker.rebase_wall_clock(now, &mut self.log)
    }

    /// The records that the log refused for want of space during the last [`Pipeline::handle`],
    /// [`Pipeline::handle_timeout`] or [`Pipeline::rebase_wall_clock`], in order; the first 64 of them.
    #[must_use]
    pub fn refused_appends(&self) -> &[RefusedAppend] {
        self.log.refused()
    }

    /// The next output that may leave: every record it depends on is durable.
    ///
    /// Call it after every [`Pipeline::handle`], [`Pipeline::handle_timeout`] and [`Pipeline::complete`], until it
    /// returns `None`. A refusal or a read needs no job of its own, but waits for the records appended before it.
    /// Outputs that are not polled accumulate in memory. They come in the order of the decisions.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.broker.poll_output()
    }

    /// The next job of `class`; `None` if there is none, or one of the class is under way, or the log has failed.
    ///
    /// Call it for both classes after every [`Pipeline::handle`], [`Pipeline::handle_timeout`] and
    /// [`Pipeline::complete`]. A job of [`JobClass::Log`] contains everything appended since the one before, so that
    /// commands which arrive while a job is under way share the next sync. Every job must be performed and passed to
    /// [`Pipeline::complete`]. If log jobs are not polled, nothing becomes durable and no output leaves; if background
    /// jobs are not polled, the log refuses records when the current segment is full.
    pub fn poll_job(&mut self, class: JobClass) -> Option<Job> {
        if self.has_failed() {
            return None;
        }
        match class {
            JobClass::Log => self.next_batch(),
            JobClass::Background => self.next_maintenance_job(),
        }
    }

    /// Reports the result of a job.
    ///
    /// Call it exactly once per job, after it was performed, with the result of [`Job::perform`]. Without it no further
    /// job of the class is returned. Success of a log job releases the outputs that it makes durable. Any failure
    /// except a full disk or a lack of descriptors in a background job is final: held replies become
    /// [`Refusal::LogFailed`](crate::Refusal::LogFailed), and only a restart continues. A failed sync must never be
    /// reported as a success.
    pub fn complete(&mut self, now: impl Into<Now>, job: Job, result: Result<(), StorageFault>) {
        let now = now.into();
        match job.purpose {
            Purpose::Commit { through, end } => {
                self.log_busy = false;
                match result {
                    Ok(()) => {
                        let written_end = (self.log.sequence, self.log.end());
                        self.log.on_synced(through, self.broker.faults().readable_end(end, written_end));
                        self.log.recycle(job.ops);
                        self.broker.on_durable(now, through.lsn);
                        if self.log.is_idle() && !self.log.ends_in_mark() {
                            self.mark_at = Some(now.mono.after(MARK_AFTER));
                        }
                        self.rest_is_deferred = false;
                        self.rest_at = self.rest_time(now.mono);
                    }
                    Err(fault) => self.fail("writing the log", &fault),
                }
            }
            Purpose::Maintenance(task) => {
                self.maintenance_busy = false;
                let was_full = self.log.next_segment() == NextSegment::NoSpace;
                let newest = self.maintenance.snapshots().next_back();
                let is_reading = |sequence| self.reads.is_reading(sequence);
                let is_kept = |segment: &SegmentInfo, (older, newer)| {
                    let is_needed = self.broker.faults().is_listed(older, newer) || is_reading(segment.sequence);
                    self.broker.faults().keeps_segment(self.broker.state(), &segment.lsns, is_needed)
                };
                let keeps = (is_reading, is_kept);
                if let Err(fault) = self.maintenance.complete(task, result, now.mono, &mut self.log, keeps) {
                    self.fail("keeping the log's files", &fault);
                }
                if self.maintenance.snapshots().next_back() != newest {
                    self.plan_cleaning();
                }
                if self.closing && task == MaintenanceTask::CreateSegment {
                    // Created after the close, which has left the reserve elsewhere.
                    self.log.trim_next(0);
                }
                if self.log.next_segment() == NextSegment::NoSpace && !was_full {
                    self.reclaim_at = Some(now.mono);
                }
            }
        }
    }

    /// Performs all jobs and reads, one by one, until there is none. Replaces [`Pipeline::poll_job`],
    /// [`Pipeline::complete`], [`Pipeline::poll_read`] and [`Pipeline::complete_read`] in a driver that overlaps no I/O
    /// with decisions.
    pub fn drive(&mut self, now: impl Into<Now>, storage: &mut (impl Storage + ?Sized)) {
        let now = now.into();
        loop {
            if let Some(job) = self.poll_job(JobClass::Log).or_else(|| self.poll_job(JobClass::Background)) {
                let result = job.perform(storage);
                self.complete(now, job, result);
            } else if let Some(read) = self.poll_read() {
                let result = read.perform(storage);
                self.complete_read(now, &read, result);
            } else {
                return;
            }
        }
    }

    /// Requests a snapshot, whatever [`PipelineConfig::snapshot_every_bytes`] says. It begins with the next
    /// [`Pipeline::poll_job`] of [`JobClass::Log`] for which a segment is ready, and is written by background jobs.
    pub fn request_snapshot(&mut self) {
        self.snapshot_wanted = true;
    }

    /// Begins a clean shutdown: refuses every later command, appends a footer, cuts the last segment to what it holds
    /// and leaves no more than the reserve for a start on a full disk.
    ///
    /// Continue with log jobs, those under way and outputs until [`Pipeline::is_closed`]. Without it the next start
    /// finds no footer and reports an unclean stop; nothing durable is lost.
    pub fn close(&mut self) {
        if !self.closing && !self.has_failed() {
            self.closing = true;
            self.broker.close();
            self.log.close();
        }
    }

    /// Whether the footer appended by [`Pipeline::close`] is synced and no job is under way. A log that fails meanwhile
    /// can stay unclosed: check [`Pipeline::failure`], too.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing && self.log.is_idle() && !self.log_busy && !self.maintenance_busy
    }

    /// The failure of the log, if it has failed. Then no jobs are returned, every command is refused, and only a
    /// restart continues.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFault> {
        self.broker.failure()
    }

    /// The state after the last decision, durable or not.
    #[must_use]
    pub fn state(&self) -> &State {
        self.broker.state()
    }

    /// The broker.
    #[must_use]
    pub fn broker(&self) -> &Broker<F> {
        &self.broker
    }

    /// The room that the log has for records of produces.
    #[must_use]
    pub fn room(&self) -> Room {
        self.log.room()
    }

    /// The position through which the log is synced.
    #[must_use]
    pub fn synced(&self) -> LogPosition {
        self.log.synced()
    }

    /// The numbers of the frames that the complete snapshots were taken after, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> Vec<FrameNumber> {
        self.maintenance.snapshots().collect()
    }

    fn has_failed(&self) -> bool {
        self.broker.failure().is_some()
    }

    fn next_batch(&mut self) -> Option<Job> {
        if self.log_busy {
            return None;
        }
        self.begin_snapshot_if_due();
        let batch = self.log.take_batch()?;
        self.log_busy = true;
        self.mark_at = None;
        self.rest_at = None;
        let ops = self.broker.faults().job_ops(batch.ops);
        let job =
            Job { class: JobClass::Log, ops, purpose: Purpose::Commit { through: batch.through, end: batch.end } };
        self.bytes_since_snapshot += job.appended_bytes();
        self.cleaning.written(job.appended_bytes());
        Some(job)
    }

    fn next_maintenance_job(&mut self) -> Option<Job> {
        if self.maintenance_busy || self.closing {
            return None;
        }
        let (task, ops) = self.maintenance.next(&mut self.log, self.broker.faults())?;
        self.maintenance_busy = true;
        let ops = self.broker.faults().job_ops(ops);
        Some(Job { class: JobClass::Background, ops, purpose: Purpose::Maintenance(task) })
    }

    /// Whether the log came to rest, after [`PipelineConfig::rest_after`], and no record was appended since.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.rested.is_some_and(|rest| rest.appended == self.broker.appended() && rest.growths == self.log.growths())
    }

    /// When the log comes to rest, if no record follows and there is anything to do then.
    fn rest_time(&self, now: Timestamp) -> Option<Timestamp> {
        let has_work = self.log.has_closed() || self.log.has_large_segments();
        let comes = self.log.is_idle() && !self.is_at_rest() && !self.closing && has_work;
        self.rest_after.filter(|_| comes).map(|rest| now.after(rest))
    }

    /// No record was appended for a while. Snapshots that write more than they free wait longer.
    fn rest(&mut self, now: Timestamp) {
        let is_deferred = std::mem::replace(&mut self.rest_is_deferred, false);
        self.rest_at = None;
        let saves = self.log.closed_bytes() >= self.broker.stored_bytes();
        if let (false, false, Some(rest)) = (is_deferred, saves, self.rest_after) {
            self.rest_is_deferred = true;
            self.rest_at = Some(now.after(Millis(rest.0.saturating_mul(LONG_REST))));
            return;
        }
        let rest = Rest {
            appended: self.broker.appended(),
            growths: self.log.growths(),
            has_live: self.broker.has_live_messages(),
        };
        self.rested = Some(rest);
        if !rest.has_live && self.log.has_large_segments() {
            self.log.use_smallest_segments();
        }
    }

    /// Removes retained messages while the disk is full, in slices; a produce is refused only when none is left.
    fn reclaim_retained(&mut self, now: Timestamp) {
        self.reclaim_at = None;
        if self.log.next_segment() != NextSegment::NoSpace {
            return;
        }
        let before = self.broker.appended();
        let has_more = self.broker.reclaim_retained(&mut self.log);
        self.reclaim_at = has_more.then_some(now);
        let removed = self.broker.appended() > before;
        if removed || !has_more {
            self.maintenance.retry_snapshot_now(removed);
        }
    }

    /// Begins a snapshot of the state at a batch boundary, if one is due.
    ///
    /// The current segment ends with it, if the next one is ready. If the disk has no space for another segment, a
    /// snapshot is the way to get some: it makes closed segments removable. A retried snapshot ends no segment, since
    /// space is short.
    ///
    /// Segments are kept back to the older of two snapshots. At rest and on a full disk a second one is therefore
    /// taken, of a mark behind the first, if there are segments to which neither refers.
    fn begin_snapshot_if_due(&mut self) {
        if self.closing || !self.maintenance.is_free() {
            return;
        }
        let newest = self.maintenance.snapshots().next_back();
        let is_retry = self.maintenance.must_retry_snapshot();
        let is_full = self.log.next_segment() == NextSegment::NoSpace;
        let faults = self.broker.faults();
        let at_rest = faults.compacts_at_rest(self.is_at_rest());
        let shrinks = at_rest && self.rested.is_some_and(|rest| !rest.has_live) && self.log.has_large_segments();
        let covered = newest.is_some_and(|snapshot| snapshot >= self.log.last().0.frame);
        let has_work = if covered { self.can_free() } else { self.log.has_closed() };
        let reclaims = (is_full && self.reclaim_at.is_none() || at_rest) && has_work || shrinks;
        if covered {
            self.snapshot_wanted = false;
        }
        let closed = self.log.closed_since(newest.unwrap_or_default());
        let many_segments = faults.is_due_by_segments(closed, self.snapshot_every_segments);
        let much_written = self.bytes_since_snapshot >= self.snapshot_interval();
        let due = self.snapshot_wanted || is_retry || many_segments || much_written;
        if !(reclaims || due && !covered) {
            return;
        }
        match self.log.next_segment() {
            NextSegment::Missing | NextSegment::Creating => return,
            NextSegment::Ready if self.log.must_replace_next() => return,
            NextSegment::Ready | NextSegment::NoSpace => {}
        }
        let has_next = self.log.next_segment() == NextSegment::Ready;
        let is_marked = covered && self.log.is_idle() && self.log.mark_for_snapshot();
        // Without room for a mark, the footer of the segment takes its place.
        let ends_instead = covered && !is_marked && self.log.is_idle() && has_next;
        if covered && !is_marked && !ends_instead {
            return;
        }
        if ends_instead || has_next && !is_retry && (!covered || shrinks) {
            self.log.rotate();
        }
        self.snapshot_wanted = false;
        self.bytes_since_snapshot = 0;
        let (at, crc) = self.log.last();
        let head = SnapshotHead { log_id: self.log.log_id(), at, crc, epoch: self.log.epoch() };
        self.broker.sweep_referrers();
        let images = self.broker.faults().snapshot(self.broker.state());
        self.maintenance.begin(head, images, LiveBytes::new(self.log.extents()));
    }

    /// The bound on the memory of the state.
    #[must_use]
    pub fn state_bytes_max(&self) -> u64 {
        self.state_bound.max()
    }

    /// The log bytes after which the next snapshot is due.
    #[must_use]
    pub fn snapshot_interval(&self) -> u64 {
        self.snapshot_every_bytes.max(self.maintenance.last_snapshot_bytes().saturating_mul(2))
    }

    /// Whether another snapshot of the same state frees segments.
    fn can_free(&self) -> bool {
        self.maintenance.can_free(&self.log, |sequence| self.reads.is_reading(sequence))
    }

    fn fail(&mut self, doing: &str, fault: &StorageFault) {
        self.broker.on_log_failed(LogFault(format!("{doing}: {fault}")));
    }
}
