//! Schema of the `[limits]` section: the core's [`Limits`] with the key and the range of each.
//!
//! `remote` makes the compiler check that every field of [`Limits`] is listed.

use driftq_core::types::{
    ERROR_TEXT_BYTES_CEILING, Limits, MESSAGE_BYTES_CEILING, Millis, PARTITIONS_CEILING, RESULT_BYTES_CEILING,
    WorkLimits,
};
use serde::{Deserialize, Serialize};

use super::number::{DAY_MS, I64_MAX, Int, U32_MAX, YEAR_MS};

const MESSAGE_BYTES: u64 = MESSAGE_BYTES_CEILING as u64;
const ERROR_TEXT_BYTES: u64 = ERROR_TEXT_BYTES_CEILING as u64;
const RESULT_BYTES: u64 = RESULT_BYTES_CEILING as u64;
const PARTITIONS: u64 = PARTITIONS_CEILING as u64;
const NAME_BYTES: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits", default = "Limits::production", deny_unknown_fields, expecting = "a section")]
pub(super) struct LimitsSection {
    #[serde(with = "Int::<1, U32_MAX>")]
    in_flight_max: u32,
    #[serde(with = "Int::<1, I64_MAX>")]
    partition_messages_max: u64,
    #[serde(with = "Int::<1, I64_MAX>")]
    partition_bytes_max: u64,
    #[serde(rename = "lease_default_ms", with = "Int::<1, YEAR_MS>")]
    lease_default: Millis,
    #[serde(rename = "lease_min_ms", with = "Int::<1, YEAR_MS>")]
    lease_min: Millis,
    #[serde(rename = "lease_max_ms", with = "Int::<1, YEAR_MS>")]
    lease_max: Millis,
    #[serde(rename = "delay_max_ms", with = "Int::<0, YEAR_MS>")]
    delay_max: Millis,
    #[serde(rename = "dedupe_ttl_ms", with = "Int::<1, YEAR_MS>")]
    dedupe_ttl: Millis,
    #[serde(with = "Int::<1, I64_MAX>")]
    dedupe_keys_max: u64,
    #[serde(with = "Int::<1, MESSAGE_BYTES>")]
    key_bytes_max: usize,
    #[serde(with = "Int::<1, MESSAGE_BYTES>")]
    message_bytes_max: usize,
    #[serde(with = "Int::<1, NAME_BYTES>")]
    idempotency_key_bytes_max: usize,
    #[serde(with = "Int::<1, NAME_BYTES>")]
    id_bytes_max: usize,
    #[serde(with = "Int::<1, MESSAGE_BYTES>")]
    metadata_bytes_max: usize,
    #[serde(with = "Int::<1, ERROR_TEXT_BYTES>")]
    error_text_bytes_max: usize,
    #[serde(with = "Int::<1, RESULT_BYTES>")]
    result_bytes_max: usize,
    #[serde(rename = "effect_ttl_ms", with = "Int::<1, YEAR_MS>")]
    effect_ttl: Millis,
    #[serde(rename = "job_ttl_ms", with = "Int::<1, YEAR_MS>")]
    job_ttl: Millis,
    #[serde(with = "Int::<1, I64_MAX>")]
    effects_max: u64,
    #[serde(rename = "completion_ttl_ms", with = "Int::<1, YEAR_MS>")]
    completion_ttl: Millis,
    #[serde(with = "Int::<1, U32_MAX>")]
    completions_max: usize,
    #[serde(with = "Int::<1, 100_000>")]
    outputs_max: usize,
    adaptive_credit: bool,
    #[serde(with = "Int::<1, PARTITIONS>")]
    partitions_max: u32,
    #[serde(with = "Int::<1, U32_MAX>")]
    topics_max: usize,
    #[serde(with = "Int::<1, U32_MAX>")]
    groups_max: usize,
    #[serde(with = "Int::<1, U32_MAX>")]
    consumers_max: usize,
    #[serde(with = "Int::<1, U32_MAX>")]
    keys_max: usize,
    #[serde(with = "Int::<1, U32_MAX>")]
    tenants_max: usize,
    #[serde(rename = "retention_ms", with = "Int::<0, I64_MAX>")]
    retention_age: Option<Millis>,
    #[serde(with = "Int::<0, I64_MAX>")]
    retention_bytes: Option<u64>,
    #[serde(with = "Int::<0, I64_MAX>")]
    retained_bytes_max: u64,
    #[serde(rename = "group_idle_ms", with = "Int::<0, I64_MAX>")]
    group_idle: Option<Millis>,
    #[serde(rename = "group_idle_max_ms", with = "Int::<0, I64_MAX>")]
    group_idle_max: Millis,
    #[serde(rename = "retry_after_ms", with = "Int::<1, DAY_MS>")]
    retry_after: Millis,
    /// Not a setting.
    #[serde(skip, default = "WorkLimits::production")]
    work: WorkLimits,
}
