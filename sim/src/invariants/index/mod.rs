//! The broker's volatile index, compared with a naive recount from its state and its streams.
//!
//! | file | what it checks |
//! |---|---|
//! | `timers` | timers and sweeps |
//! | `queues` | messages by priority and delay |
//! | `ready` | cursors, candidates and the groups with work |
//! | `streams` | credit, leases and unanswered deliveries of streams |
//! | `tallies` | tallies of the state and of retained messages |

mod queues;
mod ready;
mod streams;
mod tallies;
mod timers;

use driftq_core::Pipeline;
use driftq_core::faults::Faults;
use driftq_core::state::{Group, Message, Partition, Progress, State, Topic};
use driftq_core::types::{Limits, Lsn, MessageRef, PartitionId, Position, Timestamp};
use driftq_core::volatile::IndexContents;

use super::verdict::Verdict;

/// The state, the index and the time at which they are compared.
pub(super) struct IndexView<'a> {
    pub(super) state: &'a State,
    pub(super) index: &'a IndexContents,
    pub(super) limits: &'a Limits,
    pub(super) now: Timestamp,
    pub(super) wall: Timestamp,
    pub(super) durable: Lsn,
    /// Some output waits for bytes, or the log has failed meanwhile.
    pub(super) is_reading: bool,
    /// No timer is due, nothing is to be dispatched, and the log refused nothing.
    pub(super) is_settled: bool,
}

/// A group in a partition.
pub(super) struct GroupPartition<'a> {
    pub(super) topic: &'a Topic,
    pub(super) group: &'a Group,
    pub(super) id: PartitionId,
    pub(super) partition: &'a Partition,
    pub(super) progress: &'a Progress,
}

impl GroupPartition<'_> {
    pub(super) fn at(&self, position: Position) -> MessageRef {
        MessageRef { topic: self.topic.id(), group: self.group.id(), partition: self.id, position }
    }
}

impl<'a> IndexView<'a> {
    /// Every group in every partition of its topic.
    pub(super) fn group_partitions(&self) -> impl Iterator<Item = GroupPartition<'a>> + use<'a> {
        self.state.topics().flat_map(|topic| {
            topic.groups().flat_map(move |group| {
                group.partitions().filter_map(move |(id, progress)| {
                    Some(GroupPartition { topic, group, id, partition: topic.partition(id)?, progress })
                })
            })
        })
    }
}

/// The messages of a partition that a group has not acked, or that have no group yet.
pub(super) fn open_messages<'a>(
    topic: &'a Topic,
    id: PartitionId,
    partition: &'a Partition,
) -> impl Iterator<Item = (Position, Message)> {
    let groups: Vec<_> = topic.groups().filter_map(|group| group.progress(id)).collect();
    let is_open = move |at| groups.is_empty() || groups.iter().any(|group| !group.acked().contains(at));
    partition.messages().filter(move |(at, _)| is_open(*at))
}

/// The messages of a partition that all groups have acked.
pub(super) fn retained_messages<'a>(
    topic: &'a Topic,
    id: PartitionId,
    partition: &'a Partition,
) -> impl Iterator<Item = Message> {
    let groups: Vec<_> = topic.groups().filter_map(|group| group.progress(id)).collect();
    let is_retained = move |at| !groups.is_empty() && groups.iter().all(|group| group.acked().contains(at));
    partition.messages().filter(move |(at, _)| is_retained(*at)).map(|(_, message)| message)
}

/// Checks the whole index. `is_reading` is whether some output may wait for bytes.
pub(crate) fn check_index<F: Faults>(pipeline: &Pipeline<F>, mono: Timestamp, is_reading: bool) -> Verdict {
    let broker = pipeline.broker();
    if broker.failure().is_some() || pipeline.is_closed() {
        return Ok(());
    }
    check_contents(pipeline, (mono, is_reading), &broker.index_contents())
}

fn check_contents<F: Faults>(
    pipeline: &Pipeline<F>,
    (mono, is_reading): (Timestamp, bool),
    index: &IndexContents,
) -> Verdict {
    let broker = pipeline.broker();
    let view = IndexView {
        state: pipeline.state(),
        index,
        limits: broker.limits(),
        now: broker.now(),
        wall: broker.wall(),
        durable: broker.durable(),
        is_reading: is_reading || broker.failure().is_some(),
        is_settled: !broker.is_stalled() && broker.next_change().is_none_or(|at| at > mono),
    };
    timers::timers_match_state(&view)?;
    timers::sweeps_are_set(&view)?;
    queues::queues_match_state(&view)?;
    ready::ready_is_offered(&view)?;
    streams::streams_match_leases(&view)?;
    tallies::tallies_match(&view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::catalog;
    use crate::invariants::tests::fixtures::*;

    /// A delivered message, one with a priority, one that is delayed, and a dedupe key.
    const ACTIONS: &str = r#"
        {"ask":{"create":{"topic":"t0"}}}
        {"ask":{"subscribe":{"worker":"w0","topic":"t0","group":"g0","owner":"w0","prefetch":1}}}
        {"ask":{"produce":{"message":"m0","topic":"t0","identity":1}}}
        {"ask":{"produce":{"message":"m1","topic":"t0","priority":3}}}
        {"ask":{"produce":{"message":"m2","topic":"t0","delay_ms":50}}}
        "settle""#;

    /// The verdict on an index with one difference.
    fn after(change: impl FnOnce(&mut IndexContents)) -> Verdict {
        let world = world(ACTIONS);
        let pipeline = world.broker().expect("the broker runs");
        let mut index = pipeline.broker().index_contents();
        change(&mut index);
        check_contents(pipeline, (pipeline.broker().now(), false), &index)
    }

    #[test]
    fn any_difference_from_the_state_is_a_violation() {
        holds(after(|_| {}));
        violates(catalog::TIMERS_MATCH_STATE, after(|index| index.timers.clear()));
        violates(catalog::SWEEPS_ARE_SET, after(|index| index.sweeps.clear()));
        violates(catalog::SWEEPS_ARE_SET, after(|index| index.sweeps[0].0 = Timestamp(u64::MAX)));
        let with_queue = |change: fn(&mut driftq_core::volatile::QueueContents)| {
            after(|index| index.topics.values_mut().flat_map(|topic| &mut topic.queues).for_each(change))
        };
        violates(catalog::QUEUES_MATCH_STATE, with_queue(|queue| queue.urgent.clear()));
        violates(catalog::QUEUES_MATCH_STATE, with_queue(|queue| queue.exceptions.clear()));
        let with_group = |change: fn(&mut driftq_core::volatile::GroupContents)| {
            after(|index| index.topics.values_mut().flat_map(|topic| topic.groups.values_mut()).for_each(change))
        };
        violates(catalog::READY_IS_OFFERED, with_group(|group| group.candidates.clear()));
        violates(catalog::STREAMS_MATCH_LEASES, after(|index| index.consumers.clear()));
        violates(catalog::TALLIES_MATCH, after(|index| index.retained_memory += 1));
    }
}
