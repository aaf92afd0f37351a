//! Produce: partition, offset, validation and size limits.

use super::test_broker::*;
use driftq_core::command::{Peek, Produce};
use driftq_core::faults::NoFaults;
use driftq_core::types::*;
use driftq_core::{Command, PipelineConfig, Refusal};

#[test]
fn offsets_count_per_topic_and_leave_gaps_per_partition() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    broker.topic("other", 1);
    let offsets: Vec<_> = [0, 1, 1, 0].map(|partition| broker.produce_to("t", partition, "v").0).into();
    assert_eq!(offsets, [0, 1, 2, 3]);
    assert_eq!(broker.stored_messages("t", 0).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(broker.stored_messages("t", 1).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(broker.produce("other", "v"), Offset(0), "offsets count per topic");
}

#[test]
fn key_hash_selects_partition_and_empty_key_the_first() {
    let mut broker = TestBroker::new();
    broker.topic("three", 3);
    broker.topic("eight", 8);
    for (to, key, partition) in
        [("three", "user:1", 1), ("three", "user:2", 0), ("eight", "b", 5), ("eight", "", 0), ("three", "", 0)]
    {
        let produced = broker.try_produce(Produce::new(topic(to), key, "v")).unwrap();
        assert_eq!(produced.partition, PartitionId(partition), "{key} of {to}");
    }
}

#[test]
fn key_keeps_its_partition_across_restarts() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 7);
        let keys: Vec<String> = (0..50).map(|key| format!("key-{key}")).collect();
        let partition_of = |broker: &mut TestBroker, key: &String| {
            broker.try_produce(Produce::new(topic("t"), key.as_str(), "v")).unwrap().partition
        };
        let before: Vec<_> = keys.iter().map(|key| partition_of(&mut broker, key)).collect();
        broker.restart(restart);
        let after: Vec<_> = keys.iter().map(|key| partition_of(&mut broker, key)).collect();
        assert_eq!(before, after);
        assert!((0..7).all(|partition| before.contains(&PartitionId(partition))), "fifty keys cover every partition");
    }
}

#[test]
fn offset_is_never_reused_after_trim_and_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.produce("t", "a"), Offset(0));
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(broker.stored_values("t"), [""; 0]);
        broker.restart(restart);
        assert_eq!(broker.produce("t", "b"), Offset(1));
    }
}

#[test]
fn message_is_delivered_unchanged_after_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 4);
        broker.topic("real", 4);
        let envelope = Envelope {
            run_id: Some("run".into()),
            step_id: Some("step".into()),
            parent_step_id: Some("parent".into()),
            tenant_id: Some("tenant".into()),
            idempotency_key: Some("identity".into()),
            target_topic: Some(topic("real")),
            partition_override: Some(PartitionId(3)),
            deadline: deadline(START.after(Millis(1_000_000))),
            retry_policy: Some(policy(7, 11, 13)),
            priority: Priority::new(4),
            deliver_at: Some(START),
            delayed_until: None,
            labels: [("a".into(), "b".into()), ("".into(), "é".into())].into(),
        };
        let mut request = Produce::new(topic("t"), [0xff, 0x00], [0x00, 0xfe, b'x']);
        request.envelope = envelope.clone();
        request.trace = Some("00-trace-01".into());
        assert_eq!(broker.try_produce(request).unwrap().partition, PartitionId(3));
        broker.restart(restart);
        broker.subscribe("real", "g", "w");
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.body.key(), [0xff, 0x00]);
        assert_eq!(delivery.body.value(), [0x00, 0xfe, b'x']);
        assert_eq!(delivery.produced_at, START);
        let meta = delivery.body.metadata();
        assert_eq!(meta.envelope, envelope);
        assert_eq!(meta.trace.as_deref(), Some("00-trace-01"));
        assert_eq!((meta.routing, meta.dead_letter, meta.redrive), (None, None, None));
    }
}

#[test]
fn partition_override_beats_key_hash_and_must_exist() {
    let mut broker = TestBroker::new();
    broker.topic("t", 3);
    let mut request = Produce::new(topic("t"), "user:1", "v");
    request.envelope.partition_override = Some(PartitionId(2));
    assert_eq!(broker.try_produce(request.clone()).unwrap().partition, PartitionId(2));
    let digest = broker.digest();
    request.envelope.partition_override = Some(PartitionId(3));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(3), partitions: 3 };
    assert_eq!(broker.try_produce(request), Err(refusal));
    assert_eq!(broker.digest(), digest);
}

#[test]
fn target_topic_beats_requested_topic_and_must_exist() {
    let mut broker = TestBroker::new();
    broker.topic("requested", 1);
    broker.topic("target", 1);
    broker.produce_with("requested", "v", |request| request.envelope.target_topic = Some(topic("target")));
    assert_eq!((broker.stored_values("requested").len(), broker.stored_values("target").len()), (0, 1));
    broker.produce_with("not-there", "w", |request| request.envelope.target_topic = Some(topic("target")));
    assert_eq!(broker.stored_values("target"), ["v", "w"]);
    let digest = broker.digest();
    let mut request = Produce::new(topic("requested"), "", "v");
    request.envelope.target_topic = Some(topic("missing"));
    assert_eq!(broker.try_produce(request), Err(Refusal::UnknownTopic(topic("missing"))));
    assert_eq!(broker.digest(), digest);
}

#[test]
fn invalid_produce_is_refused_and_changes_nothing() {
    let mut broker = TestBroker::with_limits(|limits| {
        limits.key_bytes_max = 4;
        limits.message_bytes_max = 100;
        limits.idempotency_key_bytes_max = 5;
        limits.error_text_bytes_max = 6;
    });
    broker.topic("t", 1);
    let digest = broker.digest();
    let plain = |value: &str| Produce::new(topic("t"), "", value);
    let too_large = |what, len, max| Refusal::TooLarge { what, len, max };
    let mut both_delays = plain("v");
    both_delays.delay = Some(Millis(1));
    both_delays.envelope.deliver_at = Some(START);
    for (request, refusal) in [
        (Produce::new(topic("nope"), "", "v"), Refusal::UnknownTopic(topic("nope"))),
        (plain(""), Refusal::Invalid("value must not be empty")),
        (Produce::new(topic("t"), "12345", "v"), too_large("key", 5, 4)),
        (plain(&"v".repeat(101)), too_large("message", 101, 100)),
        (identified("t", "v", "123456"), too_large("idempotency key", 6, 5)),
        (both_delays, Refusal::Invalid("give a delay or a moment of delivery, not both")),
    ] {
        assert_eq!(broker.try_produce(request), Err(refusal));
        assert_eq!(broker.digest(), digest);
    }
    broker.produce("t", &"v".repeat(100));
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    assert_eq!(broker.nack(claim("t", "g", "w", &delivery), "1234567"), Err(too_large("reason", 7, 6)));
    broker.nack(claim("t", "g", "w", &delivery), "123456").unwrap();
}

#[test]
fn peek_changes_nothing() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    broker.group("t", "g");
    let digest = broker.digest();
    assert_eq!(broker.stored_values("t"), ["a", "b", "c"]);
    let peek = |partition, offset, limit| {
        Command::Peek(Peek { topic: topic("t"), partition: PartitionId(partition), offset: Offset(offset), limit })
    };
    let some = broker.send(peek(0, 1, 1));
    assert!(matches!(some, Ok(driftq_core::Reply::Peeked(found)) if found.len() == 1 && found[0].offset == Offset(1)));
    assert_eq!(broker.send(peek(0, 3, 9)), Ok(driftq_core::Reply::Peeked(vec![])));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(1), partitions: 1 };
    assert_eq!(broker.send(peek(1, 0, 9)), Err(refusal));
    assert_eq!(broker.digest(), digest);
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["a", "b", "c"]);
}

#[test]
fn largest_message_of_any_limit_can_be_dead_lettered_and_snapshotted() {
    let mut config = PipelineConfig { segment_bytes_min: u64::MAX, ..PipelineConfig::default() };
    config.limits.message_bytes_max = usize::MAX;
    config.limits.error_text_bytes_max = usize::MAX;
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let limits = broker.pipeline.broker().limits().clone();
    let largest = |len: usize| {
        let mut request = Produce::new(topic("t"), "", vec![7; len]);
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        request
    };
    let (len, max) = (limits.message_bytes_max + 1, limits.message_bytes_max);
    let refused = Refusal::TooLarge { what: "message", len: len as u64, max: max as u64 };
    assert_eq!(broker.try_produce(largest(len)), Err(refused));
    broker.try_produce(largest(max)).unwrap();
    broker.snapshot();
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &delivery), &"e".repeat(limits.error_text_bytes_max)).unwrap();
    broker.restart(Restart::Snapshot);
    assert_eq!(broker.stored_messages("dlq.t", 0)[0].body.value().len(), max);
}

#[test]
fn ids_and_metadata_over_limit_are_refused() {
    let mut broker = TestBroker::with_limits(|limits| (limits.id_bytes_max, limits.metadata_bytes_max) = (5, 100));
    broker.topic("t", 1);
    let digest = broker.digest();
    type Set = fn(&mut Envelope, Text);
    let ids: [(&str, Set); 4] = [
        ("tenant id", |envelope, text| envelope.tenant_id = Some(text)),
        ("run id", |envelope, text| envelope.run_id = Some(text)),
        ("step id", |envelope, text| envelope.step_id = Some(text)),
        ("parent step id", |envelope, text| envelope.parent_step_id = Some(text)),
    ];
    for (what, set) in ids {
        let mut request = Produce::new(topic("t"), "", "v");
        set(&mut request.envelope, "123456".into());
        assert_eq!(broker.try_produce(request), Err(Refusal::TooLarge { what, len: 6, max: 5 }));
    }
    let mut request = Produce::new(topic("t"), "", "v");
    request.envelope.labels = [("l".into(), "x".repeat(84).into())].into();
    assert_eq!(broker.try_produce(request.clone()), Err(Refusal::TooLarge { what: "metadata", len: 101, max: 100 }));
    assert_eq!(broker.digest(), digest);
    request.envelope.labels = [("l".into(), "x".repeat(83).into())].into();
    broker.try_produce(request).unwrap();
}

#[test]
fn metadata_size_counts_each_text_plus_sixteen_bytes() {
    type Set = fn(&mut Produce);
    let texts: [(u64, Set); 7] = [
        (3, |request| request.envelope.run_id = Some("123".into())),
        (4, |request| request.envelope.idempotency_key = Some("1234".into())),
        (5, |request| request.trace = Some("12345".into())),
        (6, |request| {
            request.envelope.deadline = Some(Deadline { at: START.after(Millis(9)), text: "123456".into() });
        }),
        (7, |request| request.envelope.labels = [("123".into(), "4567".into())].into()),
        (8, |request| request.routing.get_or_insert_default().routing.label = "12345678".into()),
        (9 + 16, |request| {
            request.routing.get_or_insert_default().routing.meta = [("123".into(), "456789".into())].into();
        }),
    ];
    let mut together = (0, Produce::new(topic("t"), "", "v"));
    let counted = |len: u64, request: &Produce| {
        let mut broker = TestBroker::with_limits(|limits| limits.metadata_bytes_max = len as usize - 1);
        broker.topic("t", 1);
        let refused = Refusal::TooLarge { what: "metadata", len, max: len - 1 };
        assert_eq!(broker.try_produce(request.clone()), Err(refused));
    };
    for (len, set) in texts {
        let mut alone = Produce::new(topic("t"), "", "v");
        set(&mut alone);
        counted(len + 16, &alone);
        set(&mut together.1);
    }
    // The router's label and metadata are one decision: its label is counted once.
    together.0 = (3 + 4 + 5 + 6 + 7 + 8 + 9) + 7 * 16;
    counted(together.0, &together.1);
}
