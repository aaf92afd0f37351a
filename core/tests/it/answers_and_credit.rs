//! Adaptive credit, and which of a stream's unanswered deliveries an expiry blames.

use super::test_broker::*;
use driftq_core::Command;
use driftq_core::command::{Complete, Produce};
use driftq_core::faults::NoFaults;
use driftq_core::reply::Delivery;
use driftq_core::types::*;

fn broker() -> TestBroker {
    let mut config = small_config();
    config.limits.adaptive_credit = true;
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker
}

fn of(delivery: &Delivery) -> driftq_core::command::Claim {
    claim("t", "g", "w", delivery)
}

/// Fails for good with its first failure.
fn once(request: &mut Produce) {
    request.envelope.retry_policy = Some(policy(1, 60_000, 60_000));
}

/// Comes back an hour after a failure.
fn slowly(request: &mut Produce) {
    request.envelope.retry_policy = Some(policy(9, 3_600_000, 3_600_000));
}

fn dead(broker: &mut TestBroker) -> Vec<String> {
    match broker.topics().contains(&"dlq.t".to_owned()) {
        true => broker.stored_values("dlq.t"),
        false => Vec::new(),
    }
}

/// Two deliveries of a stream expire, and `answer` is its answer to the first. Returns whether the next expiry of the
/// second is blamed on it.
fn second_is_blamed_after(answer: impl FnOnce(&mut TestBroker, &Delivery)) -> bool {
    let mut broker = broker();
    broker.produce_with("t", "first", slowly);
    broker.produce_with("t", "second", once);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
    let first = broker.delivered().remove(0);
    broker.advance(1_000);
    assert_eq!(dead(&mut broker), [""; 0], "an expiry behind the oldest delivery is not blamed on its message");
    answer(&mut broker, &first);
    broker.advance(60_000);
    assert_eq!(broker.delivered_values().last().map(String::as_str), Some("second"));
    broker.advance(1_000);
    !dead(&mut broker).is_empty()
}

#[test]
fn stream_that_answers_late_is_blamed_for_its_next_silence() {
    assert!(!second_is_blamed_after(|_, _| {}), "the stream hangs on its first delivery");
    assert!(second_is_blamed_after(|broker, first| broker.release(of(first)).unwrap()));
    assert!(second_is_blamed_after(|broker, first| broker.nack(of(first), "").unwrap()));
    assert!(second_is_blamed_after(|broker, first| broker.nack(of(first), "a reason").unwrap()));
    assert!(second_is_blamed_after(|broker, first| broker.ack(of(first)).unwrap()));
}

#[test]
fn extension_is_an_answer_of_its_stream() {
    for extends_again in [false, true] {
        let mut broker = broker();
        broker.produce_with("t", "first", slowly);
        broker.produce_with("t", "second", once);
        broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
        let second = broker.delivered().remove(1);
        broker.extend(of(&second), Some(1_500)).unwrap();
        broker.advance(1_000);
        if extends_again {
            broker.extend(of(&second), Some(500)).unwrap();
        }
        broker.advance(500);
        assert_eq!(!dead(&mut broker).is_empty(), extends_again);
    }
}

/// A stream whose three deliveries have expired: its credit is one.
fn reduced(prefetch: u32) -> (TestBroker, Vec<Delivery>) {
    let mut broker = broker();
    for value in ["a", "b", "c"] {
        broker.produce_with("t", value, slowly);
    }
    broker.subscribe_with("t", "g", "w", |request| (request.prefetch, request.lease) = (prefetch, Some(Millis(1_000))));
    let held = broker.delivered();
    broker.advance(1_000);
    assert_eq!((held.len(), broker.delivered()), (3, vec![]));
    (broker, held)
}

fn produce_many(broker: &mut TestBroker, count: usize) -> usize {
    for _ in 0..count {
        broker.produce("t", "v");
    }
    broker.delivered().len()
}

#[test]
fn late_acks_raise_a_reduced_credit() {
    let (mut broker, held) = reduced(10);
    for delivery in &held[..2] {
        broker.ack(of(delivery)).unwrap();
    }
    assert_eq!(produce_many(&mut broker, 9), 3, "one, and one more for each ack");
}

#[test]
fn completed_step_raises_a_reduced_credit_and_a_failed_one_does_not() {
    for (failed, then) in [(None, 2), (Some("no".into()), 1)] {
        let (mut broker, _) = reduced(10);
        for _ in 0..9 {
            broker.produce("t", "v");
        }
        let delivery = broker.expect_delivery();
        let step = Complete { claim: of(&delivery), result: None, produce: Vec::new(), failed };
        broker.send(Command::Complete(Box::new(step))).unwrap();
        assert_eq!(broker.delivered().len(), then);
    }
}

#[test]
fn nack_at_the_last_attempt_does_not_reduce_credit_as_an_expiry_does() {
    let mut broker = broker();
    broker.produce_with("t", "poison", |request| request.envelope.retry_policy = Some(policy(2, 0, 0)));
    broker.subscribe_with("t", "g", "w", |request| (request.prefetch, request.lease) = (10, Some(Millis(1_000))));
    broker.expect_delivery();
    broker.advance(500);
    for _ in 0..10 {
        broker.produce("t", "v");
        let delivery = broker.expect_delivery();
        broker.ack(of(&delivery)).unwrap();
    }
    broker.advance(500);
    // Ten acks within the last lease: half of that is the credit.
    let again = broker.expect_delivery();
    broker.extend(of(&again), Some(100_000)).unwrap();
    broker.advance(2_000);
    broker.nack(of(&again), "no").unwrap();
    assert_eq!(dead(&mut broker), ["poison"]);
    assert_eq!(produce_many(&mut broker, 9), 5);
}

#[test]
fn leases_of_owners_from_before_a_restart_use_no_credit_of_new_streams() {
    for restart in RESTARTS {
        let mut broker = broker();
        for owner_name in ["a", "b", "c", "d"] {
            broker.produce("t", owner_name);
            let consumer = broker.subscribe_with("t", "g", owner_name, |request| request.prefetch = 1);
            broker.unsubscribe(consumer);
        }
        assert_eq!(broker.delivered().len(), 4);
        broker.restart(restart);
        broker.subscribe_with("t", "g", "new", |request| (request.prefetch, request.lease) = (1, Some(Millis(60_000))));
        assert_eq!(broker.delivered(), []);
        broker.advance(2_000);
        assert_eq!(broker.delivered().len(), 1, "all four leases have expired");
        assert_eq!(broker.progress("t", "g").in_flight, 1);
    }
}
