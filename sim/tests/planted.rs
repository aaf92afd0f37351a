//! A check that was never seen to fail is not trusted: every planted bug is detected within a few seeds.

#[path = "../src/invariants/tests/kept_seeds.rs"]
mod kept_seeds;

use std::cell::OnceCell;

use driftq_core::faults::Fault;
use driftq_sim::run::{RunOptions, run_seed};

use self::kept_seeds::KeptSeeds;

/// The most seeds needed.
const SEEDS: u64 = 300;

fn fails(seed: u64, fault: Option<Fault>) -> bool {
    run_seed(seed, RunOptions { fault, ..RunOptions::default() }).violation.is_some()
}

#[test]
fn every_planted_bug_is_detected_within_a_few_seeds() {
    let passing: Vec<OnceCell<bool>> = (0..SEEDS).map(|_| OnceCell::new()).collect();
    let passes_without_fault = |seed: u64| *passing[seed as usize].get_or_init(|| !fails(seed, None));
    let mut kept = KeptSeeds::read("tests/planted_seeds.txt");
    let mut survivors = Vec::new();
    for fault in Fault::ALL.iter().copied() {
        let detects = |seed: &u64| fails(*seed, Some(fault)) && passes_without_fault(*seed);
        match kept.find(fault.name(), SEEDS, detects) {
            Some(seed) => println!("{} is detected by seed {seed}", fault.name()),
            None => survivors.push(fault.name()),
        }
    }
    kept.finish();
    assert!(survivors.is_empty(), "not detected within {SEEDS} seeds: {survivors:?}");
}
