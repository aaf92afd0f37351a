//! Runs every target over its corpus and over thousands of inputs derived from it. The inputs are the same on every
//! machine and in every run.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod inputs;
mod planted;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use driftq_fuzz::{TARGETS, Target};

use self::inputs::{InputGenerator, corpus, corpus_folder};

/// The most bytes of all corpora together.
const CORPORA_BYTES_MAX: usize = 300 << 10;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Runs a target on one input. If it panics, saves the input and names it.
fn run_input(name: &str, target: Target, input_name: &str, data: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        let saved = std::env::temp_dir().join(format!("driftq-fuzz-{name}-finding"));
        // The message contains the input too, so a failure to save it loses nothing.
        let _ = fs::write(&saved, data);
        panic!("{name} panics on {input_name}, saved as {}: {data:02x?}", saved.display());
    }
}

/// Runs a target on its corpus and on `derived_count` inputs derived from it.
fn run_target(name: &str, derived_count: usize) {
    let (_, target) = TARGETS.iter().find(|(target_name, _)| *target_name == name).unwrap();
    let corpus = corpus(name);
    for (file_name, data) in &corpus {
        run_input(name, *target, file_name, data);
    }
    let mut generator = InputGenerator::new(SEED);
    for index in 0..derived_count {
        run_input(name, *target, &format!("derived input {index}"), &generator.derive(&corpus));
    }
    println!("{name}: {} inputs in the corpus, {derived_count} derived", corpus.len());
}

#[test]
fn frame_from_any_input_round_trips() {
    run_target("frame", 8_000);
}

#[test]
fn footer_from_any_input_has_one_encoding() {
    run_target("footer", 20_000);
}

#[test]
fn segment_from_any_input_is_refused_or_consistent() {
    run_target("segment", 2_000);
}

#[test]
fn snapshot_from_any_input_is_refused_ignored_or_consistent() {
    run_target("snapshot", 2_000);
}

#[test]
fn recovery_of_any_folder_is_refused_or_consistent() {
    run_target("recovery", 2_000);
}

#[test]
fn record_from_any_input_has_one_encoding() {
    run_target("record", 40_000);
}

#[test]
fn json_body_from_any_input_is_refused_or_parsed() {
    run_target("json_bodies", 30_000);
}

#[test]
fn query_from_any_input_is_refused_or_parsed() {
    run_target("query", 30_000);
}

#[test]
fn ndjson_from_any_input_is_refused_or_parsed() {
    run_target("ndjson", 15_000);
}

#[test]
fn relocation_from_any_input_loses_nothing() {
    run_target("relocation", 500);
}

#[test]
fn commands_from_any_input_violate_no_invariant() {
    // `planted` runs as many with another seed.
    run_target("commands", 1_000);
}

#[test]
fn salvage_of_any_folder_recovers_with_reported_contents() {
    run_target("salvage", 2_000);
}

#[test]
fn targets_have_exactly_one_binary_and_one_corpus_each() {
    let targets = target_names();
    assert_eq!(file_stems(&corpus_folder()), targets);
    assert_eq!(file_stems(&corpus_folder().with_file_name("fuzz_targets")), targets);
}

#[test]
fn corpora_together_stay_within_size_limit() {
    let bytes: usize = target_names().iter().flat_map(|name| corpus(name)).map(|(_, data)| data.len()).sum();
    assert!(bytes <= CORPORA_BYTES_MAX, "the corpora have {bytes} bytes, at most {CORPORA_BYTES_MAX}");
}

fn target_names() -> Vec<String> {
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    names
}

/// The sorted names of the files in a folder, without extensions.
fn file_stems(folder: &Path) -> Vec<String> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut stems: Vec<_> = paths.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    stems.sort();
    stems
}
