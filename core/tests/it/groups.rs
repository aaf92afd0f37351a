//! Groups: how they come to be, where they start, and what goes with them.

use super::rig::*;
use driftq_core::record::GroupStart;
use driftq_core::reply::CloseCause;
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

fn with_messages(values: &[&str]) -> Rig {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for value in values {
        rig.produce("t", value);
    }
    rig
}

#[test]
fn a_group_exists_once_it_is_consumed_from_or_created() {
    for way in RESTARTS {
        let mut rig = with_messages(&[]);
        assert_eq!(rig.groups("t"), [""; 0]);
        rig.subscribe("t", "consumed", "w");
        rig.group("t", "created");
        assert_eq!(rig.groups("t"), ["consumed", "created"]);
        rig.restart(way);
        assert_eq!(rig.groups("t"), ["consumed", "created"]);
    }
}

#[test]
fn every_group_gets_every_message_and_keeps_its_own_progress() {
    let mut rig = with_messages(&["a", "b"]);
    rig.group("t", "h");
    for name in ["g", "h"] {
        rig.subscribe("t", name, "w");
        let delivered = rig.delivered();
        assert_eq!(delivered.iter().map(value).collect::<Vec<_>>(), ["a", "b"]);
        if name == "g" {
            rig.ack(claim("t", "g", "w", &delivered[0])).unwrap();
        }
    }
    assert_eq!((rig.progress("t", "g").lag, rig.progress("t", "h").lag), (1, 2));
}

#[test]
fn a_new_group_starts_at_the_earliest_message_kept() {
    for way in RESTARTS {
        let mut rig = with_messages(&["a", "b", "c"]);
        rig.subscribe("t", "g", "w");
        let delivered = rig.delivered();
        rig.ack(claim("t", "g", "w", &delivered[0])).unwrap();
        rig.ack(claim("t", "g", "w", &delivered[2])).unwrap();
        rig.restart(way);
        rig.subscribe("t", "new", "w");
        assert_eq!(rig.values(), ["b"], "what was done in every group is logically gone");
        assert_eq!(rig.progress("t", "new").floor, Some(Offset(0)));
    }
}

#[test]
fn a_new_group_may_start_after_the_newest_message() {
    for way in RESTARTS {
        let mut rig = with_messages(&["a", "b"]);
        rig.group("t", "old");
        rig.subscribe_with("t", "g", "w", |asked| asked.start = GroupStart::Latest);
        rig.group_from_latest("t", "h");
        assert_eq!(rig.delivered(), []);
        let progress = rig.progress("t", "g");
        assert_eq!((progress.lag, progress.floor), (0, Some(Offset(1))));
        rig.produce("t", "c");
        assert_eq!(rig.values(), ["c"]);
        rig.restart(way);
        rig.subscribe("t", "h", "w");
        assert_eq!(rig.values(), ["c"]);
        assert_eq!(rig.progress("t", "old").lag, 3, "another group's work is not touched");
    }
}

#[test]
fn what_the_only_group_will_never_see_is_let_go_of() {
    for way in RESTARTS {
        let mut rig = with_messages(&["a", "b"]);
        rig.group_from_latest("t", "g");
        rig.restart(way);
        assert_eq!((rig.kept("t"), rig.load("t").messages), (vec![], 0));
    }
}

#[test]
fn where_a_group_starts_matters_only_when_it_is_new() {
    let mut rig = with_messages(&["a"]);
    rig.group("t", "g");
    let digest = rig.digest();
    rig.group("t", "g");
    rig.group_from_latest("t", "g");
    assert_eq!(rig.digest(), digest);
    rig.subscribe_with("t", "g", "w", |asked| asked.start = GroupStart::Latest);
    assert_eq!(rig.values(), ["a"]);
}

#[test]
fn a_failed_ack_creates_nothing() {
    let mut rig = with_messages(&["a"]);
    let digest = rig.digest();
    let claim = first_message("t", "nobody", "w");
    let refusal = Refusal::UnknownGroup(group("nobody"));
    assert_eq!(rig.ack(claim.clone()), Err(refusal.clone()));
    assert_eq!(rig.nack(claim.clone(), "r"), Err(refusal.clone()));
    assert_eq!(rig.extend(claim.clone(), None), Err(refusal.clone()));
    assert_eq!(rig.release(claim), Err(refusal));
    assert_eq!(rig.groups("t"), [""; 0]);
    assert_eq!(rig.digest(), digest);
}

#[test]
fn deleting_a_group_ends_its_streams_and_no_others() {
    let mut rig = with_messages(&[]);
    let first = rig.subscribe("t", "g", "w");
    let second = rig.subscribe("t", "g", "x");
    let other = rig.subscribe("t", "h", "w");
    rig.delete_group("t", "g");
    assert_eq!(rig.closed, [(first, CloseCause::GroupDeleted), (second, CloseCause::GroupDeleted)]);
    assert_eq!(rig.send(Command::Unsubscribe { consumer: first }), Err(Refusal::UnknownConsumer));
    rig.produce("t", "a");
    assert_eq!(rig.served(), [(other, "a".to_owned())]);
}

#[test]
fn deleting_a_group_ends_its_leases_and_forgets_its_progress() {
    for way in RESTARTS {
        let mut rig = with_messages(&["a", "b"]);
        rig.group("t", "keeps-them");
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[0])).unwrap();
        rig.delete_group("t", "g");
        assert_eq!(rig.ack(claim("t", "g", "w", &held[1])), Err(Refusal::UnknownGroup(group("g"))));
        rig.restart(way);
        assert_eq!(rig.groups("t"), ["keeps-them"]);
        rig.subscribe("t", "g", "w");
        let again = rig.delivered();
        let seen: Vec<_> = again.iter().map(|d| (value(d), d.attempts, d.failures)).collect();
        assert_eq!(seen, [("a".to_owned(), 1, 0), ("b".to_owned(), 1, 0)]);
        assert_eq!(rig.ack(claim("t", "g", "w", &held[1])), Err(Refusal::StaleLease), "the old lease is no lease");
        rig.pass(60_000);
        assert_eq!(rig.groups("t"), ["g", "keeps-them"], "and nothing of the old group comes due any more");
    }
}

#[test]
fn deleting_a_group_lets_go_of_what_only_it_had_still_to_do() {
    let mut rig = with_messages(&["a", "b"]);
    rig.group("t", "slow");
    rig.subscribe("t", "g", "w");
    let held = rig.delivered();
    rig.ack(claim("t", "g", "w", &held[0])).unwrap();
    assert_eq!(rig.kept("t"), ["a", "b"]);
    rig.delete_group("t", "slow");
    assert_eq!(rig.kept("t"), ["b"]);
}

#[test]
fn where_no_group_is_left_nothing_counts_as_done() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic_retaining("t", Some(1_000_000), None);
        for value in ["a", "b"] {
            rig.produce("t", value);
        }
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert_eq!(rig.load("t").messages, 1);
        rig.delete_group("t", "g");
        rig.restart(way);
        assert_eq!(rig.load("t").messages, 2);
        rig.pass(2_000_000);
        assert_eq!(rig.kept("t"), ["a", "b"], "what is not done does not grow too old");
    }
}

#[test]
fn what_names_no_group_is_refused_by_name() {
    let mut rig = with_messages(&[]);
    let digest = rig.digest();
    let nobody = Refusal::UnknownGroup(group("nobody"));
    let delete = Command::DeleteGroup { topic: topic("t"), group: group("nobody") };
    assert_eq!(rig.send(delete), Err(nobody));
    let nowhere = Refusal::UnknownTopic(topic("nowhere"));
    for command in [
        Command::Subscribe(subscribe("nowhere", "g", "w")),
        Command::CreateGroup { topic: topic("nowhere"), group: group("g"), start: GroupStart::Earliest },
        Command::DeleteGroup { topic: topic("nowhere"), group: group("g") },
        Command::ListGroups { topic: topic("nowhere") },
    ] {
        assert_eq!(rig.send(command), Err(nowhere.clone()));
    }
    assert_eq!(rig.digest(), digest);
}

#[test]
fn a_group_of_the_same_name_in_another_topic_is_another_group() {
    let mut rig = with_messages(&["a"]);
    rig.topic("u", 1);
    rig.subscribe("u", "g", "w");
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    rig.delete_group("t", "g");
    assert_eq!(rig.groups("u"), ["g"]);
}
