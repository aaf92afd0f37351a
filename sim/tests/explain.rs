//! Explanations: curves, slices and futures of kept traces and of whole runs.

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
    explain(trace, options(futures, 2)).expect("an invariant is violated")
}

/// Whether some actions of a trace violate the same invariant as the whole trace.
fn violates_the_same(trace: &Trace, explanation: &Explanation, numbers: &[usize]) -> bool {
    let actions: Vec<Action> = numbers.iter().map(|number| trace.actions[number - 1].clone()).collect();
    let options = RunOptions { fault: trace.header.mutant, ..RunOptions::default() };
    let run = replay(&trace.header.setup, &actions, options);
    run.violation.is_some_and(|found| explanation.violated.is(&found))
}

/// Asserts that every action of the slice is needed, and that together they suffice.
fn assert_slice_minimal(name: &str, trace: &Trace, explanation: &Explanation) {
    let slice = &explanation.explained.slice;
    assert!(explanation.needed.is_minimal, "{name}");
    assert!(violates_the_same(trace, explanation, slice), "{name}: {slice:?}");
    for (at, needed) in explanation.needed.needed.iter().enumerate() {
        let mut others = slice.clone();
        others.remove(at);
        assert!(!violates_the_same(trace, explanation, &others), "{name}: {slice:?} without {}", needed.number);
        assert!(matches!(needed.without, WithoutAction::Nothing | WithoutAction::Another(_)), "{name}: {needed:?}");
    }
}

const TRACES: [&str; 9] = [
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
fn kept_traces_end_with_full_share_and_minimal_slices() {
    for name in TRACES {
        let trace = kept(name);
        let explanation = explained(&trace, 8);
        let curve = &explanation.explained.curve;
        assert_eq!(curve.last(), Some(&(explanation.actions, 1.0)), "{name}");
        assert_eq!(curve.len(), explanation.actions + 1, "{name}: every action of a short trace is examined");
        assert!(curve.iter().all(|(_, share)| (0.0..=1.0).contains(share)), "{name}: {curve:?}");
        assert!(explanation.inevitable() <= explanation.actions, "{name}");
        assert!(explanation.violation_without_fault.is_none(), "{name}: {:?}", explanation.violation_without_fault);
        assert_slice_minimal(name, &trace, &explanation);
    }
}

/// A contradictory record is on the disk from action 5 on; only the next start detects it.
#[test]
fn damage_detected_late_is_inevitable_from_its_cause() {
    let mut trace = kept("mutant-dedupe-dropped-on-replay");
    let harmless = (0..20).map(|nth| if nth % 2 == 0 { Action::AdvanceTime { ms: 1 } } else { Action::Wake });
    trace.actions.splice(5..5, harmless);
    let explanation = explained(&trace, 64);
    assert_eq!((explanation.inevitable(), explanation.actions), (5, 27), "{:?}", explanation.explained);
    assert_eq!(explanation.explained.slice, [1, 2, 3, 4, 5, 26, 27]);
    let (beginning, before) = (explanation.points[0].share(), explanation.points[4].share());
    assert!(beginning < before && before < 1.0, "{:?}", explanation.explained.curve);
    assert_slice_minimal("with harmless actions", &trace, &explanation);
}

#[test]
fn avoidable_violation_is_inevitable_only_at_the_last_action() {
    let trace = kept("mutant-skip-token-check");
    let explanation = explained(&trace, 64);
    assert_eq!(explanation.inevitable(), trace.actions.len(), "{:?}", explanation.explained.curve);
}

#[test]
fn passing_trace_has_nothing_to_explain() {
    let mut trace = kept("mutant-skip-token-check");
    trace.header.mutant = None;
    assert_eq!(explain(&trace, options(4, 1)), Err(NotExplained::NoViolation));
    assert_eq!(explain(&kept("extend-then-redrive"), options(4, 1)), Err(NotExplained::NoViolation));
}

#[test]
fn long_run_is_explained_from_few_points_for_any_thread_count() {
    let fault = Some(Fault::SnapshotMissesInFlight);
    let runs = (0..).map(|seed| run_seed(seed, RunOptions { fault, ..RunOptions::default() }));
    // The bound of the slice below is for a run of this length.
    let is_long = |length| (151..=500).contains(&length);
    let run =
        runs.into_iter().find(|run| run.violation.is_some() && is_long(run.actions.len())).expect("a failing run");
    let trace = Trace::of(&run, None, fault);
    let (one, four) = (explain(&trace, options(6, 1)), explain(&trace, options(6, 4)));
    assert_eq!(one, four);
    let explanation = one.expect("an invariant is violated");
    let examined: Vec<usize> = explanation.points.iter().map(|point| point.after).collect();
    assert!(examined.len() < 49 && examined[0] == 0 && examined.is_sorted(), "{examined:?}");
    assert_eq!(examined.last(), Some(&run.actions.len()));
    // The action before the decisive one was examined.
    let inevitable = explanation.inevitable();
    assert!(inevitable == 0 || examined.contains(&(inevitable - 1)), "{inevitable}: {examined:?}");
    assert_slice_minimal("a run", &trace, &explanation);
    assert!(explanation.explained.slice.len() * 10 < run.actions.len(), "{:?}", explanation.explained.slice);
}

/// The violations in some futures of a broker without bugs.
fn violations_without_fault(setup: &Setup, actions: &[Action], every: usize, futures: u64) -> Vec<String> {
    let mut world = World::new(setup, NoFaults, Checks::default()).expect("the broker starts");
    let sampler = FutureSampler::new(actions);
    let mut violations = Vec::new();
    for (after, action) in actions.iter().enumerate() {
        if after % every == 0 {
            for number in 0..futures {
                let mut future = sampler.future(number, after);
                let result = run_future(&world, |world| future.next(world));
                assert!(result.actions.len() > 16 || result.violation.is_some());
                violations.extend(result.violation.map(|found| format!("{number} after {after}: {found}")));
            }
        }
        world.apply(action).expect("no violation");
    }
    violations
}

#[test]
fn futures_without_fault_violate_nothing() {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")).expect("a directory");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    for path in paths {
        let trace = Trace::read(&path).expect("a trace");
        if trace.header.setup.shows_given_up {
            continue;
        }
        let violations = violations_without_fault(&trace.header.setup, &trace.actions, 4, 4);
        assert!(violations.is_empty(), "{}: {violations:?}", path.display());
    }
    let run = run_seed(2, RunOptions::default());
    let violations = violations_without_fault(&run.setup, &run.actions, 150, 4);
    assert!(violations.is_empty(), "seed 2: {violations:?}");
}

#[test]
fn future_is_deterministic_and_differs_from_the_next() {
    let trace = kept("mutant-skip-token-check");
    let world = World::new(&trace.header.setup, NoFaults, Checks::default()).expect("the broker starts");
    let sampler = FutureSampler::new(&trace.actions);
    let result = |number| {
        let mut future = sampler.future(number, 0);
        run_future(&world, |world| future.next(world)).actions
    };
    assert_eq!(result(3), result(3));
    assert_ne!(result(3), result(4));
    assert_eq!(result(3).last(), Some(&Action::Drain));
}
