//! Decides adjustments of wall time to the wall clock.

use crate::types::{Millis, Timestamp, WallAdjustment, WallClock};

/// Up to this difference the wall clock is left alone, so that jitter and slow drift write no records.
const TOLERANCE: Millis = Millis(1_000);

/// The shortest time between two adjustments, so that a jumping wall clock does not fill the log.
const INTERVAL: Millis = Millis(3_000);

/// How wall time compares with the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockCheck {
    /// They agree, or wall time already slews towards the wall clock.
    InStep,
    /// They differ, but the last adjustment is too recent: check again at this broker time.
    CheckAt(Timestamp),
    /// They differ.
    Adjust(WallAdjustment),
}

/// Compares wall time at broker time `now` with the reading `wall` of the wall clock.
pub(crate) fn check(clock: &WallClock, now: Timestamp, wall: Timestamp) -> ClockCheck {
    let measured = wall.offset_from(now);
    if measured.abs_diff(clock.target()) <= TOLERANCE.0 {
        return ClockCheck::InStep;
    }
    let earliest = clock.since().after(INTERVAL);
    if now < earliest {
        return ClockCheck::CheckAt(earliest);
    }
    let offset = clock.offset(now);
    ClockCheck::Adjust(if measured >= offset {
        WallAdjustment::Forward { offset: measured }
    } else {
        WallAdjustment::Slew { offset, target: measured }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that was in step at broker time 10,000.
    fn in_step() -> WallClock {
        WallClock::new(Timestamp(10_000), 0, 0).expect("a clock that does not slew")
    }

    #[test]
    fn difference_up_to_a_second_is_left_alone() {
        for wall in [19_000, 20_000, 21_000] {
            assert_eq!(check(&in_step(), Timestamp(20_000), Timestamp(wall)), ClockCheck::InStep);
        }
        let ahead = check(&in_step(), Timestamp(20_000), Timestamp(21_001));
        assert_eq!(ahead, ClockCheck::Adjust(WallAdjustment::Forward { offset: 1_001 }));
        let behind = check(&in_step(), Timestamp(20_000), Timestamp(18_999));
        assert_eq!(behind, ClockCheck::Adjust(WallAdjustment::Slew { offset: 0, target: -1_001 }));
    }

    #[test]
    fn second_adjustment_waits_for_the_interval() {
        let early = check(&in_step(), Timestamp(12_999), Timestamp(0));
        assert_eq!(early, ClockCheck::CheckAt(Timestamp(13_000)));
        assert!(matches!(check(&in_step(), Timestamp(13_000), Timestamp(0)), ClockCheck::Adjust(_)));
    }

    #[test]
    fn slewing_clock_stops_where_the_wall_clock_is_found() {
        let slewing = WallClock::new(Timestamp(10_000), 0, -60_000).expect("a clock that slews");
        let now = Timestamp(20_000);
        assert_eq!(
            check(&slewing, now, Timestamp(0)),
            ClockCheck::Adjust(WallAdjustment::Slew { offset: -5_000, target: -20_000 })
        );
        assert_eq!(
            check(&slewing, now, Timestamp(15_000)),
            ClockCheck::Adjust(WallAdjustment::Forward { offset: -5_000 })
        );
    }
}
