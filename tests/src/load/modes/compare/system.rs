//! What the comparison asks of a system: a server, its producers and its consumers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::load::cli::{BrokerOptions, Competitor};
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::report::Failures;

/// Deliveries that a consumer may hold unacked: the default of DriftQ.
pub(crate) const PREFETCH: usize = 100;

/// Where servers are started, and for what.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// Where temporary folders are created.
    pub(crate) parent: PathBuf,
    /// Bytes of each value.
    pub(crate) value_bytes: u32,
    /// The most connections at a time.
    pub(crate) connections: u32,
    /// How `driftqd` is started.
    pub(crate) broker: BrokerOptions,
}

/// A system under comparison, started on an empty folder. It is stopped when this is dropped.
pub(crate) trait System: Sized {
    /// A producing connection.
    type Producer: Producer;
    /// A consumer.
    type Consumer: Consumer;
    /// Whether its protocol can send several messages at once without waiting for each.
    const HAS_BATCHES: bool;

    /// Starts a server and waits until it is ready.
    async fn start(site: &Site) -> Result<Self>;

    /// Its name and version.
    fn version(&self) -> String;

    /// How it is run, above all what makes its answers wait for the disk.
    fn settings(&self) -> String;

    /// CPU time of all its processes so far.
    fn cpu(&self) -> Option<Duration>;

    /// How it has exited, if it has.
    fn exited(&mut self) -> Option<String>;

    /// Creates an empty queue and returns its name.
    async fn create(&self) -> Result<String>;

    /// Connects a producer that sends `batch` messages at a time.
    async fn producer(&self, queue: &str, batch: u32) -> Result<Self::Producer>;

    /// Connects a consumer; `index` is unique in the queue.
    async fn consumer(&self, queue: &str, index: u32) -> Result<Self::Consumer>;

    /// How many messages of a queue are not acked.
    async fn unacked(&self, queue: &str) -> Result<u64>;
}

/// A connection that stores messages.
pub(crate) trait Producer: Sized + Send + 'static {
    /// Sends one batch, its messages numbered from `first` on, and waits for all answers. An error is one of the
    /// connection.
    fn produce(&mut self, first: u64, answers: &mut Answers) -> impl Future<Output = io::Result<()>> + Send;
}

/// The answers to a batch.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Messages of the batch that the server has confirmed.
    pub(crate) confirmed: u64,
    /// Messages that it has refused, by reason.
    pub(crate) failures: Failures,
    all: Arc<AtomicU64>,
}

impl Answers {
    /// None yet. `all` counts the messages of all batches that are confirmed.
    pub(crate) fn new(all: &Arc<AtomicU64>) -> Self {
        Self { confirmed: 0, failures: Failures::default(), all: Arc::clone(all) }
    }

    /// Counts messages that the server has confirmed.
    pub(crate) fn confirm(&mut self, count: u64) {
        self.confirmed += count;
        self.all.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a message that it has refused.
    pub(crate) fn refuse(&mut self, reason: &str) {
        self.failures.named(reason);
    }
}

/// A consumer, with as many connections as it needs.
pub(crate) trait Consumer: Sized + Send + 'static {
    /// Receives messages and acks each, one ack request per message. Returns only with an error.
    fn run(&mut self, deliveries: Arc<Deliveries>) -> impl Future<Output = io::Result<()>> + Send;

    /// Called when [`Self::run`] was ended: waits for what acks without an answer need to be executed.
    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

impl Competitor {
    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Competitor::Redis => "Redis Streams",
            Competitor::Nats => "NATS JetStream",
            Competitor::NatsUnsynced => "NATS JetStream, unsynced",
            Competitor::Postgres => "PostgreSQL, SKIP LOCKED",
            Competitor::Beanstalkd => "beanstalkd",
            Competitor::Rabbitmq => "RabbitMQ, quorum queue",
        }
    }
}
