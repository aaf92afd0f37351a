//! Effects: the grants and outcomes reported to workers.

use driftq_core::command::{Begin, Finish, Forget, Reacquire, Renew, StoreCommand, TokenClaim};
use driftq_core::reply::StoreReply;
use driftq_core::state::State;
use driftq_core::types::{EffectStatus, Identity, Lifetime, Outcome, Scope, *};
use driftq_core::{Command, Reply};

use super::effect_model::{EffectEnd, EffectModel, GrantModel, MessageLocation, Windows, expiry};
use super::model::{DedupeEntry, PendingCommand, dedupe_key};
use super::state::Tracker;
use crate::coverage::Point;
use crate::invariants::effects::*;
use crate::invariants::verdict::Verdict;

/// How many deliveries per effect are kept.
const DELIVERIES_MAX: usize = 16;

impl Tracker {
    /// For a command that requests a grant: the deliveries of its effect whose messages are unacked.
    pub(super) fn unacked_deliveries(&self, state: &State, command: &Command) -> Vec<LeaseToken> {
        let Some(identity) = requested_effect(command) else { return Vec::new() };
        let Some(model) = self.effects.get(identity) else { return Vec::new() };
        let is_unacked = |(topic, group, partition, position): &MessageLocation| {
            let group = state.topic(*topic).and_then(|topic| topic.group(*group));
            let progress = group.and_then(|group| group.progress(*partition));
            progress.is_some_and(|progress| !progress.acked().contains(*position))
        };
        model.deliveries.iter().filter(|(_, location)| is_unacked(location)).map(|(token, _)| *token).collect()
    }

    /// A grant is requested on behalf of a delivery.
    pub(super) fn note_grant_delivery(&mut self, state: &State, command: &Command) {
        let Command::Store(store) = command else { return };
        let StoreCommand::Begin(Begin { identity, delivery: Some(delivery), .. }) = &**store else { return };
        let (Scope::Consume { topic, group }, TokenClaim::Shown(token)) = (&identity.scope, delivery.token) else {
            return;
        };
        let Some(topic) = state.topic_named(topic) else { return };
        let Some(group) = topic.group_named(group) else { return };
        let known = self.topics.get(&topic.id()).and_then(|model| model.messages.get(&delivery.offset));
        let Some(known) = known.filter(|known| known.partition == delivery.partition) else { return };
        let location = (topic.id(), group.id(), known.partition, known.position);
        let newest = group.progress(known.partition).and_then(|progress| progress.find_delivery(delivery.offset));
        if newest.is_none_or(|(_, entry)| entry.token != token) {
            // A stale delivery is refused.
            return;
        }
        let model = self.effects.entry(identity.clone()).or_default();
        model.deliveries.retain(|(other, _)| *other != token);
        if model.deliveries.len() == DELIVERIES_MAX {
            model.deliveries.remove(0);
        }
        model.deliveries.push((token, location));
    }

    /// A seek: acked messages whose effects were forgotten may be delivered again.
    pub(super) fn forget_deliveries(&mut self, of: &TopicName, of_group: &GroupName) {
        for (identity, model) in &mut self.effects {
            if matches!(&identity.scope, Scope::Consume { topic, group } if (topic, group) == (of, of_group)) {
                model.deliveries.clear();
            }
        }
    }

    /// The idempotency store has replied.
    pub(super) fn store_replied(
        &mut self,
        pending: &PendingCommand,
        command: &StoreCommand,
        reply: &Reply,
        now: Timestamp,
    ) -> Verdict {
        match (command, reply) {
            (StoreCommand::Begin(begin), Reply::Store(StoreReply::Execute { idempotent: true, .. })) => {
                let delivery = begin.delivery.as_ref().and_then(|delivery| match delivery.token {
                    TokenClaim::Shown(token) => Some(token),
                    _ => None,
                });
                self.granted((pending, now), &begin.identity, Some(begin), delivery, reply)
            }
            (StoreCommand::Reacquire(Reacquire { identity, .. }), _) => {
                self.coverage.hit(Point::Reacquired);
                self.granted((pending, now), identity, None, None, reply)
            }
            (StoreCommand::Begin(begin), Reply::Store(StoreReply::Replay { outcome, result_lost })) => {
                let Some(model) = self.effects.get(&begin.identity) else { return Ok(()) };
                let end = model.end();
                let is_kept = end.is_some_and(|end| end.is_remembered(pending.at));
                let grant = model.grants.last_key_value().filter(|(_, grant)| !grant.is_uncertain);
                if grant.is_some_and(|(_, grant)| grant.decided > pending.after) {
                    // It waited for its bytes; what it replays has expired and was granted again.
                    return Ok(());
                }
                self.coverage.hit_if(grant.is_some_and(|(token, _)| token.boot < self.boot), Point::ReplayAfterCrash);
                let is_past_window = end.is_some_and(|end| end.expires_at.is_some_and(|at| at <= pending.at));
                self.coverage.hit_if(is_past_window, Point::PinnedPastWindow);
                request_hash_is_stable(model, begin.request_hash.as_ref(), is_kept)?;
                replay_matches_outcome(model.end(), outcome, *result_lost, pending.at)
            }
            (StoreCommand::Finish(Finish { identity, token, outcome, dead_letter }), _) => {
                if let Some(delivery) = dead_letter {
                    self.finish_dead_lettered(pending, delivery);
                }
                self.finished(pending, identity, *token, outcome)
            }
            (StoreCommand::Renew(Renew { identity, .. }), Reply::Store(StoreReply::Renewed { lease_until })) => {
                if let Some(grant) = self.effects.get_mut(identity).and_then(EffectModel::newest) {
                    grant.until = *lease_until;
                    grant.runs_until = (*lease_until).max(now.after(lease_until.since(pending.at)));
                }
                Ok(())
            }
            (StoreCommand::Forget(Forget { identity }), _) => {
                if let Some(model) = self.effects.get_mut(identity) {
                    model.mark_unknown();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        (pending, now): (&PendingCommand, Timestamp),
        identity: &Identity,
        begin: Option<&Begin>,
        delivery: Option<LeaseToken>,
        reply: &Reply,
    ) -> Verdict {
        let Reply::Store(StoreReply::Execute { attempt, token, lease_until, .. }) = reply else { return Ok(()) };
        grant_token_is_new(self.last_grant, *token)?;
        self.last_grant = Some(*token);
        let model = self.effects.entry(identity.clone()).or_default();
        let runs_until = (*lease_until).max(now.after(lease_until.since(pending.at)));
        let grant = GrantModel {
            at: pending.at,
            decided: pending.after,
            until: *lease_until,
            runs_until,
            delivery,
            end: None,
            failed: false,
            is_uncertain: false,
        };
        let new_grant =
            NewGrant { model, token: *token, grant: &grant, unacked_deliveries: &pending.unacked_deliveries };
        one_live_grant(new_grant)?;
        final_not_regranted(new_grant)?;
        let request = begin.and_then(|begin| begin.request_hash.as_ref());
        request_hash_is_stable(model, request, *attempt > 1)?;
        let before = model.grants.last_key_value().map(|(token, grant)| (*token, grant.clone()));
        if *attempt == 1 {
            model.request = request.cloned();
            model.lifetime = Some(Lifetime::Window(match identity.scope {
                Scope::Job { .. } | Scope::Task { .. } => self.limits.job_ttl,
                _ => self.limits.effect_ttl,
            }));
        }
        model.lifetime =
            begin.and_then(|begin| begin.lifetime).map(|lifetime| in_broker_time(lifetime, pending)).or(model.lifetime);
        (model.acked, model.is_unknown) = (None, false);
        model.grants.insert(*token, grant.clone());
        if let Some((token, before)) = before.filter(|(_, before)| !before.is_uncertain && *attempt > 1) {
            let is_live = before.runs_until > grant.at && before.end.is_none() && !before.failed;
            self.coverage
                .hit_if(is_live && grant.delivery.is_some_and(|newer| newer > token), Point::TakenByNewerDelivery);
            let is_expired = before.runs_until <= grant.at && before.end.is_none() && !before.failed;
            self.coverage.hit_if(is_expired, Point::TakenAfterExpiry);
        }
        Ok(())
    }

    fn finished(
        &mut self,
        pending: &PendingCommand,
        identity: &Identity,
        shown: TokenClaim,
        outcome: &Outcome,
    ) -> Verdict {
        let model = self.effects.entry(identity.clone()).or_default();
        newest_grant_finishes(model, shown)?;
        let lifetime = model.lifetime;
        let Some(grant) = model.newest().filter(|grant| !grant.is_uncertain) else { return Ok(()) };
        // A failure is recorded once; after an ack of its message a success may still be recorded.
        if grant.end.as_ref().map_or(grant.failed, |end| end.is_recorded) {
            return Ok(());
        }
        self.coverage.hit_if(grant.end.is_some(), Point::FinishAfterAck);
        match outcome.status {
            // The lease ends and the window starts.
            EffectStatus::FailedRetryable => {
                (grant.failed, grant.until, grant.runs_until) = (true, pending.at, pending.at);
            }
            _ => {
                let expires_at = lifetime.map(|lifetime| expiry(lifetime, pending.at));
                grant.end = Some(EffectEnd { outcome: Some(outcome.clone()), expires_at, is_recorded: true });
            }
        }
        Ok(())
    }

    /// A message was acked or completed, which ends the effect of its identity.
    pub(super) fn committed(&mut self, pending: &PendingCommand, offset: Offset) {
        let Some(identity) = self.identity_at(pending, offset) else { return };
        let windows = Windows { acked_until: self.duplicate_until(pending, offset), completed: self.limits.effect_ttl };
        let model = self.effects.entry(identity).or_default();
        let is_valid = match pending.command {
            Command::AckCumulative(_) => Some(true),
            _ => pending.claim_is_valid,
        };
        match (&pending.command, is_valid) {
            (Command::Complete(complete), Some(true)) => model.commit(pending.at, windows, Some(&complete.result)),
            (_, Some(true)) => model.commit(pending.at, windows, None),
            (_, Some(false)) => {}
            // A late claim implies nothing about later grants.
            (_, None) => model.mark_unknown(),
        }
    }

    /// A step that failed for good has dead-lettered a message.
    pub(super) fn failed_for_good(&mut self, pending: &PendingCommand, offset: Offset) {
        if let Some(identity) = self.identity_at(pending, offset) {
            self.effects.entry(identity).or_default().mark_unknown();
        }
    }

    /// Until when a produce of the message is a duplicate, if known.
    fn duplicate_until(&self, pending: &PendingCommand, offset: Offset) -> Option<Timestamp> {
        let topic = self.topics.get(&pending.topic?)?;
        let known = topic.messages.get(&offset)?;
        let key = dedupe_key(self.produced_messages.get(&known.number)?)?;
        // The dead letter itself was not produced, unless a router had moved its message.
        let (requested, destination) = &key.0;
        if requested == destination && requested.dead_letter().as_ref() == Some(&topic.name) {
            return Some(pending.at);
        }
        match self.identities.get(&key)? {
            DedupeEntry::Accepted { expires_at, .. } => Some((*expires_at).max(pending.at)),
            DedupeEntry::Unknown => None,
        }
    }

    /// The identity of the effect of the group's work on a message.
    pub(super) fn identity_at(&self, pending: &PendingCommand, offset: Offset) -> Option<Identity> {
        let (topic, group) = (pending.topic?, pending.group?);
        let known = self.topics.get(&topic)?.messages.get(&offset)?;
        let (tenant, key) = known.body.identity()?;
        let scope = Scope::Consume {
            topic: self.topics.get(&topic)?.name.clone(),
            group: self.groups.get(&(topic, group))?.name.clone(),
        };
        Some(Identity::new(tenant, scope, key))
    }

    /// The effects of groups that were deleted before or while a command was decided are unknown to its reply.
    pub(super) fn forget_deleted_groups(&mut self, decided: Option<&PendingCommand>) {
        for (lsn, topic, group) in std::mem::take(&mut self.deleted_groups) {
            if decided.is_none_or(|pending| lsn <= pending.after) {
                self.mark_effects_unknown(&topic, Some(&group));
            }
            // What a reply of the same call says may be of before or after the deletion.
            if decided.is_some_and(|pending| lsn > pending.before) {
                self.deleted_groups.push((lsn, topic, group));
            }
        }
    }

    /// A topic or group was deleted, and its effects with it.
    pub(super) fn mark_effects_unknown(&mut self, of: &TopicName, of_group: Option<&GroupName>) {
        for (identity, model) in &mut self.effects {
            if let Scope::Consume { topic, group } = &identity.scope
                && topic == of
                && of_group.is_none_or(|of| of == group)
            {
                model.mark_unknown();
            }
        }
    }

    /// A worker ran an effect, which last ran under the grant `before`.
    pub(crate) fn effect_ran(&self, identity: &Identity, before: Option<LeaseToken>, token: LeaseToken) -> Verdict {
        let (Some(model), Some(before)) = (self.effects.get(identity), before) else { return Ok(()) };
        rerun_is_justified(model, before, token)
    }
}

/// The effect that a command requests a grant for.
fn requested_effect(command: &Command) -> Option<&Identity> {
    let Command::Store(store) = command else { return None };
    match &**store {
        StoreCommand::Begin(Begin { identity, .. }) | StoreCommand::Reacquire(Reacquire { identity, .. }) => {
            Some(identity)
        }
        _ => None,
    }
}

/// A lifetime whose end is in broker time.
fn in_broker_time(lifetime: Lifetime, pending: &PendingCommand) -> Lifetime {
    match lifetime {
        Lifetime::Until(wall) => Lifetime::Until(wall.shifted(-pending.wall_offset)),
        window => window,
    }
}
