//! What is read from the log before an output needs it.

use std::collections::BTreeMap;

use driftq_core::command::{Command, SeekTo};
use driftq_core::faults::NoFaults;
use driftq_core::types::*;
use driftq_core::{JobClass, PipelineConfig};

use super::test_broker::*;

const MESSAGES: usize = 200;
const MEMORY_BYTES: u64 = 1 << 20;

/// Values of about 10 KB, each different.
fn text(number: usize) -> String {
    format!("{number:05}").repeat(2_000)
}

fn config(read_ahead_bytes: u64) -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 512 << 10,
        snapshot_every_segments: 2,
        memory_bytes: MEMORY_BYTES,
        read_ahead_bytes,
        ..small_config()
    }
}

/// A broker with messages, none of them in memory.
fn cold(read_ahead_bytes: u64) -> TestBroker {
    let mut broker = TestBroker::with(config(read_ahead_bytes), NoFaults);
    broker.topic("t", 1);
    for number in 0..MESSAGES {
        broker.produce("t", &text(number));
    }
    broker.crash();
    assert_eq!(broker.pipeline.broker().payload_bytes(), 0);
    broker
}

/// Takes and acks all messages of a group one by one, and returns how many of them were not in memory when they were
/// delivered, and the bytes that were read.
fn drain(broker: &mut TestBroker, group_name: &str) -> (u64, u64) {
    let (before, (_, read_before)) = (broker.pipeline.broker().payload_lookups(), broker.pipeline.reads());
    let consumer = broker.subscribe_with("t", group_name, "w", |request| request.prefetch = 1);
    for number in 0..MESSAGES {
        let delivery = broker.expect_delivery();
        assert_eq!(value(&delivery), text(number), "every byte is as it was produced");
        assert!(broker.pipeline.broker().payload_bytes() <= MEMORY_BYTES);
        broker.ack(claim("t", group_name, "w", &delivery)).unwrap();
    }
    broker.unsubscribe(consumer);
    (broker.pipeline.broker().payload_lookups().1 - before.1, broker.pipeline.reads().1 - read_before)
}

#[test]
fn group_that_drains_the_log_waits_for_the_first_payload_only() {
    let mut broker = cold(200_000);
    let (misses, read) = drain(&mut broker, "g");
    let stored = (MESSAGES * text(0).len()) as u64;
    assert_eq!(misses, 1, "the others were read before they were needed");
    assert!((stored..stored + stored / 10).contains(&read), "{read} of {stored} bytes were read: each of them once");
    let (without, _) = drain(&mut cold(0), "g");
    assert!(without > 5, "{without} payloads were waited for without it");
}

#[test]
fn group_that_goes_back_is_followed_there() {
    let mut broker = cold(200_000);
    broker.group("t", "other");
    drain(&mut broker, "g");
    broker.seek("t", "g", SeekTo::Offset(Offset(0))).unwrap();
    let (misses, _) = drain(&mut broker, "g");
    assert_eq!(misses, 1, "the others were read before they were needed");
}

#[test]
fn group_that_keeps_up_causes_no_reads() {
    let mut broker = TestBroker::with(config(200_000), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for number in 0..MESSAGES {
        broker.produce("t", &text(number));
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(broker.pipeline.reads(), (0, 0));
}

#[test]
fn groups_that_drain_at_the_same_time_share_what_is_read_ahead() {
    let mut broker = cold(u64::MAX);
    let groups = ["a", "b", "c", "d"];
    groups.iter().for_each(|name| broker.group("t", name));
    let mut consumers = BTreeMap::new();
    for name in groups {
        consumers.insert(broker.subscribe_with("t", name, "w", |request| request.prefetch = 1), name);
    }
    let mut taken = 0;
    while taken < groups.len() * MESSAGES {
        let delivered = std::mem::take(&mut broker.deliveries);
        assert!(!delivered.is_empty(), "{taken} were delivered");
        for (consumer, delivery) in delivered {
            assert_eq!(value(&delivery).len(), text(0).len());
            assert!(broker.pipeline.broker().payload_bytes() <= MEMORY_BYTES);
            broker.ack(claim("t", consumers[&consumer], "w", &delivery)).unwrap();
            taken += 1;
        }
    }
    let (_, misses) = broker.pipeline.broker().payload_lookups();
    assert!(misses < taken as u64 / 20, "{misses} of {taken} payloads were waited for");
}

#[test]
fn read_ends_where_the_synced_records_end() {
    let mut broker = TestBroker::with(PipelineConfig { memory_bytes: 0, ..small_config() }, NoFaults);
    broker.topic("t", 1);
    broker.produce("t", &text(1));
    broker.pipeline.handle(broker.now, Command::Subscribe(subscribe("t", "g", "w")));
    while let Some(job) = broker.pipeline.poll_job(JobClass::Log) {
        job.perform(&mut broker.storage).unwrap();
        broker.pipeline.complete(broker.now, job, Ok(()));
    }
    let read = broker.pipeline.poll_read().expect("the payload is not in memory");
    let bytes = read.perform(&mut broker.storage).unwrap();
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    assert_eq!((bytes.len(), zeros < 100), (read.len(), true), "{zeros} bytes behind the last record");
}
