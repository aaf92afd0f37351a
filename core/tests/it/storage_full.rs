//! Full disk: commands that grow the log are refused, acks continue from the reserve, and nothing is lost.

use driftq_core::OpenOptions;

use super::test_broker::*;
use driftq_core::broker::LogRefusal;
use driftq_core::command::{Complete, CreateTopic, OnDisconnect, Pause, Produce, Resume};
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, IoOp, LogId, MemoryStorage, Storage, StorageFault};
use driftq_core::pipeline::OpenError;
use driftq_core::reply::Overload;
use driftq_core::types::*;
use driftq_core::{Command, JobClass, PipelineConfig, Refusal, Reply};

const SEGMENT: u64 = 16 << 10;
/// What must be free beside a new segment.
const SPARE: u64 = 12 << 10;

fn config() -> PipelineConfig {
    let mut config = PipelineConfig { segment_bytes: SEGMENT, reserve_bytes: 8 << 10, ..small_config() };
    config.limits.adaptive_credit = false;
    config
}

fn attempt(broker: &mut TestBroker) -> Result<(), Refusal> {
    broker.try_produce(Produce::new(topic("t"), "", "x".repeat(200))).map(drop)
}

fn used(broker: &mut TestBroker) -> u64 {
    broker.storage.list().unwrap().iter().map(|info| info.len).sum()
}

/// A broker with a consumer, on a disk without room for another segment.
fn full() -> TestBroker {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    let budget = used(&mut broker);
    broker.storage.set_budget(Some(budget));
    while attempt(&mut broker).is_ok() {}
    broker
}

#[test]
fn full_disk_refuses_new_topics() {
    let mut broker = full();
    let create = |number: u32| {
        let name = topic(&format!("topic-{number}"));
        Command::CreateTopic(CreateTopic { name, partitions: None, retention: Default::default() })
    };
    let refused = (0..100).find_map(|number| broker.send(create(number)).err());
    assert_eq!(refused, Some(Refusal::StorageFull));
}

#[test]
fn full_disk_refuses_produce_and_changes_nothing() {
    let mut broker = full();
    let (digest, before) = (broker.digest(), broker.pipeline.broker().counters());
    assert_eq!(attempt(&mut broker), Err(Refusal::StorageFull));
    let request = identified("t", &"x".repeat(200), "identity");
    assert_eq!(broker.try_produce(request), Err(Refusal::StorageFull));
    assert_eq!(broker.digest(), digest);
    assert_eq!(broker.recovered_digest(), digest);
    assert_eq!(broker.pipeline.failure(), None, "a refusal does not fail the log");
    let after = broker.pipeline.broker().counters();
    assert_eq!((after.appended, after.refused), (before.appended, before.refused + 2));
}

/// Exhausts the reserve with commands that may use all of it.
fn exhaust_reserve(broker: &mut TestBroker) {
    broker.group("t", "spare");
    let (topic, group) = (topic("t"), group("spare"));
    for _ in 0..10_000 {
        for command in [
            Command::Pause(Pause { topic: topic.clone(), group: group.clone() }),
            Command::Resume(Resume { topic: topic.clone(), group: group.clone() }),
        ] {
            if let Err(refusal) = broker.send(command) {
                assert_eq!(refusal, Refusal::StorageFull);
                return;
            }
        }
    }
    panic!("the reserve is never exhausted");
}

#[test]
fn churn_on_full_disk_leaves_half_of_reserve_to_acks() {
    let mut broker = full();
    let held = broker.delivered();
    assert!(held.len() > 20);
    // One lease is extended again and again; the others expire and are granted again.
    let mut refused = None;
    for _ in 0..10_000 {
        refused = broker.extend(claim("t", "g", "w", &held[0]), Some(1_000_000)).err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(Refusal::StorageFull));
    broker.advance(60_000);
    broker.delivered();
    for delivery in &held[1..] {
        assert_eq!(
            broker.ack(claim("t", "g", "w", delivery)),
            Ok(()),
            "an expired lease without redelivery can be acked"
        );
    }
    broker.delete_group("t", "g");
}

#[test]
fn acks_nacks_extends_and_deliveries_continue_from_reserve() {
    let mut broker = full();
    let held = broker.delivered();
    assert!(held.len() > 20);
    broker.extend(claim("t", "g", "w", &held[0]), Some(2_000_000)).unwrap();
    broker.release(claim("t", "g", "w", &held[1])).unwrap();
    broker.nack(claim("t", "g", "w", &held[2]), "no").unwrap();
    let again = broker.delivered();
    assert_eq!(again.iter().map(|delivery| delivery.attempts).collect::<Vec<_>>(), [2, 2]);
    for delivery in held[3..].iter().chain(&again) {
        broker.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    assert_eq!(broker.progress("t", "g").lag, 1);
    assert_eq!(attempt(&mut broker), Err(Refusal::StorageFull), "produces may not use the reserve");
    broker.storage.set_budget(None);
    broker.restart(Restart::Crash);
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn reads_and_duplicates_on_full_disk_succeed() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.try_produce(identified("t", "v", "identity")).unwrap();
    let budget = used(&mut broker);
    broker.storage.set_budget(Some(budget));
    while attempt(&mut broker).is_ok() {}
    assert!(broker.try_produce(identified("t", "v", "identity")).unwrap().duplicate);
    assert_eq!(broker.topics(), ["t"]);
}

#[test]
fn produce_succeeds_again_after_space_returns() {
    let mut broker = full();
    broker.storage.set_budget(None);
    assert_eq!(attempt(&mut broker), Err(Refusal::StorageFull), "the maintenance task has not run yet");
    broker.advance(1_000);
    attempt(&mut broker).unwrap();
    for _ in 0..200 {
        attempt(&mut broker).unwrap();
    }
    let digest = broker.digest();
    assert_eq!(broker.recovered_digest(), digest);
}

#[test]
fn exhausted_reserve_refuses_all_writes_and_loses_nothing() {
    let mut broker = full();
    let held = broker.delivered();
    exhaust_reserve(&mut broker);
    let digest = broker.digest();
    assert_eq!(broker.nack(claim("t", "g", "w", &held[1]), "a reason"), Err(Refusal::StorageFull));
    assert_eq!(broker.topics(), ["t"], "reads succeed");
    broker.storage.set_budget(None);
    broker.advance(1_100);
    for delivery in &held[2..] {
        broker.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    assert_ne!(broker.digest(), digest);
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn timer_work_on_exhausted_reserve_waits_for_space() {
    let mut broker = full();
    let held = broker.delivered();
    broker.extend(claim("t", "g", "w", &held[0]), Some(500)).unwrap();
    exhaust_reserve(&mut broker);
    broker.delivered();
    let before = broker.progress("t", "g");
    broker.advance(10_000);
    let stuck = broker.progress("t", "g");
    assert_eq!(stuck.lag, before.lag);
    assert!(broker.pipeline.broker().is_stalled());
    assert!(broker.next_timeout().is_some_and(|at| at > broker.now), "the next timeout is set, but not at once");
    broker.storage.set_budget(None);
    broker.advance(1_200);
    let redelivered = broker.delivered();
    assert!(
        redelivered.iter().any(|delivery| delivery.offset == held[0].offset),
        "the lease expired once there was space"
    );
    assert!(!broker.pipeline.broker().is_stalled());
}

#[test]
fn stream_on_exhausted_reserve_closes_without_releasing_leases() {
    let mut broker = full();
    let held = broker.delivered();
    let releasing = broker.subscribe_with("t", "other", "x", |request| {
        request.on_disconnect = OnDisconnect::Release;
        request.prefetch = 2;
    });
    let others = broker.delivered();
    assert_eq!(others.len(), 2);
    assert!(!held.is_empty());
    exhaust_reserve(&mut broker);
    let digest = broker.digest();
    broker.unsubscribe(releasing);
    assert_eq!(broker.digest(), digest);
    let info = broker.describe("t").groups.remove(1);
    assert_eq!((info.consumers, info.partitions[0].in_flight), (0, 2));
    broker.storage.set_budget(None);
    broker.advance(2_000);
    assert_eq!(broker.progress("t", "other").waiting, 2, "the leases run until they expire");
}

#[test]
fn segment_not_ready_is_overload_not_storage_full() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    let mut tickets = Vec::new();
    for _ in 0..200 {
        tickets.push(broker.submit(Command::Produce(Box::new(Produce::new(topic("t"), "", "x".repeat(200))))));
        while let Some(job) = broker.pipeline.poll_job(JobClass::Log) {
            let result = job.perform(&mut broker.storage);
            broker.pipeline.complete(broker.now, job, result);
        }
    }
    broker.collect();
    let replies: Vec<_> = tickets.into_iter().map(|ticket| broker.reply(ticket).expect("a reply")).collect();
    let accepted = replies.iter().take_while(|reply| matches!(reply, Ok(Reply::Produced(_)))).count();
    assert!(accepted > 0 && accepted < 200);
    assert!(replies[accepted..].iter().all(|reply| *reply == Err(overloaded(Overload::Log))));
    broker.run_until_idle();
    attempt(&mut broker).expect("the next segment is ready");
}

#[test]
fn record_larger_than_segment_is_refused_and_changes_nothing() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    let digest = broker.digest();
    let refused = broker.try_produce(Produce::new(topic("t"), "", "x".repeat(SEGMENT as usize)));
    assert_eq!(refused, Err(Refusal::Invalid("the record would be too long for the log")));
    assert_eq!(broker.digest(), digest);
    attempt(&mut broker).unwrap();
}

#[test]
fn segment_never_exceeds_its_size() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    let mut accepted = 0;
    // Each record fills a segment; the longest fit in none.
    for len in SEGMENT - 4_096 - 250..SEGMENT - 4_096 {
        match broker.try_produce(Produce::new(topic("t"), "", vec![b'x'; len as usize])) {
            Ok(_) => accepted += 1,
            Err(refusal) => assert_eq!(refusal, Refusal::Invalid("the record would be too long for the log")),
        }
        // An idle log appends a mark.
        broker.advance(100);
        let longest = broker.storage.list().unwrap().iter().map(|info| info.len).max();
        assert_eq!(longest, Some(SEGMENT), "after a value of {len} bytes");
        let mut closing = broker.pipeline.clone();
        let mut storage = broker.storage.clone();
        closing.close();
        closing.drive(broker.now, &mut storage);
        assert!(closing.is_closed());
        assert!(storage.list().unwrap().iter().all(|info| info.len <= SEGMENT), "closed after a value of {len} bytes");
    }
    assert!((50..200).contains(&accepted), "{accepted} were accepted");
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t").len(), accepted);
}

#[test]
fn snapshot_without_space_does_not_fail_log() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    attempt(&mut broker).unwrap();
    let budget = used(&mut broker);
    for room in [0, budget] {
        broker.storage.set_budget(Some(room));
        let before = broker.pipeline.snapshots().to_vec();
        broker.pipeline.request_snapshot();
        broker.run_until_idle();
        assert_eq!(broker.pipeline.failure(), None, "room for {room} bytes");
        assert_eq!(broker.pipeline.snapshots(), before);
        broker.storage.set_budget(None);
        broker.advance(10_000);
    }
    attempt(&mut broker).unwrap();
    broker.snapshot();
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t").len(), 2);
}

#[test]
fn snapshot_without_space_is_retried_later_and_uses_no_segments() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    // Of which a snapshot holds the keys.
    for number in 0..200 {
        broker.try_produce(identified("t", "value", &format!("{number:0100}"))).unwrap();
    }
    // Room for one more segment and what must be free beside it, and none for a snapshot.
    let budget = used(&mut broker) + SEGMENT + SPARE + 1;
    broker.storage.set_budget(Some(budget));
    broker.pipeline.request_snapshot();
    broker.run_until_idle();
    assert_eq!(broker.pipeline.snapshots(), []);
    let used_then = used(&mut broker);
    for _ in 0..5 {
        attempt(&mut broker).unwrap();
        broker.advance(10_000);
    }
    assert_eq!(broker.pipeline.snapshots(), []);
    assert_eq!(used(&mut broker), used_then);
    for _ in 0..40 {
        attempt(&mut broker).expect("no attempt has ended a segment: the current and the next one have room");
    }
    broker.storage.set_budget(None);
    broker.advance(10_000);
    assert_eq!(broker.pipeline.snapshots().len(), 1, "the snapshot is retried without a request");
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn drained_full_disk_regains_space() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for _ in 0..200 {
        attempt(&mut broker).unwrap();
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    // Room for two small snapshots, and none for another segment.
    let budget = used(&mut broker) + SEGMENT - 1;
    broker.storage.set_budget(Some(budget));
    while attempt(&mut broker).is_ok() {
        let delivery = broker.expect_delivery();
        if broker.ack(claim("t", "g", "w", &delivery)).is_err() {
            break;
        }
    }
    assert!(broker.storage.list().unwrap().len() > 4, "many segments are left to remove");
    for _ in 0..6 {
        broker.advance(1_000);
        let _ = attempt(&mut broker);
    }
    assert_eq!(attempt(&mut broker), Ok(()), "segments covered by snapshots were removed");
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn broker_starts_on_full_disk_with_smaller_segment() {
    let full = full();
    let mut storage = full.storage.crash();
    let used: u64 = storage.list().unwrap().iter().map(|info| info.len).sum();
    storage.set_budget(Some(used + SEGMENT / 2));
    let mut broker = TestBroker::open(storage, config(), full.now, NoFaults);
    assert_eq!(attempt(&mut broker), Err(Refusal::StorageFull), "the small segment is all reserve");
    let delivery = full.deliveries[0].1.clone();
    broker.ack(claim("t", "g", "w", &delivery)).expect("an ack uses the reserve");
}

#[test]
fn start_on_a_full_disk_leaves_half_of_the_space_to_a_snapshot_if_it_can() {
    let config = PipelineConfig { segment_bytes: 32 << 10, reserve_bytes: 1 << 10, ..config() };
    // The smallest segment has eight KiB.
    for room in [8 << 10, 15 << 10, 16 << 10, 31 << 10] {
        let mut storage = MemoryStorage::new();
        storage.set_budget(Some(room));
        let mut broker = TestBroker::open(storage, config.clone(), START, NoFaults);
        assert_eq!(used(&mut broker), 8 << 10, "room for {room} bytes");
    }
    // Half of twelve KiB is less than that.
    let config = PipelineConfig { segment_bytes: 24 << 10, ..config };
    let mut storage = MemoryStorage::new();
    storage.set_budget(Some(7 << 10));
    let opened = OpenOptions::new().config(config).create(LogId([7; 16])).open(&mut storage, START);
    assert_eq!(opened.map(drop).unwrap_err(), OpenError::Storage(StorageFault::Full));
}

#[test]
fn record_too_long_for_any_frame_is_refused_without_a_length() {
    let config = PipelineConfig { segment_bytes: 64 << 20, ..config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "v");
    let delivery = broker.expect_delivery();
    let outputs = vec![Produce::new(topic("t"), "", vec![b'x'; 12 << 20]); 3];
    let (claim, result, failed) = (claim("t", "g", "w", &delivery), None, None);
    let ticket = broker.submit(Command::Complete(Box::new(Complete { claim, result, produce: outputs, failed })));
    let refused: Vec<_> =
        broker.pipeline.refused_appends().iter().map(|refused| (refused.bytes, refused.refusal)).collect();
    assert_eq!(refused, [(0, LogRefusal::TooLong)]);
    assert_eq!(broker.reply(ticket), Some(Err(Refusal::Invalid("the record would be too long for the log"))));
}

fn is_begun(storage: &MemoryStorage, file: FileId) -> bool {
    matches!(file, FileId::Segment(_)) && storage.bytes(file).is_some_and(|bytes| !bytes.is_empty())
}

#[test]
fn start_without_any_free_block_takes_the_reserve_of_the_last_segment() {
    let config = PipelineConfig { segment_bytes: 128 << 10, reserve_bytes: 64 << 10, ..config() };
    let mut full = TestBroker::with(config.clone(), NoFaults);
    full.topic("t", 1);
    full.subscribe_with("t", "g", "w", |request| {
        (request.lease, request.prefetch) = (Some(Millis(1_000_000)), 10_000);
    });
    let budget = used(&mut full);
    full.storage.set_budget(Some(budget));
    while full.try_produce(Produce::new(topic("t"), "", "x".repeat(2_000))).is_ok() {}
    let mut storage = full.storage.crash();
    let used: u64 = storage.list().unwrap().iter().map(|info| info.len).sum();
    storage.set_budget(Some(used));
    let mut broker = TestBroker::open(storage, config, full.now, NoFaults);
    assert_eq!(attempt(&mut broker), Err(Refusal::StorageFull));
    for (_, delivery) in &full.deliveries {
        broker.ack(claim("t", "g", "w", delivery)).expect("an ack uses the reserve");
    }
    for _ in 0..5 {
        broker.advance(1_000);
    }
    attempt(&mut broker).expect("a drained broker takes messages again, without traffic");
}

#[test]
fn start_without_space_for_smallest_segment_fails_and_leaves_nothing() {
    let full = full();
    let mut storage = full.storage.crash();
    // Another program took what was reserved.
    let last = storage.list().unwrap().iter().map(|info| info.file).filter(|file| is_begun(&storage, *file)).max();
    let last = last.expect("a segment");
    let end = storage.bytes(last).unwrap().len() as u64;
    storage.trim(last, (end + 512).next_multiple_of(4_096)).unwrap();
    let files = storage.list().unwrap();
    let used: u64 = files.iter().map(|info| info.len).sum();
    for room in [0, 1_000, 3_000, 5_000] {
        storage.set_budget(Some(used + room));
        let opened = OpenOptions::new().config(config()).open(&mut storage, full.now);
        assert_eq!(opened.map(drop).unwrap_err(), OpenError::Storage(StorageFault::Full), "room for {room} bytes");
        assert!(storage.list().unwrap().len() <= files.len());
    }
    storage.set_budget(None);
    let mut broker = TestBroker::open(storage, config(), full.now, NoFaults);
    attempt(&mut broker).expect("a start with space continues");
}

#[test]
fn lack_of_descriptors_is_waited_out_for_segments() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.storage.set_no_descriptor(true);
    // The next segment exists already; the one after it cannot be created.
    let accepted = (0..1_000).take_while(|_| attempt(&mut broker).is_ok()).count();
    assert!(accepted > 50, "refused after {accepted}");
    let refused = attempt(&mut broker).unwrap_err();
    assert!(matches!(refused, Refusal::Overloaded { reason: Overload::Log, .. }), "{refused:?}");
    broker.advance(60_000);
    assert!(attempt(&mut broker).is_err(), "still no descriptor");
    assert_eq!(broker.pipeline.failure(), None);
    assert_eq!(broker.recovered_digest(), broker.digest());
    broker.storage.set_no_descriptor(false);
    broker.advance(1_000);
    (0..200).for_each(|_| attempt(&mut broker).unwrap());
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn lack_of_descriptors_is_waited_out_for_snapshots() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    attempt(&mut broker).unwrap();
    broker.storage.set_no_descriptor(true);
    broker.pipeline.request_snapshot();
    attempt(&mut broker).unwrap();
    assert_eq!((broker.pipeline.failure(), broker.pipeline.snapshots().len()), (None, 0));
    broker.storage.set_no_descriptor(false);
    broker.advance(1_000);
    attempt(&mut broker).unwrap();
    assert_eq!(broker.pipeline.snapshots().len(), 1, "it is taken once there is a descriptor");
}

#[test]
fn refused_appends_are_those_of_the_last_call() {
    let mut broker = full();
    let request = Produce::new(topic("t"), "", "x".repeat(200));
    broker.submit(Command::Produce(Box::new(request)));
    assert_eq!(broker.pipeline.refused_appends().len(), 1);
    broker.pipeline.rebase_wall_clock(broker.now).expect("recorded from the reserve");
    assert_eq!(broker.pipeline.refused_appends().len(), 0);
}

#[test]
fn snapshot_without_a_descriptor_is_not_retried_at_once() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.pipeline.request_snapshot();
    let is_draft = |op: &IoOp| matches!(op, IoOp::Create { file: FileId::SnapshotDraft(_), .. });
    let mut failed = None;
    while failed.is_none() {
        let job = broker.pipeline.poll_job(JobClass::Log).or_else(|| broker.pipeline.poll_job(JobClass::Background));
        let job = job.expect("the snapshot begins");
        // The next segment is created, and then there is no descriptor for the draft.
        broker.storage.set_no_descriptor(job.ops().iter().any(is_draft));
        let result = job.perform(&mut broker.storage);
        failed = result.clone().err();
        broker.pipeline.complete(broker.now, job, result);
    }
    assert_eq!(failed, Some(StorageFault::NoDescriptor));
    for class in [JobClass::Log, JobClass::Background] {
        assert!(broker.pipeline.poll_job(class).is_none(), "no second attempt");
    }
    broker.storage.set_no_descriptor(false);
    broker.advance(999);
    assert_eq!(broker.pipeline.snapshots().len(), 0);
    broker.advance(1);
    assert_eq!(broker.pipeline.snapshots().len(), 1);
}

#[test]
fn failed_snapshot_is_retried_once_retained_messages_are_removed() {
    let live = 80;
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic_with_retention("t", Some(3_600_000), None);
    let consumer = broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    for _ in live..100 {
        attempt(&mut broker).unwrap();
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    broker.unsubscribe(consumer);
    (0..live).for_each(|_| attempt(&mut broker).unwrap());
    // Room neither for a snapshot nor for the segment after the next one.
    broker.storage.set_budget(Some(0));
    broker.pipeline.request_snapshot();
    broker.pipeline.drive(broker.now, &mut broker.storage);
    assert_eq!(broker.pipeline.snapshots(), []);
    broker.storage.set_budget(None);
    while broker.pipeline.poll_timeout() == Some(broker.now) {
        broker.pipeline.handle_timeout(broker.now);
    }
    let stored = broker.pipeline.state().topic_named(&topic("t")).unwrap().partition(PartitionId(0)).unwrap().kept();
    assert_eq!(stored.messages, live as u64, "the retained ones are gone");
    broker.pipeline.drive(broker.now, &mut broker.storage);
    assert!(!broker.pipeline.snapshots().is_empty(), "without waiting for ten seconds");
}
