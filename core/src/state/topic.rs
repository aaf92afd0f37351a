//! A topic: its partitions and its groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group::{Group, Progress};
use super::partition::Partition;
use crate::collections::id_map::IdMap;
use crate::collections::shared::unshared;
use crate::types::{GroupId, GroupName, Offset, PartitionId, Retention, TopicId, TopicName};

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub(super) id: TopicId,
    pub(super) name: TopicName,
    /// The name of its dead-letter topic, derived from its own.
    dead_letter_name: Option<TopicName>,
    /// Its dead-letter topic while one exists, so that a produce need not look it up by name.
    pub(super) dead_letters: Option<TopicId>,
    pub(super) retention: Retention,
    pub(crate) next_offset: Offset,
    pub(super) next_group: GroupId,
    pub(super) partitions: Vec<Arc<Partition>>,
    pub(crate) groups: IdMap<GroupId, Arc<Group>>,
    pub(super) group_names: BTreeMap<GroupName, GroupId>,
}

impl Topic {
    pub(super) fn new(id: TopicId, name: TopicName, partitions: u32, retention: Retention) -> Self {
        Self {
            id,
            dead_letter_name: name.dead_letter(),
            name,
            dead_letters: None,
            retention: retention.recorded(),
            next_offset: Offset(0),
            next_group: GroupId(0),
            partitions: (0..partitions).map(|_| Arc::new(Partition::default())).collect(),
            groups: IdMap::default(),
            group_names: BTreeMap::new(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TopicId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// The name of its dead-letter topic; `None` if it is a dead-letter topic itself.
    #[must_use]
    pub fn dead_letter_name(&self) -> Option<&TopicName> {
        self.dead_letter_name.as_ref()
    }

    /// Its dead-letter topic, if one exists.
    #[must_use]
    pub fn dead_letters(&self) -> Option<TopicId> {
        self.dead_letters
    }

    /// How long acked messages are retained. At least one limit is set.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// The offset of the next message.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// The id of the next group.
    #[must_use]
    pub fn next_group(&self) -> GroupId {
        self.next_group
    }

    /// The number of partitions.
    #[must_use]
    pub fn partition_count(&self) -> u32 {
        self.partitions.len() as u32
    }

    /// The partition with this id.
    #[must_use]
    pub fn partition(&self, partition: PartitionId) -> Option<&Partition> {
        self.partitions.get(partition.0 as usize).map(|partition| &**partition)
    }

    /// Its partitions, in order.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        (0..).map(PartitionId).zip(self.partitions.iter().map(|partition| &**partition))
    }

    /// The group with this id.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(&group).map(|group| &**group)
    }

    /// The group with this name.
    #[must_use]
    pub fn group_named(&self, name: &GroupName) -> Option<&Group> {
        self.group(*self.group_names.get(name)?)
    }

    /// Its groups, ordered by name.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.group_names.values().map(|id| &*self.groups[id])
    }

    /// The number of groups.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn partition_mut(&mut self, partition: PartitionId) -> Option<&mut Partition> {
        self.partitions.get_mut(partition.0 as usize).map(unshared)
    }

    pub(crate) fn group_mut(&mut self, group: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(&group).map(unshared)
    }

    pub(super) fn progress_mut(&mut self, group: GroupId, partition: PartitionId) -> Option<&mut Progress> {
        self.group_mut(group)?.partitions.get_mut(partition.0 as usize).map(unshared)
    }

    /// A group and a partition.
    pub(super) fn group_and_partition_mut(
        &mut self,
        group: GroupId,
        partition: PartitionId,
    ) -> Option<(&mut Group, &mut Partition)> {
        let group = self.groups.get_mut(&group).map(unshared)?;
        Some((group, self.partitions.get_mut(partition.0 as usize).map(unshared)?))
    }

    pub(super) fn recount(&mut self) {
        let groups = self.groups.len() as u32;
        for partition in &mut self.partitions {
            unshared(partition).recount(groups, self.retention);
        }
    }
}
