//! Arbitrary sequences of steps, judged after every one of them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use driftq_core::faults::NoFaults;
use driftq_core::log::FileId;
use driftq_core::{Output, Refusal, Reply};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::steps::{Plan, plans};
use super::world::run;

/// A runner that draws the same cases on every machine and on every day. `PROPTEST_CASES` scales how many: 512 draws
/// twice as many, the first half of them the same.
pub fn runner(cases: u32) -> TestRunner {
    let cases = (u64::from(cases) * u64::from(Config::default().cases)).div_ceil(256) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[0x5e; 32]))
}

/// Tries so many cases; fails with the smallest that does not hold, on one line.
pub fn judge<S: Strategy>(cases: u32, strategy: S, check: impl Fn(&S::Value) -> Result<(), TestCaseError>) {
    let judged = runner(cases).run(&strategy, |value| {
        let checked = std::panic::catch_unwind(AssertUnwindSafe(|| check(&value)));
        checked.unwrap_or_else(|_| Err(TestCaseError::fail("it panicked")))
    });
    match judged {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{reason}\n{value:?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

fn holds(plan: &Plan) -> Result<(), TestCaseError> {
    run(plan, NoFaults).map(drop).map_err(|violation| TestCaseError::fail(violation.to_string()))
}

#[test]
fn no_sequence_of_commands_crashes_and_restarts_breaks_a_promise() {
    judge(4_000, plans(80), holds);
}

#[test]
fn no_long_sequence_breaks_a_promise() {
    judge(150, plans(400), holds);
}

#[test]
fn the_same_sequence_twice_gives_the_same_bytes_and_the_same_outputs() {
    judge(300, plans(80), |plan| {
        let (mut once, mut again) = match (run(plan, NoFaults), run(plan, NoFaults)) {
            (Ok(once), Ok(again)) => (once, again),
            (once, again) => {
                prop_assert_eq!(once.err(), again.err());
                return Ok(());
            }
        };
        prop_assert_eq!(&once.outputs, &again.outputs);
        prop_assert_eq!(once.files(), again.files());
        prop_assert_eq!(once.pipeline.state().digest(), again.pipeline.state().digest());
        Ok(())
    });
}

/// What an output tells of, in a word or two.
fn situation(output: &Output) -> String {
    let name = |text: String| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    match output {
        Output::Closed { cause, .. } => format!("closed: {cause:?}"),
        Output::Reply { result: Ok(Reply::Produced(produced)), .. } => {
            format!("produced: duplicate {}, {:?}", produced.duplicate, produced.router)
        }
        Output::Reply { result: Ok(Reply::Redriven { count }), .. } => format!("redriven: {}", count.min(&2)),
        Output::Reply { result: Ok(reply), .. } => name(format!("{reply:?}")),
        Output::Reply { result: Err(Refusal::Overloaded { reason, .. }), .. } => format!("overloaded: {reason:?}"),
        Output::Reply { result: Err(refusal), .. } => format!("refused: {}", name(format!("{refusal:?}"))),
        Output::Deliver { delivery, .. } => {
            let meta = delivery.body.metadata();
            let of = match (&meta.dead_letter, meta.redrive) {
                (Some(dead), _) => format!("dead by {}", dead.reason.as_str()),
                (None, Some(redrive)) => format!("redriven {}", redrive.count.min(2)),
                (None, None) => "plain".to_owned(),
            };
            format!(
                "delivered: {of}, {} attempts, {}",
                delivery.attempts.min(2),
                name(format!("{:?}", delivery.last_error))
            )
        }
    }
}

#[test]
fn the_sequences_meet_every_situation_there_is() {
    let met = RefCell::new(BTreeSet::new());
    judge(300, plans(250), |plan| {
        let mut world = run(plan, NoFaults).map_err(|violation| TestCaseError::fail(violation.to_string()))?;
        met.borrow_mut().extend(world.outputs.iter().map(situation));
        let files = world.files();
        let has = |what: fn(&FileId) -> bool| files.iter().any(|(file, _)| what(file));
        if has(|file| matches!(file, FileId::Snapshot(_))) && !has(|file| *file == FileId::Segment(1)) {
            met.borrow_mut().insert("old segments removed".to_owned());
        }
        Ok(())
    });
    let met = met.into_inner();
    let missed: Vec<_> =
        SITUATIONS.lines().map(str::trim).filter(|line| !line.is_empty() && !met.contains(*line)).collect();
    assert!(missed.is_empty(), "never met: {missed:#?}\nmet: {met:#?}");
}

const SITUATIONS: &str = "
    Done
    Extended
    Groups
    Peeked
    Subscribed
    Topic
    TopicCreated
    Topics
    closed: GroupDeleted
    closed: TopicDeleted
    delivered: dead by deadline_exceeded, 1 attempts, Nothing
    delivered: dead by max_attempts, 1 attempts, Nothing
    delivered: dead by max_attempts, 2 attempts, AckTimeout
    delivered: plain, 1 attempts, Nothing
    delivered: plain, 2 attempts, AckTimeout
    delivered: plain, 2 attempts, Nothing
    delivered: plain, 2 attempts, Reason
    delivered: redriven 1, 1 attempts, Nothing
    delivered: redriven 2, 1 attempts, Nothing
    old segments removed
    overloaded: Backlog
    overloaded: DeadLetters
    overloaded: Identities
    overloaded: Log
    produced: duplicate false, Followed
    produced: duplicate false, NotAsked
    produced: duplicate false, SetAside
    produced: duplicate true, NotAsked
    redriven: 0
    redriven: 1
    redriven: 2
    refused: DeadlinePassed
    refused: Invalid
    refused: LogFailed
    refused: NotOwner
    refused: PartitionOutOfRange
    refused: StaleLease
    refused: StorageFull
    refused: TopicExists
    refused: UnknownConsumer
    refused: UnknownGroup
    refused: UnknownTopic
";
