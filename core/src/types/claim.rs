//! A worker's claim on a delivered message.

use super::ids::{LeaseToken, Offset, PartitionId};
use super::names::{GroupName, OwnerName};
use super::topic_name::TopicName;

/// Identifies a delivered message and proves that the caller holds its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub partition: PartitionId,
    /// The message's offset.
    pub offset: Offset,
    /// The worker's name: must be the owner of the newest delivery.
    pub owner: OwnerName,
    /// The lease token, if the worker shows one: must be the token of the newest delivery.
    pub token: TokenClaim,
}

/// A lease token as shown by a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenClaim {
    /// No token was shown; only the owner is checked.
    #[default]
    Absent,
    /// The text is not a token; it counts as stale.
    Unreadable,
    /// This token was shown.
    Shown(LeaseToken),
}

impl TokenClaim {
    /// Parses a token as a worker shows it.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        match text.map(str::parse) {
            None => Self::Absent,
            Some(Ok(token)) => Self::Shown(token),
            Some(Err(_)) => Self::Unreadable,
        }
    }
}
