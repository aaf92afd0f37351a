//! Seek: a group's progress is set, and what was before is fenced off.

use super::rig::*;
use driftq_core::Refusal;
use driftq_core::command::SeekTo;
use driftq_core::types::*;

/// A topic that keeps what is done, with messages `0` to `4`, a second apart, all acked by `g`.
fn replayable() -> Rig {
    let mut rig = Rig::new();
    rig.topic_retaining("t", Some(1_000_000), None);
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(500_000)));
    for value in 0..5 {
        rig.produce("t", &value.to_string());
        let delivery = rig.one();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        rig.pass(1_000);
    }
    rig
}

#[test]
fn a_seek_replays_what_is_kept_from_its_target_on() {
    for (to, expected) in [
        (SeekTo::Earliest, vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Latest, vec![]),
        (SeekTo::Offset(Offset(0)), vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Offset(Offset(3)), vec!["3", "4"]),
        (SeekTo::Offset(Offset(99)), vec![]),
        (SeekTo::Time(START), vec!["0", "1", "2", "3", "4"]),
        (SeekTo::Time(START.after(Millis(1_001))), vec!["2", "3", "4"]),
        (SeekTo::Time(START.after(Millis(2_000))), vec!["2", "3", "4"]),
        (SeekTo::Time(Timestamp::MAX), vec![]),
    ] {
        for way in RESTARTS {
            let mut rig = replayable();
            rig.pause("t", "g");
            rig.seek("t", "g", to).unwrap();
            assert_eq!(rig.progress("t", "g").lag, expected.len() as u64);
            rig.restart(way);
            rig.resume("t", "g");
            rig.subscribe("t", "g", "w");
            assert_eq!(rig.values(), expected, "{to:?}");
        }
    }
}

#[test]
fn a_seek_serves_the_streams_that_are_waiting() {
    let mut rig = replayable();
    rig.seek("t", "g", SeekTo::Offset(Offset(4))).unwrap();
    assert_eq!(rig.values(), ["4"]);
}

#[test]
fn a_seek_sets_a_new_floor_and_clears_what_was_acked_above_it() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic_retaining("t", Some(1_000_000), None);
        for value in ["a", "b", "c", "d"] {
            rig.produce("t", value);
        }
        let consumer = rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[2])).unwrap();
        rig.unsubscribe(consumer);
        rig.seek("t", "g", SeekTo::Offset(Offset(1))).unwrap();
        let progress = rig.progress("t", "g");
        assert_eq!((progress.floor, progress.lag), (Some(Offset(0)), 3));
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["b", "c", "d"]);
    }
}

#[test]
fn a_seek_fences_every_lease_of_the_group_and_of_no_other() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        for name in ["g", "h"] {
            rig.subscribe("t", name, "w");
        }
        let held = rig.delivered();
        rig.seek("t", "g", SeekTo::Earliest).unwrap();
        let again = rig.one();
        assert_eq!((again.attempts, again.failures), (1, 0), "its history in the group is new");
        assert!(again.token > held[0].token);
        rig.restart(way);
        let digest = rig.digest();
        assert_eq!(rig.ack(claim("t", "g", "w", &held[0])), Err(Refusal::StaleLease));
        assert_eq!(rig.extend(claim("t", "g", "w", &held[0]), None), Err(Refusal::StaleLease));
        assert_eq!(rig.digest(), digest);
        rig.ack(claim("t", "h", "w", &held[1])).unwrap();
        rig.ack(claim("t", "g", "w", &again)).unwrap();
    }
}

#[test]
fn a_lease_fenced_by_a_seek_past_its_message_is_a_late_word_about_a_done_one() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.group("t", "keeps-it");
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let held = rig.one();
    rig.seek("t", "g", SeekTo::Latest).unwrap();
    let digest = rig.digest();
    rig.ack(claim("t", "g", "w", &held)).unwrap();
    rig.nack(claim("t", "g", "w", &held), "late").unwrap();
    assert_eq!(rig.digest(), digest);
    rig.pass(60_000);
    assert_eq!(rig.delivered(), []);
    assert_eq!(rig.progress("t", "g").in_flight, 0);
}

#[test]
fn a_seek_ends_the_waits_of_retries() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.nack_with_delay(claim("t", "g", "w", &delivery), 60_000).unwrap();
    rig.seek("t", "g", SeekTo::Earliest).unwrap();
    let again = rig.one();
    assert_eq!((again.attempts, again.last_error.as_str()), (1, ""));
    rig.pass(1_000);
    assert_eq!(rig.delivered(), []);
}

#[test]
fn a_seek_does_not_end_the_delay_of_a_message() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(5_000)));
    rig.subscribe("t", "g", "w");
    rig.seek("t", "g", SeekTo::Earliest).unwrap();
    rig.pass(4_999);
    assert_eq!(rig.delivered(), []);
    rig.pass(1);
    assert_eq!(rig.values(), ["late"]);
}

#[test]
fn a_replay_keeps_priorities_and_does_not_repeat_delays() {
    let mut rig = Rig::new();
    rig.topic_retaining("t", Some(1_000_000), None);
    rig.produce_with("t", "was late", |asked| asked.delay = Some(Millis(1_000)));
    rig.produce("t", "plain");
    rig.produce_with("t", "urgent", |asked| asked.envelope.priority = Priority::new(2));
    rig.subscribe("t", "g", "w");
    rig.pass(1_000);
    for delivery in rig.delivered() {
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(rig.progress("t", "g").lag, 0);
    rig.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(rig.values(), ["urgent", "was late", "plain"]);
}

#[test]
fn what_is_no_longer_kept_is_not_replayed() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        for value in ["a", "b", "c"] {
            rig.produce("t", value);
        }
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[2])).unwrap();
        rig.produce("t", "d");
        rig.delivered();
        rig.seek("t", "g", SeekTo::Offset(Offset(1))).unwrap();
        let held = rig.delivered();
        assert_eq!(
            held.iter().map(value).collect::<Vec<_>>(),
            ["b", "d"],
            "what is gone behind the target is passed by"
        );
        assert_eq!(rig.progress("t", "g").lag, 2);
        rig.ack(claim("t", "g", "w", &held[1])).unwrap();
        rig.seek("t", "g", SeekTo::Earliest).unwrap();
        assert_eq!(rig.values(), ["b"]);
        assert_eq!(rig.progress("t", "g").floor, Some(Offset(0)));
        rig.restart(way);
        assert_eq!(rig.progress("t", "g").lag, 1);
    }
}

#[test]
fn seeking_the_only_group_past_its_messages_lets_go_of_them() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    for partition in [0, 1, 0, 1] {
        rig.produce_with("t", "v", |asked| asked.envelope.partition_override = Some(PartitionId(partition)));
    }
    rig.group("t", "g");
    rig.seek("t", "g", SeekTo::Offset(Offset(2))).unwrap();
    assert_eq!(rig.kept_in("t", 0).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [2]);
    assert_eq!(rig.kept_in("t", 1).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [3]);
    rig.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(rig.kept_in("t", 0).len() + rig.kept_in("t", 1).len(), 0);
}

#[test]
fn one_groups_seek_moves_no_other_group() {
    let mut rig = replayable();
    rig.group("t", "h");
    let before = rig.progress("t", "h");
    rig.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(rig.progress("t", "h"), before);
    rig.seek("t", "g", SeekTo::Latest).unwrap();
    assert_eq!(rig.progress("t", "h"), before);
    assert_eq!(rig.seek("t", "nobody", SeekTo::Latest), Err(Refusal::UnknownGroup(group("nobody"))));
}

#[test]
fn a_delayed_message_that_a_seek_went_past_does_not_come_when_its_moment_does() {
    let mut rig = Rig::with_topic(1);
    rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(1_000)));
    rig.group("t", "other");
    rig.subscribe("t", "g", "w");
    rig.seek("t", "g", SeekTo::Latest).unwrap();
    rig.pass(1_000);
    assert_eq!(rig.delivered(), []);
    rig.produce("t", "next");
    assert_eq!(rig.values(), ["next"]);
    rig.subscribe("t", "other", "w");
    assert_eq!(rig.values(), ["late", "next"]);
}
