//! No sequence of actions violates an invariant, however unreasonable: impossible requests, clocks at both ends of
//! time, a disk that fails at any time. The swarm generates what can happen; this generates what should not.
#![allow(missing_docs, unreachable_pub)]

mod actions;
mod requests;
mod values;

use std::cell::RefCell;

use driftq_core::faults::NoFaults;
use driftq_sim::coverage::{Coverage, Point};
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::shrink::shrink;
use driftq_sim::swarm::Profile;
use driftq_sim::trace::Trace;
use driftq_sim::world::{Checks, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use self::actions::{Sequence, endless, sequences};

const NO_FAULT: RunOptions = RunOptions { fault: None, checks: Checks { oracle: true }, profile: Profile::Default };

/// A runner with the same cases on every machine. `PROPTEST_CASES` scales their number: 512 gives twice as many, of
/// which the first half are the same. `DRIFTQ_SEQUENCES` selects others.
fn runner(cases: u32) -> TestRunner {
    let cases = (u64::from(cases) * u64::from(Config::default().cases)).div_ceil(256) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3_000, ..Config::default() };
    let which = std::env::var("DRIFTQ_SEQUENCES").ok().and_then(|which| which.parse().ok()).unwrap_or(0_u64);
    let mut seed = [0x5e; 32];
    seed[..8].copy_from_slice(&which.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Runs a test with a large stack: strategies as large as these are built on it, many times over.
fn with_large_stack(test: impl FnOnce() + Send) {
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, test);
        thread.expect("a thread").join()
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Tries this many sequences; fails with the smallest failing one, as a trace.
fn try_sequences(
    cases: u32,
    sequences: impl Strategy<Value = Sequence>,
    check: impl Fn(&Sequence) -> Result<(), TestCaseError>,
) {
    match runner(cases).run(&sequences, |sequence| check(&sequence)) {
        Ok(()) => {}
        Err(TestError::Fail(reason, sequence)) => panic!("{reason}\n{}", trace(&sequence)),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// The sequence as a trace for `driftq-sim replay`, shrunk.
fn trace((setup, actions): &Sequence) -> String {
    let run = shrink(setup, actions, NO_FAULT).map_or_else(|| replay(setup, actions, NO_FAULT), |shrunk| shrunk.run);
    let found = run.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{found}\na trace for driftq-sim replay:\n\n{}", Trace::of(&run, None, None).to_jsonl())
}

fn holds((setup, actions): &Sequence, coverage: &RefCell<Coverage>) -> Result<(), TestCaseError> {
    let run = replay(setup, actions, NO_FAULT);
    coverage.borrow_mut().add(&run.coverage);
    run.violation.map_or(Ok(()), |violation| Err(TestCaseError::fail(violation.to_string())))
}

#[test]
fn sequences_violate_nothing_and_reach_full_coverage() {
    with_large_stack(|| {
        let coverage = RefCell::default();
        try_sequences(2_000, sequences(160), |sequence| holds(sequence, &coverage));
        // Three calls must agree on one key for an output that is already done, one of few bits of the disk must be
        // inverted, and what is lost must be found before a client asks for it. The swarm reaches all of it.
        let is_expected = |point: &Point| {
            !matches!(point, Point::StepOutputSkipped | Point::DamagedTailCut | Point::LostPeeked | Point::LostReplayed)
        };
        let missed: Vec<_> = coverage.borrow().never().filter(is_expected).map(Point::sentence).collect();
        assert!(missed.is_empty(), "never hit: {missed:#?}");
    });
}

#[test]
fn long_sequences_violate_nothing() {
    with_large_stack(|| {
        try_sequences(150, sequences(400), |sequence| holds(sequence, &RefCell::default()));
    });
}

#[test]
fn times_at_the_end_of_time_violate_nothing() {
    with_large_stack(|| {
        try_sequences(600, sequences(60).prop_map(endless), |sequence| holds(sequence, &RefCell::default()));
    });
}

#[test]
fn same_sequence_twice_is_the_same_run() {
    with_large_stack(|| {
        try_sequences(200, sequences(60), |(setup, actions)| {
            let (once, again) = (replay(setup, actions, NO_FAULT), replay(setup, actions, NO_FAULT));
            prop_assert_eq!((once.chain, once.counters, once.coverage), (again.chain, again.counters, again.coverage));
            Ok(())
        });
    });
}

/// Recovery demands of a snapshot what holds for every reachable state; otherwise it would refuse what the broker
/// wrote.
#[test]
fn every_reachable_state_is_valid_in_a_snapshot() {
    with_large_stack(|| {
        try_sequences(300, sequences(60), |(setup, actions)| {
            let started = World::new(setup, NoFaults, Checks { oracle: false });
            let mut world = started.map_err(|violation| TestCaseError::fail(violation.to_string()))?;
            for action in actions {
                world.apply(action).map_err(|violation| TestCaseError::fail(violation.to_string()))?;
                let inconsistency = world.broker().and_then(|broker| broker.state().check().err());
                prop_assert!(inconsistency.is_none(), "after {:?}: {:?}", action, inconsistency);
            }
            Ok(())
        });
    });
}
