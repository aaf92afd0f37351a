//! Expiry: a lease that is neither acked, nacked nor extended expires exactly at its end.

use super::test_broker::*;
use driftq_core::command::Extend;
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

#[test]
fn lease_expires_and_message_is_redelivered_at_exact_time() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_234)));
    assert_eq!(broker.expect_delivery().lease_until, START.after(Millis(1_234)));
    broker.advance(1_233);
    assert_eq!(broker.delivered(), []);
    broker.advance(1);
    let again = broker.expect_delivery();
    assert_eq!((again.attempts, again.lease_until), (2, START.after(Millis(2_468))));
}

#[test]
fn expiry_without_reason_reports_ack_timeout_and_counts_as_failure() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    broker.advance(4_000);
    let errors: Vec<_> = broker.delivered().iter().map(|d| (d.failures, d.last_error.as_str().to_owned())).collect();
    let expected = [(0, ""), (1, "ack_timeout"), (2, "ack_timeout")];
    assert_eq!(errors, expected.map(|(failures, error)| (failures, error.to_owned())));
}

#[test]
fn expiry_never_overwrites_explicit_reason() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.subscribe("t", "g", "w");
        let first = broker.expect_delivery();
        broker.nack(claim("t", "g", "w", &first), "db_deadlock").unwrap();
        broker.advance(2_000);
        broker.delivered();
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        broker.advance(2_000);
        let last = broker.expect_delivery();
        assert_eq!((last.failures, last.last_error.as_str()), (3, "db_deadlock"));
    }
}

#[test]
fn nack_without_reason_keeps_last_reason() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    for (reason, shown) in [("", ""), ("why", "why"), ("", "why"), ("because", "because")] {
        let delivery = broker.expect_delivery();
        broker.nack(claim("t", "g", "w", &delivery), reason).unwrap();
        let again = broker.deliveries.last().unwrap().1.clone();
        assert_eq!(again.last_error.as_str(), shown, "after {reason:?}");
    }
}

#[test]
fn nack_without_reason_lets_later_expiry_report_ack_timeout() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &delivery), "").unwrap();
    broker.delivered();
    broker.advance(2_000);
    assert_eq!(broker.expect_delivery().last_error.as_str(), "ack_timeout");
}

#[test]
fn lease_ended_during_downtime_is_expired_after_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.subscribe("t", "g", "w");
        let held = broker.expect_delivery();
        broker.restart_after(restart, 10_000);
        let progress = broker.progress("t", "g");
        assert_eq!((progress.in_flight, progress.waiting), (0, 1));
        broker.subscribe("t", "g", "x");
        let again = broker.expect_delivery();
        assert_eq!((again.attempts, again.last_error.as_str()), (2, "ack_timeout"));
        assert_eq!(broker.ack(claim("t", "g", "w", &held)), Err(driftq_core::Refusal::StaleLease));
    }
}

#[test]
fn expiry_frees_in_flight_slot_for_another_message() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(0, 10_000, 0)));
    broker.produce("t", "b");
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["a"]);
    broker.advance(2_000);
    assert_eq!(broker.delivered_values(), ["b"]);
}

#[test]
fn thousands_of_leases_ending_together_are_all_redelivered() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 5_000;
    config.limits.adaptive_credit = false;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    for _ in 0..3_000 {
        broker.produce("t", "v");
    }
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 5_000);
    assert_eq!(broker.delivered().len(), 3_000);
    broker.advance(2_000);
    let again = broker.delivered();
    assert_eq!(again.len(), 3_000);
    assert!(again.iter().all(|delivery| delivery.attempts == 2));
    assert!(again.iter().all(|delivery| delivery.lease_until == START.after(Millis(4_000))));
}

#[test]
fn extend_after_lease_end_is_refused_while_thousands_expire_first() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 5_000;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    for _ in 0..3_000 {
        broker.produce("t", "v");
    }
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 5_000);
    let last = broker.delivered().pop().expect("delivered");
    broker.now = last.lease_until;
    let ticket = broker.submit(Command::Extend(Extend { claim: claim("t", "g", "w", &last), lease: None }));
    assert!(
        (1..3_000).contains(&broker.pipeline.broker().counters().expired),
        "one call expires a bounded number of leases"
    );
    assert_eq!(broker.next_timeout(), Some(broker.now), "the rest is due at once");
    broker.run_until_idle();
    assert_eq!(broker.reply(ticket), Some(Err(Refusal::StaleLease)));
}
