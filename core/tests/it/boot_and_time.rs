//! Boot numbers and the clock: every start has its own boot number, and recorded time never goes back.

use super::test_broker::*;
use driftq_core::OpenOptions;
use driftq_core::log::{LogId, MemoryStorage};
use driftq_core::types::*;

#[test]
fn boot_number_rises_with_every_start() {
    let mut broker = TestBroker::new();
    for (boot, restart) in (1..).zip([Restart::Crash, Restart::Snapshot, Restart::Crash, Restart::Snapshot]) {
        assert_eq!(broker.pipeline.state().boot(), Boot(boot));
        broker.restart(restart);
    }
}

#[test]
fn boot_never_synced_issues_no_token() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
    let first = broker.expect_delivery();
    let mut storage = broker.storage.crash();
    // This start never syncs its boot record, so the next start may use the same boot number.
    let opened = driftq_core::OpenOptions::new()
        .config(broker.config.clone())
        .faults(driftq_core::faults::NoFaults)
        .open(&mut storage, broker.now.after(Millis(5_000)));
    let (mut pipeline, _) = opened.expect("the log opens");
    pipeline.handle(broker.now.after(Millis(5_000)), driftq_core::Command::Subscribe(subscribe("t", "g", "x")));
    assert_eq!(pipeline.poll_output(), None, "no output before the boot record is synced");
    let mut broker = TestBroker::open(
        storage.crash(),
        broker.config.clone(),
        broker.now.after(Millis(5_000)),
        driftq_core::faults::NoFaults,
    );
    broker.subscribe("t", "g", "w");
    let second = broker.expect_delivery();
    assert_eq!(second.token.boot, first.token.boot.next());
    assert_eq!(second.attempts, 2);
}

#[test]
fn time_earlier_than_latest_counts_as_latest() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.advance(10_000);
    let latest = broker.now;
    broker.now = START;
    broker.produce("t", "a");
    assert_eq!(broker.stored_messages("t", 0)[0].produced_at, latest);
    assert_eq!(broker.pipeline.broker().now(), latest);
}

#[test]
fn start_with_clock_set_back_continues_from_last_recorded_time() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.advance(10_000);
        broker.produce("t", "a");
        let recorded = broker.now;
        if restart == Restart::Snapshot {
            broker.snapshot();
        }
        broker.now = START;
        broker.crash();
        assert_eq!(broker.pipeline.broker().now(), recorded);
        broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        assert_eq!((delivery.produced_at, delivery.lease_until), (recorded, recorded.after(Millis(2_000))));
    }
}

#[test]
fn start_with_clock_ahead_adopts_it() {
    let mut broker = TestBroker::new();
    broker.restart_after(Restart::Crash, 86_400_000);
    assert_eq!(broker.pipeline.broker().now(), START.after(Millis(86_400_000)));
    assert_eq!(broker.pipeline.state().clock(), START.after(Millis(86_400_000)), "the recorded clock moves ahead");
}

#[test]
fn same_commands_at_same_times_write_same_bytes() {
    let run = || {
        let mut broker = TestBroker::new();
        broker.topic("t", 3);
        for round in 0..20_u64 {
            broker.produce_with("t", &round.to_string(), |request| {
                request.set_key(round.to_le_bytes());
                request.envelope.retry_policy = Some(policy(3, 100, 0));
            });
            broker.subscribe("t", "g", "w");
            broker.advance(700);
        }
        broker.snapshot();
        let files = driftq_core::log::Storage::list(&mut broker.storage).unwrap();
        let bytes: Vec<_> =
            files.iter().map(|info| (info.file, broker.storage.bytes(info.file).unwrap().to_vec())).collect();
        (broker.digest(), bytes)
    };
    let (first, second) = (run(), run());
    assert!(first.1.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 5_000);
    assert_eq!(first, second);
}

#[test]
fn log_opened_with_limits_has_them() {
    let (mut storage, limits) = (MemoryStorage::new(), Limits { partitions_max: 3, ..limits() });
    let options = OpenOptions::new().create(LogId([7; 16])).limits(limits.clone());
    let (pipeline, _) = options.open(&mut storage, START).unwrap();
    assert_eq!(*pipeline.broker().limits(), limits);
}
