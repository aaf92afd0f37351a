//! Topics: creation, partition count, deletion and description.

use super::test_broker::*;
use driftq_core::command::{CreateTopic, DeleteTopic, DescribeTopic};
use driftq_core::reply::{CloseCause, TopicSetting};
use driftq_core::types::{Retention, *};
use driftq_core::{Command, Refusal, Reply};

fn create(broker: &mut TestBroker, name: &str, partitions: Option<u32>) -> Result<Reply, Refusal> {
    broker.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions, retention: Retention::default() }))
}

fn created(partitions: u32) -> Result<Reply, Refusal> {
    Ok(Reply::TopicCreated { partitions, retention: Retention::NOTHING })
}

#[test]
fn topic_has_requested_partitions_or_one_by_default() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        assert_eq!(create(&mut broker, "seven", Some(7)), created(7));
        assert_eq!(create(&mut broker, "zero", Some(0)), created(1));
        assert_eq!(create(&mut broker, "default", None), created(1));
        broker.restart(restart);
        assert_eq!(broker.topics(), ["default", "seven", "zero"], "empty topics survive, listed in byte order");
        assert_eq!(broker.describe("seven").partitions.len(), 7);
        assert_eq!(broker.describe("zero").partitions.len(), 1);
    }
}

#[test]
fn create_topic_repeated_succeeds_unless_partition_count_differs() {
    let mut broker = TestBroker::new();
    assert_eq!(create(&mut broker, "t", Some(3)), created(3));
    let digest = broker.digest();
    assert_eq!(create(&mut broker, "t", Some(3)), created(3));
    assert_eq!(create(&mut broker, "t", None), created(3));
    for other in [0, 1, 4] {
        assert_eq!(
            create(&mut broker, "t", Some(other)),
            Err(Refusal::TopicExists { differing: vec![TopicSetting::Partitions(3)] })
        );
    }
    assert_eq!(broker.digest(), digest);
    assert_eq!(create(&mut broker, "one", None), created(1));
    assert_eq!(create(&mut broker, "one", Some(0)), created(1));
}

#[test]
fn topic_over_partition_limit_is_refused() {
    let mut broker = TestBroker::new();
    let refusal = Refusal::TooMany { what: "partitions", len: 1_025, max: 1_024 };
    assert_eq!(create(&mut broker, "t", Some(1_025)), Err(refusal));
    assert_eq!(create(&mut broker, "t", Some(1_024)), created(1_024));
}

#[test]
fn deleted_topic_closes_its_streams_only() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    broker.topic("u", 1);
    let streams = [broker.subscribe("t", "g", "w"), broker.subscribe("t", "h", "w")];
    let other = broker.subscribe("u", "g", "w");
    broker.delete_topic("t");
    assert_eq!(broker.closed, streams.map(|consumer| (consumer, CloseCause::TopicDeleted)));
    broker.produce("u", "a");
    assert_eq!(broker.delivered_by_consumer(), [(other, "a".to_owned())]);
}

#[test]
fn deleted_topic_loses_messages_groups_and_leases() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.produce_with("t", "late", |request| request.delay = Some(Millis(5_000)));
        broker.subscribe("t", "g", "w");
        let held = broker.expect_delivery();
        broker.delete_topic("t");
        assert_eq!(broker.ack(claim("t", "g", "w", &held)), Err(Refusal::UnknownTopic(topic("t"))));
        broker.restart(restart);
        assert_eq!(broker.topics(), [""; 0]);
        assert_eq!(broker.next_timeout(), None, "no timer of the topic is left");
        broker.topic("t", 3);
        assert_eq!(broker.groups("t"), [""; 0]);
        broker.subscribe("t", "g", "w");
        broker.advance(60_000);
        assert_eq!(broker.delivered(), []);
        assert_eq!(broker.ack(claim("t", "g", "w", &held)), Err(Refusal::StaleLease));
        assert_eq!(broker.produce("t", "b"), Offset(0));
    }
}

#[test]
fn deleted_topic_loses_its_produce_identities() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.topic("u", 1);
        broker.try_produce(identified("t", "a", "key")).unwrap();
        broker.try_produce(identified("u", "a", "key")).unwrap();
        broker.delete_topic("t");
        broker.topic("t", 1);
        broker.restart(restart);
        assert!(!broker.try_produce(identified("t", "a", "key")).unwrap().duplicate);
        assert!(broker.try_produce(identified("u", "a", "key")).unwrap().duplicate);
    }
}

#[test]
fn unknown_topic_cannot_be_deleted_or_described() {
    let mut broker = TestBroker::new();
    let refusal = Err(Refusal::UnknownTopic(topic("t")));
    assert_eq!(broker.send(Command::DeleteTopic(DeleteTopic { name: topic("t") })), refusal);
    assert_eq!(broker.send(Command::DescribeTopic(DescribeTopic { name: topic("t") })), refusal);
    broker.topic("t", 1);
    broker.delete_topic("t");
    assert_eq!(broker.send(Command::DeleteTopic(DeleteTopic { name: topic("t") })), refusal);
}

#[test]
fn describe_reports_partitions_groups_and_progress() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    broker.produce_with("t", "ab", |request| request.set_key(b""));
    broker.advance(50);
    broker.produce_with("t", "abc", |request| request.envelope.partition_override = Some(PartitionId(1)));
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    broker.advance(50);
    let info = broker.describe("t");
    assert_eq!(info.name, topic("t"));
    assert_eq!(info.partitions.iter().map(|p| (p.messages, p.bytes)).collect::<Vec<_>>(), [(1, 2), (1, 3)]);
    assert_eq!(info.partitions.iter().map(|p| p.next_offset.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((info.groups[0].consumers, info.groups[0].paused), (1, false));
    let progress = &info.groups[0].partitions;
    assert_eq!(progress.iter().map(|p| p.in_flight).sum::<u32>(), 1);
    assert_eq!(progress.iter().map(|p| p.oldest_age).collect::<Vec<_>>(), [Some(Millis(100)), Some(Millis(50))]);
}

#[test]
fn partition_limit_never_exceeds_codec_ceiling() {
    let mut broker = TestBroker::with_limits(|limits| limits.partitions_max = u32::MAX);
    let (len, max) = (u64::from(u32::MAX), u64::from(PARTITIONS_CEILING));
    let refused = Refusal::TooMany { what: "partitions", len, max };
    assert_eq!(create(&mut broker, "t", Some(u32::MAX)), Err(refused));
}
