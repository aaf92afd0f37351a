//! How much of anything there may be. Limits shape decisions, never what is already remembered.

use super::time::Millis;

/// The most [`Limits::message_bytes_max`] can be. A message must still fit a frame of the log when it has become a dead letter,
/// with a reason and the names of where it comes from, and stands in a snapshot.
pub const MESSAGE_BYTES_CEILING: usize = 24 << 20;
/// The most [`Limits::error_text_bytes_max`] can be: a dead letter carries the reason as well.
pub const ERROR_TEXT_BYTES_CEILING: usize = 1 << 20;
/// The most [`Limits::result_bytes_max`] can be.
pub const RESULT_BYTES_CEILING: usize = 4 << 20;
/// The most [`Limits::partitions_max`] can be; a record that names more is not believed.
pub const PARTITIONS_CEILING: u32 = 1 << 16;

/// The core's configuration. Nothing here is written to the log: a restart with other limits decides differently from
/// then on and remembers the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Live leases per (topic, group, partition).
    pub in_flight_max: u32,
    /// Messages not yet done in every group, per partition.
    pub partition_messages_max: u64,
    /// Key and value bytes of those messages, per partition.
    pub partition_bytes_max: u64,
    /// The lease where a consumer does not say.
    pub lease_default: Millis,
    /// How long a produce identity is remembered.
    pub dedupe_ttl: Millis,
    /// Live produce identities per topic; beyond it new ones are refused, none is evicted.
    pub dedupe_keys_max: u64,
    /// Bytes of a key.
    pub key_bytes_max: usize,
    /// Bytes of key, value and metadata together; at most [`MESSAGE_BYTES_CEILING`].
    pub message_bytes_max: usize,
    /// Bytes of an idempotency key.
    pub idempotency_key_bytes_max: usize,
    /// Bytes of a tenant, run or step id.
    pub id_bytes_max: usize,
    /// Bytes of everything that travels with a payload: ids, labels, what a router said, the trace. Backpressure does not count
    /// them.
    pub metadata_bytes_max: usize,
    /// Bytes of a reason given with a nack; at most [`ERROR_TEXT_BYTES_CEILING`].
    pub error_text_bytes_max: usize,
    /// Bytes of an effect's result; at most [`RESULT_BYTES_CEILING`].
    pub result_bytes_max: usize,
    /// How long an effect is remembered after its end.
    pub effect_ttl: Millis,
    /// The same for jobs and tasks.
    pub job_ttl: Millis,
    /// The same where only an ack said that it ended.
    pub ack_ttl: Millis,
    /// Effects of one tenant; beyond it nothing new may be begun, and none is evicted.
    pub effects_max: u64,
    /// How long the answer of a completed step is repeated.
    pub completion_ttl: Millis,
    /// Such answers; beyond it the oldest go early.
    pub completions_max: usize,
    /// Messages that one completed step may produce.
    pub outputs_max: usize,
    /// Partitions of one topic; at most [`PARTITIONS_CEILING`].
    pub partitions_max: u32,
    /// Topics.
    pub topics_max: usize,
    /// Groups of one topic.
    pub groups_max: usize,
    /// Connected streams.
    pub consumers_max: usize,
    /// What a refused producer is told to wait.
    pub retry_after: Millis,
}

impl Limits {
    /// The defaults for production.
    #[must_use]
    pub const fn production() -> Self {
        Self {
            in_flight_max: 1_000,
            partition_messages_max: 1_000_000,
            partition_bytes_max: 1 << 30,
            lease_default: Millis(2_000),
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
            ack_ttl: Millis(10 * 60 * 1_000),
            effects_max: 4_000_000,
            completion_ttl: Millis(10 * 60 * 1_000),
            completions_max: 1_000_000,
            outputs_max: 1_000,
            partitions_max: 1_024,
            topics_max: 100_000,
            groups_max: 100_000,
            consumers_max: 1_000_000,
            retry_after: Millis(1_000),
        }
    }

    /// The specification's own table of defaults, tuned for trying its rules by hand.
    #[must_use]
    pub const fn spec() -> Self {
        Self { in_flight_max: 2, partition_messages_max: 2, partition_bytes_max: 20, ..Self::production() }
    }

    /// These limits, none beyond what the log can carry.
    pub(crate) fn within_ceilings(self) -> Self {
        Self {
            message_bytes_max: self.message_bytes_max.min(MESSAGE_BYTES_CEILING),
            error_text_bytes_max: self.error_text_bytes_max.min(ERROR_TEXT_BYTES_CEILING),
            result_bytes_max: self.result_bytes_max.min(RESULT_BYTES_CEILING),
            partitions_max: self.partitions_max.min(PARTITIONS_CEILING),
            ..self
        }
    }

    /// The lease to give where this one was asked for. One without length would end as it begins, for ever anew.
    pub(crate) fn lease(&self, asked: Option<Millis>) -> Millis {
        asked.filter(|lease| *lease > Millis(0)).unwrap_or(self.lease_default)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::production()
    }
}
