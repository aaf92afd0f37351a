//! Instructions per message, counted by callgrind: independent of the load of the machine.
//!
//! `cargo bench -p driftq-core --bench instructions`. Prints a line and measures nothing if valgrind is not installed.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::process::Command;

use driftq_core::command::CreateTopic;
use driftq_core::types::{Millis, Retention, TopicName};
use support::{BenchBroker, PLAIN, Shape};

/// Two runs of different length; their difference excludes the cost of the setup.
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
    for name in ["plain", "retained", "identity", "wide", "recovery", "effect", "step"] {
        let (short, long) = (count(name, SHORT), count(name, LONG));
        let messages = ((LONG - SHORT) * support::BATCH) as u64;
        println!("{name:<12} {:>8}", (long - short) / messages);
    }
}

fn child(name: &str, batches: usize) {
    let shape = match name {
        // Full after the setup: each acked message removes an older one.
        "retained" => Shape { retention: Retention { age: Some(Millis(86_400_000)), bytes: Some(100_000) }, ..PLAIN },
        "identity" => Shape { with_identity: true, ..PLAIN },
        "wide" => Shape { partitions: 100, groups: 100, ..PLAIN },
        "recovery" => Shape { active: 0, ..PLAIN },
        _ => PLAIN,
    };
    let mut broker = if name == "recovery" { BenchBroker::recoverable(shape) } else { BenchBroker::new(shape) };
    let next = TopicName::new("next").unwrap();
    if name == "step" {
        let (partitions, retention) = (Some(1), Retention::NOTHING);
        broker.send(driftq_core::Command::CreateTopic(CreateTopic { name: next.clone(), partitions, retention }));
    }
    for _ in 0..batches {
        match name {
            "effect" => broker.effect_batch(Millis(10)),
            "step" => assert_eq!(broker.step_batch(&next), support::BATCH),
            _ => {
                broker.batch();
            }
        }
    }
    if name == "recovery" {
        driftq_core::pipeline::inspect(&mut *broker.storage, None).unwrap();
    }
}

/// The number of instructions that callgrind counts for one run of this program.
fn count(name: &str, batches: usize) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["child", name, &batches.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected")).expect("callgrind prints a count");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
