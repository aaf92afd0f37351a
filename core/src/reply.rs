//! What the broker answers: replies, refusals, deliveries.

use std::sync::Arc;

use crate::body::Body;
use crate::idempotency::{Effect, EffectStatus, Outcome};
use crate::state::entry::LastError;
use crate::types::{
    ConsumerId, GroupName, LeaseToken, Millis, NameError, Offset, PartitionId, Text, Ticket, Timestamp, TopicName,
};

/// Something that leaves the broker. Nothing leaves before everything it rests on is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The answer to a command.
    Reply {
        /// The command's ticket.
        ticket: Ticket,
        /// The answer.
        result: Result<Reply, Refusal>,
    },
    /// A message for a stream.
    Deliver {
        /// The stream.
        consumer: ConsumerId,
        /// The message and its lease.
        delivery: Box<Delivery>,
    },
    /// A stream is over: its topic or group was deleted.
    Closed {
        /// The stream.
        consumer: ConsumerId,
        /// Why.
        cause: CloseCause,
    },
}

/// Why the broker ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// Its topic was deleted.
    TopicDeleted,
    /// Its group was deleted.
    GroupDeleted,
}

/// A message handed to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// Which delivery of it to this group this is; the first is 1.
    pub attempts: u32,
    /// How many earlier ones ended in a nack or an expiry.
    pub failures: u32,
    /// What was last said to be wrong.
    pub last_error: LastError,
    /// Proof of this delivery.
    pub token: LeaseToken,
    /// When the lease ends.
    pub lease_until: Timestamp,
    /// When the message was accepted.
    pub produced_at: Timestamp,
    /// The message.
    pub body: Body,
}

/// A command's success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is so now; nothing more to say.
    Done,
    /// The topic exists.
    TopicCreated {
        /// How many partitions it really has.
        partitions: u32,
    },
    /// Topics in byte order.
    Topics(Vec<TopicName>),
    /// One topic.
    Topic(Box<TopicInfo>),
    /// The message is stored.
    Produced(Produced),
    /// Messages, as asked for.
    Peeked(Vec<Peeked>),
    /// The stream is connected.
    Subscribed {
        /// Its number, for deliveries and for what it asks later.
        consumer: ConsumerId,
    },
    /// The lease runs on.
    Extended {
        /// When it ends now.
        lease_until: Timestamp,
    },
    /// Groups in byte order.
    Groups(Vec<GroupName>),
    /// Dead letters were made live again.
    Redriven {
        /// How many.
        count: u64,
    },
    /// The step is done, and this is what it produced.
    Completed(Arc<[StepOutput]>),
    /// What the idempotency store says.
    Store(StoreReply),
}

/// A message that a completed step has produced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutput {
    /// The topic that was asked for.
    pub topic: TopicName,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// The identity had been accepted before; this is that message's place, and nothing new was stored.
    pub duplicate: bool,
}

/// What the idempotency store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// Run it.
    Execute {
        /// How often it was granted, this time included.
        attempt: u32,
        /// Proof of this grant.
        token: LeaseToken,
        /// When the grant ends.
        lease_until: Timestamp,
        /// False where the key is empty: nothing is remembered, and nobody is kept from running it again.
        idempotent: bool,
    },
    /// It was run; this is what came of it.
    Replay(Outcome),
    /// It failed, or its lease ended without word, and whoever is responsible may reacquire it.
    Retryable {
        /// How often it was granted.
        attempt: u32,
        /// How it stands.
        status: EffectStatus,
        /// What went wrong.
        last_error: Text,
    },
    /// The lease runs on.
    Renewed {
        /// When it ends now.
        lease_until: Timestamp,
    },
    /// What is known about an effect.
    Effect(Box<Effect>),
}

/// Where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// The identity had been accepted before; this is that message's place, and nothing new was stored.
    pub duplicate: bool,
    /// What became of the router's decision.
    pub router: RouterUse,
}

/// What became of a router's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouterUse {
    /// There was none.
    #[default]
    NotAsked,
    /// It was followed.
    Followed,
    /// It named a topic or partition that is not there, so it was set aside.
    SetAside,
}

/// A message looked at without consuming it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Its offset.
    pub offset: Offset,
    /// When it was accepted.
    pub produced_at: Timestamp,
    /// The message.
    pub body: Body,
}

/// A topic, described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// Its partitions.
    pub partitions: Vec<PartitionInfo>,
    /// Its groups, by name.
    pub groups: Vec<GroupInfo>,
}

/// A partition, described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its number.
    pub partition: PartitionId,
    /// The offset after its newest message's; 0 while it never had one.
    pub next_offset: Offset,
    /// Messages not yet done in every group.
    pub messages: u64,
    /// Their key and value bytes.
    pub bytes: u64,
    /// How many of them are held back by their delay.
    pub delayed: u64,
}

/// A group, described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub group: GroupName,
    /// Whether it is paused.
    pub paused: bool,
    /// How many streams are connected.
    pub consumers: usize,
    /// Its progress, partition by partition.
    pub partitions: Vec<ProgressInfo>,
}

/// A group's progress in one partition, described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressInfo {
    /// The partition.
    pub partition: PartitionId,
    /// The offset at and below which everything is done; `None` while nothing is.
    pub floor: Option<Offset>,
    /// How many messages are not done.
    pub lag: u64,
    /// How many are leased.
    pub in_flight: u32,
    /// How many were delivered, came back, and are not leased.
    pub waiting: u64,
    /// How old the oldest message that is not done is.
    pub oldest_age: Option<Millis>,
    /// Why nothing is being dispatched, if so.
    pub blocked: Option<Blocked>,
}

/// Why a group is handed nothing from a partition although it is not done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The group is paused.
    Paused,
    /// Nobody is connected.
    NoConsumers,
    /// Everybody connected holds as many leases as it may.
    NoCredit,
    /// As many leases are running as may.
    InFlightLimit,
    /// What is not done is held back by a delay or waits for its retry.
    NotYetDue,
}

impl Blocked {
    /// The reason in words.
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

/// Why a command was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No topic of that name.
    #[error("topic \"{0}\" does not exist")]
    UnknownTopic(TopicName),
    /// No group of that name in the topic.
    #[error("group \"{0}\" does not exist")]
    UnknownGroup(GroupName),
    /// No such stream is connected.
    #[error("no such consumer")]
    UnknownConsumer,
    /// The topic has another number of partitions.
    #[error("topic exists with {partitions} partitions")]
    TopicExists {
        /// How many it has.
        partitions: u32,
    },
    /// The topic has no such partition.
    #[error("partition {partition} is out of range, the topic has {partitions}")]
    PartitionOutOfRange {
        /// The one asked for.
        partition: PartitionId,
        /// How many there are.
        partitions: u32,
    },
    /// A value that makes no sense here.
    #[error("{0}")]
    Invalid(&'static str),
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The deadline has already passed.
    #[error("deadline has passed")]
    DeadlinePassed,
    /// More bytes than allowed.
    #[error("{what} has {len} bytes, at most {max} are allowed")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        len: u64,
        /// How large it may be.
        max: u64,
    },
    /// More of something than allowed.
    #[error("{len} {what} asked for, at most {max} are allowed")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        len: u64,
        /// How many may be.
        max: u64,
    },
    /// The caller is not the worker that was last handed the message.
    #[error("not owner")]
    NotOwner,
    /// The token is not the newest delivery's, or its lease has ended.
    #[error("stale lease")]
    StaleLease,
    /// Somebody is running the effect.
    #[error("the effect is in progress elsewhere")]
    InProgress {
        /// When its lease ends at the latest, from now.
        retry_after: Millis,
    },
    /// The request is not the one the key was first used for.
    #[error("the idempotency key was used for another request")]
    HashMismatch,
    /// The store knows no such effect.
    #[error("no such idempotency record")]
    UnknownEffect,
    /// The effect has already ended otherwise.
    #[error("the effect has already ended with another outcome")]
    OtherOutcome,
    /// The effect has neither failed nor run out of its lease.
    #[error("the effect cannot be reacquired: {}", .status.as_str())]
    NotRetryable {
        /// How it stands.
        status: EffectStatus,
    },
    /// Too much is waiting; try again later.
    #[error("{}", .reason.as_str())]
    Overloaded {
        /// What there is too much of.
        reason: Overload,
        /// When to try again.
        retry_after: Millis,
    },
    /// There is no room in the log.
    #[error("storage is full")]
    StorageFull,
    /// The broker is stopping.
    #[error("the broker is shutting down")]
    ShuttingDown,
    /// The log has failed; only a restart goes on.
    #[error("the log has failed; restart the broker")]
    LogFailed,
}

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Overload {
    /// The partition holds as many unfinished messages, or bytes, as it may.
    Backlog,
    /// The partition's dead letters are as many as they may be.
    DeadLetters,
    /// As many produce identities are remembered as may be.
    Identities,
    /// As many effects of the tenant are remembered as may be.
    Effects,
    /// As many topics, groups or streams exist as may.
    Objects,
    /// The log is preparing room.
    Log,
}

impl Overload {
    /// The reason as APIs and metrics spell it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Backlog => "overloaded",
            Self::DeadLetters => "dlq_full",
            Self::Identities => "dedupe_full",
            Self::Effects => "quota",
            Self::Objects => "too_many",
            Self::Log => "log_busy",
        }
    }

    /// The reason in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backlog => "partition buffer is full",
            Self::DeadLetters => "the dead-letter partition is full",
            Self::Identities => "too many idempotency keys are remembered",
            Self::Effects => "the tenant has too many idempotency records",
            Self::Objects => "too many topics, groups or consumers",
            Self::Log => "the log is preparing room",
        }
    }
}
