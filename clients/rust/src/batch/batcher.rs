//! Requests of a worker that go in batches: one batcher for each route that takes them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::answer::{Answer, Done};
use super::flight::Batch;
use super::queue::{Limits, Queue};
use crate::client::CompleteAnswer;
use crate::error::Error;
use crate::store::Begun;
use crate::transport::{Backoff, Call, Failure, Reply, Transport};

const LIMITS: Limits = Limits { lines: 1_000, bytes: 1 << 20 };
/// A batch that has no answer for so long does not hold up the next one: a sync of a slow disk, or a machine with other
/// work, would cost each line the rest of the batch before it.
const OVERTAKEN_AFTER: Duration = Duration::from_millis(2);
/// As many batches may be on the wire that others have overtaken.
const OVERTAKEN_MAX: usize = 8;

/// The batchers of a client.
#[derive(Debug)]
pub(crate) struct Batchers {
    pub(crate) begins: Batcher<Begun>,
    pub(crate) finishes: Batcher<Done>,
    pub(crate) completes: Batcher<CompleteAnswer>,
    pub(crate) nacks: Batcher<Done>,
}

impl Batchers {
    /// Needs a runtime.
    pub(crate) fn start(transport: &Transport) -> Self {
        Self {
            begins: Batcher::start(transport, "/v1/idempotency/begin"),
            finishes: Batcher::start(transport, "/v1/idempotency/finish"),
            completes: Batcher::start(transport, "/v1/complete"),
            nacks: Batcher::start(transport, "/v1/nack"),
        }
    }
}

/// Requests to one route. What waits while a batch is on the wire is the next batch. Each line is repeated as a request
/// of its own would be, alone, and not any more once its caller has given up.
#[derive(Debug)]
pub(crate) struct Batcher<A> {
    transport: Transport,
    path: &'static str,
    queue: Arc<Queue<A>>,
}

impl<A: Answer> Batcher<A> {
    fn start(transport: &Transport, path: &'static str) -> Self {
        let queue = Arc::new(Queue::new(LIMITS));
        tokio::spawn(Sender { transport: transport.clone(), path, queue: Arc::clone(&queue) }.run());
        Self { transport: transport.clone(), path, queue }
    }

    /// Sends a request, and again for `limit` as long as it may be repeated.
    ///
    /// # Errors
    /// As those of [`Transport::call`].
    pub(crate) async fn call(&self, body: &impl Serialize, is_repeatable: bool, limit: Duration) -> Result<A, Error> {
        let give_up = Instant::now() + limit;
        let write = |out: &mut Vec<u8>| {
            serde_json::to_writer(out, body).map_err(|error| Error::misuse(format!("the request is no JSON: {error}")))
        };
        let failure = match self.queue.add(is_repeatable, write)?.await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let mut text = Vec::new();
        write(&mut text)?;
        let call = Call::post(self.path, text).repeatable_if(is_repeatable);
        // Boxed, as it is rare and large: the future of every call would be as large.
        Box::pin(self.repeat_alone(call, failure, give_up)).await
    }

    /// Sends a line again as a request of its own.
    async fn repeat_alone(&self, call: Call, failure: Failure, give_up: Instant) -> Result<A, Error> {
        let mut backoff = Backoff::default();
        self.transport.pause_after(failure, call.repeatable, &mut backoff, give_up).await?;
        let left = give_up.saturating_duration_since(Instant::now());
        A::read(&self.transport.call(&call.retry_for(left)).await?.body)
    }
}

impl<A> Drop for Batcher<A> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The task that sends the batches of a batcher.
struct Sender<A> {
    transport: Transport,
    path: &'static str,
    queue: Arc<Queue<A>>,
}

impl<A: Answer> Sender<A> {
    async fn run(self) {
        let mut overtaken = JoinSet::new();
        while let Some(batch) = self.queue.next(Duration::ZERO).await {
            let mut sending = Box::pin(self.send(batch));
            if timeout(OVERTAKEN_AFTER, &mut sending).await.is_ok() {
                continue;
            }
            overtaken.spawn(sending);
            while overtaken.try_join_next().is_some() {}
            if overtaken.len() >= OVERTAKEN_MAX {
                overtaken.join_next().await;
            }
        }
        while overtaken.join_next().await.is_some() {}
    }

    /// Sends a batch once; a single line as a request of its own. A line without an answer, or with a refusal, is its
    /// caller's to repeat.
    fn send(&self, mut batch: Batch<A>) -> impl Future<Output = ()> + Send + use<A> {
        let (transport, path) = (self.transport.clone(), self.path);
        async move {
            batch.remove_abandoned();
            if let Some(only) = batch.take_only() {
                let call = Call::post(path, only.text.clone());
                return match transport.attempt(&call).await {
                    Ok(Reply { cut: None, body, .. }) => only.answer(A::read(&body)),
                    Ok(Reply { cut: Some(failure), .. }) | Err(failure) => only.hand_back(&failure),
                };
            }
            if batch.len() == 0 {
                return;
            }
            let sent = batch.send(&transport, path, |refused, failure| refused.hand_back(&failure)).await;
            if let Err(failure) = sent {
                batch.hand_back(&failure);
            }
        }
    }
}

impl<A> Drop for Sender<A> {
    fn drop(&mut self) {
        self.queue.abort();
    }
}
