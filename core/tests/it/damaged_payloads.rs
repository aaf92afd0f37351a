//! Payloads that are damaged on disk: never delivered, never skipped in silence, and nothing else is disturbed.

use super::test_broker::*;
use driftq_core::command::{Pause, Produce, Redrive, RedriveSelection, Resume};
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, Storage};
use driftq_core::pipeline::LogNotice;
use driftq_core::types::{DeadReason, Millis};
use driftq_core::{Command, PipelineConfig, Reply};

/// Nothing is cached, so every delivery reads.
fn config() -> PipelineConfig {
    PipelineConfig { memory_bytes: 0, scrub_interval: None, ..small_config() }
}

/// A broker with three messages, of which the second is `precious` on disk no more; no reads so far.
fn damaged(config: PipelineConfig) -> TestBroker {
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    for value in ["first message", "precious", "third message"] {
        broker.produce("t", value);
    }
    broker.advance(200);
    let file = FileId::Segment(1);
    let bytes = broker.storage.bytes(file).unwrap();
    let at = bytes.windows(8).position(|window| window == b"precious").unwrap();
    broker.storage.bytes_mut(file).unwrap().flip(at * 8);
    broker
}

fn lost_notice(broker: &mut TestBroker) -> (u64, u64) {
    let Some(LogNotice::Damaged { file, position, lost, .. }) = broker.pipeline.poll_notice() else {
        panic!("no notice");
    };
    assert_eq!(file, FileId::Segment(1));
    (position, lost)
}

#[test]
fn damaged_payload_becomes_a_dead_letter_and_the_others_are_delivered() {
    for restart in RESTARTS {
        let mut broker = damaged(config());
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["first message"], "the others wait for the damaged one");
        broker.advance(1_900);
        assert_eq!(broker.delivered_values(), Vec::<String>::new());
        assert_eq!(broker.pipeline.broker().counters().payloads_lost, 0, "read twice so far");
        broker.advance(200);
        assert_eq!(broker.delivered_values(), ["third message"]);
        assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1);
        assert_eq!(broker.pipeline.failure(), None);
        let (position, lost) = lost_notice(&mut broker);
        assert_eq!(lost, 1);
        let dead = broker.dead_letters("t");
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].reason, DeadReason::PayloadDamaged);
        assert!(dead[0].last_error.contains(&format!("wal-00000000000000000001.seg, byte {position}")), "{dead:?}");
        if restart == Restart::Snapshot {
            broker.pipeline.request_snapshot();
            broker.run_until_idle();
        }
        broker.crash();
        broker.subscribe("dlq.t", "d", "w");
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.body.value(), b"");
        assert_eq!(delivery.body.metadata().lost.as_deref(), Some(&*dead[0].last_error));
        broker.ack(claim("dlq.t", "d", "w", &delivery)).unwrap();
        assert_eq!(broker.dead_letters("t"), []);
    }
}

#[test]
fn dead_letter_without_a_payload_is_not_redriven() {
    let mut broker = damaged(config());
    broker.subscribe("t", "g", "w");
    broker.advance(3_000);
    let redrive = Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 10 });
    assert!(matches!(broker.send(redrive), Ok(Reply::Redriven { count: 0, rest: None })));
    assert_eq!(broker.dead_letters("t").len(), 1);
}

#[test]
fn scrub_finds_damage_before_it_is_needed() {
    let mut broker = damaged(PipelineConfig { scrub_interval: Some(Millis(10_000)), ..config() });
    broker.group("t", "g");
    broker.advance(9_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 0);
    broker.advance(5_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1);
    lost_notice(&mut broker);
    assert_eq!(broker.dead_letters("t").len(), 1, "without a delivery");
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["first message", "third message"]);
    broker.advance(20_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1, "found once");
    assert!(broker.pipeline.log_figures().scrubs >= 2);
}

#[test]
fn group_that_comes_later_gets_a_dead_letter_too() {
    let mut broker = damaged(PipelineConfig { scrub_interval: Some(Millis(1_000)), ..config() });
    broker.advance(5_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1);
    assert_eq!(broker.stored_values("t"), ["first message", "", "third message"]);
    broker.crash();
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["first message", "third message"]);
    assert_eq!(broker.dead_letters("t").len(), 1);
}

#[test]
fn leased_message_stays_with_its_worker() {
    let config = PipelineConfig { memory_bytes: 1 << 20, scrub_interval: Some(Millis(1_000)), ..config() };
    let mut broker = damaged(config);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(60_000)));
    let deliveries = broker.delivered();
    assert_eq!(deliveries.len(), 3, "from memory");
    broker.advance(5_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1);
    for delivery in &deliveries {
        broker.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    assert_eq!(broker.topics(), ["t"], "no dead-letter topic was made");
}

#[test]
fn nacked_message_without_a_payload_becomes_a_dead_letter() {
    let config = PipelineConfig { memory_bytes: 1 << 20, scrub_interval: Some(Millis(1_000)), ..config() };
    let mut broker = damaged(config);
    broker.subscribe("t", "g", "w");
    let deliveries = broker.delivered();
    broker.advance(1_900);
    let deliveries: Vec<_> = deliveries.into_iter().chain(broker.delivered()).collect();
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 0);
    broker.advance(2_000);
    assert_eq!(broker.pipeline.broker().counters().payloads_lost, 1);
    assert!(broker.dead_letters("t").iter().all(|dead| dead.reason == DeadReason::PayloadDamaged));
    assert_eq!(broker.dead_letters("t").len(), 1, "its lease has run out, after {} deliveries", deliveries.len());
}

#[test]
fn peek_shows_a_lost_payload_as_lost() {
    let mut broker = damaged(config());
    let peek = broker.submit(Command::Peek(driftq_core::command::Peek {
        topic: topic("t"),
        partition: driftq_core::types::PartitionId(0),
        offset: driftq_core::types::Offset(0),
        limit: 10,
    }));
    broker.advance(0);
    broker.advance(3_000);
    let reply = broker.reply(peek);
    let Some(Ok(Reply::Peeked(peeked))) = &reply else { panic!("{reply:?}") };
    assert_eq!(
        peeked.iter().map(|peeked| peeked.body.value()).collect::<Vec<_>>(),
        [&b"first message"[..], b"", b"third message"]
    );
    assert!(peeked[1].body.metadata().lost.is_some());
}

#[test]
fn unreadable_sector_loses_only_what_stands_in_it() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    let values: Vec<_> = (0..40).map(|number| format!("{number}-{}", "v".repeat(200))).collect();
    for value in &values {
        broker.produce("t", value);
    }
    broker.advance(200);
    let bytes = broker.storage.bytes(FileId::Segment(1)).unwrap();
    let at = bytes.windows(3).position(|window| window == b"20-").unwrap() as u64;
    broker.storage.set_unreadable(Some((FileId::Segment(1), at)));
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 100);
    broker.advance(4_000);
    let lost = broker.pipeline.broker().counters().payloads_lost;
    assert!((1..=4).contains(&lost), "{lost}");
    assert_eq!(broker.delivered().len() as u64, 40 - lost);
    assert_eq!(broker.dead_letters("t").len() as u64, lost);
    assert_eq!(broker.pipeline.failure(), None);
}

/// A broker whose reserve has taken `records` more records since a delivery waits for a damaged payload, on a full
/// disk. `None` if it did not take that many.
fn damaged_on_a_full_disk(records: usize) -> Option<TestBroker> {
    let mut broker = damaged(PipelineConfig { segment_bytes: 16 << 10, ..config() });
    broker.group("t", "spare");
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    assert_eq!(broker.delivered_values(), ["first message"]);
    let used = broker.storage.list().unwrap().iter().map(|info| info.len).sum();
    broker.storage.set_budget(Some(used));
    while broker.try_produce(Produce::new(topic("t"), "", "x".repeat(200))).is_ok() {}
    let (topic, group) = (topic("t"), group("spare"));
    for number in 0..records {
        let (topic, group) = (topic.clone(), group.clone());
        let command = match number % 2 {
            0 => Command::Pause(Pause { topic, group }),
            _ => Command::Resume(Resume { topic, group }),
        };
        broker.send(command).ok()?;
    }
    Some(broker)
}

#[test]
fn dropped_delivery_is_dead_lettered_once_the_disk_has_space() {
    let exhausted = (0..10_000).find(|records| damaged_on_a_full_disk(*records).is_none()).expect("a bounded reserve");
    let mut waited = 0;
    for records in exhausted - 12..exhausted {
        let mut broker = damaged_on_a_full_disk(records).expect("fewer than it takes");
        broker.advance(3_000);
        let has_dead_letter = broker.pipeline.state().topic_named(&topic("dlq.t")).is_some();
        waited += u32::from(broker.pipeline.broker().counters().payloads_lost == 1 && !has_dead_letter);
        broker.storage.set_budget(None);
        broker.advance(15_000);
        let dead = broker.dead_letters("t");
        let dead: Vec<_> = dead.iter().filter(|dead| dead.group == group("g")).collect();
        assert_eq!(dead.len(), 1, "after {records} records");
        assert_eq!((dead[0].reason, dead[0].attempts), (DeadReason::PayloadDamaged, 1));
    }
    assert!(waited > 0, "the payload is recorded as lost, and its dead letter does not fit");
}
