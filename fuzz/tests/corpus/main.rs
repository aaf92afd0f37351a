//! Every target over its corpus, and over thousands of inputs made from it. No clock, no chance: the same inputs everywhere.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod inputs;
mod planted;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use driftq_fuzz::TARGETS;

use self::inputs::{Numbers, corpus, inputs};

/// The most bytes all corpora together may have.
const BYTES_MAX: usize = 300 << 10;

/// Calls the target, and says which input it panicked on if it did.
fn call(name: &str, target: fn(&[u8]), which: &str, data: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        let kept = std::env::temp_dir().join(format!("driftq-fuzz-{name}-finding"));
        let _ = fs::write(&kept, data);
        panic!("{name} panics on {which}, kept as {}: {data:02x?}", kept.display());
    }
}

/// Runs one target on all its inputs and on `made` more.
fn run(name: &str, made: usize) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let inputs = inputs(name);
    for (file, data) in &inputs {
        call(name, *target, file, data);
    }
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for number in 0..made {
        call(name, *target, &format!("made input {number}"), &numbers.made_from(&inputs));
    }
    println!("{name}: {} inputs kept, {made} made", inputs.len());
}

#[test]
fn frames_are_read_as_they_are_written() {
    run("frame", 8_000);
}

#[test]
fn segments_of_anything_are_refused_or_make_sense() {
    run("segment", 2_000);
}

#[test]
fn snapshots_of_anything_are_refused_passed_over_or_make_sense() {
    run("snapshot", 2_000);
}

#[test]
fn folders_of_anything_are_refused_or_make_sense() {
    run("recovery", 2_000);
}

#[test]
fn records_have_one_spelling() {
    run("record", 40_000);
}

#[test]
fn bodies_of_anything_are_refused_or_understood() {
    run("json_bodies", 30_000);
}

#[test]
fn queries_of_anything_are_refused_or_understood() {
    run("query", 30_000);
}

#[test]
fn lines_of_anything_are_refused_or_understood() {
    run("ndjson", 15_000);
}

#[test]
fn lives_of_any_steps_keep_every_promise() {
    run("commands", 1_500);
}

#[test]
fn salvages_of_anything_open_and_keep_what_they_say() {
    run("salvage", 2_000);
}

#[test]
fn every_target_has_a_shell_and_a_corpus_and_nothing_is_left_over() {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let mut targets: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    targets.sort();
    assert_eq!(names(&corpus()), targets);
    assert_eq!(names(&corpus().parent().unwrap().join("fuzz_targets")), targets);
    let bytes: usize = targets.iter().flat_map(|name| inputs(name)).map(|(_, data)| data.len()).sum();
    assert!(bytes <= BYTES_MAX, "the corpora have {bytes} bytes");
}
