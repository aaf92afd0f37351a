//! How much of anything there may be. Limits shape decisions, never what is already remembered.

use super::time::Millis;

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
    /// Bytes of key, value and metadata together.
    pub message_bytes_max: usize,
    /// Bytes of an idempotency key.
    pub idempotency_key_bytes_max: usize,
    /// Bytes of a reason given with a nack.
    pub error_text_bytes_max: usize,
    /// Partitions of one topic.
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
            error_text_bytes_max: 4 << 10,
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
