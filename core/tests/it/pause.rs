//! Pause: a paused group receives no deliveries until it is resumed.

use super::test_broker::*;
use driftq_core::command::{Pause, Resume};
use driftq_core::reply::Blocked;
use driftq_core::{Command, Refusal};

fn with_message() -> TestBroker {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.group("t", "g");
    broker
}

#[test]
fn paused_group_receives_nothing_and_others_continue() {
    for restart in RESTARTS {
        let mut broker = with_message();
        broker.pause("t", "g");
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        broker.produce("t", "b");
        assert_eq!(broker.delivered(), []);
        assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::Paused));
        assert!(broker.describe("t").groups[0].paused);
        broker.subscribe("t", "other", "w");
        assert_eq!(broker.delivered_values(), ["a", "b"]);
    }
}

#[test]
fn resumed_group_continues_where_it_was() {
    for restart in RESTARTS {
        let mut broker = with_message();
        broker.pause("t", "g");
        broker.produce("t", "b");
        broker.resume("t", "g");
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["a", "b"]);
    }
}

#[test]
fn stream_of_paused_group_is_served_at_once_on_resume() {
    let mut broker = with_message();
    broker.subscribe("t", "g", "w");
    broker.delivered();
    broker.pause("t", "g");
    broker.produce("t", "b");
    assert_eq!(broker.delivered(), []);
    broker.resume("t", "g");
    assert_eq!(broker.delivered_values(), ["b"]);
}

#[test]
fn lease_in_paused_group_can_be_acked_and_expires() {
    let mut broker = with_message();
    broker.produce("t", "b");
    broker.subscribe("t", "g", "w");
    let held = broker.delivered();
    broker.pause("t", "g");
    broker.ack(claim("t", "g", "w", &held[0])).unwrap();
    broker.advance(2_000);
    let progress = broker.progress("t", "g");
    assert_eq!((progress.lag, progress.in_flight, progress.waiting), (1, 0, 1));
    assert_eq!(broker.delivered(), []);
    broker.resume("t", "g");
    assert_eq!(broker.expect_delivery().attempts, 2);
}

#[test]
fn pause_and_resume_are_idempotent() {
    let mut broker = with_message();
    let running = broker.digest();
    broker.resume("t", "g");
    assert_eq!(broker.digest(), running);
    broker.pause("t", "g");
    let paused = broker.digest();
    broker.pause("t", "g");
    assert_eq!(broker.digest(), paused);
    let commands = [
        Command::Pause(Pause { topic: topic("t"), group: group("x") }),
        Command::Resume(Resume { topic: topic("t"), group: group("x") }),
    ];
    for command in commands {
        assert_eq!(broker.send(command), Err(Refusal::UnknownGroup(group("x"))));
    }
}
