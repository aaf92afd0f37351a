//! The size of the log's files: bounded by what is live and a constant, whatever happened before.

use super::test_broker::*;
use driftq_core::command::{Pause, Resume};
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, HEADER_BYTES, LogId, MemoryStorage, Storage, StorageFault};
use driftq_core::types::*;
use driftq_core::{Command, JobClass, OpenOptions, PipelineConfig};

const SEGMENT: u64 = 256 << 10;
const SMALLEST: u64 = 16 << 10;

fn config() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: SEGMENT,
        segment_bytes_min: SMALLEST,
        reserve_bytes: 8 << 10,
        snapshot_every_segments: 4,
        rest_after: Some(Millis(2_000)),
        ..small_config()
    }
}

/// With snapshots on request alone.
fn without_snapshots() -> PipelineConfig {
    PipelineConfig { snapshot_every_segments: usize::MAX, rest_after: None, ..config() }
}

fn segments(broker: &mut TestBroker) -> Vec<u64> {
    let files = broker.storage.list().unwrap();
    files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).map(|info| info.len).collect()
}

fn size(broker: &mut TestBroker) -> u64 {
    broker.storage.list().unwrap().iter().map(|info| info.len).sum()
}

fn close(mut broker: TestBroker) -> TestBroker {
    broker.pipeline.close();
    broker.run_until_idle();
    assert!(broker.pipeline.is_closed());
    TestBroker::open(broker.storage.crash(), broker.config.clone(), broker.now, NoFaults)
}

/// Produces a message and acks it.
fn pass_message(broker: &mut TestBroker, bytes: usize) {
    broker.produce("t", &"x".repeat(bytes));
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
}

#[test]
fn clean_and_unclean_restarts_keep_the_folder_small() {
    for is_clean in [true, false] {
        let mut broker = TestBroker::with(config(), NoFaults);
        broker.topic("t", 1);
        for _ in 0..40 {
            if is_clean {
                broker = close(broker);
            } else {
                broker.crash();
            }
            assert!(segments(&mut broker).len() <= 2 * 4 + 3, "{:?}", segments(&mut broker));
            assert!(size(&mut broker) <= 2 * SMALLEST + 12 * 3 * HEADER_BYTES as u64, "{:?}", segments(&mut broker));
        }
        assert_eq!(broker.topics(), ["t"]);
    }
}

#[test]
fn cleanly_closed_segment_is_cut_to_what_it_holds_and_is_still_clean() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.pipeline.close();
    broker.run_until_idle();
    let written = broker.storage.bytes(FileId::Segment(1)).unwrap().len() as u64;
    assert_eq!(segments(&mut broker)[0], written);
    let broker = TestBroker::open(broker.storage.crash(), config(), broker.now, NoFaults);
    assert!(broker.recovered.clean);
    assert!(broker.recovered.notices.iter().all(|notice| notice.to_string().contains("never begun")));
}

#[test]
fn closed_log_keeps_the_reserve_in_its_unused_segment() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
    broker.pipeline.close();
    broker.run_until_idle();
    let written = broker.storage.bytes(FileId::Segment(1)).unwrap().len() as u64;
    assert_eq!(segments(&mut broker), [written, config().reserve_bytes]);
}

#[test]
fn segment_that_is_created_while_the_log_closes_is_cut() {
    let (mut storage, now) = (MemoryStorage::new(), Timestamp(1_000_000));
    let (mut pipeline, _) = OpenOptions::new().config(config()).create(LogId([1; 16])).open(&mut storage, now).unwrap();
    let creation = pipeline.poll_job(JobClass::Background).unwrap();
    pipeline.close();
    let footer = pipeline.poll_job(JobClass::Log).unwrap();
    let result = footer.perform(&mut storage);
    pipeline.complete(now, footer, result);
    assert!(!pipeline.is_closed(), "a job is under way");
    let result = creation.perform(&mut storage);
    pipeline.complete(now, creation, result);
    assert!(pipeline.poll_job(JobClass::Background).is_none());
    pipeline.drive(now, &mut storage);
    assert!(pipeline.is_closed());
    let sizes: Vec<_> = storage.list().unwrap().iter().map(|info| info.len).collect();
    assert!(matches!(sizes[..], [reserved, 0] if reserved < SMALLEST), "{sizes:?}");
}

#[test]
fn closing_log_that_finds_the_disk_full_takes_no_record() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic_with_retention("t", Some(1_000_000), None);
    broker.subscribe("t", "g", "w");
    pass_message(&mut broker, 10);
    let budget = size(&mut broker);
    broker.storage.set_budget(Some(budget));
    // The snapshot ends the segment, and the next one is to be created.
    broker.pipeline.request_snapshot();
    let batch = broker.pipeline.poll_job(JobClass::Log).unwrap();
    let result = batch.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, batch, result);
    let creation = broker.pipeline.poll_job(JobClass::Background).unwrap();
    broker.pipeline.close();
    let result = creation.perform(&mut broker.storage);
    assert_eq!(result, Err(StorageFault::Full));
    broker.pipeline.complete(broker.now, creation, result);
    let last = broker.pipeline.broker().appended();
    assert_eq!(broker.pipeline.poll_timeout(), None);
    broker.pipeline.handle_timeout(broker.now);
    assert_eq!(broker.pipeline.broker().appended(), last);
    broker.run_until_idle();
    assert!(broker.pipeline.is_closed());
    assert_eq!(broker.pipeline.failure(), None);
}

#[test]
fn reserve_of_a_closed_log_survives_a_snapshot_that_was_being_written() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.produce("t", "x");
    broker.pipeline.request_snapshot();
    let batch = broker.pipeline.poll_job(JobClass::Log).unwrap();
    let result = batch.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, batch, result);
    let creation = broker.pipeline.poll_job(JobClass::Background).unwrap();
    let result = creation.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, creation, result);
    let snapshot = broker.pipeline.poll_job(JobClass::Background).unwrap();
    broker.pipeline.close();
    let result = snapshot.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, snapshot, result);
    broker.run_until_idle();
    assert!(broker.pipeline.is_closed());
    assert_eq!(segments(&mut broker).last(), Some(&config().reserve_bytes));
}

#[test]
fn full_segments_are_followed_by_larger_ones() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
    for _ in 0..1_000 {
        pass_message(&mut broker, 1_000);
    }
    assert_eq!(segments(&mut broker).iter().rev().take(2).max(), Some(&SEGMENT));
}

#[test]
fn record_too_large_for_the_smallest_segment_is_accepted_once_a_larger_one_is_ready() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    let large = || driftq_core::command::Produce::new(topic("t"), "", vec![7; 100 << 10]);
    assert_eq!(broker.try_produce(large()).map(drop), Err(overloaded(driftq_core::reply::Overload::Log)));
    broker.try_produce(large()).unwrap();
    broker.crash();
    assert_eq!(broker.stored_messages("t", 0).len(), 1);
}

#[test]
fn broker_at_rest_without_live_messages_keeps_two_small_segments() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for _ in 0..1_000 {
        pass_message(&mut broker, 1_000);
    }
    assert!(size(&mut broker) > SEGMENT);
    broker.advance(5_000);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
    assert_eq!(broker.pipeline.snapshots().len(), 2);
    let before = broker.pipeline.broker().counters().appended;
    let files = broker.storage.list().unwrap();
    broker.advance(3_600_000);
    assert_eq!(broker.pipeline.broker().counters().appended, before);
    assert_eq!(broker.storage.list().unwrap(), files, "a broker at rest does nothing");
    let digest = broker.digest();
    broker.crash();
    assert_eq!(broker.stored_values("t"), [""; 0]);
    assert_ne!(broker.digest(), digest, "the boot counts");
    broker.subscribe("t", "g", "w");
    pass_message(&mut broker, 1_000);
}

#[test]
fn broker_at_rest_with_live_messages_keeps_them() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    for number in 0..500 {
        broker.produce("t", &format!("{number} {}", "x".repeat(1_000)));
    }
    let before = size(&mut broker);
    broker.advance(60_000);
    assert!(size(&mut broker) < 2 * before, "no more than the messages and two small segments");
    broker.crash();
    assert_eq!(broker.stored_values("t").len(), 500);
}

#[test]
fn retained_messages_go_before_a_produce_is_refused_on_a_full_disk() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic_with_retention("t", Some(3_600_000), None);
    broker.subscribe("t", "g", "w");
    for _ in 0..300 {
        pass_message(&mut broker, 1_000);
    }
    assert_eq!(broker.stored_messages("t", 0).len(), 300, "all are retained");
    // No space for a snapshot of what is retained.
    let budget = size(&mut broker) + (64 << 10);
    broker.storage.set_budget(Some(budget));
    for _ in 0..1_000 {
        broker.produce("t", &"x".repeat(1_000));
        broker.advance(20);
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert!(broker.pipeline.broker().counters().reclaimed > 0);
}

#[test]
fn full_broker_that_is_drained_takes_messages_again_within_five_seconds_without_traffic() {
    // The reserve is enough for all acks.
    let config = PipelineConfig { segment_bytes_min: 96 << 10, reserve_bytes: 64 << 10, ..config() };
    for retention in [None, Some(3_600_000)] {
        let mut broker = TestBroker::with(config.clone(), NoFaults);
        broker.topic_with_retention("t", retention, None);
        broker.subscribe_with("t", "g", "w", |request| {
            request.prefetch = 10_000;
            request.lease = Some(Millis(1_000_000));
        });
        let budget = size(&mut broker) + (600 << 10);
        broker.storage.set_budget(Some(budget));
        let produce = || driftq_core::command::Produce::new(topic("t"), "", vec![7; 1_000]);
        while broker.try_produce(produce()).is_ok() {}
        broker.advance(60_000);
        assert_eq!(broker.try_produce(produce()).map(drop), Err(driftq_core::Refusal::StorageFull));
        for delivery in broker.delivered() {
            broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        }
        broker.advance(5_000);
        broker.try_produce(produce()).expect("the drained broker takes messages again");
    }
}

#[test]
fn files_that_were_removed_stay_removed_after_a_power_loss() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    for _ in 0..4 {
        broker.produce("t", "a");
        broker.snapshot();
    }
    let files = broker.storage.list().unwrap();
    assert_eq!(files.iter().filter(|info| matches!(info.file, FileId::Snapshot(_))).count(), 2);
    let mut after = broker.storage.crash();
    let names = |files: &[driftq_core::log::FileInfo]| files.iter().map(|info| info.file).collect::<Vec<_>>();
    assert_eq!(names(&after.list().unwrap()), names(&files));
}

#[test]
fn log_with_nothing_to_compact_does_not_wait_for_its_rest() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.advance(100);
    assert_eq!(broker.pipeline.poll_timeout(), None);
}

#[test]
fn segments_of_fixed_size_are_compacted_at_rest() {
    let config = PipelineConfig {
        segment_bytes: SMALLEST,
        segment_bytes_min: u64::MAX,
        snapshot_every_segments: usize::MAX,
        ..config()
    };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for _ in 0..100 {
        pass_message(&mut broker, 1_000);
    }
    assert!(segments(&mut broker).len() > 5);
    broker.advance(5_000);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
}

#[test]
fn one_live_message_keeps_the_segments_of_a_log_at_rest_large() {
    for live in [0, 1] {
        let mut broker = TestBroker::with(config(), NoFaults);
        broker.topic("other", 1);
        broker.topic("t", 2);
        let consumer = broker.subscribe("t", "g", "w");
        for _ in 0..1_000 {
            pass_message(&mut broker, 1_000);
        }
        broker.unsubscribe(consumer);
        for _ in 0..live {
            broker.produce("t", "live");
        }
        broker.advance(60_000);
        assert!(broker.pipeline.is_at_rest());
        let largest = segments(&mut broker).into_iter().max();
        assert_eq!(largest == Some(SEGMENT), live > 0, "{largest:?} with {live} live messages");
    }
}

#[test]
fn record_after_a_deferred_rest_defers_the_next_one_too() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    for _ in 0..500 {
        broker.produce("t", &"x".repeat(1_000));
    }
    // A snapshot of the live messages writes more than it frees.
    broker.advance(10_000);
    assert!(!broker.pipeline.is_at_rest());
    broker.produce("t", "one more");
    broker.advance(10_000);
    assert!(!broker.pipeline.is_at_rest());
    broker.advance(30_000);
    assert!(broker.pipeline.is_at_rest());
}

#[test]
fn full_disk_takes_the_oldest_retained_messages_first_and_all_of_them() {
    let mut config = PipelineConfig { segment_bytes: SMALLEST, segment_bytes_min: u64::MAX, ..config() };
    (config.limits.work.reclaims_per_call, config.limits.work.swept_per_record) = (2, 1);
    let mut broker = TestBroker::with(config, NoFaults);
    for name in ["younger", "t"] {
        broker.topic_with_retention(name, Some(3_600_000), None);
    }
    broker.subscribe("t", "g", "w");
    broker.subscribe("younger", "g", "w");
    (0..5).for_each(|_| pass_message(&mut broker, 10));
    broker.advance(1_000);
    for _ in 0..5 {
        broker.produce("younger", "v");
        let delivery = broker.expect_delivery();
        broker.ack(claim("younger", "g", "w", &delivery)).unwrap();
    }
    broker.advance(200);
    // Room for a small snapshot, and none for another segment.
    let budget = size(&mut broker) + SMALLEST - 1;
    broker.storage.set_budget(Some(budget));
    broker.topic("live", 1);
    // The next segment cannot be created once this one has taken its place.
    while broker.pipeline.poll_timeout() != Some(broker.now) {
        broker.submit(driftq_core::command::Produce::new(topic("live"), "", vec![7; 1_000]).into());
        broker.pipeline.drive(broker.now, &mut broker.storage);
    }
    assert_eq!(broker.pipeline.snapshots(), [], "they go before a snapshot is written");
    let retained = |broker: &TestBroker, name| {
        let topic = broker.pipeline.state().topic_named(&topic(name)).unwrap();
        topic.partition(PartitionId(0)).unwrap().retained_load().messages
    };
    let mut seen = Vec::new();
    while broker.pipeline.poll_timeout() == Some(broker.now) {
        broker.pipeline.handle_timeout(broker.now);
        seen.push((retained(&broker, "t"), retained(&broker, "younger")));
    }
    assert_eq!(seen, [(3, 5), (1, 5), (0, 4), (0, 2), (0, 0)]);
    assert_eq!(broker.pipeline.broker().counters().reclaimed, 10);
    broker.pipeline.drive(broker.now, &mut broker.storage);
    assert!(!broker.pipeline.snapshots().is_empty());
}

/// A broker that has passed a thousand messages, so that its segments are large.
fn with_large_segments() -> TestBroker {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    (0..1_000).for_each(|_| pass_message(&mut broker, 1_000));
    assert_eq!(segments(&mut broker).into_iter().max(), Some(SEGMENT));
    broker
}

#[test]
fn large_record_ends_the_rest_of_a_log_before_it_is_accepted() {
    let mut broker = with_large_segments();
    broker.advance(5_000);
    assert!(broker.pipeline.is_at_rest());
    let before = broker.pipeline.snapshots().to_vec();
    let large = || driftq_core::command::Produce::new(topic("t"), "", vec![7; 100 << 10]);
    let refused = broker.submit(large().into());
    assert!(!broker.pipeline.is_at_rest());
    broker.run_until_idle();
    assert_eq!(broker.reply(refused), Some(Err(overloaded(driftq_core::reply::Overload::Log))));
    assert_eq!(broker.pipeline.snapshots(), before, "the segment for it is not taken back");
    broker.try_produce(large()).unwrap();
}

#[test]
fn large_segments_shrink_at_rest_also_if_a_snapshot_covers_them() {
    let mut broker = with_large_segments();
    broker.snapshot();
    broker.advance(5_000);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
}

#[test]
fn log_at_rest_passes_over_the_large_segment_that_is_ready() {
    let mut broker = with_large_segments();
    let numbers = |broker: &mut TestBroker| -> Vec<u64> {
        let files = broker.storage.list().unwrap();
        let segments = files.iter().filter_map(|info| match info.file {
            FileId::Segment(sequence) => Some(sequence),
            _ => None,
        });
        segments.collect()
    };
    let ready = *numbers(&mut broker).last().unwrap();
    broker.advance(5_000);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
    assert_eq!(numbers(&mut broker), [ready, ready + 1]);
}

#[test]
fn larger_segment_that_was_never_created_is_small_after_a_rest() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    // The first segment is followed by one of the same size, and that by a larger one.
    broker.storage.set_no_descriptor(true);
    while broker.storage.bytes(FileId::Segment(2)) == Some(&[]) {
        pass_message(&mut broker, 1_000);
    }
    broker.advance(10_000);
    broker.storage.set_no_descriptor(false);
    broker.now = broker.now.after(Millis(1_000));
    broker.pipeline.handle_timeout(broker.now);
    let creation = broker.pipeline.poll_job(JobClass::Background).expect("the next segment is created");
    let result = creation.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, creation, result);
    assert_eq!(segments(&mut broker).last(), Some(&SMALLEST));
    broker.advance(20_000);
    assert_eq!(segments(&mut broker), [SMALLEST; 2]);
}

#[test]
fn log_whose_closed_segments_exceed_what_is_stored_rests_soon() {
    let mut broker = with_large_segments();
    broker.topic("live", 1);
    broker.produce("live", "live");
    broker.advance(2_200);
    assert!(broker.pipeline.is_at_rest());
}

#[test]
fn snapshot_is_due_by_the_segments_begun_since_the_last_one() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.snapshot();
    let first = broker.pipeline.snapshots().to_vec();
    for _ in 0..3 {
        broker.crash();
        assert_eq!(broker.pipeline.snapshots(), first);
    }
    broker.crash();
    assert_eq!(broker.pipeline.snapshots().len(), 2);
}

#[test]
fn next_segment_is_as_large_as_the_disk_has_room_for() {
    // Beside a segment a sixteenth of it must be free, and at least three pages.
    for (room, expected) in [(30, 16), (75, 32), (77, 64), (270, 128), (274, 256)] {
        let mut broker = TestBroker::with(without_snapshots(), NoFaults);
        broker.topic("t", 1);
        let produce = |broker: &mut TestBroker| {
            broker.produce("t", &"x".repeat(1_000));
            assert_eq!(broker.pipeline.refused_appends(), []);
        };
        while segments(&mut broker).last() != Some(&(128 << 10)) {
            produce(&mut broker);
        }
        let (made, budget) = (segments(&mut broker).len(), size(&mut broker) + (room << 10));
        broker.storage.set_budget(Some(budget));
        while segments(&mut broker).len() == made {
            produce(&mut broker);
        }
        assert_eq!(segments(&mut broker).last(), Some(&(expected << 10)), "room for {room} KiB");
        (0..100).for_each(|_| produce(&mut broker));
    }
}

#[test]
fn snapshot_ends_no_empty_segment() {
    let config = PipelineConfig { segment_bytes: SMALLEST, ..without_snapshots() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    let newest = |broker: &mut TestBroker| {
        let files = broker.storage.list().unwrap();
        files.iter().map(|info| info.file).filter(|file| matches!(file, FileId::Segment(_))).max()
    };
    let mut ended_by_marks = 0;
    for len in (SMALLEST - HEADER_BYTES as u64 - 250..SMALLEST - HEADER_BYTES as u64 - 100).step_by(10) {
        broker.produce("t", &"x".repeat(len as usize));
        let before = newest(&mut broker);
        broker.advance(100);
        let after = newest(&mut broker);
        if after > before {
            ended_by_marks += 1;
            broker.snapshot();
            assert_eq!(newest(&mut broker), after);
        }
    }
    assert!(ended_by_marks > 0);
}

/// Performs all jobs on a disk that has room for a small snapshot at any time, but for no segment.
fn drive_on_full_disk(broker: &mut TestBroker) {
    for _ in 0..1_000 {
        let budget = size(broker) + (10 << 10);
        broker.storage.set_budget(Some(budget));
        let job = broker.pipeline.poll_job(JobClass::Log).or_else(|| broker.pipeline.poll_job(JobClass::Background));
        let Some(job) = job else { return broker.collect() };
        let result = job.perform(&mut broker.storage);
        broker.pipeline.complete(broker.now, job, result);
    }
    panic!("there is always another job");
}

/// A broker whose last segment is large and full, on a disk without room for another one.
fn with_full_segment() -> TestBroker {
    let mut broker = TestBroker::with(PipelineConfig { segment_bytes: 2 * SMALLEST, ..config() }, NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    (0..100).for_each(|_| pass_message(&mut broker, 1_000));
    let (topic, group) = (topic("t"), group("g"));
    for number in 0..2_000 {
        let ticket = broker.submit(match number % 2 {
            0 => Command::Pause(Pause { topic: topic.clone(), group: group.clone() }),
            _ => Command::Resume(Resume { topic: topic.clone(), group: group.clone() }),
        });
        drive_on_full_disk(&mut broker);
        match broker.reply(ticket).expect("a reply") {
            Ok(_) => {}
            Err(refusal) => {
                assert_eq!(refusal, driftq_core::Refusal::StorageFull);
                return broker;
            }
        }
    }
    panic!("the segment is never full");
}

#[test]
fn snapshots_of_a_full_log_at_rest_leave_room_for_its_footer() {
    let mut broker = with_full_segment();
    let before = broker.pipeline.snapshots().last().copied();
    for _ in 0..60 {
        broker.now = broker.now.after(Millis(1_000));
        broker.pipeline.handle_timeout(broker.now);
        drive_on_full_disk(&mut broker);
    }
    assert!(broker.pipeline.is_at_rest());
    assert!(broker.pipeline.snapshots().last().copied() > before);
    broker.pipeline.close();
    drive_on_full_disk(&mut broker);
    assert_eq!(broker.pipeline.failure(), None);
    assert!(segments(&mut broker).iter().all(|len| *len <= 2 * SMALLEST), "{:?}", segments(&mut broker));
    broker.storage.set_budget(None);
    broker.crash();
    assert!(broker.recovered.clean);
}
