//! The same lives on the simulated disk and on the server's own files: what comes out is the same, crash by crash.

use std::fs;
use std::path::Path;

use driftq_core::faults::Fault;
use driftq_sim::life::{Conditions, Life, live, relive, relive_on_files};
use driftq_sim::real::RealError;
use driftq_sim::regression;
use driftq_sim::trace::Trace;

fn kept() -> Vec<(String, Trace)> {
    regression::kept(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/regressions")))
        .expect("the traces are part of the crate")
}

/// Lives it on both, and says how they differ.
fn difference(life: &Life, fault: Option<Fault>) -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let conditions = Conditions { fault, ..Conditions::default() };
    match relive_on_files(&life.setup, &life.steps, conditions, folder.path()) {
        Err(error) => Some(error.to_string()),
        Ok(real) => {
            let (simulated, real) = ((life.chain, &life.violation), (real.chain, &real.violation));
            (simulated != real).then(|| format!("{simulated:?} on the simulated disk, {real:?} on real files"))
        }
    }
}

#[test]
fn every_kept_trace_is_the_same_life_on_real_files() {
    let kept = kept();
    assert!(!kept.is_empty());
    let mut crashes = 0;
    for (name, trace) in kept {
        for fault in [trace.head.mutant, None] {
            let life = trace.relive(fault);
            crashes += life.tally.crashes;
            assert_eq!(difference(&life, fault), None, "{name} with {fault:?}");
        }
    }
    assert!(crashes > 20, "only {crashes} crashes");
}

#[test]
fn whole_lives_with_torn_writes_failing_syncs_and_full_disks_are_the_same_on_real_files() {
    let (mut crashes, mut steps) = (0, 0);
    for seed in 0..6 {
        let mut life = live(seed, Conditions::default());
        // A part of it will do: real syncs take real time.
        life.steps.truncate(400);
        let life = relive(&life.setup, &life.steps, Conditions::default());
        assert_eq!(life.violation, None, "seed {seed}");
        assert_eq!(difference(&life, None), None, "seed {seed}");
        (crashes, steps) = (crashes + life.tally.crashes, steps + life.steps.len());
    }
    assert!(crashes > 10 && steps > 1_000, "{crashes} crashes in {steps} steps");
}

#[test]
fn a_life_that_was_another_on_the_simulated_disk_is_noticed() {
    let (_, trace) = kept().into_iter().find(|(_, trace)| trace.head.mutant.is_some()).expect("one is kept");
    let bug = trace.relive(trace.head.mutant);
    assert!(difference(&bug, None).is_some(), "without the bug something else comes out");
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let theirs = folder.path().join("theirs");
    fs::write(&theirs, "precious").expect("written");
    let life = live(0, Conditions::default());
    let refused = relive_on_files(&life.setup, &life.steps, Conditions::default(), folder.path());
    assert!(matches!(refused, Err(RealError::NotEmpty(_))), "{refused:?}");
    assert_eq!(fs::read_to_string(&theirs).expect("still there"), "precious");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
