//! Dead letters: a message at its last attempt moves to the dead-letter topic in one record.

use super::recording_broker::RecordingBroker;
use super::test_broker::*;
use driftq_core::command::{Complete, DeleteTopic, DeliveryClaim, Finish, Produce, StoreCommand, TokenClaim};
use driftq_core::faults::{Fault, Planted};
use driftq_core::reply::{Overload, RouterUse};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

fn with_attempts<F: driftq_core::faults::Faults>(broker: &mut TestBroker<F>, value: &str, max_attempts: u32) -> Offset {
    broker.produce_with("t", value, |request| request.envelope.retry_policy = Some(policy(max_attempts, 0, 0)))
}

/// Nacks every delivery of group `name` until there is none left.
fn fail_everything<F: driftq_core::faults::Faults>(broker: &mut TestBroker<F>, name: &str, reason: &str) {
    let consumer = broker.subscribe("t", name, "w");
    while let Some((_, delivery)) = broker.deliveries.pop() {
        broker.nack(claim("t", name, "w", &delivery), reason).unwrap();
    }
    broker.unsubscribe(consumer);
}

#[test]
fn failure_at_last_attempt_dead_letters_and_earlier_ones_do_not() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 3);
    broker.subscribe("t", "g", "w");
    for attempt in 1..=3 {
        assert_eq!(broker.topics(), ["t"], "before failure {attempt}");
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.attempts, attempt);
        broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    }
    assert_eq!(broker.delivered(), []);
    assert_eq!(broker.topics(), ["dlq.t", "t"]);
    assert_eq!(broker.stored_values("dlq.t"), ["a"]);
    let progress = broker.progress("t", "g");
    assert_eq!((progress.lag, progress.floor), (0, Some(Offset(0))), "the message is acked for the group");
}

#[test]
fn expiry_at_last_attempt_dead_letters() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 2);
    broker.subscribe("t", "g", "w");
    broker.advance(60_000);
    assert_eq!(broker.delivered().len(), 2);
    let dead_letter = broker.dead_letters("t").remove(0);
    assert_eq!((dead_letter.attempts, &*dead_letter.last_error), (2, "ack_timeout"));
    assert_eq!(dead_letter.routed_at, START.after(Millis(4_000)));
}

#[test]
fn ack_at_last_attempt_succeeds() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 1);
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(broker.topics(), ["t"]);
}

#[test]
fn dead_letter_records_origin_and_keeps_message() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("requested", 3);
        broker.topic("t", 3);
        let mut request = Produce::new(topic("requested"), "key", "value");
        let policy = Some(policy(1, 5, 6));
        let late = deadline(START.after(Millis(1_000_000)));
        request.trace = Some("trace".into());
        request.envelope = Envelope {
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
        broker.produce("t", "before");
        let produced = broker.try_produce(request).unwrap();
        broker.advance(10);
        broker.subscribe("t", "g", "w");
        let delivery = broker.delivered().into_iter().find(|delivery| delivery.offset == produced.offset).unwrap();
        broker.nack(claim("t", "g", "w", &delivery), "broken").unwrap();
        broker.restart(restart);

        assert_eq!(broker.describe("dlq.t").partitions.len(), 3, "as many partitions as its source");
        let item = broker.stored_messages("dlq.t", 2).remove(0);
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
        assert_eq!(meta.envelope, expected, "policy, target, override and deadline are not active in a dead letter");
        let origin = DeadLetterOrigin {
            original_topic: topic("t"),
            original_partition: PartitionId(2),
            original_offset: Offset(1),
            group: group("g"),
            attempts: 1,
            last_error: "broken".into(),
            reason: DeadReason::MaxAttempts,
            routed_at: START.after(Millis(10)),
        };
        let kept = KeptForRedrive {
            retry_policy: policy,
            target_topic: Some(topic("t")),
            partition_override: Some(PartitionId(2)),
            deadline: late,
        };
        let dead_letter = DeadLetter { origin, kept };
        assert_eq!(meta.dead_letter.as_deref(), Some(&dead_letter));
    }
}

#[test]
fn dead_letter_keeps_newest_explicit_error() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 2);
    broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &first), "explicit").unwrap();
    broker.delivered();
    broker.advance(2_000);
    assert_eq!(&*broker.dead_letters("t")[0].last_error, "explicit", "an expiry does not overwrite an explicit error");
}

#[test]
fn dead_letter_is_never_dead_lettered_again() {
    let mut broker = TestBroker::new();
    broker.topic("dlq.t", 1);
    broker.produce_with("dlq.t", "a", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    broker.subscribe("dlq.t", "g", "w");
    for attempt in 1..=10 {
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.attempts, attempt);
        broker.nack(claim("dlq.t", "g", "w", &delivery), "no").unwrap();
    }
    assert_eq!(broker.topics(), ["dlq.t"]);
}

#[test]
fn deadline_in_dead_letter_topic_is_ignored() {
    let mut broker = TestBroker::new();
    broker.topic("dlq.t", 1);
    broker.produce_with("dlq.t", "a", |request| request.envelope.deadline = deadline(START.after(Millis(1_000))));
    broker.advance(1_000);
    broker.subscribe("dlq.t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.nack(claim("dlq.t", "g", "w", &delivery), "no").unwrap();
    assert_eq!(broker.delivered_values(), ["a"]);
    assert_eq!(broker.topics(), ["dlq.t"]);
}

#[test]
fn message_failed_by_two_groups_leaves_two_dead_letters_despite_dedupe() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    let mut request = identified("t", "a", "identity");
    request.envelope.retry_policy = Some(policy(1, 0, 0));
    broker.try_produce(request.clone()).unwrap();
    for name in ["g", "h", "fine"] {
        broker.group("t", name);
    }
    for name in ["g", "h"] {
        fail_everything(&mut broker, name, name);
    }
    let dead_letters = broker.dead_letters("t");
    let from: Vec<_> =
        dead_letters.iter().map(|dead_letter| (dead_letter.group.as_str(), &*dead_letter.last_error)).collect();
    assert_eq!(from, [("g", "g"), ("h", "h")]);
    assert_eq!(broker.progress("t", "fine").lag, 1, "the third group has not acked it");
    assert!(broker.try_produce(request).unwrap().duplicate, "the dedupe window is unaffected");
}

#[test]
fn dead_letter_ignores_backpressure_which_then_blocks_its_source() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 2);
    broker.topic("t", 2);
    for _ in 0..3 {
        with_attempts(&mut broker, "a", 1);
        fail_everything(&mut broker, "g", "no");
        if broker.partition_info("dlq.t").messages == 2 {
            break;
        }
    }
    let request = Produce::new(topic("t"), "", "more");
    let digest = broker.digest();
    assert_overloaded(&broker.try_produce(request.clone()), Overload::DeadLetters);
    assert_eq!(Overload::DeadLetters.code(), "dlq_full");
    assert_eq!(broker.digest(), digest);
    let mut elsewhere = request.clone();
    elsewhere.envelope.partition_override = Some(PartitionId(1));
    broker.try_produce(elsewhere).expect("the other partition's dead letters have room");
    broker.subscribe("dlq.t", "ops", "w");
    let dead_letter = broker.delivered().remove(0);
    broker.ack(claim("dlq.t", "ops", "w", &dead_letter)).unwrap();
    assert_eq!(broker.try_produce(request).map(|produced| produced.router), Ok(RouterUse::NoDecision));
}

#[test]
fn dead_letters_beyond_limit_are_accepted() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 3);
    broker.topic("t", 1);
    for name in ["g", "h", "i", "j"] {
        broker.group("t", name);
    }
    with_attempts(&mut broker, "a", 1);
    for name in ["g", "h", "i", "j"] {
        fail_everything(&mut broker, name, "no");
    }
    assert_eq!(broker.partition_info("dlq.t").messages, 4);
    assert_eq!(broker.partition_info("t").messages, 0);
}

#[test]
fn late_claim_on_dead_lettered_message_commits_nothing() {
    for (restart, groups) in [(Restart::Crash, 1), (Restart::Snapshot, 2)] {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        (1..groups).for_each(|_| broker.group("t", "keeps-it"));
        with_attempts(&mut broker, "a", 1);
        broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        broker.advance(2_000);
        broker.restart(restart);
        let digest = broker.digest();
        let without_token = first_message("t", "g", "w");
        broker.ack(without_token.clone()).unwrap();
        broker.nack(without_token.clone(), "late").unwrap();
        broker.release(without_token).unwrap();
        let late = claim("t", "g", "w", &delivery);
        assert_eq!(broker.ack(late.clone()), Err(Refusal::StaleLease));
        assert_eq!(broker.nack(late.clone(), "late"), Err(Refusal::StaleLease));
        assert_eq!(broker.release(late.clone()), Err(Refusal::StaleLease));
        assert_eq!(broker.extend(late, None), Err(Refusal::StaleLease));
        assert_eq!(broker.digest(), digest);
        assert_eq!(broker.dead_letters("t").len(), 1);
    }
}

#[test]
fn dead_lettered_message_is_in_one_topic_at_every_record() {
    let mut recording = RecordingBroker::new();
    recording.topic("t", 1);
    recording.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(2, 0, 0)));
    recording.subscribe("t", "g", "w");
    recording.wait(2_000);
    recording.wait(2_000);
    let mut deaths = 0;
    for state in recording.states() {
        let Some(source) = state.topic_named(&topic("t")) else { continue };
        let Some(of_group) = source.group_named(&group("g")) else { continue };
        let done = of_group.progress(PartitionId(0)).unwrap().acked().contains(Position(0));
        let dead = state.topic_named(&topic("dlq.t")).is_some_and(|dead| dead.next_offset() > Offset(0));
        assert_eq!(done, dead);
        deaths += u32::from(dead);
    }
    assert_eq!(deaths, 1, "the last record dead-letters the message");
}

#[test]
fn fault_source_not_finished_on_dead_letter_is_detected() {
    let mut broker = TestBroker::with(small_config(), Planted(Fault::SourceNotFinishedOnDeadLetter));
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 1);
    broker.subscribe_with("t", "g", "w", |request| request.deliveries_max = Some(1));
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    assert_eq!(broker.progress("t", "g").lag, 1, "the planted fault leaves the message in both topics");
}

#[test]
fn dead_letter_topic_created_by_client_is_used_as_is() {
    let mut broker = TestBroker::new();
    broker.topic("t", 4);
    broker.topic("dlq.t", 2);
    broker.produce_with("t", "a", |request| {
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        request.envelope.partition_override = Some(PartitionId(3));
    });
    fail_everything(&mut broker, "g", "no");
    assert_eq!(broker.stored_messages("dlq.t", 1).len(), 1);
    assert_eq!(
        broker.stored_messages("dlq.t", 1)[0].body.metadata().dead_letter.unwrap().original_partition,
        PartitionId(3)
    );
}

#[test]
fn deleted_dead_letter_topic_is_recreated_on_demand() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    with_attempts(&mut broker, "a", 1);
    fail_everything(&mut broker, "g", "no");
    assert_eq!(
        broker.send(Command::DeleteTopic(DeleteTopic { name: topic("dlq.t") })),
        Ok(driftq_core::Reply::Success)
    );
    with_attempts(&mut broker, "b", 1);
    fail_everything(&mut broker, "g", "no");
    assert_eq!(broker.stored_values("dlq.t"), ["b"]);
}

#[test]
fn topic_refers_to_its_dead_letter_topic_only_while_that_exists() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        broker.topic("dlq.t", 1);
        broker.restart(restart);
        let dead_letters =
            |broker: &TestBroker, name| broker.pipeline.state().topic_named(&topic(name)).unwrap().dead_letters();
        assert_eq!(dead_letters(&broker, "t"), Some(TopicId(1)));
        broker.delete_topic("dlq.t");
        assert_eq!(dead_letters(&broker, "t"), None);
        broker.restart(restart);
        broker.topic("dlq.t", 1);
        assert_eq!(dead_letters(&broker, "t"), Some(TopicId(2)));
    }
}

#[test]
fn dead_letters_at_their_limit_of_bytes_refuse_produces() {
    for (len, is_full) in [(99, false), (100, true)] {
        let mut broker = TestBroker::with_limits(|limits| limits.partition_bytes_max = 100);
        broker.topic("t", 1);
        with_attempts(&mut broker, &"x".repeat(len), 1);
        fail_everything(&mut broker, "g", "no");
        let produced = broker.try_produce(Produce::new(topic("t"), "", "v"));
        match is_full {
            true => assert_overloaded(&produced, Overload::DeadLetters),
            false => assert!(produced.is_ok(), "{produced:?}"),
        }
    }
}

#[test]
fn finished_effect_cannot_dead_letter_a_dead_letter() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "a", |request| {
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        request.envelope.idempotency_key = Some("k".into());
    });
    fail_everything(&mut broker, "g", "no");
    broker.subscribe("dlq.t", "operators", "w");
    let delivery = broker.expect_delivery();
    let identity = consume_effect("dlq.t", "operators", "k");
    let token = TokenClaim::Shown(granted(broker.begin_for(&identity, &delivery)));
    let claim = DeliveryClaim {
        partition: delivery.partition,
        offset: delivery.offset,
        token: TokenClaim::Shown(delivery.token),
    };
    let (outcome, dead_letter) = (final_failure("no"), Some(claim));
    let finish = StoreCommand::Finish(Finish { identity, token, outcome, dead_letter });
    let refused = broker.refused(|broker| broker.send(Command::Store(Box::new(finish))));
    let why = "a dead letter cannot be dead-lettered again; ack it, or nack it to be retried";
    assert_eq!(refused, Refusal::Invalid(why));
}

#[test]
fn failed_step_with_too_long_an_error_is_refused() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    let max = Limits::production().error_text_bytes_max;
    let step = |len: usize| {
        let (claim, failed) = (claim("t", "g", "w", &delivery), Some("x".repeat(len).as_str().into()));
        Command::Complete(Box::new(Complete { claim, result: None, produce: Vec::new(), failed }))
    };
    let refused = broker.refused(|broker| broker.send(step(max + 1)));
    let (len, max_len) = (max as u64 + 1, max as u64);
    assert_eq!(refused, Refusal::TooLarge { what: "last_error", len, max: max_len });
    broker.send(step(max)).unwrap();
}
