//! The delivery state of an unacked message in a group: attempts, lease, last error.

use std::sync::Arc;

use crate::types::{LeaseToken, Offset, OwnerName, Timestamp};

/// The delivery state of one message in one group, from its first delivery until it is acked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryState {
    /// The message's offset, so that a claim finds its delivery without a search of the backlog.
    pub offset: Offset,
    /// How often the message was delivered.
    pub attempts: u32,
    /// How many deliveries ended in a nack or an expiry.
    pub failures: u32,
    /// The lease token of the newest delivery.
    pub token: LeaseToken,
    /// The owner of the newest delivery.
    pub owner: OwnerName,
    /// Whether the message is leased or queued for redelivery.
    pub phase: Phase,
    /// The last recorded failure.
    pub last_error: LastError,
}

/// Whether a delivered, unacked message is leased or queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In flight: leased to a worker.
    Leased {
        /// When the lease ends.
        until: Timestamp,
    },
    /// Queued for redelivery.
    Queued {
        /// The earliest time of the redelivery.
        not_before: Timestamp,
    },
}

/// The last recorded failure of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LastError {
    /// None.
    #[default]
    Nothing,
    /// A lease expired without ack, nack or extend, and no nack has given a reason.
    AckTimeout,
    /// The reason given with a nack.
    Reason(Arc<str>),
}

impl LastError {
    /// The text that workers receive; empty for [`LastError::Nothing`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::AckTimeout => "ack_timeout",
            Self::Reason(text) => text,
        }
    }

    /// The error after an expiry. A reason given with a nack is never overwritten.
    #[must_use]
    pub(crate) fn after_expiry(self) -> Self {
        match self {
            Self::Nothing => Self::AckTimeout,
            known => known,
        }
    }
}

impl DeliveryState {
    /// When the lease ends; `None` if the message is queued.
    #[must_use]
    pub fn leased_until(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Leased { until } => Some(until),
            Phase::Queued { .. } => None,
        }
    }
}
