//! The record of one effect.

use std::sync::Arc;

use driftq_core::reply::FoundEffect;
use driftq_core::types::{
    EffectNamespace, EffectStatus, Identity, LeaseToken, Lifetime, Lsn, Millis, Offset, Outcome, OwnerName,
    PartitionId, PayloadId, Scope, Text, Timestamp, TopicName,
};

use super::lease::Runs;

/// The record of an effect.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    pub(super) identity: Identity,
    pub(super) status: EffectStatus,
    /// Its message is acked, so other messages of the identity need no delivery.
    pub(super) committed: bool,
    /// The topics that the acked messages were produced to.
    pub(super) done_for: Vec<TopicName>,
    /// A worker recorded its outcome.
    pub(super) finished: bool,
    pub(super) attempt: u32,
    pub(super) token: Option<LeaseToken>,
    /// As recorded.
    pub(super) lease_until: Timestamp,
    pub(super) runs: Runs,
    pub(super) owner: Option<OwnerName>,
    pub(super) hash: Option<Text>,
    pub(super) code: i64,
    pub(super) result: Option<Arc<str>>,
    pub(super) error: Text,
    pub(super) lifetime: Lifetime,
    pub(super) updated_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// The message it belongs to.
    pub(super) message: Option<(PartitionId, Offset)>,
    /// Not to be swept before this time.
    pub(super) sweep_at: Timestamp,
    /// Where the record stands that has its result.
    pub(super) result_at: PayloadId,
    /// Its result was damaged; or, of one that is returned, removed before it was read.
    pub(super) result_lost: bool,
}

impl Effect {
    pub(super) fn namespace(&self) -> EffectNamespace {
        namespace(&self.identity)
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            status: self.status,
            response_code: self.code,
            result: self.result.clone(),
            last_error: self.error.clone(),
        }
    }

    /// The outcome as clients see it.
    pub(super) fn shown_outcome(&self) -> Outcome {
        let outcome = self.outcome();
        let result = outcome.result.filter(|_| !self.result_lost);
        Outcome { result, ..outcome }
    }

    pub(super) fn is_leased(&self, now: Timestamp) -> bool {
        self.status == EffectStatus::InProgress && (now < self.lease_until || !self.runs.has_ended(now))
    }

    /// When the lease ends, as far as it is known at `now`.
    pub(super) fn leased_until(&self, now: Timestamp) -> Timestamp {
        let end = if let Runs::Until(end) = self.runs { end } else { now.after(Millis(1)) };
        end.max(self.lease_until)
    }

    pub(super) fn is_final(&self) -> bool {
        matches!(self.status, EffectStatus::Succeeded | EffectStatus::FailedFinal)
    }

    /// It ends with an outcome, which the record `at` has.
    pub(super) fn end(&mut self, outcome: &Outcome, now: Timestamp, at: Lsn) {
        self.status = outcome.status;
        (self.code, self.result, self.error) =
            (outcome.response_code, outcome.result.clone(), outcome.last_error.clone());
        (self.result_at, self.result_lost) = (PayloadId { lsn: at, part: 0 }, false);
        self.finished = true;
        self.expires_at = expiry(self.lifetime, now);
    }

    /// Whether the broker returns this record.
    pub(super) fn is(&self, found: &FoundEffect) -> bool {
        let is_outcome = self.shown_outcome() == found.outcome() && self.result_lost == found.result_lost;
        let found = &found.effect;
        (self.status, self.committed, self.finished) == (found.status, found.committed, found.finished)
            && (self.attempt, self.token, self.lease_until) == (found.attempt, found.token, found.lease_until)
            && self.owner == found.owner
            && self.hash.as_deref() == found.request_hash()
            && is_outcome
            && self.lifetime == found.lifetime()
            && (self.updated_at, self.expires_at) == (found.updated_at, found.expires_at)
            && self.message.map(|(partition, _)| partition) == found.pin.as_ref().map(|pin| pin.partition)
            && found.pin.as_ref().is_none_or(|pin| pin.look_at == self.sweep_at)
    }
}

impl Effect {
    /// A record without grants, which expires at once.
    pub(super) fn new(identity: Identity, lifetime: Lifetime, now: Timestamp) -> Self {
        Self {
            identity,
            status: EffectStatus::InProgress,
            committed: false,
            done_for: Vec::new(),
            finished: false,
            attempt: 0,
            token: None,
            lease_until: now,
            runs: Runs::Until(now),
            owner: None,
            hash: None,
            code: 0,
            result: None,
            error: "".into(),
            lifetime,
            updated_at: now,
            expires_at: now,
            message: None,
            sweep_at: Timestamp(0),
            result_at: PayloadId::LOST,
            result_lost: false,
        }
    }
}

pub(super) fn namespace(identity: &Identity) -> EffectNamespace {
    match &identity.scope {
        Scope::Consume { topic, group } => EffectNamespace::Group(topic.clone(), group.clone()),
        _ => EffectNamespace::Shared,
    }
}

/// When the record of an effect that ended at `end` expires.
pub(super) fn expiry(lifetime: Lifetime, end: Timestamp) -> Timestamp {
    match lifetime {
        Lifetime::Window(window) => end.after(window),
        Lifetime::Until(time) => time.max(end),
    }
}
