//! Timers: the broker says exactly when it wants to be called, and touches nothing before.

use super::rig::*;
use super::tape::Tape;
use driftq_core::Command;
use driftq_core::command::SeekTo;
use driftq_core::types::*;

fn after(millis: u64) -> Option<Timestamp> {
    Some(START.after(Millis(millis)))
}

#[test]
fn an_idle_broker_wants_never_to_be_called() {
    let mut rig = Rig::new();
    assert_eq!(rig.next_moment(), None);
    rig.topic("t", 3);
    rig.produce("t", "a");
    rig.group("t", "g");
    assert_eq!(rig.next_moment(), None, "a message nobody waits for is no reason");
    rig.pass(100);
    assert_eq!(rig.pipeline.poll_timeout(), None, "nor is a log that has marked its end");
}

#[test]
fn the_next_moment_is_the_end_of_the_first_lease_as_it_stands() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.produce("t", "b");
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(700)));
    let held = rig.delivered();
    assert_eq!(rig.next_moment(), after(700));
    rig.extend(claim("t", "g", "w", &held[0]), Some(5_000)).unwrap();
    assert_eq!(rig.next_moment(), after(700), "the other one's");
    rig.extend(claim("t", "g", "w", &held[1]), Some(300)).unwrap();
    assert_eq!(rig.next_moment(), after(300), "an extension may also shorten");
    rig.ack(claim("t", "g", "w", &held[1])).unwrap();
    assert_eq!(rig.next_moment(), after(5_000));
    rig.ack(claim("t", "g", "w", &held[0])).unwrap();
    assert_eq!(rig.next_moment(), None);
}

#[test]
fn the_next_moment_is_the_first_retry_delay_or_end_of_a_window() {
    let mut rig = Rig::with_limits(|limits| limits.dedupe_ttl = Millis(60_000));
    rig.topic("t", 1);
    rig.try_produce(identified("t", "a", "identity")).unwrap();
    assert_eq!(rig.next_moment(), after(61_000), "windows are swept a second late, many at once");
    rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(9_000)));
    assert_eq!(rig.next_moment(), after(9_000));
    let consumer = rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.nack_with_delay(claim("t", "g", "w", &delivery), 4_000).unwrap();
    assert_eq!(rig.next_moment(), after(4_000));
    rig.unsubscribe(consumer);
    rig.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(rig.next_moment(), after(61_000), "what is done no longer comes due");
    rig.pass(61_000);
    assert_eq!(rig.next_moment(), None);
}

#[test]
fn every_way_of_ending_takes_its_moment_along() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for value in ["a", "b", "c"] {
        rig.produce("t", value);
    }
    rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(9_000)));
    rig.subscribe("t", "g", "w");
    let held = rig.delivered();
    rig.nack_with_delay(claim("t", "g", "w", &held[0]), 500).unwrap();
    assert_eq!(rig.next_moment(), after(500));
    rig.delete_group("t", "g");
    assert_eq!(rig.next_moment(), after(9_000), "the group's leases and retries are gone, the topic's delay is not");
    rig.delete_topic("t");
    assert_eq!(rig.next_moment(), None);
}

#[test]
fn the_moments_are_the_same_after_a_restart() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.topic_retaining("kept", Some(700), None);
        rig.subscribe("kept", "g", "w");
        rig.produce("kept", "a");
        let delivery = rig.one();
        rig.ack(claim("kept", "g", "w", &delivery)).unwrap();
        for value in ["a", "b"] {
            rig.produce("t", value);
        }
        rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(900)));
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.nack_with_delay(claim("t", "g", "w", &held[0]), 500).unwrap();
        rig.restart(way);
        let mut moments = Vec::new();
        while let Some(next) = rig.next_moment() {
            moments.push(next.since(START).0);
            rig.pass(next.since(rig.now).0);
        }
        assert_eq!(moments, [500, 700, 900, 2_000]);
    }
}

#[test]
fn calling_too_early_or_twice_does_nothing() {
    let mut tape = Tape::new();
    tape.topic("t", 1);
    tape.produce_with("t", "a", |_| {});
    tape.subscribe("t", "g", "w");
    let (records, digest) = (tape.records.0.len(), tape.broker.state().digest());
    for _ in 0..3 {
        tape.wait(0);
        tape.wait(600);
    }
    assert_eq!((tape.records.0.len(), tape.broker.state().digest()), (records, digest));
    tape.wait(200);
    assert_eq!(tape.records.0.len(), records + 2, "then the lease ends and begins anew");
    tape.wait(0);
    assert_eq!(tape.records.0.len(), records + 2);
}

#[test]
fn a_broker_that_has_more_to_do_than_one_call_takes_on_says_so() {
    let mut tape = Tape::with_limits(Limits { in_flight_max: 10_000, ..Limits::production() });
    tape.topic("t", 1);
    for _ in 0..3_000 {
        tape.produce_with("t", "v", |_| {});
    }
    let mut asked = subscribe("t", "g", "w");
    asked.prefetch = 10_000;
    tape.send(Command::Subscribe(asked)).unwrap();
    let mut calls = 1;
    while tape.broker.poll_timeout().is_some_and(|at| at <= tape.now) {
        tape.wait(0);
        calls += 1;
    }
    assert!((3..10).contains(&calls), "{calls} calls");
    assert_eq!(tape.broker.poll_timeout(), after(2_000));
}

#[test]
fn hundreds_of_thousands_of_sleeping_leases_are_not_touched() {
    const SLEEPERS: u64 = 200_000;
    let mut tape = Tape::with_limits(Limits { in_flight_max: u32::MAX, ..Limits::production() });
    tape.topic("t", 1);
    let mut asked = subscribe("t", "g", "w");
    (asked.prefetch, asked.lease) = (u32::MAX, Some(Millis(1_000_000)));
    tape.send(Command::Subscribe(asked)).unwrap();
    for _ in 0..SLEEPERS {
        tape.produce_with("t", "v", |_| {});
        tape.outputs.clear();
    }
    let mut early = subscribe("t", "early", "w");
    (early.prefetch, early.lease) = (1, Some(Millis(10)));
    tape.send(Command::Subscribe(early)).unwrap();
    let records = tape.records.0.len();
    for _ in 0..1_000 {
        assert!(tape.broker.poll_timeout().is_some());
        tape.wait(10);
    }
    assert_eq!(tape.records.0.len(), records + 2_000, "one lease ends and begins a thousand times, and no other does");
    let topic = tape.broker.state().topic_named(&topic("t")).unwrap();
    let progress = topic.group_named(&group("g")).unwrap().progress(PartitionId(0)).unwrap();
    assert_eq!(u64::from(progress.in_flight()), SLEEPERS);
    assert!(progress.entries().all(|(_, entry)| entry.attempts == 1));
}
