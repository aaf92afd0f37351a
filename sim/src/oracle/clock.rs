//! Broker time and wall time, by the rules: broker time follows the monotonic clock, wall time is broker time plus an
//! offset that a record changes.

use driftq_core::SpaceClass;
use driftq_core::types::{Now, Timestamp};

use super::model::{Model, Unwritten};
use super::wall_clock::WallClock;

/// Up to this difference from the wall clock nothing happens.
const TOLERANCE_MS: i64 = 1_000;

/// The shortest time between two adjustments.
const INTERVAL_MS: u64 = 3_000;

impl Model {
    /// Starts broker time: not before the last record, and the time spent stopped counts.
    pub(super) fn start_clock(&mut self, now: Now) {
        let by_wall = (now.wall.0 as i64 - self.offset()).max(0) as u64;
        self.now = Timestamp(self.now.0.max(by_wall));
        self.started = (now.mono.0, self.now.0);
    }

    /// Advances broker time, never back.
    pub(super) fn advance_broker_time(&mut self, now: Now) {
        let (mono, broker) = self.started;
        self.now = Timestamp(self.now.0.max(broker + now.mono.0.saturating_sub(mono)));
    }

    /// Advances broker time, never back, and compares wall time with the wall clock.
    pub(super) fn advance_clock(&mut self, now: Now) -> Result<(), Unwritten> {
        self.advance_broker_time(now);
        let measured = now.wall.0 as i64 - self.now.0 as i64;
        let is_near = (measured - self.wall_clock.target).abs() <= TOLERANCE_MS;
        if is_near || self.now.0 < self.wall_clock.adjusted_at + INTERVAL_MS {
            return Ok(());
        }
        match self.record(SpaceClass::Churn) {
            // The next call tries again.
            Err(Unwritten::NoRoom(_)) => return Ok(()),
            written => written?,
        }
        let offset = self.offset().max(measured);
        self.wall_clock = WallClock { adjusted_at: self.now.0, offset, target: measured };
        Ok(())
    }

    /// An operator sets wall time to the wall clock.
    pub(super) fn rebase(&mut self, now: Now) -> Result<(), Unwritten> {
        self.advance_broker_time(now);
        match self.record(SpaceClass::Drain) {
            Err(Unwritten::NoRoom(_)) => return Ok(()),
            written => written?,
        }
        let offset = now.wall.0 as i64 - self.now.0 as i64;
        self.wall_clock = WallClock { adjusted_at: self.now.0, offset, target: offset };
        Ok(())
    }

    /// Wall time minus broker time.
    pub(super) fn offset(&self) -> i64 {
        let WallClock { adjusted_at, offset, target } = self.wall_clock;
        let fallen = offset - ((self.now.0 - adjusted_at) / 2) as i64;
        fallen.max(target)
    }

    /// Wall time.
    pub(super) fn wall(&self) -> Timestamp {
        Timestamp((self.now.0 as i64 + self.offset()).max(0) as u64)
    }

    /// The broker time that a client means by a wall time.
    pub(super) fn broker_time(&self, wall: Timestamp) -> Timestamp {
        Timestamp((i128::from(wall.0) - i128::from(self.offset())).clamp(0, i128::from(u64::MAX)) as u64)
    }
}
