//! Trimming and retention: a message acked in every group is trimmed at once, or once its retention ends.

use super::test_broker::*;
use driftq_core::Command;
use driftq_core::command::{ChangeRetention, SeekTo};
use driftq_core::log::{FileId, Storage};
use driftq_core::types::*;

fn consume(broker: &mut TestBroker, name: &str) {
    let consumer = broker.subscribe("t", name, "w");
    for delivery in broker.delivered() {
        broker.ack(claim("t", name, "w", &delivery)).unwrap();
    }
    broker.unsubscribe(consumer);
}

#[test]
fn message_acked_in_every_group_is_trimmed_and_not_before() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        for value in ["a", "b", "c"] {
            broker.produce("t", value);
        }
        broker.group("t", "h");
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[1])).unwrap();
        assert_eq!(broker.stored_values("t"), ["a", "b", "c"]);
        broker.restart(restart);
        broker.subscribe("t", "h", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "h", "w", &held[1])).unwrap();
        broker.ack(claim("t", "h", "w", &held[0])).unwrap();
        assert_eq!(broker.stored_values("t"), ["a", "c"]);
    }
}

#[test]
fn acked_messages_are_retained_up_to_topic_age() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(10_000), None);
        broker.produce("t", "a");
        broker.advance(1_000);
        broker.produce("t", "b");
        consume(&mut broker, "g");
        broker.restart(restart);
        assert_eq!(broker.next_timeout(), Some(START.after(Millis(10_000))));
        broker.advance(8_999);
        assert_eq!(broker.stored_values("t"), ["a", "b"]);
        broker.advance(1);
        assert_eq!(broker.stored_values("t"), ["b"]);
        assert_eq!(broker.next_timeout(), Some(START.after(Millis(11_000))));
        broker.restart_after(restart, 5_000);
        assert_eq!(broker.stored_values("t"), [""; 0], "a message can age out during downtime");
    }
}

#[test]
fn unacked_messages_never_age_out() {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(1_000), Some(1));
    for value in ["aaa", "bbb"] {
        broker.produce("t", value);
    }
    broker.group("t", "slow");
    consume(&mut broker, "g");
    broker.advance(1_000_000);
    assert_eq!(broker.stored_values("t"), ["aaa", "bbb"]);
    consume(&mut broker, "slow");
    broker.advance(0);
    assert_eq!(broker.stored_values("t"), [""; 0], "acked and past its age");
}

#[test]
fn acked_messages_are_retained_up_to_topic_bytes() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", None, Some(10));
        for value in ["aaaa", "bbbb", "cccc"] {
            broker.produce("t", value);
        }
        broker.group("t", "g");
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[0])).unwrap();
        broker.ack(claim("t", "g", "w", &held[2])).unwrap();
        assert_eq!(broker.stored_values("t"), ["aaaa", "bbbb", "cccc"]);
        broker.restart(restart);
        broker.ack(claim("t", "g", "w", &held[1])).unwrap();
        assert_eq!(broker.stored_values("t"), ["bbbb", "cccc"], "the oldest is trimmed first");
        broker.advance(1_000_000_000);
        assert_eq!(broker.stored_values("t"), ["bbbb", "cccc"], "without an age limit, age does not matter");
    }
}

#[test]
fn retention_of_one_byte_keeps_a_message_of_one_byte() {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", None, Some(1));
    for value in ["a", "b"] {
        broker.produce("t", value);
        consume(&mut broker, "g");
        assert_eq!(broker.stored_values("t"), [value]);
    }
}

#[test]
fn new_group_receives_retained_messages_with_or_without_restart() {
    let delivered_to_new_group = |restart: Option<Restart>| {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(10_000), None);
        for value in ["a", "b"] {
            broker.produce("t", value);
            broker.advance(3_000);
        }
        broker.produce("t", "c");
        consume(&mut broker, "g");
        broker.advance(4_000);
        if let Some(restart) = restart {
            broker.restart(restart);
        }
        broker.subscribe("t", "new", "w");
        broker.delivered_values()
    };
    let expected = ["b", "c"];
    assert_eq!(delivered_to_new_group(None), expected);
    for restart in RESTARTS {
        assert_eq!(delivered_to_new_group(Some(restart)), expected);
    }
}

#[test]
fn replayed_message_in_flight_is_kept_past_its_age() {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(10_000), None);
    broker.produce("t", "a");
    consume(&mut broker, "g");
    broker.subscribe_with("t", "new", "w", |request| request.lease = Some(Millis(100_000)));
    let held = broker.expect_delivery();
    broker.advance(50_000);
    assert_eq!(broker.stored_values("t"), ["a"]);
    broker.ack(claim("t", "new", "w", &held)).unwrap();
    broker.run_until_idle();
    assert_eq!(broker.stored_values("t"), [""; 0]);
}

#[test]
fn thousands_aging_out_together_are_all_trimmed() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic_with_retention("t", Some(10_000), None);
    for _ in 0..3_000 {
        broker.produce("t", "v");
    }
    broker.group("t", "g");
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(broker.stored_values("t").len(), 3_000);
    broker.advance(10_000);
    assert_eq!(broker.stored_values("t").len(), 0);
}

#[test]
fn trimmed_messages_leave_disk_after_two_snapshots() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    let bulk = "x".repeat(10_000);
    for _ in 0..20 {
        broker.produce("t", &bulk);
        consume(&mut broker, "g");
    }
    let bytes = |broker: &mut TestBroker| -> u64 {
        let files = broker.storage.list().unwrap();
        files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).map(|info| info.len).sum()
    };
    let before = bytes(&mut broker);
    assert!(before >= 200_000);
    broker.snapshot();
    assert!(bytes(&mut broker) >= before, "segments stay until there are two snapshots");
    broker.produce("t", "small");
    broker.snapshot();
    assert!(bytes(&mut broker) <= 4 * broker.config.segment_bytes, "segments before the older snapshot are removed");
    assert!(bytes(&mut broker) < before);
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t"), ["small"]);
    let files = broker.storage.list().unwrap();
    let snapshots = files.iter().filter(|info| matches!(info.file, FileId::Snapshot(_))).count();
    assert_eq!(snapshots, 2);
}

#[test]
fn retained_messages_do_not_affect_priority_or_delay() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(1_000_000), Some(3));
        broker.produce("t", "old");
        consume(&mut broker, "g");
        broker.produce("t", "a");
        broker.produce_with("t", "late", |request| request.delay = Some(Millis(500)));
        broker.produce_with("t", "urgent", |request| request.envelope.priority = Priority::new(5));
        broker.restart(restart);
        assert_eq!(broker.stored_values("t").len(), 4, "as many bytes as the limit allows are retained");
        assert_eq!(broker.partition_info("t").delayed, 1);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["urgent", "a"]);
        broker.advance(500);
        assert_eq!(broker.delivered_values(), ["late"]);
    }
}

/// A broker of which one call expires only one message, when three retained ones have just aged out.
fn with_three_aged_out() -> TestBroker {
    let mut broker =
        TestBroker::with_limits(|limits| (limits.work.timers_per_call, limits.work.swept_per_record) = (1, 1));
    broker.topic_with_retention("t", Some(10_000), None);
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    consume(&mut broker, "g");
    assert_eq!(broker.stored_values("t"), ["a", "b", "c"]);
    broker.now = broker.now.after(Millis(10_000));
    broker
}

#[test]
fn messages_that_aged_out_are_gone_for_a_new_group_a_seek_and_after_a_deletion() {
    let changes: [fn(&mut TestBroker); 3] = [
        |broker| broker.group("t", "new"),
        |broker| broker.seek("t", "g", SeekTo::Earliest).unwrap(),
        |broker| broker.delete_group("t", "g"),
    ];
    for restart in RESTARTS {
        for change in changes {
            let mut broker = with_three_aged_out();
            change(&mut broker);
            assert_eq!(broker.stored_values("t"), [""; 0]);
            broker.restart(restart);
            for name in ["g", "new"] {
                broker.subscribe("t", name, "w");
            }
            assert_eq!(broker.delivered_values(), [""; 0]);
        }
    }
}

#[test]
fn lowered_limit_of_bytes_removes_only_the_oldest_messages() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", None, Some(30));
        for value in ["a", "b", "c"] {
            broker.produce("t", &value.repeat(10));
        }
        consume(&mut broker, "g");
        assert_eq!(broker.stored_values("t").len(), 3);
        let (name, age, bytes) = (topic("t"), Setting::Unchanged, Setting::Value(20));
        broker.send(Command::ChangeRetention(ChangeRetention { name, age, bytes })).unwrap();
        broker.restart(restart);
        assert_eq!(broker.stored_values("t"), ["b".repeat(10), "c".repeat(10)]);
    }
}

#[test]
fn message_beyond_the_memory_for_retained_ones_removes_only_the_oldest() {
    let memory = |broker: &TestBroker| {
        let topic = broker.pipeline.state().topic_named(&topic("t")).unwrap();
        topic.partition(PartitionId(0)).unwrap().retained_memory()
    };
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(10_000), None);
    broker.produce("t", "a");
    consume(&mut broker, "g");
    let limit = 3 * memory(&broker);

    let mut broker = TestBroker::with_limits(|limits| limits.retained_bytes_max = limit);
    broker.topic_with_retention("t", Some(10_000), None);
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    consume(&mut broker, "g");
    assert_eq!((broker.stored_values("t"), memory(&broker)), (vec!["a".into(), "b".into(), "c".into()], limit));
    broker.produce("t", "d");
    consume(&mut broker, "g");
    assert_eq!((broker.stored_values("t"), memory(&broker)), (vec!["b".into(), "c".into(), "d".into()], limit));
}

#[test]
fn long_message_replaces_more_short_ones_than_one_ack_removes() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic_with_retention("t", None, Some(1_100));
    broker.group("t", "g");
    let long = "x".repeat(1_100);
    for _ in 0..2 {
        for _ in 0..1_100 {
            broker.produce("t", "v");
        }
        broker.seek("t", "g", SeekTo::Latest).unwrap();
        assert_eq!(broker.stored_values("t"), vec!["v"; 1_100]);
        broker.produce("t", &long);
        consume(&mut broker, "g");
        assert_eq!(broker.stored_values("t"), [&*long], "the rest is removed by timers");
    }
}

#[test]
fn deleted_group_leaves_no_more_bytes_than_retained() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", None, Some(10));
        for value in ["a", "b", "c", "d"] {
            broker.produce("t", &value.repeat(10));
        }
        broker.group("t", "h");
        consume(&mut broker, "g");
        assert_eq!(broker.stored_values("t").len(), 4, "the other group has not acked them");
        broker.delete_group("t", "h");
        assert_eq!(broker.stored_values("t"), ["d".repeat(10)]);
        broker.restart(restart);
        assert_eq!(broker.stored_values("t"), ["d".repeat(10)]);
    }
}
