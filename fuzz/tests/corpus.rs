//! Every target over its corpus, and over thousands of inputs made from it. No clock, no chance: the same inputs everywhere.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use driftq_fuzz::TARGETS;

/// The fewest inputs a corpus may have.
const INPUTS_MIN: usize = 5;
/// The most bytes all corpora together may have.
const BYTES_MAX: usize = 300 << 10;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs kept for a target, by name.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= INPUTS_MIN, "{} holds {} inputs", folder.display(), inputs.len());
    inputs
}

/// Numbers that are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.below(256) as u8).collect()
    }

    /// An input with a few things done to it, or one of nothing but chance.
    fn made_from(&mut self, inputs: &[(String, Vec<u8>)]) -> Vec<u8> {
        if self.below(8) == 0 {
            return self.bytes(200);
        }
        let mut bytes = inputs[self.below(inputs.len())].1.clone();
        for _ in 0..=self.below(4) {
            let (at, end) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..at, self.bytes(12))),
                2 if at < end => drop(bytes.drain(at..end)),
                3 => {
                    let other = &inputs[self.below(inputs.len())].1;
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ => {
                    let bit = self.below(8);
                    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
                }
            }
        }
        bytes
    }
}

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
