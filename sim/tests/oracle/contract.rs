//! The interface of the oracle, by small examples.

use driftq_core::command::{CreateTopic, GroupLifetime, OnDisconnect, Produce, Subscribe};
use driftq_core::reply::{Produced, RouterUse};
use driftq_core::types::{GroupStart, Retention, *};
use driftq_core::{Command, Output, Refusal, Reply};
use driftq_sim::oracle::Oracle;

const NOW: Timestamp = Timestamp(1_000);

fn orders() -> TopicName {
    TopicName::new("orders").expect("valid name")
}

fn subscribe() -> Command {
    Command::Subscribe(Subscribe {
        topic: orders(),
        group: GroupName::new("kitchen").expect("valid name"),
        owner: OwnerName::new("cook").expect("valid name"),
        lease: Some(Millis(50)),
        prefetch: 4,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
        group_lifetime: GroupLifetime::Durable,
    })
}

fn produce() -> Command {
    Command::Produce(Box::new(Produce::new(orders(), "", "soup")))
}

fn produced(ticket: u64, offset: u64) -> Output {
    let (partition, offset) = (PartitionId(0), Offset(offset));
    let reply = Reply::Produced(Produced {
        partition,
        offset,
        duplicate: false,
        already_done: false,
        router: RouterUse::NoDecision,
    });
    Output::Reply { ticket: Ticket(ticket), result: Ok(reply) }
}

/// Started, with a topic, a group and a stream: three records, all replies compared.
fn started() -> Oracle {
    let mut oracle = Oracle::new(&Limits::production());
    oracle.boot(NOW);
    let create =
        Command::CreateTopic(CreateTopic { name: orders(), partitions: None, retention: Retention::default() });
    oracle.command(NOW, Ticket(0), &create);
    oracle.command(NOW, Ticket(1), &subscribe());
    for (ticket, reply) in [
        Reply::TopicCreated { partitions: 1, retention: Limits::production().retention() },
        Reply::Subscribed { consumer: ConsumerId(1) },
    ]
    .into_iter()
    .enumerate()
    {
        let output = Output::Reply { ticket: Ticket(ticket as u64), result: Ok(reply) };
        oracle.compare(&output).expect("the next output");
    }
    assert_eq!((oracle.records(), oracle.pending()), (3, 0));
    oracle
}

#[test]
fn mismatch_names_the_expected_and_the_actual_output() {
    let mut oracle = started();
    oracle.command(NOW, Ticket(2), &produce());
    assert_eq!((oracle.records(), oracle.pending()), (5, 2), "a reply and a delivery, one record each");
    let mismatch = oracle.compare(&produced(2, 7)).expect_err("another offset");
    assert!(mismatch.expected.contains("offset: Offset(0)"), "{mismatch}");
    assert!(mismatch.found.contains("offset: Offset(7)"), "{mismatch}");
}

#[test]
fn unexpected_output_is_a_mismatch() {
    let mut oracle = started();
    let mismatch = oracle.compare(&produced(2, 0)).expect_err("no command is pending");
    assert_eq!(mismatch.expected, "nothing");
}

#[test]
fn crash_keeps_a_prefix_of_the_records_of_a_command() {
    for (survived, next_offset, attempts) in [(3, 0, None), (4, 1, Some(1)), (5, 1, None)] {
        let mut oracle = started();
        oracle.command(NOW, Ticket(2), &produce());
        oracle.crash(survived);
        assert_eq!((oracle.records(), oracle.pending()), (survived, 0), "expected outputs are dropped");
        oracle.boot(NOW);
        oracle.command(NOW, Ticket(0), &subscribe());
        // The lease of a surviving delivery still runs.
        assert_eq!(oracle.pending(), 1 + usize::from(attempts.is_some()), "{survived} records survived");
        let consumer = ConsumerId(1);
        let output = Output::Reply { ticket: Ticket(0), result: Ok(Reply::Subscribed { consumer }) };
        oracle.compare(&output).expect("stream ids restart");
        let mut oracle = oracle.clone();
        oracle.crash(oracle.records());
        oracle.boot(NOW);
        oracle.command(NOW, Ticket(0), &produce());
        oracle.compare(&produced(0, next_offset)).expect("the next offset follows from the surviving records");
    }
}

#[test]
fn closed_broker_refuses_commands_and_ignores_timeouts() {
    let mut oracle = started();
    oracle.close();
    oracle.command(NOW, Ticket(2), &produce());
    oracle.timeout(Timestamp(9_000));
    oracle.compare(&Output::Reply { ticket: Ticket(2), result: Err(Refusal::ShuttingDown) }).expect("a refusal");
    assert_eq!((oracle.records(), oracle.pending()), (3, 0));
}

#[test]
#[should_panic(expected = "durable records survive a crash")]
fn crash_that_loses_durable_records_panics() {
    let mut oracle = started();
    for ticket in 2..100 {
        oracle.command(NOW, Ticket(ticket), &produce());
    }
    oracle.durable(oracle.records());
    oracle.crash(3);
}
