//! Dead letters: where one goes, and which may come back.

use super::produce::check_room;
use super::topic;
use crate::command::Redrivable;
use crate::record::{Event, Place};
use crate::reply::Refusal;
use crate::state::State;
use crate::state::partition::{Load, Message};
use crate::state::topic::Topic;
use crate::types::{DeadReason, Limits, Offset, PartitionId, Position, Text, TopicName};

/// The record that makes a message a dead letter, and the topic for it where there is none yet.
pub(crate) fn dead_letter(state: &State, place: &Place, reason: DeadReason, last_error: Text) -> Event {
    let source = state.topic(place.topic).expect("a lease belongs to a topic");
    let name = source.dead_letter_name().expect("dead letters are never dead-lettered again");
    let dead = state.topic_named(name);
    let partitions = dead.map_or(source.partition_count(), Topic::partition_count);
    Event::DeadLettered {
        place: *place,
        dead_topic: dead.map_or(state.next_topic(), Topic::id),
        dead_partition: PartitionId(place.partition.0 % partitions),
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

/// The dead letters asked for, oldest first. What is not there, or already done with, is passed over.
pub(crate) fn candidates(state: &State, source: &TopicName, which: &Redrivable) -> Result<Vec<Candidate>, Refusal> {
    topic(state, source)?;
    let name = source.dead_letter().ok_or(Refusal::Invalid("a dead-letter topic has no dead letters of its own"))?;
    let Some(dead) = state.topic_named(&name) else { return Ok(Vec::new()) };
    let open = |(partition, position): &(PartitionId, Position)| {
        dead.partition(*partition).is_some_and(|partition| partition.is_open(*position))
    };
    let mut found: Vec<_> = match which {
        Redrivable::All => dead
            .partitions()
            .flat_map(|(id, partition)| partition.messages().map(move |(position, _)| (id, position)))
            .filter(open)
            .collect(),
        Redrivable::Offsets(offsets) => offsets
            .iter()
            .filter_map(|offset| dead.partitions().find_map(|(id, partition)| Some((id, partition.find(*offset)?.0))))
            .filter(open)
            .collect(),
    };
    let offset = |(partition, position): &(PartitionId, Position)| message(dead, *partition, *position).offset;
    found.sort_by_key(offset);
    found.dedup();
    Ok(found.into_iter().map(|(partition, position)| Candidate { partition, position }).collect())
}

/// The record that makes one dead letter live again, or `None` where the group that failed it is gone.
pub(crate) fn redrive(
    state: &State,
    limits: &Limits,
    source: &TopicName,
    candidate: Candidate,
) -> Result<Option<Event>, Refusal> {
    let target = topic(state, source)?;
    let dead = source.dead_letter().and_then(|name| state.topic_named(&name)).expect("has candidates");
    let item = message(dead, candidate.partition, candidate.position);
    let Some(letter) = item.body.metadata().dead_letter else { return Ok(None) };
    let Some(group) = target.group_named(&letter.group) else { return Ok(None) };
    let partition = PartitionId(letter.original_partition.0 % target.partition_count());
    let load = Load { messages: 1, bytes: item.body.payload_len() };
    match check_room(state, limits, target, partition, load) {
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
