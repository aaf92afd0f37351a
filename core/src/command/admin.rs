//! Commands on topics, groups and dead letters.

use crate::types::{GroupName, GroupStart, Offset, PartitionId, Retention, Timestamp, TopicName};

/// Creates a topic, or confirms that it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// The topic's name.
    pub name: TopicName,
    /// The number of partitions; `None` for one, or for what an existing topic has.
    pub partitions: Option<u32>,
    /// How long acked messages are kept; ignored if the topic exists.
    pub retention: Retention,
}

/// Deletes a topic with its messages, groups and produce identities. Closes its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopic {
    /// The topic's name.
    pub name: TopicName,
}

/// Lists all topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListTopics;

/// Describes a topic, its partitions and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeTopic {
    /// The topic's name.
    pub name: TopicName,
}

/// Reads messages without consuming them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset to read.
    pub offset: Offset,
    /// The most messages to read.
    pub limit: usize,
}

/// Creates a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateGroup {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// Where it starts.
    pub start: GroupStart,
}

/// Deletes a group with its progress. Closes its streams and ends its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteGroup {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
}

/// Lists a topic's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListGroups {
    /// The topic.
    pub topic: TopicName,
}

/// Sets a group's progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seek {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The new position.
    pub to: SeekTo,
}

/// The target of a [`Seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The earliest message kept.
    Earliest,
    /// After the newest message.
    Latest,
    /// The first message at or after this offset.
    Offset(Offset),
    /// The first message accepted at or after this time.
    Time(Timestamp),
}

/// Stops dispatch to a group until it is resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
}

/// Resumes a paused group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
}

/// Moves dead letters back to their topic, each for the group that failed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// The source topic; the messages come from its dead-letter topic.
    pub topic: TopicName,
    /// Which dead letters.
    pub which: RedriveSelection,
    /// The most to redrive, at most 1,024 per command; the reply says how many were.
    pub limit: u64,
}

/// Which dead letters to redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveSelection {
    /// All of every partition, the oldest first.
    All,
    /// Those with these offsets in the dead-letter topic.
    Offsets(Vec<Offset>),
}
