//! Expiry: a lease ends in silence, exactly when it was to end.

use super::rig::*;
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

#[test]
fn a_lease_ends_at_its_moment_and_the_message_comes_again_at_that_moment() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_234)));
    assert_eq!(rig.one().lease_until, START.after(Millis(1_234)));
    rig.pass(1_233);
    assert_eq!(rig.delivered(), []);
    rig.pass(1);
    let again = rig.one();
    assert_eq!((again.attempts, again.lease_until), (2, START.after(Millis(2_468))));
}

#[test]
fn an_expiry_without_an_explicit_reason_says_ack_timeout_and_counts_as_a_failure() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    rig.pass(4_000);
    let errors: Vec<_> = rig.delivered().iter().map(|d| (d.failures, d.last_error.as_str().to_owned())).collect();
    let expected = [(0, ""), (1, "ack_timeout"), (2, "ack_timeout")];
    assert_eq!(errors, expected.map(|(failures, error)| (failures, error.to_owned())));
}

#[test]
fn an_expiry_never_overwrites_an_explicit_reason() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        rig.subscribe("t", "g", "w");
        let first = rig.one();
        rig.nack(claim("t", "g", "w", &first), "db_deadlock").unwrap();
        rig.pass(2_000);
        rig.delivered();
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        rig.pass(2_000);
        let last = rig.one();
        assert_eq!((last.failures, last.last_error.as_str()), (3, "db_deadlock"));
    }
}

#[test]
fn a_nack_without_a_reason_keeps_the_last_one_and_makes_none_up() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    for (reason, shown) in [("", ""), ("why", "why"), ("", "why"), ("because", "because")] {
        let delivery = rig.one();
        rig.nack(claim("t", "g", "w", &delivery), reason).unwrap();
        let again = rig.deliveries.last().unwrap().1.clone();
        assert_eq!(again.last_error.as_str(), shown, "after {reason:?}");
    }
}

#[test]
fn a_nack_without_a_reason_leaves_a_later_expiry_free_to_say_ack_timeout() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.nack(claim("t", "g", "w", &delivery), "").unwrap();
    rig.delivered();
    rig.pass(2_000);
    assert_eq!(rig.one().last_error.as_str(), "ack_timeout");
}

#[test]
fn a_lease_that_ended_while_the_broker_was_down_has_ended_when_it_is_back() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        rig.subscribe("t", "g", "w");
        let held = rig.one();
        rig.restart_after(way, 10_000);
        let progress = rig.progress("t", "g");
        assert_eq!((progress.in_flight, progress.waiting), (0, 1));
        rig.subscribe("t", "g", "x");
        let again = rig.one();
        assert_eq!((again.attempts, again.last_error.as_str()), (2, "ack_timeout"));
        assert_eq!(rig.ack(claim("t", "g", "w", &held)), Err(driftq_core::Refusal::StaleLease));
    }
}

#[test]
fn an_expiry_gives_its_place_in_flight_to_another_message() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(0, 10_000, 0)));
    rig.produce("t", "b");
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.values(), ["a"]);
    rig.pass(2_000);
    assert_eq!(rig.values(), ["b"]);
}

#[test]
fn thousands_of_leases_that_end_together_all_come_back() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 5_000;
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic("t", 1);
    for _ in 0..3_000 {
        rig.produce("t", "v");
    }
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 5_000);
    assert_eq!(rig.delivered().len(), 3_000);
    rig.pass(2_000);
    let again = rig.delivered();
    assert_eq!(again.len(), 3_000);
    assert!(again.iter().all(|delivery| delivery.attempts == 2));
    assert!(again.iter().all(|delivery| delivery.lease_until == START.after(Millis(4_000))));
}

#[test]
fn a_lease_that_has_ended_is_not_extended_even_while_thousands_of_others_end_first() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 5_000;
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic("t", 1);
    for _ in 0..3_000 {
        rig.produce("t", "v");
    }
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 5_000);
    let last = rig.delivered().pop().expect("delivered");
    rig.now = last.lease_until;
    let ticket = rig.submit(Command::Extend { claim: claim("t", "g", "w", &last), lease: None });
    assert!((1..3_000).contains(&rig.pipeline.broker().counters().expired), "one call ends a bounded number");
    assert_eq!(rig.next_moment(), Some(rig.now), "the next go on at once");
    rig.settle();
    assert_eq!(rig.reply(ticket), Some(Err(Refusal::StaleLease)));
}
