//! A broker with a bug: what its clients see must be enough to notice, without a look into its log.

use std::panic::catch_unwind;

use driftq_core::faults::{Fault, Planted};
use driftq_history::{Check, check};

use crate::recorded::Live;

/// How many lives there are to notice a bug.
const LIVES: u64 = 40;

/// Bugs that clients can notice, and by which check. Others take a broker's insides, or wait for what these lives never do.
const NOTICED: [(Fault, Check); 23] = [
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
fn clients_of_a_broker_with_a_bug_notice() {
    for (fault, by) in NOTICED {
        let noticed = |seed: &u64| {
            let snapshot_every_bytes = if seed.is_multiple_of(2) { u64::MAX } else { 4 << 10 };
            // Some bugs are also noticed by the broker itself, which then ends.
            let lived = catch_unwind(|| Live::with(Planted(fault), *seed, 250, snapshot_every_bytes).entries);
            lived.is_ok_and(|entries| check(&entries).tally(by).violations > 0)
        };
        assert!((0..LIVES).any(|seed| noticed(&seed)), "{fault:?} was not noticed by the check {by}");
    }
}
