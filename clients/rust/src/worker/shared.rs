//! What the tasks of a worker share, and one message in their hold.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::Span;

use super::context::Context;
use super::outcome::{HandlerError, Outputs};
use crate::cancel::{Cancel, Cause};
use crate::client::Client;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::heartbeat::{BEATS_PER_LEASE, Heartbeats, Held};
use crate::message::{Claim, Message};
use crate::store::{Identity, Scope, Store};

/// The run of a handler.
pub(super) type Run = Pin<Box<dyn Future<Output = Result<Outputs, HandlerError>> + Send>>;
/// A handler of any type.
pub(super) type Handler = Box<dyn Fn(Arc<Message>, Context) -> Run + Send + Sync>;
/// Opens the span of a run.
pub(super) type Tracer = Box<dyn Fn(&Message) -> Span + Send + Sync>;

/// Where the outcome of the handler is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerScope {
    /// As the group's work on the message: in one step with its end, if the store is the broker's.
    #[default]
    Consume,
    /// In another scope, under the idempotency key of the message.
    Other(Scope),
    /// Nowhere: the handler runs for each delivery.
    None,
}

pub(super) struct WorkerShared {
    pub(super) client: Client,
    pub(super) topic: Arc<str>,
    pub(super) group: Arc<str>,
    pub(super) owner: Arc<str>,
    pub(super) handler: Handler,
    pub(super) scope: WorkerScope,
    pub(super) store: Arc<dyn Store>,
    /// Whether a complete also finishes the effect of its message.
    pub(super) store_is_broker: bool,
    pub(super) lease: Duration,
    pub(super) retry_delay: Option<Duration>,
    pub(super) heartbeats: Heartbeats,
    pub(super) observer: Observer,
    pub(super) tracer: Option<Tracer>,
    pub(super) stopping: Cancel,
    pub(super) slots: Arc<Slots>,
}

impl WorkerShared {
    /// Takes a message into hold, unless it is held already: a delivery can arrive twice.
    pub(super) fn take(&self, message: Message) -> Option<Job> {
        let received = Instant::now();
        let slot = self.slots.take(&message.lease_token)?;
        let message = Arc::new(message);
        self.observer.report(&Event::Received { message: &message });
        let claim = Claim::new(&message, Arc::clone(&self.group), Arc::clone(&self.owner));
        let cancel = Cancel::default();
        let held = self.heartbeats.delivery(claim.clone(), &message, received, &cancel);
        Some(Job { message, claim, received, cancel, held, _slot: slot })
    }

    /// Since when a grant stands that was asked for at `asked`. Its lease may have begun then: one whose begin was
    /// repeated, or answered late, is renewed before it is used.
    ///
    /// # Errors
    /// If it cannot be renewed.
    pub(super) async fn in_time(&self, identity: &Identity, token: &str, asked: Instant) -> Result<Instant, Error> {
        let mut since = asked;
        while since.elapsed() > self.lease / BEATS_PER_LEASE {
            since = Instant::now();
            self.store.renew(identity, token, self.lease).await?;
        }
        Ok(since)
    }

    /// The lease of a message is lost.
    pub(super) fn lose(&self, job: &Job) {
        if job.cancel.trigger(Cause::LeaseLost) {
            self.observer.report(&Event::LeaseLost { message: &job.message });
        }
    }
}

/// A message that is held by the worker.
pub(super) struct Job {
    pub(super) message: Arc<Message>,
    pub(super) claim: Claim,
    pub(super) received: Instant,
    pub(super) cancel: Cancel,
    pub(super) held: Held,
    _slot: Slot,
}

/// The deliveries that a worker holds, by token. There are never many more than it has handlers.
#[derive(Debug, Default)]
pub(super) struct Slots {
    tokens: Mutex<HashSet<Box<str>>>,
    freed: Notify,
}

/// The hold of one delivery, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    token: Box<str>,
}

impl Slots {
    fn take(self: &Arc<Self>, token: &str) -> Option<Slot> {
        let is_new = self.tokens().insert(token.into());
        is_new.then(|| Slot { slots: Arc::clone(self), token: token.into() })
    }

    /// Waits until fewer than so many deliveries are held.
    pub(super) async fn fewer_than(&self, limit: usize) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.tokens().len() < limit {
                return;
            }
            freed.await;
        }
    }

    fn tokens(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        // A panic cannot leave the set half changed.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.tokens().remove(&self.token);
        self.slots.freed.notify_waiters();
    }
}
