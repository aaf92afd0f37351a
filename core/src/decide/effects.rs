//! Whether an effect may be run, and what its ending means.

use super::produce::{bounded, overloaded};
use super::settle::{ClaimStatus, delivery_status};
use super::{Decision, topic};
use crate::command::{Begin, DeliveryClaim, OnExpired, StoreCommand, TokenClaim};
use crate::faults::{Fault, Faults};
use crate::idempotency::{Effect, EffectStatus, Identity, Lifetime, Outcome, Scope};
use crate::record::{EffectBegun, Event};
use crate::reply::{Overload, Refusal, Reply, StoreReply};
use crate::state::State;
use crate::types::message::DEFAULT_TENANT;
use crate::types::{LeaseToken, Limits, Millis, OwnerName, PartitionId, Position, Text, Timestamp};

/// What is said to be wrong with an effect whose lease has ended without word.
const LEASE_EXPIRED: &str = "lease_expired";

/// Everything a decision about an effect rests on.
pub(crate) struct DecisionContext<'a, F> {
    pub(crate) state: &'a State,
    pub(crate) limits: &'a Limits,
    pub(crate) now: Timestamp,
    /// The token of the grant, should there be one.
    pub(crate) token: LeaseToken,
    pub(crate) faults: &'a F,
}

impl<F: Faults> DecisionContext<'_, F> {
    /// Decides what is asked.
    pub(crate) fn decide(&self, asked: &StoreCommand) -> Result<Decision, Refusal> {
        match asked {
            StoreCommand::Begin(begin) => self.begin(begin),
            StoreCommand::Finish { identity, token, outcome } => self.finish(identity, *token, outcome),
            StoreCommand::Reacquire { identity, owner, lease } => self.reacquire(identity, owner, *lease),
            StoreCommand::Renew { identity, token, lease } => self.renew(identity, *token, *lease),
            StoreCommand::Get { identity } => {
                let effect = Box::new(self.known(identity)?.clone());
                Ok(Decision::nothing(Reply::Store(StoreReply::Effect(effect))))
            }
            StoreCommand::Forget { identity } => {
                self.known(identity)?;
                Ok(Decision::new(Event::EffectForgotten { identity: identity.clone() }, Reply::Done))
            }
        }
    }

    fn begin(&self, asked: &Begin) -> Result<Decision, Refusal> {
        self.check_identity(&asked.identity)?;
        bounded("request hash", asked.request_hash.as_ref().map_or(0, |hash| hash.len()), self.limits.id_bytes_max)?;
        if let Some(Lifetime::Until(moment)) = asked.lifetime
            && moment <= self.now
        {
            return Err(Refusal::Invalid("expires_at has passed"));
        }
        let lease_until = self.now.after(self.limits.lease(asked.lease));
        if asked.identity.bytes().1.is_empty() {
            let execute = StoreReply::Execute { attempt: 1, token: self.token, lease_until, idempotent: false };
            return Ok(Decision::nothing(Reply::Store(execute)));
        }
        let delivery = asked.delivery.as_ref().map(|delivery| self.behind(&asked.identity, delivery)).transpose()?;
        let known = self.state.effect(&asked.identity, self.now);
        if let Some(effect) = known {
            let differ = matches!((effect.request_hash(), &asked.request_hash), (Some(a), Some(b)) if *a != **b);
            if differ && !self.faults.planted(Fault::HashNotCompared) {
                return Err(Refusal::HashMismatch);
            }
            if effect.status.is_final() && !self.faults.planted(Fault::BeginAfterSuccessExecutes) {
                return Ok(Decision::nothing(Reply::Store(StoreReply::Replay(effect.outcome()))));
            }
        }
        // Whoever has lost the message must not act on it any more.
        let message = match delivery {
            Some(Behind::Gone) => return Err(Refusal::StaleLease),
            Some(Behind::Current(message, _)) => Some(message),
            None => None,
        };
        if let Some(effect) = known {
            let is_rpc = matches!(asked.identity.scope, Scope::Rpc { .. });
            match effect.status {
                EffectStatus::InProgress if effect.is_leased(self.now) => {
                    // A delivery that was made after the grant has fenced whoever holds it.
                    let fenced = matches!(delivery, Some(Behind::Current(_, token)) if Some(token) > effect.token);
                    if !fenced {
                        let retry_after = Millis(effect.lease_until.0 - self.now.0);
                        return Err(Refusal::InProgress { retry_after });
                    }
                }
                EffectStatus::InProgress => {
                    let default = if is_rpc { OnExpired::Report } else { OnExpired::TakeOver };
                    if asked.on_expired.unwrap_or(default) == OnExpired::Report {
                        return Ok(retryable(effect, LEASE_EXPIRED.into()));
                    }
                }
                EffectStatus::FailedRetryable if is_rpc => {
                    return Ok(retryable(effect, effect.outcome().last_error));
                }
                _ => {}
            }
        } else if self.state.store().len_of(asked.identity.tenant()) >= self.limits.effects_max {
            return Err(overloaded(Overload::Effects, self.limits));
        }
        let lifetime = match (asked.lifetime, known) {
            (None, None) => Some(Lifetime::Window(self.window(&asked.identity.scope))),
            (asked, _) => asked,
        };
        let event = EffectBegun {
            identity: asked.identity.clone(),
            token: self.token,
            owner: asked.owner.clone(),
            until: lease_until,
            lifetime,
            request_hash: asked.request_hash.clone(),
            message,
        };
        Ok(self.grant(event, known))
    }

    fn grant(&self, mut event: EffectBegun, known: Option<&Effect>) -> Decision {
        if self.faults.planted(Fault::TakeoverKeepsToken)
            && let Some(token) = known.and_then(|effect| effect.token)
        {
            event.token = token;
        }
        let execute = StoreReply::Execute {
            attempt: known.map_or(0, |effect| effect.attempt).saturating_add(1),
            token: event.token,
            lease_until: event.until,
            idempotent: true,
        };
        Decision::new(Event::EffectBegun(Box::new(event)), Reply::Store(execute))
    }

    fn finish(&self, identity: &Identity, token: TokenClaim, outcome: &Outcome) -> Result<Decision, Refusal> {
        self.check_identity(identity)?;
        if outcome.status == EffectStatus::InProgress {
            return Err(Refusal::Invalid("an effect ends as SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE"));
        }
        bounded("result", outcome.result.as_ref().map_or(0, |result| result.len()), self.limits.result_bytes_max)?;
        bounded("last_error", outcome.last_error.len(), self.limits.error_text_bytes_max)?;
        let effect = self.known(identity)?;
        self.check_token(effect, token)?;
        let by_ack_alone = effect.committed && !effect.finished;
        match effect.status {
            EffectStatus::InProgress => {}
            EffectStatus::Succeeded if by_ack_alone && outcome.status == EffectStatus::Succeeded => {}
            _ if !by_ack_alone && effect.outcome() == *outcome => return Ok(Decision::nothing(Reply::Done)),
            _ if self.faults.planted(Fault::FinishIgnoresToken) => {}
            _ => return Err(Refusal::OtherOutcome),
        }
        let event = Event::EffectFinished { identity: identity.clone(), outcome: outcome.clone() };
        Ok(Decision::new(event, Reply::Done))
    }

    fn reacquire(&self, identity: &Identity, owner: &OwnerName, lease: Option<Millis>) -> Result<Decision, Refusal> {
        self.check_identity(identity)?;
        let effect = self.known(identity)?;
        if effect.status.is_final() || effect.is_leased(self.now) {
            return Err(Refusal::NotRetryable { status: effect.status });
        }
        let event = EffectBegun {
            identity: identity.clone(),
            token: self.token,
            owner: owner.clone(),
            until: self.now.after(self.limits.lease(lease)),
            lifetime: None,
            request_hash: None,
            message: None,
        };
        Ok(self.grant(event, Some(effect)))
    }

    fn renew(&self, identity: &Identity, token: TokenClaim, lease: Option<Millis>) -> Result<Decision, Refusal> {
        self.check_identity(identity)?;
        // Of an effect that is not there every lease is stale.
        let effect = self.state.effect(identity, self.now).ok_or(Refusal::StaleLease)?;
        self.check_token(effect, token)?;
        if !effect.is_leased(self.now) {
            return Err(Refusal::StaleLease);
        }
        let until = self.now.after(self.limits.lease(lease));
        let event = Event::EffectRenewed { identity: identity.clone(), until };
        Ok(Decision::new(event, Reply::Store(StoreReply::Renewed { lease_until: until })))
    }

    fn known(&self, identity: &Identity) -> Result<&Effect, Refusal> {
        self.state.effect(identity, self.now).ok_or(Refusal::UnknownEffect)
    }

    fn check_identity(&self, identity: &Identity) -> Result<(), Refusal> {
        let (tenant, key) = identity.bytes();
        bounded("idempotency key", key.len(), self.limits.idempotency_key_bytes_max)?;
        bounded("tenant id", tenant.len(), self.limits.id_bytes_max)?;
        let required = match &identity.scope {
            Scope::Consume { .. } | Scope::Tenant => return Ok(()),
            Scope::Job { id } => [("job id", id), ("job id", id)],
            Scope::Task { id } => [("task id", id), ("task id", id)],
            Scope::Rpc { principal, method } => [("principal", principal), ("method", method)],
        };
        for (what, text) in required {
            if text.is_empty() {
                return Err(Refusal::Invalid("a scope's id, principal and method must not be empty"));
            }
            bounded(what, text.len(), self.limits.id_bytes_max)?;
        }
        Ok(())
    }

    fn check_token(&self, effect: &Effect, shown: TokenClaim) -> Result<(), Refusal> {
        let holds = matches!(shown, TokenClaim::Shown(token) if Some(token) == effect.token);
        if holds || self.faults.planted(Fault::FinishIgnoresToken) { Ok(()) } else { Err(Refusal::StaleLease) }
    }

    /// How long effects of this scope are remembered by default.
    fn window(&self, scope: &Scope) -> Millis {
        match scope {
            Scope::Job { .. } | Scope::Task { .. } => self.limits.job_ttl,
            Scope::Consume { .. } | Scope::Tenant | Scope::Rpc { .. } => self.limits.effect_ttl,
        }
    }

    /// Finds the message that a delivery is of.
    fn behind(&self, identity: &Identity, delivery: &DeliveryClaim) -> Result<Behind, Refusal> {
        let Scope::Consume { topic: name, group } = &identity.scope else {
            return Err(Refusal::Invalid("a delivery goes with a consume scope"));
        };
        let topic = topic(self.state, name)?;
        let TokenClaim::Shown(token) = delivery.token else { return Ok(Behind::Gone) };
        let message = topic.partition(delivery.partition).and_then(|partition| partition.find(delivery.offset));
        if let Some((_, message)) = message {
            let meta = message.body.has_metadata().then(|| message.body.metadata());
            let tenant = meta.as_ref().map_or(DEFAULT_TENANT, |meta| meta.envelope.tenant());
            if tenant != identity.tenant() {
                return Err(Refusal::Invalid("the delivered message is of another tenant"));
            }
        }
        match delivery_status(topic, group, delivery.partition, delivery.offset, delivery.token) {
            Ok(ClaimStatus::Current(message_ref, _)) => {
                Ok(Behind::Current((message_ref.partition, message_ref.position), token))
            }
            Ok(ClaimStatus::AlreadyAcked) | Err(Refusal::StaleLease) => Ok(Behind::Gone),
            Err(refusal) => Err(refusal),
        }
    }
}

/// What stands behind a question on behalf of a delivery.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// The newest delivery of an unfinished message.
    Current((PartitionId, Position), LeaseToken),
    /// A delivery that is not the newest, or whose message is done.
    Gone,
}

fn retryable(effect: &Effect, last_error: Text) -> Decision {
    let (attempt, status) = (effect.attempt, effect.status);
    Decision::nothing(Reply::Store(StoreReply::Retryable { attempt, status, last_error }))
}
