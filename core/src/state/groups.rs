//! Applies records to a topic and its groups: stores messages, creates, deletes and seeks groups.

use std::sync::Arc;

use super::Contradiction;
use super::group::{Group, Progress};
use super::partition::Partition;
use super::topic::Topic;
use crate::collections::ack_set::AckSet;
use crate::collections::shared::unshared;
use crate::types::{Body, GroupId, GroupName, GroupStart, Offset, PartitionId, Position, Timestamp};

impl Topic {
    pub(crate) fn store(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        body: Body,
    ) -> Result<Position, Contradiction> {
        if offset != self.next_offset {
            return Err(Contradiction("offset is not the next"));
        }
        self.next_offset = offset.next();
        let partition = self.partition_mut(partition).ok_or(Contradiction("no such partition"))?;
        Ok(partition.push(offset, at, body))
    }

    /// Stores a message visible to one group only: the others ack it at once.
    pub(super) fn store_for_one(
        &mut self,
        group: GroupId,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        body: Body,
    ) -> Result<(), Contradiction> {
        if !self.groups.contains_key(&group) {
            return Err(Contradiction("no such group"));
        }
        let position = self.store(partition, offset, at, body)?;
        let others: Vec<_> = self.groups.keys().copied().filter(|id| *id != group).collect();
        for other in &others {
            let progress = self.progress_mut(*other, partition).expect("every group has every partition");
            progress.acked.insert(position, offset);
        }
        let partition = self.partition_mut(partition).expect("the message was stored in it");
        partition.exclusive.insert(position, group);
        partition.set_acked_in(position, others.len() as u32);
        Ok(())
    }

    pub(super) fn create_group(
        &mut self,
        id: GroupId,
        name: GroupName,
        start: GroupStart,
    ) -> Result<(), Contradiction> {
        if id != self.next_group || self.group_names.contains_key(&name) {
            return Err(Contradiction("group exists, or its id is not the next"));
        }
        self.next_group = id.next();
        let mut progress = Vec::with_capacity(self.partitions.len());
        let mut moved = false;
        for partition in &mut self.partitions {
            let mut acked = match start {
                GroupStart::Earliest => partition.trimmed.clone(),
                GroupStart::Latest => AckSet::with_floor(partition.next_position, partition.last_offset),
            };
            // Messages hidden from the new group count as acked by it; retained messages that it has not acked return
            // to the backlog.
            let hidden: Vec<_> = match start {
                GroupStart::Earliest => partition.exclusive.keys().copied().collect(),
                GroupStart::Latest => partition.messages().map(|(position, _)| position).collect(),
            };
            moved |= !hidden.is_empty() || !partition.retained.is_empty();
            for position in hidden {
                let partition = unshared(partition);
                acked.insert(position, partition.message(position).expect("listed above").offset);
                partition.add_acked_in(position, 1);
            }
            progress.push(Arc::new(Progress { acked, ..Progress::default() }));
        }
        self.group_names.insert(name.clone(), id);
        self.groups.insert(id, Arc::new(Group { id, name, paused: false, skipped: 0, partitions: progress }));
        if moved {
            self.recount();
        }
        Ok(())
    }

    pub(super) fn delete_group(&mut self, id: GroupId) -> Result<(), Contradiction> {
        self.remove_group(id)?;
        self.recount();
        Ok(())
    }

    /// Removes a group and its acks from every message's count. A [`Topic::recount`] must follow.
    pub(crate) fn remove_group(&mut self, id: GroupId) -> Result<(), Contradiction> {
        let group = self.groups.remove(&id).ok_or(Contradiction("no such group"))?;
        self.group_names.remove(&group.name);
        for (partition, progress) in self.partitions.iter_mut().zip(&group.partitions) {
            unshared(partition).change_acked_in(|position| -i64::from(progress.acked.contains(position)));
        }
        Ok(())
    }

    pub(super) fn seek_group(&mut self, id: GroupId, targets: &[Position]) -> Result<(), Contradiction> {
        if targets.len() != self.partitions.len() {
            return Err(Contradiction("seek does not name every partition"));
        }
        let group = self.groups.get_mut(&id).map(unshared).ok_or(Contradiction("no such group"))?;
        for ((partition, progress), target) in self.partitions.iter_mut().zip(&mut group.partitions).zip(targets) {
            let acked = partition.acked_below(*target, id)?;
            let replayed_below = partition.next_position;
            let sought = Progress { acked, replayed_below, ..Progress::default() };
            let before = std::mem::replace(progress, Arc::new(sought));
            let after = &progress.acked;
            unshared(partition).change_acked_in(|position| {
                i64::from(after.contains(position)) - i64::from(before.acked.contains(position))
            });
        }
        self.recount();
        Ok(())
    }
}

impl Partition {
    /// The acked positions of `group` after a seek to `target`.
    fn acked_below(&self, target: Position, group: GroupId) -> Result<AckSet, Contradiction> {
        if target > self.next_position {
            return Err(Contradiction("seek beyond the end of the partition"));
        }
        if target <= self.trimmed.floor() {
            let mut acked = self.trimmed.clone();
            self.hide_exclusive(&mut acked, group);
            return Ok(acked);
        }
        let below = self.messages.last_below(&target).map(|(position, message)| (*position, message.offset));
        let trimmed = self.trimmed.last_offset_below(target);
        let floor_offset = match (below, trimmed) {
            (Some((_, stored)), Some(trimmed)) => Some(stored.max(trimmed)),
            (stored, trimmed) => stored.map(|(_, offset)| offset).or(trimmed),
        };
        let mut acked = AckSet::with_floor(target, floor_offset);
        for (start, end, last_offset) in self.trimmed.runs() {
            acked.extend_run(start.max(target), end, last_offset);
        }
        self.hide_exclusive(&mut acked, group);
        Ok(acked)
    }

    /// Acks the redriven messages that are visible to other groups only.
    fn hide_exclusive(&self, acked: &mut AckSet, group: GroupId) {
        for (position, owner) in &self.exclusive {
            if *owner != group {
                acked.insert(*position, self.messages.get(position).expect("exclusive messages are stored").offset);
            }
        }
    }
}
