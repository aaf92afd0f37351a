//! Brokers with a planted bug: what their clients see is enough to detect it, without the log.

use std::panic::catch_unwind;

use driftq_core::faults::{Fault, Planted};
use driftq_history::{Check, check};

use crate::recorded::RecordedRun;

/// The most recorded runs until a bug is detected.
const RUNS_MAX: u64 = 40;

/// Bugs that clients can detect, and the check that does. Others show only inside a broker, or need what these runs
/// never do.
const DETECTABLE: [(Fault, Check); 23] = [
    (Fault::ReleaseBeforeSync, Check::Lost),
    (Fault::SkipTokenCheck, Check::Stale),
    (Fault::TokensRestartOnBoot, Check::Attempts),
    (Fault::InFlightOffByOne, Check::InFlight),
    (Fault::AttemptsForgottenOnReplay, Check::Attempts),
    (Fault::DedupeDroppedOnReplay, Check::Identity),
    (Fault::DeadLetterWrittenTwice, Check::Offsets),
    (Fault::SourceNotFinishedOnDeadLetter, Check::Offsets),
    (Fault::SnapshotMissesInFlight, Check::Overlap),
    (Fault::ExpiredKeepsToken, Check::Attempts),
    (Fault::PriorityBreaksOrder, Check::Order),
    (Fault::DuplicateTakenAsNew, Check::Identity),
    (Fault::ExtendAfterExpiry, Check::Overlap),
    (Fault::BodyTruncated, Check::Altered),
    (Fault::AckNotKept, Check::Resurrected),
    (Fault::LeaseShorterThanTold, Check::Overlap),
    (Fault::StuckAfterExpiry, Check::Drained),
    (Fault::FinishIgnoresToken, Check::Effects),
    (Fault::TakeoverKeepsToken, Check::Effects),
    (Fault::EffectLostOnReplay, Check::Effects),
    (Fault::BeginAfterSuccessExecutes, Check::Effects),
    (Fault::CompleteWithoutAck, Check::Steps),
    (Fault::CompleteWithoutProduce, Check::Altered),
];

#[test]
fn planted_bug_is_detected_by_its_check() {
    for (fault, by) in DETECTABLE {
        let is_detected = |seed: &u64| {
            let snapshot_every_bytes = if seed.is_multiple_of(2) { None } else { Some(4 << 10) };
            // Some bugs also trip an assertion of the broker.
            let recorded = catch_unwind(|| RecordedRun::with(Planted(fault), *seed, 250, snapshot_every_bytes).entries);
            recorded.is_ok_and(|entries| check(&entries).tally(by).violations > 0)
        };
        assert!((0..RUNS_MAX).any(|seed| is_detected(&seed)), "{fault:?} was not detected by the check {by}");
    }
}
