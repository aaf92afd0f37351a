//! Commands on delivered messages: ack, nack, extend, release, withdraw, complete, and the end of a lease.

use std::sync::Arc;

use super::produce::Produce;
use crate::types::{Claim, GroupName, Millis, Offset, OwnerName, PartitionId, Text, TopicName};

/// Acknowledges a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack(pub Claim);

/// Acknowledges all messages of a partition at or below an offset whose newest delivery went to one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckCumulative {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub partition: PartitionId,
    /// The highest offset.
    pub offset: Offset,
    /// The worker. Deliveries to other workers are left alone.
    pub owner: OwnerName,
}

/// Ends the lease of a message now, as if it had run out. For operators: no token and no owner is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpireLease {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
}

/// Returns a message to its queue without counting a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release(pub Claim);

/// Takes back a delivery that never reached its consumer: its attempt does not count, and no failure is recorded. A
/// token must be shown.
///
/// For the driver of a broker, which knows what it has written to a stream; workers use [`Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdraw(pub Claim);

/// Reports that a message failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The message.
    pub claim: Claim,
    /// What went wrong; may be empty.
    pub reason: Text,
    /// Whether and when to retry.
    pub retry: Retry,
}

/// Whether and when a nacked message is retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// As its retry policy says; at once without one.
    #[default]
    ByPolicy,
    /// After this delay, whatever its policy says.
    After(Millis),
    /// Never: the message is dead-lettered at once.
    Never,
}

impl Retry {
    /// After `delay` if there is one, else by the policy.
    #[must_use]
    pub fn after(delay: Option<Millis>) -> Self {
        delay.map_or(Self::ByPolicy, Self::After)
    }
}

/// Extends a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend {
    /// The message.
    pub claim: Claim,
    /// The new lease, from now; `None` or zero for the default.
    pub lease: Option<Millis>,
}

/// Acks a message, finishes its effect and produces the next step's messages, atomically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The message. A token must be shown.
    pub claim: Claim,
    /// The effect's result as JSON text; only a message with an idempotency key has an effect.
    pub result: Option<Arc<str>>,
    /// The next step's messages.
    pub produce: Vec<Produce>,
    /// The error, possibly empty, of a step that failed for good: its effect ends as
    /// [`FailedFinal`](crate::types::EffectStatus::FailedFinal), and the message is dead-lettered instead of acked.
    pub failed: Option<Text>,
}
