//! Replies: updates the model after each and checks what it implies.

use driftq_core::command::{
    CloseStream, DeleteGroup, DeleteTopic, DeliveryClaim, DescribeTopic, Extend, Nack, OnDisconnect, Peek, Produce,
    Purge, Redrive, RedriveSelection, Retry, Seek, SetPrefetch, TokenClaim, Unsubscribe,
};
use driftq_core::reply::{Produced, StoreReply};
use driftq_core::types::*;
use driftq_core::{Command, Reply};

use super::model::*;
use super::names::{claim, is_ack};
use super::state::Tracker;
use crate::coverage::Point;
use crate::invariants::content::{accepted_is_stored, peek_matches};
use crate::invariants::counts::description_matches;
use crate::invariants::dead_letters::{redrive_within_limit, rest_was_there};
use crate::invariants::dedupe::{ProduceReply, deduped_within_window, new_after_window};
use crate::invariants::fencing::{expired_not_extended, loser_is_refused};
use crate::invariants::lifecycle::{purge_counts_what_was_there, skip_is_justified, skip_is_told, skipped_is_acked};
use crate::invariants::limits::{accepted_within_limits, delay_within_limit, lease_within_limits, query_is_noop};
use crate::invariants::time::least_backoff;
use crate::invariants::verdict::{Verdict, Violation};
use crate::invariants::workers::done_is_the_winners;

impl Tracker {
    /// A reply was released at `now`.
    pub(super) fn replied(&mut self, pending: &PendingCommand, reply: &Reply, now: Timestamp) -> Verdict {
        match (&pending.command, reply) {
            (Command::Produce(produce), Reply::Produced(produced)) => self.produced(pending, produce, produced)?,
            (Command::Subscribe(subscribe), Reply::Subscribed { consumer }) => {
                let stream = StreamModel {
                    topic: pending.topic.expect("subscribed to a topic"),
                    group: pending.group.expect("subscribed to a group"),
                    lease: self.lease(subscribe.lease),
                    prefetch: subscribe.prefetch,
                    request: subscribe.clone(),
                    delivered: 0,
                    last_token: None,
                    is_closed: false,
                    // A stream that was decided before has deliveries that are not released yet.
                    may_be_cut: self.uncertain_at >= Some(pending.after),
                    served_meanwhile: None,
                };
                self.streams.insert(*consumer, stream);
            }
            (Command::SetPrefetch(SetPrefetch { consumer, prefetch }), _) => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.prefetch = *prefetch;
                }
            }
            (Command::Unsubscribe(Unsubscribe { consumer }), _) => self.unsubscribed(*consumer, pending.at),
            (Command::CloseStream(CloseStream { consumer }), _) => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.is_closed = true;
                }
            }
            (Command::Seek(Seek { .. }), _) => {
                if let Some(model) = self.group_model_mut(pending) {
                    model.on_seek(pending.after);
                }
            }
            (Command::DeleteTopic(DeleteTopic { name }), _) => {
                let is_named = |(topic, destination): &(TopicName, TopicName)| [topic, destination].contains(&name);
                self.identities.retain(|(scope, ..), _| !is_named(scope));
                self.mark_effects_unknown(name, None);
            }
            (Command::DeleteGroup(DeleteGroup { topic, group }), _) => self.mark_effects_unknown(topic, Some(group)),
            (Command::AckCumulative(_), _) => self.cumulatively_acked(pending),
            (Command::ExpireLease(expire), _) => self.lease_ended(pending, expire.offset),
            (Command::Complete(complete), reply) => self.step_replied(pending, complete, reply)?,
            (Command::Store(store), reply) => self.store_replied(pending, store, reply, now)?,
            (Command::Peek(Peek { .. }), Reply::Peeked(found)) => {
                let model = pending.topic.and_then(|topic| self.topics.get(&topic));
                for peeked in found {
                    peek_matches(peeked, model.and_then(|model| model.messages.get(&peeked.offset)))?;
                }
            }
            (Command::DescribeTopic(DescribeTopic { .. }), Reply::Topic(info)) => {
                if let Some(counted) = &pending.counted {
                    description_matches(info, counted)?;
                }
            }
            (Command::Purge(Purge { .. }), Reply::Purged { count }) => self.purge_replied(pending, *count)?,
            (Command::Redrive(Redrive { limit, which, .. }), Reply::Redriven { count, rest }) => {
                redrive_within_limit(*count, *limit)?;
                if let (RedriveSelection::All, Some(rest), Some(bounds)) = (which, rest, pending.redrive) {
                    rest_was_there(*rest, bounds)?;
                    self.redrive_ends.insert(rest.dead_topic, bounds.end);
                }
            }
            _ => {}
        }
        query_is_noop(pending)?;
        self.times_within_limits(pending, reply)?;
        self.claim_accepted(pending, reply, now)
    }

    /// A purge was confirmed.
    fn purge_replied(&mut self, pending: &PendingCommand, count: u64) -> Verdict {
        let (Some(before), Some(topic)) = (&pending.purge, pending.topic) else { return Ok(()) };
        purge_counts_what_was_there(count, before)?;
        if let Some(model) = self.topics.get_mut(&topic) {
            let purged = model.messages.values_mut().filter_map(|known| known.purged.as_mut());
            purged.filter(|(lsn, _)| *lsn == pending.after).for_each(|(_, is_confirmed)| *is_confirmed = true);
        }
        for (group, offset) in &before.leased {
            if let Some(model) = self.groups.get_mut(&(topic, *group)) {
                // The token of no delivery: it was not acked.
                let token = LeaseToken { boot: Boot(0), counter: 0 };
                model.winners.insert(*offset, WinnerModel { token, at: pending.at, since: pending.after });
            }
        }
        Ok(())
    }

    /// The lease that a request gets.
    fn lease(&self, requested: Option<Millis>) -> Millis {
        let lease = requested.filter(|lease| lease.0 > 0).unwrap_or(self.limits.lease_default);
        lease.clamp(self.limits.lease_min, self.limits.lease_max)
    }

    /// Checks the leases told and the delays accepted by a reply.
    fn times_within_limits(&self, pending: &PendingCommand, reply: &Reply) -> Verdict {
        let until = match reply {
            Reply::Extended { lease_until } | Reply::Store(StoreReply::Renewed { lease_until }) => Some(*lease_until),
            Reply::Store(StoreReply::Execute { lease_until, .. }) => Some(*lease_until),
            _ => None,
        };
        if let Some(until) = until {
            lease_within_limits(&self.limits, pending.at, until)?;
        }
        match (&pending.command, reply) {
            (Command::Nack(Nack { retry, .. }), _) => delay_within_limit(&self.limits, requested_delay(*retry)),
            (Command::Produce(produce), Reply::Produced(Produced { duplicate: false, .. })) => {
                let until = produce.envelope.deliver_at.map(|at| at.since(pending.at.shifted(pending.wall_offset)));
                delay_within_limit(&self.limits, produce.delay.or(until))
            }
            _ => Ok(()),
        }
    }

    fn produced(&mut self, pending: &PendingCommand, produce: &Produce, produced: &Produced) -> Verdict {
        if !self.accepted(pending.at, produce, produced)? {
            return Ok(());
        }
        accepted_within_limits(pending, produced)?;
        self.skip_replied(pending, produce, produced)?;
        let (topic, number) = (pending.produce.as_ref().map(|destination| destination.topic), number(produce.value()));
        let model = topic.and_then(|topic| self.topics.get_mut(&topic));
        let stored = model.and_then(|model| model.messages.get_mut(&produced.offset));
        accepted_is_stored(produced, number, stored.as_deref())?;
        if let Some(known) = stored {
            known.acknowledged = true;
        }
        Ok(())
    }

    /// A new message was acknowledged: whether it was skipped is told, and justified.
    fn skip_replied(&self, pending: &PendingCommand, produce: &Produce, produced: &Produced) -> Verdict {
        let at_once = pending.acked_at_once.as_ref().filter(|at_once| at_once.offset == produced.offset);
        let (Some(at_once), Some(destination)) = (at_once, &pending.produce) else { return Ok(()) };
        skip_is_told(produced, at_once)?;
        skipped_is_acked(produced, at_once)?;
        let model_of = |group: &GroupId| self.groups.get(&(destination.topic, *group));
        let groups: Vec<&GroupModel> = at_once.groups.iter().filter_map(model_of).collect();
        match done_identity(produce) {
            Some(identity) => skip_is_justified(produced, &groups, &identity),
            None => Ok(()),
        }
    }

    /// A produce was acknowledged. Returns whether the message is new.
    pub(super) fn accepted(
        &mut self,
        at: Timestamp,
        produce: &Produce,
        produced: &Produced,
    ) -> Result<bool, Violation> {
        let Some(key) = dedupe_key(produce) else { return Ok(true) };
        let known = self.identities.get(&key).copied();
        let reply = ProduceReply { key: Some(&key), known, at, produced };
        deduped_within_window(reply)?;
        new_after_window(reply)?;
        match known {
            Some(DedupeEntry::Accepted { expires_at, .. }) if expires_at > at => return Ok(false),
            Some(DedupeEntry::Accepted { .. }) => self.coverage.hit(Point::IdentityExpired),
            Some(DedupeEntry::Unknown) if produced.duplicate => return Ok(false),
            Some(DedupeEntry::Unknown) | None => {}
        }
        let is_same_key = |other: &DedupeKey| (&other.1, &other.2) == (&key.1, &key.2) && other.0 != key.0;
        let is_live =
            |entry: &DedupeEntry| matches!(entry, DedupeEntry::Accepted { expires_at, .. } if *expires_at > at);
        let is_in_two = self.identities.iter().any(|(other, entry)| is_same_key(other) && is_live(entry));
        self.coverage.hit_if(is_in_two, Point::KeyInTwoScopes);
        let Produced { partition, offset, .. } = *produced;
        let expires_at = at.after(self.limits.dedupe_ttl);
        self.identities.insert(key, DedupeEntry::Accepted { partition, offset, expires_at });
        Ok(true)
    }

    fn unsubscribed(&mut self, consumer: ConsumerId, at: Timestamp) {
        let Some(stream) = self.streams.get_mut(&consumer) else { return };
        stream.is_closed = true;
        if stream.request.on_disconnect == OnDisconnect::Release
            && let Some(model) = self.groups.get_mut(&(stream.topic, stream.group))
        {
            for seen in model.seen.values_mut().filter(|seen| seen.consumer == consumer && seen.may_be_held) {
                // If the log was full the lease may still be running until it expires.
                seen.is_uncertain = true;
                seen.not_before = seen.not_before.max(at);
            }
        }
    }

    /// A cumulative ack was confirmed.
    fn cumulatively_acked(&mut self, pending: &PendingCommand) {
        self.coverage.hit_if(pending.cumulative.len() > 1, Point::AckedTogether);
        for offset in &pending.cumulative {
            // A timer may have dead-lettered it before.
            if !pending.no_timer_due {
                self.maybe_acked(pending, *offset);
                continue;
            }
            self.committed(pending, *offset);
            let Some(model) = self.group_model_mut(pending) else { return };
            model.acked.insert(*offset);
            if let Some(seen) = model.seen.get_mut(offset) {
                seen.may_be_held = false;
            }
        }
    }

    /// A message may have been acked or dead-lettered.
    pub(super) fn maybe_acked(&mut self, pending: &PendingCommand, offset: Offset) {
        let identity = self.identity_at(pending, offset);
        if let Some(model) = identity.and_then(|identity| self.effects.get_mut(&identity)) {
            model.mark_unknown();
        }
        let Some(model) = self.group_model_mut(pending) else { return };
        model.maybe_acked.insert(offset);
        if let Some(seen) = model.seen.get_mut(&offset) {
            seen.is_uncertain = true;
        }
    }

    /// The lease of a message was ended by a client.
    fn lease_ended(&mut self, pending: &PendingCommand, offset: Offset) {
        self.coverage.hit(Point::LeaseEnded);
        let model = self.group_model_mut(pending);
        if let Some(seen) = model.and_then(|model| model.seen.get_mut(&offset)) {
            // Also after a restart, when the told end counts.
            seen.lease_until = seen.lease_until.min(pending.at);
            seen.runs_until = seen.runs_until.min(pending.at);
        }
    }

    /// A finish that dead-letters the message of a delivery was confirmed.
    pub(super) fn finish_dead_lettered(&mut self, pending: &PendingCommand, delivery: &DeliveryClaim) {
        let model = self.group_model_mut(pending);
        let Some(seen) = model.and_then(|model| model.seen.get_mut(&delivery.offset)) else { return };
        if delivery.token == TokenClaim::Shown(seen.token) {
            (seen.may_be_held, seen.is_non_retryable) = (false, true);
            self.coverage.hit(Point::DeadByFinish);
        }
    }

    /// A claim was accepted.
    fn claim_accepted(&mut self, pending: &PendingCommand, reply: &Reply, now: Timestamp) -> Verdict {
        let Some(claim) = claim(&pending.command) else { return Ok(()) };
        // The reply to a repeated step confirms that it was completed; a seek may have undone its ack since.
        let is_repeated = matches!(pending.command, Command::Complete(_)) && pending.claim_is_valid == Some(false);
        if is_repeated && !pending.step.is_some_and(|evidence| evidence.done) {
            return Ok(());
        }
        match &pending.command {
            command if is_ack(command) => self.committed(pending, claim.offset),
            Command::Complete(_) => {
                self.coverage.hit(Point::DeadByStep);
                self.failed_for_good(pending, claim.offset);
            }
            _ => {}
        }
        let topic = pending.topic.and_then(|topic| self.topics.get(&topic));
        let known = topic.and_then(|topic| topic.messages.get(&claim.offset));
        // It may have been redriven or purged between the decision and the reply.
        let removed = known.is_some_and(StoredMessage::is_removed);
        // A trimmed message is not looked for in its partition.
        let names_partition = known.is_some_and(|known| known.partition == claim.partition);
        let stored_at = known.map(|known| (known.partition, known.position));
        let metadata = known.map(|known| known.body.metadata());
        let policy = metadata.and_then(|metadata| metadata.envelope.retry_policy);
        let offset = claim.offset;
        let (remembered_for, all_remembered) = (self.winner_ttl, !self.winners_full);
        let Some(model) = self.group_model_mut(pending) else { return Ok(()) };
        if all_remembered && names_partition && !matches!(pending.command, Command::Complete(_)) {
            loser_is_refused(model, claim, (pending.before, pending.at), remembered_for)?;
        }
        // Or the message was delivered again since, and another delivery has won.
        let is_from_before_seek = is_repeated && stored_at.is_some_and(|at| model.seen_before_seek.contains(&at));
        if all_remembered && names_partition && is_ack(&pending.command) && !is_from_before_seek {
            let acks = pending.claim_is_valid == Some(true);
            done_is_the_winners(model, claim, (pending.at, acks), remembered_for)?;
        }
        model.note_winner(pending, claim);
        if is_ack(&pending.command) {
            model.acked.insert(offset);
        }
        let Some(seen) = model.seen.get_mut(&offset) else { return Ok(()) };
        match &pending.command {
            Command::Extend(Extend { .. }) => {
                if !removed {
                    expired_not_extended(claim, pending.at, seen)?;
                }
                seen.is_extended = true;
                if let Reply::Extended { lease_until } = reply {
                    seen.lease_until = *lease_until;
                    seen.runs_until = (*lease_until).max(now.after(lease_until.since(pending.at)));
                }
            }
            Command::Nack(Nack { reason, retry, .. }) => {
                seen.is_non_retryable |= *retry == Retry::Never && pending.claim_is_valid == Some(true);
                let wait = requested_delay(*retry).unwrap_or_else(|| least_backoff(policy, seen.failures + 1));
                if !reason.is_empty() {
                    seen.reasons.insert(reason.to_string());
                }
                if seen.may_be_held {
                    let is_expired = seen.runs_until <= pending.at;
                    let is_last = |policy: RetryPolicy| policy.max_attempts > 0 && seen.attempts >= policy.max_attempts;
                    seen.is_exhausted = !is_expired && policy.is_some_and(is_last);
                    let expiry = seen.runs_until.after(least_backoff(policy, seen.failures + 1));
                    let nacked = pending.at.after(wait);
                    seen.not_before = if is_expired { nacked.min(expiry) } else { nacked };
                }
                seen.may_be_held = false;
            }
            Command::Release(_) if seen.may_be_held => {
                let is_expired = seen.runs_until <= pending.at;
                seen.not_before = if is_expired { seen.runs_until } else { pending.at };
                seen.may_be_held = false;
            }
            // Unless it had expired before.
            Command::Withdraw(_) => (seen.may_be_held, seen.is_uncertain, seen.may_be_withdrawn) = (false, true, true),
            _ => seen.may_be_held = false,
        }
        Ok(())
    }
}

impl GroupModel {
    /// Notes the token of an accepted ack, if the message had been delivered more than once.
    fn note_winner(&mut self, pending: &PendingCommand, claim: &Claim) {
        let (true, TokenClaim::Shown(token)) = (is_ack(&pending.command), claim.token) else { return };
        let seen = self.seen.get(&claim.offset).filter(|seen| seen.token == token && seen.attempts > 1);
        if let (Some(_), Some(true)) = (seen, pending.claim_is_valid) {
            let winner = WinnerModel { token, at: pending.at, since: pending.after };
            self.winners.insert(claim.offset, winner);
        }
    }
}

/// The delay that a nack requests.
fn requested_delay(retry: Retry) -> Option<Millis> {
    if let Retry::After(delay) = retry { Some(delay) } else { None }
}
