//! The commit pipeline: batches records, syncs each batch once, and releases the outputs that depend on it.
//!
//! A pipeline performs no I/O. It returns [`Job`]s, which its driver performs and reports with [`Pipeline::complete`].
//! While one batch is written the next one is decided. A failed write or sync is final: everything held is refused, and
//! only a restart continues.

mod canonical;
mod job;
mod maintenance;
mod open;
mod writer;

use self::job::Purpose;
pub use self::job::{Job, JobClass};
use self::maintenance::Maintenance;
pub use self::open::{OpenError, OpenOptions, inspect, inspect_with};
use self::writer::{NextSegment, Writer};
use crate::broker::{Broker, LogFault, LogRefusal};
use crate::command::Command;
use crate::faults::{Faults, NoFaults};
use crate::log::{SnapshotHead, Storage, StorageFault};
use crate::reply::Output;
use crate::state::State;
use crate::types::{Limits, Lsn, Millis, Now, Ticket, Timestamp};

/// How long after the last sync an idle log appends a mark, a frame that records what is synced.
const MARK_AFTER: Millis = Millis(100);

/// The configuration of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineConfig {
    /// The broker's limits.
    pub limits: Limits,
    /// Bytes of a segment. A record that does not fit into an empty segment is refused.
    pub segment_bytes: u64,
    /// Bytes at the end of the last segment that are reserved for acks and deletions when the disk is full.
    pub reserve_bytes: u64,
    /// Log bytes between two snapshots.
    pub snapshot_every_bytes: u64,
    /// Bytes of a snapshot per background job.
    pub slice_bytes: usize,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            limits: Limits::production(),
            segment_bytes: 64 << 20,
            reserve_bytes: 8 << 20,
            snapshot_every_bytes: 256 << 20,
            slice_bytes: 256 << 10,
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
    snapshot_every_bytes: u64,
    bytes_since_snapshot: u64,
    snapshot_wanted: bool,
    log_busy: bool,
    maintenance_busy: bool,
    mark_at: Option<Timestamp>,
    closing: bool,
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
    pub fn handle(&mut self, now: impl Into<Now>, command: Command) -> Ticket {
        self.broker.handle(now, command, &mut self.log)
    }

    /// Fires the timers due at `now`: lease expiries, retries, delays, retention.
    ///
    /// Call it when the time that [`Pipeline::poll_timeout`] returned has come. An early or repeated call is harmless;
    /// a late one delays redeliveries, and nothing is lost. One call does a bounded amount of work; if more is due,
    /// [`Pipeline::poll_timeout`] returns a time that has passed.
    pub fn handle_timeout(&mut self, now: impl Into<Now>) {
        let now = now.into();
        self.broker.handle_timeout(now, &mut self.log);
        self.maintenance.on_time(now.mono);
        if self.mark_at.is_some_and(|at| at <= now.mono) {
            self.mark_at = None;
            if self.log.is_idle() && !self.log_busy && !self.log.ends_in_mark() && !self.has_failed() {
                self.log.mark();
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
        if self.has_failed() {
            return None;
        }
        let times = [self.broker.poll_timeout(), self.mark_at, self.maintenance.retry_at()];
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
        self.broker.rebase_wall_clock(now, &mut self.log)
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
    /// except a full disk in a background job is final: held replies become
    /// [`Refusal::LogFailed`](crate::Refusal::LogFailed), and only a restart continues. A failed sync must never be
    /// reported as a success.
    pub fn complete(&mut self, now: impl Into<Now>, job: Job, result: Result<(), StorageFault>) {
        let now = now.into();
        match job.purpose {
            Purpose::Commit { through } => {
                self.log_busy = false;
                match result {
                    Ok(()) => {
                        self.log.on_synced(through);
                        self.log.recycle(job.ops);
                        self.broker.on_durable(now, through.min(self.broker.appended()));
                        if self.log.is_idle() && !self.log.ends_in_mark() {
                            self.mark_at = Some(now.mono.after(MARK_AFTER));
                        }
                    }
                    Err(fault) => self.fail("writing the log", &fault),
                }
            }
            Purpose::Maintenance(task) => {
                self.maintenance_busy = false;
                if let Err(fault) = self.maintenance.complete(task, result, now.mono, &mut self.log) {
                    self.fail("keeping the log's files", &fault);
                }
            }
        }
    }

    /// Performs all jobs, one by one, until there is none. Replaces [`Pipeline::poll_job`] and [`Pipeline::complete`]
    /// in a driver that overlaps no I/O with decisions.
    pub fn drive(&mut self, now: impl Into<Now>, storage: &mut (impl Storage + ?Sized)) {
        let now = now.into();
        while let Some(job) = self.poll_job(JobClass::Log).or_else(|| self.poll_job(JobClass::Background)) {
            let result = job.perform(storage);
            self.complete(now, job, result);
        }
    }

    /// Requests a snapshot, whatever [`PipelineConfig::snapshot_every_bytes`] says. It begins with the next
    /// [`Pipeline::poll_job`] of [`JobClass::Log`] for which a segment is ready, and is written by background jobs.
    pub fn request_snapshot(&mut self) {
        self.snapshot_wanted = true;
    }

    /// Begins a clean shutdown: refuses every later command and appends a footer.
    ///
    /// Continue with log jobs and outputs until [`Pipeline::is_closed`]. Without it the next start finds no footer and
    /// reports an unclean stop; nothing durable is lost.
    pub fn close(&mut self) {
        if !self.closing && !self.has_failed() {
            self.closing = true;
            self.broker.close();
            self.log.footer();
        }
    }

    /// Whether the footer appended by [`Pipeline::close`] is synced. A log that fails meanwhile can stay unclosed:
    /// check [`Pipeline::failure`], too.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing && self.log.is_idle() && !self.log_busy
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

    /// The LSN through which the log is synced.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        self.log.synced()
    }

    /// The LSNs of the complete snapshots, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> &[Lsn] {
        self.maintenance.snapshots()
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
        let job = Job { class: JobClass::Log, ops: batch.ops, purpose: Purpose::Commit { through: batch.through } };
        self.bytes_since_snapshot += job.appended_bytes();
        Some(job)
    }

    fn next_maintenance_job(&mut self) -> Option<Job> {
        if self.maintenance_busy {
            return None;
        }
        let (task, ops) = self.maintenance.next(&mut self.log)?;
        self.maintenance_busy = true;
        Some(Job { class: JobClass::Background, ops, purpose: Purpose::Maintenance(task) })
    }

    /// Begins a snapshot of the state at a batch boundary, if one is due.
    ///
    /// The current segment ends with it, if the next one is ready. If the disk has no space for another segment, a
    /// snapshot is the way to get some: it makes closed segments removable. A retried snapshot ends no segment, since
    /// space is short.
    fn begin_snapshot_if_due(&mut self) {
        let (lsn, _) = self.log.last();
        let covered = self.maintenance.snapshots().last().is_some_and(|snapshot| *snapshot >= lsn);
        let no_space = self.log.next_segment() == NextSegment::NoSpace && self.log.has_closed();
        let is_retry = self.maintenance.must_retry_snapshot();
        let due =
            self.snapshot_wanted || is_retry || no_space || self.bytes_since_snapshot >= self.snapshot_every_bytes;
        if covered {
            self.snapshot_wanted = false;
            return;
        }
        if !due || self.closing || !self.maintenance.is_free() {
            return;
        }
        match self.log.next_segment() {
            _ if is_retry => {}
            NextSegment::Ready => self.log.rotate(),
            NextSegment::NoSpace => {}
            NextSegment::Missing | NextSegment::Creating => return,
        }
        self.snapshot_wanted = false;
        self.bytes_since_snapshot = 0;
        let (lsn, crc) = self.log.last();
        let head = SnapshotHead { log_id: self.log.log_id(), lsn, crc, epoch: self.log.epoch() };
        let images = self.broker.faults().snapshot(self.broker.state());
        self.maintenance.begin(head, images);
    }

    fn fail(&mut self, doing: &str, fault: &StorageFault) {
        self.broker.on_log_failed(LogFault(format!("{doing}: {fault}")));
    }
}
