//! Payloads that were written again, and payloads that were lost.

use crate::types::{Body, Identity, PartitionId, PayloadId, Position, Text, TopicId};

/// A payload that was written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Where it stood.
    pub from: PayloadId,
    /// Everything that refers to it; never empty.
    pub referrers: Vec<Referrer>,
    /// The payload.
    pub body: Body,
}

/// A payload that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadLost {
    /// Where it stood.
    pub payload: PayloadId,
    /// Everything that referred to it; never empty.
    pub referrers: Vec<Referrer>,
    /// Where and how it was damaged, for people.
    pub damage: Text,
}

/// What refers to a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Referrer {
    /// A message.
    Message(MessageAt),
    /// The result of an effect.
    Effect(Identity),
}

/// The place of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageAt {
    /// The topic.
    pub topic: TopicId,
    /// The partition.
    pub partition: PartitionId,
    /// The position.
    pub position: Position,
}
