//! The oracle against the real broker: generated workloads on which they agree, and planted bugs on which they do not.

mod contract;
mod generate;
mod speed;
mod world;

use std::panic::catch_unwind;

use driftq_core::faults::{Fault, Faults, NoFaults, Planted};

use self::world::World;

/// Runs the workload of a seed; the difference, if there is one.
fn run<F: Faults>(seed: u64, faults: F) -> Result<(), String> {
    let mut world = World::new(seed, faults)?;
    world.begin()?;
    for _ in 0..world.actions {
        world.act()?;
    }
    world.end()
}

fn all_agree(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(difference) = run(seed, NoFaults) {
            panic!("seed {seed}: {difference}");
        }
    }
}

/// The number of seeds needed, and the difference.
fn seeds_to_detect(fault: Fault, seeds_max: u64) -> (u64, String) {
    // A broker that contradicts itself panics.
    let run = |seed| catch_unwind(|| run(seed, Planted(fault))).unwrap_or_else(|_| Err("the broker panics".to_owned()));
    let detected = (0..seeds_max).find_map(|seed| Some((seed + 1, run(seed).err()?)));
    detected.unwrap_or_else(|| panic!("{fault:?} is not detected within {seeds_max} seeds"))
}

#[test]
fn broker_matches_the_oracle() {
    all_agree(0..1_000);
}

#[test]
#[ignore = "takes minutes"]
fn broker_matches_the_oracle_for_many_seeds() {
    let number = |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let from = number("FROM", 0);
    all_agree(from..from + number("SEEDS", 200_000));
}

#[test]
fn planted_bugs_are_detected() {
    for fault in [
        Fault::HighestAckWatermark,
        Fault::SkipTokenCheck,
        Fault::InFlightOffByOne,
        Fault::BackoffIgnored,
        Fault::ExpiryOverwritesReason,
        Fault::SourceNotFinishedOnDeadLetter,
        Fault::DelayedDeliveredEarly,
        Fault::AttemptsForgottenOnReplay,
        Fault::DedupeDroppedOnReplay,
    ] {
        let (seeds, difference) = seeds_to_detect(fault, 200);
        println!("{fault:?}, seed {seeds}: {difference}");
    }
}
