//! The sequencer: the one place where commands are decided.
//!
//! It feeds commands and time into the core's [`Pipeline`], gives its jobs and reads to the disk and takes their
//! results. It runs on the reactor's thread if there is one reactor, else on its own ([`super::sequencer_thread`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use driftq_core::log::StorageFault;
use driftq_core::types::{Caller, Millis, Now, Ticket, Timestamp};
use driftq_core::{Command, Job, JobClass, Output, Pipeline};
use driftq_files::VolatileStorage;

use super::gather::Gather;
use super::io_threads::IoThreads;
use super::status::BrokerStatus;
use crate::metrics::Metrics;

/// How often the wall clock is read while a deadline or a `deliver_at` is scheduled: so soon does an idle broker notice
/// a wall clock that was set forward.
const WALL_CLOCK_INTERVAL: Millis = Millis(1_000);
/// Reads that are started in one turn, at most: what has come leaves before more is read.
const READS_PER_TURN: usize = 8;

/// What performs the pipeline's jobs.
#[derive(Debug)]
pub(crate) enum Disk {
    /// Threads over real files.
    Threads(IoThreads),
    /// No log on disk: a job is completed at once.
    Volatile(VolatileStorage),
}

/// The pipeline, and what drives it.
pub(crate) struct Sequencer {
    pipeline: Pipeline,
    disk: Disk,
    metrics: Arc<Metrics>,
    status: Arc<BrokerStatus>,
    /// The monotonic time at which the timeout handler is called next, to compare the clocks.
    check_clock_at: Timestamp,
    /// A job was completed at once, and another may be due.
    has_more: bool,
    /// How long the next batch waits for more commands.
    gather: Gather,
}

impl Sequencer {
    /// A sequencer over a recovered log.
    pub(crate) fn new(pipeline: Pipeline, disk: Disk, metrics: Arc<Metrics>, status: Arc<BrokerStatus>) -> Self {
        Self {
            pipeline,
            disk,
            metrics,
            status,
            check_clock_at: Timestamp(0),
            has_more: false,
            gather: Gather::default(),
        }
    }

    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Decides a command of `caller`.
    pub(super) fn handle(&mut self, now: Now, caller: &Caller, command: Command) -> Ticket {
        let _guard = AbortOnPanic;
        self.gather.add_command();
        self.pipeline.handle_as(now, caller, command)
    }

    /// Begins to close the log with a footer.
    pub(super) fn close(&mut self) {
        self.pipeline.close();
    }

    /// The next output that may leave.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.pipeline.poll_output()
    }

    /// One turn: takes completed jobs and reads, fires timers, starts jobs and reads. Outputs are released by then, and
    /// while they are written the disk works on the next batch.
    pub(super) fn turn(&mut self, now: Now) {
        let _guard = AbortOnPanic;
        self.has_more = false;
        self.take_completed(now);
        let check_clock = self.pipeline.has_wall_timers() && self.check_clock_at <= now.mono;
        if check_clock || self.pipeline.poll_timeout().is_some_and(|at| at <= now.mono) {
            self.check_clock_at = now.mono.after(WALL_CLOCK_INTERVAL);
            self.pipeline.handle_timeout(now);
        }
        self.start_jobs(now);
        while let Some(notice) = self.pipeline.poll_notice() {
            tracing::error!("{notice}");
        }
        self.report_status();
    }

    /// The monotonic time at which the next turn is due at the latest; a time that has passed means at once.
    pub(super) fn next_turn(&self) -> Option<Timestamp> {
        let at_once = self.has_more.then_some(Timestamp(0));
        let check_clock = self.pipeline.has_wall_timers().then_some(self.check_clock_at);
        [at_once, self.pipeline.poll_timeout(), check_clock].into_iter().flatten().min()
    }

    fn take_completed(&mut self, now: Now) {
        loop {
            let Disk::Threads(io_threads) = &self.disk else { return };
            if let Some(done) = io_threads.poll_completed() {
                self.complete_job(now, done.job, done.result, Some(done.took));
            } else if let Some(done) = io_threads.poll_completed_read() {
                self.pipeline.complete_read(now, &done.job, done.result);
            } else {
                return;
            }
        }
    }

    fn complete_job(&mut self, now: Now, job: Job, result: Result<(), StorageFault>, took: Option<Duration>) {
        let (class, synced, bytes) = (job.class(), self.pipeline.synced(), job.appended_bytes());
        self.pipeline.complete(now, job, result);
        if class == JobClass::Log {
            self.status.set_log_busy(None);
            self.metrics.observe_log_batch(self.pipeline.synced().lsn.0 - synced.lsn.0, bytes, took);
            if let Disk::Threads(io_threads) = &self.disk
                && let Some(pause) = took.and_then(|took| self.gather.end_batch(took, Instant::now()))
            {
                io_threads.wake_in(pause);
            }
        } else {
            self.metrics.count_snapshot_bytes(bytes);
            self.status.notify_log_room();
        }
    }

    fn start_jobs(&mut self, now: Now) {
        for class in [JobClass::Log, JobClass::Background] {
            if class == JobClass::Log && self.gather.is_waiting(Instant::now) {
                continue;
            }
            while let Some(job) = self.pipeline.poll_job(class) {
                match &mut self.disk {
                    Disk::Threads(io_threads) => {
                        if class == JobClass::Log {
                            self.gather.start_batch();
                            self.status.set_log_busy(Some(now.mono));
                        }
                        io_threads.perform(job);
                    }
                    Disk::Volatile(storage) => {
                        let result = job.perform(storage);
                        self.complete_job(now, job, result, None);
                        if class == JobClass::Background {
                            // The slices of a snapshot leave time for commands.
                            self.has_more = true;
                            break;
                        }
                    }
                }
            }
        }
        for _ in 0..READS_PER_TURN {
            let Some(read) = self.pipeline.poll_read() else { break };
            match &mut self.disk {
                Disk::Threads(io_threads) => io_threads.read(read),
                Disk::Volatile(storage) => {
                    let result = read.perform(storage);
                    self.pipeline.complete_read(now, &read, result);
                    self.has_more = true;
                }
            }
        }
    }

    fn report_status(&self) {
        if let Some(failure) = self.pipeline.failure()
            && !self.status.has_failed()
        {
            tracing::error!("{failure}; nothing more is accepted, restart the broker");
            self.status.fail();
        }
        if self.pipeline.is_closed() {
            self.status.close();
        }
    }
}

/// Guards the broker's state against panics: should one occur while the guard is held, memory may be inconsistent, and
/// the process aborts. The log has everything that was acknowledged. (A panic elsewhere costs only the connection it
/// happened on.)
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the broker panicked; aborting, a restart recovers from the log");
            std::process::abort();
        }
    }
}
