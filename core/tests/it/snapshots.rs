//! Snapshots and segments: every combination of snapshot and tail recovers the same state.

use super::test_broker::*;
use driftq_core::command::{CreateTopic, DeleteTopic, Redrive, RedriveSelection, SeekTo};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::{FileId, IoOp, Storage};
use driftq_core::record::{Event, Image, Record};
use driftq_core::state::{MessageChunk, State};
use driftq_core::types::*;
use driftq_core::{Command, JobClass, PipelineConfig};

/// One round of mixed commands; `round` selects them.
fn traffic<F: Faults>(broker: &mut TestBroker<F>, round: u64) {
    let value = format!("value {round}");
    broker.produce_with("t", &value, |request| {
        request.set_key(round.to_le_bytes());
        request.envelope.idempotency_key = round.is_multiple_of(3).then(|| value.as_str().into());
        request.envelope.priority = Priority::new((round % 4) as u8);
        request.envelope.retry_policy = round.is_multiple_of(2).then(|| policy(2, 300, 0));
        request.delay = round.is_multiple_of(5).then_some(Millis(1_500));
        request.envelope.deadline = round.is_multiple_of(7).then(|| deadline(Timestamp(u64::MAX - 1))).flatten();
    });
    for (number, (_, delivery)) in std::mem::take(&mut broker.deliveries).into_iter().enumerate() {
        let claim = claim("t", if round.is_multiple_of(2) { "g" } else { "h" }, "w", &delivery);
        // A claim on a delivery of the other group is refused, which is part of the traffic.
        let _ = match (round + number as u64) % 5 {
            0 => broker.nack(claim, "no"),
            1 => broker.extend(claim, Some(4_000)).map(drop),
            2 => broker.release(claim),
            _ => broker.ack(claim),
        };
    }
    match round % 31 {
        10 => broker.seek("t", "g", SeekTo::Offset(Offset(round / 2))).unwrap(),
        15 => broker.pause("t", "h"),
        20 => broker.resume("t", "h"),
        25 => {
            drop(broker.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 2 })));
        }
        28 => broker.group("t", &format!("extra-{round}")),
        30 => broker.delete_group("t", &format!("extra-{}", round - 2)),
        _ => {}
    }
    broker.advance(137);
}

fn busy<F: Faults>(config: PipelineConfig, faults: F) -> TestBroker<F> {
    let mut broker = TestBroker::with(config, faults);
    let retention = driftq_core::types::Retention { age: Some(Millis(3_000)), bytes: None };
    broker.send(Command::CreateTopic(CreateTopic { name: topic("t"), partitions: Some(3), retention })).unwrap();
    for name in ["g", "h"] {
        broker.subscribe_with("t", name, "w", |request| request.prefetch = 4);
    }
    broker
}

fn tiny() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 8 << 10,
        reserve_bytes: 1 << 10,
        snapshot_every_bytes: 12 << 10,
        slice_bytes: 256,
        clean_spare_segments: 0,
        ..small_config()
    }
}

#[test]
fn log_recovers_state_after_every_round_of_traffic() {
    let mut broker = busy(small_config(), NoFaults);
    for round in 0..200 {
        traffic(&mut broker, round);
        assert_eq!(broker.recovered_digest(), broker.digest(), "round {round}");
    }
    assert!(broker.pipeline.snapshots().is_empty(), "recovered from the log alone");
}

#[test]
fn snapshot_and_tail_recover_state_after_every_round_over_segments() {
    let mut broker = busy(tiny(), NoFaults);
    let mut snapshots = std::collections::BTreeSet::new();
    for round in 0..300 {
        traffic(&mut broker, round);
        snapshots.extend(broker.pipeline.snapshots().to_vec());
        assert_eq!(broker.recovered_digest(), broker.digest(), "round {round}");
    }
    assert!(snapshots.len() > 3, "{snapshots:?}");
    broker.delete_topic("t");
    broker.snapshot();
    broker.topic("t", 1);
    broker.snapshot();
    let files = broker.storage.list().unwrap();
    let segments = files.iter().filter_map(|info| if let FileId::Segment(n) = info.file { Some(n) } else { None });
    let (count, last) = (segments.clone().count() as u64, segments.max().unwrap());
    assert!(count < last, "segments without live messages are gone: {count} of {last} are left");
    assert_eq!(broker.pipeline.snapshots().len(), 2);
}

#[test]
fn broker_restarted_after_every_round_equals_uninterrupted_one() {
    let mut uninterrupted = busy(tiny(), NoFaults);
    for round in 0..60 {
        traffic(&mut uninterrupted, round);
    }
    let expected: Vec<_> =
        uninterrupted.stored_messages("t", 0).into_iter().chain(uninterrupted.stored_messages("t", 1)).collect();
    let mut restarted = busy(tiny(), NoFaults);
    for round in 0..60 {
        traffic(&mut restarted, round);
        let digest = restarted.digest();
        let boot = restarted.pipeline.state().boot();
        assert_eq!(restarted.recovered_digest(), digest);
        let mut copy = TestBroker::open(restarted.storage.crash(), tiny(), restarted.now, NoFaults);
        assert_eq!(copy.pipeline.state().boot(), boot.next());
        copy.crash();
        assert_eq!(copy.pipeline.state().boot(), boot.next().next(), "every recovery counts one boot");
        assert_eq!(copy.stored_messages("t", 2), restarted.stored_messages("t", 2));
    }
    assert_eq!(
        restarted.stored_messages("t", 0).into_iter().chain(restarted.stored_messages("t", 1)).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn state_restored_from_its_own_view_equals_it() {
    let mut broker = TestBroker::with_topic(1);
    for value in ["trimmed", "leased", "queued"] {
        broker.produce("t", value);
    }
    broker.subscribe("t", "g", "w");
    let held = broker.delivered();
    broker.ack(claim("t", "g", "w", &held[0])).unwrap();
    broker.nack_with_delay(claim("t", "g", "w", &held[2]), 1_000).unwrap();
    let state = broker.pipeline.state();
    let mut restored = State::default();
    for image in state.view_in_chunks() {
        restored.apply(&Record { at: Timestamp::default(), event: Event::Restored(image) }).unwrap();
    }
    assert_eq!(restored, *state);
    broker.ack(claim("t", "g", "w", &held[1])).unwrap();
    assert_ne!(restored, *broker.pipeline.state());
}

/// A state with many messages, in several groups, of which some are acked, retained, delivered, urgent or redriven.
fn many_messages() -> TestBroker {
    let mut config = PipelineConfig { segment_bytes: 1 << 20, ..small_config() };
    config.limits.retention_bytes = Some(2_000);
    config.limits.retention_age = None;
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 2);
    broker.group("t", "slow");
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 700);
    for number in 0..1_500_u32 {
        broker.produce_with("t", "value", |request| {
            request.set_key(number.to_string());
            if number % 40 == 0 {
                request.envelope.priority = Priority::new(3);
            }
            if number % 55 == 0 {
                request.envelope.idempotency_key = Some(format!("key {number}").into());
            }
        });
    }
    let held = broker.delivered();
    for (nth, delivery) in held.iter().enumerate() {
        let claim = claim("t", "g", "w", delivery);
        match nth % 10 {
            0 => {}
            1 => broker.nack_with_delay(claim, 1_000).unwrap(),
            _ => broker.ack(claim).unwrap(),
        }
    }
    broker
}

#[test]
fn state_with_packed_chunks_is_restored_from_them() {
    let mut broker = many_messages();
    let state = broker.pipeline.state();
    let images: Vec<_> = state.view_in_chunks().collect();
    let chunks = images.iter().filter(|image| matches!(image, Image::Chunk { .. })).count();
    assert!(chunks >= 10, "{chunks} chunks");
    let by_message: Vec<_> = images.iter().cloned().flat_map(Image::by_message).collect();
    assert!(by_message.iter().cloned().eq(state.view()));
    for images in [images, by_message] {
        let mut restored = State::default();
        for image in images {
            restored.apply(&Record { at: Timestamp::default(), event: Event::Restored(image) }).unwrap();
        }
        assert_eq!(restored, *state);
        assert_eq!(restored.digest(), state.digest());
        restored.check().unwrap();
    }
    let digest = broker.digest();
    broker.snapshot();
    assert_eq!(broker.recovered_digest(), digest);
    let expected = [broker.stored_messages("t", 0), broker.stored_messages("t", 1)];
    broker.crash();
    assert!(broker.recovered.frames_read < 10, "the messages come from the snapshot");
    assert_eq!([broker.stored_messages("t", 0), broker.stored_messages("t", 1)], expected);
}

/// What a state says to the images of `many_messages`, of which `change` has changed the chunk before the last.
fn changed_chunk(change: impl Fn(&mut Vec<Image>)) -> Result<(), String> {
    let broker = many_messages();
    let mut images: Vec<_> = broker.pipeline.state().view_in_chunks().collect();
    // Without deliveries, which would be contradicted first.
    images.retain(|image| !matches!(image, Image::DeliveryState { .. }));
    let is_chunk = |image: &Image| matches!(image, Image::Chunk { .. });
    let at = images.iter().enumerate().filter(|(_, image)| is_chunk(image)).map(|(at, _)| at).nth_back(1).unwrap();
    let Image::Chunk { topic, partition, chunk } = images[at].clone() else { unreachable!("a chunk was found") };
    let mut messages: Vec<_> = chunk.images(topic, partition).collect();
    change(&mut messages);
    let chunk = MessageChunk::of_images(&messages).ok_or("no chunk")?;
    images[at] = Image::Chunk { topic, partition, chunk };
    let mut restored = State::default();
    for image in images {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        restored.apply(&record).map_err(|error| error.to_string())?;
    }
    restored.check().map_err(|error| error.what.to_owned())
}

#[test]
fn chunk_that_contradicts_the_rest_of_its_snapshot_is_refused() {
    assert_eq!(changed_chunk(|_| {}), Ok(()));
    type Change = fn(&mut Image);
    let cases: [(&str, Change); 7] = [
        ("record contradicts the state: payload of a record that is not there yet", |image| {
            if let Image::Message { payload, .. } = image {
                payload.id.lsn = Lsn(u64::MAX);
            }
        }),
        ("record contradicts the state: message acked in more groups than were ever created", |image| {
            if let Image::Message { acked_in, .. } = image {
                *acked_in = 9;
            }
        }),
        ("record contradicts the state: message at a trimmed or unassigned position", |image| {
            if let Image::Message { position, .. } = image {
                position.0 += 1 << 40;
            }
        }),
        ("a message's ack count is wrong", |image| {
            if let Image::Message { acked_in, retained, .. } = image {
                (*acked_in, *retained) = (1 - (*acked_in).min(1), false);
            }
        }),
        ("an offset is not assigned yet", |image| {
            if let Image::Message { offset, .. } = image {
                offset.0 += 1 << 40;
            }
        }),
        ("a message is older than the one before it, or newer than the last record", |image| {
            if let Image::Message { produced_at, .. } = image {
                produced_at.0 += 1 << 40;
            }
        }),
        ("a message that was not redriven is visible to one group only", |image| {
            if let Image::Message { visible_to, .. } = image {
                *visible_to = Some(GroupId(0));
            }
        }),
    ];
    for (refusal, change) in cases {
        assert_eq!(changed_chunk(|images| images.iter_mut().for_each(change)), Err(refusal.to_owned()));
    }
    let gap = changed_chunk(|images| drop(images.remove(40)));
    assert_eq!(gap, Err("a position is neither stored nor trimmed".to_owned()));
    assert_eq!(changed_chunk(|images| images.swap(3, 4)), Err("no chunk".to_owned()), "not in order");
}

#[test]
fn large_snapshot_puts_the_next_one_off() {
    let every = 4 << 10;
    let config = PipelineConfig { segment_bytes: 1 << 20, snapshot_every_bytes: every, ..small_config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    assert_eq!(broker.pipeline.snapshot_interval(), every);
    for number in 0..2_000 {
        broker.produce_with("t", "value", |request| {
            request.envelope.idempotency_key = Some(format!("key {number}").into());
        });
    }
    let newest = *broker.pipeline.snapshots().last().expect("much was written");
    let files = broker.storage.list().unwrap();
    let len = files.iter().find(|info| info.file == FileId::Snapshot(newest)).expect("it is a file").len;
    assert!(len > 10 * every, "{len}");
    assert_eq!(broker.pipeline.snapshot_interval(), 2 * len);
    broker.crash();
    assert_eq!(broker.pipeline.snapshot_interval(), 2 * len, "a start knows the size from the file");
    while *broker.pipeline.snapshots().last().unwrap() == newest {
        broker.produce("t", "value");
    }
    let written = broker.pipeline.snapshots().last().unwrap().0 - newest.0;
    assert!(written > len / 200, "{written} frames were written before the next one, of {len} bytes");
}

#[test]
fn snapshot_holds_state_of_its_start_however_long_it_takes() {
    let mut broker = busy(PipelineConfig { slice_bytes: 64, ..small_config() }, NoFaults);
    for round in 0..30 {
        traffic(&mut broker, round);
    }
    broker.pipeline.request_snapshot();
    let mut slices = 0;
    while broker.pipeline.snapshots().is_empty() {
        broker.submit(Command::Produce(Box::new(driftq_core::command::Produce::new(topic("t"), "", "meanwhile"))));
        for class in [JobClass::Log, JobClass::Background] {
            if let Some(job) = broker.pipeline.poll_job(class) {
                slices += usize::from(class == JobClass::Background);
                let result = job.perform(&mut broker.storage);
                broker.pipeline.complete(broker.now, job, result);
            }
        }
        broker.collect();
        assert!(slices < 10_000);
    }
    assert!(slices > 20, "it took {slices} jobs");
    broker.run_until_idle();
    assert_eq!(broker.recovered_digest(), broker.digest());
    broker.crash();
    assert!(broker.recovered.snapshot.is_some());
    assert!(broker.recovered.frames_read < 500, "only the tail was replayed");
}

#[test]
fn crash_during_snapshot_loses_nothing() {
    for stop_after in 0..40 {
        let mut broker = busy(PipelineConfig { slice_bytes: 200, ..small_config() }, NoFaults);
        for round in 0..12 {
            traffic(&mut broker, round);
        }
        let digest = broker.digest();
        broker.pipeline.request_snapshot();
        for _ in 0..stop_after {
            let job =
                broker.pipeline.poll_job(JobClass::Log).or_else(|| broker.pipeline.poll_job(JobClass::Background));
            let Some(job) = job else { break };
            let result = job.perform(&mut broker.storage);
            broker.pipeline.complete(broker.now, job, result);
        }
        assert_eq!(broker.recovered_digest(), digest, "after {stop_after} jobs");
        broker.crash();
        broker.snapshot();
    }
}

#[test]
fn snapshot_is_renamed_only_once_log_is_synced_through_it() {
    let mut broker = busy(small_config(), NoFaults);
    broker.produce("t", "durable");
    let digest = broker.digest();
    let held = broker.submit(Command::DeleteTopic(DeleteTopic { name: topic("t") }));
    broker.pipeline.request_snapshot();
    let batch = broker.pipeline.poll_job(JobClass::Log).expect("a job for the deletion");
    while let Some(job) = broker.pipeline.poll_job(JobClass::Background) {
        let result = job.perform(&mut broker.storage);
        broker.pipeline.complete(broker.now, job, result);
    }
    assert_eq!(broker.pipeline.snapshots(), [], "the snapshot is written, but has no final name");
    assert_eq!(broker.recovered_digest(), digest, "a power loss now reverts the deletion, which was not replied to");
    assert_eq!(broker.reply(held), None);
    let result = batch.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, batch, result);
    broker.run_until_idle();
    assert_eq!(broker.pipeline.snapshots().len(), 1);
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn recovery_reads_only_tail_after_newest_snapshot() {
    let mut broker = busy(tiny(), NoFaults);
    for round in 0..300 {
        traffic(&mut broker, round);
    }
    broker.crash();
    let limit = 3 * tiny().snapshot_every_bytes;
    assert!(broker.recovered.bytes_read < limit, "{} bytes were read", broker.recovered.bytes_read);
    assert!(broker.recovered.snapshot.is_some());
}

#[test]
fn newest_snapshot_missing_or_damaged_recovers_from_older_one() {
    let mut broker = busy(small_config(), NoFaults);
    for _ in 0..2 {
        for round in 0..10 {
            traffic(&mut broker, round);
        }
        broker.snapshot();
    }
    traffic(&mut broker, 11);
    let digest = broker.digest();
    let newest = *broker.pipeline.snapshots().last().unwrap();
    let mut gone = broker.storage.crash();
    let bytes = gone.take_file(FileId::Snapshot(newest)).expect("the snapshot exists");
    // The last bit: most of the snapshot is restored before the damage shows, and must be discarded.
    let mut damaged = broker.storage.crash();
    damaged.bytes_mut(FileId::Snapshot(newest)).expect("the snapshot exists").flip(8 * bytes.len() - 1);
    for mut storage in [gone, damaged] {
        let (state, recovered) = driftq_core::pipeline::inspect(&mut storage, None).unwrap();
        assert_eq!(state.digest(), digest);
        assert_eq!(recovered.snapshot.map(|at| at.frame), Some(broker.pipeline.snapshots()[0]));
    }
}

#[test]
fn snapshot_with_zero_slice_size_completes() {
    let mut broker = TestBroker::with(PipelineConfig { slice_bytes: 0, ..small_config() }, NoFaults);
    broker.topic("t", 1);
    broker.produce("t", "v");
    broker.snapshot();
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t"), ["v"]);
}

#[test]
fn snapshot_of_unchanged_state_is_not_repeated() {
    let mut broker = busy(small_config(), NoFaults);
    broker.snapshot();
    let before = broker.pipeline.snapshots().to_vec();
    broker.pipeline.request_snapshot();
    broker.run_until_idle();
    assert_eq!(broker.pipeline.snapshots(), before);
}

#[test]
fn requested_snapshot_is_taken_once_whatever_is_recorded_meanwhile() {
    let mut broker = TestBroker::with_topic(1);
    broker.pipeline.request_snapshot();
    let batch = broker.pipeline.poll_job(JobClass::Log).expect("the snapshot ends the segment");
    let result = batch.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, batch, result);
    broker.produce("t", "meanwhile");
    assert_eq!(broker.pipeline.snapshots().len(), 1);
    broker.produce("t", "afterwards");
    assert_eq!(broker.pipeline.snapshots().len(), 1);
}

#[test]
fn snapshot_is_due_again_after_as_many_bytes() {
    let config = PipelineConfig { snapshot_every_bytes: 12 << 10, ..small_config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    let bulk = "x".repeat(1_000);
    while broker.pipeline.snapshots().is_empty() {
        broker.produce("t", &bulk);
    }
    for _ in 0..7 {
        broker.produce("t", &bulk);
        assert_eq!(broker.pipeline.snapshots().len(), 1);
    }
    for _ in 0..5 {
        broker.produce("t", &bulk);
    }
    assert_eq!(broker.pipeline.snapshots().len(), 2);
}

#[test]
fn log_that_ends_in_a_snapshot_writes_nothing_more() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "v");
    broker.snapshot();
    let (taken, files) = (broker.pipeline.snapshots().to_vec(), broker.storage.list().unwrap());
    let written = |broker: &TestBroker| files.iter().map(|info| broker.storage.bytes(info.file).unwrap().len()).sum();
    let before: usize = written(&broker);
    assert_eq!(broker.pipeline.poll_timeout(), None, "the footer of the segment is its mark");
    broker.advance(1_000);
    broker.pipeline.request_snapshot();
    broker.run_until_idle();
    assert_eq!(broker.pipeline.snapshots(), taken);
    assert_eq!(written(&broker), before);
}

#[test]
fn every_write_carries_the_number_of_its_boot() {
    let mut broker = TestBroker::with_topic(1);
    broker.crash();
    broker.crash();
    assert_eq!(broker.pipeline.state().boot(), Boot(3));
    broker.submit(Command::Produce(Box::new(driftq_core::command::Produce::new(topic("t"), "", "v"))));
    broker.pipeline.request_snapshot();
    let mut writes = Vec::new();
    while let Some(job) =
        broker.pipeline.poll_job(JobClass::Log).or_else(|| broker.pipeline.poll_job(JobClass::Background))
    {
        writes.extend(job.ops().iter().filter_map(|op| match op {
            IoOp::Append { file, at, .. } => Some((matches!(file, FileId::SnapshotDraft(_)), at.epoch)),
            _ => None,
        }));
        let result = job.perform(&mut broker.storage);
        broker.pipeline.complete(broker.now, job, result);
    }
    assert!(writes.contains(&(false, 3)) && writes.contains(&(true, 3)), "{writes:?}");
    assert!(writes.iter().all(|(_, epoch)| *epoch == 3), "{writes:?}");
}

#[test]
fn fault_snapshot_misses_in_flight_is_detected() {
    let recovers_from_snapshot = |broker: &mut TestBroker<Planted>| {
        broker.snapshot();
        broker.recovered_digest() == broker.digest()
    };
    let mut broker = busy(small_config(), Planted(Fault::SnapshotMissesInFlight));
    broker.produce("t", "held");
    assert!(!recovers_from_snapshot(&mut broker));
    let mut broker = busy(small_config(), Planted(Fault::HighestAckWatermark));
    broker.produce("t", "held");
    assert!(recovers_from_snapshot(&mut broker), "other faults do not change the result");
}
