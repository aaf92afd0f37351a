//! What no sequence of steps may break, however senseless: clients that ask for the impossible, clocks at both ends of time,
//! a disk that fails at any moment. The swarm draws what could happen; this draws what should not.
#![allow(missing_docs, unreachable_pub)]

mod actions;
mod requests;
mod values;

use std::cell::RefCell;

use driftq_core::faults::NoFaults;
use driftq_sim::coverage::Coverage;
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::shrink::shrink;
use driftq_sim::swarm::Profile;
use driftq_sim::trace::Trace;
use driftq_sim::world::{Checks, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use self::actions::{Sequence, endless, sequences};

const SOUND: RunOptions = RunOptions { fault: None, checks: Checks { oracle: true }, profile: Profile::Default };

/// A runner that draws the same cases on every machine and on every day. `PROPTEST_CASES` scales how many: 512 draws twice
/// as many, the first half of them the same. `DRIFTQ_SEQUENCES` draws others.
fn runner(cases: u32) -> TestRunner {
    let cases = (u64::from(cases) * u64::from(Config::default().cases)).div_ceil(256) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3_000, ..Config::default() };
    let which = std::env::var("DRIFTQ_SEQUENCES").ok().and_then(|which| which.parse().ok()).unwrap_or(0_u64);
    let mut seed = [0x5e; 32];
    seed[..8].copy_from_slice(&which.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Runs a test with room on its stack: a strategy as large as these is built there, many times over, unless the compiler spares it.
fn roomy(test: impl FnOnce() + Send) {
    let ended = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, test);
        thread.expect("a thread").join()
    });
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Tries so many sequences; fails with the smallest that does not hold, as a trace to be replayed.
fn judge(
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

/// The sequence as lines for `driftq-sim replay`, as few as the simulator can make them.
fn trace((setup, actions): &Sequence) -> String {
    let run = shrink(setup, actions, SOUND).map_or_else(|| replay(setup, actions, SOUND), |shrunk| shrunk.run);
    let found = run.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{found}\nto be kept in a file, for driftq-sim replay:\n\n{}", Trace::of(&run, None, None).to_jsonl())
}

fn holds((setup, actions): &Sequence, coverage: &RefCell<Coverage>) -> Result<(), TestCaseError> {
    let run = replay(setup, actions, SOUND);
    coverage.borrow_mut().add(&run.coverage);
    run.violation.map_or(Ok(()), |violation| Err(TestCaseError::fail(violation.to_string())))
}

#[test]
fn no_sequence_of_steps_breaks_a_promise_and_they_meet_every_situation_there_is() {
    roomy(|| {
        let coverage = RefCell::default();
        judge(2_000, sequences(160), |sequence| holds(sequence, &coverage));
        let missed: Vec<_> = coverage.borrow().never().map(driftq_sim::coverage::Point::sentence).collect();
        assert!(missed.is_empty(), "never met: {missed:#?}");
    });
}

#[test]
fn no_long_sequence_breaks_a_promise() {
    roomy(|| {
        judge(150, sequences(400), |sequence| holds(sequence, &RefCell::default()));
    });
}

#[test]
fn no_moment_at_the_end_of_time_breaks_a_promise() {
    roomy(|| {
        judge(600, sequences(60).prop_map(endless), |sequence| holds(sequence, &RefCell::default()));
    });
}

#[test]
fn the_same_sequence_twice_is_the_same_life() {
    roomy(|| {
        judge(200, sequences(60), |(setup, actions)| {
            let (once, again) = (replay(setup, actions, SOUND), replay(setup, actions, SOUND));
            prop_assert_eq!((once.chain, once.counters, once.coverage), (again.chain, again.counters, again.coverage));
            Ok(())
        });
    });
}

/// A start demands of a snapshot what is true of every state there is; else it would refuse what the broker wrote itself.
#[test]
fn every_state_that_is_reached_is_one_that_a_snapshot_may_hold() {
    roomy(|| {
        judge(300, sequences(60), |(setup, actions)| {
            let begun = World::new(setup, NoFaults, Checks { oracle: false });
            let mut world = begun.map_err(|violation| TestCaseError::fail(violation.to_string()))?;
            for action in actions {
                world.apply(action).map_err(|violation| TestCaseError::fail(violation.to_string()))?;
                let unsound = world.broker().and_then(|broker| broker.state().check().err());
                prop_assert!(unsound.is_none(), "after {:?}: {:?}", action, unsound);
            }
            Ok(())
        });
    });
}
