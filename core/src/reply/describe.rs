//! Descriptions of topics, partitions and groups.

use crate::types::{GroupName, Millis, Offset, PartitionId, Retention, TopicName};

/// The description of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// How long acked messages are retained.
    pub retention: Retention,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionInfo>,
    /// Its groups, ordered by name.
    pub groups: Vec<GroupInfo>,
}

/// The description of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its number.
    pub partition: PartitionId,
    /// The offset after that of its newest message; 0 if it never had one.
    pub next_offset: Offset,
    /// Messages in the backlog: not yet acked in every group.
    pub messages: u64,
    /// Key and value bytes of the backlog.
    pub bytes: u64,
    /// Delayed messages.
    pub delayed: u64,
}

/// A group in the list of a topic's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its name.
    pub name: GroupName,
    /// As [`GroupInfo::skipped`].
    pub skipped: u64,
}

/// The description of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub group: GroupName,
    /// Whether it is paused.
    pub paused: bool,
    /// The number of messages it has acked without a delivery, since it had acked a message of their identity before.
    pub skipped: u64,
    /// The number of connected consumers.
    pub consumers: usize,
    /// Its progress in each partition.
    pub partitions: Vec<ProgressInfo>,
}

/// The progress of a group in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressInfo {
    /// The partition.
    pub partition: PartitionId,
    /// Everything at and below this offset is acked; `None` if nothing is.
    pub floor: Option<Offset>,
    /// The number of unacked messages.
    pub lag: u64,
    /// The number of messages in flight.
    pub in_flight: u32,
    /// The number of messages queued for redelivery.
    pub waiting: u64,
    /// The age of the oldest unacked message.
    pub oldest_age: Option<Millis>,
    /// Why nothing is dispatched although messages are unacked and not in flight.
    pub blocked: Option<Blocked>,
}

/// Why a group with unacked messages in a partition gets no deliveries from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The group is paused.
    Paused,
    /// No consumer is connected.
    NoConsumers,
    /// Every consumer has used its prefetch.
    NoCredit,
    /// The in-flight limit is reached.
    InFlightLimit,
    /// All remaining messages are delayed or wait for their retry.
    NotYetDue,
}

impl Blocked {
    /// A description for users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "the group is paused",
            Self::NoConsumers => "no consumer is connected",
            Self::NoCredit => "every consumer holds as many leases as its prefetch allows",
            Self::InFlightLimit => "the in-flight limit is reached",
            Self::NotYetDue => "everything left is delayed or waiting for its retry",
        }
    }
}
