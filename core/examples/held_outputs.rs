//! Prints what a produce with its delivery costs: while no output waits for bytes, and while a peek waits for a read.
//!
//! `cargo run --release -p driftq-core --example held_outputs`
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::{Duration, Instant};

use driftq_core::command::{CreateTopic, Peek, Produce, Subscribe};
use driftq_core::faults::NoFaults;
use driftq_core::record::Record;
use driftq_core::state::State;
use driftq_core::types::{GroupName, Limits, Lsn, Offset, OwnerName, PartitionId, Retention, Timestamp, TopicName};
use driftq_core::{Broker, Command, LogRefusal, LogSink, SpaceClass};

/// Messages that are produced and delivered between two syncs.
const BATCH: usize = 2_000;
const ROUNDS: u32 = 20;
const NOW: Timestamp = Timestamp(1_000_000);

#[derive(Default)]
struct Counted(u64);

impl LogSink for Counted {
    fn append(&mut self, _: &Record, _: SpaceClass) -> Result<Lsn, LogRefusal> {
        self.0 += 1;
        Ok(Lsn(self.0))
    }
}

struct Bench {
    broker: Broker,
    log: Counted,
}

impl Bench {
    /// A broker whose cache holds nothing that is synced, and a consumer that never acks.
    fn new() -> Self {
        let (mut log, mut limits) = (Counted::default(), Limits::default());
        (limits.in_flight_max, limits.adaptive_credit) = (u32::MAX, false);
        let mut broker = Broker::new(State::default(), Lsn(0), limits, 0, NoFaults);
        broker.boot(NOW, &mut log).unwrap();
        let mut bench = Self { broker, log };
        for name in ["cold", "hot"] {
            let (partitions, retention) = (Some(1), Retention::default());
            bench.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions, retention }));
        }
        let (group, owner) = (GroupName::new("g").unwrap(), OwnerName::new("w").unwrap());
        bench.send(Command::Subscribe(Subscribe { prefetch: u32::MAX, ..Subscribe::new(topic("hot"), group, owner) }));
        bench.produce("cold");
        bench.sync();
        bench
    }

    fn send(&mut self, command: Command) {
        self.broker.handle(NOW, command, &mut self.log);
    }

    fn produce(&mut self, name: &str) {
        self.send(Command::Produce(Box::new(Produce::new(topic(name), "", "a value of some bytes"))));
    }

    fn sync(&mut self) -> usize {
        self.broker.on_durable(NOW, Lsn(self.log.0));
        std::iter::from_fn(|| self.broker.poll_output()).count()
    }

    /// The time of a produce and its delivery.
    fn round(&mut self) -> Duration {
        let begun = Instant::now();
        for _ in 0..BATCH {
            self.produce("hot");
        }
        assert!(self.sync() >= 2 * BATCH, "every produce has a reply and a delivery");
        begun.elapsed() / BATCH as u32
    }

    fn best(&mut self) -> Duration {
        (0..ROUNDS).map(|_| self.round()).min().unwrap()
    }
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn main() {
    let mut bench = Bench::new();
    println!("no output waits: {:?} per produce and delivery", bench.best());
    bench.send(Command::Peek(Peek { topic: topic("cold"), partition: PartitionId(0), offset: Offset(0), limit: 1 }));
    println!("a peek waits:    {:?} per produce and delivery, {BATCH} between two syncs", bench.best());
    assert_eq!(bench.broker.wanted_payloads().count(), 1);
}
