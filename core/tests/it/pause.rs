//! Pause: a group is handed nothing until it is resumed.

use super::rig::*;
use driftq_core::reply::Blocked;
use driftq_core::{Command, Refusal};

fn with_message() -> Rig {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.group("t", "g");
    rig
}

#[test]
fn a_paused_group_is_handed_nothing_and_others_go_on() {
    for way in RESTARTS {
        let mut rig = with_message();
        rig.pause("t", "g");
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        rig.produce("t", "b");
        assert_eq!(rig.delivered(), []);
        assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::Paused));
        assert!(rig.describe("t").groups[0].paused);
        rig.subscribe("t", "other", "w");
        assert_eq!(rig.values(), ["a", "b"]);
    }
}

#[test]
fn a_resumed_group_goes_on_where_it_was() {
    for way in RESTARTS {
        let mut rig = with_message();
        rig.pause("t", "g");
        rig.produce("t", "b");
        rig.resume("t", "g");
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["a", "b"]);
    }
}

#[test]
fn a_stream_waiting_at_a_paused_group_is_served_at_once_when_it_is_resumed() {
    let mut rig = with_message();
    rig.subscribe("t", "g", "w");
    rig.delivered();
    rig.pause("t", "g");
    rig.produce("t", "b");
    assert_eq!(rig.delivered(), []);
    rig.resume("t", "g");
    assert_eq!(rig.values(), ["b"]);
}

#[test]
fn what_a_paused_group_holds_can_be_settled_and_expires_as_ever() {
    let mut rig = with_message();
    rig.produce("t", "b");
    rig.subscribe("t", "g", "w");
    let held = rig.delivered();
    rig.pause("t", "g");
    rig.ack(claim("t", "g", "w", &held[0])).unwrap();
    rig.pass(2_000);
    let progress = rig.progress("t", "g");
    assert_eq!((progress.lag, progress.in_flight, progress.waiting), (1, 0, 1));
    assert_eq!(rig.delivered(), []);
    rig.resume("t", "g");
    assert_eq!(rig.one().attempts, 2);
}

#[test]
fn pausing_or_resuming_twice_is_as_good_as_once() {
    let mut rig = with_message();
    let running = rig.digest();
    rig.resume("t", "g");
    assert_eq!(rig.digest(), running);
    rig.pause("t", "g");
    let paused = rig.digest();
    rig.pause("t", "g");
    assert_eq!(rig.digest(), paused);
    let commands = [
        Command::Pause { topic: topic("t"), group: group("x") },
        Command::Resume { topic: topic("t"), group: group("x") },
    ];
    for command in commands {
        assert_eq!(rig.send(command), Err(Refusal::UnknownGroup(group("x"))));
    }
}
