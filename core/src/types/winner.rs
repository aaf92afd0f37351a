//! The winner of a message: the delivery that acked it.

use super::ids::{GroupId, LeaseToken, MessageRef, Offset, PartitionId, TopicId};
use super::time::Timestamp;

/// A message in one group, named by its offset as claims name it. Valid after the message is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OffsetRef {
    /// The topic.
    pub topic: TopicId,
    /// The group.
    pub group: GroupId,
    /// The partition.
    pub partition: PartitionId,
    /// The message's offset.
    pub offset: Offset,
}

impl MessageRef {
    /// The same message, named by its `offset`.
    pub(crate) const fn at_offset(self, offset: Offset) -> OffsetRef {
        OffsetRef { topic: self.topic, group: self.group, partition: self.partition, offset }
    }
}

/// Which delivery acked a message of which several deliveries exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winner {
    /// The lease token of that delivery; `None` if the message was dead-lettered, so that no delivery has acked it.
    pub token: Option<LeaseToken>,
    /// Until when it is remembered.
    pub until: Timestamp,
}
