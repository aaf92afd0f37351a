//! Streams: their leases, their credit and their unanswered deliveries.

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::types::{ConsumerId, MessageRef};
use driftq_core::volatile::{ConsumerContents, DeliveryStatus, LeaseEnd, UnansweredContents};

use super::IndexView;
use crate::invariants::catalog::{self, sentence};
use crate::invariants::verdict::Verdict;

/// The live leases of a stream, by order.
type Leases = BTreeMap<u64, MessageRef>;

#[doc = sentence!(streams_match_leases)]
pub(super) fn streams_match_leases(view: &IndexView<'_>) -> Verdict {
    let mut leases: BTreeMap<ConsumerId, Leases> = BTreeMap::new();
    for at in view.group_partitions() {
        let topic = view.index.topics.get(&at.topic.id());
        let cursor = topic.and_then(|topic| topic.groups.get(&at.group.id())?.cursors.get(at.id.0 as usize));
        for (position, lease) in cursor.into_iter().flat_map(|cursor| &cursor.leases) {
            if at.progress.delivery(*position).is_none() {
                return violated(lease.stream, &format!("{:?} was not delivered: {lease:?}", at.at(*position)));
            }
            if lease.end != LeaseEnd::Expired {
                leases.entry(lease.stream).or_default().insert(lease.order, at.at(*position));
            }
        }
    }
    for (id, consumer) in &view.index.consumers {
        let held = leases.remove(id).unwrap_or_default();
        check_consumer(view, *id, consumer, &held)?;
        check_unanswered(*id, &consumer.unanswered, &held)?;
    }
    for (id, unanswered) in &view.index.ended_streams {
        let held = leases.remove(id).unwrap_or_default();
        if held.is_empty() || view.index.consumers.contains_key(id) {
            return violated(*id, &format!("it has ended, its leases too: {unanswered:?}"));
        }
        check_unanswered(*id, unanswered, &held)?;
    }
    if let Some((id, held)) = leases.first_key_value() {
        return violated(*id, &format!("no such stream, but {held:?}"));
    }
    for (topic, contents) in &view.index.topics {
        for (group, contents) in &contents.groups {
            let of_group = |consumer: &ConsumerContents| (consumer.topic, consumer.group) == (*topic, *group);
            let members = view.index.consumers.iter().filter(|(_, consumer)| of_group(consumer));
            let with_turn = |last: bool| {
                let has_turn = move |consumer: &ConsumerContents| {
                    consumer.in_flight < consumer.credit
                        && consumer.deliveries_left != Some(0)
                        && consumer.is_last_resort == last
                };
                members.clone().filter(|(_, consumer)| has_turn(consumer)).map(|(id, _)| *id).collect::<BTreeSet<_>>()
            };
            let all: BTreeSet<_> = members.clone().map(|(id, _)| *id).collect();
            let good = all == contents.members
                && with_turn(false) == contents.with_credit
                && with_turn(true) == contents.last_resort;
            catalog::STREAMS_MATCH_LEASES.holds(good, || {
                format!("{topic:?} {group:?}: {contents:?} of {:?}", members.clone().collect::<Vec<_>>())
            })?;
        }
    }
    Ok(())
}

fn violated(stream: ConsumerId, what: &str) -> Verdict {
    catalog::STREAMS_MATCH_LEASES.holds(false, || format!("{stream:?}: {what}"))
}

fn check_consumer(view: &IndexView<'_>, id: ConsumerId, consumer: &ConsumerContents, held: &Leases) -> Verdict {
    let exists = view.state.topic(consumer.topic).is_some_and(|topic| topic.group(consumer.group).is_some());
    let is_full_credit = view.limits.adaptive_credit || consumer.credit == consumer.prefetch;
    let released = consumer.leases.iter().copied();
    let listed: BTreeSet<_> =
        held.values().filter(|_| consumer.releases).map(|at| (at.partition, at.position)).collect();
    let good = exists
        && consumer.in_flight as usize == held.len()
        && consumer.credit <= consumer.prefetch
        && is_full_credit
        && released.eq(listed);
    catalog::STREAMS_MATCH_LEASES.holds(good, || format!("{id:?}: {consumer:?} holds {held:?}"))
}

fn check_unanswered(id: ConsumerId, unanswered: &UnansweredContents, held: &Leases) -> Verdict {
    let UnansweredContents { entries, leased, ended } = unanswered;
    let count = |status| entries.iter().filter(|(.., of)| *of == status).count();
    let live = entries.iter().filter(|(.., status)| *status == DeliveryStatus::Leased);
    let good = live.map(|(order, at, _)| (*order, *at)).eq(held.iter().map(|(order, at)| (*order, *at)))
        && count(DeliveryStatus::Leased) == *leased
        && count(DeliveryStatus::Ended) == *ended
        && entries.is_sorted_by_key(|(order, ..)| *order)
        && entries.first().is_none_or(|(.., status)| *status != DeliveryStatus::Ended)
        && entries.iter().skip(1).all(|(.., status)| *status != DeliveryStatus::Expired);
    catalog::STREAMS_MATCH_LEASES.holds(good, || format!("{id:?}: {unanswered:?} holds {held:?}"))
}
