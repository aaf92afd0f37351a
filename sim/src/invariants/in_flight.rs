//! How much is handed out at once, to a group and to a stream.

use driftq_core::state::group::{Group, Progress};
use driftq_core::types::{ConsumerId, Limits, Timestamp};

use super::books::deliveries::Handed;
use super::books::ledger::{GroupBook, Seen, Shelf, Stream};
use super::counting::leased;
use super::laws::{self, sentence};
use super::verdict::Verdict;

#[doc = sentence!(stream_is_there)]
pub(super) fn stream_is_there(consumer: ConsumerId, stream: Option<&Stream>) -> Verdict {
    let there = stream.is_some_and(|stream| !stream.gone);
    laws::STREAM_IS_THERE.holds(there, || format!("{consumer}: {stream:?}"))
}

#[doc = sentence!(seen_in_flight)]
pub(super) fn seen_in_flight(book: &GroupBook, handed: &Handed<'_>, limits: &Limits) -> Verdict {
    let partition = handed.delivery.partition;
    let here = held(book, handed.at).filter(|seen| seen.partition == partition).count();
    laws::SEEN_IN_FLIGHT.holds((here as u32) < limits.in_flight_max, || {
        format!("{here} held at {}, then {:?}", handed.at, handed.delivery)
    })
}

#[doc = sentence!(within_prefetch)]
pub(super) fn within_prefetch(book: &GroupBook, handed: &Handed<'_>) -> Verdict {
    let (consumer, stream) = (handed.consumer, handed.stream);
    let own = held(book, handed.at).filter(|seen| seen.consumer == consumer && !seen.crashed).count();
    let most = stream.asked.deliveries_max.is_none_or(|most| stream.given <= most);
    laws::WITHIN_PREFETCH
        .holds((own as u32) < stream.prefetch && most, || format!("{own} held by {consumer}: {stream:?}"))
}

#[doc = sentence!(leased_in_flight)]
pub(super) fn leased_in_flight(shelf: &Shelf<'_>, group: &Group, progress: &Progress, limits: &Limits) -> Verdict {
    let leased = leased(progress);
    laws::LEASED_IN_FLIGHT
        .holds(leased <= limits.in_flight_max, || format!("{shelf} {}: {leased} in {progress:?}", group.name()))
}

/// What workers of the group certainly hold.
fn held(book: &GroupBook, at: Timestamp) -> impl Iterator<Item = &Seen> {
    book.seen.values().filter(move |seen| seen.open && !seen.unsure && seen.lease_until > at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::forge::*;

    #[test]
    fn a_stream_that_is_gone_or_never_was_gets_nothing() {
        fine(stream_is_there(ConsumerId(0), Some(&stream())));
        let gone = Stream { gone: true, ..stream() };
        breaks(laws::STREAM_IS_THERE, stream_is_there(ConsumerId(0), Some(&gone)));
        breaks(laws::STREAM_IS_THERE, stream_is_there(ConsumerId(0), None));
    }
}
