//! A full disk: what grows is refused by name, what drains goes on, and nothing is lost.

use super::rig::*;
use driftq_core::command::{OnDisconnect, Produce};
use driftq_core::faults::NoFaults;
use driftq_core::log::{Storage, StorageFault};
use driftq_core::pipeline::OpenError;
use driftq_core::reply::Overload;
use driftq_core::types::*;
use driftq_core::{Command, JobClass, Pipeline, PipelineConfig, Refusal, Reply};

const SEGMENT: u64 = 16 << 10;

fn config() -> PipelineConfig {
    PipelineConfig { segment_bytes: SEGMENT, reserve_bytes: 8 << 10, ..small_config() }
}

fn attempt(rig: &mut Rig) -> Result<(), Refusal> {
    rig.try_produce(Produce::new(topic("t"), "", "x".repeat(200))).map(drop)
}

fn used(rig: &mut Rig) -> u64 {
    rig.storage.list().unwrap().iter().map(|info| info.len).sum()
}

/// A broker with a worker, on a disk that has just become too full for a further segment.
fn full() -> Rig {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000_000)));
    let budget = used(&mut rig);
    rig.storage.set_budget(Some(budget));
    while attempt(&mut rig).is_ok() {}
    rig
}

#[test]
fn a_full_disk_has_no_room_for_more_topics_either() {
    let mut rig = full();
    let create = |number: u32| {
        let name = topic(&format!("topic-{number}"));
        Command::CreateTopic { name, partitions: None, retention: Default::default() }
    };
    let refused = (0..100).find_map(|number| rig.send(create(number)).err());
    assert_eq!(refused, Some(Refusal::StorageFull));
}

#[test]
fn a_full_disk_refuses_produces_by_name_and_a_refusal_changes_nothing() {
    let mut rig = full();
    let (digest, before) = (rig.digest(), rig.pipeline.broker().counters());
    assert_eq!(attempt(&mut rig), Err(Refusal::StorageFull));
    let asked = identified("t", &"x".repeat(200), "identity");
    assert_eq!(rig.try_produce(asked), Err(Refusal::StorageFull));
    assert_eq!(rig.digest(), digest);
    assert_eq!(rig.recovered_digest(), digest);
    assert_eq!(rig.pipeline.failure(), None, "a refusal is no failure");
    let after = rig.pipeline.broker().counters();
    assert_eq!((after.appended, after.refused), (before.appended, before.refused + 2));
}

/// Writes until the whole reserve is used up, with what may draw on all of it.
fn use_up(rig: &mut Rig) {
    rig.group("t", "spare");
    let (topic, group) = (topic("t"), group("spare"));
    for _ in 0..10_000 {
        for command in [
            Command::Pause { topic: topic.clone(), group: group.clone() },
            Command::Resume { topic: topic.clone(), group: group.clone() },
        ] {
            if let Err(refusal) = rig.send(command) {
                assert_eq!(refusal, Refusal::StorageFull);
                return;
            }
        }
    }
    panic!("the reserve has no end");
}

#[test]
fn who_never_finishes_anything_leaves_half_of_the_reserve_to_those_who_do() {
    let mut rig = full();
    let held = rig.delivered();
    assert!(held.len() > 20);
    // One lease is prolonged for ever; the others end and begin anew, again and again.
    let mut refused = None;
    for _ in 0..10_000 {
        refused = rig.extend(claim("t", "g", "w", &held[0]), Some(1_000_000)).err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(Refusal::StorageFull));
    rig.pass(60_000);
    rig.delivered();
    for delivery in &held[1..] {
        assert_eq!(
            rig.ack(claim("t", "g", "w", delivery)),
            Ok(()),
            "an expired lease that nobody else was given still counts"
        );
    }
    rig.delete_group("t", "g");
}

#[test]
fn acks_nacks_extensions_and_deliveries_go_on_from_the_reserve() {
    let mut rig = full();
    let held = rig.delivered();
    assert!(held.len() > 20);
    rig.extend(claim("t", "g", "w", &held[0]), Some(2_000_000)).unwrap();
    rig.release(claim("t", "g", "w", &held[1])).unwrap();
    rig.nack(claim("t", "g", "w", &held[2]), "no").unwrap();
    let again = rig.delivered();
    assert_eq!(again.iter().map(|delivery| delivery.attempts).collect::<Vec<_>>(), [2, 2]);
    for delivery in held[3..].iter().chain(&again) {
        rig.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    assert_eq!(rig.progress("t", "g").lag, 1);
    assert_eq!(attempt(&mut rig), Err(Refusal::StorageFull), "the reserve is not for producers");
    rig.storage.set_budget(None);
    rig.restart(Restart::Crash);
    assert_eq!(rig.progress("t", "g").lag, 1);
}

#[test]
fn reads_and_duplicates_need_no_room() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    rig.try_produce(identified("t", "v", "identity")).unwrap();
    let budget = used(&mut rig);
    rig.storage.set_budget(Some(budget));
    while attempt(&mut rig).is_ok() {}
    assert!(rig.try_produce(identified("t", "v", "identity")).unwrap().duplicate);
    assert_eq!(rig.topics(), ["t"]);
}

#[test]
fn producers_go_on_when_room_returns() {
    let mut rig = full();
    rig.storage.set_budget(None);
    assert_eq!(attempt(&mut rig), Err(Refusal::StorageFull), "the keeper has not looked again yet");
    rig.pass(1_000);
    attempt(&mut rig).unwrap();
    for _ in 0..200 {
        attempt(&mut rig).unwrap();
    }
    let digest = rig.digest();
    assert_eq!(rig.recovered_digest(), digest);
}

#[test]
fn when_even_the_reserve_is_used_up_everything_that_writes_is_refused_and_nothing_is_lost() {
    let mut rig = full();
    let held = rig.delivered();
    use_up(&mut rig);
    let digest = rig.digest();
    assert_eq!(rig.nack(claim("t", "g", "w", &held[1]), "a reason"), Err(Refusal::StorageFull));
    assert_eq!(rig.topics(), ["t"], "reads still answer");
    rig.storage.set_budget(None);
    rig.pass(1_100);
    for delivery in &held[2..] {
        rig.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    assert_ne!(rig.digest(), digest);
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn what_the_broker_does_by_itself_waits_for_room_and_then_is_done() {
    let mut rig = full();
    let held = rig.delivered();
    rig.extend(claim("t", "g", "w", &held[0]), Some(500)).unwrap();
    use_up(&mut rig);
    rig.delivered();
    let before = rig.progress("t", "g");
    rig.pass(10_000);
    let stuck = rig.progress("t", "g");
    assert_eq!(stuck.lag, before.lag);
    assert!(rig.pipeline.broker().is_stalled());
    assert!(rig.next_moment().is_some_and(|at| at > rig.now), "it asks to be called again, but not at once");
    rig.storage.set_budget(None);
    rig.pass(1_200);
    let redelivered = rig.delivered();
    assert!(redelivered.iter().any(|delivery| delivery.offset == held[0].offset), "the lease ended at last");
    assert!(!rig.pipeline.broker().is_stalled());
}

#[test]
fn a_stream_goes_though_there_is_no_room_to_give_its_leases_back() {
    let mut rig = full();
    let held = rig.delivered();
    let giving = rig.subscribe_with("t", "other", "x", |asked| {
        asked.on_disconnect = OnDisconnect::Release;
        asked.prefetch = 2;
    });
    let others = rig.delivered();
    assert_eq!(others.len(), 2);
    assert!(!held.is_empty());
    use_up(&mut rig);
    let digest = rig.digest();
    rig.unsubscribe(giving);
    assert_eq!(rig.digest(), digest);
    let info = rig.describe("t").groups.remove(1);
    assert_eq!((info.consumers, info.partitions[0].in_flight), (0, 2));
    rig.storage.set_budget(None);
    rig.pass(2_000);
    assert_eq!(rig.progress("t", "other").waiting, 2, "the leases run to their end");
}

#[test]
fn a_segment_not_yet_ready_is_a_matter_of_waiting_and_not_of_room() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    let mut tickets = Vec::new();
    for _ in 0..200 {
        tickets.push(rig.submit(Command::Produce(Box::new(Produce::new(topic("t"), "", "x".repeat(200))))));
        while let Some(job) = rig.pipeline.poll_job(JobClass::Log) {
            let result = job.perform(&mut rig.storage);
            rig.pipeline.complete(rig.now, job, result);
        }
    }
    rig.collect();
    let answers: Vec<_> = tickets.into_iter().map(|ticket| rig.reply(ticket).expect("answered")).collect();
    let taken = answers.iter().take_while(|answer| matches!(answer, Ok(Reply::Produced(_)))).count();
    assert!(taken > 0 && taken < 200);
    assert!(answers[taken..].iter().all(|answer| *answer == Err(overloaded(Overload::Log))));
    rig.settle();
    attempt(&mut rig).expect("once the next segment stands ready");
}

#[test]
fn a_record_that_fits_no_segment_is_refused_and_changes_nothing() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    let digest = rig.digest();
    let refused = rig.try_produce(Produce::new(topic("t"), "", "x".repeat(SEGMENT as usize)));
    assert_eq!(refused, Err(Refusal::Invalid("the record would be too long for the log")));
    assert_eq!(rig.digest(), digest);
    attempt(&mut rig).unwrap();
}

#[test]
fn no_segment_grows_beyond_its_size_however_long_its_records_are() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    let mut taken = 0;
    // Each fills a segment by itself, up to those that no segment could hold.
    for len in SEGMENT - 4_096 - 200..SEGMENT - 4_096 {
        match rig.try_produce(Produce::new(topic("t"), "", vec![b'x'; len as usize])) {
            Ok(_) => taken += 1,
            Err(refusal) => assert_eq!(refusal, Refusal::Invalid("the record would be too long for the log")),
        }
        let longest = rig.storage.list().unwrap().iter().map(|info| info.len).max();
        assert_eq!(longest, Some(SEGMENT), "behind {len} bytes");
    }
    assert!((50..150).contains(&taken), "{taken} were taken");
    rig.restart(Restart::Crash);
    assert_eq!(rig.kept("t").len(), taken);
}

#[test]
fn a_disk_without_room_for_a_snapshot_does_not_end_the_log() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    attempt(&mut rig).unwrap();
    let budget = used(&mut rig);
    for room in [0, budget] {
        rig.storage.set_budget(Some(room));
        let before = rig.pipeline.snapshots().to_vec();
        rig.pipeline.request_snapshot();
        rig.settle();
        assert_eq!(rig.pipeline.failure(), None, "room for {room} bytes");
        assert_eq!(rig.pipeline.snapshots(), before);
        rig.storage.set_budget(None);
        rig.pass(10_000);
    }
    attempt(&mut rig).unwrap();
    rig.snapshot();
    rig.restart(Restart::Crash);
    assert_eq!(rig.kept("t").len(), 2);
}

#[test]
fn a_snapshot_that_did_not_fit_is_taken_when_there_is_room_and_uses_up_no_segments_meanwhile() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    for _ in 0..200 {
        attempt(&mut rig).unwrap();
    }
    // Room for one more segment, and then not for a snapshot.
    let budget = used(&mut rig) + SEGMENT + 1;
    rig.storage.set_budget(Some(budget));
    rig.pipeline.request_snapshot();
    rig.settle();
    assert_eq!(rig.pipeline.snapshots(), []);
    let used_then = used(&mut rig);
    for _ in 0..5 {
        attempt(&mut rig).unwrap();
        rig.pass(10_000);
    }
    assert_eq!(rig.pipeline.snapshots(), []);
    assert_eq!(used(&mut rig), used_then);
    for _ in 0..40 {
        attempt(&mut rig).expect("no try has ended a segment: one and the next are there to be filled");
    }
    rig.storage.set_budget(None);
    rig.pass(10_000);
    assert_eq!(rig.pipeline.snapshots().len(), 1, "nobody had to ask again");
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn a_full_disk_that_is_drained_gets_its_room_back_by_itself() {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    for _ in 0..200 {
        attempt(&mut rig).unwrap();
        let delivery = rig.one();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    // Room for two small snapshots, and not for one more segment.
    let budget = used(&mut rig) + SEGMENT - 1;
    rig.storage.set_budget(Some(budget));
    while attempt(&mut rig).is_ok() {
        let delivery = rig.one();
        if rig.ack(claim("t", "g", "w", &delivery)).is_err() {
            break;
        }
    }
    assert!(rig.storage.list().unwrap().len() > 4, "many segments lie behind");
    for _ in 0..6 {
        rig.pass(1_000);
        let _ = attempt(&mut rig);
    }
    assert_eq!(attempt(&mut rig), Ok(()), "old segments went when snapshots had made them unneeded");
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn a_broker_starts_on_a_full_disk_in_a_smaller_segment() {
    let full = full();
    let mut storage = full.storage.crash();
    let used: u64 = storage.list().unwrap().iter().map(|info| info.len).sum();
    storage.set_budget(Some(used + SEGMENT / 2));
    let mut rig = Rig::open(storage, config(), full.now, NoFaults);
    assert_eq!(attempt(&mut rig), Err(Refusal::StorageFull), "the new segment is all reserve");
    let delivery = full.deliveries[0].1.clone();
    rig.ack(claim("t", "g", "w", &delivery)).expect("what drains goes on");
}

#[test]
fn a_start_that_finds_no_room_for_the_smallest_segment_says_so_and_leaves_nothing_behind() {
    let full = full();
    let mut storage = full.storage.crash();
    let files = storage.list().unwrap();
    let used: u64 = files.iter().map(|info| info.len).sum();
    for room in [0, 1_000, 3_000, 5_000] {
        storage.set_budget(Some(used + room));
        let opened = Pipeline::open(&mut storage, config(), None, full.now, NoFaults);
        assert_eq!(opened.map(drop).unwrap_err(), OpenError::Storage(StorageFault::Full), "room for {room} bytes");
        assert!(storage.list().unwrap().len() <= files.len());
    }
    storage.set_budget(None);
    let mut rig = Rig::open(storage, config(), full.now, NoFaults);
    attempt(&mut rig).expect("with room it goes on");
}
