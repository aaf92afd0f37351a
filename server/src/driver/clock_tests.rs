//! The driver with an injected wall clock: it is set while the broker runs.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Waker;
use std::time::Duration;

use driftq_core::command::{CreateTopic, Extend, Peek, Produce, Subscribe, TokenClaim};
use driftq_core::log::LogId;
use driftq_core::reply::Delivery;
use driftq_core::types::{
    Caller, Claim, ConsumerId, Deadline, GroupName, Millis, Offset, OwnerName, PartitionId, Retention, Timestamp,
    TopicName,
};
use driftq_core::{OpenOptions, Refusal};
use driftq_files::VolatileStorage;
use tokio::sync::Notify;

use super::{BrokerStatus, Disk, Driver, DriverParts, NextDelivery, Sequencer};
use crate::clock::Clock;
use crate::metrics::Metrics;

const HOUR_MS: i64 = 3_600_000;

/// Longer than the driver takes to notice that the wall clock was set.
const NOTICED: Duration = Duration::from_millis(2_500);

fn topic() -> TopicName {
    TopicName::new("t").expect("a name")
}

fn with_deadline(value: &str, at: Timestamp) -> Produce {
    let mut produce = Produce::new(topic(), "", value);
    produce.envelope.deadline = Some(Deadline { at, text: "".into() });
    produce
}

/// A running driver without a log on disk, and what its wall clock is ahead of the system's.
fn start() -> (Rc<Driver>, Arc<AtomicI64>) {
    let ahead_ms = Arc::new(AtomicI64::new(0));
    let clock = Clock::shifted(&ahead_ms);
    let now = clock.now();
    let mut storage = VolatileStorage::default();
    let (pipeline, _) = OpenOptions::new().create(LogId([7; 16])).open(&mut storage, now).expect("opens");
    let status = Arc::new(BrokerStatus::default());
    let driver = Driver::new(DriverParts {
        clock,
        status: Arc::clone(&status),
        figures: Arc::default(),
        wake: Arc::new(Notify::new()),
        stream_bytes_max: usize::MAX,
        sequencer: None,
    });
    driver.start(Sequencer::new(pipeline, Disk::Volatile(storage), Metrics::new(), status));
    tokio::task::spawn_local(Rc::clone(&driver).run());
    (driver, ahead_ms)
}

async fn ask<R: driftq_core::Request>(driver: &Driver, request: R) -> Result<R::Reply, Refusal> {
    driver.ask(&Caller::TRUSTED, request).await.expect("the broker is ready")
}

async fn next(driver: &Driver, consumer: ConsumerId) -> Box<Delivery> {
    for _ in 0..500 {
        if let NextDelivery::Delivery(delivery) = driver.deliveries(consumer).poll_next(Waker::noop()) {
            return delivery;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is delivered");
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// A lease taken before the wall clock is set by `by_ms` can be extended after it.
async fn lease_survives(driver: &Driver, ahead_ms: &AtomicI64, by_ms: i64) {
    let owner = OwnerName::new("w").expect("a name");
    let group = GroupName::new("g").expect("a name");
    let stream = Subscribe::new(topic(), group.clone(), owner.clone()).lease(Millis(60_000));
    let consumer =
        driver.subscribe(&Caller::TRUSTED, stream, Millis(60_000)).await.expect("ready").expect("subscribed");
    ask(driver, Produce::new(topic(), "", "held")).await.expect("stored");
    let delivery = next(driver, consumer).await;
    ahead_ms.store(by_ms, Ordering::Relaxed);
    tokio::time::sleep(NOTICED).await;
    let claim = Claim {
        topic: topic(),
        group,
        partition: delivery.partition,
        offset: delivery.offset,
        owner,
        token: TokenClaim::Shown(delivery.token),
    };
    let extended = ask(driver, Extend { claim, lease: Some(Millis(60_000)) }).await;
    assert!(extended.is_ok_and(|until| until > delivery.lease_until), "the lease is still running");
}

#[test]
fn wall_clock_set_forward_ends_no_lease_and_passes_deadlines() {
    run(async {
        let (driver, ahead_ms) = start();
        let retention = Retention::default();
        ask(&driver, CreateTopic { name: topic(), partitions: Some(1), retention }).await.expect("created");
        let half_an_hour = driver.now().wall.after(Millis(HOUR_MS as u64 / 2));
        lease_survives(&driver, &ahead_ms, 0).await;
        ask(&driver, with_deadline("soon", half_an_hour)).await.expect("stored");
        // Nothing reads the stream, so the message returns to the queue after a second.
        tokio::time::sleep(NOTICED).await;
        ahead_ms.store(HOUR_MS, Ordering::Relaxed);
        tokio::time::sleep(NOTICED).await;
        let dead = Peek {
            topic: TopicName::new("dlq.t").expect("a name"),
            partition: PartitionId(0),
            offset: Offset(0),
            limit: 10,
        };
        let dead = ask(&driver, dead).await.expect("the deadline has passed without a command");
        assert_eq!(dead.iter().map(|message| message.body.value()).collect::<Vec<_>>(), [b"soon"]);
        assert!(driver.clock_ahead_ms().abs() <= 1_000, "the wall clock is adopted");
        assert!((driver.wall_clock().target() - HOUR_MS).abs() <= 1_000);
    });
}

#[test]
fn wall_clock_set_by_an_hour_ends_no_lease() {
    for by_ms in [HOUR_MS, -HOUR_MS] {
        run(async {
            let (driver, ahead_ms) = start();
            let retention = Retention::default();
            ask(&driver, CreateTopic { name: topic(), partitions: Some(1), retention }).await.expect("created");
            lease_survives(&driver, &ahead_ms, by_ms).await;
        });
    }
}

#[test]
fn wall_clock_set_back_is_reported_as_clock_ahead() {
    run(async {
        let (driver, ahead_ms) = start();
        let retention = Retention::default();
        ask(&driver, CreateTopic { name: topic(), partitions: Some(1), retention }).await.expect("created");
        ahead_ms.store(-2 * HOUR_MS, Ordering::Relaxed);
        let now = driver.now().wall;
        let refused = ask(&driver, with_deadline("in the past by wall time", now.after(Millis(60_000)))).await;
        assert_eq!(refused.map(drop), Err(Refusal::DeadlinePassed));
        assert!((driver.clock_ahead_ms() - 2 * HOUR_MS).abs() <= 1_000);
    });
}

#[test]
fn clocks_are_read_once_per_turn_and_again_in_the_next() {
    run(async {
        let (driver, ahead_ms) = start();
        let first = driver.turn_clock();
        ahead_ms.store(HOUR_MS, Ordering::Relaxed);
        assert_eq!(driver.turn_clock(), first, "the same turn");
        // An answered command has made the driver run.
        let retention = Retention::default();
        ask(&driver, CreateTopic { name: topic(), partitions: Some(1), retention }).await.expect("created");
        assert!(driver.turn_clock().wall.offset_from(first.wall) >= HOUR_MS, "another turn");
    });
}
