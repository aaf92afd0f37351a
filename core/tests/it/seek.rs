//! Seek: sets the progress of a group and fences its leases.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::SeekTo;
use driftq_core::types::*;

/// A topic with retention and messages `0` to `4`, a second apart, all acked by `g`.
fn replayable() -> TestBroker {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(1_000_000), None);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(500_000)));
    for value in 0..5 {
        broker.produce("t", &value.to_string());
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        broker.advance(1_000);
    }
    broker
}

#[test]
fn seek_replays_stored_messages_from_target() {
    for (to, expected) in [
        (SeekTo::Earliest, vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Latest, vec![]),
        (SeekTo::Offset(Offset(0)), vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Offset(Offset(3)), vec!["3", "4"]),
        (SeekTo::Offset(Offset(99)), vec![]),
        (SeekTo::Time(START), vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Time(START.after(Millis(1_001))), vec!["2", "3", "4"]),
        (SeekTo::Time(START.after(Millis(2_000))), vec!["2", "3", "4"]),
        (SeekTo::Time(Timestamp::MAX), vec![]),
    ] {
        for restart in RESTARTS {
            let mut broker = replayable();
            broker.pause("t", "g");
            broker.seek("t", "g", to).unwrap();
            assert_eq!(broker.progress("t", "g").lag, expected.len() as u64);
            broker.restart(restart);
            broker.resume("t", "g");
            broker.subscribe("t", "g", "w");
            assert_eq!(broker.delivered_values(), expected, "{to:?}");
        }
    }
}

#[test]
fn seek_serves_waiting_streams() {
    let mut broker = replayable();
    broker.seek("t", "g", SeekTo::Offset(Offset(4))).unwrap();
    assert_eq!(broker.delivered_values(), ["4"]);
}

#[test]
fn seek_sets_new_floor_and_clears_acks_above_it() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(1_000_000), None);
        for value in ["a", "b", "c", "d"] {
            broker.produce("t", value);
        }
        let consumer = broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[2])).unwrap();
        broker.unsubscribe(consumer);
        broker.seek("t", "g", SeekTo::Offset(Offset(1))).unwrap();
        let progress = broker.progress("t", "g");
        assert_eq!((progress.floor, progress.lag), (Some(Offset(0)), 3));
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["b", "c", "d"]);
    }
}

#[test]
fn seek_fences_leases_of_its_group_only() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        for name in ["g", "h"] {
            broker.subscribe("t", name, "w");
        }
        let held = broker.delivered();
        broker.seek("t", "g", SeekTo::Earliest).unwrap();
        let again = broker.expect_delivery();
        assert_eq!((again.attempts, again.failures), (1, 0), "attempts and failures start over");
        assert!(again.token > held[0].token);
        broker.restart(restart);
        let digest = broker.digest();
        assert_eq!(broker.ack(claim("t", "g", "w", &held[0])), Err(Refusal::StaleLease));
        assert_eq!(broker.extend(claim("t", "g", "w", &held[0]), None), Err(Refusal::StaleLease));
        assert_eq!(broker.digest(), digest);
        broker.ack(claim("t", "h", "w", &held[1])).unwrap();
        broker.ack(claim("t", "g", "w", &again)).unwrap();
    }
}

#[test]
fn claim_after_seek_past_message_succeeds_as_late() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.group("t", "keeps-it");
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let held = broker.expect_delivery();
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    let digest = broker.digest();
    broker.ack(claim("t", "g", "w", &held)).unwrap();
    broker.nack(claim("t", "g", "w", &held), "late").unwrap();
    assert_eq!(broker.digest(), digest);
    broker.advance(60_000);
    assert_eq!(broker.delivered(), []);
    assert_eq!(broker.progress("t", "g").in_flight, 0);
}

#[test]
fn seek_cancels_pending_retries() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.nack_with_delay(claim("t", "g", "w", &delivery), 60_000).unwrap();
    broker.seek("t", "g", SeekTo::Earliest).unwrap();
    let again = broker.expect_delivery();
    assert_eq!((again.attempts, again.last_error.as_str()), (1, ""));
    broker.advance(1_000);
    assert_eq!(broker.delivered(), []);
}

#[test]
fn seek_keeps_message_delay() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce_with("t", "late", |request| request.delay = Some(Millis(5_000)));
    broker.subscribe("t", "g", "w");
    broker.seek("t", "g", SeekTo::Earliest).unwrap();
    broker.advance(4_999);
    assert_eq!(broker.delivered(), []);
    broker.advance(1);
    assert_eq!(broker.delivered_values(), ["late"]);
}

#[test]
fn replay_keeps_priorities_and_drops_delays() {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(1_000_000), None);
    broker.produce_with("t", "was late", |request| request.delay = Some(Millis(1_000)));
    broker.produce("t", "plain");
    broker.produce_with("t", "urgent", |request| request.envelope.priority = Priority::new(2));
    broker.subscribe("t", "g", "w");
    broker.advance(1_000);
    for delivery in broker.delivered() {
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(broker.progress("t", "g").lag, 0);
    broker.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(broker.delivered_values(), ["urgent", "was late", "plain"]);
}

#[test]
fn trimmed_messages_are_not_replayed() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        for value in ["a", "b", "c"] {
            broker.produce("t", value);
        }
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[2])).unwrap();
        broker.produce("t", "d");
        broker.delivered();
        broker.seek("t", "g", SeekTo::Offset(Offset(1))).unwrap();
        let held = broker.delivered();
        assert_eq!(
            held.iter().map(value).collect::<Vec<_>>(),
            ["b", "d"],
            "a trimmed message behind the target is skipped"
        );
        assert_eq!(broker.progress("t", "g").lag, 2);
        broker.ack(claim("t", "g", "w", &held[1])).unwrap();
        broker.seek("t", "g", SeekTo::Earliest).unwrap();
        assert_eq!(broker.delivered_values(), ["b"]);
        assert_eq!(broker.progress("t", "g").floor, Some(Offset(0)));
        broker.restart(restart);
        assert_eq!(broker.progress("t", "g").lag, 1);
    }
}

#[test]
fn seek_of_only_group_past_messages_trims_them() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    for partition in [0, 1, 0, 1] {
        broker.produce_with("t", "v", |request| request.envelope.partition_override = Some(PartitionId(partition)));
    }
    broker.group("t", "g");
    broker.seek("t", "g", SeekTo::Offset(Offset(2))).unwrap();
    assert_eq!(broker.stored_messages("t", 0).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [2]);
    assert_eq!(broker.stored_messages("t", 1).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [3]);
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(broker.stored_messages("t", 0).len() + broker.stored_messages("t", 1).len(), 0);
}

#[test]
fn seek_of_one_group_moves_no_other() {
    let mut broker = replayable();
    broker.group("t", "h");
    let before = broker.progress("t", "h");
    broker.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(broker.progress("t", "h"), before);
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(broker.progress("t", "h"), before);
    assert_eq!(broker.seek("t", "unknown", SeekTo::Latest), Err(Refusal::UnknownGroup(group("unknown"))));
}

#[test]
fn delayed_message_before_seek_target_is_not_delivered() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "late", |request| request.delay = Some(Millis(1_000)));
    broker.group("t", "other");
    broker.subscribe("t", "g", "w");
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    broker.advance(1_000);
    assert_eq!(broker.delivered(), []);
    broker.produce("t", "next");
    assert_eq!(broker.delivered_values(), ["next"]);
    broker.subscribe("t", "other", "w");
    assert_eq!(broker.delivered_values(), ["late", "next"]);
}
