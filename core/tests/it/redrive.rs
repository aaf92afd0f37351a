//! Redrive: a dead letter becomes a live message of its old group again.

use super::rig::*;
use super::tape::Tape;
use driftq_core::command::{RedriveSelection, SeekTo};
use driftq_core::reply::{Delivery, Overload};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

fn redrive_with(rig: &mut Rig, which: RedriveSelection, limit: u64) -> Result<u64, Refusal> {
    match rig.send(Command::Redrive { topic: topic("t"), which, limit })? {
        Reply::Redriven { count } => Ok(count),
        other => panic!("a redrive is answered with {other:?}"),
    }
}

fn redrive(rig: &mut Rig) -> Result<u64, Refusal> {
    redrive_with(rig, RedriveSelection::All, u64::MAX)
}

/// Makes a dead letter of a message with this value.
fn dead(rig: &mut Rig, name: &str, value: &str) -> Delivery {
    rig.produce_with("t", value, |asked| asked.envelope.retry_policy = Some(policy(1, 0, 0)));
    die(rig, name)
}

/// Has group `name` handed exactly one message, and fails it for the last time.
fn die(rig: &mut Rig, name: &str) -> Delivery {
    let consumer = rig.subscribe("t", name, "w");
    let delivery = rig.one();
    rig.nack(claim("t", name, "w", &delivery), "no").unwrap();
    rig.unsubscribe(consumer);
    delivery
}

#[test]
fn a_redriven_message_is_new_with_its_policy_restored_and_the_redrive_counted() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(1);
        let far = deadline(START.after(Millis(1_000_000)));
        rig.produce_with("t", "a", |asked| {
            asked.key = b"key".into();
            asked.envelope.retry_policy = Some(policy(1, 7, 8));
            asked.envelope.target_topic = Some(topic("t"));
            asked.envelope.partition_override = Some(PartitionId(0));
            asked.envelope.deadline = far.clone();
        });
        let first = die(&mut rig, "g");
        rig.restart(way);
        assert_eq!(redrive(&mut rig), Ok(1));
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        let again = rig.one();
        assert_eq!((again.offset, again.attempts, again.failures), (Offset(1), 1, 0));
        assert_eq!(again.last_error.as_str(), "");
        assert_eq!((again.body.key(), again.body.value()), (first.body.key(), first.body.value()));
        let meta = again.body.metadata();
        assert_eq!(meta.envelope, first.body.metadata().envelope);
        assert_eq!(meta.dead_letter, None);
        let origin = Redrive { count: 1, dead_letter_offset: Offset(0), original_offset: Offset(0) };
        assert_eq!(meta.redrive, Some(origin));
        assert_eq!(rig.kept("dlq.t"), [""; 0], "the dead letter is finished");
    }
}

#[test]
fn a_message_redriven_again_counts_on_and_remembers_its_first_offset() {
    let mut rig = Rig::with_topic(1);
    dead(&mut rig, "g", "a");
    for count in 1..=3 {
        assert_eq!(redrive(&mut rig), Ok(1));
        let again = die(&mut rig, "g");
        let origin = again.body.metadata().redrive.unwrap();
        let expected = Redrive { count, dead_letter_offset: Offset(u64::from(count) - 1), original_offset: Offset(0) };
        assert_eq!(origin, expected);
    }
    assert_eq!(rig.dead_letters("t").len(), 1);
}

#[test]
fn a_redriven_message_is_visible_to_its_group_alone() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(1);
        rig.group("t", "other");
        dead(&mut rig, "g", "a");
        rig.subscribe("t", "other", "w");
        let others = rig.one();
        rig.ack(claim("t", "other", "w", &others)).unwrap();
        redrive(&mut rig).unwrap();
        rig.group("t", "made-later");
        rig.restart(way);
        for name in ["other", "made-later", "made-after-the-restart"] {
            rig.subscribe("t", name, "w");
            assert_eq!(rig.delivered(), [], "{name}");
            rig.seek("t", name, SeekTo::Earliest).unwrap();
            assert_eq!(rig.delivered(), [], "{name} after a seek");
        }
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["a"]);
        rig.seek("t", "g", SeekTo::Earliest).unwrap();
        let again = rig.one();
        assert_eq!(value(&again), "a", "its own group finds it again");
        rig.ack(claim("t", "g", "w", &again)).unwrap();
        assert_eq!(rig.kept("t"), [""; 0], "done for the one group that sees it, it goes");
        rig.seek("t", "other", SeekTo::Earliest).unwrap();
        assert_eq!(rig.delivered(), []);
    }
}

#[test]
fn at_no_record_of_the_log_is_a_redriven_message_in_neither_place_or_in_both() {
    let mut tape = Tape::new();
    tape.topic("t", 1);
    tape.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(1, 0, 0)));
    tape.subscribe("t", "g", "w");
    tape.wait(2_000);
    tape.send(Command::Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 1 }).unwrap();
    for state in tape.states() {
        let (Some(source), Some(dead)) = (state.topic_named(&topic("t")), state.topic_named(&topic("dlq.t"))) else {
            continue;
        };
        let undone = source.group_named(&group("g")).unwrap().progress(PartitionId(0)).unwrap();
        let messages = source.partition(PartitionId(0)).unwrap();
        let live = undone.done().undone_before(messages.next_position());
        assert_eq!(live + dead.partition(PartitionId(0)).unwrap().open().messages, 1);
    }
}

#[test]
fn the_oldest_dead_letters_are_redriven_first_up_to_the_limit() {
    let mut rig = Rig::with_topic(1);
    for value in ["a", "b", "c"] {
        dead(&mut rig, "g", value);
    }
    assert_eq!(redrive_with(&mut rig, RedriveSelection::All, 2), Ok(2));
    assert_eq!(rig.kept("t"), ["a", "b"]);
    assert_eq!(rig.kept("dlq.t"), ["c"]);
}

#[test]
fn named_dead_letters_are_redriven_once_and_what_is_not_there_is_passed_over() {
    let mut rig = Rig::with_topic(1);
    for value in ["a", "b", "c"] {
        dead(&mut rig, "g", value);
    }
    let named = RedriveSelection::Offsets([2, 2, 77, 0].map(Offset).into());
    assert_eq!(redrive_with(&mut rig, named.clone(), 10), Ok(2));
    assert_eq!(rig.kept("dlq.t"), ["b"]);
    let digest = rig.digest();
    assert_eq!(redrive_with(&mut rig, named, 10), Ok(0));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn a_dead_letter_of_a_group_that_is_gone_stays() {
    let mut rig = Rig::with_topic(1);
    dead(&mut rig, "gone", "a");
    rig.delete_group("t", "gone");
    let digest = rig.digest();
    assert_eq!(redrive(&mut rig), Ok(0));
    assert_eq!(rig.digest(), digest);
    assert_eq!(rig.kept("dlq.t"), ["a"]);
}

#[test]
fn a_dead_letter_an_operator_is_done_with_does_not_come_back() {
    let mut rig = Rig::with_topic(1);
    dead(&mut rig, "g", "a");
    dead(&mut rig, "g", "b");
    rig.subscribe("dlq.t", "ops", "w");
    let first = rig.delivered().remove(0);
    rig.ack(claim("dlq.t", "ops", "w", &first)).unwrap();
    assert_eq!(redrive(&mut rig), Ok(1));
    assert_eq!(rig.kept("t"), ["b"]);
}

#[test]
fn redriving_what_an_operator_holds_ends_that_lease_and_gives_its_place_to_the_next() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    dead(&mut rig, "g", "a");
    dead(&mut rig, "g", "b");
    rig.subscribe("dlq.t", "ops", "w");
    let held = rig.one();
    assert_eq!(value(&held), "a");
    assert_eq!(redrive_with(&mut rig, RedriveSelection::Offsets(vec![Offset(0)]), 1), Ok(1));
    assert_eq!(rig.values(), ["b"], "the next dead letter takes the place of the one that left");
    let digest = rig.digest();
    rig.ack(claim("dlq.t", "ops", "w", &held)).unwrap();
    assert_eq!(rig.digest(), digest, "a late word about it changes nothing");
}

#[test]
fn a_redrive_mends_full_dead_letters_and_is_refused_by_a_full_source() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 2);
    rig.topic("t", 1);
    dead(&mut rig, "g", "a");
    dead(&mut rig, "g", "b");
    let refused = rig.try_produce(driftq_core::command::Produce::new(topic("t"), "", "c"));
    assert_eq!(refused, Err(overloaded(Overload::DeadLetters)));
    assert_eq!(redrive_with(&mut rig, RedriveSelection::All, 1), Ok(1));
    rig.produce("t", "c");
    let digest = rig.digest();
    assert_eq!(redrive(&mut rig), Err(overloaded(Overload::Backlog)));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn a_redrive_does_what_there_is_room_for() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 3);
    rig.topic("t", 1);
    dead(&mut rig, "g", "a");
    dead(&mut rig, "g", "b");
    rig.produce("t", "c");
    rig.produce("t", "d");
    assert_eq!(redrive(&mut rig), Ok(1));
    assert_eq!((rig.kept("t").len(), rig.kept("dlq.t").len()), (3, 1));
}

#[test]
fn a_redriven_message_past_its_deadline_is_tried_without_one() {
    for (after, acts) in [(499, true), (500, false), (1_000, false)] {
        let mut rig = Rig::with_topic(1);
        rig.produce_with("t", "a", |asked| {
            asked.envelope.retry_policy = Some(policy(1, 0, 0));
            asked.envelope.deadline = deadline(START.after(Millis(500)));
        });
        die(&mut rig, "g");
        rig.pass(after);
        assert_eq!(redrive(&mut rig), Ok(1));
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.one().body.metadata().envelope.deadline.is_some(), acts, "after {after}");
    }
}

#[test]
fn a_redrive_of_what_cannot_have_dead_letters_is_refused_by_name() {
    let mut rig = Rig::with_topic(1);
    assert_eq!(redrive(&mut rig), Ok(0), "no dead-letter topic, no dead letters");
    dead(&mut rig, "g", "a");
    let of = |name: &str| Command::Redrive { topic: topic(name), which: RedriveSelection::All, limit: 1 };
    assert_eq!(rig.send(of("nope")), Err(Refusal::UnknownTopic(topic("nope"))));
    let refusal = Refusal::Invalid("a dead-letter topic has no dead letters of its own");
    assert_eq!(rig.send(of("dlq.t")), Err(refusal));
}

#[test]
fn the_limit_counts_what_is_redriven_not_what_is_passed_over() {
    let mut rig = Rig::with_topic(1);
    dead(&mut rig, "gone", "a");
    rig.send(Command::DeleteGroup { topic: topic("t"), group: group("gone") }).unwrap();
    dead(&mut rig, "g", "b");
    assert_eq!(
        redrive_with(&mut rig, RedriveSelection::All, 1),
        Ok(1),
        "the dead letter of a deleted group is in front"
    );
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.values(), ["b"]);
}

#[test]
fn a_dead_letter_is_redriven_once_even_where_done_messages_are_retained() {
    let mut rig = Rig::with_topic(1);
    rig.topic_retaining("dlq.t", Some(1_000_000), None);
    dead(&mut rig, "g", "a");
    rig.group("dlq.t", "first");
    assert_eq!(redrive(&mut rig), Ok(1));
    rig.group("dlq.t", "second");
    assert_eq!(redrive(&mut rig), Ok(0), "a new group does not bring it back");
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn one_call_redrives_a_bounded_number_oldest_first_over_all_partitions() {
    let mut config = small_config();
    config.segment_bytes = 8 << 20;
    config.limits.in_flight_max = 5_000;
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic("t", 3);
    let consumer = rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 5_000);
    for number in 0..1_030_u32 {
        rig.produce_with("t", &number.to_string(), |asked| {
            asked.envelope.retry_policy = Some(policy(1, 0, 0));
            asked.envelope.partition_override = Some(PartitionId(number * 7 % 3));
        });
        let delivery = rig.one();
        rig.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    }
    rig.unsubscribe(consumer);
    assert_eq!(redrive_with(&mut rig, RedriveSelection::All, 2), Ok(2));
    assert_eq!(redrive(&mut rig), Ok(1_024));
    assert_eq!(redrive(&mut rig), Ok(4));
    assert_eq!(redrive(&mut rig), Ok(0));
    let mut redriven: Vec<_> = (0..3).flat_map(|partition| rig.kept_in("t", partition)).collect();
    redriven.sort_by_key(|message| message.offset);
    let values: Vec<_> =
        redriven.iter().map(|message| String::from_utf8_lossy(message.body.value()).into_owned()).collect();
    assert_eq!(values, (0..1_030).map(|number: u32| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_redriven_message_goes_back_to_its_partition_or_to_what_is_left_of_it() {
    for (partitions, back_in) in [(4, 3), (2, 1)] {
        let mut rig = Rig::with_topic(4);
        rig.group("t", "g");
        let mut asked = to_partition("t", 3, "", "a");
        asked.envelope.retry_policy = Some(policy(1, 0, 0));
        rig.try_produce(asked).unwrap();
        die(&mut rig, "g");
        if partitions != 4 {
            rig.delete_topic("t");
            rig.topic("t", partitions);
            rig.group("t", "g");
        }
        assert_eq!(redrive(&mut rig), Ok(1));
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.one().partition, PartitionId(back_in));
    }
}
