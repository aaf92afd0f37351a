//! Rebuilds the state from the images of a snapshot, in the order in which a [`View`](super::View) writes them.

use std::sync::Arc;

use super::apply::{check_counter, check_counter32, check_partition_count};
use super::dedupe::DedupeEntry;
use super::group::{Group, Progress};
use super::message::Message;
use super::message_map::MessageChunk;
use super::partition::Partition;
use super::topic::Topic;
use super::{Contradiction, State};
use crate::collections::ack_set::AckSet;
use crate::record::{Image, MessageAt, RunImage};
use crate::types::{
    DeliveryState, GroupId, IdentityKey, Lsn, MessageRef, PartitionId, Phase, Position, Retention, TopicId, TopicName,
};

impl State {
    pub(super) fn restore(&mut self, image: &Image) -> Result<(), Contradiction> {
        match image {
            Image::Origin { last_lsn, clock, wall_clock, boot, next_topic } => {
                if *self != Self::default() {
                    return Err(Contradiction("origin of a snapshot is not its first image"));
                }
                check_counter32(boot.0).and(check_counter32(next_topic.0)).and(check_counter(last_lsn.0))?;
                if wall_clock.since() > *clock {
                    return Err(Contradiction("wall clock adjusted after the last record"));
                }
                self.last_lsn = *last_lsn;
                self.clock = *clock;
                self.wall_clock = *wall_clock;
                self.boot = *boot;
                self.next_topic = *next_topic;
            }
            Image::Access { .. } | Image::Tenant { .. } | Image::Key(_) | Image::Audit(_) => {
                self.restore_access(image)?;
            }
            Image::Topic { topic, name, partitions, retention, next_offset, next_group } => {
                check_counter(next_offset.0).and(check_counter32(next_group.0))?;
                let topic = self.restore_topic(*topic, name, *partitions, *retention)?;
                topic.next_offset = *next_offset;
                topic.next_group = *next_group;
            }
            Image::Partition { topic, partition, next_position, last_offset, trimmed_floor, trimmed_floor_offset } => {
                check_counter(next_position.0)?;
                let topic = self.topic_mut(*topic)?;
                if last_offset.is_some_and(|last| last >= topic.next_offset) {
                    return Err(Contradiction("offset not assigned yet"));
                }
                let partition = topic.partition_mut(*partition).ok_or(Contradiction("no such partition"))?;
                if *partition != Partition::default() {
                    return Err(Contradiction("two images of one partition"));
                }
                partition.next_position = *next_position;
                partition.last_offset = *last_offset;
                if trimmed_floor > next_position {
                    return Err(Contradiction("trimmed beyond the end of the partition"));
                }
                partition.trimmed = AckSet::with_floor(*trimmed_floor, *trimmed_floor_offset);
            }
            Image::TrimmedRun { topic, partition, run } => {
                let partition = self.partition_mut(*topic, *partition)?;
                if run.end > partition.next_position {
                    return Err(Contradiction("trimmed beyond the end of the partition"));
                }
                extend(&mut partition.trimmed, run)?;
            }
            Image::Message { .. } => self.restore_message(image)?,
            Image::Chunk { topic, partition, chunk } => self.restore_chunk(*topic, *partition, chunk)?,
            Image::Group { topic, group: id, name, paused, skipped, origin, has_acked } => {
                check_counter(*skipped)?;
                let topic = self.topic_mut(*topic)?;
                if *id >= topic.next_group || topic.group_names.contains_key(name) || topic.groups.contains_key(id) {
                    return Err(Contradiction("group exists, or its id is not assigned yet"));
                }
                let partitions = topic.partitions.iter().map(|_| Arc::new(Progress::default())).collect();
                topic.group_names.insert(name.clone(), *id);
                let group = Group {
                    id: *id,
                    name: name.clone(),
                    paused: *paused,
                    skipped: *skipped,
                    origin: *origin,
                    has_acked: *has_acked,
                    partitions,
                };
                topic.groups.insert(*id, Arc::new(group));
            }
            Image::Floor { topic, group, partition, floor, floor_offset } => {
                let beyond = Contradiction("floor beyond the end of the partition");
                let progress = self.restored_progress((*topic, *group, *partition), *floor, beyond)?;
                if *progress != Progress::default() {
                    return Err(Contradiction("two floors of one group in one partition"));
                }
                progress.acked = AckSet::with_floor(*floor, *floor_offset);
            }
            Image::AckedRun { topic, group, partition, run } => {
                let beyond = Contradiction("acked beyond the end of the partition");
                let progress = self.restored_progress((*topic, *group, *partition), run.end, beyond)?;
                extend(&mut progress.acked, run)?;
            }
            Image::DeliveryState { message_ref, delivery } => self.restore_delivery(message_ref, delivery)?,
            Image::DedupeEntry { scope, tenant, key, partition, offset, expires_at } => {
                let table = Arc::make_mut(self.dedupe.entry(scope.clone()).or_default());
                let entry = DedupeEntry { partition: *partition, offset: *offset, expires_at: *expires_at };
                if table.insert(IdentityKey::new(tenant, key), entry).is_some() {
                    return Err(Contradiction("two entries for one dedupe key"));
                }
            }
            Image::Replayed { topic, group, partition, below } => {
                let beyond = Contradiction("replay beyond the end of the partition");
                let progress = self.restored_progress((*topic, *group, *partition), *below, beyond)?;
                progress.replayed_below = *below;
            }
            Image::Effect { identity, effect } => self.restore_effect(identity, effect)?,
            Image::Completion { token, completion } => self.restore_completion(*token, completion)?,
            Image::Winner { message, winner } => self.restore_winner(*message, *winner)?,
        }
        Ok(())
    }

    fn restore_topic(
        &mut self,
        id: TopicId,
        name: &TopicName,
        partitions: u32,
        retention: Retention,
    ) -> Result<&mut Topic, Contradiction> {
        check_partition_count(partitions)?;
        if self.topics.contains_key(&id) {
            return Err(Contradiction("two topics with one id"));
        }
        if id >= self.next_topic {
            return Err(Contradiction("topic id not assigned yet"));
        }
        let next_topic = std::mem::replace(&mut self.next_topic, id);
        self.insert_topic(Topic::new(id, name.clone(), partitions, retention))?;
        self.next_topic = next_topic;
        self.topic_mut(id)
    }

    fn restore_message(&mut self, image: &Image) -> Result<(), Contradiction> {
        let Image::Message { topic, partition, position, offset, produced_at, acked_in, retained, .. } = image else {
            return Err(Contradiction("not a message"));
        };
        let Image::Message { visible_to, payload, fields, .. } = image else {
            return Err(Contradiction("not a message"));
        };
        let at = MessageAt { topic: *topic, partition: *partition, position: *position };
        if payload.id.lsn > self.last_lsn {
            return Err(Contradiction("payload of a record that is not there yet"));
        }
        let is_lost = fields.as_ref().is_some_and(|fields| fields.lost.is_some());
        if payload.id.is_lost() != is_lost || payload.id.lsn == Lsn(0) && !is_lost {
            return Err(Contradiction("message without a payload that is not lost, or a lost one with it"));
        }
        let topic = self.topic_mut(*topic)?;
        if *acked_in > topic.next_group.0 {
            return Err(Contradiction("message acked in more groups than were ever created"));
        }
        let partition = topic.partition_mut(*partition).ok_or(Contradiction("no such partition"))?;
        if *position >= partition.next_position || partition.trimmed.contains(*position) {
            return Err(Contradiction("message at a trimmed or unassigned position"));
        }
        let message = Message::new(*offset, *produced_at, *payload, fields.clone());
        let load = if *retained { &mut partition.retained_load } else { &mut partition.backlog };
        load.messages += 1;
        load.bytes += payload.payload_len();
        if *retained {
            partition.retained.set(*position, position.next(), 1);
            partition.retained_memory += message.retained_bytes();
        }
        if let Some(group) = visible_to {
            partition.exclusive.insert(*position, *group);
        }
        partition.set_acked_in(*position, *acked_in);
        let is_made_by_record = message.dead_letter().is_none() && message.redrive().is_none();
        if partition.insert(*position, message).is_some() {
            return Err(Contradiction("two messages at one position"));
        }
        if !is_made_by_record {
            self.add_referrer(payload.id, at);
        }
        Ok(())
    }

    fn restore_chunk(
        &mut self,
        topic_id: TopicId,
        partition_id: PartitionId,
        chunk: &MessageChunk,
    ) -> Result<(), Contradiction> {
        if chunk.lsns().1 > self.last_lsn {
            return Err(Contradiction("payload of a record that is not there yet"));
        }
        if chunk.special().any(|(_, message)| message.lost().is_some()) {
            return Err(Contradiction("message without a payload that is not lost, or a lost one with it"));
        }
        let topic = self.topic_mut(topic_id)?;
        if chunk.acks().iter().any(|run| run.acked_in > topic.next_group.0) {
            return Err(Contradiction("message acked in more groups than were ever created"));
        }
        let partition = topic.partition_mut(partition_id).ok_or(Contradiction("no such partition"))?;
        let is_free = |(start, end): (Position, Position)| {
            end <= partition.next_position && partition.trimmed.first_acked_from(start).is_none_or(|at| at >= end)
        };
        if !chunk.stretches().all(is_free) {
            return Err(Contradiction("message at a trimmed or unassigned position"));
        }
        partition.messages.append_chunk(chunk).ok_or(Contradiction("two messages at one position"))?;
        partition.restore_acks(chunk);
        partition.exclusive.extend(chunk.visible_to());
        chunk.special().for_each(|(position, message)| partition.note_special(position, &message));
        for (position, message) in chunk.special() {
            if message.dead_letter().is_some() || message.redrive().is_some() {
                let at = MessageAt { topic: topic_id, partition: partition_id, position };
                self.add_referrer(message.payload.id, at);
            }
        }
        Ok(())
    }

    /// A group's progress in a partition; `beyond` if `end` is beyond the end of the partition.
    fn restored_progress(
        &mut self,
        (topic, group, partition): (TopicId, GroupId, PartitionId),
        end: Position,
        beyond: Contradiction,
    ) -> Result<&mut Progress, Contradiction> {
        let topic = self.topic_mut(topic)?;
        let next = topic.partition(partition).map(Partition::next_position);
        if next.is_none_or(|next| end > next) {
            return Err(beyond);
        }
        topic.progress_mut(group, partition).ok_or(Contradiction("no such group"))
    }

    fn restore_delivery(&mut self, message_ref: &MessageRef, delivery: &DeliveryState) -> Result<(), Contradiction> {
        let topic = self.topic_mut(message_ref.topic)?;
        let message =
            topic.partition(message_ref.partition).and_then(|partition| partition.message(message_ref.position));
        let is_stored = message.is_some_and(|message| message.offset == delivery.offset);
        let progress =
            topic.progress_mut(message_ref.group, message_ref.partition).ok_or(Contradiction("no such group"))?;
        if !is_stored || progress.acked.contains(message_ref.position) {
            return Err(Contradiction("delivery state of a message that is not stored or is acked"));
        }
        if let Phase::Leased { .. } = delivery.phase {
            progress.in_flight += 1;
        }
        if progress.deliveries.insert(message_ref.position, delivery.clone()).is_some() {
            return Err(Contradiction("two delivery states of one message"));
        }
        Ok(())
    }
}

fn extend(acked: &mut AckSet, run: &RunImage) -> Result<(), Contradiction> {
    // Adjacent runs are written as one.
    if run.start <= acked.end() || run.start >= run.end {
        return Err(Contradiction("run overlaps or touches an earlier run"));
    }
    acked.extend_run(run.start, run.end, run.last_offset);
    Ok(())
}
