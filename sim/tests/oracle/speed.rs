//! The speed of the oracle alone.

use std::time::Instant;

use driftq_core::faults::NoFaults;
use driftq_sim::oracle::Oracle;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::generate::Workload;
use super::world::{OracleInput, World};

/// A new oracle, and its inputs in a world.
fn record(mut world: World<NoFaults>) -> (Oracle, Vec<OracleInput>) {
    let oracle = Oracle::new(world.limits());
    world.inputs = Some(vec![world.first()]);
    world.begin().expect("no mismatch");
    for _ in 0..world.actions {
        world.act().expect("no mismatch");
    }
    (oracle, world.inputs.take().expect("the inputs are recorded"))
}

#[allow(clippy::disallowed_methods, reason = "measures wall-clock time")]
fn measure(what: &str, recordings: &[(Oracle, Vec<OracleInput>)], rounds: usize) {
    let count = |is: fn(&OracleInput) -> bool| {
        recordings.iter().flat_map(|(_, inputs)| inputs).filter(|input| is(input)).count()
    };
    let inputs =
        count(|input| matches!(input, OracleInput::Command(..) | OracleInput::Timeout(_) | OracleInput::Boot(_)));
    let outputs = count(|input| matches!(input, OracleInput::Output(_)));
    let crashes = count(|input| matches!(input, OracleInput::Crash(_)));
    let start = Instant::now();
    for _ in 0..rounds {
        for (oracle, inputs) in recordings {
            let mut oracle = oracle.clone();
            inputs.iter().try_for_each(|input| input.feed(&mut oracle)).expect("no mismatch");
        }
    }
    let rate = (inputs * rounds) as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} inputs/s ({inputs} inputs, {outputs} outputs, {crashes} crashes)");
}

#[test]
#[ignore = "measures; run it alone and optimised"]
fn inputs_per_second() {
    let generated: Vec<_> = (0..400).map(|seed| record(World::new(seed, NoFaults).expect("no mismatch"))).collect();
    measure("generated workloads", &generated, 20);
    let crowded = |seed| {
        let (workload, limits) = Workload::crowded();
        World::of(ChaCha8Rng::seed_from_u64(seed), workload, limits, 2_000, NoFaults).expect("no mismatch")
    };
    let crowded: Vec<_> = (0..10).map(|seed| record(crowded(seed))).collect();
    measure("crowded workloads", &crowded, 20);
}
