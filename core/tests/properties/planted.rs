//! Every planted bug is caught, by the invariant that speaks of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use driftq_core::faults::{Fault, Planted};
use proptest::strategy::{Strategy, ValueTree};

use super::sequences::runner;
use super::steps::plans;
use super::verdict::Violation;
use super::world::run;

/// So many sequences are tried at most.
const CASES: usize = 2_000;

/// The first violation that any of the first sequences finds, and how many it took. A sequence that trips one of the
/// core's own assertions is passed over: it is the invariants that are on trial.
fn convict(fault: Fault) -> (usize, Violation) {
    let (mut runner, plans) = (runner(1), plans(80));
    for tried in 1..=CASES {
        let plan = plans.new_tree(&mut runner).expect("a plan").current();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&plan, Planted(fault)).map(drop)));
        if let Ok(Err(violation)) = ran {
            return (tried, violation);
        }
    }
    panic!("{fault:?} was not caught in {CASES} sequences");
}

fn is_convicted_by(fault: Fault, invariants: &[u8]) {
    let (tried, violation) = convict(fault);
    println!("{fault:?} after {tried} sequences: {violation}");
    assert!(invariants.contains(&violation.invariant), "{fault:?} by another: {violation}");
}

#[test]
fn an_answer_given_before_the_sync_is_caught() {
    // What a client saw is beyond the disk, or, once the power went, lost or given to another message.
    is_convicted_by(Fault::ReleaseBeforeSync, &[17, 1, 4]);
}

#[test]
fn an_ack_taken_for_a_watermark_is_caught() {
    is_convicted_by(Fault::HighestAckWatermark, &[1]);
}

#[test]
fn a_token_that_is_not_compared_is_caught() {
    is_convicted_by(Fault::SkipTokenCheck, &[6]);
}

#[test]
fn one_too_many_in_flight_is_caught() {
    is_convicted_by(Fault::InFlightOffByOne, &[9]);
}

#[test]
fn a_backoff_that_is_ignored_is_caught() {
    is_convicted_by(Fault::BackoffIgnored, &[15]);
}

#[test]
fn attempts_forgotten_on_replay_are_caught() {
    is_convicted_by(Fault::AttemptsForgottenOnReplay, &[18, 13]);
}

#[test]
fn an_identity_dropped_on_replay_is_caught() {
    is_convicted_by(Fault::DedupeDroppedOnReplay, &[18, 11]);
}

#[test]
fn a_dead_letter_that_leaves_its_source_unfinished_is_caught() {
    is_convicted_by(Fault::SourceNotFinishedOnDeadLetter, &[14]);
}

#[test]
fn a_snapshot_that_misses_what_is_in_flight_is_caught() {
    is_convicted_by(Fault::SnapshotMissesInFlight, &[18]);
}

#[test]
fn a_delayed_message_that_is_delivered_early_is_caught() {
    is_convicted_by(Fault::DelayedDeliveredEarly, &[15]);
}
