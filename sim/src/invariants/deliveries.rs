//! What a delivery must be, judged by those that came before it.

use driftq_core::reply::Delivery;
use driftq_core::state::entry::LastError;
use driftq_core::types::*;

use super::ledger::{GroupBook, Known, Seen, Stream, least_backoff};
use super::observer::Observer;
use super::verdict::{Law, Verdict};
use crate::sometimes::Point;

const WAS_ACCEPTED: Law = Law(3, "nothing is delivered that was not accepted, byte for byte");
const ACKED_STAYS_AWAY: Law = Law(5, "nothing comes back after a confirmed ack, but by seek");
const TOKENS_RISE: Law = Law(7, "tokens rise, across all crashes");
const ONE_HOLDER: Law = Law(8, "a message has one live holder in a group");
const SEEN_IN_FLIGHT: Law = Law(9, "no more is in flight than the limit, by what workers saw");
const WITHIN_PREFETCH: Law = Law(9, "no stream holds more than its prefetch, nor gets more than it asked for in all");
const STREAM_IS_THERE: Law = Law(9, "nothing is delivered to a stream that is gone");
const FIRSTS_ASCEND: Law = Law(10, "first deliveries of equal priority ascend within a partition");
const PRIORITY_FIRST: Law = Law(10, "what is ready and has a higher priority goes first");
const ATTEMPTS_RISE: Law = Law(13, "attempts rise by one for every delivery");
const ERROR_IS_KEPT: Law = Law(13, "a delivery tells the last reason a worker gave");
const DEAD_STAYS_AWAY: Law = Law(14, "a dead letter is never delivered to its group again");
const DEAD_AT_THE_LIMIT: Law = Law(14, "what has failed as often as it may is delivered no more");
const ORIGIN_ALONE: Law = Law(14, "a redriven message is seen by the group that failed it alone");
const NOT_EARLY: Law = Law(15, "nothing is delivered before its delay, backoff or schedule");
const NOT_LATE: Law = Law(15, "nothing is delivered past its deadline");

impl Observer {
    pub(super) fn delivered(&mut self, consumer: ConsumerId, delivery: &Delivery) -> Verdict {
        TOKENS_RISE.holds(self.last_token.is_none_or(|last| last < delivery.token), || {
            format!("{} after {:?}", delivery.token, self.last_token)
        })?;
        self.last_token = Some(delivery.token);

        let stream = self.streams.get_mut(&consumer);
        STREAM_IS_THERE
            .holds(stream.as_ref().is_some_and(|stream| !stream.gone), || format!("{consumer}: {stream:?}"))?;
        let Some(stream) = stream else { return Ok(()) };
        stream.given += 1;
        let stream = stream.clone();
        let at = Timestamp(delivery.lease_until.0 - stream.lease.0);

        let topic = self.topics.get(&stream.topic);
        let known = topic.and_then(|topic| topic.known.get(&delivery.offset)).cloned();
        let same =
            known.as_ref().is_some_and(|known| known.body == delivery.body && known.partition == delivery.partition);
        WAS_ACCEPTED.holds(same, || format!("{delivery:?}, known {known:?}"))?;
        let (Some(topic), Some(known)) = (topic, known) else { return Ok(()) };
        let is_dead_topic = topic.name.is_dead_letter();
        let alone = known.visible_to.is_none_or(|group| group == stream.group);
        ORIGIN_ALONE.holds(alone, || format!("to {:?}: {known:?}", stream.group))?;

        let limit = self.limits.in_flight_max;
        let Some(book) = self.groups.get_mut(&(stream.topic, stream.group)) else { return Ok(()) };
        self.met.hit_if(book.undone.contains(&delivery.offset), Point::SoughtBack);
        book.comes_back(delivery, at)?;
        book.holds_no_more(delivery, at, limit, (consumer, &stream))?;
        book.in_order(delivery, at, &known)?;
        book.counts_on(delivery)?;
        book.in_time(delivery, at, &known, is_dead_topic)?;
        let before = book.seen.remove(&delivery.offset);
        let vague = before.as_ref().map_or(book.crashed, |seen| seen.vague || seen.unsure || seen.crashed);
        let seen = Seen {
            consumer,
            partition: delivery.partition,
            attempts: delivery.attempts,
            failures: delivery.failures,
            token: delivery.token,
            lease_until: delivery.lease_until,
            // A redrive may have taken it away again before the worker hears of it.
            open: known.redriven.is_none(),
            not_before: Timestamp(0),
            reasons: before.map(|seen| seen.reasons).unwrap_or_default(),
            vague,
            unsure: false,
            crashed: false,
        };
        book.seen.insert(delivery.offset, seen);
        Ok(())
    }
}

impl GroupBook {
    fn comes_back(&self, delivery: &Delivery, at: Timestamp) -> Verdict {
        ACKED_STAYS_AWAY.holds(!self.acked.contains(&delivery.offset), || format!("{delivery:?}"))?;
        let dead = self.died(delivery.offset).filter(|(since, _)| !self.sought_since(*since));
        DEAD_STAYS_AWAY
            .holds(dead.is_none_or(|(_, died)| at <= died), || format!("at {at}, died {dead:?}: {delivery:?}"))
    }

    fn holds_no_more(&self, delivery: &Delivery, at: Timestamp, limit: u32, whose: (ConsumerId, &Stream)) -> Verdict {
        let before = self.seen.get(&delivery.offset);
        let free = before.is_none_or(|seen| seen.unsure || !seen.open || seen.lease_until <= at);
        ONE_HOLDER.holds(free, || format!("at {at} {delivery:?}, before {before:?}"))?;
        let held = self.seen.values().filter(|seen| seen.open && !seen.unsure && seen.lease_until > at);
        let here = held.clone().filter(|seen| seen.partition == delivery.partition).count();
        SEEN_IN_FLIGHT.holds((here as u32) < limit, || format!("{here} held at {at}, then {delivery:?}"))?;
        let (consumer, stream) = whose;
        let own = held.filter(|seen| seen.consumer == consumer && !seen.crashed).count();
        let most = stream.asked.deliveries_max.is_none_or(|most| stream.given <= most);
        WITHIN_PREFETCH
            .holds((own as u32) < stream.prefetch && most, || format!("{own} held by {consumer}: {stream:?}"))
    }

    fn in_order(&mut self, delivery: &Delivery, at: Timestamp, known: &Known) -> Verdict {
        let envelope = known.body.metadata().envelope;
        let lane = (delivery.partition, envelope.priority.unwrap_or_default().level());
        let latest = self.served.entry(lane).or_default();
        *latest = at.max(*latest);
        if delivery.attempts > 1 || envelope.deliver_at.is_some() {
            return Ok(());
        }
        // It has been ready since it was produced, so nothing less urgent can have been delivered since.
        let overtaken = self.served.range((delivery.partition, 0)..lane).find(|(_, when)| **when > known.produced_at);
        PRIORITY_FIRST.holds(overtaken.is_none(), || format!("{overtaken:?}, then at {at} {delivery:?}"))?;
        let before = self.firsts.insert(lane, delivery.offset);
        let rising = before.is_none_or(|before| before < delivery.offset);
        FIRSTS_ASCEND.holds(rising, || format!("{before:?}, then {delivery:?}"))
    }

    fn counts_on(&self, delivery: &Delivery) -> Verdict {
        let (attempts, failures) = (delivery.attempts, delivery.failures);
        let (good, before) = match self.seen.get(&delivery.offset) {
            Some(seen) if seen.crashed => (attempts > seen.attempts && failures >= seen.failures, Some(seen)),
            Some(seen) => (attempts == seen.attempts + 1 && failures >= seen.failures, Some(seen)),
            None => (attempts == 1 || self.crashed, None),
        };
        ATTEMPTS_RISE.holds(good && failures < attempts, || format!("{delivery:?}, before {before:?}"))?;
        let good = match (before, &delivery.last_error) {
            (Some(seen), _) if seen.vague || seen.unsure || seen.crashed => true,
            (None, _) if self.crashed => true,
            (Some(seen), LastError::Reason(reason)) => seen.reasons.contains(&**reason),
            // A worker may say the very words.
            (Some(seen), LastError::AckTimeout) => {
                failures > 0 && (seen.reasons.is_empty() || seen.reasons.contains("ack_timeout"))
            }
            (_, LastError::Nothing) => before.is_none_or(|seen| seen.reasons.is_empty()),
            (None, _) => false,
        };
        ERROR_IS_KEPT.holds(good, || format!("{delivery:?}, before {before:?}"))
    }

    fn in_time(&self, delivery: &Delivery, at: Timestamp, known: &Known, is_dead_topic: bool) -> Verdict {
        let envelope = known.body.metadata().envelope;
        let scheduled = envelope.deliver_at.unwrap_or_default();
        NOT_EARLY.holds(scheduled <= at, || format!("at {at}, scheduled for {scheduled}: {delivery:?}"))?;
        let policy = envelope.retry_policy;
        if let Some(seen) = self.seen.get(&delivery.offset).filter(|seen| !seen.unsure) {
            let earliest = match seen.open {
                // The lease ended in silence.
                true => seen.lease_until.after(least_backoff(policy, delivery.failures)),
                false => seen.not_before,
            };
            let found = || format!("at {at}, not before {earliest}: {delivery:?}, before {seen:?}");
            NOT_EARLY.holds(earliest <= at, found)?;
        }
        if is_dead_topic {
            return Ok(());
        }
        let late = envelope.deadline.as_ref().is_some_and(|deadline| deadline.at <= at);
        NOT_LATE.holds(!late, || format!("at {at}: {envelope:?}"))?;
        let most = policy.map_or(0, |policy| policy.max_attempts);
        DEAD_AT_THE_LIMIT.holds(most == 0 || delivery.failures < most, || format!("{policy:?}: {delivery:?}"))
    }
}
