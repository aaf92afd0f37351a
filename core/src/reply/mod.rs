//! Outputs of the broker: replies, refusals and deliveries.

mod access;
mod delivery;
mod describe;
mod refusal;
mod store;

use std::sync::Arc;

pub use self::access::{AuditPage, KeyInfo, KeyPage, TenantInfo};
pub use self::delivery::Delivery;
pub use self::describe::{Blocked, GroupInfo, ListedGroup, PartitionInfo, ProgressInfo, TopicInfo};
pub use self::refusal::{Denied, FullPartition, Overload, Refusal, TopicSetting};
pub use self::store::{EffectPage, FoundEffect, StoreReply};
pub use crate::types::StepOutput;

use crate::command::RedriveRest;
use crate::types::{Body, ConsumerId, Offset, PartitionId, Retention, TenantId, Ticket, Timestamp, TopicName};

/// An output of the broker. It leaves once every record it depends on is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The reply to a command.
    Reply {
        /// The command's ticket.
        ticket: Ticket,
        /// The reply or refusal.
        result: Result<Reply, Refusal>,
    },
    /// A message for a consumer.
    Deliver {
        /// The consumer.
        consumer: ConsumerId,
        /// The message and its lease.
        delivery: Box<Delivery>,
    },
    /// The broker disconnected a consumer.
    Closed {
        /// The consumer.
        consumer: ConsumerId,
        /// The cause.
        cause: CloseCause,
    },
}

/// Why the broker disconnected a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// Its topic was deleted.
    TopicDeleted,
    /// Its group was deleted.
    GroupDeleted,
    /// The key that opened it was revoked.
    KeyRevoked,
    /// The key that opened it has expired.
    KeyExpired,
}

/// The reply to a successful command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success, no payload.
    Success,
    /// The topic exists.
    TopicCreated {
        /// Its partition count.
        partitions: u32,
        /// Its retention.
        retention: Retention,
    },
    /// The topic has this retention.
    RetentionChanged {
        /// The retention.
        retention: Retention,
    },
    /// All topics of the tenant in byte order.
    Topics(Vec<TopicName>),
    /// The description of a topic.
    Topic(Box<TopicInfo>),
    /// The message is stored.
    Produced(Produced),
    /// The messages read.
    Peeked(Vec<Peeked>),
    /// The consumer is connected.
    Subscribed {
        /// Its id, used in deliveries and in later commands.
        consumer: ConsumerId,
    },
    /// The lease is extended.
    Extended {
        /// The new end of the lease.
        lease_until: Timestamp,
    },
    /// The groups of a topic in byte order.
    Groups(Vec<ListedGroup>),
    /// Dead letters were redriven.
    Redriven {
        /// The number of dead letters.
        count: u64,
        /// Of a redrive of all: those beyond its limit, if there are any.
        rest: Option<RedriveRest>,
    },
    /// The messages of a topic were removed.
    Purged {
        /// The number of messages.
        count: u64,
    },
    /// The step is completed; these are the messages it produced.
    Completed(Arc<[StepOutput]>),
    /// The reply of the idempotency store.
    Store(StoreReply),
    /// The key is created.
    KeyCreated(Box<KeyInfo>),
    /// A page of keys.
    Keys(Box<KeyPage>),
    /// The tenant is registered.
    TenantCreated {
        /// Its number.
        tenant: TenantId,
    },
    /// The tenants that the caller may see, in the order of their numbers.
    Tenants(Vec<TenantInfo>),
    /// A page of the audit.
    Audit(Box<AuditPage>),
}

/// Where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// Whether this is a duplicate: partition and offset are those of the first message, and nothing was stored.
    pub duplicate: bool,
    /// Whether the message was stored and acked in every group of its topic in one step, since each of them has acked
    /// a message of its identity before. Without it, the message is delivered or dead-lettered in every group.
    pub already_done: bool,
    /// How the router's decision was used.
    pub router: RouterUse,
}

/// How a router's decision was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouterUse {
    /// The produce came without a decision.
    #[default]
    NoDecision,
    /// The decision was followed.
    Followed,
    /// The decision named a topic or partition that does not exist, and was ignored.
    Ignored,
}

/// A message read without consuming it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// The offset.
    pub offset: Offset,
    /// When the message was stored.
    pub produced_at: Timestamp,
    /// The message.
    pub body: Body,
}
