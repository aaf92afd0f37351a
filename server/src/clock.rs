//! The time the broker is told: the wall clock once, at the start, and the monotonic clock from then on.
//!
//! Whatever somebody does to the machine's clock while the broker runs, its time goes forward, second by second.

use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use driftq_core::types::Timestamp;

/// Time that never runs backwards.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Cell<Timestamp>,
    started: Instant,
}

impl Clock {
    /// A clock that starts with the machine's own time.
    #[must_use]
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self { base: Cell::new(Timestamp(wall)), started: Instant::now() }
    }

    /// Now.
    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.base.get().0.saturating_add(elapsed))
    }

    /// Goes on from `recorded` where the log has seen a later time than this clock shows.
    pub(crate) fn not_before(&self, recorded: Timestamp) {
        let now = self.now();
        if recorded > now {
            self.base.set(Timestamp(self.base.get().0.saturating_add(recorded.0 - now.0)));
        }
    }

    /// The moment at which this clock will show `at`.
    #[must_use]
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        let ahead = at.0.saturating_sub(self.base.get().0);
        let day = 24 * 60 * 60 * 1_000;
        // Nobody waits for longer than a day without being woken by something else, and an `Instant` cannot go on for ever.
        let ahead =
            ahead.min(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(day));
        self.started + std::time::Duration::from_millis(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_what_the_log_has_seen() {
        let clock = Clock::start();
        let ahead = Timestamp(clock.now().0 + 3_600_000);
        clock.not_before(ahead);
        assert!(clock.now() >= ahead);
        let before = clock.now();
        clock.not_before(Timestamp(5));
        assert!(clock.now() >= before, "an earlier time changes nothing");
    }

    #[test]
    fn the_end_of_time_is_a_moment_one_can_wait_for() {
        let clock = Clock::start();
        assert!(clock.instant(Timestamp::MAX) > Instant::now());
        assert!(clock.instant(Timestamp(0)) <= Instant::now());
    }
}
