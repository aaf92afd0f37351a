//! Applies records to a topic and its groups: stores messages, creates, deletes and seeks groups.

use std::sync::Arc;

use super::Contradiction;
use super::group::{Group, Progress};
use super::message::NewMessage;
use super::partition::Partition;
use super::topic::Topic;
use crate::collections::ack_set::AckSet;
use crate::collections::shared::unshared;
use crate::types::{GroupId, GroupName, GroupOrigin, GroupStart, Offset, PartitionId, Position, Timestamp};

impl Topic {
    pub(crate) fn store(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        new: NewMessage,
    ) -> Result<Position, Contradiction> {
        if offset != self.next_offset {
            return Err(Contradiction("offset is not the next"));
        }
        self.next_offset = offset.next();
        let partition = self.partition_mut(partition).ok_or(Contradiction("no such partition"))?;
        Ok(partition.push(offset, at, new))
    }

    /// Stores a message visible to one group only: the others ack it at once.
    pub(super) fn store_for_one(
        &mut self,
        group: GroupId,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        new: NewMessage,
    ) -> Result<Position, Contradiction> {
        if !self.groups.contains_key(&group) {
            return Err(Contradiction("no such group"));
        }
        let position = self.store(partition, offset, at, new)?;
        let others: Vec<_> = self.groups.keys().copied().filter(|id| *id != group).collect();
        for other in &others {
            let progress = self.progress_mut(*other, partition).expect("every group has every partition");
            progress.acked.insert(position, offset);
        }
        let partition = self.partition_mut(partition).expect("the message was stored in it");
        partition.exclusive.insert(position, group);
        partition.set_acked_in(position, others.len() as u32);
        Ok(position)
    }

    pub(super) fn create_group(
        &mut self,
        (id, name): (GroupId, GroupName),
        start: GroupStart,
        origin: GroupOrigin,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        if id != self.next_group || self.group_names.contains_key(&name) {
            return Err(Contradiction("group exists, or its id is not the next"));
        }
        self.next_group = id.next();
        self.remove_expired(at);
        let mut progress = Vec::with_capacity(self.partitions.len());
        for partition in &mut self.partitions {
            // Messages hidden from the new group count as acked by it; retained messages that it has not acked return
            // to the backlog.
            let acked = match start {
                GroupStart::Earliest => partition.acked_below(Position(0), id)?,
                GroupStart::Latest => AckSet::with_floor(partition.next_position, partition.last_offset),
            };
            unshared(partition).add_acks(&acked);
            progress.push(Arc::new(Progress { acked, ..Progress::default() }));
        }
        self.group_names.insert(name.clone(), id);
        self.groups.insert(
            id,
            Arc::new(Group { id, name, paused: false, skipped: 0, origin, has_acked: false, partitions: progress }),
        );
        self.recount();
        Ok(())
    }

    /// Removes the retained messages that the retention does not keep at `at`. Retained messages are visible again once
    /// the set of groups or a group's progress changes; which of them must not depend on how many a timer has removed.
    fn remove_expired(&mut self, at: Timestamp) {
        for partition in &mut self.partitions {
            if let Some(through) = partition.retained_over(self.retention, at, usize::MAX) {
                unshared(partition).expire_retained(through);
            }
        }
    }

    pub(super) fn delete_group(&mut self, id: GroupId, at: Timestamp) -> Result<(), Contradiction> {
        self.remove_expired(at);
        self.remove_group(id)?;
        self.recount();
        Ok(())
    }

    /// Removes a group and its acks from every message's count. A [`Topic::recount`] must follow.
    pub(crate) fn remove_group(&mut self, id: GroupId) -> Result<(), Contradiction> {
        let group = self.groups.remove(&id).ok_or(Contradiction("no such group"))?;
        self.group_names.remove(&group.name);
        for (partition, progress) in self.partitions.iter_mut().zip(&group.partitions) {
            unshared(partition).subtract_acks(&progress.acked);
        }
        Ok(())
    }

    pub(super) fn seek_group(&mut self, id: GroupId, targets: &[Position], at: Timestamp) -> Result<(), Contradiction> {
        if targets.len() != self.partitions.len() {
            return Err(Contradiction("seek does not name every partition"));
        }
        self.remove_expired(at);
        let group = self.groups.get_mut(&id).map(unshared).ok_or(Contradiction("no such group"))?;
        for ((partition, progress), target) in self.partitions.iter_mut().zip(&mut group.partitions).zip(targets) {
            let acked = partition.acked_below(*target, id)?;
            let replayed_below = partition.next_position;
            let sought = Progress { acked, replayed_below, ..Progress::default() };
            let before = std::mem::replace(progress, Arc::new(sought));
            let partition = unshared(partition);
            partition.subtract_acks(&before.acked);
            partition.add_acks(&progress.acked);
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
        let mut acked = AckSet::with_floor(target, self.last_offset_below(target));
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
                acked.insert(*position, self.messages.get(*position).expect("exclusive messages are stored").offset);
            }
        }
    }
}
