//! Every setting that is a number: its key, its range and its place in [`Settings`], in one table that reading, writing and
//! checking all use.

use std::time::Duration;

use driftq_core::types::Millis;
use driftq_core::types::limits::{
    ERROR_TEXT_BYTES_CEILING, MESSAGE_BYTES_CEILING, PARTITIONS_CEILING, RESULT_BYTES_CEILING,
};

use super::Settings;
use super::error::{ConfigError, Origin};

/// One numeric setting.
pub(super) struct Number {
    /// The key in the configuration file, with its section.
    pub(super) key: &'static str,
    min: u64,
    max: u64,
    get: fn(&Settings) -> u64,
    set: fn(&mut Settings, u64),
}

/// The most a TOML integer can be.
const MOST: u64 = i64::MAX as u64;
const COUNT: u64 = u32::MAX as u64;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const YEAR_MS: u64 = 366 * DAY_MS;
const MESSAGE: u64 = MESSAGE_BYTES_CEILING as u64;

macro_rules! number {
    ($key:literal, $($field:ident).+, $min:expr, $max:expr) => {
        Number {
            key: $key,
            min: $min,
            max: $max,
            get: |settings| settings.$($field).+.number(),
            set: |settings, number| settings.$($field).+ = Quantity::of(number),
        }
    };
}

/// All of them, in the order in which they are written.
pub(super) const NUMBERS: &[Number] = &[
    number!("prefetch", prefetch, 1, COUNT),
    number!("limits.in_flight_max", limits.in_flight_max, 1, COUNT),
    number!("limits.partition_messages_max", limits.partition_messages_max, 1, MOST),
    number!("limits.partition_bytes_max", limits.partition_bytes_max, 1, MOST),
    number!("limits.lease_default_ms", limits.lease_default, 1, YEAR_MS),
    number!("limits.dedupe_ttl_ms", limits.dedupe_ttl, 1, YEAR_MS),
    number!("limits.dedupe_keys_max", limits.dedupe_keys_max, 1, MOST),
    number!("limits.key_bytes_max", limits.key_bytes_max, 1, MESSAGE),
    number!("limits.message_bytes_max", limits.message_bytes_max, 1, MESSAGE),
    number!("limits.idempotency_key_bytes_max", limits.idempotency_key_bytes_max, 1, 64 << 10),
    number!("limits.id_bytes_max", limits.id_bytes_max, 1, 64 << 10),
    number!("limits.metadata_bytes_max", limits.metadata_bytes_max, 1, MESSAGE),
    number!("limits.error_text_bytes_max", limits.error_text_bytes_max, 1, ERROR_TEXT_BYTES_CEILING as u64),
    number!("limits.result_bytes_max", limits.result_bytes_max, 1, RESULT_BYTES_CEILING as u64),
    number!("limits.effect_ttl_ms", limits.effect_ttl, 1, YEAR_MS),
    number!("limits.job_ttl_ms", limits.job_ttl, 1, YEAR_MS),
    number!("limits.ack_ttl_ms", limits.ack_ttl, 1, YEAR_MS),
    number!("limits.effects_max", limits.effects_max, 1, MOST),
    number!("limits.completion_ttl_ms", limits.completion_ttl, 1, YEAR_MS),
    number!("limits.completions_max", limits.completions_max, 1, COUNT),
    number!("limits.outputs_max", limits.outputs_max, 1, 100_000),
    number!("limits.partitions_max", limits.partitions_max, 1, PARTITIONS_CEILING as u64),
    number!("limits.topics_max", limits.topics_max, 1, COUNT),
    number!("limits.groups_max", limits.groups_max, 1, COUNT),
    number!("limits.consumers_max", limits.consumers_max, 1, COUNT),
    number!("limits.retry_after_ms", limits.retry_after, 1, DAY_MS),
    number!("storage.segment_bytes", storage.segment_bytes, 64 << 10, 4 << 30),
    number!("storage.reserve_bytes", storage.reserve_bytes, 4 << 10, 4 << 30),
    number!("storage.snapshot_every_bytes", storage.snapshot_every_bytes, 64 << 10, MOST),
    number!("http.body_bytes_max", http.body_bytes_max, 1 << 10, 256 << 20),
    number!("http.head_bytes_max", http.head_bytes_max, 8 << 10, 1 << 20),
    number!("http.connections_max", http.connections_max, 1, 1_000_000),
    number!("http.head_timeout_ms", http.head_timeout, 100, DAY_MS),
    number!("http.body_timeout_ms", http.body_timeout, 100, DAY_MS),
    number!("http.body_rate_min_bytes_per_s", http.body_rate_min, 0, 1 << 30),
    number!("http.stream_keep_alive_ms", http.stream_keep_alive, 100, DAY_MS),
];

/// How long a webhook may take at most: a produce waits for it.
pub(super) const WEBHOOK_TIMEOUT_MS: (u64, u64) = (1, 60_000);
/// How long a webhook may rest after a failure.
pub(super) const WEBHOOK_REST_MS: (u64, u64) = (0, DAY_MS);
/// How long a sync may be held up, for measurements.
pub(super) const SYNC_DELAY_MS: (u64, u64) = (0, 60_000);

impl Number {
    /// The number with this key.
    pub(super) fn find(key: &str) -> Option<&'static Self> {
        NUMBERS.iter().find(|number| number.key == key)
    }

    /// What it is in `settings`.
    pub(super) fn get(&self, settings: &Settings) -> u64 {
        (self.get)(settings)
    }

    /// The least and the most it may be.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.min, self.max)
    }

    /// Changes it, if `value` is allowed.
    pub(super) fn set(&self, settings: &mut Settings, origin: &Origin, value: i128) -> Result<(), ConfigError> {
        (self.set)(settings, within(value, self.bounds(), origin)?);
        Ok(())
    }

    /// Whether what `settings` holds is allowed; it may have been put there by code.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), ConfigError> {
        let value = self.get(settings);
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(ConfigError::Contradiction(format!("{}: {value} is not {}", self.key, range(self.bounds()))))
    }
}

/// `value`, if it lies within `bounds`.
pub(super) fn within(value: i128, bounds: (u64, u64), origin: &Origin) -> Result<u64, ConfigError> {
    match u64::try_from(value) {
        Ok(value) if (bounds.0..=bounds.1).contains(&value) => Ok(value),
        _ => Err(ConfigError::Value { origin: origin.clone(), found: value.to_string(), allowed: range(bounds) }),
    }
}

/// The bounds in words.
pub(super) fn range((min, max): (u64, u64)) -> String {
    if max == MOST { format!("a whole number from {min} up") } else { format!("a whole number from {min} to {max}") }
}

/// What a number in the settings can be held as. Units are the key's: bytes, or milliseconds for spans of time.
trait Quantity {
    fn number(&self) -> u64;
    fn of(number: u64) -> Self;
}

impl Quantity for u64 {
    fn number(&self) -> u64 {
        *self
    }
    fn of(number: u64) -> Self {
        number
    }
}

impl Quantity for u32 {
    fn number(&self) -> u64 {
        u64::from(*self)
    }
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

impl Quantity for usize {
    fn number(&self) -> u64 {
        u64::try_from(*self).unwrap_or(u64::MAX)
    }
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

impl Quantity for Millis {
    fn number(&self) -> u64 {
        self.0
    }
    fn of(number: u64) -> Self {
        Self(number)
    }
}

impl Quantity for Duration {
    fn number(&self) -> u64 {
        u64::try_from(self.as_millis()).unwrap_or(u64::MAX)
    }
    fn of(number: u64) -> Self {
        Self::from_millis(number)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_the_core_has_a_key() {
        let text = format!("{:#?}", Settings::default().limits);
        let fields: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": ").map(|(name, _)| name)).collect();
        let fields: Vec<&str> = fields.into_iter().filter(|name| !name.starts_with(' ')).collect();
        assert!(fields.len() > 10, "the fields were not found: {fields:?}");
        for field in fields {
            let keys = [format!("limits.{field}"), format!("limits.{field}_ms")];
            assert!(keys.iter().any(|key| Number::find(key).is_some()), "{field} cannot be configured");
        }
    }

    #[test]
    fn defaults_are_within_what_is_allowed_and_each_number_has_a_place_of_its_own() {
        for (at, number) in NUMBERS.iter().enumerate() {
            let mut settings = Settings::default();
            number.check(&settings).unwrap();
            (number.set)(&mut settings, number.max - 1);
            for (other_at, other) in NUMBERS.iter().enumerate() {
                let expected = if at == other_at { number.max - 1 } else { other.get(&Settings::default()) };
                assert_eq!(other.get(&settings), expected, "{} changed {}", number.key, other.key);
            }
        }
    }

    #[test]
    fn what_lies_outside_is_refused_and_told_what_is_allowed() {
        let origin = Origin::Flag("--max-in-flight");
        let number = Number::find("limits.in_flight_max").unwrap();
        for wrong in [-1, 0, i128::from(u32::MAX) + 1, i128::MAX] {
            let error = number.set(&mut Settings::default(), &origin, wrong).unwrap_err().to_string();
            assert_eq!(error, format!("--max-in-flight: {wrong} is not a whole number from 1 to 4294967295"));
        }
    }
}
