//! Durability: nothing is seen before it is on the disk, and a log that failed lets nothing more through.

use super::rig::*;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::{MemoryStorage, StorageFault};
use driftq_core::types::*;
use driftq_core::{Command, JobClass, Output, Pipeline, Refusal, Reply};

fn produce(value: &str) -> Command {
    Command::Produce(Box::new(Produce::new(topic("t"), "", value)))
}

#[test]
fn an_answer_waits_for_the_sync_of_what_it_says() {
    let mut rig = Rig::with_topic(1);
    let ticket = rig.submit(produce("a"));
    assert_eq!(rig.reply(ticket), None);
    let job = rig.pipeline.poll_job(JobClass::Log).expect("the record is to be written");
    rig.collect();
    assert_eq!(rig.reply(ticket), None, "being written is not being durable");
    let result = job.perform(&mut rig.storage);
    rig.collect();
    assert_eq!(rig.reply(ticket), None, "and nobody has said that it is");
    assert!(rig.pipeline.synced() < rig.pipeline.broker().appended());
    rig.pipeline.complete(rig.now, job, result);
    assert_eq!(rig.pipeline.synced(), rig.pipeline.broker().appended());
    rig.collect();
    assert!(matches!(rig.reply(ticket), Some(Ok(Reply::Produced(_)))));
}

#[test]
fn refusals_and_reads_wait_for_everything_decided_before_them() {
    let mut rig = Rig::with_topic(1);
    let tickets = [
        rig.submit(produce("a")),
        rig.submit(Command::ListTopics),
        rig.submit(Command::DescribeTopic { name: topic("t") }),
        rig.submit(Command::Ack(first_message("t", "nobody", "w"))),
        rig.submit(Command::DeleteTopic { name: topic("nope") }),
    ];
    assert!(tickets.iter().all(|ticket| rig.reply(*ticket).is_none()));
    rig.settle();
    let answers = tickets.map(|ticket| rig.reply(ticket).expect("answered"));
    assert_eq!(answers[3], Err(Refusal::UnknownGroup(group("nobody"))));
    assert_eq!(answers[4], Err(Refusal::UnknownTopic(topic("nope"))));
}

#[test]
fn what_rests_on_nothing_new_is_answered_at_once() {
    let mut rig = Rig::with_topic(1);
    let ticket = rig.submit(Command::ListTopics);
    assert_eq!(rig.reply(ticket), Some(Ok(Reply::Topics(vec![topic("t")]))));
}

#[test]
fn a_delivery_waits_for_the_sync_of_its_lease() {
    let mut rig = Rig::with_topic(1);
    rig.subscribe("t", "g", "w");
    rig.submit(produce("a"));
    assert_eq!(rig.delivered(), []);
    rig.settle();
    assert_eq!(rig.values(), ["a"]);
}

#[test]
fn what_is_decided_while_a_batch_is_on_its_way_waits_for_the_next() {
    let mut rig = Rig::with_topic(1);
    let first = rig.submit(produce("a"));
    let job = rig.pipeline.poll_job(JobClass::Log).unwrap();
    let second = rig.submit(produce("b"));
    assert!(rig.pipeline.poll_job(JobClass::Log).is_none(), "one batch at a time");
    let result = job.perform(&mut rig.storage);
    rig.pipeline.complete(rig.now, job, result);
    rig.collect();
    assert!(rig.reply(first).is_some());
    assert_eq!(rig.reply(second), None);
    rig.settle();
    assert!(rig.reply(second).is_some());
}

fn seen_before_the_sync(faults: impl Faults) -> bool {
    let mut rig = Rig::with(small_config(), faults);
    rig.topic("t", 1);
    let ticket = rig.submit(produce("a"));
    rig.reply(ticket).is_some()
}

#[test]
fn answers_that_leave_before_the_sync_would_be_caught() {
    assert!(!seen_before_the_sync(NoFaults));
    assert!(seen_before_the_sync(Planted(Fault::ReleaseBeforeSync)));
}

#[test]
fn what_was_not_synced_is_gone_after_a_crash_and_nobody_was_told_of_it() {
    let mut rig = Rig::with_topic(1);
    rig.produce("t", "durable");
    let ticket = rig.submit(produce("not yet"));
    assert_eq!(rig.reply(ticket), None);
    rig.crash();
    assert_eq!(rig.kept("t"), ["durable"]);
    assert_eq!(rig.produce("t", "next"), Offset(1), "its offset was never given away");
}

#[test]
fn nothing_comes_out_before_the_boot_itself_is_durable() {
    let mut storage = MemoryStorage::new();
    let log = Some(driftq_core::log::LogId([1; 16]));
    let opened = Pipeline::open(&mut storage, small_config(), log, START, NoFaults);
    let (mut pipeline, _) = opened.expect("the log opens");
    pipeline.handle(START, Command::ListTopics);
    assert_eq!(pipeline.poll_output(), None);
    pipeline.drive(START, &mut storage);
    assert!(matches!(pipeline.poll_output(), Some(Output::Reply { result: Ok(Reply::Topics(_)), .. })));
}

/// A broker whose next sync fails, with a read, a write and a delivery held.
fn failed() -> (Rig, [Ticket; 4]) {
    let mut rig = Rig::with_topic(1);
    rig.subscribe("t", "g", "w");
    rig.storage.fail_syncs(1);
    let tickets = [
        rig.submit(produce("a")),
        rig.submit(Command::ListTopics),
        rig.submit(Command::Ack(first_message("t", "nobody", "w"))),
        rig.submit(Command::CreateTopic { name: topic("u"), partitions: None, retention: Default::default() }),
    ];
    rig.settle();
    (rig, tickets)
}

#[test]
fn a_failed_sync_refuses_everything_that_was_held() {
    let (mut rig, tickets) = failed();
    for ticket in tickets {
        assert_eq!(rig.reply(ticket), Some(Err(Refusal::LogFailed)));
    }
    assert_eq!(rig.delivered(), [], "and what was to be delivered is not");
    assert!(rig.pipeline.failure().is_some());
}

#[test]
fn a_failed_log_takes_nothing_more_and_is_never_synced_again() {
    let (mut rig, _) = failed();
    let digest = rig.digest();
    for command in [produce("b"), Command::ListTopics, Command::Ack(first_message("t", "nobody", "w"))] {
        assert_eq!(rig.send(command), Err(Refusal::LogFailed));
    }
    for class in [JobClass::Log, JobClass::Background] {
        assert!(rig.pipeline.poll_job(class).is_none());
    }
    assert_eq!(rig.pipeline.poll_timeout(), None);
    rig.pass(60_000);
    rig.pipeline.close();
    assert!(rig.pipeline.poll_job(JobClass::Log).is_none());
    assert_eq!(rig.digest(), digest);
}

#[test]
fn after_a_failed_log_a_restart_goes_on_with_what_was_synced() {
    let (mut rig, _) = failed();
    rig.crash();
    assert_eq!(rig.topics(), ["t"]);
    assert_eq!(rig.kept("t"), [""; 0]);
    rig.produce("t", "again");
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.values(), ["again"]);
}

#[test]
fn what_was_durable_before_the_failure_still_comes_out() {
    let mut rig = Rig::with_topic(1);
    let ticket = rig.pipeline.handle(rig.now, produce("a"));
    rig.pipeline.drive(rig.now, &mut rig.storage);
    rig.pipeline.handle(rig.now, produce("b"));
    let job = rig.pipeline.poll_job(JobClass::Log).unwrap();
    rig.pipeline.complete(rig.now, job, Err(StorageFault::Io("gone".to_owned())));
    rig.collect();
    assert!(matches!(rig.reply(ticket), Some(Ok(Reply::Produced(_)))));
}

#[test]
fn a_failure_of_the_background_work_ends_the_log_too() {
    let mut rig = Rig::with_topic(1);
    rig.pipeline.request_snapshot();
    let job = rig.pipeline.poll_job(JobClass::Log).expect("a segment ends with the snapshot");
    let held = rig.submit(produce("a"));
    let chore = rig.pipeline.poll_job(JobClass::Background).expect("the snapshot is being written");
    rig.pipeline.complete(rig.now, chore, Err(StorageFault::Io("bad sector".to_owned())));
    rig.collect();
    assert_eq!(rig.reply(held), Some(Err(Refusal::LogFailed)));
    let result = job.perform(&mut rig.storage);
    rig.pipeline.complete(rig.now, job, result);
    assert_eq!(rig.send(Command::ListTopics), Err(Refusal::LogFailed), "a batch that then ends well mends nothing");
}

#[test]
fn an_orderly_close_lets_out_what_was_decided_and_takes_nothing_more() {
    let mut rig = Rig::with_topic(1);
    rig.subscribe("t", "g", "w");
    let before = rig.submit(produce("a"));
    rig.pipeline.close();
    let after = rig.submit(produce("b"));
    assert!(!rig.pipeline.is_closed());
    rig.settle();
    assert!(rig.pipeline.is_closed());
    assert!(matches!(rig.reply(before), Some(Ok(_))));
    assert_eq!(rig.reply(after), Some(Err(Refusal::ShuttingDown)));
    assert_eq!(rig.values(), ["a"]);
    rig.pass(60_000);
    assert_eq!(rig.delivered(), [], "a closed broker lets no lease expire");
    rig.pipeline.close();
    assert!(rig.pipeline.poll_job(JobClass::Log).is_none(), "a log is closed once");
    let digest = rig.digest();
    assert_eq!(rig.recovered_digest(), digest);
    rig.crash();
    assert!(rig.recovered.clean, "the footer says so");
    assert_eq!(rig.kept("t"), ["a"]);
}

#[test]
fn a_crash_is_not_taken_for_an_orderly_close() {
    let mut rig = Rig::with_topic(1);
    rig.crash();
    assert!(!rig.recovered.clean);
}
