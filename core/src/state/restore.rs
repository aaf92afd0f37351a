//! Rebuilding state from the pieces of a snapshot, in the order [`View`](super::View) writes them.

use std::sync::Arc;

use super::apply::{countable, reached, reached32};
use super::dedupe::DedupeEntry;
use super::group::{Group, Progress};
use super::partition::{Load, Message, Partition};
use super::topic::Topic;
use super::{Contradiction, State};
use crate::collections::ack_set::AckSet;
use crate::record::{Image, RunImage};
use crate::types::{IdentityKey, Phase};

impl State {
    pub(super) fn restore(&mut self, image: &Image) -> Result<(), Contradiction> {
        match image {
            Image::Origin { clock, boot, next_topic } => {
                if *self != Self::default() {
                    return Err(Contradiction("a snapshot starts from nothing"));
                }
                reached32(boot.0).and(reached32(next_topic.0))?;
                self.clock = *clock;
                self.boot = *boot;
                self.next_topic = *next_topic;
            }
            Image::Topic { topic: id, name, partitions, retention, next_offset, next_group } => {
                countable(*partitions)?;
                reached(next_offset.0).and(reached32(next_group.0))?;
                if self.topics.contains_key(id) {
                    return Err(Contradiction("two topics of one number"));
                }
                let next_topic = std::mem::replace(&mut self.next_topic, *id);
                let mut topic = Topic::new(*id, name.clone(), *partitions, *retention);
                topic.next_offset = *next_offset;
                topic.next_group = *next_group;
                if *id >= next_topic {
                    return Err(Contradiction("topic number is still to be given"));
                }
                self.insert_topic(topic)?;
                self.next_topic = next_topic;
            }
            Image::Partition { topic, partition, next_position, last_offset, trimmed_floor, trimmed_floor_offset } => {
                reached(next_position.0)?;
                let topic = self.topic_mut(*topic)?;
                if last_offset.is_some_and(|last| last >= topic.next_offset) {
                    return Err(Contradiction("offset is still to be given"));
                }
                let partition = topic.partition_mut(*partition).ok_or(Contradiction("no such partition"))?;
                if *partition != Partition::default() {
                    return Err(Contradiction("two accounts of one partition"));
                }
                partition.next_position = *next_position;
                partition.last_offset = *last_offset;
                if trimmed_floor > next_position {
                    return Err(Contradiction("trimmed beyond the end"));
                }
                partition.trimmed = AckSet::with_floor(*trimmed_floor, *trimmed_floor_offset);
            }
            Image::TrimmedRun { topic, partition, run } => {
                let partition = self.partition_mut(*topic, *partition)?;
                if run.end > partition.next_position {
                    return Err(Contradiction("trimmed beyond the end"));
                }
                extend(&mut partition.trimmed, run)?;
            }
            Image::Message { .. } => self.restore_message(image)?,
            Image::Group { topic, group: id, name, paused } => {
                let topic = self.topic_mut(*topic)?;
                if *id >= topic.next_group || topic.group_names.contains_key(name) || topic.groups.contains_key(id) {
                    return Err(Contradiction("group exists or is still to be numbered"));
                }
                let partitions = topic.partitions.iter().map(|_| Arc::new(Progress::default())).collect();
                topic.group_names.insert(name.clone(), *id);
                let group = Group { id: *id, name: name.clone(), paused: *paused, partitions };
                topic.groups.insert(*id, Arc::new(group));
            }
            Image::Floor { topic, group, partition, floor, floor_offset } => {
                let topic = self.topic_mut(*topic)?;
                let next = topic.partition(*partition).map(Partition::next_position);
                if next.is_none_or(|next| *floor > next) {
                    return Err(Contradiction("floor beyond the end"));
                }
                let progress = topic.progress_mut(*group, *partition).ok_or(Contradiction("no such group"))?;
                if *progress != Progress::default() {
                    return Err(Contradiction("two floors of one group in one partition"));
                }
                progress.acked = AckSet::with_floor(*floor, *floor_offset);
            }
            Image::AckedRun { topic, group, partition, run } => {
                let topic = self.topic_mut(*topic)?;
                let next = topic.partition(*partition).map(Partition::next_position);
                if next.is_none_or(|next| run.end > next) {
                    return Err(Contradiction("done beyond the end"));
                }
                let progress = topic.progress_mut(*group, *partition).ok_or(Contradiction("no such group"))?;
                extend(&mut progress.acked, run)?;
            }
            Image::DeliveryState { message_ref, delivery } => {
                let topic = self.topic_mut(message_ref.topic)?;
                let kept = topic
                    .partition(message_ref.partition)
                    .and_then(|partition| partition.message(message_ref.position));
                let there = kept.is_some_and(|message| message.offset == delivery.offset);
                let progress = topic
                    .progress_mut(message_ref.group, message_ref.partition)
                    .ok_or(Contradiction("no such group"))?;
                if !there || progress.acked.contains(message_ref.position) {
                    return Err(Contradiction("history of a message that is not there"));
                }
                if let Phase::Leased { .. } = delivery.phase {
                    progress.in_flight += 1;
                }
                if progress.deliveries.insert(message_ref.position, delivery.clone()).is_some() {
                    return Err(Contradiction("two histories of one message"));
                }
            }
            Image::DedupeEntry { scope, tenant, key, partition, offset, expires_at } => {
                let table = Arc::make_mut(self.dedupe.entry(scope.clone()).or_default());
                let entry = DedupeEntry { partition: *partition, offset: *offset, expires_at: *expires_at };
                if table.insert(IdentityKey::new(tenant, key), entry).is_some() {
                    return Err(Contradiction("two memories of one identity"));
                }
            }
            Image::Replayed { topic, group, partition, below } => {
                let topic = self.topic_mut(*topic)?;
                let next = topic.partition(*partition).map(Partition::next_position);
                if next.is_none_or(|next| *below > next) {
                    return Err(Contradiction("replay beyond the end"));
                }
                let progress = topic.progress_mut(*group, *partition).ok_or(Contradiction("no such group"))?;
                progress.replayed_below = *below;
            }
            Image::Effect { identity, effect } => self.restore_effect(identity, effect)?,
            Image::Completion { token, completion } => self.restore_completion(*token, completion)?,
        }
        Ok(())
    }

    fn restore_message(&mut self, image: &Image) -> Result<(), Contradiction> {
        let Image::Message { topic, partition, position, offset, produced_at, acked_in, retained, visible_to, body } =
            image
        else {
            return Err(Contradiction("not a message"));
        };
        let topic = self.topic_mut(*topic)?;
        if *acked_in > topic.next_group.0 {
            return Err(Contradiction("message done in more groups than there were"));
        }
        let partition = topic.partition_mut(*partition).ok_or(Contradiction("no such partition"))?;
        if *position >= partition.next_position || partition.trimmed.contains(*position) {
            return Err(Contradiction("message where none can be"));
        }
        let message = Message { offset: *offset, produced_at: *produced_at, body: body.clone(), acked_in: *acked_in };
        let load: &mut Load = if *retained { &mut partition.retained_load } else { &mut partition.backlog };
        load.messages += 1;
        load.bytes += body.payload_len();
        if *retained {
            partition.retained.insert(*position, ());
        }
        if let Some(group) = visible_to {
            partition.exclusive.insert(*position, *group);
        }
        if partition.messages.insert(*position, message).is_some() {
            return Err(Contradiction("two messages at one position"));
        }
        Ok(())
    }
}

fn extend(acked: &mut AckSet, run: &RunImage) -> Result<(), Contradiction> {
    // A run that touches another would have been written as one with it.
    if run.start <= acked.end() || run.start >= run.end {
        return Err(Contradiction("run within or beside what is done already"));
    }
    acked.extend_run(run.start, run.end, run.last_offset);
    Ok(())
}
