//! Router hook: decides topic, partition and label of a message before it is stored.
//!
//! Rules of the configuration file are tried first (`rules.rs`); if none matches and a webhook is configured, the
//! webhook is asked (`webhook.rs`). A router that fails, times out or gives an invalid response never fails a produce:
//! the message is stored unrouted and the failure is counted. `docs/routing.md` documents the webhook protocol.

mod circuit_breaker;
mod request;
mod response;
mod rules;
mod webhook;

use driftq_core::types::RoutingDecision;

pub use self::request::RouteRequest;
pub use self::webhook::RouterFailure;
use self::webhook::WebhookClient;
use crate::config::RouterSettings;

/// The configured router.
///
/// It belongs to one thread: with a webhook, [`route`](Self::route) must run inside a [`tokio::task::LocalSet`], on
/// which its connections are spawned.
#[derive(Debug)]
pub struct Router {
    settings: RouterSettings,
    webhook: Option<WebhookClient>,
}

impl Router {
    /// A router with these settings. Opens no connection.
    #[must_use]
    pub fn new(settings: RouterSettings) -> Self {
        let webhook = settings.webhook.as_ref().map(WebhookClient::new);
        Self { settings, webhook }
    }

    /// Whether there is neither a rule nor a webhook, so that [`route`](Self::route) need not be called.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// The decision about a message: `Ok(None)` if no rule matches and there is no webhook, or the webhook decides
    /// nothing.
    ///
    /// Takes no longer than the webhook's timeout. Dropping the future cancels the request and closes its connection.
    ///
    /// # Errors
    /// [`RouterFailure`]; the message is then stored unrouted.
    pub async fn route(&self, request: RouteRequest<'_>) -> Result<Option<RoutingDecision>, RouterFailure> {
        if let Some(decision) = rules::decide(&self.settings.rules, &request) {
            return Ok(Some(decision));
        }
        match &self.webhook {
            Some(webhook) => webhook.ask(&request).await,
            None => Ok(None),
        }
    }
}
