//! Events for metrics and logs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::message::Message;

/// Something that happened to a worker, a stream or a request. It contains neither keys nor payloads but those of the
/// message it refers to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The stream is open.
    Connected,
    /// The stream has ended or cannot be opened; it reconnects.
    Disconnected {
        /// Why.
        error: &'a Error,
    },
    /// A message was delivered.
    Received {
        /// The message.
        message: &'a Message,
    },
    /// The store has decided about a message.
    Began {
        /// The message.
        message: &'a Message,
        /// `EXECUTE`, `REPLAY`, `IN_PROGRESS` or `RETRYABLE`.
        decision: &'static str,
    },
    /// A message is finished.
    Completed {
        /// The message.
        message: &'a Message,
        /// Since its receipt.
        elapsed: Duration,
    },
    /// An attempt has failed.
    Failed {
        /// The message.
        message: &'a Message,
        /// `retry`, `permanent`, or the kind of the error that stopped it.
        kind: &'static str,
        /// The text of the failure.
        error: &'a str,
    },
    /// The lease of a message is lost; its handler is cancelled and its result discarded.
    LeaseLost {
        /// The message.
        message: &'a Message,
    },
    /// A message was returned without counting a failure.
    Released {
        /// The message.
        message: &'a Message,
    },
    /// A handler has not ended for a whole lease after it was cancelled.
    HandlerStuck {
        /// The message.
        message: &'a Message,
    },
    /// Handlers have blocked the threads of their runtime.
    LoopBlocked {
        /// For how long.
        blocked: Duration,
    },
    /// A request is sent again after a pause.
    RequestRetried {
        /// Why.
        error: &'a Error,
        /// The pause.
        pause: Duration,
    },
}

impl Event<'_> {
    /// The name that all clients of DriftQ use.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Disconnected { .. } => "disconnected",
            Self::Received { .. } => "received",
            Self::Began { .. } => "began",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::LeaseLost { .. } => "lease_lost",
            Self::Released { .. } => "released",
            Self::HandlerStuck { .. } => "handler_stuck",
            Self::LoopBlocked { .. } => "loop_blocked",
            Self::RequestRetried { .. } => "request_retried",
        }
    }
}

type Hook = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Where events go: the log, and a hook.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Hook>);

impl Observer {
    pub(crate) fn new(hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn report(&self, event: &Event<'_>) {
        log(event);
        if let Some(hook) = &self.0 {
            hook(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer(hook)" } else { "Observer" })
    }
}

fn log(event: &Event<'_>) {
    match event {
        Event::Connected => tracing::info!("the stream is connected"),
        Event::Disconnected { error } => tracing::warn!(%error, "the stream is disconnected and opened again"),
        Event::Received { message } => tracing::trace!(message_id = %message.id(), "received"),
        Event::Began { message, decision } => tracing::trace!(message_id = %message.id(), decision, "began"),
        Event::Completed { message, elapsed } => tracing::debug!(message_id = %message.id(), ?elapsed, "completed"),
        Event::Failed { message, kind, error } => {
            tracing::warn!(message_id = %message.id(), kind, error, "an attempt has failed");
        }
        Event::LeaseLost { message } => {
            let message_id = message.id();
            tracing::warn!(%message_id, "the lease is lost, and the result of its handler is discarded");
        }
        Event::Released { message } => tracing::debug!(message_id = %message.id(), "released"),
        Event::HandlerStuck { message } => {
            tracing::warn!(message_id = %message.id(), "a handler ignores its cancellation and keeps its slot");
        }
        Event::LoopBlocked { blocked } => tracing::warn!(?blocked, "handlers block the threads of their runtime"),
        Event::RequestRetried { error, pause } => tracing::info!(%error, ?pause, "a request is repeated"),
    }
}
