//! Deadlines: a produce past its deadline is refused; a queued message past it is dead-lettered.

use super::test_broker::*;
use driftq_core::command::{Nack, Produce, Retry};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

fn due_in(broker: &mut TestBroker, value: &str, millis: u64) {
    let at = broker.now.after(Millis(millis));
    broker.produce_with("t", value, |request| request.envelope.deadline = deadline(at));
}

#[test]
fn deadline_past_at_produce_is_refused() {
    let mut broker = TestBroker::with_topic(1);
    let digest = broker.digest();
    let mut request = Produce::new(topic("t"), "", "v");
    for at in [Timestamp(0), Timestamp(START.0 - 1), START] {
        request.envelope.deadline = deadline(at);
        assert_eq!(broker.try_produce(request.clone()), Err(Refusal::DeadlinePassed), "{at}");
    }
    assert_eq!(broker.digest(), digest);
    request.envelope.deadline = deadline(START.after(Millis(1)));
    broker.try_produce(request).unwrap();
}

#[test]
fn deadline_passed_while_queued_dead_letters_without_a_consumer() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        due_in(&mut broker, "too late", 1_000);
        due_in(&mut broker, "in time", 1_001);
        broker.group("t", "g");
        broker.restart_after(restart, 1_000);
        assert_eq!(broker.topics(), ["dlq.t", "t"], "no consumer is needed");
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["in time"]);
        let dead_letter = broker.dead_letters("t").remove(0);
        assert_eq!(
            (dead_letter.reason, dead_letter.attempts, &*dead_letter.last_error),
            (DeadReason::DeadlineExceeded, 0, "")
        );
        assert_eq!(dead_letter.reason.as_str(), "deadline_exceeded");
        assert_eq!(dead_letter.routed_at, START.after(Millis(1_000)));
        assert_eq!(broker.progress("t", "g").lag, 1);
    }
}

#[test]
fn deadline_applies_to_every_group_separately() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    broker.group("t", "slow");
    broker.subscribe("t", "quick", "w");
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "quick", "w", &delivery)).unwrap();
    broker.advance(1_000);
    broker.subscribe("t", "slow", "w");
    assert_eq!(broker.delivered(), []);
    let dead_letters = broker.dead_letters("t");
    assert_eq!(dead_letters.iter().map(|dead_letter| dead_letter.group.as_str()).collect::<Vec<_>>(), ["slow"]);
}

#[test]
fn deadline_passed_before_nack_dead_letters() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    let consumer = broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    // Without a consumer, only the failure itself can notice the deadline.
    broker.unsubscribe(consumer);
    broker.advance(1_000);
    broker.nack(claim("t", "g", "w", &delivery), "too late").unwrap();
    let dead_letter = broker.dead_letters("t").remove(0);
    assert_eq!((dead_letter.reason, dead_letter.attempts), (DeadReason::DeadlineExceeded, 1));
    assert_eq!(&*dead_letter.last_error, "too late");
}

#[test]
fn deadline_passed_before_expiry_dead_letters() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    let consumer = broker.subscribe("t", "g", "w");
    broker.unsubscribe(consumer);
    broker.advance(2_000);
    assert_eq!(broker.delivered().len(), 1);
    let dead_letter = broker.dead_letters("t").remove(0);
    assert_eq!((dead_letter.reason, &*dead_letter.last_error), (DeadReason::DeadlineExceeded, "ack_timeout"));
}

#[test]
fn in_flight_message_past_deadline_can_be_acked() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.advance(1_500);
    broker.extend(claim("t", "g", "w", &delivery), Some(5_000)).unwrap();
    broker.advance(4_000);
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(broker.topics(), ["t"]);
}

#[test]
fn nack_delay_beyond_deadline_dead_letters_at_deadline() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    let claim = claim("t", "g", "w", &delivery);
    broker.send(Command::Nack(Nack { claim, reason: "why".into(), retry: Retry::After(Millis(3_000)) })).unwrap();
    broker.advance(999);
    assert_eq!(broker.topics(), ["t"]);
    broker.advance(1);
    assert_eq!(broker.delivered(), []);
    let dead_letter = broker.dead_letters("t").remove(0);
    assert_eq!((dead_letter.reason, &*dead_letter.last_error), (DeadReason::DeadlineExceeded, "why"));
    assert_eq!(dead_letter.routed_at, START.after(Millis(1_000)));
}

#[test]
fn released_message_past_deadline_is_not_redelivered() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.advance(1_000);
    broker.release(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(broker.delivered(), []);
    assert_eq!(broker.dead_letters("t")[0].reason, DeadReason::DeadlineExceeded);
}

#[test]
fn max_attempts_is_reason_when_deadline_also_passed() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "a", |request| {
        request.envelope.deadline = deadline(START.after(Millis(1_000)));
        request.envelope.retry_policy = Some(policy(1, 0, 0));
    });
    broker.subscribe("t", "g", "w");
    broker.advance(2_000);
    assert_eq!(broker.dead_letters("t")[0].reason, DeadReason::MaxAttempts);
}

#[test]
fn thousands_past_deadline_do_not_block_others() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    for _ in 0..3_000 {
        due_in(&mut broker, "late", 1_000);
    }
    broker.produce("t", "fine");
    broker.advance(1_000);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    assert_eq!(broker.delivered_values(), ["fine"]);
    assert_eq!(broker.partition_info("dlq.t").messages, 3_000);
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn message_released_after_its_deadline_is_dead_lettered_without_a_consumer() {
    let mut broker = TestBroker::with_topic(1);
    due_in(&mut broker, "a", 1_000);
    let consumer = broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.advance(1_500);
    broker.set_prefetch(consumer, 0);
    broker.release(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(broker.dead_letters("t")[0].reason, DeadReason::DeadlineExceeded);
    assert_eq!(broker.progress("t", "g").lag, 0);
}

#[test]
fn deadline_has_no_effect_on_a_dead_letter() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        broker.produce_with("t", "a", |request| {
            request.envelope.deadline = deadline(START.after(Millis(1_000)));
            request.envelope.retry_policy = Some(policy(1, 0, 0));
        });
        broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
        broker.group("dlq.t", "operators");
        assert_eq!((broker.stored_values("dlq.t"), broker.pipeline.has_wall_timers()), (vec!["a".to_owned()], false));
        broker.restart(restart);
        assert!(!broker.pipeline.has_wall_timers());
        broker.advance(10_000);
        assert_eq!(broker.progress("dlq.t", "operators").lag, 1);
        assert_eq!(broker.topics(), ["dlq.t", "t"]);
    }
}

#[test]
fn deadline_has_no_effect_on_a_message_produced_to_a_dead_letter_topic() {
    let mut broker = TestBroker::with_topic(1);
    broker.topic("dlq.t", 1);
    broker.group("dlq.t", "operators");
    broker.produce_with("dlq.t", "a", |request| request.envelope.deadline = deadline(START.after(Millis(1_000))));
    assert!(!broker.pipeline.has_wall_timers());
    broker.advance(10_000);
    assert_eq!((broker.progress("dlq.t", "operators").lag, broker.stored_values("dlq.t").len()), (1, 1));
}
