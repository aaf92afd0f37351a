//! The clocks of the machine: the monotonic clock, which counts time spent suspended, and the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driftq_core::types::{Now, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The longest wait: the driver is woken by commands and completed jobs, and an `Instant` cannot be arbitrarily far
/// away.
const WAIT_MAX_MS: u64 = 24 * 60 * 60 * 1_000;

/// Reads both clocks together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Added to the wall clock, in milliseconds: tests set the wall clock with it.
    wall_shift: Arc<AtomicI64>,
}

impl Clock {
    /// The system's clocks.
    #[must_use]
    pub(crate) fn system() -> Self {
        Self::default()
    }

    /// The system's clocks, with a wall clock that is `wall_shift` milliseconds ahead of the system's.
    #[cfg(test)]
    pub(crate) fn shifted(wall_shift: &Arc<AtomicI64>) -> Self {
        Self { wall_shift: Arc::clone(wall_shift) }
    }

    /// The current time on both clocks.
    #[must_use]
    pub(crate) fn now(&self) -> Now {
        let boot = clock_gettime(ClockId::Boottime);
        let mono = (boot.tv_sec as u64).saturating_mul(1_000).saturating_add(boot.tv_nsec as u64 / 1_000_000);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = Timestamp(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX));
        Now { mono: Timestamp(mono), wall: wall.shifted(self.wall_shift.load(Ordering::Relaxed)) }
    }

    /// When the monotonic clock will show `mono`, but no later than [`WAIT_MAX_MS`] from now.
    #[must_use]
    pub(crate) fn instant_of(&self, mono: Timestamp) -> Instant {
        let wait = mono.since(self.now().mono).0.min(WAIT_MAX_MS);
        Instant::now() + Duration::from_millis(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_can_be_set_and_the_monotonic_clock_cannot() {
        let shift = Arc::new(AtomicI64::new(0));
        let clock = Clock::shifted(&shift);
        let before = clock.now();
        shift.store(-3_600_000, Ordering::Relaxed);
        let after = clock.now();
        assert!(after.mono >= before.mono);
        assert!(after.wall.offset_from(before.wall) < -3_500_000);
    }

    #[test]
    fn any_timestamp_can_be_waited_for() {
        let clock = Clock::system();
        assert!(clock.instant_of(Timestamp::MAX) > Instant::now());
        assert!(clock.instant_of(Timestamp(0)) <= Instant::now());
    }
}
