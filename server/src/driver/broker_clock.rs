//! The broker's clocks as a reactor sees them.

use driftq_core::Pipeline;
use driftq_core::types::{Now, Timestamp, WallClock};

/// Broker time and wall time at one moment; both are extrapolated from there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BrokerClock {
    broker: Timestamp,
    mono: Timestamp,
    wall: WallClock,
}

impl BrokerClock {
    /// The clocks of `pipeline` at `now`.
    pub(super) fn of(pipeline: &Pipeline, now: Now) -> Self {
        let broker = pipeline.broker();
        Self { broker: broker.time_at(now.mono), mono: now.mono, wall: *broker.state().wall_clock() }
    }

    /// Broker time at the monotonic time `mono`; not before the moment.
    pub(super) fn time_at(&self, mono: Timestamp) -> Timestamp {
        self.broker.after(mono.since(self.mono))
    }

    /// The monotonic time at broker time `at`; not before the moment.
    pub(super) fn mono_at(&self, at: Timestamp) -> Timestamp {
        self.mono.after(at.since(self.broker))
    }

    /// Converts broker time to wall time.
    pub(super) fn wall_clock(&self) -> WallClock {
        self.wall
    }

    /// How far wall time is ahead of the wall clock, in milliseconds; negative if it is behind.
    pub(super) fn ahead_ms(&self, now: Now) -> i64 {
        self.wall.wall(self.time_at(now.mono)).offset_from(now.wall)
    }
}
