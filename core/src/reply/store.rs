//! Replies of the idempotency store.

use std::sync::Arc;

use crate::types::{Effect, EffectStatus, Identity, LeaseToken, Outcome, Text, Timestamp};

/// The reply to a command of the idempotency store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// Execute the effect.
    Execute {
        /// How often it was granted, this grant included.
        attempt: u32,
        /// The token of the grant.
        token: LeaseToken,
        /// When the lease of the grant ends.
        lease_until: Timestamp,
        /// False for an empty key: nothing is stored, and nothing prevents a second execution.
        idempotent: bool,
    },
    /// The effect has ended.
    Replay {
        /// Its outcome.
        outcome: Outcome,
        /// It has a result whose bytes are lost; the outcome is without it.
        result_lost: bool,
    },
    /// The effect failed, or its lease expired; it can be reacquired.
    Retryable {
        /// How often it was granted.
        attempt: u32,
        /// Its status.
        status: EffectStatus,
        /// The error.
        last_error: Text,
    },
    /// The lease is extended.
    Renewed {
        /// The new end of the lease.
        lease_until: Timestamp,
    },
    /// The effect.
    Effect(Box<FoundEffect>),
    /// A page of effects.
    Listed(Box<EffectPage>),
}

/// An effect and the bytes of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEffect {
    /// The effect.
    pub effect: Effect,
    /// Its result as JSON text.
    pub result: Option<Arc<str>>,
    /// It has a result whose bytes are lost.
    pub result_lost: bool,
}

impl FoundEffect {
    /// An effect; the bytes of its result are not read yet.
    pub(crate) fn new(effect: Effect) -> Self {
        let result_lost = effect.is_result_lost();
        Self { effect, result: None, result_lost }
    }

    /// Its outcome. Not final while it is in progress.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.effect.outcome_with(self.result.clone())
    }
}

/// A page of effects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectPage {
    /// The selected effects with their identities.
    pub effects: Vec<(Identity, FoundEffect)>,
    /// Where the next page begins: after this identity. `None` if this is the last page. The work per page is bounded,
    /// so a page that is not the last can be short or empty.
    pub next: Option<Identity>,
}
