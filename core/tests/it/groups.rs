//! Consumer groups: creation, start position and deletion.

use super::test_broker::*;
use driftq_core::command::{CreateGroup, DeleteGroup, ListGroups, Unsubscribe};
use driftq_core::reply::CloseCause;
use driftq_core::types::{GroupStart, *};
use driftq_core::{Command, Refusal};

fn with_messages(values: &[&str]) -> TestBroker {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for value in values {
        broker.produce("t", value);
    }
    broker
}

#[test]
fn group_exists_once_consumed_from_or_created() {
    for restart in RESTARTS {
        let mut broker = with_messages(&[]);
        assert_eq!(broker.groups("t"), [""; 0]);
        broker.subscribe("t", "consumed", "w");
        broker.group("t", "created");
        assert_eq!(broker.groups("t"), ["consumed", "created"]);
        broker.restart(restart);
        assert_eq!(broker.groups("t"), ["consumed", "created"]);
    }
}

#[test]
fn groups_each_receive_every_message_and_keep_own_progress() {
    let mut broker = with_messages(&["a", "b"]);
    broker.group("t", "h");
    for name in ["g", "h"] {
        broker.subscribe("t", name, "w");
        let delivered = broker.delivered();
        assert_eq!(delivered.iter().map(value).collect::<Vec<_>>(), ["a", "b"]);
        if name == "g" {
            broker.ack(claim("t", "g", "w", &delivered[0])).unwrap();
        }
    }
    assert_eq!((broker.progress("t", "g").lag, broker.progress("t", "h").lag), (1, 2));
}

#[test]
fn new_group_starts_at_earliest_stored_message() {
    for restart in RESTARTS {
        let mut broker = with_messages(&["a", "b", "c"]);
        broker.subscribe("t", "g", "w");
        let delivered = broker.delivered();
        broker.ack(claim("t", "g", "w", &delivered[0])).unwrap();
        broker.ack(claim("t", "g", "w", &delivered[2])).unwrap();
        broker.restart(restart);
        broker.subscribe("t", "new", "w");
        assert_eq!(broker.delivered_values(), ["b"], "a message acked in every group is gone");
        assert_eq!(broker.progress("t", "new").floor, Some(Offset(0)));
    }
}

#[test]
fn new_group_may_start_after_newest_message() {
    for restart in RESTARTS {
        let mut broker = with_messages(&["a", "b"]);
        broker.group("t", "old");
        broker.subscribe_with("t", "g", "w", |request| request.start = GroupStart::Latest);
        broker.group_from_latest("t", "h");
        assert_eq!(broker.delivered(), []);
        let progress = broker.progress("t", "g");
        assert_eq!((progress.lag, progress.floor), (0, Some(Offset(1))));
        broker.produce("t", "c");
        assert_eq!(broker.delivered_values(), ["c"]);
        broker.restart(restart);
        broker.subscribe("t", "h", "w");
        assert_eq!(broker.delivered_values(), ["c"]);
        assert_eq!(broker.progress("t", "old").lag, 3, "the progress of another group is unchanged");
    }
}

#[test]
fn messages_below_latest_start_of_only_group_are_trimmed() {
    for restart in RESTARTS {
        let mut broker = with_messages(&["a", "b"]);
        broker.group_from_latest("t", "g");
        broker.restart(restart);
        assert_eq!((broker.stored_values("t"), broker.partition_info("t").messages), (vec![], 0));
    }
}

#[test]
fn start_position_of_existing_group_is_ignored() {
    let mut broker = with_messages(&["a"]);
    broker.group("t", "g");
    let digest = broker.digest();
    broker.group("t", "g");
    broker.group_from_latest("t", "g");
    assert_eq!(broker.digest(), digest);
    broker.subscribe_with("t", "g", "w", |request| request.start = GroupStart::Latest);
    assert_eq!(broker.delivered_values(), ["a"]);
}

#[test]
fn failed_ack_creates_no_group() {
    let mut broker = with_messages(&["a"]);
    let digest = broker.digest();
    let claim = first_message("t", "unknown", "w");
    let refusal = Refusal::UnknownGroup(group("unknown"));
    assert_eq!(broker.ack(claim.clone()), Err(refusal.clone()));
    assert_eq!(broker.nack(claim.clone(), "r"), Err(refusal.clone()));
    assert_eq!(broker.extend(claim.clone(), None), Err(refusal.clone()));
    assert_eq!(broker.release(claim), Err(refusal));
    assert_eq!(broker.groups("t"), [""; 0]);
    assert_eq!(broker.digest(), digest);
}

#[test]
fn deleted_group_closes_its_streams_only() {
    let mut broker = with_messages(&[]);
    let first = broker.subscribe("t", "g", "w");
    let second = broker.subscribe("t", "g", "x");
    let other = broker.subscribe("t", "h", "w");
    broker.delete_group("t", "g");
    assert_eq!(broker.closed, [(first, CloseCause::GroupDeleted), (second, CloseCause::GroupDeleted)]);
    assert_eq!(broker.send(Command::Unsubscribe(Unsubscribe { consumer: first })), Err(Refusal::UnknownConsumer));
    broker.produce("t", "a");
    assert_eq!(broker.delivered_by_consumer(), [(other, "a".to_owned())]);
}

#[test]
fn deleted_group_loses_leases_and_progress() {
    for restart in RESTARTS {
        let mut broker = with_messages(&["a", "b"]);
        broker.group("t", "keeps-them");
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[0])).unwrap();
        broker.delete_group("t", "g");
        assert_eq!(broker.ack(claim("t", "g", "w", &held[1])), Err(Refusal::UnknownGroup(group("g"))));
        broker.restart(restart);
        assert_eq!(broker.groups("t"), ["keeps-them"]);
        broker.subscribe("t", "g", "w");
        let again = broker.delivered();
        let seen: Vec<_> = again.iter().map(|d| (value(d), d.attempts, d.failures)).collect();
        assert_eq!(seen, [("a".to_owned(), 1, 0), ("b".to_owned(), 1, 0)]);
        assert_eq!(
            broker.ack(claim("t", "g", "w", &held[1])),
            Err(Refusal::StaleLease),
            "a lease of the deleted group is stale"
        );
        broker.advance(60_000);
        assert_eq!(broker.groups("t"), ["g", "keeps-them"], "no timer of the deleted group is left");
    }
}

#[test]
fn deleted_group_releases_messages_only_it_had_not_acked() {
    let mut broker = with_messages(&["a", "b"]);
    broker.group("t", "slow");
    broker.subscribe("t", "g", "w");
    let held = broker.delivered();
    broker.ack(claim("t", "g", "w", &held[0])).unwrap();
    assert_eq!(broker.stored_values("t"), ["a", "b"]);
    broker.delete_group("t", "slow");
    assert_eq!(broker.stored_values("t"), ["b"]);
}

#[test]
fn deleting_last_group_makes_all_messages_unacked() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(1_000_000), None);
        for value in ["a", "b"] {
            broker.produce("t", value);
        }
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert_eq!(broker.partition_info("t").messages, 1);
        broker.delete_group("t", "g");
        broker.restart(restart);
        assert_eq!(broker.partition_info("t").messages, 2);
        broker.advance(2_000_000);
        assert_eq!(broker.stored_values("t"), ["a", "b"], "an unacked message does not age out");
    }
}

#[test]
fn unknown_group_or_topic_is_refused() {
    let mut broker = with_messages(&[]);
    let digest = broker.digest();
    let unknown_group = Refusal::UnknownGroup(group("unknown"));
    let delete = Command::DeleteGroup(DeleteGroup { topic: topic("t"), group: group("unknown") });
    assert_eq!(broker.send(delete), Err(unknown_group));
    let unknown_topic = Refusal::UnknownTopic(topic("nowhere"));
    for command in [
        Command::Subscribe(subscribe("nowhere", "g", "w")),
        Command::CreateGroup(CreateGroup { topic: topic("nowhere"), group: group("g"), start: GroupStart::Earliest }),
        Command::DeleteGroup(DeleteGroup { topic: topic("nowhere"), group: group("g") }),
        Command::ListGroups(ListGroups { topic: topic("nowhere") }),
    ] {
        assert_eq!(broker.send(command), Err(unknown_topic.clone()));
    }
    assert_eq!(broker.digest(), digest);
}

#[test]
fn groups_of_same_name_in_two_topics_are_separate() {
    let mut broker = with_messages(&["a"]);
    broker.topic("u", 1);
    broker.subscribe("u", "g", "w");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    broker.delete_group("t", "g");
    assert_eq!(broker.groups("u"), ["g"]);
}
