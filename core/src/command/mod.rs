//! Commands: everything a client can request of the broker.
//!
//! Each command is a struct of its own that implements [`Request`](crate::Request) and so names the type of its reply;
//! [`Command`] is the enum of all of them, which is what [`Pipeline::handle`](crate::Pipeline::handle) takes.

mod access;
mod admin;
mod consume;
mod effects;
mod produce;
mod settle;

pub use self::access::{
    ACCESS_PAGE_MAX, BindKey, CreateKey, CreateTenant, DeleteTenant, KeyExpiry, ListAudit, ListKeys, ListTenants,
    RevokeKey, Target,
};
pub use self::admin::{
    ChangeRetention, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic, DescribeTopic, ListGroups, ListTopics, Pause,
    Peek, Purge, REDRIVE_SLICE, Redrive, RedriveRest, RedriveSelection, Resume, Seek, SeekTo,
};
pub use self::consume::{CloseStream, GroupLifetime, OnDisconnect, SetPrefetch, Subscribe, Unsubscribe};
pub use self::effects::{
    Begin, DeliveryClaim, Finish, Forget, ListEffects, Lookup, OnExpired, Reacquire, Renew, StoreCommand,
};
pub use self::produce::Produce;
pub use self::settle::{Ack, AckCumulative, Complete, ExpireLease, Extend, Nack, Release, Retry, Withdraw};
use crate::types::ConsumerId;
pub use crate::types::{Claim, TokenClaim};

/// One command. Every command gets exactly one [`Reply`](crate::Reply) or [`Refusal`](crate::Refusal); a refused
/// command has changed nothing, except that the outcome of [`Refusal::LogFailed`](crate::Refusal::LogFailed) is unknown
/// until a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates a topic, or confirms that it exists.
    CreateTopic(CreateTopic),
    /// Changes the retention of a topic.
    ChangeRetention(ChangeRetention),
    /// Deletes a topic with its messages, groups and produce identities. Closes its streams.
    DeleteTopic(DeleteTopic),
    /// Lists all topics of a tenant.
    ListTopics(ListTopics),
    /// Describes a topic, its partitions and its groups.
    DescribeTopic(DescribeTopic),
    /// Stores a message.
    Produce(Box<Produce>),
    /// Reads messages without consuming them.
    Peek(Peek),
    /// Connects a consumer to a group, which is created if it does not exist.
    Subscribe(Subscribe),
    /// Changes a consumer's prefetch; 0 stops its deliveries.
    SetPrefetch(SetPrefetch),
    /// Disconnects a consumer and applies its [`OnDisconnect`].
    Unsubscribe(Unsubscribe),
    /// Disconnects a consumer that received everything it requested; its leases keep running.
    CloseStream(CloseStream),
    /// Acknowledges a message.
    Ack(Ack),
    /// Acknowledges all messages of a partition at or below an offset whose newest delivery went to one owner.
    AckCumulative(AckCumulative),
    /// Reports that a message failed.
    Nack(Nack),
    /// Extends a lease.
    Extend(Extend),
    /// Returns a message to its queue without counting a failure.
    Release(Release),
    /// Takes back a delivery that never reached its consumer.
    Withdraw(Withdraw),
    /// Ends the lease of a message now, as if it had run out.
    ExpireLease(ExpireLease),
    /// Acks a message, finishes its effect and produces the next step's messages, atomically.
    Complete(Box<Complete>),
    /// A command of the idempotency store.
    Store(Box<StoreCommand>),
    /// Creates a group.
    CreateGroup(CreateGroup),
    /// Deletes a group with its progress. Closes its streams and ends its leases.
    DeleteGroup(DeleteGroup),
    /// Lists a topic's groups.
    ListGroups(ListGroups),
    /// Sets a group's progress.
    Seek(Seek),
    /// Stops dispatch to a group until it is resumed.
    Pause(Pause),
    /// Resumes a paused group.
    Resume(Resume),
    /// Moves dead letters back to their topic, each for the group that failed it.
    Redrive(Redrive),
    /// Removes the messages of a topic.
    Purge(Purge),
    /// Creates a key.
    CreateKey(Box<CreateKey>),
    /// Revokes a key and closes its streams.
    RevokeKey(RevokeKey),
    /// Binds a key to a name in client certificates.
    BindKey(BindKey),
    /// Lists keys.
    ListKeys(ListKeys),
    /// Registers a tenant, or confirms that it is registered.
    CreateTenant(CreateTenant),
    /// Deletes a tenant that has nothing.
    DeleteTenant(DeleteTenant),
    /// Lists tenants.
    ListTenants(ListTenants),
    /// Lists what was audited.
    ListAudit(ListAudit),
}

impl Command {
    /// The stream that the command is about, if it is about one.
    pub(crate) const fn stream(&self) -> Option<ConsumerId> {
        match self {
            Self::SetPrefetch(SetPrefetch { consumer, .. })
            | Self::Unsubscribe(Unsubscribe { consumer })
            | Self::CloseStream(CloseStream { consumer }) => Some(*consumer),
            _ => None,
        }
    }
}
