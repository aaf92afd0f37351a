//! Timers: `poll_timeout` is exact, and nothing is visited before it is due.

use super::recording_broker::RecordingBroker;
use super::test_broker::*;
use driftq_core::command::SeekTo;
use driftq_core::faults::NoFaults;
use driftq_core::types::*;
use driftq_core::{Command, PipelineConfig};

fn after(millis: u64) -> Option<Timestamp> {
    Some(START.after(Millis(millis)))
}

#[test]
fn idle_broker_has_no_timeout() {
    let mut broker = TestBroker::new();
    assert_eq!(broker.next_timeout(), None);
    broker.topic("t", 3);
    broker.produce("t", "a");
    broker.group("t", "g");
    assert_eq!(broker.next_timeout(), None, "a message without a consumer sets no timer");
    broker.advance(100);
    assert_eq!(broker.pipeline.poll_timeout(), None, "a log with a synced mark at its end sets no timer");
}

#[test]
fn idle_log_is_marked_however_full_its_segment_is() {
    let (segment_bytes, reserve_bytes) = (8 << 10, 0);
    let config = PipelineConfig { segment_bytes, segment_bytes_min: segment_bytes, reserve_bytes, ..small_config() };
    for len in 3_500..4_000 {
        let mut broker = TestBroker::with(config.clone(), NoFaults);
        broker.topic("t", 1);
        broker.produce("t", &"x".repeat(len));
        let recorded = broker.pipeline.synced();
        assert_eq!(recorded.lsn, broker.pipeline.broker().appended());
        broker.advance(100);
        let marked = broker.pipeline.synced();
        let follows = marked.frame > recorded.frame && marked.lsn == recorded.lsn;
        assert!(follows, "{len}: neither a mark nor a footer follows the last record");
    }
}

#[test]
fn next_timeout_is_earliest_lease_end() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.produce("t", "b");
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(700)));
    let held = broker.delivered();
    assert_eq!(broker.next_timeout(), after(700));
    broker.extend(claim("t", "g", "w", &held[0]), Some(5_000)).unwrap();
    assert_eq!(broker.next_timeout(), after(700), "the lease of the other message");
    broker.extend(claim("t", "g", "w", &held[1]), Some(300)).unwrap();
    assert_eq!(broker.next_timeout(), after(300), "an extend may also shorten the lease");
    broker.ack(claim("t", "g", "w", &held[1])).unwrap();
    assert_eq!(broker.next_timeout(), after(5_000));
    broker.ack(claim("t", "g", "w", &held[0])).unwrap();
    assert_eq!(broker.next_timeout(), None);
}

#[test]
fn next_timeout_is_earliest_retry_delay_or_window_end() {
    let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(60_000));
    broker.topic("t", 1);
    broker.try_produce(identified("t", "a", "identity")).unwrap();
    assert_eq!(broker.next_timeout(), after(61_000), "windows are swept up to a second late, many at once");
    broker.produce_with("t", "late", |request| request.delay = Some(Millis(9_000)));
    assert_eq!(broker.next_timeout(), after(9_000));
    let consumer = broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.nack_with_delay(claim("t", "g", "w", &delivery), 4_000).unwrap();
    assert_eq!(broker.next_timeout(), after(4_000));
    broker.unsubscribe(consumer);
    broker.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(broker.next_timeout(), after(61_000), "an acked message has no timer");
    broker.advance(61_000);
    assert_eq!(broker.next_timeout(), None);
}

#[test]
fn deleted_group_or_topic_drops_its_timers() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    broker.produce_with("t", "late", |request| request.delay = Some(Millis(9_000)));
    broker.subscribe("t", "g", "w");
    let held = broker.delivered();
    broker.nack_with_delay(claim("t", "g", "w", &held[0]), 500).unwrap();
    assert_eq!(broker.next_timeout(), after(500));
    broker.delete_group("t", "g");
    assert_eq!(
        broker.next_timeout(),
        after(9_000),
        "leases and retries of the group are gone, the delay of the topic is not"
    );
    broker.delete_topic("t");
    assert_eq!(broker.next_timeout(), None);
}

#[test]
fn timeouts_are_same_after_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.topic_with_retention("kept", Some(700), None);
        broker.subscribe("kept", "g", "w");
        broker.produce("kept", "a");
        let delivery = broker.expect_delivery();
        broker.ack(claim("kept", "g", "w", &delivery)).unwrap();
        for value in ["a", "b"] {
            broker.produce("t", value);
        }
        broker.produce_with("t", "late", |request| request.delay = Some(Millis(900)));
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.nack_with_delay(claim("t", "g", "w", &held[0]), 500).unwrap();
        broker.restart(restart);
        let mut timeouts = Vec::new();
        while let Some(next) = broker.next_timeout() {
            timeouts.push(next.since(START).0);
            broker.advance(next.since(broker.now).0);
        }
        assert_eq!(timeouts, [500, 700, 900, 2_000]);
    }
}

#[test]
fn handle_timeout_early_or_repeated_does_nothing() {
    let mut recording = RecordingBroker::new();
    recording.topic("t", 1);
    recording.produce_with("t", "a", |_| {});
    recording.subscribe("t", "g", "w");
    let (records, digest) = (recording.records.0.len(), recording.broker.state().digest());
    for _ in 0..3 {
        recording.wait(0);
        recording.wait(600);
    }
    assert_eq!((recording.records.0.len(), recording.broker.state().digest()), (records, digest));
    recording.wait(200);
    assert_eq!(recording.records.0.len(), records + 2, "the lease expires and is granted again");
    recording.wait(0);
    assert_eq!(recording.records.0.len(), records + 2);
}

#[test]
fn broker_with_more_work_than_one_call_is_due_at_once() {
    let mut recording = RecordingBroker::with_limits(Limits { in_flight_max: 10_000, ..limits() });
    recording.topic("t", 1);
    for _ in 0..3_000 {
        recording.produce_with("t", "v", |_| {});
    }
    let mut request = subscribe("t", "g", "w");
    request.prefetch = 10_000;
    recording.send(Command::Subscribe(request)).unwrap();
    let mut calls = 1;
    while recording.broker.poll_timeout().is_some_and(|at| at <= recording.now) {
        recording.wait(0);
        calls += 1;
    }
    assert!((3..10).contains(&calls), "{calls} calls");
    assert_eq!(recording.broker.poll_timeout(), after(2_000));
}

#[test]
fn sleeping_leases_are_not_visited_by_timer() {
    const SLEEPING: u64 = 200_000;
    let mut recording = RecordingBroker::with_limits(Limits { in_flight_max: u32::MAX, ..limits() });
    recording.topic("t", 1);
    let mut request = subscribe("t", "g", "w");
    (request.prefetch, request.lease) = (u32::MAX, Some(Millis(1_000_000)));
    recording.send(Command::Subscribe(request)).unwrap();
    for _ in 0..SLEEPING {
        recording.produce_with("t", "v", |_| {});
        recording.outputs.clear();
    }
    let mut early = subscribe("t", "early", "w");
    (early.prefetch, early.lease) = (1, Some(Millis(10)));
    recording.send(Command::Subscribe(early)).unwrap();
    let records = recording.records.0.len();
    for _ in 0..1_000 {
        assert!(recording.broker.poll_timeout().is_some());
        recording.wait(10);
    }
    assert_eq!(
        recording.records.0.len(),
        records + 2_000,
        "one lease expires and is granted a thousand times, and no other does"
    );
    let topic = recording.broker.state().topic_named(&topic("t")).unwrap();
    let progress = topic.group_named(&group("g")).unwrap().progress(PartitionId(0)).unwrap();
    assert_eq!(u64::from(progress.in_flight()), SLEEPING);
    assert!(progress.deliveries().all(|(_, delivery)| delivery.attempts == 1));
}

#[test]
fn next_timeout_is_earliest_end_of_an_effects_lease() {
    let mut broker = TestBroker::new();
    for (key, lease) in [("long", 5_000), ("short", 700)] {
        granted(broker.begin_with(&effect(key), |request| request.lease = Some(Millis(lease))));
    }
    assert_eq!(broker.next_timeout(), after(700));
    broker.advance(700);
    assert_eq!(broker.next_timeout(), after(5_000));
}

#[test]
fn effect_that_has_ended_leaves_no_timer_of_its_lease() {
    type End = fn(&mut TestBroker, LeaseToken);
    let ends: [End; 3] = [
        |broker, token| broker.finish(&effect("k"), token, success("1")).unwrap(),
        |broker, token| broker.finish(&effect("k"), token, retryable_failure("no")).unwrap(),
        |broker, _| broker.forget(&effect("k")).unwrap(),
    ];
    for end in ends {
        let mut broker = TestBroker::new();
        let token = granted(broker.begin(&effect("k")));
        assert_eq!(broker.next_timeout(), after(2_000));
        end(&mut broker, token);
        assert_ne!(broker.next_timeout(), after(2_000));
    }
}

#[test]
fn acked_message_leaves_no_timer_of_its_effects_lease() {
    type End = fn(&mut TestBroker, &driftq_core::reply::Delivery);
    let ends: [End; 3] = [
        |broker, delivery| broker.ack(claim("t", "g", "w", delivery)).unwrap(),
        |broker, delivery| drop(broker.complete(claim("t", "g", "w", delivery), Some("1"), Vec::new()).unwrap()),
        |broker, _| {
            let (topic, group, owner) = (topic("t"), group("g"), owner("w"));
            let (partition, offset) = (PartitionId(0), Offset(0));
            let request = driftq_core::command::AckCumulative { topic, group, partition, offset, owner };
            broker.send(Command::AckCumulative(request)).unwrap();
        },
    ];
    for end in ends {
        let mut broker = TestBroker::with_topic(1);
        broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
        broker.try_produce(identified("t", "v", "k")).unwrap();
        let delivery = broker.expect_delivery();
        granted(broker.begin_for(&consume_effect("t", "g", "k"), &delivery));
        broker.extend(claim("t", "g", "w", &delivery), Some(5_000)).unwrap();
        assert_eq!(broker.next_timeout(), after(2_000), "the lease of the effect");
        end(&mut broker, &delivery);
        assert!(broker.next_timeout().is_none_or(|at| at > START.after(Millis(60_000))), "windows alone are left");
        assert_eq!(broker.pipeline.broker().index_contents().grants, []);
    }
}

#[test]
fn memory_of_what_was_deleted_is_freed_without_another_command() {
    let mut broker = TestBroker::with_limits(|limits| limits.work.parts_freed_per_call = 10);
    broker.topic("other", 1);
    broker.produce_with("other", "late", |request| request.delay = Some(Millis(9_000)));
    let waiting = |broker: &TestBroker| broker.pipeline.broker().index_contents().deleted;
    for delete in [
        |broker: &mut TestBroker| broker.delete_topic("t"),
        |broker: &mut TestBroker| broker.delete_group("t", "g"),
        |broker: &mut TestBroker| broker.seek("t", "g", SeekTo::Latest).unwrap(),
        |broker: &mut TestBroker| {
            broker.send(Command::Purge(driftq_core::command::Purge { topic: topic("t") })).unwrap();
        },
    ] {
        broker.topic("t", 1);
        broker.subscribe("t", "g", "w");
        for number in 0..50 {
            broker.try_produce(identified("t", "v", &number.to_string())).unwrap();
        }
        delete(&mut broker);
        assert_eq!(waiting(&broker), 0, "all of it is freed when the broker asks for no more calls");
        assert!(broker.next_timeout().is_none_or(|at| at > broker.now));
        if broker.topics().contains(&"t".to_owned()) {
            broker.delete_topic("t");
        }
        broker.delivered();
    }
}
