//! Determinism: a run repeated from its seed, from its trace, in parts, and shrunk.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use driftq_core::faults::Fault;
use driftq_sim::actions::Action;
use driftq_sim::campaign::{Extent, Plan, check_determinism, run};
use driftq_sim::run::{Run, RunOptions, replay, run_seed};
use driftq_sim::shrink::shrink;
use driftq_sim::swarm::Profile;
use driftq_sim::trace::{Trace, TraceError, ViolatedInvariant};
use driftq_sim::world::Checks;

const NO_FAULT: RunOptions = RunOptions { fault: None, checks: Checks { oracle: true }, profile: Profile::Default };

fn planted(fault: Fault) -> RunOptions {
    RunOptions { fault: Some(fault), ..NO_FAULT }
}

/// The first seed that fails with a planted bug and passes without.
fn failing_seed(fault: Fault) -> (u64, Run) {
    let runs = (0..100).map(|seed| (seed, run_seed(seed, planted(fault))));
    let mut violated =
        runs.filter(|(seed, run)| run.violation.is_some() && run_seed(*seed, NO_FAULT).violation.is_none());
    violated.next().unwrap_or_else(|| panic!("{} survives a hundred seeds", fault.name()))
}

#[test]
fn seed_always_gives_the_same_run() {
    for seed in [0, 1, 2, 3, 77, u64::MAX] {
        let (first, again) = (run_seed(seed, NO_FAULT), run_seed(seed, NO_FAULT));
        assert_eq!(
            (first.chain, &first.actions, first.counters),
            (again.chain, &again.actions, again.counters),
            "{seed}"
        );
        assert_eq!(first.coverage, again.coverage, "{seed}");
        assert_eq!(check_determinism(seed, NO_FAULT), Ok(first.chain));
    }
    assert_ne!(run_seed(0, NO_FAULT).chain, run_seed(1, NO_FAULT).chain);
}

#[test]
fn thread_count_changes_neither_results_nor_the_end_of_a_campaign() {
    let stop = AtomicBool::new(false);
    let plan = |jobs| Plan {
        start: 0,
        extent: Extent::Seeds(300),
        jobs: NonZeroUsize::new(jobs).expect("not zero"),
        options: planted(Fault::InFlightOffByOne),
        failures_max: 3,
        stop: &stop,
    };
    let (one, two) = (run(&plan(1), |_| {}), run(&plan(2), |_| {}));
    assert_eq!((one.seeds, one.chain, one.counters), (two.seeds, two.chain, two.counters));
    let seeds =
        |failures: &[driftq_sim::campaign::Failure]| failures.iter().map(|failure| failure.seed).collect::<Vec<_>>();
    assert_eq!(seeds(&one.failures), seeds(&two.failures));
    assert_eq!(one.failures.len(), 3);
}

#[test]
fn trace_round_trips_and_replays_to_the_same_run() {
    for seed in 0..12 {
        let run = run_seed(seed, NO_FAULT);
        let trace = Trace::of(&run, Some(seed), None);
        let text = trace.to_jsonl();
        let read = Trace::from_jsonl(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(read, trace);
        assert_eq!(read.to_jsonl(), text);
        assert_eq!(text.lines().count(), trace.actions.len() + 1);
        assert_eq!(read.replay(None).chain, run.chain, "seed {seed}");
    }
}

#[test]
fn malformed_trace_is_refused_with_its_line() {
    let text = Trace::of(&run_seed(0, NO_FAULT), Some(0), None).to_jsonl();
    let line_error = |text: &str| match Trace::from_jsonl(text) {
        Err(TraceError::Line { line, cause }) => (line, cause.to_string()),
        other => panic!("{other:?}"),
    };
    let with = |nth: usize, line: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[nth] = line;
        lines.join("\n")
    };
    let (line, cause) = line_error(&with(3, r#"{"pass":{"ms":1,"hurry":true}}"#));
    assert!(line == 4 && cause.contains("hurry"), "{line}: {cause}");
    let (line, cause) = line_error(&with(7, r#"{"sing":{}}"#));
    assert!(line == 8 && cause.contains("sing"), "{line}: {cause}");
    let (line, cause) = line_error(&with(2, r#"{"read":{"worker":"x1","count":1}}"#));
    assert!(line == 3 && cause.contains("x1"), "{line}: {cause}");
    let first = text.lines().next().expect("a header");
    let (line, cause) = line_error(&with(0, &first.replace("\"seed\":0", "\"seed\":0,\"mutant\":\"unknown\"")));
    assert!(line == 1 && cause.contains("skip-token-check"), "{line}: {cause}");
    let (line, _) = line_error(&with(0, &first.replace("in_flight_max", "in_flight_most")));
    assert_eq!(line, 1);

    let refused = |text: &str| Trace::from_jsonl(text).expect_err("not a trace").to_string();
    assert!(refused("").contains("empty"));
    assert!(refused("{}").contains("driftq_trace"));
    assert!(refused(&with(0, &first.replace("\"driftq_trace\":1", "\"driftq_trace\":2"))).contains("version 2"));
    let tiny = with_setup_field(first, "segment_bytes", 10);
    assert!(refused(&with(0, &tiny)).contains("setup"), "{tiny}");
    let zero = with_setup_field(first, "slice_bytes", 0);
    assert!(refused(&with(0, &zero)).contains("slice_bytes"), "{zero}");
}

/// The header with another number in one field of its setup.
fn with_setup_field(header: &str, field: &str, number: u64) -> String {
    let mut value: serde_json::Value = serde_json::from_str(header).expect("a header");
    value["setup"][field] = number.into();
    value.to_string()
}

/// Any subsequence of a trace is a trace: the simulator executes it, and a broker without bugs violates nothing.
#[test]
fn any_subsequence_of_a_trace_is_a_trace() {
    // A simple generator suffices.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for seed in SEEDS {
        let run = run_seed(seed, NO_FAULT);
        for one_in in [2, 3, 10] {
            let part: Vec<Action> = run.actions.iter().filter(|_| draw() % one_in != 0).cloned().collect();
            let replayed = replay(&run.setup, &part, NO_FAULT);
            assert_eq!(replayed.violation, None, "seed {seed}, one in {one_in} left out");
            assert_eq!(replayed.actions.len(), part.len());
        }
    }
}

const SEEDS: std::ops::Range<u64> = 0..30;

#[test]
fn shrunk_run_violates_the_same_invariant_and_only_with_the_bug() {
    let bugs =
        [Fault::HighestAckWatermark, Fault::SkipTokenCheck, Fault::BackoffIgnored, Fault::AttemptsForgottenOnReplay];
    for fault in bugs {
        let (seed, run) = failing_seed(fault);
        let violated = ViolatedInvariant::from(run.violation.as_ref().expect("the run fails"));
        let shrunk = shrink(&run.setup, &run.actions, planted(fault)).expect("the run fails");
        let actions = shrunk.run.actions.len();
        assert!(actions <= 25 && actions < shrunk.before, "{}: seed {seed} has {actions} actions", fault.name());
        let again = replay(&shrunk.run.setup, &shrunk.run.actions, planted(fault));
        assert!(again.violation.is_some_and(|found| violated.is(&found)), "{}", fault.name());
        assert_eq!(replay(&shrunk.run.setup, &shrunk.run.actions, NO_FAULT).violation, None, "{}", fault.name());
        let twice = shrink(&run.setup, &run.actions, planted(fault)).expect("the run fails");
        assert_eq!(twice.run.actions, shrunk.run.actions, "{} shrinks to the same actions again", fault.name());
    }
}

#[test]
fn passing_run_has_nothing_to_shrink() {
    let run = run_seed(0, NO_FAULT);
    assert!(shrink(&run.setup, &run.actions, NO_FAULT).is_none());
}
