//! Applies records to effects.

mod list;
mod results;
pub(super) mod store;
pub(super) mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Contradiction, Group, State, Topic};
use crate::collections::id_map::IdMap;
use crate::record::{EffectBegun, EffectConclusion, EffectDeadLettered};
use crate::types::effect::COMMITTED_TOPICS_MAX;
use crate::types::{
    Body, Effect, EffectNamespace, EffectStatus, GroupName, Identity, IdentityKey, Lsn, MessageRef, Millis, Outcome,
    PartitionId, Pin, Position, Scope, StoredResult, Text, Timestamp, TopicId, TopicName,
};

/// When an expired but pinned effect is checked again.
const RECHECK_INTERVAL: Millis = Millis(10 * 60 * 1_000);

const NO_EFFECT: Contradiction = Contradiction("no such effect");

/// The unacked messages that pin effects. Borrows parts of the state, so that the store can be changed meanwhile.
struct Pins<'a> {
    names: &'a BTreeMap<TopicName, TopicId>,
    topics: &'a IdMap<TopicId, Arc<Topic>>,
}

impl Pins<'_> {
    fn is_pinned_in(&self, scope: &Scope, effect: &Effect) -> bool {
        match scope {
            Scope::Consume { topic, group } => self.is_pinned(topic, group, effect),
            _ => false,
        }
    }

    /// Whether the effect has a pin and the group has not acked its message.
    fn is_pinned(&self, topic: &TopicName, group: &GroupName, effect: &Effect) -> bool {
        let Some(pin) = &effect.pin else { return false };
        let topic = self.names.get(topic).and_then(|id| self.topics.get(id));
        let progress = topic.and_then(|topic| topic.group_named(group)).and_then(|group| group.progress(pin.partition));
        progress.is_some_and(|progress| !progress.acked().contains(pin.position))
    }
}

impl State {
    /// The effect of `identity`, unless it has expired at `now`.
    #[must_use]
    pub(crate) fn effect(&self, identity: &Identity, now: Timestamp) -> Option<&Effect> {
        self.store.get(identity).filter(|effect| self.is_valid(&identity.scope, effect, now))
    }

    /// The effect of processing a message with this key in a group, unless it has expired at `now`.
    #[must_use]
    pub(crate) fn effect_of(
        &self,
        topic: &TopicName,
        group: &GroupName,
        key: &IdentityKey,
        now: Timestamp,
    ) -> Option<&Effect> {
        let effect = self.store.of_group(topic, group, key)?;
        (now < effect.expires_at || self.is_pinned(topic, group, effect)).then_some(effect)
    }

    /// Whether the group has acked a message of the same `key` and the same requested topic as `body`. Never for a
    /// message of a dead-letter topic, since one message can be dead-lettered more than once.
    #[must_use]
    pub(crate) fn is_done(
        &self,
        topic: &Topic,
        group: &Group,
        (body, key): (&Body, &IdentityKey),
        now: Timestamp,
    ) -> bool {
        let effect = self.effect_of(topic.name(), group.name(), key, now);
        let requested = || body.produce_scope(topic.name()).topic;
        !topic.name().is_dead_letter()
            && effect.is_some_and(|effect| effect.is_committed_for(&requested(), topic.name()))
    }

    fn is_valid(&self, scope: &Scope, effect: &Effect, now: Timestamp) -> bool {
        now < effect.expires_at || self.is_pinned_in(scope, effect)
    }

    fn is_pinned_in(&self, scope: &Scope, effect: &Effect) -> bool {
        self.pins().is_pinned_in(scope, effect)
    }

    fn is_pinned(&self, topic: &TopicName, group: &GroupName, effect: &Effect) -> bool {
        self.pins().is_pinned(topic, group, effect)
    }

    fn pins(&self) -> Pins<'_> {
        Pins { names: &self.names, topics: &self.topics }
    }

    pub(super) fn effect_begun(&mut self, begun: &EffectBegun, at: Timestamp) -> Result<(), Contradiction> {
        if begun.token.boot != self.boot {
            return Err(Contradiction("lease token of another boot"));
        }
        if begun.identity.bytes().1.is_empty() {
            return Err(Contradiction("effect without a key"));
        }
        if begun.message.is_some_and(|message| !self.has_position(&begun.identity.scope, message)) {
            return Err(Contradiction("effect of a message that was never stored"));
        }
        if let Some(lifetime) = begun.lifetime {
            let owner = self.store.intern_owner(&begun.owner);
            let mut effect = Effect::granted(begun.token, owner, begun.until, at);
            effect.set_lifetime(lifetime);
            if let Some(hash) = &begun.request_hash {
                effect.details.get_or_insert_default().request_hash = Some(hash.clone());
            }
            effect.expires_at = effect.lifetime().after(begun.until);
            effect.pin = begun.message.map(new_pin);
            if self.insert_unless_valid(&begun.identity, effect, at) {
                return Ok(());
            }
        }
        let known = self.effect(&begun.identity, at).ok_or(Contradiction("new effect without a lifetime"))?;
        if known.status.is_final() {
            return Err(Contradiction("grant of an effect with a final outcome"));
        }
        if Some(begun.token) <= known.token {
            return Err(Contradiction("grant with a token that is not newer"));
        }
        let owner = self.store.intern_owner(&begun.owner);
        self.store.change(&begun.identity, |effect| {
            if let Some(lifetime) = begun.lifetime {
                effect.set_lifetime(lifetime);
            }
            effect.status = EffectStatus::InProgress;
            effect.finished = false;
            effect.uncommit();
            effect.attempt = effect.attempt.saturating_add(1);
            effect.token = Some(begun.token);
            effect.owner = Some(owner);
            effect.lease_until = begun.until;
            effect.result = None;
            effect.updated_at = at;
            effect.expires_at = effect.lifetime().after(begun.until);
            if let Some(message) = begun.message {
                effect.pin = Some(new_pin(message));
            }
        });
        Ok(())
    }

    pub(super) fn effect_finished(
        &mut self,
        identity: &Identity,
        outcome: &Outcome,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let payload = self.payload(0);
        let pins = Pins { names: &self.names, topics: &self.topics };
        let finished = self.store.change(identity, |effect| {
            if at >= effect.expires_at && !pins.is_pinned_in(&identity.scope, effect) {
                return Err(NO_EFFECT);
            }
            if !effect.can_finish(outcome.status) || outcome.status == EffectStatus::InProgress {
                return Err(Contradiction("finish of an effect that has ended"));
            }
            effect.finish(outcome, payload, at);
            Ok(())
        });
        finished.unwrap_or(Err(NO_EFFECT))
    }

    /// Finishes an effect of a group's message as failed and dead-letters the message.
    pub(super) fn effect_dead_lettered(
        &mut self,
        failed: &EffectDeadLettered,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let topic = self.topics.get(&failed.message_ref.topic).ok_or(Contradiction("no such topic"))?;
        let group = topic.group(failed.message_ref.group).ok_or(Contradiction("no such group"))?;
        let is_its = |scope: &Scope| matches!(scope, Scope::Consume { topic: of, group: by } if of == topic.name() && by == group.name());
        if !is_its(&failed.identity.scope) || failed.outcome.status != EffectStatus::FailedFinal {
            return Err(Contradiction("dead letter of an effect of another group, or that did not fail"));
        }
        self.effect_finished(&failed.identity, &failed.outcome, at)?;
        self.dead_letter_into(&failed.message_ref, &failed.dead_letter, failed.winner_until, at)
    }

    pub(super) fn effect_renewed(
        &mut self,
        identity: &Identity,
        until: Timestamp,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        // A running lease is renewed even if the effect has expired meanwhile: its grant could not leave earlier.
        let effect = self.store.get(identity).ok_or(NO_EFFECT)?;
        if effect.status != EffectStatus::InProgress {
            return Err(Contradiction("renewal of an effect that has ended"));
        }
        self.store.change(identity, |effect| {
            effect.lease_until = until;
            effect.updated_at = at;
            effect.expires_at = effect.lifetime().after(until);
        });
        Ok(())
    }

    /// Checks the `count` effects of a namespace that are due first: removes them, or schedules the next check of those
    /// that are pinned.
    pub(super) fn effects_expired(
        &mut self,
        namespace: &EffectNamespace,
        count: u64,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let table = self.store.table(namespace).ok_or(Contradiction("no such effect table"))?;
        if table.due(at, count) != count {
            return Err(Contradiction("expiry of effects within their window"));
        }
        let is_pinned = |effect| match namespace {
            EffectNamespace::Shared => false,
            EffectNamespace::Group(topic, group) => self.is_pinned(topic, group, effect),
        };
        let due = table.first_due(count).filter(|(check_at, ..)| *check_at <= at);
        let due: Vec<_> = due.map(|(_, key, effect)| (key.clone(), is_pinned(effect))).collect();
        for (key, is_pinned) in due {
            match is_pinned {
                true => drop(self.store.change_key(namespace, &key, |effect| {
                    effect.pin.as_mut().expect("a pinned effect has a pin").look_at = at.after(RECHECK_INTERVAL);
                })),
                false => drop(self.store.remove_key(namespace, &key)),
            }
        }
        Ok(())
    }

    /// Pins the effect of a message that is queued for redelivery. A pin by another unacked message of the identity
    /// stays, and an expired effect is not revived.
    pub(super) fn pin_effect(&mut self, message_ref: &MessageRef, at: Timestamp) {
        let Some(identity) = self.identity_at(message_ref) else { return };
        let Some(effect) = self.effect(&identity, at) else { return };
        if !self.is_pinned_in(&identity.scope, effect) {
            let pin = new_pin((message_ref.partition, message_ref.position));
            self.store.change(&identity, |effect| effect.pin = Some(pin));
        }
    }

    /// A message leaves its group without a commit: it no longer pins its effect.
    pub(super) fn unpin_effect(&mut self, message_ref: &MessageRef) {
        let Some(identity) = self.identity_at(message_ref) else { return };
        let is_its = |pin: &Pin| (pin.partition, pin.position) == (message_ref.partition, message_ref.position);
        let pin = self.store.get(&identity).and_then(|effect| effect.pin.as_deref());
        if pin.is_some_and(|pin| is_its(pin) && pin.look_at > Timestamp(0)) {
            self.store.change(&identity, Effect::unpin);
        }
    }

    /// Commits the effect of an acked message. Without a grant and without a `window` nothing is left to remember.
    pub(super) fn commit_effect(
        &mut self,
        message_ref: &MessageRef,
        window: Millis,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let identity =
            self.identity_at(message_ref).ok_or(Contradiction("commit of a message without an idempotency key"))?;
        let (topics, until) = (self.topics_of(message_ref)?, at.after(window));
        let topics = (&topics.0, &topics.1);
        let is_new = match window {
            Millis(0) => self.remove_if_expired(&identity, at),
            window => self.insert_unless_valid(&identity, Effect::acked(topics, window, at), at),
        };
        if is_new {
            return Ok(());
        }
        self.store.change(&identity, |effect| {
            effect.commit(topics, until, at);
            if !effect.status.is_final() {
                // The error of an earlier attempt is not a result.
                effect.status = EffectStatus::Succeeded;
                effect.finished = false;
                effect.result = None;
                // The holder of a running grant can still finish the effect.
                effect.expires_at = until.max(effect.lease_until);
                effect.set_response(0, "");
            }
        });
        Ok(())
    }

    /// Commits and finishes the effect of a completed step's message.
    pub(super) fn conclude_effect(
        &mut self,
        message_ref: &MessageRef,
        conclusion: &EffectConclusion,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let (identity, payload) = (self.concluded(message_ref, conclusion)?, self.payload(0));
        let topics = self.topics_of(message_ref)?;
        let topics = (&topics.0, &topics.1);
        let acked = Effect::acked(topics, conclusion.window, at);
        let result = conclusion.result.as_ref().map(|result| Box::new(StoredResult::new(payload, &result.json)));
        let effect = Effect { finished: true, result, ..acked };
        if self.insert_unless_valid(&identity, effect, at) {
            return Ok(());
        }
        self.store.change(&identity, |effect| {
            effect.commit(topics, at.after(conclusion.window), at);
            if !effect.finished || !effect.status.is_final() {
                if effect.token.is_none() {
                    // Created by the ack of another message with a shorter window.
                    effect.window = conclusion.window;
                }
                let status = EffectStatus::Succeeded;
                let outcome = Outcome { status, response_code: 0, result: conclusion.json(), last_error: "".into() };
                effect.finish(&outcome, payload, at);
            }
        });
        Ok(())
    }

    /// Adds an effect, unless there is one that has not expired at `at`. Returns whether it was added.
    fn insert_unless_valid(&mut self, identity: &Identity, effect: Effect, at: Timestamp) -> bool {
        // Most effects are new: then this is the only search.
        let Err(effect) = self.store.insert(identity, effect) else { return true };
        self.remove_if_expired(identity, at) && self.store.insert(identity, effect).is_ok()
    }

    /// Removes an effect that has expired at `at` but is not swept yet. Returns whether there is none then.
    fn remove_if_expired(&mut self, identity: &Identity, at: Timestamp) -> bool {
        match self.store.get(identity) {
            Some(effect) if self.is_valid(&identity.scope, effect, at) => return false,
            Some(_) => drop(self.store.remove(identity)),
            None => {}
        }
        true
    }

    /// Finishes the effect of a step's message that failed for good. The message is dead-lettered, not acked, so the
    /// effect is not committed.
    pub(super) fn fail_effect(
        &mut self,
        message_ref: &MessageRef,
        conclusion: &EffectConclusion,
        last_error: &Text,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let (identity, payload) = (self.concluded(message_ref, conclusion)?, self.payload(0));
        let (status, result) = (EffectStatus::FailedFinal, conclusion.json());
        let outcome = Outcome { status, response_code: 0, result, last_error: last_error.clone() };
        if self.insert_unless_valid(&identity, Effect::failed(&outcome, payload, conclusion.window, at), at) {
            return Ok(());
        }
        match self.store.get(&identity).map(|effect| effect.status) {
            Some(EffectStatus::Succeeded) => return Err(Contradiction("failure of an effect that has succeeded")),
            Some(EffectStatus::FailedFinal) | None => {}
            Some(EffectStatus::InProgress | EffectStatus::FailedRetryable) => {
                self.store.change(&identity, |effect| effect.finish(&outcome, payload, at));
            }
        }
        Ok(())
    }

    /// The identity of the effect that a step ends.
    fn concluded(&self, message_ref: &MessageRef, conclusion: &EffectConclusion) -> Result<Identity, Contradiction> {
        let identity =
            self.identity_at(message_ref).ok_or(Contradiction("conclusion of a message without an idempotency key"))?;
        match &conclusion.result {
            Some(result) if result.key != *identity.packed() => {
                Err(Contradiction("result of another message's effect"))
            }
            _ => Ok(identity),
        }
    }

    /// The identity of the effect of a message in its group; `None` if the message has no idempotency key.
    pub(crate) fn identity_at(&self, message_ref: &MessageRef) -> Option<Identity> {
        let topic = self.topics.get(&message_ref.topic)?;
        let fields = topic.partition(message_ref.partition)?.fields_at(message_ref.position)?;
        let key = fields.identity_key()?.clone();
        Some(Identity::consumed(topic.name().clone(), topic.group(message_ref.group)?.name().clone(), key))
    }

    /// The requested topic of a message, and the topic that stores it.
    fn topics_of(&self, message_ref: &MessageRef) -> Result<(TopicName, TopicName), Contradiction> {
        let topic = self.topics.get(&message_ref.topic).ok_or(Contradiction("no such topic"))?;
        let partition = topic.partition(message_ref.partition).ok_or(Contradiction("no such partition"))?;
        let message = partition.message(message_ref.position).ok_or(Contradiction("no such message"))?;
        Ok((message.produce_scope(topic.name()).topic, topic.name().clone()))
    }

    pub(super) fn restore_effect(&mut self, identity: &Identity, effect: &Effect) -> Result<(), Contradiction> {
        if identity.bytes().1.is_empty() {
            return Err(Contradiction("effect without a key"));
        }
        let granted = match effect.token {
            Some(token) => token.boot <= self.boot && effect.attempt > 0 && effect.owner.is_some(),
            None => {
                let has_failed = effect.status == EffectStatus::FailedFinal && effect.finished;
                let is_ended = effect.status.is_final() && (effect.committed || has_failed);
                // Only the message of a group ends an effect that was never granted.
                let is_of_group = matches!(identity.scope, Scope::Consume { .. });
                is_ended && is_of_group && effect.attempt == 0 && effect.owner.is_none()
            }
        };
        if !granted {
            return Err(Contradiction("effect without a grant or an ack"));
        }
        let ended = match effect.status {
            EffectStatus::InProgress => !effect.finished && !effect.committed,
            EffectStatus::Succeeded => effect.finished || effect.committed,
            EffectStatus::FailedFinal | EffectStatus::FailedRetryable => effect.finished,
        };
        if !ended {
            return Err(Contradiction("effect whose status contradicts its flags"));
        }
        if effect.committed && !matches!(identity.scope, Scope::Consume { .. }) {
            return Err(Contradiction("committed effect outside a consume scope"));
        }
        check_committed_topics(&identity.scope, effect)?;
        if effect.status == EffectStatus::InProgress && effect.result.is_some() {
            return Err(Contradiction("result of an effect that has not ended"));
        }
        let payload = effect.result.as_ref().and_then(|result| result.payload);
        if payload.is_some_and(|payload| payload.lsn > self.last_lsn || payload.lsn == Lsn(0)) {
            return Err(Contradiction("result of a record that is not there yet"));
        }
        if let Some(pin) = &effect.pin
            && !self.has_position(&identity.scope, (pin.partition, pin.position))
        {
            return Err(Contradiction("effect of a message that was never stored"));
        }
        let owner = effect.owner.as_ref().map(|owner| self.store.intern_owner(owner));
        let restored = self.store.insert(identity, Effect { owner, ..effect.clone() });
        restored.map_err(|_| Contradiction("two effects with one identity"))
    }

    /// Whether the group of `scope` exists and its topic has assigned the position.
    fn has_position(&self, scope: &Scope, (partition, position): (PartitionId, Position)) -> bool {
        let Scope::Consume { topic, group } = scope else { return false };
        let Some(topic) = self.topic_named(topic).filter(|topic| topic.group_named(group).is_some()) else {
            return false;
        };
        topic.partition(partition).is_some_and(|partition| position < partition.next_position())
    }
}

/// Checks the form in which [`Effect::commit`] leaves the requested topics.
fn check_committed_topics(scope: &Scope, effect: &Effect) -> Result<(), Contradiction> {
    let topics = effect.committed_topics();
    let is_own = |topic: &TopicName| matches!(scope, Scope::Consume { topic: own, .. } if own == topic);
    let is_repeated = topics.iter().enumerate().any(|(at, topic)| topics[..at].contains(topic));
    let is_sound = match topics {
        [] => true,
        [only] => effect.committed && !is_own(only),
        _ => effect.committed && !is_repeated && topics.len() <= COMMITTED_TOPICS_MAX,
    };
    if is_sound { Ok(()) } else { Err(Contradiction("requested topics of an effect contradict its commit")) }
}

fn new_pin((partition, position): (PartitionId, Position)) -> Box<Pin> {
    Box::new(Pin { partition, position, look_at: Timestamp(0) })
}
