//! Limits and defaults. They affect decisions only, never recorded state.

use super::time::Millis;
use super::topic_settings::Retention;
use super::work_limits::WorkLimits;

/// The upper bound of [`Limits::message_bytes_max`]. A message must still fit into one frame of the log as a dead
/// letter, with an error text and the names of its origin.
pub const MESSAGE_BYTES_CEILING: usize = 24 << 20;
/// The upper bound of [`Limits::error_text_bytes_max`]. A dead letter contains the text, too.
pub const ERROR_TEXT_BYTES_CEILING: usize = 1 << 20;
/// The upper bound of [`Limits::result_bytes_max`].
pub const RESULT_BYTES_CEILING: usize = 4 << 20;
/// The upper bound of [`Limits::partitions_max`]. Replay rejects a record with more.
pub const PARTITIONS_CEILING: u32 = 1 << 16;

/// What a retained message costs in memory beside its bytes, as [`Limits::retained_bytes_max`] counts it.
pub const RETAINED_MESSAGE_OVERHEAD: u64 = 128;

/// Limits and defaults of a broker. They are not written to the log: a restart may change them, which affects later
/// decisions and leaves the state as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages in flight per topic, group and partition.
    pub in_flight_max: u32,
    /// Messages in the backlog of a partition: not yet acked in every group.
    pub partition_messages_max: u64,
    /// Key and value bytes of that backlog.
    pub partition_bytes_max: u64,
    /// The lease if none is requested.
    pub lease_default: Millis,
    /// The shortest lease; a shorter one counts as this. At least 1 ms.
    pub lease_min: Millis,
    /// The longest lease; a longer one counts as this, unless [`Limits::lease_min`] is longer still.
    pub lease_max: Millis,
    /// The longest delay of a message or of a retry that a client may request; a longer one is refused.
    pub delay_max: Millis,
    /// How long a produce is deduplicated.
    pub dedupe_ttl: Millis,
    /// Unexpired dedupe keys per requested topic and destination; further keys are refused, none is evicted.
    pub dedupe_keys_max: u64,
    /// Bytes of a key.
    pub key_bytes_max: usize,
    /// Bytes of key, value and metadata together; at most [`MESSAGE_BYTES_CEILING`].
    pub message_bytes_max: usize,
    /// Bytes of an idempotency key.
    pub idempotency_key_bytes_max: usize,
    /// Bytes of a tenant, run or step id.
    pub id_bytes_max: usize,
    /// Bytes of metadata: ids, labels, routing, trace. Backpressure does not count them.
    pub metadata_bytes_max: usize,
    /// Bytes of the reason of a nack; at most [`ERROR_TEXT_BYTES_CEILING`].
    pub error_text_bytes_max: usize,
    /// Bytes of an effect's result; at most [`RESULT_BYTES_CEILING`].
    pub result_bytes_max: usize,
    /// How long an effect is remembered after a worker ended it. One that only an ack ended is remembered as long as a
    /// produce of its key is a duplicate.
    pub effect_ttl: Millis,
    /// How long an effect of a job or task is remembered after it ended.
    pub job_ttl: Millis,
    /// Effects of one tenant; further ones are refused, none is evicted.
    pub effects_max: u64,
    /// How long the reply of a completed step is repeated and the winner of a message remembered.
    pub completion_ttl: Millis,
    /// Stored replies of completed steps, and remembered winners; beyond it the oldest are removed early.
    pub completions_max: usize,
    /// Messages that one completed step can produce.
    pub outputs_max: usize,
    /// Whether credit follows what a consumer shows, and an expiry dead-letters only the oldest unanswered delivery of
    /// its stream. Without it a stream holds up to its prefetch, and every expiry counts.
    pub adaptive_credit: bool,
    /// Partitions of one topic; at most [`PARTITIONS_CEILING`].
    pub partitions_max: u32,
    /// Topics.
    pub topics_max: usize,
    /// Groups of one topic.
    pub groups_max: usize,
    /// Connected consumers.
    pub consumers_max: usize,
    /// Keys.
    pub keys_max: usize,
    /// Registered tenants, without the default one.
    pub tenants_max: usize,
    /// The greatest age of a retained message of topics that are created without one; `None` for no limit. Written into
    /// their record.
    pub retention_age: Option<Millis>,
    /// As [`Limits::retention_age`], for the bytes of the retained messages of a partition.
    pub retention_bytes: Option<u64>,
    /// Memory of the retained messages of all topics; beyond it the oldest are removed early. Counts keys, values and
    /// metadata, and [`RETAINED_MESSAGE_OVERHEAD`] bytes for each message.
    pub retained_bytes_max: u64,
    /// A group that was created by consuming, never acked and is not paused is deleted once it has been without a
    /// consumer for this long and makes a partition refuse a message. `None`: never.
    pub group_idle: Option<Millis>,
    /// Such a group is deleted in any case once it has been without a consumer for this long, unless
    /// [`Limits::group_idle`] is `None`.
    pub group_idle_max: Millis,
    /// The retry delay in a refusal for overload.
    pub retry_after: Millis,
    /// How much one call, record or page handles.
    pub work: WorkLimits,
}

impl Limits {
    /// The production defaults.
    #[must_use]
    pub const fn production() -> Self {
        Self {
            in_flight_max: 1_000,
            partition_messages_max: 1_000_000,
            partition_bytes_max: 1 << 30,
            lease_default: Millis(30 * 1_000),
            lease_min: Millis(100),
            lease_max: Millis(12 * 60 * 60 * 1_000),
            delay_max: Millis(30 * 24 * 60 * 60 * 1_000),
            dedupe_ttl: Millis(10 * 60 * 1_000),
            dedupe_keys_max: 4_000_000,
            key_bytes_max: 64 << 10,
            message_bytes_max: 16 << 20,
            idempotency_key_bytes_max: 255,
            id_bytes_max: 255,
            metadata_bytes_max: 64 << 10,
            error_text_bytes_max: 4 << 10,
            result_bytes_max: 64 << 10,
            effect_ttl: Millis(24 * 60 * 60 * 1_000),
            job_ttl: Millis(7 * 24 * 60 * 60 * 1_000),
            effects_max: 4_000_000,
            completion_ttl: Millis(10 * 60 * 1_000),
            completions_max: 1_000_000,
            outputs_max: 1_000,
            adaptive_credit: true,
            partitions_max: 1_024,
            topics_max: 100_000,
            groups_max: 100_000,
            consumers_max: 1_000_000,
            keys_max: 100_000,
            tenants_max: 10_000,
            retention_age: Some(Millis(24 * 60 * 60 * 1_000)),
            retention_bytes: Some(256 << 20),
            retained_bytes_max: 4 << 30,
            group_idle: Some(Millis(60 * 60 * 1_000)),
            group_idle_max: Millis(30 * 24 * 60 * 60 * 1_000),
            retry_after: Millis(1_000),
            work: WorkLimits::production(),
        }
    }

    /// The small limits of the specification's examples.
    #[must_use]
    pub const fn spec() -> Self {
        Self {
            in_flight_max: 2,
            partition_messages_max: 2,
            partition_bytes_max: 20,
            adaptive_credit: false,
            lease_default: Millis(2_000),
            lease_min: Millis(1),
            retention_age: None,
            retention_bytes: None,
            group_idle: None,
            ..Self::production()
        }
    }

    /// These limits, each at most its ceiling.
    pub(crate) fn within_ceilings(self) -> Self {
        Self {
            message_bytes_max: self.message_bytes_max.min(MESSAGE_BYTES_CEILING),
            error_text_bytes_max: self.error_text_bytes_max.min(ERROR_TEXT_BYTES_CEILING),
            result_bytes_max: self.result_bytes_max.min(RESULT_BYTES_CEILING),
            partitions_max: self.partitions_max.min(PARTITIONS_CEILING),
            ..self
        }
    }

    /// The retention of topics that are created without one.
    #[must_use]
    pub fn retention(&self) -> Retention {
        Retention { age: self.retention_age, bytes: self.retention_bytes }
    }

    /// The lease to grant, between [`Limits::lease_min`] and [`Limits::lease_max`]. A requested lease of zero counts as
    /// none.
    #[must_use]
    pub fn lease(&self, requested: Option<Millis>) -> Millis {
        let lease = requested.filter(|lease| *lease > Millis(0)).unwrap_or(self.lease_default);
        // A lease of zero would expire at once, again and again.
        lease.min(self.lease_max).max(self.lease_min).max(Millis(1))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::production()
    }
}
