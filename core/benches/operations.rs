//! The core's operations under criterion: `cargo bench -p driftq-core --bench operations`.
#![allow(missing_docs)]

mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use driftq_core::pipeline::inspect;
use support::{BATCH, BenchBroker, PLAIN, Shape};

fn cycle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("produce, deliver, ack");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, shape) in [
        ("1 group x 1 partition", PLAIN),
        ("100 groups x 100 partitions", Shape { partitions: 100, groups: 100, ..PLAIN }),
        ("with an idempotency key", Shape { with_identity: true, ..PLAIN }),
    ] {
        let mut broker = BenchBroker::new(shape);
        group.bench_function(name, |bench| bench.iter(|| broker.batch()));
    }
    group.finish();
}

fn produce(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("produce");
    group.throughput(Throughput::Elements(1_000));
    group.bench_function("queued, without consumers", |bench| {
        let fresh = || BenchBroker::new(Shape { active: 0, ..PLAIN });
        bench.iter_batched_ref(fresh, |broker| broker.backlog(1_000), BatchSize::LargeInput);
    });
    group.finish();
}

fn recovery(criterion: &mut Criterion) {
    let mut broker = BenchBroker::recoverable(Shape { active: 0, ..PLAIN });
    broker.backlog(100_000);
    let mut group = criterion.benchmark_group("recovery");
    group.throughput(Throughput::Elements(100_000));
    group.sample_size(20);
    group.bench_function("100,000 messages queued", |bench| {
        bench.iter_with_large_drop(|| inspect(&mut *broker.storage, None).expect("recovers"));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = cycle, produce, recovery
}
criterion_main!(benches);
