//! Message content: byte for byte what was produced, under a stable offset.

use driftq_core::Body;
use driftq_core::command::Produce;
use driftq_core::reply::{Delivery, Peeked, Produced};
use driftq_core::state::Message;
use driftq_core::types::{GroupId, PartitionId, Position};

use super::catalog::{self, sentence};
use super::tracker::model::{StoredMessage, without_place};
use super::verdict::Verdict;
use crate::oracle::left_of;

#[doc = sentence!(accepted_is_stored)]
///
/// Except for a message that was skipped: it may be trimmed at once.
pub(super) fn accepted_is_stored(produced: &Produced, number: Option<u64>, stored: Option<&StoredMessage>) -> Verdict {
    let good = stored.map_or(produced.already_done, |known| Some(known.number) == number);
    catalog::ACCEPTED_IS_STORED.holds(good, || format!("{produced:?} of produce {number:?} is {stored:?}"))
}

#[doc = sentence!(delivered_was_accepted)]
pub(super) fn delivered_was_accepted(delivery: &Delivery, known: Option<&StoredMessage>) -> Verdict {
    let same = known.is_some_and(|known| {
        (known.partition, known.produced_at) == (delivery.partition, delivery.produced_at)
            && is_body_of(&delivery.body, known)
    });
    catalog::DELIVERED_WAS_ACCEPTED.holds(same, || format!("{delivery:?}, known {known:?}"))
}

#[doc = sentence!(stored_was_produced)]
///
/// Routing may set the target and a delay becomes a timestamp; nothing else may change. Dead letters and redriven
/// messages have checks of their own: here it is enough that a message with that number was produced.
///
/// `body` is the message as clients see it, `None` if its payload was never written.
pub(super) fn stored_was_produced(message: &Message, body: Option<&Body>, produce: Option<&Produce>) -> Verdict {
    let same = body.zip(produce).is_some_and(|(body, produce)| {
        let meta = body.metadata();
        if meta.dead_letter.is_some() || meta.redrive.is_some() {
            return true;
        }
        let mut envelope = produce.envelope.clone();
        envelope.delayed_until = produce.delay.map(|delay| message.produced_at.after(delay));
        if produce.routing.is_some() && meta.routing.is_some() {
            envelope.target_topic.clone_from(&meta.envelope.target_topic);
            envelope.partition_override = meta.envelope.partition_override;
        }
        (body.key(), body.value()) == (produce.key(), produce.value())
            && meta.envelope == envelope
            && meta.trace == produce.trace
    });
    catalog::STORED_WAS_PRODUCED.holds(same, || format!("{message:?} of {produce:?}"))
}

#[doc = sentence!(offset_is_stable)]
pub(super) fn offset_is_stable(
    message: &Message,
    location: (PartitionId, Position),
    visible_to: Option<GroupId>,
    known: &StoredMessage,
) -> Verdict {
    let same = (known.partition, known.position) == location
        && known.visible_to == visible_to
        && known.produced_at == message.produced_at
        && known.message == without_place(message);
    catalog::OFFSET_IS_STABLE.holds(same, || format!("{message:?} at {location:?} for {visible_to:?} was {known:?}"))
}

/// Whether a client may see this body of a message: byte for byte what was produced, or, if the payload was found
/// damaged, what is left of it.
fn is_body_of(body: &Body, known: &StoredMessage) -> bool {
    let is_left = || {
        let meta = body.metadata();
        let is_empty = body.key().is_empty() && body.value().is_empty();
        is_empty && meta.lost.as_ref().is_some_and(|damage| meta == left_of(&known.body.metadata(), damage))
    };
    known.body == *body || known.is_lost && is_left()
}

#[doc = sentence!(peek_matches)]
pub(super) fn peek_matches(peeked: &Peeked, known: Option<&StoredMessage>) -> Verdict {
    let same = known.is_some_and(|known| is_body_of(&peeked.body, known));
    catalog::PEEK_MATCHES.holds(same, || format!("peeked {peeked:?}, known {known:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{Offset, Timestamp};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn delivery_with_other_body_time_or_partition_is_a_violation() {
        holds(delivered_was_accepted(&delivery(), Some(&known())));
        violates(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&delivery(), None));
        let other = Delivery { body: Body::bare(b"", b"8"), ..delivery() };
        violates(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
        let other = Delivery { produced_at: Timestamp(51), ..delivery() };
        violates(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
        let other = Delivery { partition: PartitionId(1), ..delivery() };
        violates(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
    }

    #[test]
    fn peek_of_another_body_is_a_violation() {
        let peeked = |value| Peeked { offset: Offset(3), produced_at: Timestamp(50), body: Body::bare(b"", value) };
        holds(peek_matches(&peeked(b"7"), Some(&known())));
        violates(catalog::PEEK_MATCHES, peek_matches(&peeked(b"8"), Some(&known())));
    }
}
