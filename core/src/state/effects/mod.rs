//! Applies records to effects.

pub(super) mod list;
mod results;
pub(crate) mod store;
pub(super) mod table;
mod tenants;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::store::{EffectStore, NamespaceRef};
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
#[derive(Clone, Copy)]
struct Pins<'a> {
    names: &'a BTreeMap<TopicName, TopicId>,
    topics: &'a IdMap<TopicId, Arc<Topic>>,
}

impl<'a> Pins<'a> {
    /// The message, if it has an idempotency key.
    fn keyed(&self, message_ref: &MessageRef) -> Option<Keyed<'a>> {
        let topic = self.topics.get(&message_ref.topic)?;
        let fields = topic.partition(message_ref.partition)?.fields_at(message_ref.position)?;
        let requested = fields.requested.as_ref().map_or(topic.name(), |requested| &requested.topic);
        let group = topic.group(message_ref.group)?.name();
        Some(Keyed { key: fields.identity_key()?, group, requested, stored_in: topic.name() })
    }

    fn is_pinned_in(&self, namespace: NamespaceRef<'_>, effect: &Effect) -> bool {
        match namespace {
            NamespaceRef::Group(topic, group) => self.is_pinned(topic, group, effect),
            NamespaceRef::Shared => false,
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

/// A message of a group with an idempotency key.
#[derive(Clone, Copy)]
struct Keyed<'a> {
    key: &'a IdentityKey,
    group: &'a GroupName,
    requested: &'a TopicName,
    stored_in: &'a TopicName,
}

impl<'a> Keyed<'a> {
    fn namespace(&self) -> NamespaceRef<'a> {
        NamespaceRef::Group(self.stored_in, self.group)
    }

    /// The topics of [`Effect::commit`].
    fn topics(&self) -> (&'a TopicName, &'a TopicName) {
        (self.requested, self.stored_in)
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
        if topic.name().is_dead_letter() {
            return false;
        }
        let effect = self.effect_of(topic.name(), group.name(), key, now);
        let requested = || body.produce_scope(topic.name()).topic;
        effect.is_some_and(|effect| effect.is_committed_for(&requested(), topic.name()))
    }

    fn is_valid(&self, scope: &Scope, effect: &Effect, now: Timestamp) -> bool {
        now < effect.expires_at || self.is_pinned_in(scope, effect)
    }

    fn is_pinned_in(&self, scope: &Scope, effect: &Effect) -> bool {
        self.pins().is_pinned_in(NamespaceRef::of(scope), effect)
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
            let place = (NamespaceRef::of(&begun.identity.scope), begun.identity.packed());
            let pins = Pins { names: &self.names, topics: &self.topics };
            if insert_unless_valid(&mut self.store, pins, place, effect, at) {
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
            if at >= effect.expires_at && !pins.is_pinned_in(NamespaceRef::of(&identity.scope), effect) {
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
        let pins = Pins { names: &self.names, topics: &self.topics };
        let namespace = NamespaceRef::from(namespace);
        if let NamespaceRef::Shared = namespace {
            (0..count).for_each(|_| self.store.remove_first_due(namespace));
            return Ok(());
        }
        for _ in 0..count {
            // Those that were checked are gone, or due later.
            let first = self.store.table_in(namespace).and_then(|table| table.first_due());
            let (key, effect) = first.expect("as many are due");
            match pins.is_pinned_in(namespace, effect) {
                true => {
                    let key = key.clone();
                    self.store.change_key(namespace, &key, |effect| {
                        effect.pin.as_mut().expect("a pinned effect has a pin").look_at = at.after(RECHECK_INTERVAL);
                    });
                }
                false => self.store.remove_first_due(namespace),
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
        let pins = Pins { names: &self.names, topics: &self.topics };
        let message = pins.keyed(message_ref);
        let message = message.ok_or(Contradiction("commit of a message without an idempotency key"))?;
        let (place, topics) = ((message.namespace(), message.key), message.topics());
        let until = at.after(window);
        let is_new = match window {
            Millis(0) => remove_if_expired(&mut self.store, pins, place, at),
            window => insert_unless_valid(&mut self.store, pins, place, Effect::acked(topics, window, at), at),
        };
        if is_new {
            return Ok(());
        }
        self.store.change_key(place.0, place.1, |effect| {
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
        let payload = self.payload(0);
        let pins = Pins { names: &self.names, topics: &self.topics };
        let message = concluded(pins, message_ref, conclusion)?;
        let (place, topics) = ((message.namespace(), message.key), message.topics());
        let acked = Effect::acked(topics, conclusion.window, at);
        let result = conclusion.result.as_ref().map(|result| Box::new(StoredResult::new(payload, &result.json)));
        let effect = Effect { finished: true, result, ..acked };
        if insert_unless_valid(&mut self.store, pins, place, effect, at) {
            return Ok(());
        }
        self.store.change_key(place.0, place.1, |effect| {
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

    /// Finishes the effect of a step's message that failed for good. The message is dead-lettered, not acked, so the
    /// effect is not committed.
    pub(super) fn fail_effect(
        &mut self,
        message_ref: &MessageRef,
        conclusion: &EffectConclusion,
        last_error: &Text,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let payload = self.payload(0);
        let pins = Pins { names: &self.names, topics: &self.topics };
        let message = concluded(pins, message_ref, conclusion)?;
        let place = (message.namespace(), message.key);
        let (status, result) = (EffectStatus::FailedFinal, conclusion.json());
        let outcome = Outcome { status, response_code: 0, result, last_error: last_error.clone() };
        let failed = Effect::failed(&outcome, payload, conclusion.window, at);
        if insert_unless_valid(&mut self.store, pins, place, failed, at) {
            return Ok(());
        }
        match self.store.table_in(place.0).and_then(|table| table.get(place.1)).map(|effect| effect.status) {
            Some(EffectStatus::Succeeded) => return Err(Contradiction("failure of an effect that has succeeded")),
            Some(EffectStatus::FailedFinal) | None => {}
            Some(EffectStatus::InProgress | EffectStatus::FailedRetryable) => {
                self.store.change_key(place.0, place.1, |effect| effect.finish(&outcome, payload, at));
            }
        }
        Ok(())
    }

    /// The identity of the effect of a message in its group; `None` if the message has no idempotency key.
    pub(crate) fn identity_at(&self, message_ref: &MessageRef) -> Option<Identity> {
        let Keyed { key, group, stored_in, .. } = self.pins().keyed(message_ref)?;
        Some(Identity::consumed(stored_in.clone(), group.clone(), key.clone()))
    }

    /// The effect of a message in its group, expired or not; `None` if the message has no idempotency key.
    pub(crate) fn effect_at(&self, message_ref: &MessageRef) -> Option<&Effect> {
        let message = self.pins().keyed(message_ref)?;
        self.store.table_in(message.namespace())?.get(message.key)
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

/// The message whose effect a step ends.
fn concluded<'a>(
    pins: Pins<'a>,
    message_ref: &MessageRef,
    conclusion: &EffectConclusion,
) -> Result<Keyed<'a>, Contradiction> {
    let message = pins.keyed(message_ref);
    let message = message.ok_or(Contradiction("conclusion of a message without an idempotency key"))?;
    match &conclusion.result {
        Some(result) if result.key != *message.key => Err(Contradiction("result of another message's effect")),
        _ => Ok(message),
    }
}

/// Where an effect is.
type Place<'a> = (NamespaceRef<'a>, &'a IdentityKey);

/// Adds an effect, unless there is one that has not expired at `at`. Returns whether it was added.
#[inline]
fn insert_unless_valid(
    store: &mut EffectStore,
    pins: Pins<'_>,
    (namespace, key): Place<'_>,
    effect: Effect,
    at: Timestamp,
) -> bool {
    // Most effects are new: then this is the only search.
    let Err(effect) = store.insert_key(namespace, key, effect) else { return true };
    remove_if_expired(store, pins, (namespace, key), at) && store.insert_key(namespace, key, effect).is_ok()
}

/// Removes an effect that has expired at `at` but is not swept yet. Returns whether there is none then.
fn remove_if_expired(store: &mut EffectStore, pins: Pins<'_>, (namespace, key): Place<'_>, at: Timestamp) -> bool {
    match store.table_in(namespace).and_then(|table| table.get(key)) {
        Some(effect) if at < effect.expires_at || pins.is_pinned_in(namespace, effect) => return false,
        Some(_) => drop(store.remove_key(namespace, key)),
        None => {}
    }
    true
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
