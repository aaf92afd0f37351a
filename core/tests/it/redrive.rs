//! Redrive: a dead letter becomes a new message for its original group.

use super::recording_broker::RecordingBroker;
use super::test_broker::*;
use driftq_core::command::{DeleteGroup, DeleteTopic, Redrive, RedriveSelection, SeekTo};
use driftq_core::reply::{Delivery, Overload};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

fn redrive_with(broker: &mut TestBroker, which: RedriveSelection, limit: u64) -> Result<u64, Refusal> {
    match broker.send(Command::Redrive(Redrive { topic: topic("t"), which, limit }))? {
        Reply::Redriven { count, .. } => Ok(count),
        other => panic!("unexpected reply to a redrive: {other:?}"),
    }
}

fn redrive(broker: &mut TestBroker) -> Result<u64, Refusal> {
    redrive_with(broker, RedriveSelection::All, u64::MAX)
}

/// Produces a message with this value and dead-letters it in group `name`.
fn dead_letter(broker: &mut TestBroker, name: &str, value: &str) -> Delivery {
    broker.produce_with("t", value, |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    fail_last_attempt(broker, name)
}

/// Delivers exactly one message to group `name` and nacks it at its last attempt.
fn fail_last_attempt(broker: &mut TestBroker, name: &str) -> Delivery {
    let consumer = broker.subscribe("t", name, "w");
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", name, "w", &delivery), "no").unwrap();
    broker.unsubscribe(consumer);
    delivery
}

#[test]
fn redriven_message_is_new_with_policy_restored_and_count_kept() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        let far = deadline(START.after(Millis(1_000_000)));
        broker.produce_with("t", "a", |request| {
            request.set_key(b"key");
            request.envelope.retry_policy = Some(policy(1, 7, 8));
            request.envelope.target_topic = Some(topic("t"));
            request.envelope.partition_override = Some(PartitionId(0));
            request.envelope.deadline = far.clone();
        });
        let first = fail_last_attempt(&mut broker, "g");
        broker.restart(restart);
        assert_eq!(redrive(&mut broker), Ok(1));
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        let again = broker.expect_delivery();
        assert_eq!((again.offset, again.attempts, again.failures), (Offset(1), 1, 0));
        assert_eq!(again.last_error.as_str(), "");
        assert_eq!((again.body.key(), again.body.value()), (first.body.key(), first.body.value()));
        let meta = again.body.metadata();
        assert_eq!(meta.envelope, first.body.metadata().envelope);
        assert_eq!(meta.dead_letter, None);
        let origin = RedriveOrigin { count: 1, dead_letter_offset: Offset(0), original_offset: Offset(0) };
        assert_eq!(meta.redrive, Some(origin));
        assert_eq!(broker.stored_values("dlq.t"), [""; 0], "the dead letter is acked");
    }
}

#[test]
fn redrive_repeated_counts_up_and_keeps_original_offset() {
    let mut broker = TestBroker::with_topic(1);
    dead_letter(&mut broker, "g", "a");
    for count in 1..=3 {
        assert_eq!(redrive(&mut broker), Ok(1));
        let again = fail_last_attempt(&mut broker, "g");
        let origin = again.body.metadata().redrive.unwrap();
        let expected =
            RedriveOrigin { count, dead_letter_offset: Offset(u64::from(count) - 1), original_offset: Offset(0) };
        assert_eq!(origin, expected);
    }
    assert_eq!(broker.dead_letters("t").len(), 1);
}

#[test]
fn redriven_message_is_visible_to_its_group_only() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        broker.group("t", "other");
        dead_letter(&mut broker, "g", "a");
        broker.subscribe("t", "other", "w");
        let others = broker.expect_delivery();
        broker.ack(claim("t", "other", "w", &others)).unwrap();
        redrive(&mut broker).unwrap();
        broker.group("t", "made-later");
        broker.restart(restart);
        for name in ["other", "made-later", "made-after-the-restart"] {
            broker.subscribe("t", name, "w");
            assert_eq!(broker.delivered(), [], "{name}");
            broker.seek("t", name, SeekTo::Earliest).unwrap();
            assert_eq!(broker.delivered(), [], "{name} after a seek");
        }
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["a"]);
        broker.seek("t", "g", SeekTo::Earliest).unwrap();
        let again = broker.expect_delivery();
        assert_eq!(value(&again), "a", "its own group can replay it");
        broker.ack(claim("t", "g", "w", &again)).unwrap();
        assert_eq!(broker.stored_values("t"), [""; 0], "it is trimmed once its only group has acked it");
        broker.seek("t", "other", SeekTo::Earliest).unwrap();
        assert_eq!(broker.delivered(), []);
    }
}

#[test]
fn redriven_message_is_in_one_topic_at_every_record() {
    let mut recording = RecordingBroker::new();
    recording.topic("t", 1);
    recording.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    recording.subscribe("t", "g", "w");
    recording.wait(2_000);
    recording.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 1 })).unwrap();
    for state in recording.states() {
        let (Some(source), Some(dead)) = (state.topic_named(&topic("t")), state.topic_named(&topic("dlq.t"))) else {
            continue;
        };
        let progress = source.group_named(&group("g")).unwrap().progress(PartitionId(0)).unwrap();
        let messages = source.partition(PartitionId(0)).unwrap();
        let live = progress.acked().unacked_before(messages.next_position());
        assert_eq!(live + dead.partition(PartitionId(0)).unwrap().backlog().messages, 1);
    }
}

#[test]
fn redrive_takes_oldest_dead_letters_up_to_limit() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["a", "b", "c"] {
        dead_letter(&mut broker, "g", value);
    }
    assert_eq!(redrive_with(&mut broker, RedriveSelection::All, 2), Ok(2));
    assert_eq!(broker.stored_values("t"), ["a", "b"]);
    assert_eq!(broker.stored_values("dlq.t"), ["c"]);
}

#[test]
fn redrive_by_offset_takes_each_once_and_skips_missing() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["a", "b", "c"] {
        dead_letter(&mut broker, "g", value);
    }
    let named = RedriveSelection::Offsets([2, 2, 77, 0].map(Offset).into());
    assert_eq!(redrive_with(&mut broker, named.clone(), 10), Ok(2));
    assert_eq!(broker.stored_values("dlq.t"), ["b"]);
    let digest = broker.digest();
    assert_eq!(redrive_with(&mut broker, named, 10), Ok(0));
    assert_eq!(broker.digest(), digest);
}

#[test]
fn redrive_skips_dead_letter_of_deleted_group() {
    let mut broker = TestBroker::with_topic(1);
    dead_letter(&mut broker, "gone", "a");
    broker.delete_group("t", "gone");
    let digest = broker.digest();
    assert_eq!(redrive(&mut broker), Ok(0));
    assert_eq!(broker.digest(), digest);
    assert_eq!(broker.stored_values("dlq.t"), ["a"]);
}

#[test]
fn redrive_skips_dead_letter_acked_by_operator() {
    let mut broker = TestBroker::with_topic(1);
    dead_letter(&mut broker, "g", "a");
    dead_letter(&mut broker, "g", "b");
    broker.subscribe("dlq.t", "ops", "w");
    let first = broker.delivered().remove(0);
    broker.ack(claim("dlq.t", "ops", "w", &first)).unwrap();
    assert_eq!(redrive(&mut broker), Ok(1));
    assert_eq!(broker.stored_values("t"), ["b"]);
}

#[test]
fn redrive_of_leased_dead_letter_ends_lease_and_frees_slot() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    dead_letter(&mut broker, "g", "a");
    dead_letter(&mut broker, "g", "b");
    broker.subscribe("dlq.t", "ops", "w");
    let held = broker.expect_delivery();
    assert_eq!(value(&held), "a");
    assert_eq!(redrive_with(&mut broker, RedriveSelection::Offsets(vec![Offset(0)]), 1), Ok(1));
    assert_eq!(broker.delivered_values(), ["b"], "the next dead letter takes the free slot");
    let digest = broker.digest();
    broker.ack(claim("dlq.t", "ops", "w", &held)).unwrap();
    assert_eq!(broker.digest(), digest, "a late ack changes nothing");
}

#[test]
fn redrive_relieves_full_dead_letter_topic_and_is_refused_by_full_source() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 2);
    broker.topic("t", 1);
    dead_letter(&mut broker, "g", "a");
    dead_letter(&mut broker, "g", "b");
    let refused = broker.try_produce(driftq_core::command::Produce::new(topic("t"), "", "c"));
    assert_overloaded(&refused, Overload::DeadLetters);
    assert_eq!(redrive_with(&mut broker, RedriveSelection::All, 1), Ok(1));
    broker.produce("t", "c");
    let digest = broker.digest();
    assert_overloaded(&redrive(&mut broker), Overload::Backlog);
    assert_eq!(broker.digest(), digest);
}

#[test]
fn redrive_moves_as_many_as_fit() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 3);
    broker.topic("t", 1);
    dead_letter(&mut broker, "g", "a");
    dead_letter(&mut broker, "g", "b");
    broker.produce("t", "c");
    broker.produce("t", "d");
    assert_eq!(redrive(&mut broker), Ok(1));
    assert_eq!((broker.stored_values("t").len(), broker.stored_values("dlq.t").len()), (3, 1));
}

#[test]
fn redriven_message_past_deadline_has_no_deadline() {
    for (after, acts) in [(499, true), (500, false), (1_000, false)] {
        let mut broker = TestBroker::with_topic(1);
        broker.produce_with("t", "a", |request| {
            request.envelope.retry_policy = Some(policy(1, 0, 0));
            request.envelope.deadline = deadline(START.after(Millis(500)));
        });
        fail_last_attempt(&mut broker, "g");
        broker.advance(after);
        assert_eq!(redrive(&mut broker), Ok(1));
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.expect_delivery().body.metadata().envelope.deadline.is_some(), acts, "after {after}");
    }
}

#[test]
fn redrive_of_dead_letter_or_unknown_topic_is_refused() {
    let mut broker = TestBroker::with_topic(1);
    assert_eq!(redrive(&mut broker), Ok(0), "without a dead-letter topic there is nothing to redrive");
    dead_letter(&mut broker, "g", "a");
    let of = |name: &str| Command::Redrive(Redrive { topic: topic(name), which: RedriveSelection::All, limit: 1 });
    assert_eq!(broker.send(of("nope")), Err(Refusal::UnknownTopic(topic("nope"))));
    let refusal = Refusal::Invalid("a dead-letter topic has no dead letters of its own");
    assert_eq!(broker.send(of("dlq.t")), Err(refusal));
}

#[test]
fn dead_letter_under_retention_is_redriven_once() {
    let mut broker = TestBroker::with_topic(1);
    broker.topic_with_retention("dlq.t", Some(1_000_000), None);
    dead_letter(&mut broker, "g", "a");
    broker.group("dlq.t", "first");
    assert_eq!(redrive(&mut broker), Ok(1));
    broker.group("dlq.t", "second");
    assert_eq!(redrive(&mut broker), Ok(0), "a new group does not make it redrivable again");
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn redrive_is_bounded_per_call_and_oldest_first_over_partitions() {
    let mut config = small_config();
    config.segment_bytes = 8 << 20;
    config.limits.in_flight_max = 5_000;
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 3);
    let consumer = broker.subscribe_with("t", "g", "w", |request| request.prefetch = 5_000);
    for number in 0..520_u32 {
        broker.produce_with("t", &number.to_string(), |request| {
            request.envelope.retry_policy = Some(policy(1, 0, 0));
            request.envelope.partition_override = Some(PartitionId(number * 7 % 3));
        });
        let delivery = broker.expect_delivery();
        broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    }
    broker.unsubscribe(consumer);
    assert_eq!(redrive_with(&mut broker, RedriveSelection::All, 2), Ok(2));
    assert_eq!(redrive(&mut broker), Ok(256));
    assert_eq!(redrive(&mut broker), Ok(256));
    assert_eq!(redrive(&mut broker), Ok(6));
    assert_eq!(redrive(&mut broker), Ok(0));
    let mut redriven: Vec<_> = (0..3).flat_map(|partition| broker.stored_messages("t", partition)).collect();
    redriven.sort_by_key(|message| message.offset);
    let values: Vec<_> =
        redriven.iter().map(|message| String::from_utf8_lossy(message.body.value()).into_owned()).collect();
    assert_eq!(values, (0..520).map(|number: u32| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn redriven_message_returns_to_its_partition_or_wraps() {
    for (partitions, back_in) in [(4, 3), (2, 1)] {
        let mut broker = TestBroker::with_topic(4);
        broker.group("t", "g");
        let mut request = to_partition("t", 3, "", "a");
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        broker.try_produce(request).unwrap();
        fail_last_attempt(&mut broker, "g");
        if partitions != 4 {
            broker.delete_topic("t");
            broker.topic("t", partitions);
            broker.group("t", "g");
        }
        assert_eq!(redrive(&mut broker), Ok(1));
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.expect_delivery().partition, PartitionId(back_in));
    }
}

/// Redrives all in portions of `portion`; after each portion every redriven message fails again.
fn redrive_while_failing(broker: &mut TestBroker, portion: u64) -> u64 {
    let (mut which, mut redriven) = (RedriveSelection::All, 0);
    for _ in 0..100 {
        let request = Redrive { topic: topic("t"), which, limit: portion };
        let Ok(Reply::Redriven { count, rest }) = broker.send(Command::Redrive(request)) else { panic!("refused") };
        redriven += count;
        let consumer = broker.subscribe("t", "g", "w");
        for delivery in broker.delivered() {
            broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
        }
        broker.unsubscribe(consumer);
        let Some(rest) = rest else { return redriven };
        which = RedriveSelection::Rest(rest);
    }
    panic!("the redrive follows its own tail");
}

#[test]
fn redrive_of_all_moves_what_was_there_when_asked() {
    for portion in [1, 2, 5, u64::MAX] {
        let mut broker = TestBroker::with_topic(1);
        for value in ["a", "b", "c", "d", "e"] {
            dead_letter(&mut broker, "g", value);
        }
        assert_eq!(redrive_while_failing(&mut broker, portion), 5, "in portions of {portion}");
        let again = broker.stored_messages("dlq.t", 0);
        assert_eq!(again.len(), 5, "all have failed again");
        assert!(again.iter().all(|message| message.body.metadata().redrive.unwrap().count == 1));
    }
}

#[test]
fn redrive_limit_counts_dead_letters_of_deleted_groups() {
    let mut broker = TestBroker::with_topic(1);
    for group in ["deleted", "deleted", "deleted", "g"] {
        dead_letter(&mut broker, group, group);
    }
    broker.send(Command::DeleteGroup(DeleteGroup { topic: topic("t"), group: group("deleted") })).unwrap();
    let first = Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 2 };
    let Ok(Reply::Redriven { count: 0, rest: Some(rest) }) = broker.send(Command::Redrive(first)) else {
        panic!("two of a deleted group, and a rest");
    };
    assert_eq!(redrive_with(&mut broker, RedriveSelection::Rest(rest), 2), Ok(1));
}

#[test]
fn rest_of_a_deleted_dead_letter_topic_is_nothing() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["a", "b"] {
        dead_letter(&mut broker, "g", value);
    }
    let first = Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 1 };
    let Ok(Reply::Redriven { count: 1, rest: Some(rest) }) = broker.send(Command::Redrive(first)) else {
        panic!("one, and a rest");
    };
    broker.send(Command::DeleteTopic(DeleteTopic { name: topic("dlq.t") })).unwrap();
    fail_last_attempt(&mut broker, "g");
    dead_letter(&mut broker, "g", "c");
    assert_eq!(redrive_with(&mut broker, RedriveSelection::Rest(rest), 2), Ok(0), "a topic created later");
    assert_eq!(redrive(&mut broker), Ok(2));
}

#[test]
fn redrive_by_offset_is_in_the_order_of_offsets() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["a", "b", "c"] {
        dead_letter(&mut broker, "g", value);
    }
    let named = RedriveSelection::Offsets([1, 2, 0].map(Offset).into());
    assert_eq!(redrive_with(&mut broker, named, 10), Ok(3));
    assert_eq!(broker.stored_values("t"), ["a", "b", "c"]);
}

#[test]
fn dead_letter_beyond_a_lowered_limit_of_its_partition_is_refused_as_too_large() {
    let mut broker = TestBroker::with_topic(1);
    dead_letter(&mut broker, "g", &"x".repeat(100));
    broker.config.limits.partition_bytes_max = 99;
    broker.crash();
    let refused = broker.refused(redrive);
    assert_eq!(refused, Refusal::TooLarge { what: "key and value", len: 100, max: 99 });
}

#[test]
fn refused_redrive_deletes_an_idle_group_that_fills_the_partition() {
    let mut broker = TestBroker::with_limits(|limits| {
        (limits.partition_messages_max, limits.group_idle) = (2, Some(Millis(60_000)));
    });
    broker.topic("t", 1);
    let idle = broker.subscribe_with("t", "idle", "w", |request| request.prefetch = 0);
    broker.unsubscribe(idle);
    dead_letter(&mut broker, "g", "a");
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 0);
    broker.produce("t", "b");
    broker.advance(60_000);
    assert_eq!(broker.groups("t"), ["g", "idle"]);
    assert_overloaded(&redrive(&mut broker), Overload::Backlog);
    broker.advance(1);
    assert_eq!(broker.groups("t"), ["g"]);
    assert_eq!(redrive(&mut broker), Ok(1));
}

#[test]
fn dead_letter_acked_by_operator_under_retention_is_not_redriven() {
    let mut broker = TestBroker::with_topic(1);
    broker.topic_with_retention("dlq.t", Some(1_000_000), None);
    for value in ["a", "b"] {
        dead_letter(&mut broker, "g", value);
    }
    broker.subscribe("dlq.t", "operators", "w");
    let acked = broker.delivered().remove(0);
    broker.ack(claim("dlq.t", "operators", "w", &acked)).unwrap();
    assert_eq!(broker.stored_values("dlq.t"), ["a", "b"], "it is retained");
    assert_eq!(redrive(&mut broker), Ok(1));
    assert_eq!(broker.stored_values("t"), ["b"]);
}
