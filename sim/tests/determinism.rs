//! The same life again: from its seed, from its trace, in parts, and made shorter.

use std::num::NonZeroUsize;

use driftq_core::faults::Fault;
use driftq_sim::actions::Action;
use driftq_sim::campaign::{Extent, Plan, check_determinism, run};
use driftq_sim::run::{Run, RunOptions, replay, run_seed};
use driftq_sim::shrink::shrink;
use driftq_sim::swarm::Profile;
use driftq_sim::trace::{Trace, TraceError, ViolatedInvariant};
use driftq_sim::world::Checks;

const SOUND: RunOptions = RunOptions { fault: None, checks: Checks { oracle: true }, profile: Profile::Default };

fn planted(fault: Fault) -> RunOptions {
    RunOptions { fault: Some(fault), ..SOUND }
}

/// The first of the seeds that a planted bug breaks.
fn broken_by(fault: Fault) -> (u64, Run) {
    let runs = (0..100).map(|seed| (seed, run_seed(seed, planted(fault))));
    let mut broken = runs.filter(|(seed, run)| run.violation.is_some() && run_seed(*seed, SOUND).violation.is_none());
    broken.next().unwrap_or_else(|| panic!("{} survives a hundred seeds", fault.name()))
}

#[test]
fn a_seed_is_always_the_same_life() {
    for seed in [0, 1, 2, 3, 77, u64::MAX] {
        let (first, again) = (run_seed(seed, SOUND), run_seed(seed, SOUND));
        assert_eq!(
            (first.chain, &first.actions, first.counters),
            (again.chain, &again.actions, again.counters),
            "{seed}"
        );
        assert_eq!(first.coverage, again.coverage, "{seed}");
        assert_eq!(check_determinism(seed, SOUND), Ok(first.chain));
    }
    assert_ne!(run_seed(0, SOUND).chain, run_seed(1, SOUND).chain);
}

#[test]
fn the_number_of_threads_changes_nothing_not_even_where_a_run_stops() {
    let plan = |jobs| Plan {
        start: 0,
        extent: Extent::Seeds(300),
        jobs: NonZeroUsize::new(jobs).expect("not zero"),
        options: planted(Fault::InFlightOffByOne),
        failures_max: 3,
    };
    let (one, two) = (run(&plan(1), |_| {}), run(&plan(2), |_| {}));
    assert_eq!((one.seeds, one.chain, one.counters), (two.seeds, two.chain, two.counters));
    let seeds =
        |failures: &[driftq_sim::campaign::Failure]| failures.iter().map(|failure| failure.seed).collect::<Vec<_>>();
    assert_eq!(seeds(&one.failures), seeds(&two.failures));
    assert_eq!(one.failures.len(), 3);
}

#[test]
fn a_trace_is_the_same_life_after_it_was_written_and_read() {
    for seed in 0..12 {
        let run = run_seed(seed, SOUND);
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
fn what_is_not_understood_is_refused_with_its_line() {
    let text = Trace::of(&run_seed(0, SOUND), Some(0), None).to_jsonl();
    let at = |text: &str| match Trace::from_jsonl(text) {
        Err(TraceError::Line { line, cause }) => (line, cause.to_string()),
        other => panic!("{other:?}"),
    };
    let with = |nth: usize, line: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[nth] = line;
        lines.join("\n")
    };
    let (line, cause) = at(&with(3, r#"{"pass":{"ms":1,"hurry":true}}"#));
    assert!(line == 4 && cause.contains("hurry"), "{line}: {cause}");
    let (line, cause) = at(&with(7, r#"{"sing":{}}"#));
    assert!(line == 8 && cause.contains("sing"), "{line}: {cause}");
    let (line, cause) = at(&with(2, r#"{"read":{"worker":"x1","count":1}}"#));
    assert!(line == 3 && cause.contains("x1"), "{line}: {cause}");
    let first = text.lines().next().expect("a head");
    let (line, cause) = at(&with(0, &first.replace("\"seed\":0", "\"seed\":0,\"mutant\":\"nobody\"")));
    assert!(line == 1 && cause.contains("skip-token-check"), "{line}: {cause}");
    let (line, _) = at(&with(0, &first.replace("in_flight_max", "in_flight_most")));
    assert_eq!(line, 1);

    let refused = |text: &str| Trace::from_jsonl(text).expect_err("it is no trace").to_string();
    assert!(refused("").contains("empty"));
    assert!(refused("{}").contains("driftq_trace"));
    assert!(refused(&with(0, &first.replace("\"driftq_trace\":1", "\"driftq_trace\":2"))).contains("format 2"));
    let tiny = regex_free_replace(first, "segment_bytes", 10);
    assert!(refused(&with(0, &tiny)).contains("setup"), "{tiny}");
    let endless = regex_free_replace(first, "slice_bytes", 0);
    assert!(refused(&with(0, &endless)).contains("slice_bytes"), "{endless}");
}

/// The head with another number in one field of its setup.
fn regex_free_replace(head: &str, field: &str, number: u64) -> String {
    let mut value: serde_json::Value = serde_json::from_str(head).expect("a head");
    value["setup"][field] = number.into();
    value.to_string()
}

/// Any part of a trace is a trace: whatever is left out, the simulator goes on, and a broker without bugs breaks nothing.
#[test]
fn any_part_of_a_trace_is_a_trace() {
    // A few bits are all the luck it needs.
    let mut luck = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move || {
        luck ^= luck << 13;
        luck ^= luck >> 7;
        luck ^= luck << 17;
        luck
    };
    for seed in PARTED {
        let run = run_seed(seed, SOUND);
        for one_in in [2, 3, 10] {
            let part: Vec<Action> = run.actions.iter().filter(|_| draw() % one_in != 0).cloned().collect();
            let lived = replay(&run.setup, &part, SOUND);
            assert_eq!(lived.violation, None, "seed {seed}, one in {one_in} left out");
            assert_eq!(lived.actions.len(), part.len());
        }
    }
}

const PARTED: std::ops::Range<u64> = 0..30;

#[test]
fn what_is_shrunk_breaks_the_same_promise_and_only_by_the_bug() {
    let bugs =
        [Fault::HighestAckWatermark, Fault::SkipTokenCheck, Fault::BackoffIgnored, Fault::AttemptsForgottenOnReplay];
    for fault in bugs {
        let (seed, run) = broken_by(fault);
        let broken = ViolatedInvariant::from(run.violation.as_ref().expect("it was chosen for it"));
        let shrunk = shrink(&run.setup, &run.actions, planted(fault)).expect("it is broken");
        let actions = shrunk.run.actions.len();
        assert!(actions <= 25 && actions < shrunk.before, "{}: seed {seed} has {actions} steps", fault.name());
        let again = replay(&shrunk.run.setup, &shrunk.run.actions, planted(fault));
        assert!(again.violation.is_some_and(|found| broken.is(&found)), "{}", fault.name());
        assert_eq!(replay(&shrunk.run.setup, &shrunk.run.actions, SOUND).violation, None, "{}", fault.name());
        let twice = shrink(&run.setup, &run.actions, planted(fault)).expect("it is broken");
        assert_eq!(twice.run.actions, shrunk.run.actions, "{} shrinks the same way again", fault.name());
    }
}

#[test]
fn a_sound_life_has_nothing_to_shrink() {
    let run = run_seed(0, SOUND);
    assert!(shrink(&run.setup, &run.actions, SOUND).is_none());
}
