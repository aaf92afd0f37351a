//! Time in milliseconds. The caller passes it in; the core reads no clock.

use std::fmt;

/// A point in time, in milliseconds since the Unix epoch.
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
