//! Deadlines: refused when past, put aside when passed while queued.

use super::rig::*;
use driftq_core::command::Produce;
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

fn due_in(rig: &mut Rig, value: &str, millis: u64) {
    let at = rig.now.after(Millis(millis));
    rig.produce_with("t", value, |asked| asked.envelope.deadline = deadline(at));
}

#[test]
fn a_deadline_past_at_produce_is_refused() {
    let mut rig = Rig::with_topic(1);
    let digest = rig.digest();
    let mut asked = Produce::new(topic("t"), "", "v");
    for at in [Timestamp(0), Timestamp(START.0 - 1), START] {
        asked.envelope.deadline = deadline(at);
        assert_eq!(rig.try_produce(asked.clone()), Err(Refusal::DeadlinePassed), "{at}");
    }
    assert_eq!(rig.digest(), digest);
    asked.envelope.deadline = deadline(START.after(Millis(1)));
    rig.try_produce(asked).unwrap();
}

#[test]
fn a_deadline_that_passed_in_the_queue_is_seen_at_dispatch() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(1);
        due_in(&mut rig, "too late", 1_000);
        due_in(&mut rig, "in time", 1_001);
        rig.group("t", "g");
        rig.restart_after(way, 1_000);
        assert_eq!(rig.topics(), ["t"], "until somebody would be handed it, it stays");
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["in time"]);
        let letter = rig.dead_letters("t").remove(0);
        assert_eq!((letter.reason, letter.attempts, &*letter.last_error), (DeadReason::DeadlineExceeded, 0, ""));
        assert_eq!(letter.reason.as_str(), "deadline_exceeded");
        assert_eq!(letter.routed_at, START.after(Millis(1_000)));
        assert_eq!(rig.progress("t", "g").lag, 1);
    }
}

#[test]
fn a_deadline_is_seen_for_every_group_by_itself() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    rig.group("t", "slow");
    rig.subscribe("t", "quick", "w");
    let delivery = rig.one();
    rig.ack(claim("t", "quick", "w", &delivery)).unwrap();
    rig.pass(1_000);
    rig.subscribe("t", "slow", "w");
    assert_eq!(rig.delivered(), []);
    let letters = rig.dead_letters("t");
    assert_eq!(letters.iter().map(|letter| letter.group.as_str()).collect::<Vec<_>>(), ["slow"]);
}

#[test]
fn a_deadline_that_passed_is_seen_at_a_nack() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    let consumer = rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    // Nobody is left to be handed it, so that only the failure itself can see the deadline.
    rig.unsubscribe(consumer);
    rig.pass(1_000);
    rig.nack(claim("t", "g", "w", &delivery), "and too late").unwrap();
    let letter = rig.dead_letters("t").remove(0);
    assert_eq!((letter.reason, letter.attempts), (DeadReason::DeadlineExceeded, 1));
    assert_eq!(&*letter.last_error, "and too late");
}

#[test]
fn a_deadline_that_passed_is_seen_at_an_expiry() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    let consumer = rig.subscribe("t", "g", "w");
    rig.unsubscribe(consumer);
    rig.pass(2_000);
    assert_eq!(rig.delivered().len(), 1);
    let letter = rig.dead_letters("t").remove(0);
    assert_eq!((letter.reason, &*letter.last_error), (DeadReason::DeadlineExceeded, "ack_timeout"));
}

#[test]
fn work_under_way_may_end_after_the_deadline() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.pass(1_500);
    rig.extend(claim("t", "g", "w", &delivery), Some(5_000)).unwrap();
    rig.pass(4_000);
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(rig.topics(), ["t"]);
}

#[test]
fn a_retry_due_after_the_deadline_is_never_made() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    let claim = claim("t", "g", "w", &delivery);
    rig.send(Command::Nack { claim, reason: "why".into(), delay: Some(Millis(3_000)) }).unwrap();
    rig.pass(2_999);
    assert_eq!(rig.topics(), ["t"]);
    rig.pass(1);
    assert_eq!(rig.delivered(), []);
    let letter = rig.dead_letters("t").remove(0);
    assert_eq!((letter.reason, &*letter.last_error), (DeadReason::DeadlineExceeded, "why"));
}

#[test]
fn a_released_message_past_its_deadline_is_not_handed_out_again() {
    let mut rig = Rig::with_topic(1);
    due_in(&mut rig, "a", 1_000);
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.pass(1_000);
    rig.release(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(rig.delivered(), []);
    assert_eq!(rig.dead_letters("t")[0].reason, DeadReason::DeadlineExceeded);
}

#[test]
fn the_limit_of_attempts_is_the_reason_where_both_are_reached() {
    let mut rig = Rig::with_topic(1);
    rig.produce_with("t", "a", |asked| {
        asked.envelope.deadline = deadline(START.after(Millis(1_000)));
        asked.envelope.retry_policy = Some(policy(1, 0, 0));
    });
    rig.subscribe("t", "g", "w");
    rig.pass(2_000);
    assert_eq!(rig.dead_letters("t")[0].reason, DeadReason::MaxAttempts);
}

#[test]
fn thousands_past_their_deadline_do_not_hold_up_what_is_not() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic("t", 1);
    for _ in 0..3_000 {
        due_in(&mut rig, "late", 1_000);
    }
    rig.produce("t", "fine");
    rig.pass(1_000);
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    assert_eq!(rig.values(), ["fine"]);
    assert_eq!(rig.load("dlq.t").messages, 3_000);
    assert_eq!(rig.progress("t", "g").lag, 1);
}
