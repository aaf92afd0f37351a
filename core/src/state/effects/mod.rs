//! What records do to effects and to the answers of completed steps.

pub(super) mod store;
pub(super) mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Contradiction, State, Topic};
use crate::collections::shared::unshared;
use crate::record::{Completed, EffectBegun, EffectConclusion, Stored};
use crate::types::{
    Body, Completion, Effect, EffectNamespace, EffectStatus, GroupName, Identity, LeaseToken, MessageRef, Millis,
    Offset, Outcome, PartitionId, Pin, Position, Scope, Timestamp, TopicId, TopicName,
};

/// When an effect whose window has ended, but whose message can still come, is looked at again.
const NEXT_LOOK: Millis = Millis(10 * 60 * 1_000);

const NO_EFFECT: Contradiction = Contradiction("no such effect");

/// The messages that can still be delivered: what keeps an effect beyond its window.
struct Queues<'a> {
    names: &'a BTreeMap<TopicName, TopicId>,
    topics: &'a BTreeMap<TopicId, Arc<Topic>>,
}

impl Queues<'_> {
    fn hold_in(&self, scope: &Scope, effect: &Effect) -> bool {
        match scope {
            Scope::Consume { topic, group } => self.hold(topic, group, effect),
            _ => false,
        }
    }

    /// Whether the message behind an effect can still be delivered to the group.
    fn hold(&self, topic: &TopicName, group: &GroupName, effect: &Effect) -> bool {
        let Some(pin) = &effect.pin else { return false };
        let topic = self.names.get(topic).and_then(|id| self.topics.get(id));
        let progress = topic.and_then(|topic| topic.group_named(group)).and_then(|group| group.progress(pin.partition));
        progress.is_some_and(|progress| !progress.acked().contains(pin.position))
    }
}

impl State {
    /// The effect of `identity`, if it is in its window at `now` or its message can still come.
    #[must_use]
    pub fn effect(&self, identity: &Identity, now: Timestamp) -> Option<&Effect> {
        self.store.get(identity).filter(|effect| self.counts(&identity.scope, effect, now))
    }

    /// The effect of a group's work on a message, if the message has an identity and the effect counts at `now`.
    #[must_use]
    pub(crate) fn effect_of(
        &self,
        topic: &TopicName,
        group: &GroupName,
        body: &Body,
        now: Timestamp,
    ) -> Option<&Effect> {
        let effect = self.store.consumed(topic, group, body.identity()?)?;
        (now < effect.expires_at || self.is_pinned(topic, group, effect)).then_some(effect)
    }

    fn counts(&self, scope: &Scope, effect: &Effect, now: Timestamp) -> bool {
        now < effect.expires_at || self.is_pinned_in(scope, effect)
    }

    fn is_pinned_in(&self, scope: &Scope, effect: &Effect) -> bool {
        Queues { names: &self.names, topics: &self.topics }.hold_in(scope, effect)
    }

    fn is_pinned(&self, topic: &TopicName, group: &GroupName, effect: &Effect) -> bool {
        Queues { names: &self.names, topics: &self.topics }.hold(topic, group, effect)
    }

    pub(super) fn effect_begun(&mut self, begun: &EffectBegun, at: Timestamp) -> Result<(), Contradiction> {
        if begun.token.boot != self.boot {
            return Err(Contradiction("token of another boot"));
        }
        if begun.identity.bytes().1.is_empty() {
            return Err(Contradiction("an effect without a key"));
        }
        if begun.message.is_some_and(|message| !self.has_position(&begun.identity.scope, message)) {
            return Err(Contradiction("an effect of a message that was never there"));
        }
        let pin = begun.message.map(pinned_to);
        let found = self.store.get(&begun.identity);
        let is_found = found.is_some();
        let Some(known) = found.filter(|effect| self.counts(&begun.identity.scope, effect, at)) else {
            let lifetime = begun.lifetime.ok_or(Contradiction("a new effect without a lifetime"))?;
            let owner = self.store.share_owner(&begun.owner);
            let mut effect = Effect::granted(begun.token, owner, begun.until, at);
            effect.set_lifetime(lifetime);
            if let Some(hash) = &begun.request_hash {
                effect.details.get_or_insert_default().request_hash = Some(hash.clone());
            }
            effect.expires_at = effect.lifetime().after(begun.until);
            effect.pin = pin;
            if is_found {
                // What is past its window gives way, swept or not.
                self.store.remove(&begun.identity);
            }
            self.store.insert(&begun.identity, effect);
            return Ok(());
        };
        if known.status.is_final() {
            return Err(Contradiction("grant of an effect that has ended"));
        }
        if Some(begun.token) <= known.token {
            return Err(Contradiction("grant that is not newer than the one before"));
        }
        let owner = self.store.share_owner(&begun.owner);
        self.store.change(&begun.identity, |effect| {
            if let Some(lifetime) = begun.lifetime {
                effect.set_lifetime(lifetime);
            }
            effect.status = EffectStatus::InProgress;
            (effect.finished, effect.committed) = (false, false);
            effect.attempt = effect.attempt.saturating_add(1);
            effect.token = Some(begun.token);
            effect.owner = Some(owner);
            effect.lease_until = begun.until;
            effect.result = None;
            effect.updated_at = at;
            effect.expires_at = effect.lifetime().after(begun.until);
            if pin.is_some() {
                effect.pin = pin;
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
        let queues = Queues { names: &self.names, topics: &self.topics };
        let finished = self.store.change(identity, |effect| {
            if at >= effect.expires_at && !queues.hold_in(&identity.scope, effect) {
                return Err(NO_EFFECT);
            }
            if !effect.can_finish(outcome.status) || outcome.status == EffectStatus::InProgress {
                return Err(Contradiction("end of an effect that has ended"));
            }
            effect.finish(outcome, at);
            Ok(())
        });
        finished.unwrap_or(Err(NO_EFFECT))
    }

    pub(super) fn effect_renewed(
        &mut self,
        identity: &Identity,
        until: Timestamp,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let effect = self.effect(identity, at).ok_or(NO_EFFECT)?;
        if effect.status != EffectStatus::InProgress {
            return Err(Contradiction("longer lease of an effect that has ended"));
        }
        self.store.change(identity, |effect| {
            effect.lease_until = until;
            effect.updated_at = at;
            effect.expires_at = effect.lifetime().after(until);
        });
        Ok(())
    }

    /// Looks at the first `count` effects of a namespace: forgets them, or puts them off while their message can still come.
    pub(super) fn effects_expired(
        &mut self,
        namespace: &EffectNamespace,
        count: u64,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let table = self.store.table(namespace).ok_or(Contradiction("no such effects"))?;
        if table.due(at, count) != count {
            return Err(Contradiction("end of effects that are in their window"));
        }
        let is_pinned = |effect| match namespace {
            EffectNamespace::Shared => false,
            EffectNamespace::Group(topic, group) => self.is_pinned(topic, group, effect),
        };
        let due = table.first_looks(count).filter(|(look_at, ..)| *look_at <= at);
        let due: Vec<_> = due.map(|(_, key, effect)| (key.clone(), is_pinned(effect))).collect();
        for (key, is_pinned) in due {
            match is_pinned {
                true => drop(self.store.change_key(namespace, &key, |effect| {
                    effect.pin.as_mut().expect("just seen").look_at = at.after(NEXT_LOOK);
                })),
                false => drop(self.store.remove_key(namespace, &key)),
            }
        }
        Ok(())
    }

    /// A message that is not done goes back to its queue: an effect of its identity stays until it is. One that stays for another
    /// message of the identity already goes on doing so, and one that is past its window does not come back by this.
    pub(super) fn pin_effect(&mut self, message_ref: &MessageRef, at: Timestamp) {
        let Some(identity) = self.identity_at(message_ref) else { return };
        let Some(effect) = self.effect(&identity, at) else { return };
        if !self.is_pinned_in(&identity.scope, effect) {
            let pin = pinned_to((message_ref.partition, message_ref.position));
            self.store.change(&identity, |effect| effect.pin = Some(pin));
        }
    }

    /// A message is done without a word about its effect, which need not stay for its sake any more.
    pub(super) fn unpin_effect(&mut self, message_ref: &MessageRef) {
        let Some(identity) = self.identity_at(message_ref) else { return };
        let is_its = |pin: &Pin| (pin.partition, pin.position) == (message_ref.partition, message_ref.position);
        let pin = self.store.get(&identity).and_then(|effect| effect.pin.as_deref());
        if pin.is_some_and(|pin| is_its(pin) && pin.look_at > Timestamp(0)) {
            self.store.change(&identity, Effect::unpin);
        }
    }

    /// An ack says that whatever the message was to bring about is done.
    pub(super) fn commit_effect(
        &mut self,
        message_ref: &MessageRef,
        window: Millis,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let identity = self.identity_at(message_ref).ok_or(Contradiction("commit of a message without an identity"))?;
        if self.effect(&identity, at).is_none() {
            self.store.remove(&identity);
            self.store.insert(&identity, Effect::acked(window, at));
            return Ok(());
        }
        self.store.change(&identity, |effect| {
            effect.commit(window, at);
            if !effect.status.is_final() {
                // What an earlier try has failed with is no result.
                effect.status = EffectStatus::Succeeded;
                effect.finished = false;
                effect.result = None;
                effect.expires_at = at.after(window);
                effect.set_response(0, "");
            }
        });
        Ok(())
    }

    /// A completed step says the same, and with what result.
    fn conclude_effect(
        &mut self,
        message_ref: &MessageRef,
        ended: &EffectConclusion,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let identity = self.identity_at(message_ref).ok_or(Contradiction("end of an effect without an identity"))?;
        if self.effect(&identity, at).is_none() {
            let effect = Effect { finished: true, result: ended.result.clone(), ..Effect::acked(ended.window, at) };
            self.store.remove(&identity);
            self.store.insert(&identity, effect);
            return Ok(());
        }
        self.store.change(&identity, |effect| {
            effect.commit(ended.window, at);
            if !effect.finished || !effect.status.is_final() {
                if effect.token.is_none() {
                    // What only another message's ack had made has a worker behind it now.
                    effect.window = ended.window;
                }
                let status = EffectStatus::Succeeded;
                let result = ended.result.clone();
                effect.finish(&Outcome { status, response_code: 0, result, last_error: "".into() }, at);
            }
        });
        Ok(())
    }

    pub(super) fn complete(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        self.store_step_outputs(step, at)?;
        let offset = self.delivery_mut(&step.message_ref)?.offset;
        if let Some(ended) = &step.effect {
            self.conclude_effect(&step.message_ref, ended, at)?;
        }
        self.finish(&step.message_ref)?;
        self.keep_completion(step, offset)
    }

    /// Stores what a step produced, if its token is the newest delivery's.
    pub(crate) fn store_step_outputs(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        if self.delivery_mut(&step.message_ref)?.token != step.token {
            return Err(Contradiction("a step completed under another token than the newest delivery's"));
        }
        for output in &step.outputs {
            let Some(Stored { topic, dedupe, body }) = &output.stored else { continue };
            self.store_message(*topic, (output.partition, output.offset), body, dedupe.as_ref(), at)?;
        }
        Ok(())
    }

    /// Remembers the reply of a step, to be repeated to the token that completed it.
    pub(crate) fn keep_completion(&mut self, step: &Completed, offset: Offset) -> Result<(), Contradiction> {
        let completion =
            Completion { message_ref: step.message_ref, offset, produced: step.reply(), until: step.until };
        match unshared(&mut self.completions).keep(step.token, completion) {
            true => Ok(()),
            false => Err(Contradiction("a step completed twice")),
        }
    }

    pub(super) fn completions_expired(&mut self, count: u64) -> Result<(), Contradiction> {
        let swept = unshared(&mut self.completions).sweep(count);
        if swept { Ok(()) } else { Err(Contradiction("end of more answers than there are")) }
    }

    /// The identity of the effect of a group's work on a message.
    fn identity_at(&self, message_ref: &MessageRef) -> Option<Identity> {
        let topic = self.topics.get(&message_ref.topic)?;
        let message = topic.partition(message_ref.partition)?.message(message_ref.position)?;
        let (tenant, key) = message.body.identity()?;
        let group = topic.group(message_ref.group)?.name();
        let scope = Scope::Consume { topic: topic.name().clone(), group: group.clone() };
        Some(Identity::new(tenant, scope, key))
    }

    pub(super) fn restore_effect(&mut self, identity: &Identity, effect: &Effect) -> Result<(), Contradiction> {
        if self.store.get(identity).is_some() {
            return Err(Contradiction("two memories of one effect"));
        }
        if identity.bytes().1.is_empty() {
            return Err(Contradiction("an effect without a key"));
        }
        let granted = match effect.token {
            Some(token) => token.boot <= self.boot && effect.attempt > 0 && effect.owner.is_some(),
            None => effect.status.is_final() && effect.committed && effect.attempt == 0 && effect.owner.is_none(),
        };
        if !granted {
            return Err(Contradiction("an effect that nobody was granted"));
        }
        let ended = match effect.status {
            EffectStatus::InProgress => !effect.finished && !effect.committed,
            EffectStatus::Succeeded => effect.finished || effect.committed,
            EffectStatus::FailedFinal | EffectStatus::FailedRetryable => effect.finished,
        };
        if !ended {
            return Err(Contradiction("an effect that has ended and has not"));
        }
        if effect.committed && !matches!(identity.scope, Scope::Consume { .. }) {
            return Err(Contradiction("an ack of what is no message"));
        }
        if let Some(pin) = &effect.pin
            && !self.has_position(&identity.scope, (pin.partition, pin.position))
        {
            return Err(Contradiction("an effect of a message that was never there"));
        }
        let owner = effect.owner.as_ref().map(|owner| self.store.share_owner(owner));
        self.store.insert(identity, Effect { owner, ..effect.clone() });
        Ok(())
    }

    /// Whether a message that the group of `scope` could be handed ever stood there.
    fn has_position(&self, scope: &Scope, (partition, position): (PartitionId, Position)) -> bool {
        let Scope::Consume { topic, group } = scope else { return false };
        let Some(topic) = self.topic_named(topic).filter(|topic| topic.group_named(group).is_some()) else {
            return false;
        };
        topic.partition(partition).is_some_and(|partition| position < partition.next_position())
    }

    pub(super) fn restore_completion(
        &mut self,
        token: LeaseToken,
        completion: &Completion,
    ) -> Result<(), Contradiction> {
        if token.boot > self.boot {
            return Err(Contradiction("token of a boot that is still to come"));
        }
        match Arc::make_mut(&mut self.completions).keep(token, completion.clone()) {
            true => Ok(()),
            false => Err(Contradiction("a step completed twice")),
        }
    }
}

fn pinned_to((partition, position): (PartitionId, Position)) -> Box<Pin> {
    Box::new(Pin { partition, position, look_at: Timestamp(0) })
}
