//! Snapshots and segments: whatever piece of the log is left, the state comes back the same.

use super::rig::*;
use driftq_core::command::{RedriveSelection, SeekTo};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::{FileId, Storage};
use driftq_core::types::*;
use driftq_core::{Command, JobClass, PipelineConfig};

/// One round of everything a broker does: `round` picks what.
fn traffic<F: Faults>(rig: &mut Rig<F>, round: u64) {
    let value = format!("value {round}");
    rig.produce_with("t", &value, |asked| {
        asked.key = round.to_le_bytes().into();
        asked.envelope.idempotency_key = round.is_multiple_of(3).then(|| value.as_str().into());
        asked.envelope.priority = Priority::new((round % 4) as u8);
        asked.envelope.retry_policy = round.is_multiple_of(2).then(|| policy(2, 300, 0));
        asked.delay = round.is_multiple_of(5).then_some(Millis(1_500));
        asked.envelope.deadline = round.is_multiple_of(7).then(|| deadline(Timestamp(u64::MAX - 1))).flatten();
    });
    for (number, (_, delivery)) in std::mem::take(&mut rig.deliveries).into_iter().enumerate() {
        let claim = claim("t", if round.is_multiple_of(2) { "g" } else { "h" }, "w", &delivery);
        // A delivery of the other group is refused, which is part of the traffic.
        let _ = match (round + number as u64) % 5 {
            0 => rig.nack(claim, "no"),
            1 => rig.extend(claim, Some(4_000)).map(drop),
            2 => rig.release(claim),
            _ => rig.ack(claim),
        };
    }
    match round % 31 {
        10 => rig.seek("t", "g", SeekTo::Offset(Offset(round / 2))).unwrap(),
        15 => rig.pause("t", "h"),
        20 => rig.resume("t", "h"),
        25 => drop(rig.send(Command::Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 2 })),
        28 => rig.group("t", &format!("extra-{round}")),
        30 => rig.delete_group("t", &format!("extra-{}", round - 2)),
        _ => {}
    }
    rig.pass(137);
}

fn busy<F: Faults>(config: PipelineConfig, faults: F) -> Rig<F> {
    let mut rig = Rig::with(config, faults);
    let retention = driftq_core::record::Retention { age: Some(Millis(3_000)), bytes: None };
    rig.send(Command::CreateTopic { name: topic("t"), partitions: Some(3), retention }).unwrap();
    for name in ["g", "h"] {
        rig.subscribe_with("t", name, "w", |asked| asked.prefetch = 4);
    }
    rig
}

fn tiny() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 8 << 10,
        reserve_bytes: 1 << 10,
        snapshot_every_bytes: 12 << 10,
        slice_bytes: 256,
        ..small_config()
    }
}

#[test]
fn the_log_gives_back_the_state_after_every_step_of_busy_traffic() {
    let mut rig = busy(small_config(), NoFaults);
    for round in 0..200 {
        traffic(&mut rig, round);
        assert_eq!(rig.recovered_digest(), rig.digest(), "round {round}");
    }
    assert!(rig.pipeline.snapshots().is_empty(), "from the log alone");
}

#[test]
fn snapshots_and_the_tail_give_back_the_state_after_every_step_over_many_segments() {
    let mut rig = busy(tiny(), NoFaults);
    let mut taken = std::collections::BTreeSet::new();
    for round in 0..300 {
        traffic(&mut rig, round);
        taken.extend(rig.pipeline.snapshots().to_vec());
        assert_eq!(rig.recovered_digest(), rig.digest(), "round {round}");
    }
    assert!(taken.len() > 3, "{taken:?}");
    let files = rig.storage.list().unwrap();
    let oldest = files.iter().find_map(|info| if let FileId::Segment(n) = info.file { Some(n) } else { None });
    assert!(oldest.unwrap() > 5, "old segments are gone");
    assert_eq!(rig.pipeline.snapshots().len(), 2);
}

#[test]
fn a_broker_restarted_at_every_step_is_the_broker_that_was_not() {
    let mut steady = busy(tiny(), NoFaults);
    for round in 0..60 {
        traffic(&mut steady, round);
    }
    let expected: Vec<_> = steady.kept_in("t", 0).into_iter().chain(steady.kept_in("t", 1)).collect();
    let mut shaken = busy(tiny(), NoFaults);
    for round in 0..60 {
        traffic(&mut shaken, round);
        let digest = shaken.digest();
        let boot = shaken.pipeline.state().boot();
        assert_eq!(shaken.recovered_digest(), digest);
        let mut copy = Rig::open(shaken.storage.crash(), tiny(), shaken.now, NoFaults);
        assert_eq!(copy.pipeline.state().boot(), boot.next());
        copy.crash();
        assert_eq!(copy.pipeline.state().boot(), boot.next().next(), "recovering twice is recovering");
        assert_eq!(copy.kept_in("t", 2), shaken.kept_in("t", 2));
    }
    assert_eq!(shaken.kept_in("t", 0).into_iter().chain(shaken.kept_in("t", 1)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_snapshot_is_the_state_at_its_moment_however_long_its_writing_takes() {
    let mut rig = busy(PipelineConfig { slice_bytes: 64, ..small_config() }, NoFaults);
    for round in 0..30 {
        traffic(&mut rig, round);
    }
    rig.pipeline.request_snapshot();
    let mut slices = 0;
    while rig.pipeline.snapshots().is_empty() {
        rig.submit(Command::Produce(Box::new(driftq_core::command::Produce::new(topic("t"), "", "meanwhile"))));
        for class in [JobClass::Log, JobClass::Background] {
            if let Some(job) = rig.pipeline.poll_job(class) {
                slices += usize::from(class == JobClass::Background);
                let result = job.perform(&mut rig.storage);
                rig.pipeline.complete(rig.now, job, result);
            }
        }
        rig.collect();
        assert!(slices < 10_000);
    }
    assert!(slices > 20, "it took {slices} pieces of work");
    rig.settle();
    assert_eq!(rig.recovered_digest(), rig.digest());
    rig.crash();
    assert!(rig.recovered.snapshot.is_some());
    assert!(rig.recovered.frames_read < 500, "only the tail was replayed");
}

#[test]
fn a_crash_while_a_snapshot_is_written_costs_nothing() {
    for stop_after in 0..40 {
        let mut rig = busy(PipelineConfig { slice_bytes: 200, ..small_config() }, NoFaults);
        for round in 0..12 {
            traffic(&mut rig, round);
        }
        let digest = rig.digest();
        rig.pipeline.request_snapshot();
        for _ in 0..stop_after {
            let job = rig.pipeline.poll_job(JobClass::Log).or_else(|| rig.pipeline.poll_job(JobClass::Background));
            let Some(job) = job else { break };
            let result = job.perform(&mut rig.storage);
            rig.pipeline.complete(rig.now, job, result);
        }
        assert_eq!(rig.recovered_digest(), digest, "after {stop_after} jobs");
        rig.crash();
        rig.snapshot();
    }
}

#[test]
fn a_snapshot_gets_its_name_only_when_the_log_is_synced_as_far() {
    let mut rig = busy(small_config(), NoFaults);
    rig.produce("t", "durable");
    let digest = rig.digest();
    let held = rig.submit(Command::DeleteTopic { name: topic("t") });
    rig.pipeline.request_snapshot();
    let batch = rig.pipeline.poll_job(JobClass::Log).expect("the deletion is to be written");
    while let Some(job) = rig.pipeline.poll_job(JobClass::Background) {
        let result = job.perform(&mut rig.storage);
        rig.pipeline.complete(rig.now, job, result);
    }
    assert_eq!(rig.pipeline.snapshots(), [], "it is written, and waits");
    assert_eq!(rig.recovered_digest(), digest, "a power loss now takes the deletion back, of which nobody was told");
    assert_eq!(rig.reply(held), None);
    let result = batch.perform(&mut rig.storage);
    rig.pipeline.complete(rig.now, batch, result);
    rig.settle();
    assert_eq!(rig.pipeline.snapshots().len(), 1);
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn recovery_reads_no_more_than_what_follows_the_newest_snapshot() {
    let mut rig = busy(tiny(), NoFaults);
    for round in 0..300 {
        traffic(&mut rig, round);
    }
    rig.crash();
    let limit = 3 * tiny().snapshot_every_bytes;
    assert!(rig.recovered.bytes_read < limit, "{} bytes were read", rig.recovered.bytes_read);
    assert!(rig.recovered.snapshot.is_some());
}

#[test]
fn with_the_newest_snapshot_gone_or_damaged_the_older_one_and_its_tail_give_the_same() {
    let mut rig = busy(small_config(), NoFaults);
    for _ in 0..2 {
        for round in 0..10 {
            traffic(&mut rig, round);
        }
        rig.snapshot();
    }
    traffic(&mut rig, 11);
    let digest = rig.digest();
    let newest = *rig.pipeline.snapshots().last().unwrap();
    let mut gone = rig.storage.crash();
    let bytes = gone.uproot(FileId::Snapshot(newest)).expect("it was there");
    // Its last bit: most of it is taken before that is seen, and must be let go of again.
    let mut damaged = rig.storage.crash();
    damaged.bytes_mut(FileId::Snapshot(newest)).expect("it is there").flip(8 * bytes.len() - 1);
    for mut storage in [gone, damaged] {
        let (state, recovered) = driftq_core::pipeline::inspect(&mut storage, None, &NoFaults).unwrap();
        assert_eq!(state.digest(), digest);
        assert_eq!(recovered.snapshot, Some(rig.pipeline.snapshots()[0]));
    }
}

#[test]
fn however_small_its_slices_a_snapshot_comes_to_its_end() {
    let mut rig = Rig::with(PipelineConfig { slice_bytes: 0, ..small_config() }, NoFaults);
    rig.topic("t", 1);
    rig.produce("t", "v");
    rig.snapshot();
    rig.restart(Restart::Crash);
    assert_eq!(rig.kept("t"), ["v"]);
}

#[test]
fn a_snapshot_of_nothing_new_is_not_taken_twice() {
    let mut rig = busy(small_config(), NoFaults);
    rig.snapshot();
    let before = rig.pipeline.snapshots().to_vec();
    rig.pipeline.request_snapshot();
    rig.settle();
    assert_eq!(rig.pipeline.snapshots(), before);
}

#[test]
fn a_snapshot_that_misses_what_is_in_flight_would_be_caught() {
    let same_after_a_snapshot = |rig: &mut Rig<Planted>| {
        rig.snapshot();
        rig.recovered_digest() == rig.digest()
    };
    let mut rig = busy(small_config(), Planted(Fault::SnapshotMissesInFlight));
    rig.produce("t", "held");
    assert!(!same_after_a_snapshot(&mut rig));
    let mut rig = busy(small_config(), Planted(Fault::HighestAckWatermark));
    rig.produce("t", "held");
    assert!(same_after_a_snapshot(&mut rig), "which other bugs do not disturb");
}
