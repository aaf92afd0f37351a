//! Threads that perform the pipeline's I/O, so that the reactor never blocks on the disk.
//!
//! One appends and syncs batches of the log; another prepares segments, writes snapshots and removes obsolete files.
//! Each takes one job at a time and reports its result. [`READERS`] more perform the reads of payloads, which neither
//! of the others delays. All end when [`IoThreads`] is dropped; none is waited for, so that a disk that does not answer
//! does not hang a stop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use driftq_core::log::{Storage, StorageFault};
use driftq_core::{Job, JobClass, ReadJob};

use super::affinity::{AvoidReactor, ReactorCpu};
use super::wake::Wake;
use crate::descriptors;

/// Threads that read payloads.
const READERS: usize = 2;

/// How often a read for which there is no descriptor is tried again.
const READ_RETRY: Duration = Duration::from_millis(100);

/// A job that was performed or failed.
#[derive(Debug)]
pub(crate) struct CompletedJob {
    pub(crate) job: Job,
    pub(crate) result: Result<(), StorageFault>,
    pub(crate) took: Duration,
}

/// A read that was performed or failed.
#[derive(Debug)]
pub(crate) struct CompletedRead {
    pub(crate) job: ReadJob,
    pub(crate) result: Result<Vec<u8>, StorageFault>,
}

/// What a thread is asked for.
#[derive(Debug)]
enum Work {
    Job(Job),
    /// A wake-up after this time, unless a job comes first.
    WakeIn(Duration),
}

/// Channels to the threads and back.
#[derive(Debug)]
pub(crate) struct IoThreads {
    log: Sender<Work>,
    background: Sender<Work>,
    completed: Receiver<CompletedJob>,
    reads: Sender<ReadJob>,
    completed_reads: Receiver<CompletedRead>,
    reactor: ReactorCpu,
    is_stopped: Arc<AtomicBool>,
}

impl IoThreads {
    /// Starts the threads on storages that `open` returns: for jobs, and for reads by position. `wake` wakes
    /// after every job and every read.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start<S>(open: impl Fn(Use) -> S, wake: &Wake) -> std::io::Result<Self>
    where
        S: Storage + Send + 'static,
    {
        let (report, completed) = channel();
        let reactor = ReactorCpu::default();
        let log = spawn("driftq-log", open(Use::Jobs), report.clone(), wake.clone(), Some(reactor.clone()))?;
        let background = spawn("driftq-files", open(Use::Jobs), report, wake.clone(), None)?;
        let (reads, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let (report, completed_reads) = channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        for _ in 0..READERS {
            let reader = Reader {
                queue: Arc::clone(&queue),
                storage: open(Use::Reads),
                report: report.clone(),
                wake: wake.clone(),
                is_stopped: Arc::clone(&is_stopped),
            };
            std::thread::Builder::new().name("driftq-read".into()).spawn(move || reader.run())?;
        }
        Ok(Self { log, background, completed, reads, completed_reads, reactor, is_stopped })
    }

    /// Queues a job on the thread of its class.
    pub(crate) fn perform(&self, job: Job) {
        self.reactor.record();
        let thread = if job.class() == JobClass::Log { &self.log } else { &self.background };
        thread.send(Work::Job(job)).expect("the thread runs as long as its channel is open");
    }

    /// Wakes after `pause`, unless a job of the log comes first. More precise than the reactor's timers, which count in
    /// milliseconds.
    pub(crate) fn wake_in(&self, pause: Duration) {
        self.log.send(Work::WakeIn(pause)).expect("the thread runs as long as its channel is open");
    }

    /// Queues a read.
    pub(crate) fn read(&self, job: ReadJob) {
        self.reads.send(job).expect("the threads run as long as their channel is open");
    }

    /// The next completed job.
    pub(crate) fn poll_completed(&self) -> Option<CompletedJob> {
        self.completed.try_recv().ok()
    }

    /// The next completed read.
    pub(crate) fn poll_completed_read(&self) -> Option<CompletedRead> {
        self.completed_reads.try_recv().ok()
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// What a thread uses its storage for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Jobs of the pipeline.
    Jobs,
    /// Reads of payloads.
    Reads,
}

fn spawn<S: Storage + Send + 'static>(
    name: &str,
    mut storage: S,
    report: Sender<CompletedJob>,
    wake: Wake,
    reactor: Option<ReactorCpu>,
) -> std::io::Result<Sender<Work>> {
    let (sender, work) = channel::<Work>();
    let perform_all = move || {
        let mut affinity = reactor.map(AvoidReactor::new);
        while let Some(job) = next_job(&work, &wake) {
            if let Some(affinity) = &mut affinity {
                affinity.update();
            }
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| job.perform(&mut storage)));
            let result = result.unwrap_or_else(|_| Err(StorageFault::Io("the storage panicked".into())));
            if report.send(CompletedJob { job, result, took: began.elapsed() }).is_err() {
                return;
            }
            wake.wake();
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(perform_all)?;
    Ok(sender)
}

/// Waits for the next job; `None` once the threads are stopped.
fn next_job(work: &Receiver<Work>, wake: &Wake) -> Option<Job> {
    let mut next = work.recv().ok()?;
    loop {
        let pause = match next {
            Work::Job(job) => return Some(job),
            Work::WakeIn(pause) => pause,
        };
        next = match work.recv_timeout(pause) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => {
                wake.wake();
                work.recv().ok()?
            }
            Err(RecvTimeoutError::Disconnected) => return None,
        };
    }
}

/// A thread that reads payloads.
struct Reader<S> {
    /// Shared by all readers: the first that is idle takes the next read.
    queue: Arc<Mutex<Receiver<ReadJob>>>,
    storage: S,
    report: Sender<CompletedRead>,
    wake: Wake,
    is_stopped: Arc<AtomicBool>,
}

impl<S: Storage> Reader<S> {
    fn run(mut self) {
        while let Some(job) = self.next() {
            let result = catch_unwind(AssertUnwindSafe(|| self.perform(&job)));
            let result = result.unwrap_or_else(|_| Err(StorageFault::Io("the storage panicked".into())));
            if self.report.send(CompletedRead { job, result }).is_err() {
                return;
            }
            self.wake.wake();
        }
    }

    /// Waits for the next read; `None` once the threads are stopped.
    fn next(&self) -> Option<ReadJob> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// Performs a read. One for which there is no descriptor waits for it: connections come and go, and that says
    /// nothing about the file.
    fn perform(&mut self, job: &ReadJob) -> Result<Vec<u8>, StorageFault> {
        let mut is_told = false;
        loop {
            let result = job.perform(&mut self.storage);
            if result != Err(StorageFault::NoDescriptor) || self.is_stopped.load(Ordering::Relaxed) {
                return result;
            }
            if !std::mem::replace(&mut is_told, true) {
                let (file, advice) = (job.file(), descriptors::limit_advice());
                tracing::warn!("no file descriptor left to read {file}; deliveries wait for one. {advice}");
            }
            std::thread::sleep(READ_RETRY);
        }
    }
}

#[cfg(test)]
mod tests;
