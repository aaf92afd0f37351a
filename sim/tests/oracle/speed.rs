//! How fast the oracle alone is.

use std::time::Instant;

use driftq_core::faults::NoFaults;
use driftq_sim::oracle::Oracle;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::generate::Habits;
use super::world::{Told, World};

/// What the oracle is told in a world, and a fresh oracle to tell it.
fn tape(mut world: World<NoFaults>) -> (Oracle, Vec<Told>) {
    let fresh = Oracle::new(world.limits());
    world.tape = Some(vec![world.first()]);
    world.begin().expect("agrees");
    for _ in 0..world.steps {
        world.step().expect("agrees");
    }
    (fresh, world.tape.take().expect("was put in"))
}

#[allow(clippy::disallowed_methods, reason = "this is about real time")]
fn measure(what: &str, tapes: &[(Oracle, Vec<Told>)], rounds: usize) {
    let count = |is: fn(&Told) -> bool| tapes.iter().flat_map(|(_, told)| told).filter(|told| is(told)).count();
    let inputs = count(|told| matches!(told, Told::Command(..) | Told::Timeout(_) | Told::Boot(_)));
    let outputs = count(|told| matches!(told, Told::TapEvent(_)));
    let crashes = count(|told| matches!(told, Told::Crash(_)));
    let start = Instant::now();
    for _ in 0..rounds {
        for (fresh, told) in tapes {
            let mut oracle = fresh.clone();
            told.iter().try_for_each(|told| told.tell(&mut oracle)).expect("agrees");
        }
    }
    let rate = (inputs * rounds) as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} inputs/s ({inputs} inputs, {outputs} outputs, {crashes} crashes)");
}

#[test]
#[ignore = "measures; run it alone and optimised"]
fn inputs_per_second() {
    let drawn: Vec<_> = (0..400).map(|seed| tape(World::new(seed, NoFaults).expect("starts"))).collect();
    measure("drawn worlds", &drawn, 20);
    let crowded = |seed| {
        let (habits, limits) = Habits::crowded();
        World::of(ChaCha8Rng::seed_from_u64(seed), habits, limits, 2_000, NoFaults).expect("starts")
    };
    let crowded: Vec<_> = (0..10).map(|seed| tape(crowded(seed))).collect();
    measure("crowded worlds", &crowded, 20);
}
