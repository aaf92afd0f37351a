//! Prints the figures of `docs/performance.md`: throughput, scaling, memory, recovery and snapshots.
//!
//! `cargo bench -p driftq-core --bench table`
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use driftq_core::Command;
use driftq_core::command::CreateTopic;
use driftq_core::pipeline::inspect;
use driftq_core::types::{Retention, TopicName};
use support::{BATCH, BenchBroker, PLAIN, RESULT, Shape, VALUE, cpu_time};

mod support;

/// Counts live heap bytes, rounded up as by the allocator.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
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

/// The size of a glibc allocation: eight bytes more, rounded up to a multiple of sixteen.
fn rounded(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn row(name: &str, ns: f64, base: f64) {
    println!("{name:<58} {:>10.0}/s {ns:>8.0} ns {:>6.2}x", 1e9 / ns, ns / base);
}

fn throughput() {
    println!("\nproduce + deliver + ack, per delivery, synced in batches of {BATCH}");
    let base = BenchBroker::new(PLAIN).rounds(8, 100_000);
    row("one partition, one group, one consumer", base, base);
}

fn scaling() {
    println!("\nscaling (x = relative to one partition, one group, one consumer, measured just before each row)");
    let mut plain = BenchBroker::new(PLAIN);
    let mut row = |name: &str, broker: &mut BenchBroker| {
        let base = plain.cycle();
        let ns = broker.cycle();
        self::row(name, ns, base);
    };
    for (name, count) in [("backlog 1", 1), ("backlog 1,000", 1_000), ("backlog 1,000,000", 1_000_000)] {
        let mut broker = BenchBroker::new(Shape { active: 0, ..PLAIN });
        broker.backlog(count);
        // The backlog stays: the consumer receives one message for each that is produced.
        let consumer = broker.subscribe_with(0, BATCH as u32);
        broker.group_of.insert(consumer, 0);
        row(name, &mut broker);
    }
    for (name, partitions, groups) in [
        ("1 group x 1 partition", 1, 1),
        ("10 groups x 10 partitions", 10, 10),
        ("100 groups x 100 partitions", 100, 100),
        ("10,000 groups x 1 partition", 1, 10_000),
        ("10 groups x 1,000 partitions", 1_000, 10),
    ] {
        let mut broker = BenchBroker::new(Shape { partitions, groups, active: 1, ..PLAIN });
        row(&format!("{name}, one consuming"), &mut broker);
    }
    let mut broker = BenchBroker::new(Shape { partitions: 100, groups: 100, active: 100, ..PLAIN });
    row("100 groups x 100 partitions, all consuming", &mut broker);
    for (name, keys) in [("1 dedupe key", 1), ("1,000,000 dedupe keys", 1_000_000)] {
        let mut broker = BenchBroker::new(Shape { with_identity: true, ..PLAIN });
        for _ in 0..keys / BATCH {
            for _ in 0..BATCH {
                broker.produce();
            }
            broker.flush();
            broker.ack_all();
        }
        row(name, &mut broker);
    }
    for (name, consumers) in [("1 consumer", 1), ("10,000 consumers", 10_000)] {
        row(name, &mut BenchBroker::new(Shape { consumers, ..PLAIN }));
    }
    let mut broker = BenchBroker::new(PLAIN);
    broker.backlog(1_000_000);
    let leases = std::mem::take(&mut broker.deliveries).len();
    row(&format!("{leases} sleeping leases"), &mut broker);
}

fn memory() {
    println!("\nmemory, bytes of bookkeeping per queued message beyond key, value and envelope");
    let run = "run_0123456789".len() + "step_7".len() + "tenant_a".len();
    let identity = "order-0000000000000000".len();
    for (name, shape, envelope) in [
        ("key and value", PLAIN, 0),
        ("with run, step and tenant in the envelope", Shape { with_run: true, ..PLAIN }, run),
        ("with an idempotency key, remembered by the dedupe as well", Shape { with_identity: true, ..PLAIN }, identity),
    ] {
        const COUNT: usize = 200_000;
        let mut broker = BenchBroker::new(Shape { active: 0, ..shape });
        let before = LIVE.load(Relaxed);
        broker.backlog(COUNT);
        let each = (LIVE.load(Relaxed) - before) as f64 / COUNT as f64;
        let payload = broker.keys[0].len() + VALUE.len() + envelope;
        println!("{name:<58} {:>10.1}", each - payload as f64);
    }
}

fn recovery() {
    println!("\nrecovery from memory");
    let recover = |name: &str, broker: &mut BenchBroker| {
        let mut best = (Duration::MAX, 0, 0);
        for _ in 0..3 {
            let start = cpu_time();
            let (state, found) = inspect(&mut *broker.storage, None).unwrap();
            let took = cpu_time() - start;
            assert_eq!(state.topic_count(), 1);
            best = best.min((took, found.frames_read, found.bytes_read));
        }
        let (took, frames, bytes) = best;
        let seconds = took.as_secs_f64();
        println!("{name:<58} {:>10.0} records/s {:>6.0} MB/s", frames as f64 / seconds, bytes as f64 / seconds / 1e6);
    };
    let mut broker = BenchBroker::recoverable(Shape { active: 0, ..PLAIN });
    broker.backlog(1_000_000);
    recover("1,000,000 messages queued", &mut broker);
    broker.pipeline.request_snapshot();
    while broker.pipeline.snapshots().is_empty() {
        broker.flush();
    }
    let best = (0..3).map(|_| {
        let start = cpu_time();
        let (state, _) = inspect(&mut *broker.storage, None).unwrap();
        let restored = cpu_time() - start;
        let start = cpu_time();
        state.check().unwrap();
        (restored, cpu_time() - start)
    });
    let (restored, checked) = best.min().unwrap();
    let (each, part) = (restored.as_nanos() / 1_000_000, 100.0 * checked.as_secs_f64() / restored.as_secs_f64());
    println!("{:<58} {each:>10} ns each, {part:.1} % of it the check", "the same from a snapshot");
    let mut broker = BenchBroker::recoverable(PLAIN);
    broker.rounds(1, 500_000);
    recover("500,000 messages produced, delivered, acked", &mut broker);
}

fn snapshot_pause() {
    println!("\nduration of single calls during a snapshot of 1,000,000 messages, in us");
    println!("{:<58} {:>10} {:>10} {:>10}", "", "99 %", "99.9 %", "longest");
    let mut broker = BenchBroker::new(Shape { active: 0, ..PLAIN });
    broker.backlog(1_000_000);
    let consumer = broker.subscribe_with(0, BATCH as u32);
    broker.group_of.insert(consumer, 0);
    let plain = broker.calls(700);
    let wanted = broker.pipeline.snapshots().len() + 1;
    broker.pipeline.request_snapshot();
    let (mut during, mut batches) = (Vec::new(), 0);
    while broker.pipeline.snapshots().len() < wanted {
        during.extend(broker.calls(1));
        batches += 1;
    }
    call_row("without a snapshot", plain);
    call_row(&format!("during a snapshot, over {batches} batches"), during);
}

/// The percentiles and the maximum of many calls, in microseconds.
fn call_row(name: &str, mut calls: Vec<Duration>) {
    calls.sort_unstable();
    let at = |part: f64| calls[((calls.len() - 1) as f64 * part) as usize].as_micros();
    println!("{name:<58} {:>10} {:>10} {:>10}", at(0.99), at(0.999), at(1.0));
}

const MILLION: usize = 1_000_000;

fn effects() {
    println!("\neffects: begin, finish and expiry, synced in batches of {BATCH}");
    let mut empty = BenchBroker::new(PLAIN);
    let base = empty.effect_rounds(6, 60_000);
    row("on an empty store", base, base);
    let before = LIVE.load(Relaxed);
    let mut broker = BenchBroker::new(PLAIN);
    let broker_itself = LIVE.load(Relaxed) - before;
    broker.begun(MILLION);
    let grants = broker.grants.capacity() * size_of_val(&broker.grants[0]);
    let begun = LIVE.load(Relaxed) - before - broker_itself - grants;
    let base = empty.effect_rounds(3, 60_000);
    let kept = std::mem::take(&mut broker.grants);
    let ns = broker.effect_rounds(6, 60_000);
    row("with 1,000,000 in progress", ns, base);
    broker.grants = kept;
    broker.finish_all();
    let finished = LIVE.load(Relaxed) - before - broker_itself;
    let base = empty.effect_rounds(3, 60_000);
    let ns = broker.effect_rounds(6, 60_000);
    row("with 1,000,000 finished", ns, base);

    println!("\neffects: bytes each at 1,000,000, beyond key and result");
    let key = "order-0000000000000000".len();
    let each = |bytes: usize| bytes as f64 / MILLION as f64;
    println!("{:<58} {:>10.1}", "in progress", each(begun) - key as f64);
    println!("{:<58} {:>10.1}", "finished", each(finished) - (key + RESULT.len()) as f64);

    println!("\nduration of single calls during a snapshot of 1,000,000 effects, in us");
    println!("{:<58} {:>10} {:>10} {:>10}", "", "99 %", "99.9 %", "longest");
    call_row("without a snapshot", broker.effect_calls(700));
    let wanted = broker.pipeline.snapshots().len() + 1;
    broker.pipeline.request_snapshot();
    let (mut during, mut batches) = (Vec::new(), 0);
    while broker.pipeline.snapshots().len() < wanted {
        during.extend(broker.effect_calls(1));
        batches += 1;
    }
    call_row(&format!("during a snapshot, over {batches} batches"), during);
}

fn steps() {
    println!("\nproduce + deliver + complete with two messages of 100 bytes, per step");
    let mut broker = BenchBroker::new(PLAIN);
    let base = broker.rounds(4, 60_000);
    let next = TopicName::new("next").unwrap();
    broker.send(Command::CreateTopic(CreateTopic {
        name: next.clone(),
        partitions: Some(1),
        retention: Retention::default(),
    }));
    let mut best = f64::MAX;
    for _ in 0..4 {
        let (mut done, start) = (0, cpu_time());
        while done < 60_000 {
            done += broker.step_batch(&next);
        }
        best = best.min((cpu_time() - start).as_nanos() as f64 / done as f64);
    }
    row("against produce + deliver + ack", best, base);
}

fn effect_recovery() {
    println!("\nrecovery of effects from memory");
    let mut broker = BenchBroker::recoverable(PLAIN);
    broker.begun(MILLION / 2);
    broker.finish_all();
    let took = (0..3).map(|_| {
        let start = cpu_time();
        let (state, found) = inspect(&mut *broker.storage, None).unwrap();
        assert_eq!(state.store().len(), MILLION / 2);
        (cpu_time() - start, found.frames_read)
    });
    let (took, frames) = took.min().unwrap();
    let name = "500,000 begun and finished";
    println!("{name:<58} {:>10.0} records/s", frames as f64 / took.as_secs_f64());
    broker.pipeline.request_snapshot();
    while broker.pipeline.snapshots().is_empty() {
        broker.flush();
    }
    let took = (0..3).map(|_| {
        let start = cpu_time();
        let (state, _) = inspect(&mut *broker.storage, None).unwrap();
        assert_eq!(state.store().len(), MILLION / 2);
        cpu_time() - start
    });
    let each = took.min().unwrap().as_nanos() / (MILLION as u128 / 2);
    println!("{:<58} {each:>10} ns each", "the same from a snapshot");
}

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|arg| arg == name);
    if runs("throughput") {
        throughput();
    }
    if runs("scaling") {
        scaling();
    }
    if runs("memory") {
        memory();
    }
    if runs("recovery") {
        recovery();
    }
    if runs("snapshot") {
        snapshot_pause();
    }
    if runs("effects") {
        effects();
    }
    if runs("steps") {
        steps();
    }
    if runs("effect-recovery") {
        effect_recovery();
    }
}
