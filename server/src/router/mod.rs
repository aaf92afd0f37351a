//! The router hook: where a message should go and what it should be called, asked before it is stored.
//!
//! Rules of the configuration file are looked at first; where none fits and a webhook is configured, that is asked. A router
//! that fails, stalls or answers nonsense never fails a produce: the message goes on unrouted, and the failure is counted.
//! `docs/routing.md` is the webhook author's side of this.

mod answer;
mod client;
mod health;
mod question;
mod rules;

use driftq_core::types::{Envelope, RoutingDecision, TopicName};

use crate::config::RouterSettings;
use client::Client;

/// What a router is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The topic the producer asked for.
    pub topic: &'a TopicName,
    /// The partitioning key; may be empty.
    pub key: &'a str,
    /// The payload.
    pub value: &'a str,
    /// The producer's metadata.
    pub envelope: &'a Envelope,
}

/// Why no decision came from a router that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterFailure {
    /// It did not answer in time.
    Timeout,
    /// It could not be reached, or hung up.
    Unreachable,
    /// It answered with something that is no decision.
    Nonsense,
    /// It was not asked: it failed a moment ago, or too many questions are open already.
    Skipped,
}

impl RouterFailure {
    /// The word metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Nonsense => "nonsense",
            Self::Skipped => "skipped",
        }
    }
}

/// The configured router.
///
/// It belongs to one thread: with a webhook, [`route`](Self::route) must run inside a [`tokio::task::LocalSet`], as its
/// connections are tasks of that set.
#[derive(Debug)]
pub struct Router {
    settings: RouterSettings,
    webhook: Option<Client>,
}

impl Router {
    /// A router of these settings. Connects to nothing yet.
    #[must_use]
    pub fn new(settings: RouterSettings) -> Self {
        let webhook = settings.webhook.as_ref().map(Client::new);
        Self { settings, webhook }
    }

    /// Whether there is nothing to ask, so that a produce need not be held up at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.rules.is_empty() && self.settings.webhook.is_none()
    }

    /// What is to become of a message: `Ok(None)` where no rule fits and there is no webhook, or the webhook has nothing to say.
    ///
    /// Takes no longer than the webhook's timeout. May be dropped at any time; the question is then withdrawn and its connection
    /// closed.
    ///
    /// # Errors
    /// [`RouterFailure`]; the message goes on unrouted.
    pub async fn route(&self, question: Question<'_>) -> Result<Option<RoutingDecision>, RouterFailure> {
        if let Some(decision) = rules::decide(&self.settings.rules, &question) {
            return Ok(Some(decision));
        }
        match &self.webhook {
            Some(webhook) => webhook.ask(&question).await,
            None => Ok(None),
        }
    }
}
