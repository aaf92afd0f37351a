//! A check that was never seen to fail is not trusted: every bug that can be planted in the broker is found, and soon.

use std::cell::OnceCell;

use driftq_core::faults::Fault;
use driftq_sim::run::{RunOptions, run_seed};

/// So many seeds it takes at most.
const SEEDS: u64 = 60;

fn is_broken(seed: u64, fault: Option<Fault>) -> bool {
    run_seed(seed, RunOptions { fault, ..RunOptions::default() }).violation.is_some()
}

#[test]
fn every_planted_bug_is_found_within_a_few_seeds() {
    let sound: Vec<OnceCell<bool>> = (0..SEEDS).map(|_| OnceCell::new()).collect();
    let is_sound = |seed: u64| *sound[seed as usize].get_or_init(|| !is_broken(seed, None));
    let mut survivors = Vec::new();
    for fault in Fault::ALL.iter().copied() {
        let found = (0..SEEDS).find(|seed| is_broken(*seed, Some(fault)) && is_sound(*seed));
        match found {
            Some(seed) => println!("{} is found by seed {seed}", fault.name()),
            None => survivors.push(fault.name()),
        }
    }
    assert!(survivors.is_empty(), "not found within {SEEDS} seeds: {survivors:?}");
}
