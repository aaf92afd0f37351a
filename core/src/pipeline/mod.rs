//! From commands to durable answers: batches what arrived, asks for one sync, releases what it covers, and never lets anything
//! out before.
//!
//! The pipeline performs no I/O. It hands out [`Job`]s; whoever drives it performs them, in order within each [`JobClass`], and
//! reports back with [`Pipeline::complete`]. While a batch is on its way to the disk the next one is already being decided.
//! Any failed write or sync ends it: everything held is refused, nothing more is accepted, and only a restart goes on.

mod canonical;
mod maintenance;
mod open;
mod writer;

use self::maintenance::{Maintenance, MaintenanceTask};
pub use self::open::{OpenError, OpenOptions, inspect, inspect_with};
use self::writer::{NextSegment, Writer};
use crate::broker::{Broker, LogFault};
use crate::command::Command;
use crate::faults::{Faults, NoFaults};
use crate::log::{IoOp, SnapshotHead, Storage, StorageFault};
use crate::reply::Output;
use crate::state::State;
use crate::types::{Limits, Lsn, Millis, Ticket, Timestamp};

/// How long after the last sync an idle log says so.
const MARK_AFTER: Millis = Millis(100);

/// How a pipeline is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineConfig {
    /// The broker's limits.
    pub limits: Limits,
    /// Bytes of a segment. No record can be longer than one segment holds.
    pub segment_bytes: u64,
    /// Bytes at the end of the last segment a full disk has room for, kept for what drains the broker.
    pub reserve_bytes: u64,
    /// Log bytes after which a snapshot is taken.
    pub snapshot_every_bytes: u64,
    /// How much of a snapshot is written at a time.
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

/// Which kind of I/O a job is. Jobs of one class are performed one after the other; those of different lanes may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobClass {
    /// Batches of the log. Somebody is waiting for these.
    Log,
    /// Segments made ahead, snapshots, removals.
    Background,
}

/// I/O to be performed: every op in order, stopping at the first that fails.
#[derive(Clone, Debug)]
#[must_use = "a job that is not performed and completed stops the pipeline"]
pub struct Job {
    class: JobClass,
    ops: Vec<IoOp>,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    Commit { through: Lsn },
    MaintenanceTask(MaintenanceTask),
}

impl Job {
    /// The class it belongs to.
    #[must_use]
    pub fn class(&self) -> JobClass {
        self.class
    }

    /// What is to be done.
    #[must_use]
    pub fn ops(&self) -> &[IoOp] {
        &self.ops
    }

    /// How many bytes it appends to files.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        let appended = |op: &IoOp| if let IoOp::Append { bytes, .. } = op { bytes.len() as u64 } else { 0 };
        self.ops.iter().map(appended).sum()
    }

    /// Performs it.
    ///
    /// # Errors
    /// The first op's that failed; the ops behind it were not tried.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<(), StorageFault> {
        self.ops.iter().try_for_each(|op| op.perform(storage))
    }
}

/// A broker and its log. A clone shares nothing with it and goes its own way, which is of use where what it is asked to write
/// can go two ways as well: in a simulation.
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
    /// Decides `command` at `now`; see [`Broker::handle`].
    pub fn handle(&mut self, now: Timestamp, command: Command) -> Ticket {
        self.broker.handle(now, command, &mut self.log)
    }

    /// Does what has come due by `now`. Call it at the moment [`Pipeline::poll_timeout`] names, or later.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.broker.handle_timeout(now, &mut self.log);
        self.maintenance.on_time(now);
        if self.mark_at.is_some_and(|at| at <= now) {
            self.mark_at = None;
            if self.log.is_idle() && !self.log_busy && !self.log.ends_in_mark() && !self.has_failed() {
                self.log.mark();
            }
        }
    }

    /// When [`Pipeline::handle_timeout`] wants to be called; now or earlier means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.has_failed() {
            return None;
        }
        let waiting = [self.broker.poll_timeout(), self.mark_at, self.maintenance.retry_at()];
        waiting.into_iter().flatten().min()
    }

    /// The next output that is safe to give.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.broker.poll_output()
    }

    /// The next job of `class`, if it has one and none of it is under way.
    pub fn poll_job(&mut self, class: JobClass) -> Option<Job> {
        if self.has_failed() {
            return None;
        }
        match class {
            JobClass::Log => self.next_batch(),
            JobClass::Background => self.next_maintenance_job(),
        }
    }

    /// A job has been performed, or has failed.
    pub fn complete(&mut self, now: Timestamp, job: Job, result: Result<(), StorageFault>) {
        match job.purpose {
            Purpose::Commit { through } => {
                self.log_busy = false;
                match result {
                    Ok(()) => {
                        self.log.on_synced(through);
                        self.log.recycle(job.ops);
                        self.broker.on_durable(through.min(self.broker.appended()));
                        if self.log.is_idle() && !self.log.ends_in_mark() {
                            self.mark_at = Some(now.after(MARK_AFTER));
                        }
                    }
                    Err(fault) => self.fail("writing the log", &fault),
                }
            }
            Purpose::MaintenanceTask(task) => {
                self.maintenance_busy = false;
                if let Err(fault) = self.maintenance.done(task, result, now, &mut self.log) {
                    self.fail("keeping the log's files", &fault);
                }
            }
        }
    }

    /// Performs every job there is, one by one, until none is left: all a driver must do where nothing is to overlap.
    pub fn drive(&mut self, now: Timestamp, storage: &mut (impl Storage + ?Sized)) {
        while let Some(job) = self.poll_job(JobClass::Log).or_else(|| self.poll_job(JobClass::Background)) {
            let result = job.perform(storage);
            self.complete(now, job, result);
        }
    }

    /// Takes a snapshot as soon as one can be taken, however little there is to gain.
    pub fn request_snapshot(&mut self) {
        self.snapshot_wanted = true;
    }

    /// Ends the log in an orderly way: behind everything appended so far comes a footer. Nothing is accepted any more.
    pub fn close(&mut self) {
        if !self.closing && !self.has_failed() {
            self.closing = true;
            self.broker.close();
            self.log.footer();
        }
    }

    /// Whether [`Pipeline::close`] has run its course.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing && self.log.is_idle() && !self.log_busy
    }

    /// Why nothing is accepted any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFault> {
        self.broker.failure()
    }

    /// The durable state, to look at.
    #[must_use]
    pub fn state(&self) -> &State {
        self.broker.state()
    }

    /// The broker, to look at.
    #[must_use]
    pub fn broker(&self) -> &Broker<F> {
        &self.broker
    }

    /// The last position known to be durable.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        self.log.synced()
    }

    /// Snapshots that stand ready, oldest first.
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
        Some(Job { class: JobClass::Background, ops, purpose: Purpose::MaintenanceTask(task) })
    }

    /// A snapshot is the state at a batch boundary, and a segment ends with it where there is another to go on in. Where the
    /// disk has no room for another, a snapshot is the way to get some: what it makes unneeded can go. One that is tried again
    /// ends no further segment: room was short, and a segment takes more of it.
    fn begin_snapshot_if_due(&mut self) {
        let (lsn, _) = self.log.last();
        let covered = self.maintenance.snapshots().last().is_some_and(|snapshot| *snapshot >= lsn);
        let no_room = self.log.next_segment() == NextSegment::NoRoom && self.log.has_closed();
        let again = self.maintenance.owes_snapshot();
        let due = self.snapshot_wanted || again || no_room || self.bytes_since_snapshot >= self.snapshot_every_bytes;
        if covered {
            self.snapshot_wanted = false;
            return;
        }
        if !due || self.closing || !self.maintenance.is_free() {
            return;
        }
        match self.log.next_segment() {
            _ if again => {}
            NextSegment::Ready => self.log.rotate(),
            NextSegment::NoRoom => {}
            NextSegment::Wanted | NextSegment::Asked => return,
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
