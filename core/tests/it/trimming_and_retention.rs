//! Trimming: what is done in every group goes, at once or when its topic's time for replay is over.

use super::rig::*;
use driftq_core::log::{FileId, Storage};
use driftq_core::types::*;

fn consume(rig: &mut Rig, name: &str) {
    let consumer = rig.subscribe("t", name, "w");
    for delivery in rig.delivered() {
        rig.ack(claim("t", name, "w", &delivery)).unwrap();
    }
    rig.unsubscribe(consumer);
}

#[test]
fn what_is_done_in_every_group_goes_and_nothing_before() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        for value in ["a", "b", "c"] {
            rig.produce("t", value);
        }
        rig.group("t", "h");
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[1])).unwrap();
        assert_eq!(rig.kept("t"), ["a", "b", "c"]);
        rig.restart(way);
        rig.subscribe("t", "h", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "h", "w", &held[1])).unwrap();
        rig.ack(claim("t", "h", "w", &held[0])).unwrap();
        assert_eq!(rig.kept("t"), ["a", "c"]);
    }
}

#[test]
fn done_messages_are_kept_until_they_are_as_old_as_the_topic_says() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic_retaining("t", Some(10_000), None);
        rig.produce("t", "a");
        rig.pass(1_000);
        rig.produce("t", "b");
        consume(&mut rig, "g");
        rig.restart(way);
        assert_eq!(rig.next_moment(), Some(START.after(Millis(10_000))));
        rig.pass(8_999);
        assert_eq!(rig.kept("t"), ["a", "b"]);
        rig.pass(1);
        assert_eq!(rig.kept("t"), ["b"]);
        assert_eq!(rig.next_moment(), Some(START.after(Millis(11_000))));
        rig.restart_after(way, 5_000);
        assert_eq!(rig.kept("t"), [""; 0], "the age is reached while the broker is down too");
    }
}

#[test]
fn what_is_not_done_does_not_grow_too_old() {
    let mut rig = Rig::new();
    rig.topic_retaining("t", Some(1_000), Some(1));
    for value in ["aaa", "bbb"] {
        rig.produce("t", value);
    }
    rig.group("t", "slow");
    consume(&mut rig, "g");
    rig.pass(1_000_000);
    assert_eq!(rig.kept("t"), ["aaa", "bbb"]);
    consume(&mut rig, "slow");
    rig.pass(0);
    assert_eq!(rig.kept("t"), [""; 0], "done at last and long too old");
}

#[test]
fn done_messages_are_kept_while_they_have_no_more_bytes_than_the_topic_says() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic_retaining("t", None, Some(10));
        for value in ["aaaa", "bbbb", "cccc"] {
            rig.produce("t", value);
        }
        rig.group("t", "g");
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[0])).unwrap();
        rig.ack(claim("t", "g", "w", &held[2])).unwrap();
        assert_eq!(rig.kept("t"), ["aaaa", "bbbb", "cccc"]);
        rig.restart(way);
        rig.ack(claim("t", "g", "w", &held[1])).unwrap();
        assert_eq!(rig.kept("t"), ["bbbb", "cccc"], "the oldest goes first");
        rig.pass(1_000_000_000);
        assert_eq!(rig.kept("t"), ["bbbb", "cccc"], "age is not asked about");
    }
}

#[test]
fn a_new_group_is_shown_what_is_kept_for_replay_whether_the_broker_was_restarted_or_not() {
    let seen_by_a_new_group = |restart: Option<Restart>| {
        let mut rig = Rig::new();
        rig.topic_retaining("t", Some(10_000), None);
        for value in ["a", "b"] {
            rig.produce("t", value);
            rig.pass(3_000);
        }
        rig.produce("t", "c");
        consume(&mut rig, "g");
        rig.pass(4_000);
        if let Some(way) = restart {
            rig.restart(way);
        }
        rig.subscribe("t", "new", "w");
        rig.values()
    };
    let expected = ["b", "c"];
    assert_eq!(seen_by_a_new_group(None), expected);
    for way in RESTARTS {
        assert_eq!(seen_by_a_new_group(Some(way)), expected);
    }
}

#[test]
fn a_replayed_message_is_kept_while_it_is_worked_on_however_old_it_grows() {
    let mut rig = Rig::new();
    rig.topic_retaining("t", Some(10_000), None);
    rig.produce("t", "a");
    consume(&mut rig, "g");
    rig.subscribe_with("t", "new", "w", |asked| asked.lease = Some(Millis(100_000)));
    let held = rig.one();
    rig.pass(50_000);
    assert_eq!(rig.kept("t"), ["a"]);
    rig.ack(claim("t", "new", "w", &held)).unwrap();
    rig.settle();
    assert_eq!(rig.kept("t"), [""; 0]);
}

#[test]
fn thousands_that_grow_too_old_together_all_go() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic_retaining("t", Some(10_000), None);
    for _ in 0..3_000 {
        rig.produce("t", "v");
    }
    rig.group("t", "g");
    rig.seek("t", "g", driftq_core::command::SeekTo::Latest).unwrap();
    assert_eq!(rig.kept("t").len(), 3_000);
    rig.pass(10_000);
    assert_eq!(rig.kept("t").len(), 0);
}

#[test]
fn trimmed_messages_leave_the_disk_once_two_snapshots_stand() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    let bulk = "x".repeat(10_000);
    for _ in 0..20 {
        rig.produce("t", &bulk);
        consume(&mut rig, "g");
    }
    let bytes = |rig: &mut Rig| -> u64 {
        let files = rig.storage.list().unwrap();
        files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).map(|info| info.len).sum()
    };
    let before = bytes(&mut rig);
    assert!(before >= 200_000);
    rig.snapshot();
    assert!(bytes(&mut rig) >= before, "the segments stay until there is a second snapshot");
    rig.produce("t", "small");
    rig.snapshot();
    assert!(bytes(&mut rig) <= 4 * rig.config.segment_bytes, "back to the older of the two");
    assert!(bytes(&mut rig) < before);
    rig.restart(Restart::Crash);
    assert_eq!(rig.kept("t"), ["small"]);
    let files = rig.storage.list().unwrap();
    let snapshots = files.iter().filter(|info| matches!(info.file, FileId::Snapshot(_))).count();
    assert_eq!(snapshots, 2);
}

#[test]
fn what_is_kept_for_replay_changes_nothing_about_what_is_urgent_or_delayed_beside_it() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic_retaining("t", Some(1_000_000), Some(3));
        rig.produce("t", "old");
        consume(&mut rig, "g");
        rig.produce("t", "a");
        rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(500)));
        rig.produce_with("t", "urgent", |asked| asked.envelope.priority = Priority::new(5));
        rig.restart(way);
        assert_eq!(rig.kept("t").len(), 4, "as many bytes as it says are kept");
        assert_eq!(rig.load("t").delayed, 1);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["urgent", "a"]);
        rig.pass(500);
        assert_eq!(rig.values(), ["late"]);
    }
}
