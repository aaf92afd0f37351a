//! Workers: handlers of messages whose effects happen once.

mod context;
mod dispatch;
mod job;
mod outcome;
mod replay;
mod shared;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};
use tracing::Span;

pub use self::context::Context;
use self::dispatch::Dispatcher;
pub use self::dispatch::Summary;
pub use self::outcome::{HandlerError, HandlerResult, Json, Outputs, Permanent, Retry};
pub use self::shared::WorkerScope;
use self::shared::{Handler, Slots, Tracer, WorkerShared};
use crate::broker_store::BrokerStore;
use crate::cancel::Cancel;
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observer};
use crate::heartbeat::Heartbeats;
use crate::message::Message;
use crate::store::Store;
use crate::stream::Consume;
use crate::transport::random_text;

const CONCURRENCY: usize = 16;
const LEASE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(10);
/// The longest part of an owner's name that is the host's.
const HOST_CHARS_MAX: usize = 64;

/// A worker of a group: runs a handler for each message, and reports what became of it.
///
/// Around the handler it begins the effect of the message, prolongs both leases, and completes the message with the
/// result and the next messages in one step. An effect that has succeeded is not run again: its stored result completes
/// the message. A handler whose lease is lost is cancelled: its future is dropped, and its result discarded.
///
/// # Examples
/// ```no_run
/// use driftq_client::{Client, HandlerError, Outputs, Produce, Worker};
///
/// # async fn bake(pizza: &str) -> Result<u32, std::io::Error> { Ok(0) }
/// # async fn example() -> Result<(), driftq_client::Error> {
/// let client = Client::builder().url("http://127.0.0.1:8080").build()?;
/// let worker = Worker::new(&client, "orders", "kitchen", |order, context| async move {
///     let minutes: u32 = context.side_effect("bake", &order.key, || bake(&order.key)).await?;
///     let receipt = Produce::new("receipts", format!("baked in {minutes} minutes")).key(&order.key);
///     Ok(Outputs::new().result(&minutes).message(receipt))
/// });
/// worker.run(async { drop(tokio::signal::ctrl_c().await) }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    client: Client,
    topic: Arc<str>,
    group: Arc<str>,
    handler: Handler,
    owner: Option<Arc<str>>,
    concurrency: usize,
    lease: Duration,
    scope: WorkerScope,
    store: Option<Arc<dyn Store>>,
    per_key_order: bool,
    grace: Duration,
    retry_delay: Option<Duration>,
    observer: Observer,
    tracer: Option<Tracer>,
}

impl Worker {
    /// A worker with the default settings. `handler` is called with each message; what it returns becomes the result
    /// of the message, see [`HandlerResult`] and [`HandlerError`].
    #[must_use]
    pub fn new<H, F, R>(client: &Client, topic: &str, group: &str, handler: H) -> Self
    where
        H: Fn(Arc<Message>, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: HandlerResult,
    {
        Self {
            client: client.clone(),
            topic: topic.trim().into(),
            group: group.trim().into(),
            handler: Box::new(move |message, context| {
                let run = handler(message, context);
                Box::pin(async move { run.await.map(HandlerResult::into_outputs) })
            }),
            owner: None,
            concurrency: CONCURRENCY,
            lease: LEASE,
            scope: WorkerScope::Consume,
            store: None,
            per_key_order: false,
            grace: GRACE,
            retry_delay: None,
            observer: Observer::default(),
            tracer: None,
        }
    }

    /// How many handlers run at a time, and how many messages are delivered ahead; 16 without it.
    #[must_use]
    pub fn concurrency(self, concurrency: usize) -> Self {
        Self { concurrency: concurrency.max(1), ..self }
    }

    /// The lease of each message and its effect; 30 s without it. Heartbeats prolong it, so it need not be as long as
    /// the work: it says how soon another worker takes over after this one has died.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Where the outcome of the handler is stored.
    #[must_use]
    pub fn scope(self, scope: WorkerScope) -> Self {
        Self { scope, ..self }
    }

    /// Another idempotency store than the broker's.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Handles the messages of one key one after the other, in the order in which they are delivered. Messages
    /// without a key are not ordered.
    #[must_use]
    pub fn per_key_order(self) -> Self {
        Self { per_key_order: true, ..self }
    }

    /// How long handlers have to finish when the worker stops; 10 s without it.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// The name of this worker; made of host, process and chance without it. No other worker may have it.
    #[must_use]
    pub fn owner(self, owner: &str) -> Self {
        Self { owner: Some(owner.trim().into()), ..self }
    }

    /// When a message is delivered again whose error says nothing about it. Without it the message's retry policy
    /// decides.
    #[must_use]
    pub fn retry_delay(self, delay: Duration) -> Self {
        Self { retry_delay: Some(delay), ..self }
    }

    /// A hook for metrics. It is called on several threads, and must not block.
    #[must_use]
    pub fn on_event(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self { observer: Observer::new(hook), ..self }
    }

    /// Opens the span of each run, for tracing systems. Without it the span is `driftq.handle` of the crate `tracing`,
    /// with the `traceparent` of the message as a field.
    #[must_use]
    pub fn tracer(self, tracer: impl Fn(&Message) -> Span + Send + Sync + 'static) -> Self {
        Self { tracer: Some(Box::new(tracer)), ..self }
    }

    /// Works until `shutdown`. Then the stream is closed, what has not begun is returned, handlers have the grace
    /// period to finish, and those that are left are cancelled. No lease is held when it returns.
    ///
    /// # Errors
    /// What stops the first connection and would stop the next one, too: an unknown topic or key, a wrong server.
    /// Once it has connected, it works until `shutdown`, whatever happens.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        self.run_until(async {
            shutdown.await;
            None
        })
        .await
    }

    /// Starts it on a task of its own.
    #[must_use]
    pub fn spawn(self) -> RunningWorker {
        let (stop, stopped) = oneshot::channel::<Option<Duration>>();
        let grace = async {
            match stopped.await {
                Ok(grace) => grace,
                // Its handle was dropped: it works on.
                Err(_) => std::future::pending().await,
            }
        };
        RunningWorker { stop, task: tokio::spawn(self.run_until(grace)) }
    }

    async fn run_until(self, shutdown: impl Future<Output = Option<Duration>>) -> Result<Summary, Error> {
        let client = self.client.fork(self.observer.clone()).with_batchers();
        // Heartbeats have connections of their own, on their own thread, and their errors are no events.
        let beating = self.client.fork(Observer::default());
        let store_is_broker = self.store.is_none();
        let (store, beating_store): (Arc<dyn Store>, Arc<dyn Store>) = match self.store {
            Some(store) => (Arc::clone(&store), store),
            None => {
                let store = BrokerStore::new(&client).retry_for(job::SETTLE_WITHIN);
                (Arc::new(store), Arc::new(BrokerStore::new(&beating).retry_for(self.lease)))
            }
        };
        let heartbeats = Heartbeats::start(beating, beating_store, self.lease, self.observer.clone())
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the thread of the heartbeats: {error}")))?;
        let owner = self.owner.unwrap_or_else(|| unique_owner().into());
        let consume = Consume::new(&*self.topic, &*self.group, &*owner)
            .lease(self.lease)
            .prefetch(u32::try_from(self.concurrency).unwrap_or(u32::MAX));
        let consumer = client.consume(&consume);
        let shared = Arc::new(WorkerShared {
            client,
            topic: self.topic,
            group: self.group,
            owner,
            handler: self.handler,
            scope: self.scope,
            store,
            store_is_broker,
            lease: self.lease,
            retry_delay: self.retry_delay,
            heartbeats,
            observer: self.observer,
            tracer: self.tracer,
            stopping: Cancel::default(),
            slots: Arc::new(Slots::default()),
        });
        Dispatcher::new(shared, self.concurrency, self.per_key_order).run(consumer, shutdown, self.grace).await
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("topic", &self.topic).field("group", &self.group).finish_non_exhaustive()
    }
}

/// A worker on a task of its own. It works on when this is dropped.
#[derive(Debug)]
pub struct RunningWorker {
    stop: oneshot::Sender<Option<Duration>>,
    task: JoinHandle<Result<Summary, Error>>,
}

impl RunningWorker {
    /// Stops it within its grace period.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn stop(self) -> Result<Summary, Error> {
        self.finish(None).await
    }

    /// Stops it; handlers have `grace` to finish.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn stop_within(self, grace: Duration) -> Result<Summary, Error> {
        self.finish(Some(grace)).await
    }

    /// Waits until it ends by itself, which it does if it cannot connect for the first time. After that there is
    /// nothing to stop any more.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn ended(&mut self) -> Result<Summary, Error> {
        joined((&mut self.task).await)
    }

    async fn finish(self, grace: Option<Duration>) -> Result<Summary, Error> {
        // It may have ended by itself.
        let _ = self.stop.send(grace);
        joined(self.task.await)
    }
}

fn joined(ended: Result<Result<Summary, Error>, JoinError>) -> Result<Summary, Error> {
    ended.unwrap_or_else(|error| Err(Error::new(ErrorKind::Unknown, format!("the task of the worker: {error}"))))
}

fn unique_owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|letter| !letter.is_control()).take(HOST_CHARS_MAX).collect();
    let host = if host.is_empty() { "localhost" } else { &host };
    format!("{host}-{}-{}", std::process::id(), random_text())
}
