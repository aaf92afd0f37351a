//! Effects: who may run one, how it ended, and how long that is remembered.

use std::sync::Arc;

use driftq_core::command::{Begin, DeliveryClaim, OnExpired, StoreCommand, TokenClaim};
use driftq_core::idempotency::{Effect as Found, EffectStatus, Identity, Lifetime, Outcome, Realm, Scope};
use driftq_core::reply::{Overload, StoreReply};
use driftq_core::types::{GroupName, LeaseToken, Millis, Offset, OwnerName, PartitionId, Text, Timestamp, TopicName};
use driftq_core::{Refusal, Reply};

use super::expected::Answer;
use super::model::{EndOfLog, Model, Stop};
use super::settle::Place;
use super::timers::Swept;
use super::topic::Progress;

/// An effect past its window whose message can still come is looked at again after this.
const TEN_MINUTES: Millis = Millis(600_000);

/// What is known about one effect.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    identity: Identity,
    pub(super) status: EffectStatus,
    /// Its message is done, so others of the identity need no delivery.
    committed: bool,
    /// A worker said how it ended.
    finished: bool,
    attempt: u32,
    token: Option<LeaseToken>,
    lease_until: Timestamp,
    owner: Option<OwnerName>,
    hash: Option<Text>,
    code: i64,
    result: Option<Arc<str>>,
    error: Text,
    lifetime: Lifetime,
    updated_at: Timestamp,
    expires_at: Timestamp,
    /// The message behind it.
    message: Option<(PartitionId, Offset)>,
    /// Not to be looked at before.
    look_at: Timestamp,
}

/// What stands behind a question on behalf of a delivery.
#[derive(Clone, Copy)]
enum Behind {
    Newest { message: (PartitionId, Offset), token: LeaseToken },
    Gone,
}

impl Effect {
    pub(super) fn realm(&self) -> Realm {
        realm(&self.identity)
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            status: self.status,
            response_code: self.code,
            result: self.result.clone(),
            last_error: self.error.clone(),
        }
    }

    fn is_leased(&self, now: Timestamp) -> bool {
        self.status == EffectStatus::InProgress && now < self.lease_until
    }

    fn is_over(&self) -> bool {
        matches!(self.status, EffectStatus::Succeeded | EffectStatus::FailedFinal)
    }

    fn end(&mut self, outcome: &Outcome, now: Timestamp) {
        self.status = outcome.status;
        (self.code, self.result, self.error) =
            (outcome.response_code, outcome.result.clone(), outcome.last_error.clone());
        self.finished = true;
        self.expires_at = after(self.lifetime, now);
    }

    /// Whether this is what the broker says it knows.
    pub(super) fn is(&self, found: &Found) -> bool {
        (self.status, self.committed, self.finished) == (found.status, found.committed, found.finished)
            && (self.attempt, self.token, self.lease_until) == (found.attempt, found.token, found.lease_until)
            && self.owner == found.owner
            && self.hash.as_deref() == found.request_hash()
            && self.outcome() == found.outcome()
            && self.lifetime == found.lifetime()
            && (self.updated_at, self.expires_at) == (found.updated_at, found.expires_at)
            && self.message.map(|(partition, _)| partition) == found.pin.as_ref().map(|pin| pin.partition)
            && found.pin.as_ref().is_none_or(|pin| pin.look_at == self.look_at)
    }
}

impl Model {
    pub(super) fn ask_store(&mut self, asked: &StoreCommand) -> Result<Answer, Stop> {
        let token = self.new_token();
        let reply = match asked {
            StoreCommand::Begin(begin) => self.begin(begin, token)?,
            StoreCommand::Finish { identity, token, outcome } => self.end(identity, *token, outcome)?,
            StoreCommand::Reacquire { identity, owner, lease } => self.reacquire(identity, owner, *lease, token)?,
            StoreCommand::Renew { identity, token, lease } => self.renew(identity, *token, *lease)?,
            StoreCommand::Get { identity } => {
                let at = self.known(identity)?;
                return Ok(Answer::Effect(Box::new(self.effects[at].clone())));
            }
            StoreCommand::Forget { identity } => {
                let at = self.known(identity)?;
                self.record()?;
                self.effects.remove(at);
                Reply::Done
            }
        };
        Ok(Answer::Plain(reply))
    }

    /// The effect of an identity that is in its window, or whose message can still come.
    pub(super) fn effect(&self, identity: &Identity) -> Option<usize> {
        let at = self.effects.iter().position(|effect| effect.identity == *identity)?;
        let effect = &self.effects[at];
        (self.now < effect.expires_at || self.can_come(effect)).then_some(at)
    }

    fn known(&self, identity: &Identity) -> Result<usize, Refusal> {
        self.effect(identity).ok_or(Refusal::UnknownEffect)
    }

    /// Whether the message behind an effect is still to be done.
    fn can_come(&self, effect: &Effect) -> bool {
        let (Some((_, offset)), Scope::Consume { topic, group }) = (effect.message, &effect.identity.scope) else {
            return false;
        };
        let Ok((t, g)) = self.group(topic, group) else { return false };
        let message = self.topics[t].message(offset);
        message.is_some_and(|m| !matches!(self.topics[t].groups[g].progress[m], Progress::Done))
    }

    fn begin(&mut self, asked: &Begin, token: LeaseToken) -> Result<Reply, Stop> {
        let identity = &asked.identity;
        check_scope(identity)?;
        if matches!(asked.lifetime, Some(Lifetime::Until(moment)) if moment <= self.now) {
            return Err(Refusal::Invalid("expires_at has passed").into());
        }
        let lease_until = self.now.after(self.lease(asked.lease));
        if identity.key().is_empty() {
            return Ok(execute(1, token, lease_until, false));
        }
        let behind = match &asked.delivery {
            Some(delivery) => Some(self.behind(identity, delivery)?),
            None => None,
        };
        let known = self.effect(identity);
        if let Some(effect) = known.map(|at| &self.effects[at]) {
            if matches!((&effect.hash, &asked.request_hash), (Some(first), Some(now)) if first != now) {
                return Err(Refusal::HashMismatch.into());
            }
            if effect.is_over() {
                return Ok(Reply::Store(StoreReply::Replay(effect.outcome())));
            }
        }
        if let Some(Behind::Gone) = behind {
            return Err(Refusal::StaleLease.into());
        }
        match known.map(|at| &self.effects[at]) {
            Some(effect) => {
                if let Some(reply) = self.kept_back(effect, asked, behind)? {
                    return Ok(reply);
                }
            }
            None => {
                let tenants = self.effects.iter().filter(|effect| effect.identity.tenant() == identity.tenant());
                if tenants.count() as u64 >= self.limits.effects_max {
                    return Err(self.overloaded(Overload::Effects).into());
                }
            }
        }
        let message = if let Some(Behind::Newest { message, .. }) = behind { Some(message) } else { None };
        let default = Lifetime::Window(match identity.scope {
            Scope::Job { .. } | Scope::Task { .. } => self.limits.job_ttl,
            _ => self.limits.effect_ttl,
        });
        self.record()?;
        let at = known.unwrap_or_else(|| {
            // What is past its window gives way.
            self.effects.retain(|effect| effect.identity != *identity);
            self.effects.push(Effect::new(identity.clone(), asked.lifetime.unwrap_or(default), self.now));
            self.effects.len() - 1
        });
        let effect = &mut self.effects[at];
        if known.is_none() {
            effect.hash = asked.request_hash.clone();
        }
        effect.lifetime = asked.lifetime.unwrap_or(effect.lifetime);
        if message.is_some() {
            (effect.message, effect.look_at) = (message, Timestamp(0));
        }
        Ok(self.grant(at, &asked.owner, token, lease_until))
    }

    /// Why an effect that has not ended for good may not be run, if so.
    fn kept_back(&self, effect: &Effect, asked: &Begin, behind: Option<Behind>) -> Result<Option<Reply>, Refusal> {
        let is_rpc = matches!(asked.identity.scope, Scope::Rpc { .. });
        if effect.is_leased(self.now) {
            // Whoever was handed the message later has taken the work away from whoever was granted it.
            return match behind {
                Some(Behind::Newest { token, .. }) if effect.token.is_none_or(|granted| token > granted) => Ok(None),
                _ => Err(Refusal::InProgress { retry_after: effect.lease_until.since(self.now) }),
            };
        }
        let (attempt, status) = (effect.attempt, effect.status);
        let last_error = match status {
            EffectStatus::InProgress => {
                let default = if is_rpc { OnExpired::Report } else { OnExpired::TakeOver };
                (asked.on_expired.unwrap_or(default) == OnExpired::Report).then(|| Text::from("lease_expired"))
            }
            _ => is_rpc.then(|| effect.error.clone()),
        };
        Ok(last_error.map(|last_error| Reply::Store(StoreReply::Retryable { attempt, status, last_error })))
    }

    /// The newest grant of an effect: from now on only its token counts.
    fn grant(&mut self, at: usize, owner: &OwnerName, token: LeaseToken, lease_until: Timestamp) -> Reply {
        let effect = &mut self.effects[at];
        effect.status = EffectStatus::InProgress;
        effect.finished = false;
        effect.result = None;
        effect.attempt += 1;
        (effect.token, effect.owner) = (Some(token), Some(owner.clone()));
        self.leased(at, lease_until);
        execute(self.effects[at].attempt, token, lease_until, true)
    }

    fn leased(&mut self, at: usize, until: Timestamp) {
        let effect = &mut self.effects[at];
        effect.lease_until = until;
        effect.updated_at = self.now;
        effect.expires_at = after(effect.lifetime, until);
        let realm = effect.realm();
        self.plan_sweep(Swept::Effects(realm));
    }

    fn behind(&self, identity: &Identity, delivery: &DeliveryClaim) -> Result<Behind, Refusal> {
        let Scope::Consume { topic, group } = &identity.scope else {
            return Err(Refusal::Invalid("a delivery goes with a consume scope"));
        };
        let t = self.topic(topic)?;
        let TokenClaim::Shown(token) = delivery.token else { return Ok(Behind::Gone) };
        let mut messages = self.topics[t].messages.iter();
        let message =
            messages.find(|message| (message.partition, message.offset) == (delivery.partition, delivery.offset));
        if message
            .is_some_and(|message| tenant(message.content.metadata.envelope.tenant_id.as_deref()) != identity.tenant())
        {
            return Err(Refusal::Invalid("the delivered message is of another tenant"));
        }
        match self.delivered((topic, group), (delivery.partition, delivery.offset), delivery.token) {
            Ok(Some(_)) => Ok(Behind::Newest { message: (delivery.partition, delivery.offset), token }),
            Ok(None) | Err(Refusal::StaleLease) => Ok(Behind::Gone),
            Err(refusal) => Err(refusal),
        }
    }

    fn end(&mut self, identity: &Identity, token: TokenClaim, outcome: &Outcome) -> Result<Reply, Stop> {
        check_scope(identity)?;
        if outcome.status == EffectStatus::InProgress {
            let what = "an effect ends as SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE";
            return Err(Refusal::Invalid(what).into());
        }
        self.check_result(outcome.result.as_deref())?;
        let at = self.known(identity)?;
        let effect = &self.effects[at];
        self.check_token(effect, token)?;
        let only_acked = effect.committed && !effect.finished;
        let open = effect.status == EffectStatus::InProgress || only_acked && outcome.status == EffectStatus::Succeeded;
        if !open {
            let same = !only_acked && effect.outcome() == *outcome;
            return if same { Ok(Reply::Done) } else { Err(Refusal::OtherOutcome.into()) };
        }
        self.record()?;
        self.ended(at, outcome);
        Ok(Reply::Done)
    }

    fn ended(&mut self, at: usize, outcome: &Outcome) {
        let now = self.now;
        let effect = &mut self.effects[at];
        effect.end(outcome, now);
        effect.updated_at = now;
        let realm = effect.realm();
        self.plan_sweep(Swept::Effects(realm));
    }

    fn reacquire(
        &mut self,
        identity: &Identity,
        owner: &OwnerName,
        lease: Option<Millis>,
        token: LeaseToken,
    ) -> Result<Reply, Stop> {
        check_scope(identity)?;
        let at = self.known(identity)?;
        let effect = &self.effects[at];
        if effect.is_over() || effect.is_leased(self.now) {
            return Err(Refusal::NotRetryable { status: effect.status }.into());
        }
        self.record()?;
        Ok(self.grant(at, owner, token, self.now.after(self.lease(lease))))
    }

    fn renew(&mut self, identity: &Identity, token: TokenClaim, lease: Option<Millis>) -> Result<Reply, Stop> {
        check_scope(identity)?;
        let at = self.effect(identity).ok_or(Refusal::StaleLease)?;
        self.check_token(&self.effects[at], token)?;
        if !self.effects[at].is_leased(self.now) {
            return Err(Refusal::StaleLease.into());
        }
        self.record()?;
        let lease_until = self.now.after(self.lease(lease));
        self.leased(at, lease_until);
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

    /// The effect of a group's work on a message, where the message has an identity.
    pub(super) fn identity_of(&self, (t, g, m): Place) -> Option<Identity> {
        let topic = &self.topics[t];
        let envelope = &topic.messages[m].content.metadata.envelope;
        let key = envelope.idempotency_key.as_deref().filter(|key| !key.is_empty())?;
        let scope = Scope::Consume { topic: topic.name.clone(), group: topic.groups[g].name.clone() };
        Some(Identity::new(tenant(envelope.tenant_id.as_deref()), scope, key))
    }

    /// Whether the group is done with another message of the same identity, and no seek wants it again. Every dead letter is seen.
    pub(super) fn is_done_already(&self, t: usize, g: usize, m: usize) -> bool {
        let topic = &self.topics[t];
        if topic.messages[m].offset < topic.groups[g].replayed_below || topic.is_dead_letters() {
            return false;
        }
        let known = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        known.is_some_and(|at| self.effects[at].committed)
    }

    /// A message that is not done goes back: its effect, as long as there is one, is not forgotten before it is.
    pub(super) fn pin(&mut self, (t, g, m): Place) {
        let message = &self.topics[t].messages[m];
        let message = (message.partition, message.offset);
        let known = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        let Some(at) = known.filter(|at| !self.can_come(&self.effects[*at])) else { return };
        (self.effects[at].message, self.effects[at].look_at) = (Some(message), Timestamp(0));
        self.plan_sweep(Swept::Effects(self.effects[at].realm()));
    }

    /// A message has died: its effect is not kept for its sake any more.
    pub(super) fn unpin(&mut self, (t, g, m): Place) {
        let Some(identity) = self.identity_of((t, g, m)) else { return };
        let message = &self.topics[t].messages[m];
        let message = Some((message.partition, message.offset));
        let mut effects = self.effects.iter_mut();
        let Some(effect) = effects.find(|effect| effect.identity == identity && effect.message == message) else {
            return;
        };
        effect.look_at = Timestamp(0);
        let realm = effect.realm();
        self.plan_sweep(Swept::Effects(realm));
    }

    /// An ack says that whatever the message was to bring about is done.
    pub(super) fn commit(&mut self, place: Place) {
        let Some(at) = self.settled(place, self.limits.ack_ttl) else { return };
        let window = self.limits.ack_ttl;
        let effect = &mut self.effects[at];
        if !effect.is_over() {
            effect.status = EffectStatus::Succeeded;
            effect.finished = false;
            (effect.code, effect.result, effect.error) = (0, None, "".into());
            effect.expires_at = self.now.after(window);
        }
        let realm = effect.realm();
        self.plan_sweep(Swept::Effects(realm));
    }

    /// A completed step says the same, and with what result.
    pub(super) fn conclude(&mut self, place: Place, result: Option<&Arc<str>>) {
        let Some(at) = self.settled(place, self.limits.effect_ttl) else { return };
        let succeeded = Outcome {
            status: EffectStatus::Succeeded,
            response_code: 0,
            result: result.cloned(),
            last_error: "".into(),
        };
        let effect = &mut self.effects[at];
        if !(effect.finished && effect.is_over()) {
            if effect.token.is_none() {
                effect.lifetime = Lifetime::Window(self.limits.effect_ttl);
            }
            self.ended(at, &succeeded);
        } else {
            let realm = effect.realm();
            self.plan_sweep(Swept::Effects(realm));
        }
    }

    /// The effect of a message that is done now, made where there is none.
    fn settled(&mut self, place: Place, window: Millis) -> Option<usize> {
        let identity = self.identity_of(place)?;
        let at = self.effect(&identity).unwrap_or_else(|| {
            self.effects.retain(|effect| effect.identity != identity);
            self.effects.push(Effect::new(identity, Lifetime::Window(window), self.now));
            self.effects.len() - 1
        });
        let effect = &mut self.effects[at];
        effect.committed = true;
        effect.updated_at = self.now;
        effect.look_at = Timestamp(0);
        if effect.expires_at <= self.now {
            // Only its message has kept it so far.
            effect.expires_at = self.now.after(window);
        }
        Some(at)
    }

    /// Deleted topics and groups take the effects of their messages with them.
    pub(super) fn forget_effects(&mut self, of_topic: &TopicName, of_group: Option<&GroupName>) {
        self.effects.retain(|effect| match &effect.identity.scope {
            Scope::Consume { topic, group } => topic != of_topic || of_group.is_some_and(|of| of != group),
            _ => true,
        });
    }

    /// When the first of a realm's effects is to be looked at.
    pub(super) fn first_look(&self, of: &Realm) -> Option<Timestamp> {
        let effects = self.effects.iter().filter(|effect| effect.realm() == *of);
        effects.map(|effect| effect.look_at.max(effect.expires_at)).min()
    }

    /// Effects past their window are forgotten, but for those whose message can still come.
    pub(super) fn sweep_effects(&mut self, of: &Realm) -> Result<(), EndOfLog> {
        if self.first_look(of).is_none_or(|first| first > self.now) {
            return Ok(());
        }
        self.record()?;
        let due = |effect: &Effect, now| effect.realm() == *of && effect.look_at.max(effect.expires_at) <= now;
        for at in (0..self.effects.len()).rev().filter(|at| due(&self.effects[*at], self.now)).collect::<Vec<_>>() {
            if self.can_come(&self.effects[at]) {
                self.effects[at].look_at = self.now.after(TEN_MINUTES);
            } else {
                self.effects.remove(at);
            }
        }
        Ok(())
    }
}

impl Effect {
    /// One that nobody has run, and that will not be known without more.
    fn new(identity: Identity, lifetime: Lifetime, now: Timestamp) -> Self {
        Self {
            identity,
            status: EffectStatus::InProgress,
            committed: false,
            finished: false,
            attempt: 0,
            token: None,
            lease_until: now,
            owner: None,
            hash: None,
            code: 0,
            result: None,
            error: "".into(),
            lifetime,
            updated_at: now,
            expires_at: now,
            message: None,
            look_at: Timestamp(0),
        }
    }
}

fn execute(attempt: u32, token: LeaseToken, lease_until: Timestamp, idempotent: bool) -> Reply {
    Reply::Store(StoreReply::Execute { attempt, token, lease_until, idempotent })
}

fn tenant(named: Option<&str>) -> &str {
    named.filter(|tenant| !tenant.is_empty()).unwrap_or("default")
}

fn realm(identity: &Identity) -> Realm {
    match &identity.scope {
        Scope::Consume { topic, group } => Realm::Group(topic.clone(), group.clone()),
        _ => Realm::Shared,
    }
}

/// When an effect that ended at `end` is forgotten.
fn after(lifetime: Lifetime, end: Timestamp) -> Timestamp {
    match lifetime {
        Lifetime::Window(window) => end.after(window),
        Lifetime::Until(moment) => moment.max(end),
    }
}

fn check_scope(identity: &Identity) -> Result<(), Refusal> {
    let empty = match &identity.scope {
        Scope::Consume { .. } | Scope::Tenant => false,
        Scope::Job { id } | Scope::Task { id } => id.is_empty(),
        Scope::Rpc { principal, method } => principal.is_empty() || method.is_empty(),
    };
    if empty { Err(Refusal::Invalid("a scope's id, principal and method must not be empty")) } else { Ok(()) }
}
