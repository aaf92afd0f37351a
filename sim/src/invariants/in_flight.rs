//! In-flight limits of groups and streams.

use driftq_core::state::{Group, Progress};
use driftq_core::types::{Boot, ConsumerId, DeliveryState, Limits, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{DeliveryContext, GroupModel, PartitionView, SeenDelivery, StreamModel};
use super::tracker::recount::leased;
use super::verdict::Verdict;

#[doc = sentence!(stream_is_open)]
pub(super) fn stream_is_open(consumer: ConsumerId, stream: Option<&StreamModel>) -> Verdict {
    let is_open = stream.is_some_and(|stream| !stream.is_closed);
    catalog::STREAM_IS_OPEN.holds(is_open, || format!("{consumer}: {stream:?}"))
}

#[doc = sentence!(observed_in_flight)]
pub(super) fn observed_in_flight(model: &GroupModel, context: &DeliveryContext<'_>, limits: &Limits) -> Verdict {
    let partition = context.delivery.partition;
    let held_here = held(model, context.at).filter(|seen| seen.partition == partition).count();
    catalog::OBSERVED_IN_FLIGHT.holds((held_here as u32) < limits.in_flight_max, || {
        format!("{held_here} held at {}, then {:?}", context.at, context.delivery)
    })
}

#[doc = sentence!(within_prefetch)]
pub(super) fn within_prefetch(model: &GroupModel, context: &DeliveryContext<'_>) -> Verdict {
    let (consumer, stream) = (context.consumer, context.stream);
    let own = held(model, context.at).filter(|seen| seen.consumer == consumer && !seen.crashed).count();
    let within_limit = stream.request.deliveries_max.is_none_or(|max| stream.delivered <= max);
    catalog::WITHIN_PREFETCH
        .holds((own as u32) < stream.prefetch && within_limit, || format!("{own} held by {consumer}: {stream:?}"))
}

#[doc = sentence!(leased_in_flight)]
pub(super) fn leased_in_flight(
    partition_view: &PartitionView<'_>,
    group: &Group,
    progress: &Progress,
    (limits, boot): (&Limits, Boot),
) -> Verdict {
    let leased = leased(progress);
    // Under a higher limit before the start there may have been more; none is given until there are fewer.
    let is_new = |entry: &DeliveryState| entry.leased_until().is_some() && entry.token.boot == boot;
    let has_new = || progress.deliveries().any(|(_, entry)| is_new(entry));
    catalog::LEASED_IN_FLIGHT.holds(leased <= limits.in_flight_max || !has_new(), || {
        format!("{partition_view} {}: {leased} in {progress:?}", group.name())
    })
}

/// The deliveries that workers of the group certainly hold.
fn held(model: &GroupModel, at: Timestamp) -> impl Iterator<Item = &SeenDelivery> {
    model.seen.values().filter(move |seen| seen.may_be_held && !seen.is_uncertain && seen.runs_until > at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn delivery_to_closed_or_unknown_stream_is_a_violation() {
        holds(stream_is_open(ConsumerId(0), Some(&stream())));
        let closed = StreamModel { is_closed: true, ..stream() };
        violates(catalog::STREAM_IS_OPEN, stream_is_open(ConsumerId(0), Some(&closed)));
        violates(catalog::STREAM_IS_OPEN, stream_is_open(ConsumerId(0), None));
    }
}
