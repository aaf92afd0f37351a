//! Numbers of the configuration file: [`Int`] checks the range that a field declares.

use std::fmt;
use std::time::Duration;

use driftq_core::types::{Millis, PARTITIONS_CEILING, PartitionId};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::Serializer;

/// The largest TOML integer; a range up to it is unbounded above.
pub(super) const I64_MAX: u64 = i64::MAX as u64;
pub(super) const U32_MAX: u64 = u32::MAX as u64;
pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
pub(super) const YEAR_MS: u64 = 366 * DAY_MS;
pub(super) const PARTITION_MAX: u64 = PARTITIONS_CEILING as u64 - 1;

/// For `#[serde(with = "Int::<MIN, MAX>")]`: an integer from `MIN` to `MAX`, in the unit that the key names.
pub(super) struct Int<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Int<MIN, MAX> {
    pub(super) fn serialize<T: Quantity, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_u64())
    }

    pub(super) fn deserialize<'de, T: Quantity, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_u64(Self).map(T::from_u64)
    }
}

impl<const MIN: u64, const MAX: u64> Visitor<'_> for Int<MIN, MAX> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MAX {
            I64_MAX => write!(f, "a whole number from {MIN} up"),
            _ => write!(f, "a whole number from {MIN} to {MAX}"),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        let in_range = u64::try_from(value).ok().filter(|value| (MIN..=MAX).contains(value));
        in_range.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }
}

/// A type that holds a number of the configuration file: a count, bytes or milliseconds.
pub(super) trait Quantity {
    fn to_u64(&self) -> u64;
    fn from_u64(value: u64) -> Self;
}

macro_rules! quantity {
    ($($type:ty: $to:expr, $from:expr;)+) => {
        $(impl Quantity for $type {
            fn to_u64(&self) -> u64 {
                let to: fn(&Self) -> u64 = $to;
                to(self)
            }

            fn from_u64(value: u64) -> Self {
                let from: fn(u64) -> Self = $from;
                from(value)
            }
        })+
    };
}

// `Int` has checked the range; where a type is narrower than it, the value saturates.
quantity! {
    u64: |value| *value, |value| value;
    u32: |value| u64::from(*value), |value| Self::try_from(value).unwrap_or(Self::MAX);
    usize: |value| u64::try_from(*value).unwrap_or(u64::MAX), |value| Self::try_from(value).unwrap_or(Self::MAX);
    Millis: |value| value.0, Millis;
    Duration: |value| u64::try_from(value.as_millis()).unwrap_or(u64::MAX), Self::from_millis;
    // The largest TOML integer stands for no limit.
    Option<u64>: |value| value.unwrap_or(I64_MAX), |value| Some(value).filter(|value| *value < I64_MAX);
    Option<Millis>: |value| value.map_or(I64_MAX, |value| value.0), |value| Option::<u64>::from_u64(value).map(Millis);
    // `None` stands for an absent key and is never written.
    Option<PartitionId>: |value| value.map_or(0, |id| u64::from(id.0)), |value| Some(PartitionId(u32::from_u64(value)));
}
