//! Time in milliseconds. The caller passes it in; the core reads no clock.
//!
//! A [`Timestamp`] is in one of two times. *Broker time* stamps records and measures durations: leases, backoff,
//! windows
//! and ages. *Wall time* is what clients mean and read: deadlines, `deliver_at`, seeks. [`WallClock`](super::WallClock)
//! maps one to the other. Commands contain wall times; records, replies and deliveries contain broker times, except for
//! the wall times in a message's metadata.

use std::fmt;

/// A point in time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// The readings of both clocks at one moment, as a driver passes them to the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// The monotonic clock, from any origin. It never runs backwards and is not set; it counts time spent suspended.
    pub mono: Timestamp,
    /// The wall clock. It can be set forward and back.
    pub wall: Timestamp,
}

impl From<Timestamp> for Now {
    /// Both clocks show the same: for drivers whose only clock is never set.
    fn from(time: Timestamp) -> Self {
        Self { mono: time, wall: time }
    }
}

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Timestamp {
    /// The latest representable time.
    pub const MAX: Self = Self(u64::MAX);

    /// The time `duration` after this one, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn after(self, duration: Millis) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// This time moved by `offset` milliseconds, within the representable times.
    #[must_use]
    pub const fn shifted(self, offset: i64) -> Self {
        Self(self.0.saturating_add_signed(offset))
    }

    /// The milliseconds from `other` to this time, negative if `other` is later.
    #[must_use]
    pub fn offset_from(self, other: Self) -> i64 {
        let offset = i128::from(self.0) - i128::from(other.0);
        i64::try_from(offset).unwrap_or(if offset < 0 { i64::MIN } else { i64::MAX })
    }

    /// The duration from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_beyond_its_type_is_the_nearest_one() {
        assert_eq!(Timestamp(0).offset_from(Timestamp::MAX), i64::MIN);
        assert_eq!(Timestamp::MAX.offset_from(Timestamp(0)), i64::MAX);
        assert_eq!(Timestamp(3).offset_from(Timestamp(10)), -7);
    }
}
