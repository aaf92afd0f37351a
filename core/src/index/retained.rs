//! Retained messages: their memory over all topics, the partition with the oldest, and the timers that remove them.

use std::collections::BTreeSet;

use super::Index;
use crate::state::{Partition, State, Topic};
use crate::types::{PartitionId, Position, Timestamp, TopicId};

/// The retained messages of all topics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained {
    pub(super) memory: u64,
    /// The partitions with retained messages, ordered by the time of the oldest.
    pub(super) oldest: BTreeSet<(Timestamp, TopicId, PartitionId)>,
}

/// The partition with the oldest retained message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OldestRetained {
    pub(crate) topic: TopicId,
    pub(crate) partition: PartitionId,
    /// The oldest one of the other partitions.
    next: Option<(Timestamp, TopicId, PartitionId)>,
}

impl OldestRetained {
    /// Whether a message of the partition is older than those of all other partitions.
    pub(crate) fn includes(&self, produced_at: Timestamp) -> bool {
        self.next.is_none_or(|next| (produced_at, self.topic, self.partition) < next)
    }
}

/// The retained messages of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetainedInPartition {
    memory: u64,
    /// The position of the oldest.
    first: Option<Position>,
    /// When it was produced.
    oldest: Option<Timestamp>,
    /// When the timer fires that removes the oldest.
    timer: Option<Timestamp>,
}

impl Retained {
    /// The memory of all retained messages.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// The partition with the oldest retained message.
    pub(crate) fn oldest(&self) -> Option<OldestRetained> {
        let mut oldest = self.oldest.iter();
        let (_, topic, partition) = *oldest.next()?;
        Some(OldestRetained { topic, partition, next: oldest.next().copied() })
    }

    fn replace(&mut self, key: (TopicId, PartitionId), before: RetainedInPartition, after: RetainedInPartition) {
        self.memory = self.memory - before.memory + after.memory;
        if before.oldest == after.oldest {
            return;
        }
        let entry = |at| (at, key.0, key.1);
        if let Some(at) = before.oldest {
            self.oldest.remove(&entry(at));
        }
        if let Some(at) = after.oldest {
            self.oldest.insert(entry(at));
        }
    }
}

impl Index {
    pub(super) fn update_retained(&mut self, state: &State, topic: TopicId, partition: PartitionId) {
        let durable = state.topic(topic).expect("the topic of a partition exists");
        let messages = durable.partition(partition).expect("the record names a partition of the topic");
        self.update_retained_of(durable, partition, messages);
    }

    /// Counts the retained messages of a partition and sets the timer that removes the oldest.
    pub(super) fn update_retained_of(&mut self, topic: &Topic, partition: PartitionId, messages: &Partition) {
        let before = self.topic_mut(topic.id()).retained[partition.0 as usize];
        let first = messages.first_retained();
        // Most acks do not change the oldest one.
        let oldest = match before.first == first {
            true => before.oldest,
            false => messages.oldest_retained().map(|(_, message)| message.produced_at),
        };
        let retention = topic.retention();
        let timer = match retention.bytes {
            // The excess is due at once.
            Some(max) if messages.retained_load().bytes > max => Some(Timestamp(0)),
            _ => oldest.zip(retention.age).map(|(oldest, age)| oldest.after(age)),
        };
        let after = RetainedInPartition { memory: messages.retained_memory(), first, oldest, timer };
        self.topic_mut(topic.id()).retained[partition.0 as usize] = after;
        self.replace_retained((topic.id(), partition), before, after);
    }

    /// Forgets the retained messages of a partition that is deleted.
    pub(super) fn forget_retained(&mut self, topic: TopicId, partition: PartitionId, retained: RetainedInPartition) {
        self.replace_retained((topic, partition), retained, RetainedInPartition::default());
    }

    fn replace_retained(
        &mut self,
        (topic, partition): (TopicId, PartitionId),
        before: RetainedInPartition,
        after: RetainedInPartition,
    ) {
        self.retained.replace((topic, partition), before, after);
        if before.timer != after.timer {
            self.timers.move_retention(topic, partition, before.timer, after.timer);
        }
    }
}
