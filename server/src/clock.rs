//! The broker's clock: the wall clock at the start, the monotonic clock from then on.
//!
//! Changes of the system's clock while the broker runs do not affect it.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driftq_core::types::Timestamp;

/// The longest wait: the driver is woken by commands and completed jobs, and an `Instant` cannot be arbitrarily far
/// away.
const WAIT_MAX_MS: u64 = 24 * 60 * 60 * 1_000;

/// A clock that never runs backwards.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Cell<Timestamp>,
    started: Instant,
}

impl Clock {
    /// Starts at the system's time.
    #[must_use]
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self { base: Cell::new(Timestamp(wall)), started: Instant::now() }
    }

    /// The current time.
    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.base.get().0.saturating_add(self.elapsed_ms()))
    }

    /// Advances to `recorded`, the latest time in the log, if the clock is behind it.
    pub(crate) fn advance_to(&self, recorded: Timestamp) {
        let now = self.now();
        if recorded > now {
            self.base.set(Timestamp(self.base.get().0.saturating_add(recorded.0 - now.0)));
        }
    }

    /// When the clock will show `at`, but no later than [`WAIT_MAX_MS`] from now.
    #[must_use]
    pub(crate) fn instant_of(&self, at: Timestamp) -> Instant {
        let ahead = at.0.saturating_sub(self.base.get().0);
        let ahead = ahead.min(self.elapsed_ms().saturating_add(WAIT_MAX_MS));
        self.started + Duration::from_millis(ahead)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_behind_the_log_advances_to_it() {
        let clock = Clock::start();
        let ahead = Timestamp(clock.now().0 + 3_600_000);
        clock.advance_to(ahead);
        assert!(clock.now() >= ahead);
        let before = clock.now();
        clock.advance_to(Timestamp(5));
        assert!(clock.now() >= before, "an earlier time changes nothing");
    }

    #[test]
    fn any_timestamp_can_be_waited_for() {
        let clock = Clock::start();
        assert!(clock.instant_of(Timestamp::MAX) > Instant::now());
        assert!(clock.instant_of(Timestamp(0)) <= Instant::now());
    }
}
