//! How much is handed out at once, to a group and to a stream.

use driftq_core::state::group::{Group, Progress};
use driftq_core::types::{ConsumerId, Limits, Timestamp};

use super::catalog::{self, sentence};
use super::counts::leased;
use super::tracker::deliveries::Handed;
use super::tracker::model::{GroupModel, PartitionView, Seen, Stream};
use super::verdict::Verdict;

#[doc = sentence!(stream_is_open)]
pub(super) fn stream_is_open(consumer: ConsumerId, stream: Option<&Stream>) -> Verdict {
    let there = stream.is_some_and(|stream| !stream.gone);
    catalog::STREAM_IS_OPEN.holds(there, || format!("{consumer}: {stream:?}"))
}

#[doc = sentence!(observed_in_flight)]
pub(super) fn observed_in_flight(book: &GroupModel, handed: &Handed<'_>, limits: &Limits) -> Verdict {
    let partition = handed.delivery.partition;
    let here = held(book, handed.at).filter(|seen| seen.partition == partition).count();
    catalog::OBSERVED_IN_FLIGHT.holds((here as u32) < limits.in_flight_max, || {
        format!("{here} held at {}, then {:?}", handed.at, handed.delivery)
    })
}

#[doc = sentence!(within_prefetch)]
pub(super) fn within_prefetch(book: &GroupModel, handed: &Handed<'_>) -> Verdict {
    let (consumer, stream) = (handed.consumer, handed.stream);
    let own = held(book, handed.at).filter(|seen| seen.consumer == consumer && !seen.crashed).count();
    let most = stream.asked.deliveries_max.is_none_or(|most| stream.given <= most);
    catalog::WITHIN_PREFETCH
        .holds((own as u32) < stream.prefetch && most, || format!("{own} held by {consumer}: {stream:?}"))
}

#[doc = sentence!(leased_in_flight)]
pub(super) fn leased_in_flight(
    partition_view: &PartitionView<'_>,
    group: &Group,
    progress: &Progress,
    limits: &Limits,
) -> Verdict {
    let leased = leased(progress);
    catalog::LEASED_IN_FLIGHT.holds(leased <= limits.in_flight_max, || {
        format!("{partition_view} {}: {leased} in {progress:?}", group.name())
    })
}

/// What workers of the group certainly hold.
fn held(book: &GroupModel, at: Timestamp) -> impl Iterator<Item = &Seen> {
    book.seen.values().filter(move |seen| seen.open && !seen.unsure && seen.lease_until > at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn a_stream_that_is_gone_or_never_was_gets_nothing() {
        fine(stream_is_open(ConsumerId(0), Some(&stream())));
        let gone = Stream { gone: true, ..stream() };
        breaks(catalog::STREAM_IS_OPEN, stream_is_open(ConsumerId(0), Some(&gone)));
        breaks(catalog::STREAM_IS_OPEN, stream_is_open(ConsumerId(0), None));
    }
}
