//! What the oracle promises to whoever asks it, one small story each.

use driftq_core::command::{OnDisconnect, Produce, Subscribe};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::{Produced, RouterUse};
use driftq_core::types::*;
use driftq_core::{Command, Output, Refusal, Reply};
use driftq_sim::oracle::Oracle;

const NOW: Timestamp = Timestamp(1_000);

fn orders() -> TopicName {
    TopicName::new("orders").expect("a name")
}

fn subscribe() -> Command {
    Command::Subscribe(Subscribe {
        topic: orders(),
        group: GroupName::new("kitchen").expect("a name"),
        owner: OwnerName::new("cook").expect("a name"),
        lease: Some(Millis(50)),
        prefetch: 4,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
    })
}

fn produce() -> Command {
    Command::Produce(Box::new(Produce::new(orders(), "", "soup")))
}

fn produced(ticket: u64, offset: u64) -> Output {
    let (partition, offset) = (PartitionId(0), Offset(offset));
    let reply = Reply::Produced(Produced { partition, offset, duplicate: false, router: RouterUse::NotAsked });
    Output::Reply { ticket: Ticket(ticket), result: Ok(reply) }
}

/// Started, with a topic and a stream and its group: three records, all heard of.
fn started() -> Oracle {
    let mut oracle = Oracle::new(&Limits::production());
    oracle.boot(NOW);
    let create = Command::CreateTopic { name: orders(), partitions: None, retention: Retention::default() };
    oracle.command(NOW, Ticket(0), &create);
    oracle.command(NOW, Ticket(1), &subscribe());
    for (ticket, reply) in
        [Reply::TopicCreated { partitions: 1 }, Reply::Subscribed { consumer: ConsumerId(1) }].into_iter().enumerate()
    {
        let output = Output::Reply { ticket: Ticket(ticket as u64), result: Ok(reply) };
        oracle.compare(&output).expect("the next output");
    }
    assert_eq!((oracle.records(), oracle.pending()), (3, 0));
    oracle
}

#[test]
fn an_output_that_is_not_the_next_one_is_named_beside_the_one_that_is() {
    let mut oracle = started();
    oracle.command(NOW, Ticket(2), &produce());
    assert_eq!((oracle.records(), oracle.pending()), (5, 2), "a reply and a delivery, a record each");
    let mismatch = oracle.compare(&produced(2, 7)).expect_err("another offset");
    assert!(mismatch.expected.contains("offset: Offset(0)"), "{mismatch}");
    assert!(mismatch.found.contains("offset: Offset(7)"), "{mismatch}");
}

#[test]
fn an_output_beyond_the_last_is_one_too_many() {
    let mut oracle = started();
    let mismatch = oracle.compare(&produced(2, 0)).expect_err("nothing was asked");
    assert_eq!(mismatch.expected, "nothing");
}

#[test]
fn a_crash_keeps_the_first_records_of_a_command_and_takes_back_the_rest() {
    for (survived, next_offset, attempts) in [(3, 0, None), (4, 1, Some(1)), (5, 1, None)] {
        let mut oracle = started();
        oracle.command(NOW, Ticket(2), &produce());
        oracle.crash(survived);
        assert_eq!((oracle.records(), oracle.pending()), (survived, 0), "what was to be said is forgotten");
        oracle.boot(NOW);
        oracle.command(NOW, Ticket(0), &subscribe());
        // The lease of a delivery that survived still runs.
        assert_eq!(oracle.pending(), 1 + usize::from(attempts.is_some()), "{survived} records survived");
        let consumer = ConsumerId(1);
        let output = Output::Reply { ticket: Ticket(0), result: Ok(Reply::Subscribed { consumer }) };
        oracle.compare(&output).expect("streams are counted anew");
        let mut oracle = oracle.clone();
        oracle.crash(oracle.records());
        oracle.boot(NOW);
        oracle.command(NOW, Ticket(0), &produce());
        oracle.compare(&produced(0, next_offset)).expect("the next offset follows from what survived");
    }
}

#[test]
fn a_closed_broker_refuses_and_does_nothing_by_itself() {
    let mut oracle = started();
    oracle.close();
    oracle.command(NOW, Ticket(2), &produce());
    oracle.timeout(Timestamp(9_000));
    oracle.compare(&Output::Reply { ticket: Ticket(2), result: Err(Refusal::ShuttingDown) }).expect("a refusal");
    assert_eq!((oracle.records(), oracle.pending()), (3, 0));
}

#[test]
#[should_panic(expected = "what is durable survives")]
fn a_crash_that_takes_what_was_durable_is_no_crash_the_oracle_can_follow() {
    let mut oracle = started();
    for ticket in 2..100 {
        oracle.command(NOW, Ticket(ticket), &produce());
    }
    oracle.durable(oracle.records());
    oracle.crash(3);
}
