//! The idempotency store: grants, outcomes and their expiry.

use std::sync::Arc;

use driftq_core::command::{
    Begin, DeliveryClaim, Finish, Forget, ListEffects, Lookup, OnExpired, Reacquire, Renew, StoreCommand, TokenClaim,
};
use driftq_core::reply::{Overload, StoreReply};
use driftq_core::types::{
    DeadReason, EffectNamespace, EffectStatus, GroupName, Identity, LeaseToken, Lifetime, Lsn, Millis, Offset, Outcome,
    OwnerName, PartitionId, Scope, ScopeKind, Text, Timestamp, TopicName,
};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::effect::{Effect, expiry, namespace};
use super::expected::ExpectedReply;
use super::lease::BegunBy;
use super::model::{MessageIndex, Model, Stop, SweepKind, Unwritten};
use super::topic::Progress;

/// The interval between sweeps of an effect past its window whose message is unacked.
const RESWEEP_INTERVAL: Millis = Millis(600_000);

/// For how many requested topics an effect is remembered as done.
const DONE_FOR_MAX: usize = 16;

/// The state of the delivery on whose behalf a grant is requested.
#[derive(Clone, Copy)]
enum DeliveryState {
    Newest { message: (PartitionId, Offset), token: LeaseToken },
    Stale,
}

impl Model {
    pub(super) fn store_command(&mut self, request: &StoreCommand) -> Result<ExpectedReply, Stop> {
        let token = self.new_token();
        if self.is_stalled() && request.identity().is_some_and(|identity| self.awaits_renewal(identity)) {
            return Err(self.overloaded(Overload::Log).into());
        }
        let reply = match request {
            StoreCommand::Begin(begin) => self.begin(begin, token)?,
            StoreCommand::Finish(finish) => self.end(finish)?,
            StoreCommand::Reacquire(Reacquire { identity, owner, lease }) => {
                self.reacquire(identity, owner, *lease, token)?
            }
            StoreCommand::Renew(Renew { identity, token, lease }) => self.renew(identity, *token, *lease)?,
            StoreCommand::Lookup(Lookup { identity }) => {
                let at = self.known(identity)?;
                return Ok(ExpectedReply::Effect(Box::new(self.effects[at].clone())));
            }
            StoreCommand::List(list) => return Ok(self.list(list)),
            StoreCommand::Forget(Forget { identity }) => {
                let at = self.known(identity)?;
                self.record(SpaceClass::Drain)?;
                self.effects.remove(at);
                Reply::Success
            }
        };
        Ok(ExpectedReply::Plain(reply))
    }

    /// The effect of an identity, if it is within its window or its message is unacked.
    pub(super) fn effect(&self, identity: &Identity) -> Option<usize> {
        let at = self.effects.iter().position(|effect| effect.identity == *identity)?;
        let effect = &self.effects[at];
        (self.now < effect.expires_at || self.is_pending(effect)).then_some(at)
    }

    fn known(&self, identity: &Identity) -> Result<usize, Refusal> {
        self.effect(identity).ok_or(Refusal::UnknownEffect)
    }

    /// Whether the message of an effect is unacked.
    fn is_pending(&self, effect: &Effect) -> bool {
        let (Some((_, offset)), Scope::Consume { topic, group }) = (effect.message, &effect.identity.scope) else {
            return false;
        };
        let Ok((t, g)) = self.group(topic, group) else { return false };
        let message = self.topics[t].message(offset);
        message.is_some_and(|m| !matches!(self.topics[t].groups[g].progress[m], Progress::Acked))
    }

    fn check_id(&self, what: &'static str, text: &str) -> Result<(), Refusal> {
        let (len, max) = (text.len() as u64, self.limits.id_bytes_max as u64);
        if len > max { Err(Refusal::TooLarge { what, len, max }) } else { Ok(()) }
    }

    fn check_identity(&self, identity: &Identity) -> Result<(), Refusal> {
        let (len, max) = (identity.key().len() as u64, self.limits.idempotency_key_bytes_max as u64);
        if len > max {
            return Err(Refusal::TooLarge { what: "idempotency key", len, max });
        }
        self.check_id("tenant id", identity.tenant())?;
        let required = match &identity.scope {
            Scope::Consume { .. } | Scope::Tenant => vec![],
            Scope::Job { id } => vec![("job id", id)],
            Scope::Task { id } => vec![("task id", id)],
            Scope::Rpc { principal, method } => vec![("principal", principal), ("method", method)],
        };
        for (what, text) in required {
            if text.is_empty() {
                return Err(Refusal::Invalid("a scope's id, principal and method must not be empty"));
            }
            self.check_id(what, text)?;
        }
        Ok(())
    }

    fn begin(&mut self, request: &Begin, token: LeaseToken) -> Result<Reply, Stop> {
        let identity = &request.identity;
        self.check_identity(identity)?;
        self.check_id("request hash", request.request_hash.as_deref().unwrap_or_default())?;
        if matches!(request.lifetime, Some(Lifetime::Until(time)) if time <= self.wall()) {
            return Err(Refusal::Invalid("expires_at has passed").into());
        }
        let lease_until = self.now.after(self.lease(request.lease));
        if identity.key().is_empty() {
            return Ok(execute(1, token, lease_until, false));
        }
        let delivery_state = match &request.delivery {
            Some(delivery) => Some(self.delivery_state(identity, delivery)?),
            None => None,
        };
        let known = self.effect(identity);
        if let Some(effect) = known.map(|at| &self.effects[at]) {
            if matches!((&effect.hash, &request.request_hash), (Some(first), Some(now)) if first != now) {
                return Err(Refusal::HashMismatch.into());
            }
            if effect.is_final() {
                return Ok(Reply::Store(StoreReply::Replay {
                    outcome: effect.shown_outcome(),
                    result_lost: effect.result_lost,
                }));
            }
        }
        if let Some(DeliveryState::Stale) = delivery_state {
            return Err(Refusal::StaleLease.into());
        }
        match known.map(|at| &self.effects[at]) {
            Some(effect) => {
                if let Some(reply) = self.denial(effect, request, delivery_state)? {
                    return Ok(reply);
                }
            }
            None => {
                let of_tenant = self.effects.iter().filter(|effect| effect.identity.tenant() == identity.tenant());
                if of_tenant.count() as u64 >= self.limits.effects_max {
                    return Err(self.overloaded(Overload::Effects).into());
                }
            }
        }
        let message =
            if let Some(DeliveryState::Newest { message, .. }) = delivery_state { Some(message) } else { None };
        let default = Lifetime::Window(match identity.scope {
            Scope::Job { .. } | Scope::Task { .. } => self.limits.job_ttl,
            _ => self.limits.effect_ttl,
        });
        let lifetime = request.lifetime.map(|lifetime| match lifetime {
            Lifetime::Until(wall) => Lifetime::Until(self.broker_time(wall)),
            window => window,
        });
        self.record(SpaceClass::Growth)?;
        let at = known.unwrap_or_else(|| {
            // A record past its window is replaced.
            self.effects.retain(|effect| effect.identity != *identity);
            self.effects.push(Effect::new(identity.clone(), lifetime.unwrap_or(default), self.now));
            self.effects.len() - 1
        });
        let effect = &mut self.effects[at];
        if known.is_none() {
            effect.hash = request.request_hash.clone();
        }
        effect.lifetime = lifetime.unwrap_or(effect.lifetime);
        if message.is_some() {
            (effect.message, effect.sweep_at) = (message, Timestamp(0));
        }
        Ok(self.grant(at, &request.owner, token, lease_until))
    }

    /// Why an effect without a final outcome is not granted, if so.
    fn denial(
        &self,
        effect: &Effect,
        request: &Begin,
        delivery_state: Option<DeliveryState>,
    ) -> Result<Option<Reply>, Refusal> {
        let is_rpc = matches!(request.identity.scope, Scope::Rpc { .. });
        if effect.is_leased(self.now) {
            // A newer delivery of the message takes the effect over from the granted worker.
            return match delivery_state {
                Some(DeliveryState::Newest { token, .. }) if effect.token.is_none_or(|granted| token > granted) => {
                    Ok(None)
                }
                _ => Err(Refusal::InProgress { retry_after: effect.leased_until(self.now).since(self.now) }),
            };
        }
        let (attempt, status) = (effect.attempt, effect.status);
        let last_error = match status {
            EffectStatus::InProgress => {
                let default = if is_rpc { OnExpired::Report } else { OnExpired::TakeOver };
                (request.on_expired.unwrap_or(default) == OnExpired::Report).then(|| Text::from("lease_expired"))
            }
            _ => is_rpc.then(|| effect.error.clone()),
        };
        Ok(last_error.map(|last_error| Reply::Store(StoreReply::Retryable { attempt, status, last_error })))
    }

    /// Issues a grant: from now on only its token is valid.
    fn grant(&mut self, at: usize, owner: &OwnerName, token: LeaseToken, lease_until: Timestamp) -> Reply {
        let effect = &mut self.effects[at];
        effect.status = EffectStatus::InProgress;
        effect.finished = false;
        (effect.result, effect.result_lost) = (None, false);
        effect.attempt += 1;
        (effect.token, effect.owner) = (Some(token), Some(owner.clone()));
        self.set_lease(at, lease_until);
        self.effects[at].runs = self.runs_from_now(lease_until.since(self.now), BegunBy::Delivery);
        execute(self.effects[at].attempt, token, lease_until, true)
    }

    pub(super) fn set_lease(&mut self, at: usize, until: Timestamp) {
        let effect = &mut self.effects[at];
        effect.lease_until = until;
        effect.updated_at = self.now;
        effect.expires_at = expiry(effect.lifetime, until);
        let namespace = effect.namespace();
        self.plan_sweep(SweepKind::Effects(namespace));
    }

    fn delivery_state(&self, identity: &Identity, delivery: &DeliveryClaim) -> Result<DeliveryState, Refusal> {
        let Scope::Consume { topic, group } = &identity.scope else {
            return Err(Refusal::Invalid("a delivery goes with a consume scope"));
        };
        let t = self.topic(topic)?;
        let TokenClaim::Shown(token) = delivery.token else { return Ok(DeliveryState::Stale) };
        let mut messages = self.topics[t].messages.iter();
        let message =
            messages.find(|message| (message.partition, message.offset) == (delivery.partition, delivery.offset));
        if message
            .is_some_and(|message| tenant(message.content.metadata.envelope.tenant_id.as_deref()) != identity.tenant())
        {
            return Err(Refusal::Invalid("the delivered message is of another tenant"));
        }
        match self.delivered((topic, group), (delivery.partition, delivery.offset), delivery.token) {
            Ok(Some(_)) => Ok(DeliveryState::Newest { message: (delivery.partition, delivery.offset), token }),
            Ok(None) | Err(Refusal::StaleLease) => Ok(DeliveryState::Stale),
            Err(refusal) => Err(refusal),
        }
    }

    /// A page of the effects that are selected: scopes of their own first, then those of groups, by name; each by key.
    fn list(&self, list: &ListEffects) -> ExpectedReply {
        let order = |identity: &Identity| (namespace(identity), identity.packed().clone());
        let after = list.after.as_ref().map(order);
        let is_looked_at = |effect: &&Effect| {
            let is_of_group = effect.identity.scope.kind() == ScopeKind::Consume;
            let has_kind = list.kind.is_none_or(|kind| is_of_group == (kind == ScopeKind::Consume));
            has_kind && after.as_ref().is_none_or(|after| order(&effect.identity) > *after)
        };
        let is_selected = |effect: &Effect| {
            self.effect(&effect.identity).is_some()
                && list.tenant.as_deref().is_none_or(|tenant| tenant == effect.identity.tenant())
                && list.kind.is_none_or(|kind| kind == effect.identity.scope.kind())
                && list.status.is_none_or(|status| status == effect.status)
                && effect.updated_at.after(list.older_than) <= self.now
        };
        let mut effects: Vec<&Effect> = self.effects.iter().filter(is_looked_at).collect();
        effects.sort_by_key(|effect| order(&effect.identity));
        let work = &self.limits.work;
        let (mut page, mut bytes) = (Vec::new(), 0);
        for (nth, effect) in effects.into_iter().enumerate() {
            if is_selected(effect) {
                bytes += effect.result.as_ref().map_or(0, |result| result.len()) + effect.error.len();
                page.push(effect.clone());
            }
            let is_full = page.len() == list.limit.clamp(1, work.effects_per_page) || bytes > work.bytes_per_page;
            if is_full || nth + 1 == work.effects_seen_per_page {
                return ExpectedReply::Effects { page, next: Some(effect.identity.clone()) };
            }
        }
        ExpectedReply::Effects { page, next: None }
    }

    fn end(&mut self, finish: &Finish) -> Result<Reply, Stop> {
        let Finish { identity, token, outcome, dead_letter } = finish;
        self.check_identity(identity)?;
        if outcome.status == EffectStatus::InProgress {
            let what = "an effect ends as SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE";
            return Err(Refusal::Invalid(what).into());
        }
        self.check_result(outcome.result.as_deref())?;
        self.check_error(&outcome.last_error)?;
        if dead_letter.is_some() && outcome.status != EffectStatus::FailedFinal {
            let what = "only an effect that ends as FAILED_FINAL dead-letters its message";
            return Err(Refusal::Invalid(what).into());
        }
        let at = self.known(identity)?;
        let effect = &self.effects[at];
        self.check_token(effect, *token)?;
        let only_acked = effect.committed && !effect.finished;
        let may_record =
            effect.status == EffectStatus::InProgress || only_acked && outcome.status == EffectStatus::Succeeded;
        let is_repeated = !may_record && !only_acked && effect.outcome() == *outcome;
        if !may_record && !is_repeated {
            return Err(Refusal::OtherOutcome.into());
        }
        if let Some(delivery) = dead_letter {
            return self.end_and_dead_letter(at, outcome, delivery, is_repeated);
        }
        if may_record {
            self.record(SpaceClass::Churn)?;
            self.record_outcome(at, outcome);
        }
        Ok(Reply::Success)
    }

    /// One record ends the effect, unless it has ended so before, and dead-letters the message of the delivery.
    fn end_and_dead_letter(
        &mut self,
        at: usize,
        outcome: &Outcome,
        delivery: &DeliveryClaim,
        is_repeated: bool,
    ) -> Result<Reply, Stop> {
        let identity = self.effects[at].identity.clone();
        let state = self.delivery_state(&identity, delivery)?;
        let Scope::Consume { topic, group } = &identity.scope else {
            return Err(Refusal::Invalid("a delivery goes with a consume scope").into());
        };
        let message = (delivery.partition, delivery.offset);
        let found = self.delivered((topic, group), message, TokenClaim::Absent);
        let (t, g, m) = match (state, found) {
            (DeliveryState::Newest { .. }, Ok(Some(index))) => index,
            // Acked or dead-lettered by now.
            (DeliveryState::Stale, Ok(None)) if is_repeated => return Ok(Reply::Success),
            _ => return Err(Refusal::StaleLease.into()),
        };
        self.check_dead_letter_source((t, g, m))?;
        let known = self.attempted_mut((t, g, m)).error.clone();
        let error = if outcome.last_error.is_empty() { known.as_str() } else { &outcome.last_error };
        self.record(SpaceClass::Drain)?;
        if !is_repeated {
            self.record_outcome(at, outcome);
        }
        self.answered_by_stream((t, g, m), true);
        self.store_dead_letter((t, g, m), DeadReason::NonRetryable, error);
        Ok(Reply::Success)
    }

    /// A step that failed for good ends the effect of its message, unless that has failed before.
    pub(super) fn fail_effect(&mut self, index: MessageIndex, result: Option<&Arc<str>>, error: &str) {
        let Some(identity) = self.identity_of(index) else { return };
        let at = self.effect(&identity).unwrap_or_else(|| {
            self.effects.retain(|effect| effect.identity != identity);
            self.effects.push(Effect::new(identity, Lifetime::Window(self.limits.effect_ttl), self.now));
            self.effects.len() - 1
        });
        let effect = &self.effects[at];
        if !(effect.finished && effect.status == EffectStatus::FailedFinal) {
            let (status, result) = (EffectStatus::FailedFinal, result.cloned());
            self.record_outcome(at, &Outcome { status, response_code: 0, result, last_error: error.into() });
        }
    }

    pub(super) fn check_error(&self, error: &str) -> Result<(), Refusal> {
        let (len, max) = (error.len() as u64, self.limits.error_text_bytes_max as u64);
        if len > max { Err(Refusal::TooLarge { what: "last_error", len, max }) } else { Ok(()) }
    }

    fn record_outcome(&mut self, at: usize, outcome: &Outcome) {
        let (now, lsn) = (self.now, Lsn(self.records));
        let effect = &mut self.effects[at];
        effect.end(outcome, now, lsn);
        effect.updated_at = now;
        let namespace = effect.namespace();
        self.plan_sweep(SweepKind::Effects(namespace));
    }

    fn reacquire(
        &mut self,
        identity: &Identity,
        owner: &OwnerName,
        lease: Option<Millis>,
        token: LeaseToken,
    ) -> Result<Reply, Stop> {
        self.check_identity(identity)?;
        let at = self.known(identity)?;
        let effect = &self.effects[at];
        if effect.is_final() || effect.is_leased(self.now) {
            return Err(Refusal::NotRetryable { status: effect.status }.into());
        }
        self.record(SpaceClass::Churn)?;
        Ok(self.grant(at, owner, token, self.now.after(self.lease(lease))))
    }

    fn renew(&mut self, identity: &Identity, token: TokenClaim, lease: Option<Millis>) -> Result<Reply, Stop> {
        self.check_identity(identity)?;
        let at = self.effect(identity).ok_or(Refusal::StaleLease)?;
        self.check_token(&self.effects[at], token)?;
        if !self.effects[at].is_leased(self.now) {
            return Err(Refusal::StaleLease.into());
        }
        self.record(SpaceClass::Churn)?;
        let lease_until = self.now.after(self.lease(lease));
        self.set_lease(at, lease_until);
        self.effects[at].runs = self.runs_from_now(lease_until.since(self.now), BegunBy::Extension);
        Ok(Reply::Store(StoreReply::Renewed { lease_until }))
    }

    fn check_token(&self, effect: &Effect, shown: TokenClaim) -> Result<(), Refusal> {
        match shown {
            TokenClaim::Shown(token) if effect.token == Some(token) => Ok(()),
            _ => Err(Refusal::StaleLease),
        }
    }

    pub(super) fn check_result(&self, result: Option<&str>) -> Result<(), Refusal> {
        let (len, max) = (result.map_or(0, str::len) as u64, self.limits.result_bytes_max as u64);
        if len > max { Err(Refusal::TooLarge { what: "result", len, max }) } else { Ok(()) }
    }

    /// The identity of the effect of a group's work on a message, if the message has an identity.
    pub(super) fn identity_of(&self, (t, g, m): MessageIndex) -> Option<Identity> {
        let topic = &self.topics[t];
        let envelope = &topic.messages[m].content.metadata.envelope;
        let key = envelope.idempotency_key.as_deref().filter(|key| !key.is_empty())?;
        let scope = Scope::Consume { topic: topic.name.clone(), group: topic.groups[g].name.clone() };
        Some(Identity::new(tenant(envelope.tenant_id.as_deref()), scope, key))
    }

    /// Whether the group has acked a message of the same identity that was produced to the same topic.
    pub(super) fn is_done(&self, (t, g, m): MessageIndex) -> bool {
        let (asked, _) = Self::asked(&self.topics[t].name, &self.topics[t].messages[m]);
        let known = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        known.is_some_and(|at| self.effects[at].done_for.contains(&asked))
    }

    /// An unacked message is requeued: its effect is kept until the message is acked.
    pub(super) fn pin(&mut self, (t, g, m): MessageIndex) {
        let message = &self.topics[t].messages[m];
        let message = (message.partition, message.offset);
        let known = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        let Some(at) = known.filter(|at| !self.is_pending(&self.effects[*at])) else { return };
        (self.effects[at].message, self.effects[at].sweep_at) = (Some(message), Timestamp(0));
        self.plan_sweep(SweepKind::Effects(self.effects[at].namespace()));
    }

    /// A message was dead-lettered: its effect is no longer kept for it.
    pub(super) fn unpin(&mut self, (t, g, m): MessageIndex) {
        let Some(identity) = self.identity_of((t, g, m)) else { return };
        let message = &self.topics[t].messages[m];
        let message = Some((message.partition, message.offset));
        let mut effects = self.effects.iter_mut();
        let Some(effect) = effects.find(|effect| effect.identity == identity && effect.message == message) else {
            return;
        };
        effect.sweep_at = Timestamp(0);
        let namespace = effect.namespace();
        self.plan_sweep(SweepKind::Effects(namespace));
    }

    /// An ack ends the effect of its message. It is remembered as long as a produce of the message is a duplicate.
    pub(super) fn commit(&mut self, index: MessageIndex) {
        let Some(identity) = self.identity_of(index) else { return };
        let until = self.duplicate_until(index, &identity);
        if self.effect(&identity).is_none() && until == self.now {
            self.effects.retain(|effect| effect.identity != identity);
            return;
        }
        let Some(at) = self.commit_record(index, until) else { return };
        let effect = &mut self.effects[at];
        if !effect.is_final() {
            effect.status = EffectStatus::Succeeded;
            effect.finished = false;
            (effect.code, effect.result, effect.error) = (0, None, "".into());
            // A worker that holds a grant may still finish it.
            effect.expires_at = until.max(effect.lease_until);
        }
        let namespace = effect.namespace();
        self.plan_sweep(SweepKind::Effects(namespace));
    }

    /// Until when a produce of the message is a duplicate; now, if it is none.
    fn duplicate_until(&self, (t, _, m): MessageIndex, identity: &Identity) -> Timestamp {
        let asked = Self::asked(&self.topics[t].name, &self.topics[t].messages[m]);
        let scope = self.scopes.iter().find(|scope| scope.asked == asked);
        let known = scope.map_or(&[][..], |scope| &scope.identities);
        let same = known.iter().find(|known| *known.tenant == *identity.tenant() && *known.key == *identity.key());
        same.map_or(self.now, |known| known.expires_at.max(self.now))
    }

    /// A completed step ends the effect of its message, with a result.
    pub(super) fn complete_effect(&mut self, index: MessageIndex, result: Option<&Arc<str>>) {
        let Some(at) = self.commit_record(index, self.now.after(self.limits.effect_ttl)) else { return };
        let succeeded = Outcome {
            status: EffectStatus::Succeeded,
            response_code: 0,
            result: result.cloned(),
            last_error: "".into(),
        };
        let effect = &mut self.effects[at];
        if !(effect.finished && effect.is_final()) {
            if effect.token.is_none() {
                effect.lifetime = Lifetime::Window(self.limits.effect_ttl);
            }
            self.record_outcome(at, &succeeded);
        } else {
            let namespace = effect.namespace();
            self.plan_sweep(SweepKind::Effects(namespace));
        }
    }

    /// The effect of a message that is acked now, created if there is none.
    fn commit_record(&mut self, index: MessageIndex, until: Timestamp) -> Option<usize> {
        let identity = self.identity_of(index)?;
        let (asked, _) = Self::asked(&self.topics[index.0].name, &self.topics[index.0].messages[index.2]);
        let at = self.effect(&identity).unwrap_or_else(|| {
            self.effects.retain(|effect| effect.identity != identity);
            self.effects.push(Effect::new(identity, Lifetime::Window(until.since(self.now)), self.now));
            self.effects.len() - 1
        });
        let effect = &mut self.effects[at];
        let only_acked = effect.committed && !effect.finished;
        if !effect.done_for.contains(&asked) {
            effect.done_for.push(asked);
            let len = effect.done_for.len();
            effect.done_for.drain(..len.saturating_sub(DONE_FOR_MAX));
        }
        effect.committed = true;
        effect.updated_at = self.now;
        effect.sweep_at = Timestamp(0);
        if only_acked || effect.expires_at <= self.now {
            // No worker's end keeps it, or only its message has kept it so far.
            effect.expires_at = effect.expires_at.max(until);
        }
        Some(at)
    }

    /// Removes the effects of a deleted topic or group.
    pub(super) fn forget_effects(&mut self, of_topic: &TopicName, of_group: Option<&GroupName>) {
        self.effects.retain(|effect| match &effect.identity.scope {
            Scope::Consume { topic, group } => topic != of_topic || of_group.is_some_and(|of| of != group),
            _ => true,
        });
    }

    /// When the next sweep of a namespace is due.
    pub(super) fn next_sweep(&self, of: &EffectNamespace) -> Option<Timestamp> {
        let effects = self.effects.iter().filter(|effect| effect.namespace() == *of);
        effects.map(|effect| effect.sweep_at.max(effect.expires_at)).min()
    }

    /// Effects past their window expire, except those whose message is unacked.
    pub(super) fn sweep_effects(&mut self, of: &EffectNamespace) -> Result<usize, Unwritten> {
        let check_at = |at: &usize| self.effects[*at].sweep_at.max(self.effects[*at].expires_at);
        let is_due = |at: &usize| self.effects[*at].namespace() == *of && check_at(at) <= self.now;
        let mut due: Vec<_> = (0..self.effects.len()).filter(is_due).collect();
        due.sort_by_key(check_at);
        due.truncate(self.per_record());
        if due.is_empty() {
            return Ok(0);
        }
        self.record(SpaceClass::Drain)?;
        let checked = due.len();
        due.sort();
        for at in due.into_iter().rev() {
            if self.is_pending(&self.effects[at]) {
                self.effects[at].sweep_at = self.now.after(RESWEEP_INTERVAL);
            } else {
                self.effects.remove(at);
            }
        }
        Ok(checked)
    }
}

fn execute(attempt: u32, token: LeaseToken, lease_until: Timestamp, idempotent: bool) -> Reply {
    Reply::Store(StoreReply::Execute { attempt, token, lease_until, idempotent })
}

fn tenant(tenant_id: Option<&str>) -> &str {
    tenant_id.filter(|tenant| !tenant.is_empty()).unwrap_or("default")
}
