//! A message is what was sent: byte for byte, under one offset, in one place.

use driftq_core::command::Produce;
use driftq_core::reply::{Delivery, Peeked, Produced};
use driftq_core::state::partition::Message;
use driftq_core::types::{GroupId, PartitionId, Position};

use super::catalog::{self, sentence};
use super::tracker::model::Known;
use super::verdict::Verdict;

#[doc = sentence!(accepted_is_stored)]
///
/// Unless it was passed over at once, because another of its identity is done.
pub(super) fn accepted_is_stored(
    produced: &Produced,
    number: Option<u64>,
    stored: Option<&Known>,
    is_skipped: bool,
) -> Verdict {
    let good = stored.map_or(is_skipped, |known| Some(known.number) == number);
    catalog::ACCEPTED_IS_STORED.holds(good, || format!("{produced:?} of produce {number:?} is {stored:?}"))
}

#[doc = sentence!(delivered_was_accepted)]
pub(super) fn delivered_was_accepted(delivery: &Delivery, known: Option<&Known>) -> Verdict {
    let same = known.is_some_and(|known| {
        (known.partition, known.produced_at) == (delivery.partition, delivery.produced_at)
            && known.body == delivery.body
    });
    catalog::DELIVERED_WAS_ACCEPTED.holds(same, || format!("{delivery:?}, known {known:?}"))
}

#[doc = sentence!(stored_was_produced)]
///
/// Routing may choose the place, and a delay becomes a moment; nothing else is added or taken away. What became a dead
/// letter or comes from one is judged by the laws about those: here it is enough that somebody has sent it.
pub(super) fn stored_was_produced(message: &Message, sent: Option<&Produce>) -> Verdict {
    let same = sent.is_some_and(|sent| {
        let meta = message.body.metadata();
        if meta.dead_letter.is_some() || meta.redrive.is_some() {
            return true;
        }
        let mut envelope = sent.envelope.clone();
        if let Some(delay) = sent.delay {
            envelope.deliver_at = Some(message.produced_at.after(delay));
        }
        if sent.routing.is_some() && meta.routing.is_some() {
            envelope.target_topic.clone_from(&meta.envelope.target_topic);
            envelope.partition_override = meta.envelope.partition_override;
        }
        (message.body.key(), message.body.value()) == (&*sent.key, &*sent.value)
            && meta.envelope == envelope
            && meta.trace == sent.trace
    });
    catalog::STORED_WAS_PRODUCED.holds(same, || format!("{message:?} of {sent:?}"))
}

#[doc = sentence!(offset_is_stable)]
pub(super) fn offset_is_stable(
    message: &Message,
    place: (PartitionId, Position),
    seen_by: Option<GroupId>,
    known: &Known,
) -> Verdict {
    let same = (known.partition, known.position) == place
        && known.visible_to == seen_by
        && known.produced_at == message.produced_at
        && known.body == message.body;
    catalog::OFFSET_IS_STABLE.holds(same, || format!("{message:?} at {place:?} for {seen_by:?} was {known:?}"))
}

#[doc = sentence!(peek_matches)]
pub(super) fn peek_matches(peeked: &Peeked, known: Option<&Known>) -> Verdict {
    let same = known.is_some_and(|known| known.body == peeked.body);
    catalog::PEEK_MATCHES.holds(same, || format!("peeked {peeked:?}, known {known:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::Body;
    use driftq_core::types::{Offset, Timestamp};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn a_delivery_of_other_bytes_at_another_time_or_elsewhere_was_not_accepted() {
        fine(delivered_was_accepted(&delivery(), Some(&known())));
        breaks(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&delivery(), None));
        let other = Delivery { body: Body::bare(b"", b"8"), ..delivery() };
        breaks(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
        let other = Delivery { produced_at: Timestamp(51), ..delivery() };
        breaks(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
        let other = Delivery { partition: PartitionId(1), ..delivery() };
        breaks(catalog::DELIVERED_WAS_ACCEPTED, delivered_was_accepted(&other, Some(&known())));
    }

    #[test]
    fn a_peek_that_shows_another_body_shows_what_was_never_stored() {
        let peeked = |value| Peeked { offset: Offset(3), produced_at: Timestamp(50), body: Body::bare(b"", value) };
        fine(peek_matches(&peeked(b"7"), Some(&known())));
        breaks(catalog::PEEK_MATCHES, peek_matches(&peeked(b"8"), Some(&known())));
    }
}
