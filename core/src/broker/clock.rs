//! The broker's clocks: broker time from the monotonic clock, wall time from broker time.

use super::{Broker, LogRefusal, LogSink, SpaceClass};
use crate::decide::wall_clock::{ClockCheck, check};
use crate::faults::Faults;
use crate::record::Event;
use crate::types::{Now, Timestamp, WallAdjustment};

/// Where broker time and the monotonic clock were at the start; both advance alike from there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockOrigin {
    broker: Timestamp,
    mono: Timestamp,
}

impl ClockOrigin {
    /// The monotonic time that corresponds to broker time `at`.
    pub(super) fn mono_at(&self, at: Timestamp) -> Timestamp {
        self.mono.after(at.since(self.broker))
    }
}

impl<F: Faults> Broker<F> {
    /// The broker time that corresponds to the monotonic time `mono` of this start.
    #[must_use]
    pub fn time_at(&self, mono: Timestamp) -> Timestamp {
        self.origin.broker.after(mono.since(self.origin.mono))
    }

    /// The monotonic time of this start that corresponds to broker time `at`.
    #[must_use]
    pub fn mono_at(&self, at: Timestamp) -> Timestamp {
        self.origin.mono_at(at)
    }

    /// Wall time: what deadlines, `deliver_at` and seeks are compared with.
    #[must_use]
    pub fn wall(&self) -> Timestamp {
        self.state.wall_clock().wall(self.now)
    }

    /// What to add to a broker time to show it to a client, in milliseconds.
    #[must_use]
    pub fn wall_offset(&self) -> i64 {
        self.state.wall_clock().offset(self.now)
    }

    /// How far wall time is ahead of the wall clock, in milliseconds; negative if it is behind.
    #[must_use]
    pub fn clock_ahead_ms(&self, now: impl Into<Now>) -> i64 {
        let now = now.into();
        self.state.wall_clock().wall(self.time_at(now.mono).max(self.now)).offset_from(now.wall)
    }

    /// As [`Pipeline::has_wall_timers`](crate::Pipeline::has_wall_timers).
    #[must_use]
    pub fn has_wall_timers(&self) -> bool {
        self.index.timers.next_wall().is_some()
    }

    /// As [`Pipeline::rebase_wall_clock`](crate::Pipeline::rebase_wall_clock).
    ///
    /// # Errors
    /// [`LogRefusal`] if the log has no space for the record.
    pub fn rebase_wall_clock(&mut self, now: impl Into<Now>, log: &mut dyn LogSink) -> Result<(), LogRefusal> {
        let now = now.into();
        self.now = self.now.max(self.time_at(now.mono));
        self.in_step_at = None;
        let offset = now.wall.offset_from(self.now);
        self.commit(Event::WallClockAdjusted(WallAdjustment::Rebase { offset }), SpaceClass::Drain, log)
    }

    /// Starts broker time: it continues from the last record, and time spent stopped counts.
    pub(super) fn start_clock(&mut self, now: Now) {
        self.now = self.state.wall_clock().started(now.wall, self.now);
        self.origin = ClockOrigin { broker: self.now, mono: now.mono };
    }

    /// Records an adjustment if wall time and the wall clock differ. If the log refuses it, the next call tries again.
    pub(super) fn adjust_wall_clock(&mut self, wall: Timestamp, log: &mut dyn LogSink) {
        if self.in_step_at == Some((self.now, wall)) {
            return;
        }
        self.check_clock_at = None;
        self.in_step_at = None;
        match check(self.state.wall_clock(), self.now, wall) {
            ClockCheck::InStep => self.in_step_at = Some((self.now, wall)),
            ClockCheck::CheckAt(at) => self.check_clock_at = Some(at),
            ClockCheck::Adjust(adjustment) => {
                let _ = self.commit(Event::WallClockAdjusted(adjustment), SpaceClass::Churn, log);
            }
        }
    }
}
