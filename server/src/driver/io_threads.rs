//! The two threads that do the disk's work, so that deciding and talking go on meanwhile.
//!
//! One writes and syncs batches of the log; the other makes segments ready, writes snapshots and removes what is not needed.
//! Each takes one job at a time and reports it; neither holds anything that the reactor might want to have. They end with the way
//! to them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use driftq_core::log::{Storage, StorageFault};
use driftq_core::{Job, JobClass};
use tokio::sync::Notify;

use super::apart::{Apart, Whereabouts};

/// A job that was performed, or failed.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) job: Job,
    pub(crate) result: Result<(), StorageFault>,
    pub(crate) took: Duration,
}

/// The threads, and the way to them and back.
#[derive(Debug)]
pub(crate) struct IoThreads {
    log: Sender<Job>,
    background: Sender<Job>,
    done: Receiver<Done>,
    reactor: Whereabouts,
}

impl IoThreads {
    /// Starts the threads. `wake` is notified whenever a job is done.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub(crate) fn start<S>(log: S, background: S, wake: &Arc<Notify>) -> std::io::Result<Self>
    where
        S: Storage + Send + 'static,
    {
        let (finished, done) = channel();
        let reactor = Whereabouts::default();
        let log = class("driftq-log", log, finished.clone(), Arc::clone(wake), Some(reactor.clone()))?;
        let background = class("driftq-files", background, finished, Arc::clone(wake), None)?;
        Ok(Self { log, background, done, reactor })
    }

    /// Hands a job to its thread.
    pub(crate) fn perform(&self, job: Job) {
        self.reactor.note();
        let class = if job.class() == JobClass::Log { &self.log } else { &self.background };
        class.send(job).expect("the threads live as long as the way to them");
    }

    /// The next job that was performed.
    pub(crate) fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

fn class<S: Storage + Send + 'static>(
    name: &str,
    mut storage: S,
    finished: Sender<Done>,
    wake: Arc<Notify>,
    reactor: Option<Whereabouts>,
) -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let work = move || {
        let mut apart = reactor.map(Apart::new);
        for job in jobs {
            if let Some(apart) = &mut apart {
                apart.make_way();
            }
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| job.perform(&mut storage)));
            let result = result.unwrap_or_else(|_| Err(StorageFault::Io("the storage panicked".into())));
            if finished.send(Done { job, result, took: began.elapsed() }).is_err() {
                return;
            }
            wake.notify_one();
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(sender)
}
