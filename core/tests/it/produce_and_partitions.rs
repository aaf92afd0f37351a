//! Produce: where a message goes, what it is called, and that it arrives as it was sent.

use super::rig::*;
use driftq_core::command::Produce;
use driftq_core::faults::NoFaults;
use driftq_core::types::*;
use driftq_core::{Command, PipelineConfig, Refusal};

#[test]
fn offsets_rise_per_topic_so_a_partition_has_gaps() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    rig.topic("other", 1);
    let offsets: Vec<_> = [0, 1, 1, 0].map(|partition| rig.produce_to("t", partition, "v").0).into();
    assert_eq!(offsets, [0, 1, 2, 3]);
    assert_eq!(rig.kept_in("t", 0).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(rig.kept_in("t", 1).iter().map(|m| m.offset.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(rig.produce("other", "v"), Offset(0), "every topic counts for itself");
}

#[test]
fn a_key_goes_to_its_hash_modulo_the_partitions_and_the_empty_key_to_the_first() {
    let mut rig = Rig::new();
    rig.topic("three", 3);
    rig.topic("eight", 8);
    for (to, key, partition) in
        [("three", "user:1", 1), ("three", "user:2", 0), ("eight", "b", 5), ("eight", "", 0), ("three", "", 0)]
    {
        let produced = rig.try_produce(Produce::new(topic(to), key, "v")).unwrap();
        assert_eq!(produced.partition, PartitionId(partition), "{key} of {to}");
    }
}

#[test]
fn a_key_keeps_its_partition_across_restarts() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 7);
        let keys: Vec<String> = (0..50).map(|key| format!("key-{key}")).collect();
        let place = |rig: &mut Rig, key: &String| {
            rig.try_produce(Produce::new(topic("t"), key.as_str(), "v")).unwrap().partition
        };
        let before: Vec<_> = keys.iter().map(|key| place(&mut rig, key)).collect();
        rig.restart(way);
        let after: Vec<_> = keys.iter().map(|key| place(&mut rig, key)).collect();
        assert_eq!(before, after);
        assert!((0..7).all(|partition| before.contains(&PartitionId(partition))), "fifty keys reach every partition");
    }
}

#[test]
fn an_offset_is_never_given_twice_even_when_its_message_is_gone_and_the_broker_restarted() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.produce("t", "a"), Offset(0));
        let delivery = rig.one();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(rig.kept("t"), [""; 0]);
        rig.restart(way);
        assert_eq!(rig.produce("t", "b"), Offset(1));
    }
}

#[test]
fn a_message_reaches_the_worker_as_it_was_sent_before_and_after_a_restart() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 4);
        rig.topic("real", 4);
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
            labels: [("a".into(), "b".into()), ("".into(), "é".into())].into(),
        };
        let mut asked = Produce::new(topic("t"), [0xff, 0x00], [0x00, 0xfe, b'x']);
        asked.envelope = envelope.clone();
        asked.trace = Some("00-trace-01".into());
        assert_eq!(rig.try_produce(asked).unwrap().partition, PartitionId(3));
        rig.restart(way);
        rig.subscribe("real", "g", "w");
        let delivery = rig.one();
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
fn the_envelopes_partition_wins_over_the_keys_and_must_be_there() {
    let mut rig = Rig::new();
    rig.topic("t", 3);
    let mut asked = Produce::new(topic("t"), "user:1", "v");
    asked.envelope.partition_override = Some(PartitionId(2));
    assert_eq!(rig.try_produce(asked.clone()).unwrap().partition, PartitionId(2));
    let digest = rig.digest();
    asked.envelope.partition_override = Some(PartitionId(3));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(3), partitions: 3 };
    assert_eq!(rig.try_produce(asked), Err(refusal));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn the_envelopes_topic_wins_over_the_requested_one_and_must_be_there() {
    let mut rig = Rig::new();
    rig.topic("asked", 1);
    rig.topic("meant", 1);
    rig.produce_with("asked", "v", |asked| asked.envelope.target_topic = Some(topic("meant")));
    assert_eq!((rig.kept("asked").len(), rig.kept("meant").len()), (0, 1));
    rig.produce_with("not-there", "w", |asked| asked.envelope.target_topic = Some(topic("meant")));
    assert_eq!(rig.kept("meant"), ["v", "w"]);
    let digest = rig.digest();
    let mut asked = Produce::new(topic("asked"), "", "v");
    asked.envelope.target_topic = Some(topic("missing"));
    assert_eq!(rig.try_produce(asked), Err(Refusal::UnknownTopic(topic("missing"))));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn what_cannot_be_accepted_is_refused_by_name_and_changes_nothing() {
    let mut rig = Rig::with_limits(|limits| {
        limits.key_bytes_max = 4;
        limits.message_bytes_max = 100;
        limits.idempotency_key_bytes_max = 5;
        limits.error_text_bytes_max = 6;
    });
    rig.topic("t", 1);
    let digest = rig.digest();
    let plain = |value: &str| Produce::new(topic("t"), "", value);
    let too_large = |what, len, max| Refusal::TooLarge { what, len, max };
    let mut both_delays = plain("v");
    both_delays.delay = Some(Millis(1));
    both_delays.envelope.deliver_at = Some(START);
    for (asked, refusal) in [
        (Produce::new(topic("nope"), "", "v"), Refusal::UnknownTopic(topic("nope"))),
        (plain(""), Refusal::Invalid("value must not be empty")),
        (Produce::new(topic("t"), "12345", "v"), too_large("key", 5, 4)),
        (plain(&"v".repeat(101)), too_large("message", 101, 100)),
        (identified("t", "v", "123456"), too_large("idempotency key", 6, 5)),
        (both_delays, Refusal::Invalid("give a delay or a moment of delivery, not both")),
    ] {
        assert_eq!(rig.try_produce(asked), Err(refusal));
        assert_eq!(rig.digest(), digest);
    }
    rig.produce("t", &"v".repeat(100));
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    assert_eq!(rig.nack(claim("t", "g", "w", &delivery), "1234567"), Err(too_large("reason", 7, 6)));
    rig.nack(claim("t", "g", "w", &delivery), "123456").unwrap();
}

#[test]
fn looking_at_messages_takes_nothing_from_anyone() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for value in ["a", "b", "c"] {
        rig.produce("t", value);
    }
    rig.group("t", "g");
    let digest = rig.digest();
    assert_eq!(rig.kept("t"), ["a", "b", "c"]);
    let peek = |partition, offset, limit| Command::Peek {
        topic: topic("t"),
        partition: PartitionId(partition),
        offset: Offset(offset),
        limit,
    };
    let some = rig.send(peek(0, 1, 1));
    assert!(matches!(some, Ok(driftq_core::Reply::Peeked(found)) if found.len() == 1 && found[0].offset == Offset(1)));
    assert_eq!(rig.send(peek(0, 3, 9)), Ok(driftq_core::Reply::Peeked(vec![])));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(1), partitions: 1 };
    assert_eq!(rig.send(peek(1, 0, 9)), Err(refusal));
    assert_eq!(rig.digest(), digest);
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.values(), ["a", "b", "c"]);
}

#[test]
fn the_largest_message_that_any_limit_allows_can_be_dead_lettered_and_written_into_a_snapshot() {
    let mut config = PipelineConfig::default();
    config.limits.message_bytes_max = usize::MAX;
    config.limits.error_text_bytes_max = usize::MAX;
    let mut rig = Rig::with(config, NoFaults);
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let limits = rig.pipeline.broker().limits().clone();
    let largest = |len: usize| {
        let mut asked = Produce::new(topic("t"), "", vec![7; len]);
        asked.envelope.retry_policy = Some(policy(1, 0, 0));
        asked
    };
    let (len, max) = (limits.message_bytes_max + 1, limits.message_bytes_max);
    let refused = Refusal::TooLarge { what: "message", len: len as u64, max: max as u64 };
    assert_eq!(rig.try_produce(largest(len)), Err(refused));
    rig.try_produce(largest(max)).unwrap();
    rig.snapshot();
    let delivery = rig.one();
    rig.nack(claim("t", "g", "w", &delivery), &"e".repeat(limits.error_text_bytes_max)).unwrap();
    rig.restart(Restart::Snapshot);
    assert_eq!(rig.kept_in("dlq.t", 0)[0].body.value().len(), max);
}

#[test]
fn ids_and_all_metadata_together_are_bounded() {
    let mut rig = Rig::with_limits(|limits| (limits.id_bytes_max, limits.metadata_bytes_max) = (5, 100));
    rig.topic("t", 1);
    let digest = rig.digest();
    type Set = fn(&mut Envelope, Text);
    let ids: [(&str, Set); 4] = [
        ("tenant id", |envelope, text| envelope.tenant_id = Some(text)),
        ("run id", |envelope, text| envelope.run_id = Some(text)),
        ("step id", |envelope, text| envelope.step_id = Some(text)),
        ("parent step id", |envelope, text| envelope.parent_step_id = Some(text)),
    ];
    for (what, set) in ids {
        let mut asked = Produce::new(topic("t"), "", "v");
        set(&mut asked.envelope, "123456".into());
        assert_eq!(rig.try_produce(asked), Err(Refusal::TooLarge { what, len: 6, max: 5 }));
    }
    let mut asked = Produce::new(topic("t"), "", "v");
    asked.envelope.labels = [("l".into(), "x".repeat(84).into())].into();
    assert_eq!(rig.try_produce(asked.clone()), Err(Refusal::TooLarge { what: "metadata", len: 101, max: 100 }));
    assert_eq!(rig.digest(), digest);
    asked.envelope.labels = [("l".into(), "x".repeat(83).into())].into();
    rig.try_produce(asked).unwrap();
}

#[test]
fn every_text_that_travels_with_a_message_counts_with_sixteen_bytes_for_its_place() {
    type Set = fn(&mut Produce);
    let texts: [(u64, Set); 7] = [
        (3, |asked| asked.envelope.run_id = Some("123".into())),
        (4, |asked| asked.envelope.idempotency_key = Some("1234".into())),
        (5, |asked| asked.trace = Some("12345".into())),
        (6, |asked| {
            asked.envelope.deadline = Some(Deadline { at: START.after(Millis(9)), text: "123456".into() });
        }),
        (7, |asked| asked.envelope.labels = [("123".into(), "4567".into())].into()),
        (8, |asked| asked.routing.get_or_insert_default().routing.label = "12345678".into()),
        (9 + 16, |asked| {
            asked.routing.get_or_insert_default().routing.meta = [("123".into(), "456789".into())].into();
        }),
    ];
    let mut together = (0, Produce::new(topic("t"), "", "v"));
    let counted = |len: u64, asked: &Produce| {
        let mut rig = Rig::with_limits(|limits| limits.metadata_bytes_max = len as usize - 1);
        rig.topic("t", 1);
        let refused = Refusal::TooLarge { what: "metadata", len, max: len - 1 };
        assert_eq!(rig.try_produce(asked.clone()), Err(refused));
    };
    for (len, set) in texts {
        let mut alone = Produce::new(topic("t"), "", "v");
        set(&mut alone);
        counted(len + 16, &alone);
        set(&mut together.1);
    }
    // The router's label and what it says besides stand in one decision: its label's place is counted once.
    together.0 = (3 + 4 + 5 + 6 + 7 + 8 + 9) + 7 * 16;
    counted(together.0, &together.1);
}
