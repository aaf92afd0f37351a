//! Instructions per message, counted by callgrind: the same on a busy machine as on a quiet one.
//!
//! `cargo bench -p driftq-core --bench instructions`. Where valgrind is not installed it says so and measures nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::process::Command;

use driftq_core::types::{Millis, TopicName};
use support::{PLAIN, Shape, World};

/// Two runs of different length; their difference leaves out what does not depend on it.
const SHORT: usize = 100;
const LONG: usize = 300;

fn main() {
    let args: Vec<_> = std::env::args().collect();
    if let [_, mode, name, batches] = &args[..]
        && mode == "child"
    {
        return child(name, batches.parse().unwrap());
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: not counted, valgrind is not installed");
        return;
    }
    println!("instructions per message (produce + deliver + ack, log included), per effect (begin + finish), per step");
    for name in ["plain", "identity", "wide", "recovery", "effect", "step"] {
        let (short, long) = (count(name, SHORT), count(name, LONG));
        let messages = ((LONG - SHORT) * support::BATCH) as u64;
        println!("{name:<12} {:>8}", (long - short) / messages);
    }
}

fn child(name: &str, batches: usize) {
    let shape = match name {
        "identity" => Shape { with_identity: true, ..PLAIN },
        "wide" => Shape { partitions: 100, groups: 100, ..PLAIN },
        "recovery" => Shape { active: 0, ..PLAIN },
        _ => PLAIN,
    };
    let mut world = if name == "recovery" { World::kept(shape) } else { World::new(shape) };
    let next = TopicName::new("next").unwrap();
    if name == "step" {
        let (partitions, retention) = (Some(1), Default::default());
        world.send(driftq_core::Command::CreateTopic { name: next.clone(), partitions, retention });
    }
    for _ in 0..batches {
        match name {
            "effect" => world.effect_batch(Millis(10)),
            "step" => assert_eq!(world.step_batch(&next), support::BATCH),
            _ => {
                world.batch();
            }
        }
    }
    if name == "recovery" {
        driftq_core::pipeline::inspect(&mut *world.storage, None, &driftq_core::faults::NoFaults).unwrap();
    }
}

/// What callgrind collects for one run of this program.
fn count(name: &str, batches: usize) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["child", name, &batches.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected")).expect("callgrind tells what it collected");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
