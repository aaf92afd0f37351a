//! What a group remembers of a message it was handed and has not finished.

use std::sync::Arc;

use crate::types::{LeaseToken, Offset, OwnerName, Timestamp};

/// The history of one message in one group, from its first delivery until it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The message's offset, so that a worker's word finds it here without touching the backlog.
    pub offset: Offset,
    /// How often it was delivered. Rises on delivery.
    pub attempts: u32,
    /// How many of those ended in a nack or an expiry.
    pub failures: u32,
    /// The newest delivery's proof.
    pub token: LeaseToken,
    /// The newest delivery's worker.
    pub owner: OwnerName,
    /// Leased, or waiting to be delivered again.
    pub phase: Phase,
    /// What was last said to be wrong.
    pub last_error: LastError,
}

/// Where an unfinished message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A worker holds it.
    Leased {
        /// When the lease ends.
        until: Timestamp,
    },
    /// Nobody holds it.
    Queued {
        /// When it may be delivered again.
        not_before: Timestamp,
    },
}

/// The newest known failure of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LastError {
    /// None yet.
    #[default]
    Nothing,
    /// A lease ended in silence, and nobody ever gave a reason.
    AckTimeout,
    /// A worker's own words.
    Reason(Arc<str>),
}

impl LastError {
    /// The text shown to workers; empty where there is none.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::AckTimeout => "ack_timeout",
            Self::Reason(text) => text,
        }
    }

    /// This error after a lease ended in silence: a worker's words are never overwritten.
    #[must_use]
    pub fn after_expiry(self) -> Self {
        match self {
            Self::Nothing => Self::AckTimeout,
            known => known,
        }
    }
}

impl Entry {
    /// When the lease ends, while one is running.
    #[must_use]
    pub fn leased_until(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Leased { until } => Some(until),
            Phase::Queued { .. } => None,
        }
    }
}
