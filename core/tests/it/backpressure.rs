//! Backpressure: a partition holds so many unfinished messages and bytes, and says so.

use super::rig::*;
use driftq_core::Refusal;
use driftq_core::command::Produce;
use driftq_core::reply::Overload;
use driftq_core::types::*;

fn limited(messages: u64, bytes: u64) -> Rig {
    let mut rig = Rig::with_limits(|limits| {
        limits.partition_messages_max = messages;
        limits.partition_bytes_max = bytes;
    });
    rig.topic("t", 2);
    rig
}

fn plain(key: &str, value: &str) -> Produce {
    to_partition("t", 0, key, value)
}

#[test]
fn a_partition_takes_as_many_unfinished_messages_as_the_limit_says() {
    for way in RESTARTS {
        let mut rig = limited(3, 1_000);
        for _ in 0..3 {
            rig.try_produce(plain("", "v")).unwrap();
        }
        rig.restart(way);
        let digest = rig.digest();
        assert_eq!(rig.try_produce(plain("", "v")), Err(overloaded(Overload::Backlog)));
        assert_eq!(Overload::Backlog.code(), "overloaded");
        assert_eq!(rig.digest(), digest, "a refusal has no effect");
        let mut other = plain("", "v");
        other.envelope.partition_override = Some(PartitionId(1));
        rig.try_produce(other).expect("the other partition has room");
    }
}

#[test]
fn bytes_are_those_of_key_and_value_and_nothing_else() {
    let mut rig = limited(1_000, 20);
    let mut wordy = plain("1234", "123456");
    wordy.envelope.labels = [("label".into(), "x".repeat(100).into())].into();
    rig.try_produce(wordy).unwrap();
    assert_eq!(rig.load("t").bytes, 10);
    assert_eq!(rig.try_produce(plain("12345", "123456")), Err(overloaded(Overload::Backlog)));
    rig.try_produce(plain("1234", "123456")).unwrap();
    assert_eq!((rig.load("t").messages, rig.load("t").bytes), (2, 20));
}

#[test]
fn what_is_done_gives_back_its_own_bytes() {
    let mut rig = Rig::with_topic(1);
    for value in ["1", "22", "4444"] {
        rig.produce("t", value);
    }
    rig.subscribe("t", "g", "w");
    let held = rig.delivered();
    assert_eq!((rig.load("t").messages, rig.load("t").bytes), (3, 7));
    rig.ack(claim("t", "g", "w", &held[1])).unwrap();
    assert_eq!((rig.load("t").messages, rig.load("t").bytes), (2, 5));
}

#[test]
fn a_message_that_could_never_fit_is_told_so() {
    let mut rig = limited(1, 20);
    let refusal = Refusal::TooLarge { what: "key and value", len: 21, max: 20 };
    assert_eq!(rig.try_produce(plain("1", &"v".repeat(20))), Err(refusal.clone()));
    rig.try_produce(plain("", &"v".repeat(20))).unwrap();
    assert_eq!(rig.try_produce(plain("1", &"v".repeat(20))), Err(refusal), "even while there is no room at all");
}

#[test]
fn the_specs_own_limits_are_two_messages_and_twenty_bytes() {
    let mut config = small_config();
    config.limits = Limits::spec();
    let mut rig = Rig::with(config, driftq_core::faults::NoFaults);
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.produce("t", "b");
    assert_eq!(rig.try_produce(Produce::new(topic("t"), "", "c")), Err(overloaded(Overload::Backlog)));
}

#[test]
fn a_message_counts_until_it_is_done_in_every_group() {
    for way in RESTARTS {
        let mut rig = limited(1, 1_000);
        for name in ["g", "h"] {
            rig.subscribe("t", name, "w");
        }
        rig.try_produce(plain("", "v")).unwrap();
        let held = rig.delivered();
        assert!(rig.try_produce(plain("", "v")).is_err(), "being worked on is not being done");
        rig.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert!(rig.try_produce(plain("", "v")).is_err(), "one group is not every group");
        rig.restart(way);
        assert!(rig.try_produce(plain("", "v")).is_err());
        rig.ack(claim("t", "h", "w", &held[1])).unwrap();
        rig.try_produce(plain("", "v")).unwrap();
    }
}

#[test]
fn where_no_group_exists_yet_everything_counts() {
    let mut rig = limited(2, 1_000);
    rig.try_produce(plain("", "v")).unwrap();
    rig.try_produce(plain("", "v")).unwrap();
    assert_eq!(rig.try_produce(plain("", "v")), Err(overloaded(Overload::Backlog)));
}

#[test]
fn a_departed_group_blocks_a_partition_until_it_is_deleted() {
    let mut rig = limited(1, 1_000);
    rig.group("t", "departed");
    rig.subscribe("t", "g", "w");
    rig.try_produce(plain("", "v")).unwrap();
    let delivery = rig.one();
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    assert!(rig.try_produce(plain("", "v")).is_err());
    rig.delete_group("t", "departed");
    rig.try_produce(plain("", "v")).unwrap();
}

#[test]
fn delayed_and_retried_messages_count_and_dead_lettered_ones_do_not() {
    let mut rig = limited(1, 1_000);
    let mut asked = plain("", "v");
    asked.delay = Some(Millis(1_000));
    asked.envelope.retry_policy = Some(policy(2, 60_000, 0));
    rig.try_produce(asked).unwrap();
    assert!(rig.try_produce(plain("", "v")).is_err(), "delayed");
    rig.subscribe("t", "g", "w");
    rig.pass(3_000);
    assert!(rig.try_produce(plain("", "v")).is_err(), "waiting for its retry");
    rig.pass(62_000);
    assert_eq!(rig.delivered().len(), 2);
    assert_eq!(rig.load("t").messages, 0, "dead");
    assert_eq!(rig.try_produce(plain("", "v")), Err(overloaded(Overload::DeadLetters)), "which now counts over there");
}

#[test]
fn done_messages_kept_for_replay_do_not_count_until_a_group_wants_them_again() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 1);
    rig.topic_retaining("t", Some(1_000_000), None);
    rig.subscribe("t", "g", "w");
    for value in ["a", "b", "c"] {
        rig.produce("t", value);
        let delivery = rig.one();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(rig.kept("t"), ["a", "b", "c"]);
    assert_eq!(rig.load("t").messages, 0);
    rig.group("t", "new");
    assert_eq!(rig.load("t").messages, 3);
    assert_eq!(rig.try_produce(Produce::new(topic("t"), "", "d")), Err(overloaded(Overload::Backlog)));
}

#[test]
fn too_many_identities_topics_groups_or_streams_are_refused_and_none_is_evicted() {
    let mut rig = Rig::with_limits(|limits| {
        limits.dedupe_keys_max = 2;
        limits.topics_max = 2;
        limits.groups_max = 1;
        limits.consumers_max = 1;
    });
    rig.topic("t", 1);
    rig.topic("u", 1);
    rig.subscribe("t", "g", "w");
    let first = rig.try_produce(identified("t", "v", "1")).unwrap();
    rig.try_produce(identified("t", "v", "2")).unwrap();
    let digest = rig.digest();
    assert_eq!(rig.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::Identities)));
    let again = rig.try_produce(identified("t", "v", "1")).unwrap();
    assert_eq!((again.offset, again.duplicate), (first.offset, true));
    let create = driftq_core::Command::CreateTopic {
        name: topic("x"),
        partitions: None,
        retention: driftq_core::record::Retention::default(),
    };
    assert_eq!(rig.send(create), Err(overloaded(Overload::Objects)));
    let start = driftq_core::record::GroupStart::Earliest;
    let create = driftq_core::Command::CreateGroup { topic: topic("t"), group: group("h"), start };
    assert_eq!(rig.send(create), Err(overloaded(Overload::Objects)));
    let join = driftq_core::Command::Subscribe(subscribe("t", "g", "x"));
    assert_eq!(rig.send(join), Err(overloaded(Overload::Objects)));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn an_identity_that_has_left_its_window_takes_no_room_even_before_it_is_swept() {
    let mut rig = Rig::with_limits(|limits| {
        limits.dedupe_keys_max = 2;
        limits.dedupe_ttl = driftq_core::types::Millis(100);
    });
    rig.topic("t", 1);
    rig.try_produce(identified("t", "v", "1")).unwrap();
    rig.pass(99);
    rig.try_produce(identified("t", "v", "2")).unwrap();
    assert_eq!(rig.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::Identities)));
    rig.pass(1);
    assert!(!rig.try_produce(identified("t", "v", "1")).unwrap().duplicate, "its window has ended");
    assert_eq!(rig.try_produce(identified("t", "v", "3")), Err(overloaded(Overload::Identities)));
}
