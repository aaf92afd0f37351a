//! Backpressure: limits on unacked messages and bytes per partition, on identities and on objects.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::{CreateGroup, CreateTopic, Produce};
use driftq_core::reply::Overload;
use driftq_core::types::*;

fn limited(messages: u64, bytes: u64) -> TestBroker {
    let mut broker = TestBroker::with_limits(|limits| {
        limits.partition_messages_max = messages;
        limits.partition_bytes_max = bytes;
    });
    broker.topic("t", 2);
    broker
}

fn plain(key: &str, value: &str) -> Produce {
    to_partition("t", 0, key, value)
}

#[test]
fn partition_at_message_limit_refuses_produce() {
    for restart in RESTARTS {
        let mut broker = limited(3, 1_000);
        for _ in 0..3 {
            broker.try_produce(plain("", "v")).unwrap();
        }
        broker.restart(restart);
        let digest = broker.digest();
        assert_overloaded(&broker.try_produce(plain("", "v")), Overload::Backlog);
        assert_eq!(Overload::Backlog.code(), "overloaded");
        assert_eq!(broker.digest(), digest, "a refusal changes nothing");
        let mut other = plain("", "v");
        other.envelope.partition_override = Some(PartitionId(1));
        broker.try_produce(other).expect("the other partition has room");
    }
}

#[test]
fn partition_bytes_count_key_and_value_only() {
    let mut broker = limited(1_000, 20);
    let mut with_labels = plain("1234", "123456");
    with_labels.envelope.labels = [("label".into(), "x".repeat(100).into())].into();
    broker.try_produce(with_labels).unwrap();
    assert_eq!(broker.partition_info("t").bytes, 10);
    assert_overloaded(&broker.try_produce(plain("12345", "123456")), Overload::Backlog);
    broker.try_produce(plain("1234", "123456")).unwrap();
    assert_eq!((broker.partition_info("t").messages, broker.partition_info("t").bytes), (2, 20));
}

#[test]
fn ack_returns_bytes_of_its_own_message() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["1", "22", "4444"] {
        broker.produce("t", value);
    }
    broker.subscribe("t", "g", "w");
    let held = broker.delivered();
    assert_eq!((broker.partition_info("t").messages, broker.partition_info("t").bytes), (3, 7));
    broker.ack(claim("t", "g", "w", &held[1])).unwrap();
    assert_eq!((broker.partition_info("t").messages, broker.partition_info("t").bytes), (2, 5));
}

#[test]
fn message_larger_than_byte_limit_is_refused_as_too_large() {
    let mut broker = limited(1, 20);
    let refusal = Refusal::TooLarge { what: "key and value", len: 21, max: 20 };
    assert_eq!(broker.try_produce(plain("1", &"v".repeat(20))), Err(refusal.clone()));
    broker.try_produce(plain("", &"v".repeat(20))).unwrap();
    assert_eq!(broker.try_produce(plain("1", &"v".repeat(20))), Err(refusal), "also while the partition is full");
}

#[test]
fn spec_limits_are_two_messages_and_twenty_bytes() {
    let mut config = small_config();
    config.limits = Limits::spec();
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.produce("t", "b");
    assert_overloaded(&broker.try_produce(Produce::new(topic("t"), "", "c")), Overload::Backlog);
}

#[test]
fn message_counts_until_acked_in_every_group() {
    for restart in RESTARTS {
        let mut broker = limited(1, 1_000);
        for name in ["g", "h"] {
            broker.subscribe("t", name, "w");
        }
        broker.try_produce(plain("", "v")).unwrap();
        let held = broker.delivered();
        assert!(broker.try_produce(plain("", "v")).is_err(), "a leased message counts");
        broker.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert!(broker.try_produce(plain("", "v")).is_err(), "a message acked in one of two groups counts");
        broker.restart(restart);
        assert!(broker.try_produce(plain("", "v")).is_err());
        broker.ack(claim("t", "h", "w", &held[1])).unwrap();
        broker.try_produce(plain("", "v")).unwrap();
    }
}

#[test]
fn messages_without_any_group_all_count() {
    let mut broker = limited(2, 1_000);
    broker.try_produce(plain("", "v")).unwrap();
    broker.try_produce(plain("", "v")).unwrap();
    assert_overloaded(&broker.try_produce(plain("", "v")), Overload::Backlog);
}

#[test]
fn idle_group_blocks_partition_until_deleted() {
    let mut broker = limited(1, 1_000);
    broker.group("t", "idle");
    broker.subscribe("t", "g", "w");
    broker.try_produce(plain("", "v")).unwrap();
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert!(broker.try_produce(plain("", "v")).is_err());
    broker.delete_group("t", "idle");
    broker.try_produce(plain("", "v")).unwrap();
}

#[test]
fn delayed_and_retried_messages_count_and_dead_lettered_do_not() {
    let mut broker = limited(1, 1_000);
    let mut request = plain("", "v");
    request.delay = Some(Millis(1_000));
    request.envelope.retry_policy = Some(policy(2, 60_000, 0));
    broker.try_produce(request).unwrap();
    assert!(broker.try_produce(plain("", "v")).is_err(), "delayed");
    broker.subscribe("t", "g", "w");
    broker.advance(3_000);
    assert!(broker.try_produce(plain("", "v")).is_err(), "pending retry");
    broker.advance(62_000);
    assert_eq!(broker.delivered().len(), 2);
    assert_eq!(broker.partition_info("t").messages, 0, "dead-lettered");
    // It counts in the dead-letter topic.
    assert_overloaded(&broker.try_produce(plain("", "v")), Overload::DeadLetters);
}

#[test]
fn retained_acked_messages_count_only_after_new_group() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 1);
    broker.topic_with_retention("t", Some(1_000_000), None);
    broker.subscribe("t", "g", "w");
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(broker.stored_values("t"), ["a", "b", "c"]);
    assert_eq!(broker.partition_info("t").messages, 0);
    broker.group("t", "new");
    assert_eq!(broker.partition_info("t").messages, 3);
    assert_overloaded(&broker.try_produce(Produce::new(topic("t"), "", "d")), Overload::Backlog);
}

#[test]
fn identities_topics_groups_and_streams_over_limit_are_refused_without_eviction() {
    let mut broker = TestBroker::with_limits(|limits| {
        limits.dedupe_keys_max = 2;
        limits.topics_max = 2;
        limits.groups_max = 1;
        limits.consumers_max = 1;
    });
    broker.topic("t", 1);
    broker.topic("u", 1);
    broker.subscribe("t", "g", "w");
    let first = broker.try_produce(identified("t", "v", "1")).unwrap();
    broker.try_produce(identified("t", "v", "2")).unwrap();
    let digest = broker.digest();
    assert_eq!(broker.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::DedupeKeys)));
    let again = broker.try_produce(identified("t", "v", "1")).unwrap();
    assert_eq!((again.offset, again.duplicate), (first.offset, true));
    let create = driftq_core::Command::CreateTopic(CreateTopic {
        name: topic("x"),
        partitions: None,
        retention: driftq_core::types::Retention::default(),
    });
    assert_eq!(broker.send(create), Err(overloaded(Overload::Objects)));
    let start = driftq_core::types::GroupStart::Earliest;
    let create = driftq_core::Command::CreateGroup(CreateGroup { topic: topic("t"), group: group("h"), start });
    assert_eq!(broker.send(create), Err(overloaded(Overload::Objects)));
    let join = driftq_core::Command::Subscribe(subscribe("t", "g", "x"));
    assert_eq!(broker.send(join), Err(overloaded(Overload::Objects)));
    assert_eq!(broker.digest(), digest);
}

#[test]
fn identity_past_window_takes_no_room_before_sweep() {
    let mut broker = TestBroker::with_limits(|limits| {
        limits.dedupe_keys_max = 2;
        limits.dedupe_ttl = driftq_core::types::Millis(100);
    });
    broker.topic("t", 1);
    broker.try_produce(identified("t", "v", "1")).unwrap();
    broker.advance(99);
    broker.try_produce(identified("t", "v", "2")).unwrap();
    assert_eq!(broker.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::DedupeKeys)));
    broker.advance(1);
    assert!(!broker.try_produce(identified("t", "v", "1")).unwrap().duplicate, "its window has ended");
    assert_eq!(broker.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::DedupeKeys)));
}
