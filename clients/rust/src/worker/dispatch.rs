//! The loop of a worker: takes deliveries from the stream, starts handlers as there are slots, ends without a lease.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::job::Ending;
use super::shared::{Job, WorkerShared};
use crate::cancel::{Cancel, Cause};
use crate::error::{Error, ErrorKind};
use crate::message::Message;
use crate::stream::Consumer;

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages that are finished.
    pub completed: u64,
    /// Attempts that have failed.
    pub failed: u64,
    /// Messages whose lease was lost.
    pub lost: u64,
    /// Messages that were returned without counting a failure.
    pub released: u64,
}

impl Summary {
    fn count(&mut self, ending: Ending) {
        let counter = match ending {
            Ending::Completed => &mut self.completed,
            Ending::Failed => &mut self.failed,
            Ending::Lost => &mut self.lost,
            Ending::Released => &mut self.released,
        };
        *counter += 1;
    }
}

/// A partition and a key of it.
type OrderKey = (u32, String);

/// The end of a task: its number, and how its message ended.
type Done = (u64, Ending);

/// The state of the loop.
pub(super) struct Dispatcher {
    shared: Arc<WorkerShared>,
    free: usize,
    per_key_order: bool,
    /// Messages that wait for a slot.
    queue: VecDeque<Job>,
    /// Messages that wait for another one of their key, which is queued or running.
    behind: HashMap<OrderKey, VecDeque<Job>>,
    running: HashMap<u64, (Cancel, Option<OrderKey>)>,
    next_number: u64,
    done: UnboundedSender<Done>,
    endings: UnboundedReceiver<Done>,
    summary: Summary,
}

impl Dispatcher {
    pub(super) fn new(shared: Arc<WorkerShared>, concurrency: usize, per_key_order: bool) -> Self {
        let (done, endings) = mpsc::unbounded_channel();
        Self {
            shared,
            free: concurrency,
            per_key_order,
            queue: VecDeque::new(),
            behind: HashMap::new(),
            running: HashMap::new(),
            next_number: 0,
            done,
            endings,
            summary: Summary::default(),
        }
    }

    /// Works until `shutdown`, which may say how long handlers have to finish. No lease is held when it returns.
    pub(super) async fn run(
        mut self,
        consumer: Consumer,
        shutdown: impl Future<Output = Option<Duration>>,
        grace: Duration,
    ) -> Result<Summary, Error> {
        let concurrency = self.free;
        let (jobs, mut deliveries) = mpsc::unbounded_channel();
        let mut stream = AbortOnDrop(tokio::spawn(feed(Arc::clone(&self.shared), consumer, jobs, concurrency)));
        let mut shutdown = std::pin::pin!(shutdown);
        let (grace, error) = loop {
            tokio::select! {
                Some(done) = self.endings.recv() => self.end(done),
                Some(job) = deliveries.recv() => self.add(job),
                asked = &mut shutdown => break (asked.unwrap_or(grace), None),
                ended = &mut stream.0 => break (grace, Some(ended)),
            }
            self.start();
        };
        let failure = error.map(|ended| match ended {
            Ok(error) => error,
            Err(panic) => Error::new(ErrorKind::Unknown, format!("the task of the stream ended: {panic}")),
        });
        // The connection is closed when its task has ended. What it has delivered is in the queue then.
        stream.0.abort();
        if failure.is_none() {
            let _ = (&mut stream.0).await;
        }
        while let Ok(job) = deliveries.try_recv() {
            self.queue.push_back(job);
        }
        self.stop(grace).await;
        match failure {
            Some(error) => Err(error),
            None => Ok(self.summary),
        }
    }

    fn add(&mut self, job: Job) {
        if let Some(key) = self.order_key(&job.message) {
            if let Some(behind) = self.behind.get_mut(&key) {
                behind.push_back(job);
                return;
            }
            self.behind.insert(key, VecDeque::new());
        }
        self.queue.push_back(job);
    }

    /// The key that orders a message. Messages without a key are not ordered.
    fn order_key(&self, message: &Message) -> Option<OrderKey> {
        (self.per_key_order && !message.key.is_empty()).then(|| (message.partition, message.key.clone()))
    }

    fn start(&mut self) {
        while self.free > 0
            && let Some(job) = self.queue.pop_front()
        {
            self.free -= 1;
            let number = self.next_number;
            self.next_number += 1;
            self.running.insert(number, (job.cancel.clone(), self.order_key(&job.message)));
            let shared = Arc::clone(&self.shared);
            let report = Report { number, ending: Ending::Lost, done: self.done.clone() };
            tokio::spawn(async move {
                let mut report = report;
                report.ending = shared.work(job).await;
            });
        }
    }

    fn end(&mut self, (number, ending): Done) {
        self.summary.count(ending);
        self.free += 1;
        let Some((_, Some(key))) = self.running.remove(&number) else { return };
        match self.behind.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(next) => self.queue.push_front(next),
            None => {
                self.behind.remove(&key);
            }
        }
    }

    /// Returns what has not begun, waits for the handlers, then cancels them. A handler that goes on all the same holds
    /// its message until the lease has run out.
    async fn stop(&mut self, grace: Duration) {
        self.shared.stopping.trigger(Cause::Shutdown);
        let grace_ends = Instant::now() + grace;
        let waiting: Vec<Job> = self.queue.drain(..).chain(self.behind.drain().flat_map(|(_, jobs)| jobs)).collect();
        let mut releases = JoinSet::new();
        for job in waiting {
            let shared = Arc::clone(&self.shared);
            releases.spawn(async move { shared.release(&job).await });
        }
        self.drain(grace_ends).await;
        for (cancel, _) in self.running.values() {
            cancel.trigger(Cause::Shutdown);
        }
        let lease_ends = Instant::now() + self.shared.lease;
        self.drain(lease_ends).await;
        while let Ok(Some(ending)) = timeout_at(lease_ends, releases.join_next()).await {
            self.summary.count(ending.unwrap_or(Ending::Lost));
        }
        if !self.running.is_empty() {
            self.shared.heartbeats.let_run_out();
            self.drain(Instant::now() + self.shared.lease).await;
            self.summary.lost += self.running.len() as u64;
        }
    }

    /// Waits until nothing runs, or the time has come.
    async fn drain(&mut self, until: Instant) {
        while !self.running.is_empty()
            && let Ok(Some(done)) = timeout_at(until, self.endings.recv()).await
        {
            self.end(done);
        }
    }
}

/// Reports the end of a task when it is dropped, also if the task panicked.
struct Report {
    number: u64,
    ending: Ending,
    done: UnboundedSender<Done>,
}

impl Drop for Report {
    fn drop(&mut self) {
        // The worker waits for all of them, or is gone.
        let _ = self.done.send((self.number, self.ending));
    }
}

/// A task that ends with its owner.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the stream. It connects again only when a slot is free: messages that were delivered before stay valid, and
/// another connection brings more of them. Returns why it cannot be read at all.
async fn feed(
    shared: Arc<WorkerShared>,
    mut consumer: Consumer,
    jobs: UnboundedSender<Job>,
    concurrency: usize,
) -> Error {
    loop {
        match consumer.next_when(|| shared.slots.fewer_than(concurrency)).await {
            Ok(Some(message)) => {
                let Some(job) = shared.take(message) else { continue };
                if jobs.send(job).is_err() {
                    return Error::new(ErrorKind::Unknown, "the worker has ended");
                }
            }
            Ok(None) => return Error::protocol("the stream of a worker has an end"),
            Err(error) => return error,
        }
    }
}
