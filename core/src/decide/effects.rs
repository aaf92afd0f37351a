//! Decides commands of the idempotency store.

use super::dead_letter::{check_source, dead_letter, slot};
use super::settle::{ClaimStatus, delivery_status};
use super::{Decision, DecisionContext, check_len};
use crate::command::{
    Begin, DeliveryClaim, Finish, Forget, Lookup, OnExpired, Reacquire, Renew, StoreCommand, TokenClaim,
};
use crate::faults::Faults;
use crate::record::{EffectBegun, EffectDeadLettered, Event};
use crate::reply::{FoundEffect, Overload, Refusal, Reply, StoreReply};
use crate::state::VisibleEffects;
use crate::types::{
    DeadReason, Effect, EffectStatus, Identity, LeaseToken, Lifetime, MessageRef, Millis, OwnerName, Scope, Text,
};

/// The error of an effect whose lease expired without a finish.
const LEASE_EXPIRED: &str = "lease_expired";

/// Decides commands of the idempotency store.
pub(crate) struct EffectDecisions<'a, F> {
    pub(crate) context: DecisionContext<'a, F>,
    /// The token of a grant, if one is made.
    pub(crate) token: LeaseToken,
    /// Which effects a list may show.
    pub(crate) visible: VisibleEffects,
}

impl<F: Faults> EffectDecisions<'_, F> {
    /// Decides `command`.
    pub(crate) fn decide(&self, command: &StoreCommand) -> Result<Decision, Refusal> {
        match command {
            StoreCommand::Begin(begin) => self.begin(begin),
            StoreCommand::Finish(finish) => self.finish(finish),
            StoreCommand::Reacquire(Reacquire { identity, owner, lease }) => self.reacquire(identity, owner, *lease),
            StoreCommand::Renew(Renew { identity, token, lease }) => self.renew(identity, *token, *lease),
            StoreCommand::Lookup(Lookup { identity }) => {
                let effect = Box::new(FoundEffect::new(self.known(identity)?.clone()));
                Ok(Decision::reply_only(Reply::Store(StoreReply::Effect(effect))))
            }
            StoreCommand::List(request) => {
                let DecisionContext { state, limits, now, .. } = &self.context;
                let page = Box::new(state.list_effects(request, self.visible, &limits.work, *now));
                Ok(Decision::reply_only(Reply::Store(StoreReply::Listed(page))))
            }
            StoreCommand::Forget(Forget { identity }) => {
                let event = Event::EffectForgotten { identity: identity.clone() };
                Ok(Decision::ending_grant(self.known(identity)?, event, Reply::Success))
            }
        }
    }

    fn begin(&self, request: &Begin) -> Result<Decision, Refusal> {
        self.check_begin(request)?;
        let lease_until = self.context.now.after(self.context.limits.lease(request.lease));
        if request.identity.bytes().1.is_empty() {
            let execute = StoreReply::Execute { attempt: 1, token: self.token, lease_until, idempotent: false };
            return Ok(Decision::reply_only(Reply::Store(execute)));
        }
        let claim = request.delivery.as_ref().map(|claim| self.check_delivery(&request.identity, claim)).transpose()?;
        let known = self.context.state.effect(&request.identity, self.context.now);
        if let Some(effect) = known {
            let differ = matches!((effect.request_hash(), &request.request_hash), (Some(a), Some(b)) if *a != **b);
            if differ {
                return Err(Refusal::HashMismatch);
            }
            if self.context.faults.is_replayed(effect) {
                let (outcome, result_lost) = (effect.outcome_with(None), effect.is_result_lost());
                return Ok(Decision::reply_only(Reply::Store(StoreReply::Replay { outcome, result_lost })));
            }
        }
        // A worker that has lost its lease must not execute the effect.
        let (message, delivery_token) = match claim {
            Some(DeliveryCheck::Stale) => return Err(Refusal::StaleLease),
            Some(DeliveryCheck::Current(message_ref, token)) => {
                (Some((message_ref.partition, message_ref.position)), Some(token))
            }
            None => (None, None),
        };
        if let Some(effect) = known {
            if let Some(decision) = self.check_unfinished(request, effect, delivery_token)? {
                return Ok(decision);
            }
        } else if self.context.state.store().len_of(request.identity.tenant()) >= self.context.limits.effects_max {
            return Err(self.context.overloaded(Overload::Effects));
        }
        let lifetime = match (request.lifetime, known) {
            (None, None) => Some(Lifetime::Window(self.window(&request.identity.scope))),
            (Some(Lifetime::Until(wall)), _) => Some(Lifetime::Until(self.context.broker_time(wall))),
            (lifetime, _) => lifetime,
        };
        let event = EffectBegun {
            identity: request.identity.clone(),
            token: self.token,
            owner: request.owner.clone(),
            until: lease_until,
            lifetime,
            request_hash: request.request_hash.clone(),
            message,
        };
        Ok(self.grant(event, known))
    }

    fn check_begin(&self, request: &Begin) -> Result<(), Refusal> {
        self.check_identity(&request.identity)?;
        let hash_len = request.request_hash.as_ref().map_or(0, |hash| hash.len());
        check_len("request hash", hash_len, self.context.limits.id_bytes_max)?;
        match request.lifetime {
            Some(Lifetime::Until(time)) if time <= self.context.wall() => {
                Err(Refusal::Invalid("expires_at has passed"))
            }
            _ => Ok(()),
        }
    }

    /// Whether an effect without a final outcome can be granted: `None` if it can, else the reply.
    fn check_unfinished(
        &self,
        request: &Begin,
        effect: &Effect,
        delivery_token: Option<LeaseToken>,
    ) -> Result<Option<Decision>, Refusal> {
        let is_rpc = matches!(request.identity.scope, Scope::Rpc { .. });
        match effect.status {
            EffectStatus::InProgress => {
                if let Some(until) = self.context.leased_until(effect) {
                    // A delivery newer than the grant fences the grant's holder: the message was redelivered since.
                    let is_fenced = delivery_token.is_some_and(|token| Some(token) > effect.token);
                    let retry_after = until.since(self.context.now);
                    return if is_fenced { Ok(None) } else { Err(Refusal::InProgress { retry_after }) };
                }
                let default = if is_rpc { OnExpired::Report } else { OnExpired::TakeOver };
                if request.on_expired.unwrap_or(default) == OnExpired::Report {
                    return Ok(Some(retryable(effect, LEASE_EXPIRED.into())));
                }
            }
            EffectStatus::FailedRetryable if is_rpc => {
                return Ok(Some(retryable(effect, effect.last_error().into())));
            }
            _ => {}
        }
        Ok(None)
    }

    fn grant(&self, mut event: EffectBegun, known: Option<&Effect>) -> Decision {
        event.token = self.context.faults.grant_token(event.token, known);
        let execute = StoreReply::Execute {
            attempt: known.map_or(0, |effect| effect.attempt).saturating_add(1),
            token: event.token,
            lease_until: event.until,
            idempotent: true,
        };
        let (event, reply) = (Event::EffectBegun(Box::new(event)), Reply::Store(execute));
        match known {
            Some(effect) => Decision::ending_grant(effect, event, reply),
            None => Decision::new(event, reply),
        }
    }

    fn finish(&self, request: &Finish) -> Result<Decision, Refusal> {
        let Finish { identity, token, outcome, dead_letter } = request;
        self.check_identity(identity)?;
        if outcome.status == EffectStatus::InProgress {
            return Err(Refusal::Invalid("an effect ends as SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE"));
        }
        check_len(
            "result",
            outcome.result.as_ref().map_or(0, |result| result.len()),
            self.context.limits.result_bytes_max,
        )?;
        check_len("last_error", outcome.last_error.len(), self.context.limits.error_text_bytes_max)?;
        if dead_letter.is_some() && outcome.status != EffectStatus::FailedFinal {
            return Err(Refusal::Invalid("only an effect that ends as FAILED_FINAL dead-letters its message"));
        }
        let effect = self.known(identity)?;
        self.check_token(effect, *token)?;
        let is_repeated = effect.finished && effect.is_outcome(outcome);
        if !is_repeated && !self.context.faults.can_finish(effect, outcome.status) {
            return Err(Refusal::OtherOutcome);
        }
        if let Some(delivery) = dead_letter {
            return self.finish_and_dead_letter(request, delivery, effect, is_repeated);
        }
        if is_repeated {
            return Ok(Decision::reply_only(Reply::Success));
        }
        let event = Event::EffectFinished { identity: identity.clone(), outcome: outcome.clone() };
        Ok(Decision::ending_grant(effect, event, Reply::Success))
    }

    /// Decides a finish that dead-letters the message of `delivery`. A repeated finish whose message has left the group
    /// changes nothing.
    fn finish_and_dead_letter(
        &self,
        Finish { identity, outcome, .. }: &Finish,
        delivery: &DeliveryClaim,
        effect: &Effect,
        is_repeated: bool,
    ) -> Result<Decision, Refusal> {
        let context = &self.context;
        let message_ref = match self.check_delivery(identity, delivery)? {
            DeliveryCheck::Current(message_ref, _) => message_ref,
            DeliveryCheck::Stale if is_repeated && self.is_acked(&identity.scope, delivery) => {
                return Ok(Decision::reply_only(Reply::Success));
            }
            DeliveryCheck::Stale => return Err(Refusal::StaleLease),
        };
        check_source(context.state, &message_ref)?;
        let last_error = match outcome.last_error.is_empty() {
            true => Text::from(context.state.delivery(&message_ref).map_or("", |known| known.last_error.as_str())),
            false => outcome.last_error.clone(),
        };
        if is_repeated {
            let event = dead_letter(context, &message_ref, DeadReason::NonRetryable, last_error);
            return Ok(Decision::new(event, Reply::Success));
        }
        let event = Event::EffectDeadLettered(Box::new(EffectDeadLettered {
            identity: identity.clone(),
            outcome: outcome.clone(),
            message_ref,
            dead_letter: slot(context.state, &message_ref, last_error),
            winner_until: context.now.after(context.limits.completion_ttl),
        }));
        Ok(Decision::ending_grant(effect, event, Reply::Success))
    }

    /// Whether the group of a consume scope has acked the message of a delivery, or has dead-lettered it.
    fn is_acked(&self, scope: &Scope, delivery: &DeliveryClaim) -> bool {
        let Scope::Consume { topic, group } = scope else { return false };
        let message = (delivery.partition, delivery.offset);
        let status = self
            .context
            .topic(topic)
            .and_then(|topic| delivery_status(&self.context, topic, group, message, TokenClaim::Absent));
        matches!(status, Ok(ClaimStatus::AlreadyAcked))
    }

    fn reacquire(&self, identity: &Identity, owner: &OwnerName, lease: Option<Millis>) -> Result<Decision, Refusal> {
        self.check_identity(identity)?;
        let effect = self.known(identity)?;
        if effect.status.is_final() || self.context.leased_until(effect).is_some() {
            return Err(Refusal::NotRetryable { status: effect.status });
        }
        let event = EffectBegun {
            identity: identity.clone(),
            token: self.token,
            owner: owner.clone(),
            until: self.context.now.after(self.context.limits.lease(lease)),
            lifetime: None,
            request_hash: None,
            message: None,
        };
        Ok(self.grant(event, Some(effect)))
    }

    fn renew(&self, identity: &Identity, token: TokenClaim, lease: Option<Millis>) -> Result<Decision, Refusal> {
        self.check_identity(identity)?;
        // Every lease of an unknown effect is stale.
        let effect = self.context.state.effect(identity, self.context.now).ok_or(Refusal::StaleLease)?;
        self.check_token(effect, token)?;
        if self.context.leased_until(effect).is_none() {
            return Err(Refusal::StaleLease);
        }
        let until = self.context.now.after(self.context.limits.lease(lease));
        let event = Event::EffectRenewed { identity: identity.clone(), until };
        Ok(Decision::new(event, Reply::Store(StoreReply::Renewed { lease_until: until })))
    }

    fn known(&self, identity: &Identity) -> Result<&Effect, Refusal> {
        self.context.state.effect(identity, self.context.now).ok_or(Refusal::UnknownEffect)
    }

    fn check_identity(&self, identity: &Identity) -> Result<(), Refusal> {
        let (tenant, key) = identity.bytes();
        check_len("idempotency key", key.len(), self.context.limits.idempotency_key_bytes_max)?;
        check_len("tenant id", tenant.len(), self.context.limits.id_bytes_max)?;
        let required = match &identity.scope {
            Scope::Consume { .. } | Scope::Tenant => [None, None],
            Scope::Job { id } => [Some(("job id", id)), None],
            Scope::Task { id } => [Some(("task id", id)), None],
            Scope::Rpc { principal, method } => [Some(("principal", principal)), Some(("method", method))],
        };
        for (what, text) in required.into_iter().flatten() {
            if text.is_empty() {
                return Err(Refusal::Invalid("a scope's id, principal and method must not be empty"));
            }
            check_len(what, text.len(), self.context.limits.id_bytes_max)?;
        }
        Ok(())
    }

    fn check_token(&self, effect: &Effect, shown: TokenClaim) -> Result<(), Refusal> {
        if self.context.faults.effect_token_matches(effect, shown) { Ok(()) } else { Err(Refusal::StaleLease) }
    }

    /// The default lifetime of effects in this scope.
    fn window(&self, scope: &Scope) -> Millis {
        match scope {
            Scope::Job { .. } | Scope::Task { .. } => self.context.limits.job_ttl,
            Scope::Consume { .. } | Scope::Tenant | Scope::Rpc { .. } => self.context.limits.effect_ttl,
        }
    }

    /// Checks the claim on the delivery for which an effect is executed.
    fn check_delivery(&self, identity: &Identity, delivery: &DeliveryClaim) -> Result<DeliveryCheck, Refusal> {
        let Scope::Consume { topic: name, group } = &identity.scope else {
            return Err(Refusal::Invalid("a delivery goes with a consume scope"));
        };
        let topic = self.context.topic(name)?;
        let TokenClaim::Shown(token) = delivery.token else { return Ok(DeliveryCheck::Stale) };
        let message = topic.partition(delivery.partition).and_then(|partition| partition.find(delivery.offset));
        if message.is_some_and(|(_, message)| message.tenant() != identity.tenant()) {
            return Err(Refusal::Invalid("the delivered message is of another tenant"));
        }
        let message = (delivery.partition, delivery.offset);
        match delivery_status(&self.context, topic, group, message, delivery.token) {
            Ok(ClaimStatus::Current(message_ref, ..)) => Ok(DeliveryCheck::Current(message_ref, token)),
            Ok(ClaimStatus::AlreadyAcked) | Err(Refusal::StaleLease) => Ok(DeliveryCheck::Stale),
            Err(refusal) => Err(refusal),
        }
    }
}

/// The result of checking a claim on a delivery.
#[derive(Clone, Copy, Debug)]
enum DeliveryCheck {
    /// The newest delivery of an unacked message: the message, and the delivery's token.
    Current(MessageRef, LeaseToken),
    /// Not the newest delivery, or the message is acked.
    Stale,
}

fn retryable(effect: &Effect, last_error: Text) -> Decision {
    let (attempt, status) = (effect.attempt, effect.status);
    Decision::reply_only(Reply::Store(StoreReply::Retryable { attempt, status, last_error }))
}
