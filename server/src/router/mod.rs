//! Router hook: decides topic, partition and label of a message before it is stored.
//!
//! A [`Router`] decides about one message. There are two: [`Rules`] of the configuration file and a [`WebhookRouter`].
//! The [`RouterChain`] of a broker tries the rules first; if none matches and a webhook is configured, the webhook is
//! asked. A router that fails, times out or gives an invalid response never fails a produce:
//! the message is stored unrouted and the failure is counted. `docs/routing.md` documents the webhook protocol.

mod circuit_breaker;
mod request;
mod response;
mod rules;
mod webhook;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use driftq_core::types::RoutingDecision;

use self::circuit_breaker::CircuitBreaker;
pub use self::request::RouteRequest;
pub use self::rules::Rules;
pub use self::webhook::{RouterFailure, WebhookRouter};
use crate::config::RouterSettings;

/// A router's answer: a decision, none, or why it could not decide.
pub type RouterAnswer = Result<Option<RoutingDecision>, RouterFailure>;

/// The future of a [`RouterAnswer`]. It belongs to one thread.
pub type RouterFuture<'a> = Pin<Box<dyn Future<Output = RouterAnswer> + 'a>>;

/// Whether a message is routed alone or as one of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Alone: a router that is busy skips it.
    Alone,
    /// One of many that are routed at the same time: it waits for a router that is busy.
    Batch,
}

/// Decides where a message is stored, and with which label.
pub trait Router: Debug {
    /// The decision about a message; `Ok(None)` if this router leaves it as it is.
    ///
    /// Takes a bounded time. Dropping the future cancels what it does. It must run inside a
    /// [`tokio::task::LocalSet`], on which a router may spawn its connections.
    ///
    /// # Errors
    /// [`RouterFailure`]; the message is then stored unrouted.
    fn route<'a>(&'a self, request: RouteRequest<'a>, company: Company) -> RouterFuture<'a>;
}

/// The circuit breaker of a webhook, which all chains that ask it share; nothing without a webhook.
#[derive(Clone, Debug)]
pub(crate) struct SharedCircuit(Option<Arc<CircuitBreaker>>);

impl SharedCircuit {
    pub(crate) fn new(settings: &RouterSettings) -> Self {
        Self(settings.webhook.as_ref().map(|webhook| Arc::new(CircuitBreaker::new(webhook.cooldown))))
    }
}

/// Routers in the order in which they are asked: the first that decides or fails ends the search.
#[derive(Debug, Default)]
pub struct RouterChain(Vec<Box<dyn Router>>);

impl RouterChain {
    /// The routers of these settings. Opens no connection.
    #[must_use]
    pub fn new(settings: RouterSettings) -> Self {
        let circuit = SharedCircuit::new(&settings);
        Self::sharing(settings, &circuit)
    }

    /// The routers of these settings, one of several chains of a process that ask the same webhook.
    pub(crate) fn sharing(settings: RouterSettings, circuit: &SharedCircuit) -> Self {
        let RouterSettings { webhook, rules } = settings;
        let mut routers: Vec<Box<dyn Router>> = Vec::new();
        if !rules.is_empty() {
            routers.push(Box::new(Rules::new(rules)));
        }
        if let (Some(webhook), Some(breaker)) = (webhook, &circuit.0) {
            routers.push(Box::new(WebhookRouter::sharing(&webhook, Arc::clone(breaker))));
        }
        Self(routers)
    }

    /// These routers, in this order.
    #[must_use]
    pub fn of(routers: Vec<Box<dyn Router>>) -> Self {
        Self(routers)
    }

    /// Whether there is no router, so that [`route`](Self::route) need not be called.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The decision about a message: that of the first router that makes one.
    ///
    /// # Errors
    /// [`RouterFailure`] of the first router that fails before one decides; the message is then stored unrouted.
    pub async fn route(&self, request: RouteRequest<'_>, company: Company) -> RouterAnswer {
        for router in &self.0 {
            if let Some(decision) = router.route(request, company).await? {
                return Ok(Some(decision));
            }
        }
        Ok(None)
    }
}
