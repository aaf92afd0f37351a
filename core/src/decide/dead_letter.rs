//! Decides dead-lettering and redrive.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::produce::{check_capacity, check_load};
use super::{DecisionContext, topic};
use crate::command::{RedriveRest, RedriveSelection};
use crate::faults::Faults;
use crate::record::{DeadLetterSlot, Event};
use crate::reply::Refusal;
use crate::state::{Load, Message, Partition, State, Topic};
use crate::types::{DeadReason, MessageRef, Offset, PartitionId, Position, Text, TopicId, TopicName};

/// The event that dead-letters a message.
pub(crate) fn dead_letter<F: Faults>(
    context: &DecisionContext<'_, F>,
    message_ref: &MessageRef,
    reason: DeadReason,
    last_error: Text,
) -> Event {
    let DeadLetterSlot { topic, partition, offset, last_error } = slot(context.state, message_ref, last_error);
    Event::DeadLettered {
        message_ref: *message_ref,
        dead_topic: topic,
        dead_partition: partition,
        dead_offset: offset,
        reason,
        last_error,
        winner_until: context.now.after(context.limits.completion_ttl),
    }
}

/// Where the dead letter of a message is stored if nothing is stored before.
pub(super) fn slot(state: &State, message_ref: &MessageRef, last_error: Text) -> DeadLetterSlot {
    let source = state.topic(message_ref.topic).expect("a lease belongs to a topic");
    let name = source.dead_letter_name().expect("dead letters are never dead-lettered again");
    let dead = state.topic_named(name);
    let partitions = dead.map_or(source.partition_count(), Topic::partition_count);
    DeadLetterSlot {
        topic: dead.map_or(state.next_topic(), Topic::id),
        partition: PartitionId(message_ref.partition.0 % partitions),
        offset: dead.map_or(Offset(0), Topic::next_offset),
        last_error,
    }
}

/// Refuses to dead-letter a message of a dead-letter topic at a worker's request.
pub(super) fn check_source(state: &State, message_ref: &MessageRef) -> Result<(), Refusal> {
    let source = state.topic(message_ref.topic).expect("a lease belongs to a topic");
    match source.name().is_dead_letter() {
        false => Ok(()),
        true => Err(Refusal::Invalid("a dead letter cannot be dead-lettered again; ack it, or nack it to be retried")),
    }
}

/// A dead letter to redrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    partition: PartitionId,
    position: Position,
}

/// The selected dead letters, oldest first. Found lazily, so that a redrive of a few costs the same however many there
/// are.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    dead: TopicId,
    /// If all are selected: the next one of each partition, all below `below`.
    heads: BinaryHeap<Reverse<(Offset, PartitionId, Position)>>,
    /// If all are selected: the end of what was stored when they were.
    below: Offset,
    /// If offsets are selected: those not searched yet, ascending.
    offsets: VecDeque<Offset>,
}

impl Candidates {
    /// The dead letters of `source` that `which` selects.
    pub(crate) fn of<F: Faults>(
        context: &DecisionContext<'_, F>,
        source: &TopicName,
        which: &RedriveSelection,
    ) -> Result<Self, Refusal> {
        let state = context.state;
        topic(state, source)?;
        let name =
            source.dead_letter().ok_or(Refusal::Invalid("a dead-letter topic has no dead letters of its own"))?;
        let Some(dead) = state.topic_named(&name) else { return Ok(Self::default()) };
        let below = dead.next_offset();
        Ok(match which {
            RedriveSelection::All => Self::between(dead, Offset(0), context.faults.redrive_end(below)),
            RedriveSelection::Rest(rest) if rest.dead_topic != dead.id() => Self::default(),
            RedriveSelection::Rest(rest) => Self::between(dead, rest.from, rest.below),
            RedriveSelection::Offsets(offsets) => {
                let mut offsets = offsets.clone();
                offsets.sort_unstable();
                offsets.dedup();
                Self { dead: dead.id(), offsets: offsets.into(), ..Self::default() }
            }
        })
    }

    /// All from the offset `from` to below `below`.
    fn between(dead: &Topic, from: Offset, below: Offset) -> Self {
        let mut found = Self { dead: dead.id(), below, ..Self::default() };
        for (id, partition) in dead.partitions() {
            if let Some((position, _)) = partition.first_from_offset(from) {
                found.push_head(id, partition, position);
            }
        }
        found
    }

    /// The next candidate. Skips offsets that are not in the backlog of the dead-letter topic.
    pub(crate) fn next(&mut self, state: &State) -> Option<Candidate> {
        let dead = state.topic(self.dead)?;
        if let Some(Reverse((_, partition, position))) = self.heads.pop() {
            self.push_head(partition, dead.partition(partition)?, position.next());
            return Some(Candidate { partition, position });
        }
        while let Some(offset) = self.offsets.pop_front() {
            let found = dead.partitions().find_map(|(id, partition)| {
                let (position, _) = partition.find(offset)?;
                partition.in_backlog(position).then_some(Candidate { partition: id, position })
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// If all are selected: those that are left.
    pub(crate) fn rest(&self) -> Option<RedriveRest> {
        let Reverse((from, ..)) = self.heads.peek()?;
        Some(RedriveRest { dead_topic: self.dead, from: *from, below: self.below })
    }

    fn push_head(&mut self, id: PartitionId, partition: &Partition, from: Position) {
        let oldest = partition.first_in_backlog(from).filter(|(_, message)| message.offset < self.below);
        self.heads.extend(oldest.map(|(position, message)| Reverse((message.offset, id, position))));
    }
}

/// The event that redrives one dead letter; `None` if its group does not exist any more, or its payload is lost.
pub(crate) fn redrive<F: Faults>(
    context: &DecisionContext<'_, F>,
    source: &TopicName,
    candidate: Candidate,
) -> Result<Option<Event>, Refusal> {
    let state = context.state;
    let target = topic(state, source)?;
    let dead = source.dead_letter().and_then(|name| state.topic_named(&name)).expect("a candidate's topic exists");
    let message = message(dead, candidate.partition, candidate.position);
    let Some(dead_letter) = message.dead_letter().filter(|_| message.lost().is_none()) else { return Ok(None) };
    let Some(group) = target.group_named(&dead_letter.group) else { return Ok(None) };
    let partition = PartitionId(dead_letter.original_partition.0 % target.partition_count());
    let load = Load { messages: 1, bytes: message.payload.payload_len() };
    check_load(context.limits, load)?;
    match check_capacity(context, target, partition, load) {
        // A redrive reduces the dead letters, so their limit must not refuse it.
        Err(Refusal::Overloaded { reason: crate::reply::Overload::DeadLetters, .. }) | Ok(()) => {}
        Err(refusal) => return Err(refusal),
    }
    Ok(Some(Event::Redriven {
        dead_topic: dead.id(),
        dead_partition: candidate.partition,
        dead_position: candidate.position,
        topic: target.id(),
        group: group.id(),
        partition,
        offset: target.next_offset(),
    }))
}

fn message(topic: &Topic, partition: PartitionId, position: Position) -> Message {
    let partition = topic.partition(partition).expect("a candidate's partition exists");
    partition.message(position).expect("a candidate is stored")
}
