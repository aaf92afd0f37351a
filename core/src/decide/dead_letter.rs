//! Dead letters: where one goes, and which may come back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::produce::{check_load, check_room};
use super::{DecisionContext, topic};
use crate::command::RedriveSelection;
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::Refusal;
use crate::state::State;
use crate::state::partition::{Load, Message, Partition};
use crate::state::topic::Topic;
use crate::types::{DeadReason, MessageRef, Offset, PartitionId, Position, Text, TopicId, TopicName};

/// The record that makes a message a dead letter, and the topic for it where there is none yet.
pub(crate) fn dead_letter(state: &State, message_ref: &MessageRef, reason: DeadReason, last_error: Text) -> Event {
    let source = state.topic(message_ref.topic).expect("a lease belongs to a topic");
    let name = source.dead_letter_name().expect("dead letters are never dead-lettered again");
    let dead = state.topic_named(name);
    let partitions = dead.map_or(source.partition_count(), Topic::partition_count);
    Event::DeadLettered {
        message_ref: *message_ref,
        dead_topic: dead.map_or(state.next_topic(), Topic::id),
        dead_partition: PartitionId(message_ref.partition.0 % partitions),
        dead_offset: dead.map_or(Offset(0), Topic::next_offset),
        reason,
        last_error,
    }
}

/// A dead letter that may come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    partition: PartitionId,
    position: Position,
}

/// The dead letters asked for, oldest first, found one by one: a redrive of a few costs the same however many there are.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    dead: TopicId,
    /// Of all: the oldest of each partition that has not been given yet.
    heads: BinaryHeap<Reverse<(Offset, PartitionId, Position)>>,
    /// Of those named: the ones not looked for yet, ascending.
    named: VecDeque<Offset>,
}

impl Candidates {
    /// Begins to look for them.
    pub(crate) fn of(state: &State, source: &TopicName, which: &RedriveSelection) -> Result<Self, Refusal> {
        topic(state, source)?;
        let name =
            source.dead_letter().ok_or(Refusal::Invalid("a dead-letter topic has no dead letters of its own"))?;
        let Some(dead) = state.topic_named(&name) else { return Ok(Self::default()) };
        let mut found = Self { dead: dead.id(), ..Self::default() };
        match which {
            RedriveSelection::All => {
                dead.partitions().for_each(|(id, partition)| found.head(id, partition, Position(0)));
            }
            RedriveSelection::Offsets(offsets) => {
                let mut offsets = offsets.clone();
                offsets.sort_unstable();
                offsets.dedup();
                found.named = offsets.into();
            }
        }
        Ok(found)
    }

    /// The next one. What is not there, or already done with, is passed over.
    pub(crate) fn next(&mut self, state: &State) -> Option<Candidate> {
        let dead = state.topic(self.dead)?;
        if let Some(Reverse((_, partition, position))) = self.heads.pop() {
            self.head(partition, dead.partition(partition)?, position.next());
            return Some(Candidate { partition, position });
        }
        while let Some(offset) = self.named.pop_front() {
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

    fn head(&mut self, id: PartitionId, partition: &Partition, from: Position) {
        let oldest = partition.messages_from(from).find(|(position, _)| partition.in_backlog(*position));
        self.heads.extend(oldest.map(|(position, message)| Reverse((message.offset, id, position))));
    }
}

/// The record that makes one dead letter live again, or `None` where the group that failed it is gone.
pub(crate) fn redrive<F: Faults>(
    context: &DecisionContext<'_, F>,
    source: &TopicName,
    candidate: Candidate,
) -> Result<Option<Event>, Refusal> {
    let state = context.state;
    let target = topic(state, source)?;
    let dead = source.dead_letter().and_then(|name| state.topic_named(&name)).expect("has candidates");
    let item = message(dead, candidate.partition, candidate.position);
    let Some(letter) = item.body.metadata().dead_letter else { return Ok(None) };
    let Some(group) = target.group_named(&letter.group) else { return Ok(None) };
    let partition = PartitionId(letter.original_partition.0 % target.partition_count());
    let load = Load { messages: 1, bytes: item.body.payload_len() };
    check_load(context.limits, load)?;
    match check_room(context, target, partition, load) {
        // It is the dead letters being too many that a redrive mends.
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

fn message(topic: &Topic, partition: PartitionId, position: Position) -> &Message {
    let partition = topic.partition(partition).expect("candidates name partitions");
    partition.message(position).expect("candidates are kept")
}
