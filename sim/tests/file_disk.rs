//! Runs on the simulated disk and on the server's file storage have the same outputs, crash by crash.

use std::fs;
use std::path::Path;

use driftq_core::faults::Fault;
use driftq_sim::file_disk::FileDiskError;
use driftq_sim::regression;
use driftq_sim::run::{Run, RunOptions, replay, replay_on_files, run_seed};
use driftq_sim::trace::Trace;

fn kept() -> Vec<(String, Trace)> {
    regression::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/regressions")))
        .expect("the traces are part of the crate")
}

/// Replays a run on real files and returns how it differs.
fn difference(run: &Run, fault: Option<Fault>) -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = RunOptions { fault, ..RunOptions::default() };
    match replay_on_files(&run.setup, &run.actions, options, folder.path()) {
        Err(error) => Some(error.to_string()),
        Ok(real) => {
            let (simulated, real) = ((run.chain, &run.violation), (real.chain, &real.violation));
            (simulated != real).then(|| format!("{simulated:?} on the simulated disk, {real:?} on real files"))
        }
    }
}

#[test]
fn kept_traces_are_the_same_on_real_files() {
    let kept = kept();
    assert!(!kept.is_empty());
    let mut crashes = 0;
    for (name, trace) in kept {
        for fault in [trace.header.mutant, None] {
            let run = trace.replay(fault);
            crashes += run.counters.crashes;
            assert_eq!(difference(&run, fault), None, "{name} with {fault:?}");
        }
    }
    assert!(crashes > 20, "only {crashes} crashes");
}

#[test]
fn runs_with_torn_writes_failed_syncs_and_full_disks_are_the_same_on_real_files() {
    let (mut crashes, mut actions) = (0, 0);
    for seed in 0..6 {
        let mut run = run_seed(seed, RunOptions::default());
        // A part suffices: real syncs are slow.
        run.actions.truncate(400);
        let run = replay(&run.setup, &run.actions, RunOptions::default());
        assert_eq!(run.violation, None, "seed {seed}");
        assert_eq!(difference(&run, None), None, "seed {seed}");
        (crashes, actions) = (crashes + run.counters.crashes, actions + run.actions.len());
    }
    assert!(crashes > 10 && actions > 1_000, "{crashes} crashes in {actions} actions");
}

#[test]
fn different_run_on_real_files_is_reported() {
    let (_, trace) = kept().into_iter().find(|(_, trace)| trace.header.mutant.is_some()).expect("one is kept");
    let run = trace.replay(trace.header.mutant);
    assert!(difference(&run, None).is_some(), "without the bug the outputs differ");
}

#[test]
fn directory_with_other_files_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other_file = folder.path().join("other");
    fs::write(&other_file, "unrelated").expect("written");
    let run = run_seed(0, RunOptions::default());
    let refused = replay_on_files(&run.setup, &run.actions, RunOptions::default(), folder.path());
    assert!(matches!(refused, Err(FileDiskError::NotEmpty(_))), "{refused:?}");
    assert_eq!(fs::read_to_string(&other_file).expect("the file exists"), "unrelated");
    assert_eq!(fs::read_dir(folder.path()).expect("a directory").count(), 1);
}
