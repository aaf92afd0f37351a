//! Topics: made once, with a count for ever, and gone with everything that is theirs.

use super::rig::*;
use driftq_core::record::Retention;
use driftq_core::reply::CloseCause;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

fn create(rig: &mut Rig, name: &str, partitions: Option<u32>) -> Result<Reply, Refusal> {
    rig.send(Command::CreateTopic { name: topic(name), partitions, retention: Retention::default() })
}

fn created(partitions: u32) -> Result<Reply, Refusal> {
    Ok(Reply::TopicCreated { partitions })
}

#[test]
fn a_topic_has_the_partitions_asked_for_and_one_where_none_or_nought_are() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        assert_eq!(create(&mut rig, "seven", Some(7)), created(7));
        assert_eq!(create(&mut rig, "nought", Some(0)), created(1));
        assert_eq!(create(&mut rig, "unsaid", None), created(1));
        rig.restart(way);
        assert_eq!(rig.topics(), ["nought", "seven", "unsaid"], "empty ones survive, in byte order");
        assert_eq!(rig.describe("seven").partitions.len(), 7);
        assert_eq!(rig.describe("nought").partitions.len(), 1);
    }
}

#[test]
fn making_a_topic_again_is_as_good_as_made_unless_the_count_differs() {
    let mut rig = Rig::new();
    assert_eq!(create(&mut rig, "t", Some(3)), created(3));
    let digest = rig.digest();
    assert_eq!(create(&mut rig, "t", Some(3)), created(3));
    assert_eq!(create(&mut rig, "t", None), created(3));
    for other in [0, 1, 4] {
        assert_eq!(create(&mut rig, "t", Some(other)), Err(Refusal::TopicExists { partitions: 3 }));
    }
    assert_eq!(rig.digest(), digest);
    assert_eq!(create(&mut rig, "one", None), created(1));
    assert_eq!(create(&mut rig, "one", Some(0)), created(1));
}

#[test]
fn there_may_be_only_so_many_partitions() {
    let mut rig = Rig::new();
    let refusal = Refusal::TooMany { what: "partitions", len: 1_025, max: 1_024 };
    assert_eq!(create(&mut rig, "t", Some(1_025)), Err(refusal));
    assert_eq!(create(&mut rig, "t", Some(1_024)), created(1_024));
}

#[test]
fn deleting_a_topic_ends_its_streams_and_no_others() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    rig.topic("u", 1);
    let streams = [rig.subscribe("t", "g", "w"), rig.subscribe("t", "h", "w")];
    let other = rig.subscribe("u", "g", "w");
    rig.delete_topic("t");
    assert_eq!(rig.closed, streams.map(|consumer| (consumer, CloseCause::TopicDeleted)));
    rig.produce("u", "a");
    assert_eq!(rig.served(), [(other, "a".to_owned())]);
}

#[test]
fn a_deleted_topic_is_gone_with_its_messages_groups_and_leases() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        rig.produce_with("t", "late", |asked| asked.delay = Some(Millis(5_000)));
        rig.subscribe("t", "g", "w");
        let held = rig.one();
        rig.delete_topic("t");
        assert_eq!(rig.ack(claim("t", "g", "w", &held)), Err(Refusal::UnknownTopic(topic("t"))));
        rig.restart(way);
        assert_eq!(rig.topics(), [""; 0]);
        assert_eq!(rig.next_moment(), None, "nothing of it comes due");
        rig.topic("t", 3);
        assert_eq!(rig.groups("t"), [""; 0]);
        rig.subscribe("t", "g", "w");
        rig.pass(60_000);
        assert_eq!(rig.delivered(), []);
        assert_eq!(rig.ack(claim("t", "g", "w", &held)), Err(Refusal::StaleLease));
        assert_eq!(rig.produce("t", "b"), Offset(0));
    }
}

#[test]
fn deleting_a_topic_clears_its_produce_identities() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.topic("u", 1);
        rig.try_produce(identified("t", "a", "key")).unwrap();
        rig.try_produce(identified("u", "a", "key")).unwrap();
        rig.delete_topic("t");
        rig.topic("t", 1);
        rig.restart(way);
        assert!(!rig.try_produce(identified("t", "a", "key")).unwrap().duplicate);
        assert!(rig.try_produce(identified("u", "a", "key")).unwrap().duplicate);
    }
}

#[test]
fn what_is_not_there_cannot_be_deleted_or_described() {
    let mut rig = Rig::new();
    let refusal = Err(Refusal::UnknownTopic(topic("t")));
    assert_eq!(rig.send(Command::DeleteTopic { name: topic("t") }), refusal);
    assert_eq!(rig.send(Command::DescribeTopic { name: topic("t") }), refusal);
    rig.topic("t", 1);
    rig.delete_topic("t");
    assert_eq!(rig.send(Command::DeleteTopic { name: topic("t") }), refusal);
}

#[test]
fn a_description_tells_how_a_topic_stands() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    rig.produce_with("t", "ab", |asked| asked.key = b"".into());
    rig.pass(50);
    rig.produce_with("t", "abc", |asked| asked.envelope.partition_override = Some(PartitionId(1)));
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    rig.pass(50);
    let info = rig.describe("t");
    assert_eq!(info.name, topic("t"));
    assert_eq!(info.partitions.iter().map(|p| (p.messages, p.bytes)).collect::<Vec<_>>(), [(1, 2), (1, 3)]);
    assert_eq!(info.partitions.iter().map(|p| p.next_offset.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((info.groups[0].consumers, info.groups[0].paused), (1, false));
    let progress = &info.groups[0].partitions;
    assert_eq!(progress.iter().map(|p| p.in_flight).sum::<u32>(), 1);
    assert_eq!(progress.iter().map(|p| p.oldest_age).collect::<Vec<_>>(), [Some(Millis(100)), Some(Millis(50))]);
}

#[test]
fn no_limit_allows_more_partitions_than_a_record_may_name() {
    let mut rig = Rig::with_limits(|limits| limits.partitions_max = u32::MAX);
    let (len, max) = (u64::from(u32::MAX), u64::from(limits::PARTITIONS_CEILING));
    let refused = Refusal::TooMany { what: "partitions", len, max };
    assert_eq!(create(&mut rig, "t", Some(u32::MAX)), Err(refused));
}
