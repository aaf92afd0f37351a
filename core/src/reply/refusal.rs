//! Refusals.

use std::fmt;

use crate::types::{AuditResult, EffectStatus, GroupName, Millis, NameError, PartitionId, TenantName, TopicName, Verb};

/// Why a command was refused. A refused command has changed nothing; after [`Refusal::LogFailed`] only a restart shows
/// whether it has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The caller has no key although there are keys, or its key is unknown, expired or revoked.
    #[error("unauthenticated: a key is needed that is neither unknown, expired nor revoked")]
    Unauthenticated,
    /// The caller may not do this. Decided before anything that the command names is looked up.
    #[error("permission denied: {0}")]
    PermissionDenied(Denied),
    /// The topic does not exist.
    #[error("topic {:?} does not exist", .0.as_str())]
    UnknownTopic(TopicName),
    /// The topic has no such group.
    #[error("group {:?} does not exist", .0.as_str())]
    UnknownGroup(GroupName),
    /// The consumer is not connected.
    #[error("no such consumer")]
    UnknownConsumer,
    /// There is no such key, or it is one of a tenant that the caller does not manage.
    #[error("no such key")]
    UnknownKey,
    /// The tenant is not registered.
    #[error("tenant {:?} does not exist", .0.as_str())]
    UnknownTenant(TenantName),
    /// Another key has this id; draw another one.
    #[error("a key with this id exists")]
    KeyExists,
    /// The name is bound to another key.
    #[error("the certificate SAN is bound to another key")]
    CertificateBound,
    /// The tenant cannot be registered or deleted, since something is named or owned by it.
    #[error("tenant is in use: {0}")]
    TenantInUse(&'static str),
    /// The topic exists with other settings than the requested ones.
    #[error("topic exists with {}", .differing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    TopicExists {
        /// The settings of the topic that differ.
        differing: Vec<TopicSetting>,
    },
    /// The topic has no such partition.
    #[error("partition {partition} is out of range, the topic has {partitions}")]
    PartitionOutOfRange {
        /// The requested partition.
        partition: PartitionId,
        /// The topic's partition count.
        partitions: u32,
    },
    /// A field has an invalid value.
    #[error("{0}")]
    Invalid(&'static str),
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The message's deadline has passed.
    #[error("deadline has passed")]
    DeadlinePassed,
    /// A field is too long.
    #[error("{what} has {len} bytes, at most {max} are allowed")]
    TooLarge {
        /// The field.
        what: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// A count is too high.
    #[error("{len} {what} asked for, at most {max} are allowed")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The requested count.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A delay is too long.
    #[error("a delay of {delay} was requested, at most {max} is allowed")]
    DelayTooLong {
        /// The requested delay.
        delay: Millis,
        /// The limit.
        max: Millis,
    },
    /// The caller is not the owner of the newest delivery.
    #[error("not owner")]
    NotOwner,
    /// The token is not that of the newest delivery or grant, nor of the winner of an acked message; or its lease has
    /// ended.
    #[error("stale lease")]
    StaleLease,
    /// The message has no running lease that could end.
    #[error("the message is not leased")]
    NotLeased,
    /// The effect is leased to another worker.
    #[error("the effect is in progress elsewhere")]
    InProgress {
        /// The time until the lease ends, unless it is renewed.
        retry_after: Millis,
    },
    /// The request hash differs from that of the first request with this key.
    #[error("the idempotency key was used for another request")]
    HashMismatch,
    /// The effect does not exist.
    #[error("no such idempotency record")]
    UnknownEffect,
    /// The effect has ended with another outcome.
    #[error("the effect has already ended with another outcome")]
    OtherOutcome,
    /// The effect has a final outcome or is leased.
    #[error("the effect cannot be reacquired: {}", .status.as_str())]
    NotRetryable {
        /// Its status.
        status: EffectStatus,
    },
    /// A limit is reached; retry later.
    #[error("{}{}", .reason.as_str(), held_by(.full.as_deref()))]
    Overloaded {
        /// Which limit.
        reason: Overload,
        /// When to retry.
        retry_after: Millis,
        /// The partition that is full, if that is the reason.
        full: Option<Box<FullPartition>>,
    },
    /// The log has no space left.
    #[error("storage is full")]
    StorageFull,
    /// The broker is stopping.
    #[error("the broker is shutting down")]
    ShuttingDown,
    /// The log has failed; only a restart continues.
    #[error("the log has failed; restart the broker")]
    LogFailed,
}

impl Refusal {
    /// How the refusal of a command is audited.
    #[must_use]
    pub fn audited(&self) -> AuditResult {
        match self {
            Self::Unauthenticated => AuditResult::Unauthenticated,
            Self::PermissionDenied(_) => AuditResult::PermissionDenied,
            Self::UnknownTopic(_)
            | Self::UnknownGroup(_)
            | Self::UnknownConsumer
            | Self::UnknownEffect
            | Self::UnknownKey
            | Self::UnknownTenant(_) => AuditResult::NotFound,
            Self::TopicExists { .. }
            | Self::KeyExists
            | Self::CertificateBound
            | Self::TenantInUse(_)
            | Self::NotOwner
            | Self::StaleLease
            | Self::NotLeased
            | Self::InProgress { .. }
            | Self::HashMismatch
            | Self::OtherOutcome
            | Self::NotRetryable { .. } => AuditResult::Conflict,
            Self::Overloaded { .. } | Self::StorageFull | Self::ShuttingDown | Self::LogFailed => {
                AuditResult::Overloaded
            }
            Self::PartitionOutOfRange { .. }
            | Self::Invalid(_)
            | Self::Name(_)
            | Self::DeadlinePassed
            | Self::TooLarge { .. }
            | Self::TooMany { .. }
            | Self::DelayTooLong { .. } => AuditResult::Invalid,
        }
    }
}

fn held_by(full: Option<&FullPartition>) -> String {
    let Some(FullPartition { topic, partition, group }) = full else { return String::new() };
    match group {
        Some(group) => format!(": group \"{group}\" has not acked all of partition {partition} of topic \"{topic}\""),
        None => format!(": partition {partition} of topic \"{topic}\" has no group"),
    }
}

/// What the caller of a command lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A grant of this verb on what the command is about.
    #[error("the key has no grant to {0} this")]
    Verb(Verb),
    /// The right to manage all tenants.
    #[error("only a key of the default tenant with admin on everything manages other tenants")]
    OtherTenant,
    /// The right to name this tenant as that of an identity.
    #[error("the tenant of an idempotency key is the caller's, and no other registered one")]
    Tenant,
    /// The right to name this principal.
    #[error("the principal of scope rpc is the id of the caller's key")]
    Principal,
}

/// A partition that is full, and the group that holds it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullPartition {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The group with the oldest unacked message in it; `None` if the topic has no groups.
    pub group: Option<GroupName>,
}

/// A setting of a topic and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicSetting {
    /// The partition count.
    Partitions(u32),
    /// The greatest age of a retained message; `None` if there is no limit.
    RetentionAge(Option<Millis>),
    /// The most bytes of retained messages per partition; `None` if there is no limit.
    RetentionBytes(Option<u64>),
}

impl fmt::Display for TopicSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitions(count) => write!(f, "{count} partitions"),
            Self::RetentionAge(Some(age)) => write!(f, "retention_ms {}", age.0),
            Self::RetentionAge(None) => f.write_str("unlimited retention_ms"),
            Self::RetentionBytes(Some(bytes)) => write!(f, "retention_bytes {bytes}"),
            Self::RetentionBytes(None) => f.write_str("unlimited retention_bytes"),
        }
    }
}

/// The limit behind a [`Refusal::Overloaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Overload {
    /// Messages or bytes in the partition's backlog.
    Backlog,
    /// Messages or bytes in the backlog of the partition's dead letters.
    DeadLetters,
    /// Dedupe keys of the topic.
    DedupeKeys,
    /// Effects of the tenant.
    Effects,
    /// Topics, groups, consumers, keys or tenants.
    Objects,
    /// The log's next segment is not ready yet.
    Log,
    /// The memory of the state.
    Memory,
}

impl Overload {
    /// The code used in APIs and metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Backlog => "overloaded",
            Self::DeadLetters => "dlq_full",
            Self::DedupeKeys => "dedupe_full",
            Self::Effects => "quota",
            Self::Objects => "too_many",
            Self::Log => "log_busy",
            Self::Memory => "memory",
        }
    }

    /// A description for users.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Backlog => "partition buffer is full",
            Self::DeadLetters => "the dead-letter partition is full",
            Self::DedupeKeys => "too many idempotency keys are remembered",
            Self::Effects => "the tenant has too many idempotency records",
            Self::Objects => "too many topics, groups, consumers, keys or tenants",
            Self::Log => "the log is preparing room",
            Self::Memory => "the broker holds as much in memory as it may",
        }
    }
}
