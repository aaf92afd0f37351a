//! Wall time inside the broker: broker time plus an offset that only records change.

use super::time::Timestamp;

/// How the offset between broker time and wall time was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallAdjustment {
    /// The wall clock was found ahead: its time is adopted at once.
    Forward {
        /// The new offset, in milliseconds.
        offset: i64,
    },
    /// The wall clock was found behind: wall time runs at half speed until the offset has fallen to the target.
    Slew {
        /// The offset at the time of the record, in milliseconds.
        offset: i64,
        /// The offset at which wall time runs at full speed again, in milliseconds.
        target: i64,
    },
    /// An operator set wall time to the wall clock; the only adjustment that can set it back.
    Rebase {
        /// The new offset, in milliseconds.
        offset: i64,
    },
}

/// Maps broker time to wall time: a pure function of the recorded adjustments.
///
/// Wall time never runs backwards between adjustments: it advances with broker time, at half its speed while it slews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    since: Timestamp,
    offset: i64,
    target: i64,
}

impl WallClock {
    /// A clock with this offset at `since`, which slews towards `target`. `None` if the target is above the offset.
    #[must_use]
    pub fn new(since: Timestamp, offset: i64, target: i64) -> Option<Self> {
        (target <= offset).then_some(Self { since, offset, target })
    }

    /// When the clock was adjusted last, in broker time.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// The offset at the last adjustment, in milliseconds.
    #[must_use]
    pub fn initial_offset(&self) -> i64 {
        self.offset
    }

    /// The offset once nothing is left to slew, in milliseconds.
    #[must_use]
    pub fn target(&self) -> i64 {
        self.target
    }

    /// The offset at broker time `at`, in milliseconds.
    #[must_use]
    pub fn offset(&self, at: Timestamp) -> i64 {
        let slewed = i64::try_from(at.since(self.since).0 / 2).unwrap_or(i64::MAX);
        self.offset.saturating_sub(slewed).max(self.target)
    }

    /// Wall time at broker time `at`.
    #[must_use]
    pub fn wall(&self, at: Timestamp) -> Timestamp {
        at.shifted(self.offset(at))
    }

    /// The first broker time at or after the last adjustment at which wall time is at least `wall`.
    #[must_use]
    pub fn reaches(&self, wall: Timestamp) -> Timestamp {
        let (since, wall) = (i128::from(self.since.0), i128::from(wall.0));
        let missing = wall - since - i128::from(self.offset);
        if wall == 0 || missing <= 0 {
            return self.since;
        }
        // While slewing, wall time gains one millisecond in two, the first one at once.
        let slewing = since + 2 * missing - 1;
        let settled = wall - i128::from(self.target);
        u64::try_from(slewing.min(settled).max(since)).map_or(Timestamp::MAX, Timestamp)
    }

    /// The broker time of a start at which the wall clock shows `wall`, after the last record at `last`: time spent
    /// stopped counts. What is left to slew does not: a clock that was set back and forth again must end no window.
    #[must_use]
    pub fn started(&self, wall: Timestamp, last: Timestamp) -> Timestamp {
        last.max(wall.shifted(self.offset(last).saturating_neg()))
    }

    /// The clock after an adjustment recorded at `at`. `None` if the adjustment does not follow from this clock.
    #[must_use]
    pub(crate) fn adjusted(&self, adjustment: WallAdjustment, at: Timestamp) -> Option<Self> {
        let current = self.offset(at);
        match adjustment {
            WallAdjustment::Forward { offset } if offset < current => None,
            WallAdjustment::Slew { offset, target } if offset != current || target >= offset => None,
            WallAdjustment::Slew { offset, target } => Self::new(at, offset, target),
            WallAdjustment::Forward { offset } | WallAdjustment::Rebase { offset } => Self::new(at, offset, offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clock(since: u64, offset: i64, target: i64) -> WallClock {
        WallClock::new(Timestamp(since), offset, target).expect("the target is not above the offset")
    }

    #[test]
    fn slewing_clock_runs_at_half_speed_until_its_target() {
        let clock = clock(1_000, 500, 300);
        let walls = [(1_000, 1_500), (1_001, 1_501), (1_002, 1_501), (1_200, 1_600), (1_400, 1_700), (1_500, 1_800)];
        for (at, wall) in walls {
            assert_eq!(clock.wall(Timestamp(at)), Timestamp(wall), "at {at}");
        }
    }

    #[test]
    fn forward_adjustment_never_sets_wall_time_back() {
        let clock = clock(0, 100, 0);
        assert_eq!(clock.adjusted(WallAdjustment::Forward { offset: 89 }, Timestamp(20)), None);
        let settled = clock.adjusted(WallAdjustment::Forward { offset: 90 }, Timestamp(20));
        assert_eq!(settled, WallClock::new(Timestamp(20), 90, 90), "a slewing clock may prove right");
        assert_eq!(clock.adjusted(WallAdjustment::Slew { offset: 91, target: 0 }, Timestamp(20)), None);
        assert_eq!(clock.adjusted(WallAdjustment::Slew { offset: 90, target: 90 }, Timestamp(20)), None);
        let rebased = clock.adjusted(WallAdjustment::Rebase { offset: -7 }, Timestamp(20));
        assert_eq!(rebased.map(|clock| clock.wall(Timestamp(30))), Some(Timestamp(23)));
    }

    #[test]
    fn clock_whose_wall_time_is_before_the_first_reaches_zero_at_once() {
        let clock = clock(10, -100, -100);
        assert_eq!(clock.wall(Timestamp(10)), Timestamp(0));
        assert_eq!(clock.reaches(Timestamp(0)), Timestamp(10));
        assert_eq!(clock.reaches(Timestamp(1)), Timestamp(101));
    }

    proptest! {
        #[test]
        fn reaches_is_the_first_time_with_that_wall_time(
            since in 0_u64..200, offset in -300_i64..300, slewed in 0_i64..100, ahead in 0_u64..400,
        ) {
            let clock = clock(since, offset, offset - slewed);
            let wall = Timestamp(ahead);
            let at = clock.reaches(wall);
            prop_assert!(clock.wall(at) >= wall);
            prop_assert!(at == clock.since() || clock.wall(Timestamp(at.0 - 1)) < wall);
        }

        #[test]
        fn extreme_values_do_not_panic(since: u64, offset: i64, target: i64, at: u64) {
            let clock = clock(since, offset.max(target), target);
            let at = Timestamp(at);
            let _ = (clock.wall(at), clock.reaches(at), clock.started(at, at));
        }
    }
}
