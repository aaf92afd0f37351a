//! Wall time as the broker can have seen it at each of its decisions.

use driftq_core::types::{Timestamp, WallClock};

/// The mappings of broker time to wall time since the start of the broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct WallModel {
    /// Each with the broker time at which it was first observed, oldest first.
    clocks: Vec<(Timestamp, WallClock)>,
    /// Broker time and wall time at the last observation.
    pub(super) last: Option<(Timestamp, Timestamp)>,
}

impl WallModel {
    /// The broker has started: deliveries decided before will not be seen any more.
    pub(super) fn started(&mut self, clock: WallClock) {
        *self = Self { clocks: vec![(Timestamp(0), clock)], last: None };
    }

    /// The mapping in force at broker time `now`.
    pub(super) fn observe(&mut self, now: Timestamp, clock: WallClock) {
        if self.clocks.last().is_none_or(|(_, last)| *last != clock) {
            self.clocks.push((now, clock));
        }
        self.last = Some((now, clock.wall(now)));
    }

    /// The earliest and the latest wall time with which a decision at broker time `at` can have been made: several
    /// calls at one time can see an adjustment between them.
    pub(crate) fn walls(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let mut walls = (Timestamp::MAX, Timestamp(0));
        for (from, clock) in self.clocks.iter().rev().filter(|(from, _)| *from <= at) {
            let wall = clock.wall(at);
            walls = (walls.0.min(wall), walls.1.max(wall));
            if *from < at {
                break;
            }
        }
        walls
    }
}
