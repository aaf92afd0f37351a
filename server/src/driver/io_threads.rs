//! Two threads that perform the pipeline's I/O jobs, so that the reactor never blocks on the disk.
//!
//! One appends and syncs batches of the log; the other prepares segments, writes snapshots and removes obsolete files.
//! Each takes one job at a time and reports its result. Both end when [`IoThreads`] is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use driftq_core::log::{Storage, StorageFault};
use driftq_core::{Job, JobClass};
use tokio::sync::Notify;

use super::affinity::{AvoidReactor, ReactorCpu};

/// A job that was performed or failed.
#[derive(Debug)]
pub(crate) struct CompletedJob {
    pub(crate) job: Job,
    pub(crate) result: Result<(), StorageFault>,
    pub(crate) took: Duration,
}

/// Channels to the threads and back.
#[derive(Debug)]
pub(crate) struct IoThreads {
    log: Sender<Job>,
    background: Sender<Job>,
    completed: Receiver<CompletedJob>,
    reactor: ReactorCpu,
}

impl IoThreads {
    /// Starts the threads. `wake` is notified after every job.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start<S>(log: S, background: S, wake: &Arc<Notify>) -> std::io::Result<Self>
    where
        S: Storage + Send + 'static,
    {
        let (report, completed) = channel();
        let reactor = ReactorCpu::default();
        let log = spawn("driftq-log", log, report.clone(), Arc::clone(wake), Some(reactor.clone()))?;
        let background = spawn("driftq-files", background, report, Arc::clone(wake), None)?;
        Ok(Self { log, background, completed, reactor })
    }

    /// Queues a job on the thread of its class.
    pub(crate) fn perform(&self, job: Job) {
        self.reactor.record();
        let thread = if job.class() == JobClass::Log { &self.log } else { &self.background };
        thread.send(job).expect("the thread runs as long as its channel is open");
    }

    /// The next completed job.
    pub(crate) fn poll_completed(&self) -> Option<CompletedJob> {
        self.completed.try_recv().ok()
    }
}

fn spawn<S: Storage + Send + 'static>(
    name: &str,
    mut storage: S,
    report: Sender<CompletedJob>,
    wake: Arc<Notify>,
    reactor: Option<ReactorCpu>,
) -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let work = move || {
        let mut affinity = reactor.map(AvoidReactor::new);
        for job in jobs {
            if let Some(affinity) = &mut affinity {
                affinity.update();
            }
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| job.perform(&mut storage)));
            let result = result.unwrap_or_else(|_| Err(StorageFault::Io("the storage panicked".into())));
            if report.send(CompletedJob { job, result, took: began.elapsed() }).is_err() {
                return;
            }
            wake.notify_one();
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(sender)
}
