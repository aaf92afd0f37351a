//! Commands on topics, groups and dead letters.

use crate::types::{
    GroupName, GroupStart, Millis, Offset, PartitionId, Retention, Setting, TenantId, Timestamp, TopicId, TopicName,
};

/// Creates a topic, or confirms that it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// The topic's name.
    pub name: TopicName,
    /// The number of partitions; `None` for one, or for what an existing topic has.
    pub partitions: Option<u32>,
    /// How long acked messages are kept. What is not set is the server's default, for a dead-letter topic that of its
    /// source, or what an existing topic has.
    pub retention: Retention,
}

/// Changes the retention of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRetention {
    /// The topic's name.
    pub name: TopicName,
    /// The greatest age of a retained message.
    pub age: Setting<Millis>,
    /// The most key and value bytes of the retained messages of a partition.
    pub bytes: Setting<u64>,
}

/// Deletes a topic with its messages, groups and produce identities. Closes its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopic {
    /// The topic's name.
    pub name: TopicName,
}

/// Lists all topics of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListTopics {
    /// The tenant.
    pub tenant: TenantId,
}

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

/// Creates a group, or confirms that it exists. The broker never deletes such a group by itself.
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

/// Removes all messages of a topic that are stored when the command is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The topic.
    pub topic: TopicName,
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

/// The most dead letters that one command goes through, so that it does not delay other commands.
pub const REDRIVE_SLICE: u64 = 256;

/// Moves dead letters back to their topic, each for the group that failed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// The source topic; the messages come from its dead-letter topic.
    pub topic: TopicName,
    /// Which dead letters.
    pub which: RedriveSelection,
    /// The most to go through, at most [`REDRIVE_SLICE`] per command. The reply says how many were redriven; the others
    /// are of groups that do not exist any more.
    pub limit: u64,
}

/// Which dead letters to redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveSelection {
    /// All that are stored when the command is decided, the oldest first. The reply names those beyond the limit.
    All,
    /// The rest of an earlier redrive of all, as its reply named it.
    Rest(RedriveRest),
    /// Those with these offsets in the dead-letter topic.
    Offsets(Vec<Offset>),
}

/// The dead letters that a redrive of all has not reached yet. None that was stored after the redrive was asked for is
/// among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveRest {
    /// The dead-letter topic. A topic that was created later under the same name has another id.
    pub dead_topic: TopicId,
    /// The offset of the first.
    pub from: Offset,
    /// All of them are below this offset.
    pub below: Offset,
}
