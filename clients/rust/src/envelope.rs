//! What travels with a message beside key and value.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The envelope of a message, as it is produced and delivered. Empty texts count as not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Envelope {
    /// The run or workflow that the message belongs to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub run_id: String,
    /// The step within it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub step_id: String,
    /// The step that caused this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent_step_id: String,
    /// The tenant; empty means `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// A second produce with the same tenant, topic and key is a duplicate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub idempotency_key: String,
    /// The topic to store the message in instead.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_topic: String,
    /// The partition to store the message in, instead of that of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_override: Option<u32>,
    /// After this time (RFC 3339) the message is refused, or dead-lettered if it is stored already.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deadline: String,
    /// How often and when a failed message is delivered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// 0 to 9: messages of higher priority are delivered first within their partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Delay of the first delivery, in milliseconds; not together with `deliver_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The message is not delivered before this time (RFC 3339).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deliver_at: String,
    /// Tags, informational.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The origin of a dead letter. The broker refuses it in a produce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq: Option<Box<DeadLetter>>,
}

impl Envelope {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How often and when a failed message is delivered again. The default has no limit and no delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryPolicy {
    /// Deliveries before the message is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// The delay after the first failure, in milliseconds; it doubles with each further one.
    pub backoff_ms: u64,
    /// The longest delay, in milliseconds; 0: 24 h.
    pub max_backoff_ms: u64,
}

impl RetryPolicy {
    /// At most so many deliveries, then a dead letter.
    #[must_use]
    pub fn max_attempts(max_attempts: u32) -> Self {
        Self { max_attempts, ..Self::default() }
    }

    /// Delays that double from `first` up to `longest`.
    #[must_use]
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        Self { backoff_ms: millis(first), max_backoff_ms: millis(longest), ..self }
    }
}

/// Where a dead letter comes from, and why it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The topic it failed in.
    pub original_topic: String,
    /// The partition it failed in.
    pub original_partition: u32,
    /// The offset it failed at.
    pub original_offset: u64,
    /// The group that failed to process it.
    pub group: String,
    /// How often it was delivered there.
    pub attempts: u32,
    /// The cause of its last failure.
    pub last_error: String,
    /// `max_attempts`, `deadline_exceeded`, `non_retryable` or `payload_damaged`.
    pub reason: String,
    /// When it became a dead letter (RFC 3339).
    pub routed_at: String,
    /// Its offset when it was produced, before it was first redriven.
    pub first_offset: u64,
    /// How often it had been redriven.
    pub redrives: u32,
    /// Whether its payload was damaged on disk.
    pub lost: bool,
}

/// A router's decision about a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Routing {
    /// The label of the decision.
    pub label: String,
    /// What the router added.
    pub meta: BTreeMap<String, String>,
}

/// Whole milliseconds, at least 1 unless the duration is zero: 0 means "the default" to the broker.
pub(crate) fn millis(duration: Duration) -> u64 {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 && !duration.is_zero() { 1 } else { millis }
}
