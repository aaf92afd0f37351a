//! When did it become inevitable? Curves, slices and futures of kept traces and of whole lives.

use std::num::NonZeroUsize;
use std::path::Path;

use driftq_core::faults::{Fault, NoFaults};
use driftq_sim::actions::Action;
use driftq_sim::explain::futures::{FutureSampler, run_future};
use driftq_sim::explain::slice::WithoutAction;
use driftq_sim::explain::{Explanation, NotExplained, Options, explain};
use driftq_sim::run::{RunOptions, replay, run_seed};
use driftq_sim::setup::Setup;
use driftq_sim::trace::Trace;
use driftq_sim::world::{Checks, World};

fn kept(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(format!("{name}.jsonl"));
    Trace::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn options(futures: u64, jobs: usize) -> Options {
    Options { futures, jobs: NonZeroUsize::new(jobs).expect("not zero") }
}

fn explained(trace: &Trace, futures: u64) -> Explanation {
    explain(trace, options(futures, 2)).expect("a promise is broken")
}

/// Whether some steps of a trace break the promise that the whole of it does.
fn breaks_the_same(trace: &Trace, explanation: &Explanation, numbers: &[usize]) -> bool {
    let actions: Vec<Action> = numbers.iter().map(|number| trace.actions[number - 1].clone()).collect();
    let options = RunOptions { fault: trace.header.mutant, ..RunOptions::default() };
    let run = replay(&trace.header.setup, &actions, options);
    run.violation.is_some_and(|found| explanation.broken.is(&found))
}

/// Every step of the slice is needed, and they are enough.
fn slice_is_sound(name: &str, trace: &Trace, explanation: &Explanation) {
    let slice = &explanation.explained.slice;
    assert!(explanation.needed.is_minimal, "{name}");
    assert!(breaks_the_same(trace, explanation, slice), "{name}: {slice:?}");
    for (at, needed) in explanation.needed.needed.iter().enumerate() {
        let mut others = slice.clone();
        others.remove(at);
        assert!(!breaks_the_same(trace, explanation, &others), "{name}: {slice:?} without {}", needed.number);
        assert!(matches!(needed.without, WithoutAction::Nothing | WithoutAction::Another(_)), "{name}: {needed:?}");
    }
}

const KINDS: [&str; 9] = [
    "mutant-skip-token-check",
    "mutant-dedupe-dropped-on-replay",
    "mutant-append-after-torn-tail",
    "mutant-backoff-ignored",
    "mutant-effect-lost-on-replay",
    "mutant-complete-without-produce",
    "mutant-stuck-after-expiry",
    "mutant-tokens-restart-on-boot",
    "given-up-pages",
];

#[test]
fn kept_traces_end_in_certainty_and_their_slices_are_all_that_it_takes() {
    for name in KINDS {
        let trace = kept(name);
        let explanation = explained(&trace, 8);
        let curve = &explanation.explained.curve;
        assert_eq!(curve.last(), Some(&(explanation.actions, 1.0)), "{name}");
        assert_eq!(curve.len(), explanation.actions + 1, "{name}: every step of a short trace is looked at");
        assert!(curve.iter().all(|(_, share)| (0.0..=1.0).contains(share)), "{name}: {curve:?}");
        assert!(explanation.inevitable() <= explanation.actions, "{name}");
        assert!(explanation.violation_without_fault.is_none(), "{name}: {:?}", explanation.violation_without_fault);
        slice_is_sound(name, &trace, &explanation);
    }
}

/// A record that contradicts the rest is on the disk with step 5; nobody can know before the next start.
#[test]
fn damage_that_is_seen_much_later_was_inevitable_when_it_was_done() {
    let mut trace = kept("mutant-dedupe-dropped-on-replay");
    let harmless = (0..20).map(|nth| if nth % 2 == 0 { Action::AdvanceTime { ms: 1 } } else { Action::Wake });
    trace.actions.splice(5..5, harmless);
    let explanation = explained(&trace, 64);
    assert_eq!((explanation.inevitable(), explanation.actions), (5, 27), "{:?}", explanation.explained);
    assert_eq!(explanation.explained.slice, [1, 2, 3, 4, 5, 26, 27]);
    let (beginning, before) = (explanation.points[0].share(), explanation.points[4].share());
    assert!(beginning < before && before < 1.0, "{:?}", explanation.explained.curve);
    slice_is_sound("with harmless steps", &trace, &explanation);
}

/// The old segment is gone with step 5, but as long as there is no start, more I/O makes the snapshot durable that replaces it.
#[test]
fn damage_that_can_still_be_healed_is_not_inevitable() {
    let mut trace = kept("mutant-segment-removed-early");
    trace.actions.splice(5..5, (0..20).map(|_| Action::Wake));
    let explanation = explained(&trace, 64);
    let [before, done, later] = [4, 5, 15].map(|after| explanation.points[after].share());
    assert!(before < 0.9 && done > 0.9 && later > 0.9 && later < 1.0, "{:?}", explanation.explained.curve);
    assert!(explanation.inevitable() > 20, "{:?}", explanation.explained);
}

#[test]
fn where_a_luckier_future_gets_away_until_the_end_only_the_last_step_is_inevitable() {
    let trace = kept("mutant-skip-token-check");
    let explanation = explained(&trace, 64);
    assert_eq!(explanation.inevitable(), trace.actions.len(), "{:?}", explanation.explained.curve);
}

#[test]
fn a_trace_that_breaks_nothing_has_nothing_to_explain() {
    let mut trace = kept("mutant-skip-token-check");
    trace.header.mutant = None;
    assert_eq!(explain(&trace, options(4, 1)), Err(NotExplained::NothingBroken));
    assert_eq!(explain(&kept("extend-then-redrive"), options(4, 1)), Err(NotExplained::NothingBroken));
}

#[test]
fn a_whole_life_is_explained_from_a_few_of_its_steps_and_threads_make_no_difference() {
    let fault = Some(Fault::SnapshotMissesInFlight);
    let runs = (0..).map(|seed| run_seed(seed, RunOptions { fault, ..RunOptions::default() }));
    let run = runs.into_iter().find(|run| run.violation.is_some() && run.actions.len() > 100).expect("one of them");
    let trace = Trace::of(&run, None, fault);
    let (one, four) = (explain(&trace, options(6, 1)), explain(&trace, options(6, 4)));
    assert_eq!(one, four);
    let explanation = one.expect("a promise is broken");
    let looked: Vec<usize> = explanation.points.iter().map(|point| point.after).collect();
    assert!(looked.len() < 49 && looked[0] == 0 && looked.is_sorted(), "{looked:?}");
    assert_eq!(looked.last(), Some(&run.actions.len()));
    // The step before the one that decided it was looked at.
    let inevitable = explanation.inevitable();
    assert!(inevitable == 0 || looked.contains(&(inevitable - 1)), "{inevitable}: {looked:?}");
    slice_is_sound("a life", &trace, &explanation);
    assert!(explanation.explained.slice.len() < 40, "{:?}", explanation.explained.slice);
}

/// How many of some futures break a promise of the broker as it is.
fn sound_futures_that_break(setup: &Setup, actions: &[Action], every: usize, futures: u64) -> Vec<String> {
    let mut world = World::new(setup, NoFaults, Checks::default()).expect("a world begins");
    let sampler = FutureSampler::new(actions);
    let mut broken = Vec::new();
    for (after, action) in actions.iter().enumerate() {
        if after % every == 0 {
            for number in 0..futures {
                let mut future = sampler.future(number, after);
                let result = run_future(&world, |world| future.next(world));
                assert!(result.actions.len() > 16 || result.violation.is_some());
                broken.extend(result.violation.map(|found| format!("{number} after {after}: {found}")));
            }
        }
        world.apply(action).expect("the trace breaks nothing");
    }
    broken
}

#[test]
fn no_future_of_a_sound_broker_breaks_a_promise() {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")).expect("a folder");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    for path in paths {
        let trace = Trace::read(&path).expect("a trace");
        if trace.header.setup.shows_given_up {
            continue;
        }
        let broken = sound_futures_that_break(&trace.header.setup, &trace.actions, 4, 4);
        assert!(broken.is_empty(), "{}: {broken:?}", path.display());
    }
    let run = run_seed(2, RunOptions::default());
    let broken = sound_futures_that_break(&run.setup, &run.actions, 150, 4);
    assert!(broken.is_empty(), "seed 2: {broken:?}");
}

#[test]
fn a_future_is_the_same_every_time_and_not_like_the_next() {
    let trace = kept("mutant-skip-token-check");
    let world = World::new(&trace.header.setup, NoFaults, Checks::default()).expect("a world begins");
    let sampler = FutureSampler::new(&trace.actions);
    let result = |number| {
        let mut future = sampler.future(number, 0);
        run_future(&world, |world| future.next(world)).actions
    };
    assert_eq!(result(3), result(3));
    assert_ne!(result(3), result(4));
    assert_eq!(result(3).last(), Some(&Action::Drain));
}
