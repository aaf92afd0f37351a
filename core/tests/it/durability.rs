//! Durability: outputs wait for the sync of their records, and a failed log refuses everything.

use driftq_core::OpenOptions;

use super::test_broker::*;
use driftq_core::command::{Ack, CreateTopic, DeleteTopic, DescribeTopic, ListTopics, Produce};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::{FileId, LogPosition, Malformed, MemoryStorage, Replay, Storage, StorageFault, recover};
use driftq_core::types::*;
use driftq_core::{Command, JobClass, Output, Refusal, Reply};

fn produce(value: &str) -> Command {
    Command::Produce(Box::new(Produce::new(topic("t"), "", value)))
}

#[test]
fn reply_waits_for_sync_of_its_record() {
    let mut broker = TestBroker::with_topic(1);
    let ticket = broker.submit(produce("a"));
    assert_eq!(broker.reply(ticket), None);
    let job = broker.pipeline.poll_job(JobClass::Log).expect("a job for the record");
    broker.collect();
    assert_eq!(broker.reply(ticket), None, "not while the job is pending");
    let result = job.perform(&mut broker.storage);
    broker.collect();
    assert_eq!(broker.reply(ticket), None, "not before the job is completed");
    assert!(broker.pipeline.synced().lsn < broker.pipeline.broker().appended());
    broker.pipeline.complete(broker.now, job, result);
    assert_eq!(broker.pipeline.synced().lsn, broker.pipeline.broker().appended());
    broker.collect();
    assert!(matches!(broker.reply(ticket), Some(Ok(Reply::Produced(_)))));
}

#[test]
fn refusals_and_reads_wait_for_earlier_records() {
    let mut broker = TestBroker::with_topic(1);
    let tickets = [
        broker.submit(produce("a")),
        broker.submit(Command::ListTopics(ListTopics::default())),
        broker.submit(Command::DescribeTopic(DescribeTopic { name: topic("t") })),
        broker.submit(Command::Ack(Ack(first_message("t", "unknown", "w")))),
        broker.submit(Command::DeleteTopic(DeleteTopic { name: topic("nope") })),
    ];
    assert!(tickets.iter().all(|ticket| broker.reply(*ticket).is_none()));
    broker.run_until_idle();
    let replies = tickets.map(|ticket| broker.reply(ticket).expect("a reply"));
    assert_eq!(replies[3], Err(Refusal::UnknownGroup(group("unknown"))));
    assert_eq!(replies[4], Err(Refusal::UnknownTopic(topic("nope"))));
}

#[test]
fn read_without_pending_records_is_answered_at_once() {
    let mut broker = TestBroker::with_topic(1);
    let ticket = broker.submit(Command::ListTopics(ListTopics::default()));
    assert_eq!(broker.reply(ticket), Some(Ok(Reply::Topics(vec![topic("t")]))));
}

#[test]
fn delivery_waits_for_sync_of_its_lease() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.submit(produce("a"));
    assert_eq!(broker.delivered(), []);
    broker.run_until_idle();
    assert_eq!(broker.delivered_values(), ["a"]);
}

#[test]
fn command_during_pending_batch_waits_for_next_batch() {
    let mut broker = TestBroker::with_topic(1);
    let first = broker.submit(produce("a"));
    let job = broker.pipeline.poll_job(JobClass::Log).unwrap();
    let second = broker.submit(produce("b"));
    assert!(broker.pipeline.poll_job(JobClass::Log).is_none(), "one batch at a time");
    let result = job.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, job, result);
    broker.collect();
    assert!(broker.reply(first).is_some());
    assert_eq!(broker.reply(second), None);
    broker.run_until_idle();
    assert!(broker.reply(second).is_some());
}

fn replied_before_sync(faults: impl Faults) -> bool {
    let mut broker = TestBroker::with(small_config(), faults);
    broker.topic("t", 1);
    let ticket = broker.submit(produce("a"));
    broker.reply(ticket).is_some()
}

#[test]
fn fault_release_before_sync_is_detected() {
    assert!(!replied_before_sync(NoFaults));
    assert!(replied_before_sync(Planted(Fault::ReleaseBeforeSync)));
}

#[test]
fn unsynced_record_is_lost_in_crash_and_was_never_replied() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "durable");
    let ticket = broker.submit(produce("not yet"));
    assert_eq!(broker.reply(ticket), None);
    broker.crash();
    assert_eq!(broker.stored_values("t"), ["durable"]);
    assert_eq!(broker.produce("t", "next"), Offset(1), "the lost offset is used again");
}

#[test]
fn outputs_wait_for_sync_of_boot_record() {
    let mut storage = MemoryStorage::new();
    let log = Some(driftq_core::log::LogId([1; 16]));
    let opened = OpenOptions::new().config(small_config()).create(log).open(&mut storage, START);
    let (mut pipeline, _) = opened.expect("the log opens");
    pipeline.handle(START, Command::ListTopics(ListTopics::default()));
    assert_eq!(pipeline.poll_output(), None);
    pipeline.drive(START, &mut storage);
    assert!(matches!(pipeline.poll_output(), Some(Output::Reply { result: Ok(Reply::Topics(_)), .. })));
}

/// A broker after a failed sync, with the tickets of reads and writes that were held.
fn failed() -> (TestBroker, [Ticket; 4]) {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.storage.fail_syncs(1);
    let tickets = [
        broker.submit(produce("a")),
        broker.submit(Command::ListTopics(ListTopics::default())),
        broker.submit(Command::Ack(Ack(first_message("t", "unknown", "w")))),
        broker.submit(Command::CreateTopic(CreateTopic {
            name: topic("u"),
            partitions: None,
            retention: Default::default(),
        })),
    ];
    broker.run_until_idle();
    (broker, tickets)
}

#[test]
fn failed_sync_refuses_everything_held() {
    let (mut broker, tickets) = failed();
    for ticket in tickets {
        assert_eq!(broker.reply(ticket), Some(Err(Refusal::LogFailed)));
    }
    assert_eq!(broker.delivered(), [], "the held delivery is dropped");
    assert!(broker.pipeline.failure().is_some());
}

#[test]
fn failed_log_refuses_commands_and_is_never_synced_again() {
    let (mut broker, _) = failed();
    let digest = broker.digest();
    for command in [
        produce("b"),
        Command::ListTopics(ListTopics::default()),
        Command::Ack(Ack(first_message("t", "unknown", "w"))),
    ] {
        assert_eq!(broker.send(command), Err(Refusal::LogFailed));
    }
    for class in [JobClass::Log, JobClass::Background] {
        assert!(broker.pipeline.poll_job(class).is_none());
    }
    assert_eq!(broker.pipeline.poll_timeout(), None);
    broker.advance(60_000);
    broker.pipeline.close();
    assert!(broker.pipeline.poll_job(JobClass::Log).is_none());
    assert_eq!(broker.digest(), digest);
}

#[test]
fn restart_after_failed_log_continues_from_synced_records() {
    let (mut broker, _) = failed();
    broker.crash();
    assert_eq!(broker.topics(), ["t"]);
    assert_eq!(broker.stored_values("t"), [""; 0]);
    broker.produce("t", "again");
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["again"]);
}

#[test]
fn reply_durable_before_failure_is_released() {
    let mut broker = TestBroker::with_topic(1);
    let ticket = broker.pipeline.handle(broker.now, produce("a"));
    broker.pipeline.drive(broker.now, &mut broker.storage);
    broker.pipeline.handle(broker.now, produce("b"));
    let job = broker.pipeline.poll_job(JobClass::Log).unwrap();
    broker.pipeline.complete(broker.now, job, Err(StorageFault::Io("gone".to_owned())));
    broker.collect();
    assert!(matches!(broker.reply(ticket), Some(Ok(Reply::Produced(_)))));
}

#[test]
fn failed_background_job_fails_log() {
    let mut broker = TestBroker::with_topic(1);
    broker.pipeline.request_snapshot();
    let job = broker.pipeline.poll_job(JobClass::Log).expect("a job that ends the segment");
    let held = broker.submit(produce("a"));
    let background = broker.pipeline.poll_job(JobClass::Background).expect("a job that writes the snapshot");
    broker.pipeline.complete(broker.now, background, Err(StorageFault::Io("bad sector".to_owned())));
    broker.collect();
    assert_eq!(broker.reply(held), Some(Err(Refusal::LogFailed)));
    let result = job.perform(&mut broker.storage);
    broker.pipeline.complete(broker.now, job, result);
    assert_eq!(
        broker.send(Command::ListTopics(ListTopics::default())),
        Err(Refusal::LogFailed),
        "a batch that succeeds later does not revive the log"
    );
}

#[test]
fn orderly_close_releases_decided_outputs_and_refuses_new_commands() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    let before = broker.submit(produce("a"));
    broker.pipeline.close();
    let after = broker.submit(produce("b"));
    assert!(!broker.pipeline.is_closed());
    broker.run_until_idle();
    assert!(broker.pipeline.is_closed());
    assert!(matches!(broker.reply(before), Some(Ok(_))));
    assert_eq!(broker.reply(after), Some(Err(Refusal::ShuttingDown)));
    assert_eq!(broker.delivered_values(), ["a"]);
    broker.advance(60_000);
    assert_eq!(broker.delivered(), [], "a closed broker expires no lease");
    broker.pipeline.close();
    assert!(broker.pipeline.poll_job(JobClass::Log).is_none(), "a log is closed once");
    let digest = broker.digest();
    assert_eq!(broker.recovered_digest(), digest);
    broker.crash();
    assert!(broker.recovered.clean, "the segment ends with a footer");
    assert_eq!(broker.stored_values("t"), ["a"]);
}

#[test]
fn crash_is_not_reported_as_clean_close() {
    let mut broker = TestBroker::with_topic(1);
    broker.crash();
    assert!(!broker.recovered.clean);
}

/// The LSNs of all records in the log, read without its snapshots.
fn replayed_lsns(storage: &MemoryStorage) -> Vec<u64> {
    struct Lsns(Vec<u64>);
    impl Replay for Lsns {
        fn reset(&mut self) {
            self.0.clear();
        }
        fn restore(&mut self, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
            Err(Malformed::new("a snapshot"))
        }
        fn replay(&mut self, lsn: Lsn, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
            self.0.push(lsn.0);
            Ok(())
        }
    }
    let (mut storage, mut lsns) = (storage.crash(), Lsns(Vec::new()));
    for info in storage.list().expect("lists") {
        if let FileId::Snapshot(_) = info.file {
            storage.take_file(info.file);
        }
    }
    recover(&mut storage, None, &mut lsns).expect("no segment was removed");
    lsns.0
}

#[test]
fn broker_numbers_records_without_gaps_across_marks_snapshots_and_restarts() {
    let mut broker = TestBroker::with_topic(1);
    for round in 0..3 {
        for restart in RESTARTS {
            let before = broker.pipeline.broker().appended();
            broker.produce("t", &"x".repeat(20_000));
            assert_eq!(broker.pipeline.broker().appended(), before.next());
            let synced = broker.pipeline.synced();
            broker.advance(200);
            let marked = LogPosition { frame: synced.frame.next(), ..synced };
            assert_eq!(broker.pipeline.synced(), marked, "a mark has a frame number and no LSN");
            // Two snapshots make old segments removable; one keeps them all.
            if round > 0 || restart == Restart::Crash {
                broker.crash();
            } else {
                broker.restart(restart);
            }
            assert_eq!(broker.recovered.last.lsn, before.next());
            assert_eq!(broker.pipeline.broker().appended(), before.next().next(), "the boot record follows");
        }
    }
    let last = broker.pipeline.synced();
    assert_eq!(replayed_lsns(&broker.storage), (1..=last.lsn.0).collect::<Vec<_>>());
    assert!(last.frame.0 > last.lsn.0 + 6, "marks and footers are counted as frames: {last:?}");
}
