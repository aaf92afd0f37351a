//! Message metadata: the producer's envelope, routing, dead-letter and redrive origin.

use std::collections::BTreeMap;

use super::ids::{Offset, PartitionId};
use super::names::GroupName;
use super::produce_scope::ProduceScope;
use super::time::{Millis, Timestamp};
use super::topic_name::TopicName;

/// Text supplied by a client; its length is limited before it is stored.
pub type Text = Box<str>;

/// The longest backoff if a retry policy sets none.
pub const MAX_BACKOFF_DEFAULT: Millis = Millis(24 * 60 * 60 * 1000);

/// The tenant of messages and effects without a tenant id.
pub const DEFAULT_TENANT: &str = "default";

/// The priority of a message within its partition: 0 (the default) to 9 (delivered first).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// The number of priorities.
    pub const COUNT: usize = 10;

    /// The priority `level`, or `None` above 9.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level < Self::COUNT as u8 { Some(Self(level)) } else { None }
    }

    /// The level, 0 to 9.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }
}

/// How often a message is delivered, and how long it waits after a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Deliveries before the message is dead-lettered; 0 means no limit.
    pub max_attempts: u32,
    /// The backoff after the first failure; doubles with each further one. 0 means none.
    pub backoff: Millis,
    /// The longest backoff; 0 means [`MAX_BACKOFF_DEFAULT`].
    pub max_backoff: Millis,
}

/// The time after which a message is not delivered any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The time.
    pub at: Timestamp,
    /// The time as the producer wrote it, returned unchanged.
    pub text: Text,
}

/// The producer's metadata. Stored and delivered with the message; never part of the payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The workflow run the message belongs to.
    pub run_id: Option<Text>,
    /// The step within the run.
    pub step_id: Option<Text>,
    /// The step that caused this one.
    pub parent_step_id: Option<Text>,
    /// The tenant.
    pub tenant_id: Option<Text>,
    /// Deduplicates produces, and identifies the effect of processing the message in each group.
    pub idempotency_key: Option<Text>,
    /// The topic to store the message in, instead of the one produced to.
    pub target_topic: Option<TopicName>,
    /// The partition to store the message in, instead of the key's.
    pub partition_override: Option<PartitionId>,
    /// After this wall time a produce is refused and a stored message is dead-lettered.
    pub deadline: Option<Deadline>,
    /// What happens after a failed delivery.
    pub retry_policy: Option<RetryPolicy>,
    /// Higher priorities of a partition are delivered first.
    pub priority: Option<Priority>,
    /// The earliest time of the first delivery, in wall time.
    pub deliver_at: Option<Timestamp>,
    /// The end of a requested delay, in broker time. Set when the message is stored, never by a client.
    pub delayed_until: Option<Timestamp>,
    /// Informational tags.
    pub labels: BTreeMap<Text, Text>,
}

impl Envelope {
    /// Whether no field is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { run_id, step_id, parent_step_id, tenant_id, idempotency_key, labels, .. } = self;
        let Self { target_topic, partition_override, deadline, retry_policy, priority, .. } = self;
        let Self { deliver_at, delayed_until, .. } = self;
        [run_id, step_id, parent_step_id, tenant_id, idempotency_key].iter().all(|text| text.is_none())
            && (target_topic.is_none() && partition_override.is_none())
            && (deadline.is_none() && retry_policy.is_none() && priority.is_none())
            && (deliver_at.is_none() && delayed_until.is_none())
            && labels.is_empty()
    }

    /// Whether an idempotency key that is not empty and possibly a tenant are the only fields that are set.
    pub(crate) fn has_only_identity(&self) -> bool {
        let Self { run_id, step_id, parent_step_id, labels, .. } = self;
        let Self { target_topic, partition_override, deadline, retry_policy, priority, .. } = self;
        let Self { deliver_at, delayed_until, .. } = self;
        self.identity_key().is_some()
            && (run_id.is_none() && step_id.is_none() && parent_step_id.is_none())
            && (target_topic.is_none() && partition_override.is_none())
            && (deadline.is_none() && retry_policy.is_none() && priority.is_none())
            && (deliver_at.is_none() && delayed_until.is_none())
            && labels.is_empty()
    }

    /// The tenant; [`DEFAULT_TENANT`] if the id is absent or empty.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant_id.as_deref().filter(|t| !t.is_empty()).unwrap_or(DEFAULT_TENANT)
    }

    /// The idempotency key; `None` if it is absent or empty.
    #[must_use]
    pub fn identity_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref().filter(|k| !k.is_empty())
    }
}

/// The router's metadata, stored with the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// A high-level label.
    pub label: Text,
    /// Further data of the router.
    pub meta: BTreeMap<Text, Text>,
}

/// A router's decision, an input of produce. It takes precedence over the envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingDecision {
    /// Stored with the message.
    pub routing: Routing,
    /// The topic to store the message in.
    pub target_topic: Option<TopicName>,
    /// The partition to store it in.
    pub partition_override: Option<PartitionId>,
}

/// Why a message was dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadReason {
    /// Its last permitted attempt failed.
    MaxAttempts,
    /// Its deadline passed before it was acked.
    DeadlineExceeded,
    /// A worker reported that no retry can succeed.
    NonRetryable,
    /// Its payload was damaged on disk.
    PayloadDamaged,
}

impl DeadReason {
    /// The code used in APIs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NonRetryable => "non_retryable",
            Self::PayloadDamaged => "payload_damaged",
        }
    }
}

/// What the metadata of a dead letter says of it: its origin, and what a redrive restores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its origin.
    pub origin: DeadLetterOrigin,
    /// The envelope fields that a redrive restores.
    pub kept: KeptForRedrive,
}

impl std::ops::Deref for DeadLetter {
    type Target = DeadLetterOrigin;

    fn deref(&self) -> &DeadLetterOrigin {
        &self.origin
    }
}

/// The origin of a dead letter: what dead-lettering adds to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterOrigin {
    /// The topic it was consumed from.
    pub original_topic: TopicName,
    /// Its partition there.
    pub original_partition: PartitionId,
    /// Its offset there.
    pub original_offset: Offset,
    /// The group in which it failed.
    pub group: GroupName,
    /// How often it was delivered to that group.
    pub attempts: u32,
    /// The last recorded failure; empty if there is none.
    pub last_error: Text,
    /// Why it was dead-lettered.
    pub reason: DeadReason,
    /// When it was dead-lettered.
    pub routed_at: Timestamp,
}

/// The envelope fields that have no effect in a dead-letter topic and are restored by a redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptForRedrive {
    /// See [`Envelope::retry_policy`].
    pub retry_policy: Option<RetryPolicy>,
    /// See [`Envelope::target_topic`].
    pub target_topic: Option<TopicName>,
    /// See [`Envelope::partition_override`].
    pub partition_override: Option<PartitionId>,
    /// See [`Envelope::deadline`].
    pub deadline: Option<Deadline>,
}

/// The origin of a redriven message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveOrigin {
    /// How often the message was redriven, this redrive included.
    pub count: u32,
    /// The offset it had in the dead-letter topic.
    pub dead_letter_offset: Offset,
    /// The offset it first had in this topic.
    pub original_offset: Offset,
}

/// All metadata of a message: the producer's, the router's and the broker's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The producer's metadata.
    pub envelope: Envelope,
    /// The router's metadata.
    pub routing: Option<Routing>,
    /// The trace context of the produce.
    pub trace: Option<Text>,
    /// Set on dead letters.
    pub dead_letter: Option<Box<DeadLetter>>,
    /// Set on redriven messages.
    pub redrive: Option<RedriveOrigin>,
    /// What the producer asked for, unless that is only the topic in which the message was first stored.
    pub requested: Option<ProduceScope>,
    /// Set if the payload was damaged on disk: where, and how. Key and value are empty then, and of the metadata there
    /// is only what the broker keeps in memory.
    pub lost: Option<Text>,
}

impl Metadata {
    /// Whether there is none.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        let Self { envelope, routing, trace, dead_letter, redrive, requested, lost } = self;
        (envelope.is_empty() && routing.is_none() && trace.is_none())
            && (dead_letter.is_none() && redrive.is_none() && requested.is_none() && lost.is_none())
    }
}

/// The metadata that every delivery needs, cached so that it need not be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFlags {
    /// The message's priority.
    pub priority: Priority,
    /// Whether it has a deadline.
    pub has_deadline: bool,
    /// Whether it has a `deliver_at` or a delay.
    pub has_delay: bool,
    /// Whether it has an idempotency key that is not empty.
    pub has_identity: bool,
}

impl MessageFlags {
    /// The flags of `meta`.
    #[must_use]
    pub(crate) fn of(meta: &Metadata) -> Self {
        Self {
            priority: meta.envelope.priority.unwrap_or_default(),
            has_deadline: meta.envelope.deadline.is_some(),
            has_delay: meta.envelope.deliver_at.is_some() || meta.envelope.delayed_until.is_some(),
            has_identity: meta.envelope.identity_key().is_some(),
        }
    }

    /// Whether the message is delivered in its turn: nothing is scheduled for it.
    #[must_use]
    pub(crate) fn is_in_turn(&self) -> bool {
        !self.has_deadline && !self.has_delay && self.priority.level() == 0
    }
}
