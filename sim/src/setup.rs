//! The limits of one world.

use driftq_core::PipelineConfig;
use driftq_core::types::{Limits, Millis};
use serde::{Deserialize, Serialize};

use crate::work::Work;

/// Limits, small enough that runs reach them. A field that a trace does not name has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// Leases in flight per topic, group and partition.
    pub in_flight_max: u32,
    /// Open messages per partition.
    pub messages_max: u64,
    /// Key and value bytes of the open messages.
    pub bytes_max: u64,
    /// The default lease.
    pub lease_ms: u64,
    /// The shortest lease.
    pub lease_min_ms: u64,
    /// The longest lease.
    pub lease_max_ms: u64,
    /// The longest delay of a message or of a retry.
    pub delay_max_ms: u64,
    /// The dedupe window of a produce identity.
    pub dedupe_ttl_ms: u64,
    /// Produce identities per requested topic and destination.
    pub dedupe_keys_max: u64,
    /// How long the record of an effect is kept after its end.
    pub effect_ttl_ms: u64,
    /// The same for jobs and tasks.
    pub job_ttl_ms: u64,
    /// Effects per tenant.
    pub effects_max: u64,
    /// Bytes of an effect's result.
    pub result_bytes_max: usize,
    /// How long the reply of a completed step is kept.
    pub completion_ttl_ms: u64,
    /// The most kept replies.
    pub completions_max: usize,
    /// Outputs of a completed step.
    pub outputs_max: usize,
    /// Topics.
    pub topics_max: usize,
    /// Groups per topic.
    pub groups_max: usize,
    /// Open streams.
    pub consumers_max: usize,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the first segment and of those of a broker at rest; at most `segment_bytes`.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub segment_bytes_min: u64,
    /// Segments after which a snapshot is taken.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub snapshot_every_segments: u64,
    /// How long after its last record a log counts as at rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_ms: Option<u64>,
    /// Bytes reserved for operations that drain the broker.
    pub reserve_bytes: u64,
    /// Log bytes after which a snapshot is taken.
    pub snapshot_every_bytes: u64,
    /// Bytes of a snapshot written per operation.
    pub slice_bytes: usize,
    /// Bytes of payloads that stay in memory; without it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes that are read ahead of each group that drains a partition from the log.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub read_ahead_bytes: u64,
    /// Reads of payloads are steps of their own; without it they are performed at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_steps: bool,
    /// Segments by which the log may exceed what is live in it before it is cleaned.
    #[serde(default = "default_spare_segments", skip_serializing_if = "is_default_spare_segments")]
    pub clean_spare_segments: u64,
    /// Milliseconds from one scrub to the next; without it there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_ms: Option<u64>,
    /// Live payloads may rot while the broker runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rots: bool,
    /// Bytes of the state itself; unlimited without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes_max: Option<u64>,
    /// Credit follows what a consumer shows, and only the oldest unanswered delivery of a stream counts an expiry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adaptive_credit: bool,
    /// The retention of topics that do not say; without it they retain nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<DefaultRetention>,
    /// Memory of all retained messages; unlimited without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_bytes_max: Option<u64>,
    /// When a group without streams may be deleted; never without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_idle: Option<GroupIdle>,
    /// Lengths of texts; as in production without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<TextLimits>,
    /// How much one call, record, page or read handles; as in production without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// The disk breaks its contract: after a process restart, data given up by a failed sync is still readable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shows_given_up: bool,
}

/// The retention of topics that do not say. Without any limit they retain everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultRetention {
    /// By age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    /// By size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The longest texts, so short that runs reach them, and the most partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextLimits {
    /// A key.
    pub key: usize,
    /// Key, value and metadata together.
    pub message: usize,
    /// An idempotency key.
    pub identity: usize,
    /// The id of a tenant, run, step, job, task, caller or method, and a request hash.
    pub id: usize,
    /// Metadata.
    pub metadata: usize,
    /// The reason of a nack.
    pub error: usize,
    /// Partitions of a topic.
    pub partitions: u32,
}

/// When a group without streams may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupIdle {
    /// If it makes a partition refuse a message.
    pub ms: u64,
    /// In any case.
    pub max_ms: u64,
}

impl Setup {
    /// The broker's limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let production = Limits::production();
        let texts = self.texts.unwrap_or(TextLimits {
            key: production.key_bytes_max,
            message: production.message_bytes_max,
            identity: production.idempotency_key_bytes_max,
            id: production.id_bytes_max,
            metadata: production.metadata_bytes_max,
            error: production.error_text_bytes_max,
            partitions: production.partitions_max,
        });
        Limits {
            in_flight_max: self.in_flight_max,
            partition_messages_max: self.messages_max,
            partition_bytes_max: self.bytes_max,
            lease_default: Millis(self.lease_ms),
            lease_min: Millis(self.lease_min_ms),
            lease_max: Millis(self.lease_max_ms),
            delay_max: Millis(self.delay_max_ms),
            dedupe_ttl: Millis(self.dedupe_ttl_ms),
            dedupe_keys_max: self.dedupe_keys_max,
            effect_ttl: Millis(self.effect_ttl_ms),
            job_ttl: Millis(self.job_ttl_ms),
            effects_max: self.effects_max,
            result_bytes_max: self.result_bytes_max,
            completion_ttl: Millis(self.completion_ttl_ms),
            completions_max: self.completions_max,
            outputs_max: self.outputs_max,
            topics_max: self.topics_max,
            groups_max: self.groups_max,
            consumers_max: self.consumers_max,
            adaptive_credit: self.adaptive_credit,
            retention_age: self.retention.map_or(Some(Millis(0)), |retention| retention.ms.map(Millis)),
            retention_bytes: self.retention.and_then(|retention| retention.bytes),
            retained_bytes_max: self.retained_bytes_max.unwrap_or(u64::MAX),
            group_idle: self.group_idle.map(|idle| Millis(idle.ms)),
            group_idle_max: self.group_idle.map_or(Millis(0), |idle| Millis(idle.max_ms)),
            work: self.work.unwrap_or_default().limits(),
            key_bytes_max: texts.key,
            message_bytes_max: texts.message,
            idempotency_key_bytes_max: texts.identity,
            id_bytes_max: texts.id,
            metadata_bytes_max: texts.metadata,
            error_text_bytes_max: texts.error,
            partitions_max: texts.partitions,
            ..production
        }
    }

    /// Refuses limits that no broker has.
    ///
    /// # Errors
    /// What is required.
    pub fn check(&self) -> Result<(), &'static str> {
        let Self { lease_ms, lease_min_ms, lease_max_ms, slice_bytes, .. } = self;
        if !self.work.unwrap_or_default().is_valid() {
            return Err("each number of work is at least 1");
        }
        match *lease_ms > 0 && *lease_min_ms > 0 && lease_max_ms >= lease_min_ms && *slice_bytes > 0 {
            true => Ok(()),
            false => {
                Err("lease_ms, lease_min_ms and slice_bytes are at least 1, and lease_max_ms at least lease_min_ms")
            }
        }
    }

    /// The pipeline's configuration.
    #[must_use]
    pub fn pipeline(&self) -> PipelineConfig {
        PipelineConfig {
            limits: self.limits(),
            segment_bytes: self.segment_bytes,
            segment_bytes_min: self.segment_bytes_min,
            snapshot_every_segments: usize::try_from(self.snapshot_every_segments).unwrap_or(usize::MAX),
            rest_after: self.rest_ms.map(Millis),
            reserve_bytes: self.reserve_bytes,
            snapshot_every_bytes: self.snapshot_every_bytes,
            slice_bytes: self.slice_bytes,
            memory_bytes: self.memory_bytes.unwrap_or(u64::MAX),
            read_ahead_bytes: self.read_ahead_bytes,
            clean_spare_segments: self.clean_spare_segments,
            scrub_interval: self.scrub_ms.map(Millis),
            state_bytes_max: self.state_bytes_max.unwrap_or(u64::MAX),
        }
    }
}

/// What traces mean that do not say it.
const fn default_spare_segments() -> u64 {
    8
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "called by serde")]
fn is_default_spare_segments(segments: &u64) -> bool {
    *segments == default_spare_segments()
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            in_flight_max: 8,
            messages_max: 64,
            bytes_max: 4_096,
            lease_ms: 2_000,
            lease_min_ms: 1,
            lease_max_ms: 12 * 60 * 60 * 1_000,
            delay_max_ms: 30 * 24 * 60 * 60 * 1_000,
            dedupe_ttl_ms: 10_000,
            dedupe_keys_max: 64,
            effect_ttl_ms: 60_000,
            job_ttl_ms: 600_000,
            effects_max: 64,
            result_bytes_max: 64,
            completion_ttl_ms: 10_000,
            completions_max: 64,
            outputs_max: 16,
            topics_max: 16,
            groups_max: 16,
            consumers_max: 64,
            // Recovery reads a whole segment, so larger segments slow down crashes.
            segment_bytes: 1 << 16,
            segment_bytes_min: u64::MAX,
            snapshot_every_segments: u64::MAX,
            rest_ms: None,
            reserve_bytes: 4_096,
            snapshot_every_bytes: 1 << 20,
            slice_bytes: 1_024,
            memory_bytes: None,
            read_ahead_bytes: 0,
            read_steps: false,
            clean_spare_segments: default_spare_segments(),
            scrub_ms: None,
            rots: false,
            state_bytes_max: None,
            adaptive_credit: false,
            retention: None,
            retained_bytes_max: None,
            group_idle: None,
            texts: None,
            work: None,
            shows_given_up: false,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "called by serde")]
fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}

/// Whether a limit is the default, which never applies.
fn is_unlimited(limit: &u64) -> bool {
    *limit == u64::MAX
}
