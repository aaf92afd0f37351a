//! Deliveries: checked against what workers saw before.

use driftq_core::command::TokenClaim;
use driftq_core::reply::Delivery;
use driftq_core::state::State;
use driftq_core::types::*;

use super::model::{DeliveryContext, GroupModel, PendingCommand, SeenDelivery, StoredMessage};
use super::names::claim;
use super::state::Tracker;
use crate::coverage::Point;
use crate::invariants::attempts::{attempts_increment, last_error_reported};
use crate::invariants::content::delivered_was_accepted;
use crate::invariants::dead_letters::{dead_not_redelivered, exhausted_not_redelivered, redriven_delivered_to_origin};
use crate::invariants::fencing::{one_lease_holder, tokens_increase};
use crate::invariants::in_flight::{observed_in_flight, stream_is_open, within_prefetch};
use crate::invariants::lifecycle::{acked_not_redelivered, purged_not_redelivered};
use crate::invariants::order::{first_deliveries_ascend, priority_first};
use crate::invariants::time::{not_after_deadline, not_before_due};
use crate::invariants::verdict::Verdict;
use crate::invariants::workers::attempt_was_seen;

impl Tracker {
    /// A delivery was released at `now`.
    pub(super) fn delivered(&mut self, consumer: ConsumerId, delivery: &Delivery, now: Timestamp) -> Verdict {
        let is_late = self.is_reading && Some(delivery.token) < self.last_token;
        let of_stream = self.streams.get(&consumer).and_then(|stream| stream.last_token);
        let last = if is_late { of_stream.max(self.earlier_token) } else { self.last_token };
        let is_repeated = !self.released.insert(delivery.token);
        tokens_increase(if is_repeated { Some(delivery.token) } else { last }, delivery.token)?;
        self.last_token = self.last_token.max(Some(delivery.token));

        let stream = self.streams.get(&consumer);
        if !self.is_reading || stream.is_none() {
            // The reply that says that it is closed may have left before a delivery that waited for bytes.
            stream_is_open(consumer, stream)?;
        }
        let Some(stream) = self.streams.get_mut(&consumer) else { return Ok(()) };
        stream.delivered += 1;
        stream.last_token = Some(delivery.token);
        let topic = self.topics.get(&stream.topic);
        let known = topic.and_then(|topic| topic.messages.get(&delivery.offset));
        delivered_was_accepted(delivery, known)?;
        let (Some(topic), Some(known)) = (topic, known) else { return Ok(()) };
        let at = Timestamp(delivery.lease_until.0.saturating_sub(stream.lease.0));
        let context = DeliveryContext {
            delivery,
            consumer,
            stream,
            known,
            envelope: &known.body.metadata().envelope,
            is_dead_letter: topic.name.is_dead_letter(),
            at,
            walls: self.wall.walls(at),
        };
        redriven_delivered_to_origin(&context)?;
        purged_not_redelivered(known, delivery)?;

        let Some(model) = self.groups.get_mut(&(stream.topic, stream.group)) else { return Ok(()) };
        self.coverage.hit_if(model.acked_before_seek.contains(&delivery.offset), Point::RedeliveredBySeek);
        acked_not_redelivered(model, delivery)?;
        dead_not_redelivered(model, delivery, context.at)?;
        one_lease_holder(model, delivery, context.at)?;
        if !is_late {
            // Of what was delivered before it, some was decided after it.
            observed_in_flight(model, &context, &self.limits)?;
        }
        if !self.is_reading {
            // The reply that changed the prefetch may have left before it.
            within_prefetch(model, &context)?;
        }
        if !is_late {
            model.check_order(&context)?;
        }
        attempts_increment(model, delivery)?;
        last_error_reported(model, delivery)?;
        not_before_due(model, &context)?;
        not_after_deadline(&context)?;
        exhausted_not_redelivered(model, &context, self.was_adaptive)?;
        attempt_was_seen(model, delivery, (known.partition, known.position))?;
        let before = model.seen.get(&delivery.offset).map(|seen| (seen.consumer, seen.failures));
        model.observe(&context, now);
        self.note_turn(consumer, before.filter(|(_, failures)| *failures < delivery.failures).map(|(id, _)| id))
    }
}

impl Tracker {
    /// A delivery was withdrawn before it was released.
    pub(crate) fn withdrawn(&mut self, message_ref: &MessageRef) {
        if let Some(model) = self.groups.get_mut(&(message_ref.topic, message_ref.group)) {
            model.withdrawn.insert((message_ref.partition, message_ref.position));
        }
    }
}

impl Tracker {
    /// After a decision: an answer without a token may be to a delivery that no client has seen yet, nor will.
    pub(super) fn note_unseen_answer(&mut self, state: &State, pending: &PendingCommand) {
        let claim = claim(&pending.command).filter(|claim| claim.token == TokenClaim::Absent);
        let (Some(topic), Some(group)) = (pending.topic, pending.group) else { return };
        let Some(model) = self.groups.get_mut(&(topic, group)) else { return };
        for offset in claim.map(|claim| claim.offset).into_iter().chain(pending.cumulative.iter().copied()) {
            let known = self.topics.get(&topic).and_then(|topic| topic.messages.get(&offset));
            if let Some(known) = known {
                *model.could_see.entry((known.partition, known.position)).or_default() += 1;
            }
            let newest = known.and_then(|known| newest_token(state, (topic, group), known));
            model.answered_unseen.insert(offset, newest);
            match model.seen.get_mut(&offset) {
                Some(seen) => (seen.crashed, seen.is_uncertain) = (true, true),
                None => model.crashed = true,
            }
        }
    }
}

/// Whether a message was held back.
fn is_delayed(envelope: &Envelope) -> bool {
    envelope.deliver_at.is_some() || envelope.delayed_until.is_some()
}

impl GroupModel {
    /// Records the delivery time, and checks the order of first deliveries that were ready from the start.
    fn check_order(&mut self, context: &DeliveryContext<'_>) -> Verdict {
        let order_key = context.order_key();
        let latest = self.last_delivered.entry(order_key).or_default();
        *latest = context.at.max(*latest);
        let is_withdrawn = self.withdrawn.contains(&(context.known.partition, context.known.position));
        if context.delivery.attempts > 1 || is_delayed(context.envelope) || is_withdrawn {
            return Ok(());
        }
        priority_first(self, context)?;
        first_deliveries_ascend(self.first_deliveries.insert(order_key, context.delivery.offset), context)
    }

    fn observe(&mut self, context: &DeliveryContext<'_>, now: Timestamp) {
        let delivery = context.delivery;
        *self.could_see.entry((context.known.partition, context.known.position)).or_default() += 1;
        let before = self.seen.remove(&delivery.offset);
        let continued = before.as_ref().filter(|seen| seen.consumer == context.consumer).map(|seen| seen.since_token);
        let is_unknown =
            before.as_ref().map_or(self.crashed, |seen| seen.is_unknown || seen.is_uncertain || seen.crashed);
        let answered = self.answered_unseen.get(&delivery.offset).copied();
        let is_uncertain = answered.is_some();
        let is_newer_answered = answered.flatten().is_some_and(|newest| delivery.token < newest);
        if !is_newer_answered {
            self.answered_unseen.remove(&delivery.offset);
        }
        // The delivery may have waited for bytes while its lease was extended without a token.
        let extended = before.as_ref().filter(|seen| is_uncertain && seen.is_extended).map(|seen| seen.runs_until);
        let runs_until = delivery.lease_until.max(now.after(context.stream.lease));
        let seen = SeenDelivery {
            consumer: context.consumer,
            partition: delivery.partition,
            attempts: delivery.attempts,
            failures: delivery.failures,
            token: delivery.token,
            since_token: continued.unwrap_or(delivery.token),
            is_extended: false,
            lease_until: delivery.lease_until,
            runs_until: extended.map_or(runs_until, |extended| extended.max(runs_until)),
            // A redrive or a purge may have removed it before the worker receives it.
            may_be_held: !context.known.is_removed(),
            not_before: Timestamp(0),
            reasons: before.map(|seen| seen.reasons).unwrap_or_default(),
            may_be_withdrawn: false,
            is_exhausted: false,
            is_non_retryable: false,
            is_unknown,
            is_uncertain,
            // The answer may be to a newer delivery, which never leaves.
            crashed: is_newer_answered,
        };
        self.seen.insert(delivery.offset, seen);
    }
}

/// The token of the newest delivery of a message to a group.
fn newest_token(state: &State, (topic, group): (TopicId, GroupId), message: &StoredMessage) -> Option<LeaseToken> {
    let progress = state.topic(topic)?.group(group)?.progress(message.partition)?;
    progress.delivery(message.position).map(|delivery| delivery.token)
}
