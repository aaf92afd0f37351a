//! Deliveries: what a worker has seen, and what it must have been by what it saw before.

use driftq_core::reply::Delivery;
use driftq_core::types::*;

use super::model::{GroupModel, Known, Seen, Stream};
use super::observer::Observer;
use crate::coverage::Point;
use crate::invariants::attempts::{attempts_increment, last_error_reported};
use crate::invariants::content::delivered_was_accepted;
use crate::invariants::dead_letters::{dead_not_redelivered, exhausted_not_redelivered, redriven_delivered_to_origin};
use crate::invariants::fencing::{one_lease_holder, tokens_increase};
use crate::invariants::in_flight::{observed_in_flight, stream_is_open, within_prefetch};
use crate::invariants::lifecycle::acked_not_redelivered;
use crate::invariants::order::{Lane, first_deliveries_ascend, priority_first};
use crate::invariants::time::{not_after_deadline, not_before_due};
use crate::invariants::verdict::Verdict;

/// A delivery, and what was known of its stream and its message before.
pub(crate) struct Handed<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) consumer: ConsumerId,
    pub(crate) stream: &'a Stream,
    pub(crate) known: &'a Known,
    /// The message's envelope, as it was stored.
    pub(crate) envelope: &'a Envelope,
    /// It stands in a dead-letter topic.
    pub(crate) is_dead_letter: bool,
    /// When it was handed out.
    pub(crate) at: Timestamp,
}

impl Handed<'_> {
    /// Within what it is delivered in order.
    pub(crate) fn lane(&self) -> Lane {
        (self.delivery.partition, self.envelope.priority.unwrap_or_default().level())
    }
}

impl Observer {
    pub(super) fn delivered(&mut self, consumer: ConsumerId, delivery: &Delivery) -> Verdict {
        tokens_increase(self.last_token, delivery.token)?;
        self.last_token = Some(delivery.token);

        stream_is_open(consumer, self.streams.get(&consumer))?;
        let Some(stream) = self.streams.get_mut(&consumer) else { return Ok(()) };
        stream.given += 1;
        let topic = self.topics.get(&stream.topic);
        let known = topic.and_then(|topic| topic.known.get(&delivery.offset));
        delivered_was_accepted(delivery, known)?;
        let (Some(topic), Some(known)) = (topic, known) else { return Ok(()) };
        let handed = Handed {
            delivery,
            consumer,
            stream,
            known,
            envelope: &known.body.metadata().envelope,
            is_dead_letter: topic.name.is_dead_letter(),
            at: Timestamp(delivery.lease_until.0.saturating_sub(stream.lease.0)),
        };
        redriven_delivered_to_origin(&handed)?;

        let Some(book) = self.groups.get_mut(&(stream.topic, stream.group)) else { return Ok(()) };
        self.coverage.hit_if(book.undone.contains(&delivery.offset), Point::RedeliveredBySeek);
        acked_not_redelivered(book, delivery)?;
        dead_not_redelivered(book, delivery, handed.at)?;
        one_lease_holder(book, delivery, handed.at)?;
        observed_in_flight(book, &handed, &self.limits)?;
        within_prefetch(book, &handed)?;
        book.in_order(&handed)?;
        attempts_increment(book, delivery)?;
        last_error_reported(book, delivery)?;
        not_before_due(book, &handed)?;
        not_after_deadline(&handed)?;
        exhausted_not_redelivered(&handed)?;
        book.see(&handed);
        Ok(())
    }
}

impl GroupModel {
    /// Takes note of when its lane was served, and of first deliveries that were ready from the beginning.
    fn in_order(&mut self, handed: &Handed<'_>) -> Verdict {
        let lane = handed.lane();
        let latest = self.served.entry(lane).or_default();
        *latest = handed.at.max(*latest);
        if handed.delivery.attempts > 1 || handed.envelope.deliver_at.is_some() {
            return Ok(());
        }
        priority_first(self, handed)?;
        first_deliveries_ascend(self.firsts.insert(lane, handed.delivery.offset), handed)
    }

    fn see(&mut self, handed: &Handed<'_>) {
        let delivery = handed.delivery;
        let before = self.seen.remove(&delivery.offset);
        let vague = before.as_ref().map_or(self.crashed, |seen| seen.vague || seen.unsure || seen.crashed);
        let seen = Seen {
            consumer: handed.consumer,
            partition: delivery.partition,
            attempts: delivery.attempts,
            failures: delivery.failures,
            token: delivery.token,
            lease_until: delivery.lease_until,
            // A redrive may have taken it away again before the worker hears of it.
            open: handed.known.redriven.is_none(),
            not_before: Timestamp(0),
            reasons: before.map(|seen| seen.reasons).unwrap_or_default(),
            vague,
            unsure: false,
            crashed: false,
        };
        self.seen.insert(delivery.offset, seen);
    }
}
