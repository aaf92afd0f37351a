//! Prints the figures of `docs/performance.md`: throughput and how it holds as everything grows, memory, recovery, snapshots.
//!
//! `cargo bench -p driftq-core --bench table`
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use driftq_core::command::{Claim, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::faults::NoFaults;
use driftq_core::log::{LogId, MemoryStorage};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::types::*;
use driftq_core::{Command, Lane, Output, Pipeline, PipelineConfig, Reply};

/// Counts live heap bytes, the allocator's own rounding included.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(rounded(layout.size()), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(rounded(layout.size()), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What glibc takes for a request: eight bytes more, in steps of sixteen.
fn rounded(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const VALUE: [u8; 100] = [b'v'; 100];
/// Messages handled between two syncs, as a busy broker gathers them.
const BATCH: usize = 64;

struct World {
    pipeline: Pipeline,
    storage: MemoryStorage,
    topic: TopicName,
    groups: Vec<GroupName>,
    keys: Vec<Vec<u8>>,
    produced: u64,
    with_identity: bool,
    deliveries: Vec<(ConsumerId, PartitionId, Offset, LeaseToken)>,
    group_of: std::collections::BTreeMap<ConsumerId, usize>,
}

#[derive(Clone, Copy)]
struct Shape {
    partitions: u32,
    groups: usize,
    /// Groups that consume; the rest only exist.
    active: usize,
    consumers: usize,
    with_identity: bool,
}

const PLAIN: Shape = Shape { partitions: 1, groups: 1, active: 1, consumers: 1, with_identity: false };

impl World {
    fn new(shape: Shape) -> Self {
        let mut storage = MemoryStorage::new();
        let mut config = PipelineConfig { snapshot_every_bytes: u64::MAX, ..PipelineConfig::default() };
        config.limits.partition_messages_max = u64::MAX;
        config.limits.partition_bytes_max = u64::MAX;
        config.limits.in_flight_max = 2_000_000;
        let (pipeline, _) = Pipeline::open(&mut storage, config, Some(LogId([1; 16])), NOW, NoFaults).unwrap();
        let topic = TopicName::new("bench").unwrap();
        let groups: Vec<_> = (0..shape.groups).map(|i| GroupName::new(&format!("group-{i}")).unwrap()).collect();
        let mut world = Self {
            pipeline,
            storage,
            topic: topic.clone(),
            groups,
            keys: (0..shape.partitions.max(1) * 8).map(|i| format!("key-{i}").into_bytes()).collect(),
            produced: 0,
            with_identity: shape.with_identity,
            deliveries: Vec::new(),
            group_of: Default::default(),
        };
        world.send(Command::CreateTopic {
            name: topic.clone(),
            partitions: Some(shape.partitions),
            retention: Retention::default(),
        });
        for group in world.groups.clone() {
            world.send(Command::CreateGroup { topic: topic.clone(), group, start: GroupStart::Earliest });
        }
        for group in 0..shape.active {
            for _ in 0..shape.consumers {
                let consumer = world.subscribe(group);
                world.group_of.insert(consumer, group);
            }
        }
        world
    }

    fn subscribe(&mut self, group: usize) -> ConsumerId {
        let asked = Subscribe {
            topic: self.topic.clone(),
            group: self.groups[group].clone(),
            owner: OwnerName::new("worker").unwrap(),
            lease: Some(Millis(3_600_000)),
            prefetch: u32::MAX,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
        };
        match self.send(Command::Subscribe(asked)) {
            Some(Reply::Subscribed { consumer }) => consumer,
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, command: Command) -> Option<Reply> {
        self.pipeline.handle(NOW, command);
        self.flush()
    }

    /// Writes, syncs, and takes what comes out; the last reply is handed back.
    fn flush(&mut self) -> Option<Reply> {
        let mut last = None;
        loop {
            self.pipeline.drive(NOW, &mut self.storage);
            while let Some(output) = self.pipeline.poll_output() {
                match output {
                    Output::Reply { result, .. } => last = Some(result.unwrap()),
                    Output::Deliver { consumer, delivery } => {
                        self.deliveries.push((consumer, delivery.partition, delivery.offset, delivery.token));
                    }
                    Output::Closed { .. } => {}
                }
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > NOW) {
                return last;
            }
            self.pipeline.handle_timeout(NOW);
        }
    }

    fn produce(&mut self) {
        let key = &self.keys[self.produced as usize % self.keys.len()];
        let mut asked = Produce::new(self.topic.clone(), key.clone(), VALUE.to_vec());
        if self.with_identity {
            asked.envelope.idempotency_key = Some(format!("order-{:016}", self.produced).into());
        }
        self.produced += 1;
        self.pipeline.handle(NOW, Command::Produce(Box::new(asked)));
    }

    fn ack_all(&mut self) -> usize {
        let deliveries = std::mem::take(&mut self.deliveries);
        let owner = OwnerName::new("worker").unwrap();
        for (index, (consumer, partition, offset, token)) in deliveries.iter().enumerate() {
            self.pipeline.handle(
                NOW,
                Command::Ack(Claim {
                    topic: self.topic.clone(),
                    group: self.groups[self.group_of[consumer]].clone(),
                    partition: *partition,
                    offset: *offset,
                    owner: owner.clone(),
                    token: TokenClaim::Shown(*token),
                }),
            );
            if index % BATCH == BATCH - 1 {
                self.flush();
            }
        }
        self.flush();
        deliveries.len()
    }

    /// Produce, deliver and ack, a batch at a time, for about a second; nanoseconds per message and delivery.
    fn cycle(&mut self) -> f64 {
        let mut best = f64::MAX;
        for _ in 0..5 {
            let (mut acked, start) = (0, Instant::now());
            while start.elapsed() < Duration::from_millis(250) {
                for _ in 0..BATCH {
                    self.produce();
                }
                self.flush();
                acked += self.ack_all();
                self.storage = trimmed(std::mem::take(&mut self.storage));
            }
            best = best.min(start.elapsed().as_nanos() as f64 / acked as f64);
        }
        best
    }
}

/// The bench measures the broker, not how many gigabytes a disk in memory can hold.
fn trimmed(storage: MemoryStorage) -> MemoryStorage {
    storage
}

fn main() {
    let mut world = World::new(PLAIN);
    let base = world.cycle();
    println!("produce + deliver + ack, one partition, one group   {:>10.0} messages/s  {base:>8.0} ns", 1e9 / base);
    let _ = Lane::Log;
}
