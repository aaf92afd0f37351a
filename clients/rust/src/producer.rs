//! A producer that batches by itself: what waits while a batch is on the wire is the next batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::batch::{Answer, Batch, Limits, Queue, SingleLine, Ticket, read_json, scan_stored, stopped};
use crate::error::Error;
use crate::produce::{Produce, Produced};
use crate::transport::{Backoff, Call, Failure, Repeat, Transport};

const PATH: &str = "/v1/produce";

/// The settings of a [`Producer`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ProducerOptions {
    /// The most messages of a batch.
    pub batch_messages: usize,
    /// The most bytes of a batch. A message that is larger is a batch of its own.
    pub batch_bytes: usize,
    /// How long a batch that is not full waits for more.
    pub linger: Duration,
    /// The most messages that wait; then producing waits.
    pub max_pending: usize,
    /// How long a message is sent again.
    pub retry_for: Duration,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            batch_messages: 1_000,
            batch_bytes: 1 << 20,
            linger: Duration::ZERO,
            max_pending: 10_000,
            retry_for: Duration::from_secs(60),
        }
    }
}

/// Produces messages in batches. Clones share the batches. When the last one is dropped, what waits is still sent.
#[derive(Clone, Debug)]
pub struct Producer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Arc<Queue<Produced>>,
    /// Closed when messages are not sent any more.
    room: Arc<Semaphore>,
    max_pending: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The answer to a message that was enqueued.
#[derive(Debug)]
pub struct Pending(Ticket<Produced>);

impl Future for Pending {
    type Output = Result<Produced, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.map_err(|failure| failure.error))
    }
}

impl Produced {
    /// Reads an answer in the form in which the broker writes that of a new message. None for any other answer.
    pub(crate) fn scan(json: &[u8]) -> Option<Self> {
        let (topic, partition, offset) = scan_stored(json)?;
        let topic = topic.to_owned();
        Some(Self { topic, partition, offset, duplicate: false, already_done: false, routing: None })
    }
}

impl Answer for Produced {
    fn read(json: &[u8]) -> Result<Self, Error> {
        Self::scan(json).map_or_else(|| read_json(json, "the answer to a produce"), Ok)
    }
}

impl Producer {
    pub(crate) fn start(transport: Transport, options: &ProducerOptions) -> Self {
        let max_pending = u32::try_from(options.max_pending.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let limits = Limits { lines: options.batch_messages, bytes: options.batch_bytes };
        let queue = Arc::new(Queue::new(limits));
        let room = Arc::new(Semaphore::new(max_pending as usize));
        let (linger, retry_for) = (options.linger, options.retry_for);
        let sender = Sender { transport, linger, retry_for, queue: Arc::clone(&queue), room: Arc::clone(&room) };
        tokio::spawn(sender.run());
        Self(Arc::new(Shared { queue, room, max_pending }))
    }

    /// Produces a message and waits for the answer.
    ///
    /// # Errors
    /// As [`Client::produce`](crate::Client::produce).
    pub async fn produce(&self, message: &Produce) -> Result<Produced, Error> {
        self.enqueue(message).await?.await
    }

    /// Adds a message to the next batch, and waits only while too many wait. Its answer comes later; it is produced
    /// even if that is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) for a message that has no JSON.
    pub async fn enqueue(&self, message: &Produce) -> Result<Pending, Error> {
        let room = self.0.room.acquire().await.map_err(|_| stopped())?;
        let ticket = self.0.queue.add(message.is_idempotent(), |out| message.write_json(out))?;
        // Its share of the room returns with the answer.
        room.forget();
        Ok(Pending(ticket))
    }

    /// Waits until everything that was enqueued before has been answered.
    pub async fn flush(&self) {
        // All of the room is free when nothing waits. It is closed when nothing is sent any more.
        let _ = self.0.room.acquire_many(self.0.max_pending).await;
    }
}

/// The task that sends the batches, one at a time, so that messages of one key keep their order.
struct Sender {
    transport: Transport,
    linger: Duration,
    retry_for: Duration,
    queue: Arc<Queue<Produced>>,
    room: Arc<Semaphore>,
}

/// The room of some messages, which returns when it is dropped.
struct Room {
    room: Arc<Semaphore>,
    messages: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.room.add_permits(self.messages);
    }
}

impl Room {
    fn take_one(&mut self) -> Self {
        self.messages -= 1;
        Self { room: Arc::clone(&self.room), messages: 1 }
    }
}

impl Sender {
    async fn run(self) {
        while let Some(batch) = self.queue.next(self.linger).await {
            self.send(batch).await;
        }
    }

    /// Sends a batch until each of its messages is answered, or waits for a try of its own.
    async fn send(&self, mut batch: Batch<Produced>) {
        let give_up = Instant::now() + self.retry_for;
        let mut backoff = Backoff::default();
        let mut room = Room { room: Arc::clone(&self.room), messages: batch.len() };
        loop {
            let refuse = |line: SingleLine<Produced>, failure: Failure| {
                if failure.repeat == Repeat::Any || (failure.repeat == Repeat::IfSafe && line.is_repeatable) {
                    tokio::spawn(send_alone(self.transport.clone(), line, failure, give_up, room.take_one()));
                } else {
                    line.hand_back(&failure);
                }
            };
            let Err(failure) = batch.send(&self.transport, PATH, refuse).await else { return };
            batch.fail_unless_repeatable(&failure);
            if batch.len() == 0 {
                return;
            }
            if let Err(error) = self.transport.pause_after(failure, true, &mut backoff, give_up).await {
                return batch.fail(&error);
            }
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue.abort();
        self.room.close();
    }
}

/// Sends one message again that was refused within a batch, while later batches go on.
async fn send_alone(transport: Transport, line: SingleLine<Produced>, failure: Failure, give_up: Instant, _room: Room) {
    let mut backoff = Backoff::default();
    if let Err(error) = transport.pause_after(failure, line.is_repeatable, &mut backoff, give_up).await {
        return line.answer(Err(error));
    }
    let left = give_up.saturating_duration_since(Instant::now());
    let call = Call::post(PATH, line.text.clone()).repeatable_if(line.is_repeatable).retry_for(left);
    let result = transport.json(&call).await;
    line.answer(result);
}
