//! What a producer sends and a worker receives, apart from the payload: the envelope, routing, and the broker's own notes.

use std::collections::BTreeMap;

use super::ids::{Offset, PartitionId};
use super::names::{GroupName, TopicName};
use super::time::{Millis, Timestamp};

/// Free text that came from outside and was bounded at the edge.
pub type Text = Box<str>;

/// The longest wait between two attempts where a policy does not say.
pub const MAX_BACKOFF_DEFAULT: Millis = Millis(24 * 60 * 60 * 1000);

/// The tenant that an absent or empty tenant means.
pub const DEFAULT_TENANT: &str = "default";

/// How urgent a message is within its partition: 0 (the default) to 9 (first).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// How many priorities there are.
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

/// How often, and how far apart, delivery is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Deliveries before the message is dead-lettered; 0 means no limit.
    pub max_attempts: u32,
    /// The wait after the first failure; doubles with each further one. 0 means none.
    pub backoff: Millis,
    /// The longest wait; 0 means [`MAX_BACKOFF_DEFAULT`].
    pub max_backoff: Millis,
}

/// When a message stops being worth delivering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment itself.
    pub at: Timestamp,
    /// The producer's own spelling of it, handed back unchanged.
    pub text: Text,
}

/// The producer's metadata: it travels with the message and never changes its payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The agent run or workflow execution this belongs to.
    pub run_id: Option<Text>,
    /// The step within the run.
    pub step_id: Option<Text>,
    /// The step that caused this one.
    pub parent_step_id: Option<Text>,
    /// Whose message it is.
    pub tenant_id: Option<Text>,
    /// The identity under which a second produce counts as the same.
    pub idempotency_key: Option<Text>,
    /// The topic to store it in, instead of the one produced to.
    pub target_topic: Option<TopicName>,
    /// The partition to store it in, instead of the key's.
    pub partition_override: Option<PartitionId>,
    /// After this it is refused, or dead-lettered where already queued.
    pub deadline: Option<Deadline>,
    /// What happens when workers fail it.
    pub retry_policy: Option<RetryPolicy>,
    /// Skips ahead of lower priorities in its partition.
    pub priority: Option<Priority>,
    /// Not delivered before this moment.
    pub deliver_at: Option<Timestamp>,
    /// Tags, informational.
    pub labels: BTreeMap<Text, Text>,
}

impl Envelope {
    /// Whether nothing at all was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { run_id, step_id, parent_step_id, tenant_id, idempotency_key, labels, .. } = self;
        let Self { target_topic, partition_override, deadline, retry_policy, priority, deliver_at, .. } = self;
        [run_id, step_id, parent_step_id, tenant_id, idempotency_key].iter().all(|text| text.is_none())
            && (target_topic.is_none() && partition_override.is_none())
            && (deadline.is_none() && retry_policy.is_none() && priority.is_none() && deliver_at.is_none())
            && labels.is_empty()
    }

    /// The tenant for identities: an absent or empty one is `"default"`.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant_id.as_deref().filter(|t| !t.is_empty()).unwrap_or(DEFAULT_TENANT)
    }

    /// The idempotency key, if one that counts was given.
    #[must_use]
    pub fn identity_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref().filter(|k| !k.is_empty())
    }
}

/// What a router said about a message, kept with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// A high-level label.
    pub label: Text,
    /// Anything else the router wants kept.
    pub meta: BTreeMap<Text, Text>,
}

/// A router's answer, as an input of produce. Its choices win over the envelope's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingDecision {
    /// Kept with the message.
    pub routing: Routing,
    /// The topic to store the message in.
    pub target_topic: Option<TopicName>,
    /// The partition to store it in.
    pub partition_override: Option<PartitionId>,
}

/// Why a message was dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadReason {
    /// It failed at its last allowed attempt.
    MaxAttempts,
    /// Its deadline passed while it was queued or being worked on.
    DeadlineExceeded,
}

impl DeadReason {
    /// The word used in APIs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

/// Where a dead letter comes from, and what it needs to be made live again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The topic it was consumed from.
    pub original_topic: TopicName,
    /// Its partition there.
    pub original_partition: PartitionId,
    /// Its offset there.
    pub original_offset: Offset,
    /// The group that could not finish it.
    pub group: GroupName,
    /// How often that group was handed it.
    pub attempts: u32,
    /// What was last said to be wrong; empty if nothing was.
    pub last_error: Text,
    /// Why it came here.
    pub reason: DeadReason,
    /// When.
    pub routed_at: Timestamp,
    /// What its envelope lost on the way in and gets back when redriven.
    pub kept: KeptForRedrive,
}

/// The parts of an envelope that must not act inside a dead-letter topic.
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

/// Where a redriven message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// How often this body has been redriven, this time included.
    pub count: u32,
    /// The offset of the dead letter, in the dead-letter topic, that it was made from.
    pub dead_letter_offset: Offset,
    /// The offset it first had in this topic.
    pub original_offset: Offset,
}

/// Everything that travels with a payload: what the producer said, what a router said, what the broker noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The producer's part.
    pub envelope: Envelope,
    /// The router's part.
    pub routing: Option<Routing>,
    /// The trace context that came with the produce.
    pub trace: Option<Text>,
    /// Set on dead letters.
    pub dead_letter: Option<Box<DeadLetter>>,
    /// Set on messages made by a redrive.
    pub redrive: Option<Redrive>,
}

impl Metadata {
    /// Whether nothing at all travels with the payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { envelope, routing, trace, dead_letter, redrive } = self;
        envelope.is_empty() && routing.is_none() && trace.is_none() && dead_letter.is_none() && redrive.is_none()
    }
}

/// What the hot paths ask of the metadata, noted once so that they need not decode it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFlags {
    /// The message's priority.
    pub priority: Priority,
    /// It has a deadline.
    pub has_deadline: bool,
    /// It has a moment before which it must not be delivered.
    pub has_delay: bool,
    /// It has an idempotency key.
    pub has_identity: bool,
}

impl MessageFlags {
    /// What `meta` says of them.
    #[must_use]
    pub fn of(meta: &Metadata) -> Self {
        Self {
            priority: meta.envelope.priority.unwrap_or_default(),
            has_deadline: meta.envelope.deadline.is_some(),
            has_delay: meta.envelope.deliver_at.is_some(),
            has_identity: meta.envelope.identity_key().is_some(),
        }
    }
}
