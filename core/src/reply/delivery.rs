//! The delivery of a message.

use crate::types::{Body, LastError, LeaseToken, Offset, PartitionId, Timestamp};

/// A message leased to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The message's partition.
    pub partition: PartitionId,
    /// The message's offset.
    pub offset: Offset,
    /// How often the message was delivered to this group, this delivery included.
    pub attempts: u32,
    /// How many earlier deliveries ended in a nack or an expiry.
    pub failures: u32,
    /// The last recorded failure.
    pub last_error: LastError,
    /// The lease token.
    pub token: LeaseToken,
    /// When the lease ends.
    pub lease_until: Timestamp,
    /// When the message was stored.
    pub produced_at: Timestamp,
    /// The message.
    pub body: Body,
}
