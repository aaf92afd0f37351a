//! What workers know of effects: grants they were given, ends they told of, and what of it a crash has made doubtful.

use std::collections::BTreeMap;
use std::sync::Arc;

use driftq_core::command::{Begin, StoreCommand, TokenClaim};
use driftq_core::idempotency::{EffectStatus, Identity, Lifetime, Outcome, Scope};
use driftq_core::reply::StoreReply;
use driftq_core::state::State;
use driftq_core::types::*;
use driftq_core::{Command, Reply};

use super::model::Asked;
use super::observer::Observer;
use crate::coverage::Point;
use crate::invariants::effects::*;
use crate::invariants::verdict::Verdict;

/// How many deliveries that were named for an effect are remembered.
const NAMED: usize = 16;

/// What is known of one effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct EffectModel {
    /// Every grant that somebody was told of since it was last certain that nothing is remembered.
    pub(crate) grants: BTreeMap<LeaseToken, Grant>,
    /// It has ended by an ack or a complete alone.
    pub(crate) acked: Option<End>,
    /// What was first asked, as far as that was said.
    pub(crate) request: Option<Text>,
    /// How long it is remembered, where that is known.
    lifetime: Option<Lifetime>,
    /// Nobody can say what was remembered before the next grant.
    vague: bool,
    /// Deliveries that were named, and where their messages are.
    named: Vec<(LeaseToken, Named)>,
}

type Named = (TopicId, GroupId, PartitionId, Position);

/// One grant.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) at: Timestamp,
    pub(crate) until: Timestamp,
    /// The delivery on whose behalf it was given.
    pub(crate) delivery: Option<LeaseToken>,
    /// It has ended for good.
    pub(crate) end: Option<End>,
    /// It has failed, and may be tried again.
    pub(crate) failed: bool,
    /// A word about the effect was lost in a crash, or it was forgotten on purpose.
    pub(crate) unsure: bool,
}

impl Grant {
    /// Whether its end is to be remembered at `at`.
    pub(crate) fn is_remembered(&self, at: Timestamp) -> bool {
        !self.unsure && self.end.as_ref().is_some_and(|end| end.is_remembered(at))
    }

    /// Whether it has ended for good.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether another may be granted after this one, whose token is `token`.
    pub(crate) fn gives_way_to(&self, token: LeaseToken, next: &Self) -> bool {
        let ended = self.failed || self.end.is_some() || self.until <= next.at;
        self.unsure || ended || next.delivery.is_some_and(|delivery| delivery > token)
    }
}

/// The end of an effect.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// How it ended, where that is known.
    pub(crate) outcome: Option<Outcome>,
    /// Until when that is remembered, where that is known.
    pub(crate) expires_at: Option<Timestamp>,
    /// A worker told of it.
    pub(crate) told: bool,
}

impl End {
    /// Whether it is certain that it is remembered at `at`.
    pub(crate) fn is_remembered(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| at < end)
    }
}

impl EffectModel {
    /// Nobody can say any more what is remembered.
    pub(super) fn doubt(&mut self) {
        self.grants.values_mut().for_each(|grant| grant.unsure = true);
        (self.acked, self.request, self.lifetime) = (None, None, None);
        self.vague = true;
    }

    fn newest(&mut self) -> Option<&mut Grant> {
        self.grants.last_entry().map(std::collections::btree_map::OccupiedEntry::into_mut)
    }

    /// The end that is known, by a grant or without one.
    fn end(&self) -> Option<&End> {
        let newest = self.grants.last_key_value().filter(|(_, grant)| !grant.unsure);
        newest.map_or(self.acked.as_ref(), |(_, grant)| grant.end.as_ref())
    }

    /// Whether nobody can say that the newest grant, or its end, is still remembered at `at`.
    fn may_be_forgotten(&self, at: Timestamp) -> bool {
        // What only its message has kept past its window is not known to be kept.
        let Some((_, grant)) = self.grants.last_key_value() else {
            return self.vague || self.acked.as_ref().is_some_and(|end| !end.is_remembered(at));
        };
        self.vague
            || grant.unsure
            || match &grant.end {
                Some(end) => !end.is_remembered(at),
                None => self.lifetime.is_none_or(|lifetime| after(lifetime, grant.until) <= at),
            }
    }

    /// The message is done, by an ack, or by a step with a result.
    fn commit(&mut self, at: Timestamp, windows: Windows, completed: Option<&Option<Arc<str>>>) {
        if self.may_be_forgotten(at) {
            self.doubt();
            return;
        }
        let lifetime = self.lifetime;
        let succeeded = |result: Option<Arc<str>>| {
            Some(Outcome { status: EffectStatus::Succeeded, response_code: 0, result, last_error: Text::default() })
        };
        let by_ack = self.acked.take().filter(|end| end.is_remembered(at));
        match (self.newest(), completed) {
            (Some(grant), Some(result)) if !grant.end.as_ref().is_some_and(|end| end.told) => {
                let expires_at = lifetime.map(|lifetime| after(lifetime, at));
                grant.end = Some(End { outcome: succeeded(result.clone()), expires_at, told: true });
            }
            (Some(grant), None) if grant.end.is_none() => {
                grant.end = Some(End { outcome: None, expires_at: Some(at.after(windows.ack)), told: false });
            }
            (Some(_), _) => {}
            (None, completed) => {
                let window = if completed.is_none() { windows.ack } else { windows.completed };
                let told = completed.is_some();
                let new =
                    End { outcome: succeeded(completed.cloned().flatten()), expires_at: Some(at.after(window)), told };
                self.acked = Some(by_ack.filter(|end| end.told || !told).unwrap_or(new));
            }
        }
    }
}

/// How long an effect is remembered that nobody has begun.
#[derive(Clone, Copy)]
struct Windows {
    /// Where an ack said that it ended.
    ack: Millis,
    /// Where a step did.
    completed: Millis,
}

impl Observer {
    /// The deliveries that were named for the effect and whose message is not done.
    pub(super) fn undone(&self, state: &State, command: &Command) -> Vec<LeaseToken> {
        let Some(identity) = granting(command) else { return Vec::new() };
        let Some(book) = self.effects.get(identity) else { return Vec::new() };
        let is_undone = |(topic, group, partition, position): &Named| {
            let group = state.topic(*topic).and_then(|topic| topic.group(*group));
            let progress = group.and_then(|group| group.progress(*partition));
            progress.is_some_and(|progress| !progress.done().contains(*position))
        };
        book.named.iter().filter(|(_, place)| is_undone(place)).map(|(token, _)| *token).collect()
    }

    /// A delivery is named for an effect.
    pub(super) fn name_delivery(&mut self, state: &State, command: &Command) {
        let Command::Store(asked) = command else { return };
        let StoreCommand::Begin(Begin { identity, delivery: Some(delivery), .. }) = &**asked else { return };
        let (Scope::Consume { topic, group }, TokenClaim::Shown(token)) = (&identity.scope, delivery.token) else {
            return;
        };
        let Some(topic) = state.topic_named(topic) else { return };
        let Some(group) = topic.group_named(group) else { return };
        let known = self.topics.get(&topic.id()).and_then(|book| book.known.get(&delivery.offset));
        let Some(known) = known.filter(|known| known.partition == delivery.partition) else { return };
        let named = (topic.id(), group.id(), known.partition, known.position);
        let book = self.effects.entry(identity.clone()).or_default();
        book.named.retain(|(other, _)| *other != token);
        if book.named.len() == NAMED {
            book.named.remove(0);
        }
        book.named.push((token, named));
    }

    /// A group is sought: a message that was done, and whose effect was forgotten then, may come again.
    pub(super) fn bring_back(&mut self, of: &TopicName, of_group: &GroupName) {
        for (identity, book) in &mut self.effects {
            if matches!(&identity.scope, Scope::Consume { topic, group } if (topic, group) == (of, of_group)) {
                book.named.clear();
            }
        }
    }

    /// The store has answered.
    pub(super) fn store_answered(&mut self, asked: &Asked, command: &StoreCommand, reply: &Reply) -> Verdict {
        match (command, reply) {
            (StoreCommand::Begin(begin), Reply::Store(StoreReply::Execute { idempotent: true, .. })) => {
                let delivery = begin.delivery.as_ref().and_then(|delivery| match delivery.token {
                    TokenClaim::Shown(token) => Some(token),
                    _ => None,
                });
                self.granted(asked, &begin.identity, Some(begin), delivery, reply)
            }
            (StoreCommand::Reacquire { identity, .. }, _) => {
                self.coverage.hit(Point::Reacquired);
                self.granted(asked, identity, None, None, reply)
            }
            (StoreCommand::Begin(begin), Reply::Store(StoreReply::Replay(outcome))) => {
                let Some(book) = self.effects.get(&begin.identity) else { return Ok(()) };
                let end = book.end();
                let is_alive = end.is_some_and(|end| end.is_remembered(asked.at));
                let grant = book.grants.last_key_value().filter(|(_, grant)| !grant.unsure);
                self.coverage.hit_if(grant.is_some_and(|(token, _)| token.boot < self.boot), Point::ReplayAfterCrash);
                let over = end.is_some_and(|end| end.expires_at.is_some_and(|window| window <= asked.at));
                self.coverage.hit_if(over, Point::PinnedPastWindow);
                request_hash_is_stable(book, begin.request_hash.as_ref(), is_alive)?;
                replay_matches_outcome(book.end(), outcome, asked.at)
            }
            (StoreCommand::Finish { identity, token, outcome }, _) => self.finished(asked, identity, *token, outcome),
            (StoreCommand::Renew { identity, .. }, Reply::Store(StoreReply::Renewed { lease_until })) => {
                if let Some(grant) = self.effects.get_mut(identity).and_then(EffectModel::newest) {
                    grant.until = *lease_until;
                }
                Ok(())
            }
            (StoreCommand::Forget { identity }, _) => {
                if let Some(book) = self.effects.get_mut(identity) {
                    book.doubt();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        asked: &Asked,
        identity: &Identity,
        begin: Option<&Begin>,
        delivery: Option<LeaseToken>,
        reply: &Reply,
    ) -> Verdict {
        let Reply::Store(StoreReply::Execute { attempt, token, lease_until, .. }) = reply else { return Ok(()) };
        grant_token_is_new(self.last_grant, *token)?;
        self.last_grant = Some(*token);
        let book = self.effects.entry(identity.clone()).or_default();
        let grant = Grant { at: asked.at, until: *lease_until, delivery, end: None, failed: false, unsure: false };
        let given = Given { book, token: *token, grant: &grant, undone: &asked.undone };
        one_live_grant(given)?;
        final_not_regranted(given)?;
        let request = begin.and_then(|begin| begin.request_hash.as_ref());
        request_hash_is_stable(book, request, *attempt > 1)?;
        let before = book.grants.last_key_value().map(|(token, grant)| (*token, grant.clone()));
        if *attempt == 1 {
            book.request = request.cloned();
            book.lifetime = Some(Lifetime::Window(match identity.scope {
                Scope::Job { .. } | Scope::Task { .. } => self.limits.job_ttl,
                _ => self.limits.effect_ttl,
            }));
        }
        book.lifetime = begin.and_then(|begin| begin.lifetime).or(book.lifetime);
        (book.acked, book.vague) = (None, false);
        book.grants.insert(*token, grant.clone());
        if let Some((token, before)) = before.filter(|(_, before)| !before.unsure && *attempt > 1) {
            let live = before.until > grant.at && before.end.is_none() && !before.failed;
            self.coverage
                .hit_if(live && grant.delivery.is_some_and(|newer| newer > token), Point::TakenByNewerDelivery);
            let silent = before.until <= grant.at && before.end.is_none() && !before.failed;
            self.coverage.hit_if(silent, Point::TakenAfterExpiry);
        }
        Ok(())
    }

    fn finished(&mut self, asked: &Asked, identity: &Identity, shown: TokenClaim, outcome: &Outcome) -> Verdict {
        let book = self.effects.entry(identity.clone()).or_default();
        newest_grant_finishes(book, shown)?;
        let lifetime = book.lifetime;
        let Some(grant) = book.newest().filter(|grant| !grant.unsure) else { return Ok(()) };
        // A failure is told once; behind an ack of its message a success may still be told.
        if grant.end.as_ref().map_or(grant.failed, |end| end.told) {
            return Ok(());
        }
        self.coverage.hit_if(grant.end.is_some(), Point::FinishAfterAck);
        match outcome.status {
            // Its lease is over, and its window begins.
            EffectStatus::FailedRetryable => (grant.failed, grant.until) = (true, asked.at),
            _ => {
                let expires_at = lifetime.map(|lifetime| after(lifetime, asked.at));
                grant.end = Some(End { outcome: Some(outcome.clone()), expires_at, told: true });
            }
        }
        Ok(())
    }

    /// A message was acked or completed, which ends the effect of its identity.
    pub(super) fn committed(&mut self, asked: &Asked, offset: Offset) {
        let Some(identity) = self.identity_at(asked, offset) else { return };
        let windows = Windows { ack: self.limits.ack_ttl, completed: self.limits.effect_ttl };
        let book = self.effects.entry(identity).or_default();
        match (&asked.command, asked.rightful) {
            (Command::Complete(complete), Some(true)) => book.commit(asked.at, windows, Some(&complete.result)),
            (_, Some(true)) => book.commit(asked.at, windows, None),
            (_, Some(false)) => {}
            // It may have come too late, and then it says nothing about what has begun since.
            (_, None) => book.doubt(),
        }
    }

    /// The effect of the asking group's work on a message.
    pub(super) fn identity_at(&self, asked: &Asked, offset: Offset) -> Option<Identity> {
        let (topic, group) = (asked.topic?, asked.group?);
        let known = self.topics.get(&topic)?.known.get(&offset)?;
        let (tenant, key) = known.body.identity()?;
        let scope = Scope::Consume {
            topic: self.topics.get(&topic)?.name.clone(),
            group: self.groups.get(&(topic, group))?.name.clone(),
        };
        Some(Identity::new(tenant, scope, key))
    }

    /// A topic or a group of it is gone, and with it the effects of their messages.
    pub(super) fn doubt_effects(&mut self, of: &TopicName, of_group: Option<&GroupName>) {
        for (identity, book) in &mut self.effects {
            if let Scope::Consume { topic, group } = &identity.scope
                && topic == of
                && of_group.is_none_or(|of| of == group)
            {
                book.doubt();
            }
        }
    }

    /// A worker runs an effect, which was run last under the grant `before`.
    pub(crate) fn ran(&self, identity: &Identity, before: Option<LeaseToken>, token: LeaseToken) -> Verdict {
        let (Some(book), Some(before)) = (self.effects.get(identity), before) else { return Ok(()) };
        rerun_is_justified(book, before, token)
    }
}

/// When what ended at `end` is forgotten.
fn after(lifetime: Lifetime, end: Timestamp) -> Timestamp {
    match lifetime {
        Lifetime::Window(window) => end.after(window),
        Lifetime::Until(moment) => moment.max(end),
    }
}

/// The effect that a command may grant.
fn granting(command: &Command) -> Option<&Identity> {
    let Command::Store(asked) = command else { return None };
    match &**asked {
        StoreCommand::Begin(Begin { identity, .. }) | StoreCommand::Reacquire { identity, .. } => Some(identity),
        _ => None,
    }
}
