//! Dead letters: what failed too often is put aside, whole, once, and in one step.

use super::rig::*;
use super::tape::Tape;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Planted};
use driftq_core::reply::{Overload, RouterUse};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

fn with_attempts<F: driftq_core::faults::Faults>(rig: &mut Rig<F>, value: &str, max_attempts: u32) -> Offset {
    rig.produce_with("t", value, |asked| asked.envelope.retry_policy = Some(policy(max_attempts, 0, 0)))
}

/// Lets group `name` fail everything it is handed until nothing comes any more.
fn fail_everything<F: driftq_core::faults::Faults>(rig: &mut Rig<F>, name: &str, reason: &str) {
    let consumer = rig.subscribe("t", name, "w");
    while let Some((_, delivery)) = rig.deliveries.pop() {
        rig.nack(claim("t", name, "w", &delivery), reason).unwrap();
    }
    rig.unsubscribe(consumer);
}

#[test]
fn the_failure_at_the_last_attempt_moves_the_message_and_none_before_it_does() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 3);
    rig.subscribe("t", "g", "w");
    for attempt in 1..=3 {
        assert_eq!(rig.topics(), ["t"], "before failure {attempt}");
        let delivery = rig.one();
        assert_eq!(delivery.attempts, attempt);
        rig.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    }
    assert_eq!(rig.delivered(), []);
    assert_eq!(rig.topics(), ["dlq.t", "t"]);
    assert_eq!(rig.kept("dlq.t"), ["a"]);
    let progress = rig.progress("t", "g");
    assert_eq!((progress.lag, progress.floor), (0, Some(Offset(0))), "it is finished for the group");
}

#[test]
fn an_expiry_at_the_last_attempt_moves_the_message_too() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 2);
    rig.subscribe("t", "g", "w");
    rig.pass(60_000);
    assert_eq!(rig.delivered().len(), 2);
    let letter = rig.dead_letters("t").remove(0);
    assert_eq!((letter.attempts, &*letter.last_error), (2, "ack_timeout"));
    assert_eq!(letter.routed_at, START.after(Millis(4_000)));
}

#[test]
fn success_at_the_last_attempt_is_success() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 1);
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(rig.topics(), ["t"]);
}

#[test]
fn a_dead_letter_says_where_it_comes_from_and_keeps_what_it_was() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("asked", 3);
        rig.topic("t", 3);
        let mut asked = Produce::new(topic("asked"), "key", "value");
        let policy = Some(policy(1, 5, 6));
        let late = deadline(START.after(Millis(1_000_000)));
        asked.trace = Some("trace".into());
        asked.envelope = Envelope {
            run_id: Some("run".into()),
            tenant_id: Some("tenant".into()),
            idempotency_key: Some("identity".into()),
            target_topic: Some(topic("t")),
            partition_override: Some(PartitionId(2)),
            deadline: late.clone(),
            retry_policy: policy,
            priority: Priority::new(3),
            labels: [("a".into(), "b".into())].into(),
            ..Envelope::default()
        };
        rig.produce("t", "before");
        let produced = rig.try_produce(asked).unwrap();
        rig.pass(10);
        rig.subscribe("t", "g", "w");
        let delivery = rig.delivered().into_iter().find(|delivery| delivery.offset == produced.offset).unwrap();
        rig.nack(claim("t", "g", "w", &delivery), "broken").unwrap();
        rig.restart(way);

        assert_eq!(rig.describe("dlq.t").partitions.len(), 3, "as many partitions as its source");
        let item = rig.kept_in("dlq.t", 2).remove(0);
        assert_eq!((item.body.key(), item.body.value()), (&b"key"[..], &b"value"[..]));
        let meta = item.body.metadata();
        assert_eq!(meta.trace.as_deref(), Some("trace"));
        let expected = Envelope {
            run_id: Some("run".into()),
            tenant_id: Some("tenant".into()),
            idempotency_key: Some("identity".into()),
            priority: Priority::new(3),
            labels: [("a".into(), "b".into())].into(),
            ..Envelope::default()
        };
        assert_eq!(meta.envelope, expected, "policy, target, override and deadline do not act here");
        let letter = DeadLetter {
            original_topic: topic("t"),
            original_partition: PartitionId(2),
            original_offset: Offset(1),
            group: group("g"),
            attempts: 1,
            last_error: "broken".into(),
            reason: DeadReason::MaxAttempts,
            routed_at: START.after(Millis(10)),
            kept: KeptForRedrive {
                retry_policy: policy,
                target_topic: Some(topic("t")),
                partition_override: Some(PartitionId(2)),
                deadline: late,
            },
        };
        assert_eq!(meta.dead_letter.as_deref(), Some(&letter));
    }
}

#[test]
fn the_last_error_of_a_dead_letter_is_the_newest_reason_anyone_gave() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 2);
    rig.subscribe("t", "g", "w");
    let first = rig.one();
    rig.nack(claim("t", "g", "w", &first), "explicit").unwrap();
    rig.delivered();
    rig.pass(2_000);
    assert_eq!(&*rig.dead_letters("t")[0].last_error, "explicit", "an expiry does not overwrite it");
}

#[test]
fn a_dead_letter_is_never_dead_lettered_again() {
    let mut rig = Rig::new();
    rig.topic("dlq.t", 1);
    rig.produce_with("dlq.t", "a", |asked| asked.envelope.retry_policy = Some(policy(1, 0, 0)));
    rig.subscribe("dlq.t", "g", "w");
    for attempt in 1..=10 {
        let delivery = rig.one();
        assert_eq!(delivery.attempts, attempt);
        rig.nack(claim("dlq.t", "g", "w", &delivery), "no").unwrap();
    }
    assert_eq!(rig.topics(), ["dlq.t"]);
}

#[test]
fn a_deadline_does_not_act_in_a_dead_letter_topic() {
    let mut rig = Rig::new();
    rig.topic("dlq.t", 1);
    rig.produce_with("dlq.t", "a", |asked| asked.envelope.deadline = deadline(START.after(Millis(1_000))));
    rig.pass(1_000);
    rig.subscribe("dlq.t", "g", "w");
    let delivery = rig.one();
    rig.nack(claim("dlq.t", "g", "w", &delivery), "no").unwrap();
    assert_eq!(rig.values(), ["a"]);
    assert_eq!(rig.topics(), ["dlq.t"]);
}

#[test]
fn every_group_that_fails_a_message_leaves_one_item_past_the_dedupe_gate() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    let mut asked = identified("t", "a", "identity");
    asked.envelope.retry_policy = Some(policy(1, 0, 0));
    rig.try_produce(asked.clone()).unwrap();
    for name in ["g", "h", "fine"] {
        rig.group("t", name);
    }
    for name in ["g", "h"] {
        fail_everything(&mut rig, name, name);
    }
    let letters = rig.dead_letters("t");
    let from: Vec<_> = letters.iter().map(|letter| (letter.group.as_str(), &*letter.last_error)).collect();
    assert_eq!(from, [("g", "g"), ("h", "h")]);
    assert_eq!(rig.progress("t", "fine").lag, 1, "the third group still has it to do");
    assert!(rig.try_produce(asked).unwrap().duplicate, "and the producer's identity stands");
}

#[test]
fn a_dead_letter_is_not_refused_by_backpressure_but_then_its_source_is() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 2);
    rig.topic("t", 2);
    for _ in 0..3 {
        with_attempts(&mut rig, "a", 1);
        fail_everything(&mut rig, "g", "no");
        if rig.load("dlq.t").messages == 2 {
            break;
        }
    }
    let asked = Produce::new(topic("t"), "", "more");
    let digest = rig.digest();
    assert_eq!(rig.try_produce(asked.clone()), Err(overloaded(Overload::DeadLetters)));
    assert_eq!(Overload::DeadLetters.code(), "dlq_full");
    assert_eq!(rig.digest(), digest);
    let mut elsewhere = asked.clone();
    elsewhere.envelope.partition_override = Some(PartitionId(1));
    rig.try_produce(elsewhere).expect("the other partition's dead letters have room");
    rig.subscribe("dlq.t", "ops", "w");
    let letter = rig.delivered().remove(0);
    rig.ack(claim("dlq.t", "ops", "w", &letter)).unwrap();
    assert_eq!(rig.try_produce(asked).map(|produced| produced.router), Ok(RouterUse::NotAsked));
}

#[test]
fn dead_letters_beyond_the_limit_are_still_taken() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 3);
    rig.topic("t", 1);
    for name in ["g", "h", "i", "j"] {
        rig.group("t", name);
    }
    with_attempts(&mut rig, "a", 1);
    for name in ["g", "h", "i", "j"] {
        fail_everything(&mut rig, name, "no");
    }
    assert_eq!(rig.load("dlq.t").messages, 4);
    assert_eq!(rig.load("t").messages, 0);
}

#[test]
fn a_late_word_about_a_dead_lettered_message_is_taken_and_commits_nothing() {
    for (way, groups) in [(Restart::Crash, 1), (Restart::Snapshot, 2)] {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        (1..groups).for_each(|_| rig.group("t", "keeps-it"));
        with_attempts(&mut rig, "a", 1);
        rig.subscribe("t", "g", "w");
        let delivery = rig.one();
        rig.pass(2_000);
        rig.restart(way);
        let digest = rig.digest();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        rig.nack(claim("t", "g", "w", &delivery), "late").unwrap();
        rig.release(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(rig.extend(claim("t", "g", "w", &delivery), None), Err(Refusal::StaleLease));
        assert_eq!(rig.digest(), digest);
        assert_eq!(rig.dead_letters("t").len(), 1);
    }
}

#[test]
fn at_no_record_of_the_log_is_a_message_in_neither_place_or_in_both() {
    let mut tape = Tape::new();
    tape.topic("t", 1);
    tape.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(2, 0, 0)));
    tape.subscribe("t", "g", "w");
    tape.wait(2_000);
    tape.wait(2_000);
    let mut deaths = 0;
    for state in tape.states() {
        let Some(source) = state.topic_named(&topic("t")) else { continue };
        let Some(of_group) = source.group_named(&group("g")) else { continue };
        let done = of_group.progress(PartitionId(0)).unwrap().done().contains(Position(0));
        let dead = state.topic_named(&topic("dlq.t")).is_some_and(|dead| dead.next_offset() > Offset(0));
        assert_eq!(done, dead);
        deaths += u32::from(dead);
    }
    assert_eq!(deaths, 1, "it happened, and in the last record");
}

#[test]
fn a_dead_letter_that_does_not_finish_its_source_would_be_caught() {
    let mut rig = Rig::with(small_config(), Planted(Fault::SourceNotFinishedOnDeadLetter));
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.deliveries_max = Some(1));
    let delivery = rig.one();
    rig.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    assert_eq!(rig.progress("t", "g").lag, 1, "the planted bug leaves it in both places");
}

#[test]
fn a_dead_letter_topic_made_by_hand_is_used_as_it_is() {
    let mut rig = Rig::new();
    rig.topic("t", 4);
    rig.topic("dlq.t", 2);
    rig.produce_with("t", "a", |asked| {
        asked.envelope.retry_policy = Some(policy(1, 0, 0));
        asked.envelope.partition_override = Some(PartitionId(3));
    });
    fail_everything(&mut rig, "g", "no");
    assert_eq!(rig.kept_in("dlq.t", 1).len(), 1);
    assert_eq!(rig.kept_in("dlq.t", 1)[0].body.metadata().dead_letter.unwrap().original_partition, PartitionId(3));
}

#[test]
fn a_deleted_dead_letter_topic_is_made_again_when_it_is_needed() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    with_attempts(&mut rig, "a", 1);
    fail_everything(&mut rig, "g", "no");
    assert_eq!(rig.send(Command::DeleteTopic { name: topic("dlq.t") }), Ok(driftq_core::Reply::Done));
    with_attempts(&mut rig, "b", 1);
    fail_everything(&mut rig, "g", "no");
    assert_eq!(rig.kept("dlq.t"), ["b"]);
}
