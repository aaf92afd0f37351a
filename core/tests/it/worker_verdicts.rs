//! What a worker or an operator decides beyond a plain ack or nack: no retry, a cumulative ack, the end of a lease.

use super::recording_broker::RecordingBroker;
use super::test_broker::*;
use driftq_core::command::{
    AckCumulative, Begin, Complete, DeliveryClaim, ExpireLease, Finish, Nack, Retry, StoreCommand, TokenClaim,
};
use driftq_core::record::Event;
use driftq_core::reply::Delivery;
use driftq_core::types::*;
use driftq_core::{Command, Output, Reply};

fn never(claim: driftq_core::command::Claim) -> Command {
    Command::Nack(Nack { claim, reason: "no".into(), retry: Retry::Never })
}

fn up_to(offset: u64, owner_name: &str) -> Command {
    let (topic, group, owner) = (topic("t"), group("g"), owner(owner_name));
    Command::AckCumulative(AckCumulative { topic, group, partition: PartitionId(0), offset: Offset(offset), owner })
}

fn expire(offset: u64) -> Command {
    let (topic, group, partition) = (topic("t"), group("g"), PartitionId(0));
    Command::ExpireLease(ExpireLease { topic, group, partition, offset: Offset(offset) })
}

#[test]
fn non_retryable_nack_is_counted_under_its_reason() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "a");
    let delivery = broker.expect_delivery();
    broker.send(never(claim("t", "g", "w", &delivery))).unwrap();
    let counts = broker.pipeline.broker().dead_lettered().clone();
    assert_eq!(counts, [((topic("t"), DeadReason::NonRetryable), 1)].into());
    assert_eq!(broker.pipeline.broker().counters().nacked, 1);
    assert_eq!(DeadReason::NonRetryable.as_str(), "non_retryable");
}

#[test]
fn non_retryable_nack_after_expiry_is_an_answer_of_its_stream() {
    let mut config = small_config();
    config.limits = Limits { adaptive_credit: true, ..Limits::production() };
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    let once = |request: &mut driftq_core::command::Produce| {
        request.envelope.retry_policy = Some(policy(1, 60_000, 60_000));
    };
    broker.produce("t", "first");
    broker.produce_with("t", "second", once);
    let stream = broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
    let first = broker.delivered().remove(0);
    // Without further credit the expired message stays in its queue.
    broker.set_prefetch(stream, 0);
    broker.advance(1_000);
    assert_eq!(broker.topics(), ["t"], "an expiry behind the oldest delivery kills nothing");
    broker.send(never(claim("t", "g", "w", &first))).unwrap();
    assert_eq!(broker.stored_values("dlq.t"), ["first"]);
    broker.set_prefetch(stream, 1);
    assert_eq!(broker.progress("t", "g").lag, 1);
    broker.advance(60_000);
    broker.delivered();
    broker.advance(1_000);
    assert_eq!(broker.stored_values("dlq.t"), ["first", "second"], "its delivery is the oldest now");
}

#[test]
fn dead_letter_after_its_deadline_is_no_answer_of_its_stream() {
    let mut config = small_config();
    config.limits = Limits { adaptive_credit: true, ..Limits::production() };
    let mut broker = TestBroker::with(config, driftq_core::faults::NoFaults);
    broker.topic("t", 1);
    broker.produce_with("t", "first", |request| request.envelope.deadline = deadline(START.after(Millis(30_000))));
    broker.produce_with("t", "second", |request| request.envelope.retry_policy = Some(policy(1, 60_000, 60_000)));
    let stream = broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000)));
    assert_eq!(broker.delivered().len(), 2);
    broker.set_prefetch(stream, 0);
    broker.advance(30_000);
    assert_eq!(broker.stored_values("dlq.t"), ["first"]);
    broker.set_prefetch(stream, 1);
    broker.advance(62_000);
    assert!(broker.delivered_values().contains(&"second".to_owned()), "its lease has expired once more");
    assert_eq!(broker.stored_values("dlq.t"), ["first"], "the stream is still silent about the first");
}

#[test]
fn cumulative_ack_is_one_record() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "a");
    broker.produce("t", "b");
    let appended = |broker: &TestBroker| broker.pipeline.broker().counters().appended;
    let before = appended(&broker);
    broker.send(up_to(1, "w")).unwrap();
    assert_eq!(appended(&broker), before + 1);
    broker.send(up_to(1, "w")).unwrap();
    assert_eq!(appended(&broker), before + 1, "nothing is left to ack");
}

#[test]
fn record_of_a_cumulative_ack_combines_one_ack_per_message() {
    let mut broker = RecordingBroker::new();
    broker.topic("t", 1);
    for value in ["a", "b"] {
        broker.produce_with("t", value, |_| {});
    }
    broker.subscribe("t", "g", "w");
    broker.send(up_to(1, "w")).unwrap();
    let acked = broker.records.0.last().unwrap().event.parts();
    let (topic, group, partition) = (TopicId(0), GroupId(0), PartitionId(0));
    let expected = [0, 1].map(|position| Event::Acked {
        message_ref: MessageRef { topic, group, partition, position: Position(position) },
        commits: None,
        winner_until: None,
    });
    assert_eq!(acked, expected);
    assert_eq!(acked[0].parts(), [], "it is about one message itself");
}

/// A broker that records, and the first delivery of a message with a key.
fn with_delivery() -> (RecordingBroker, Delivery) {
    let mut broker = RecordingBroker::new();
    broker.topic("t", 1);
    broker.produce_with("t", "a", |request| request.envelope.idempotency_key = Some("k".into()));
    broker.subscribe("t", "g", "w");
    let delivery = broker.outputs.iter().find_map(|output| match output {
        Output::Deliver { delivery, .. } => Some((**delivery).clone()),
        _ => None,
    });
    (broker, delivery.expect("the message is delivered"))
}

#[test]
fn record_of_a_failed_step_combines_its_dead_letter_and_its_end() {
    let (mut broker, delivery) = with_delivery();
    let (claim, failed) = (claim("t", "g", "w", &delivery), Some("no".into()));
    let step = Complete { claim, result: None, produce: Vec::new(), failed };
    broker.send(Command::Complete(Box::new(step))).unwrap();
    let parts = broker.records.0.last().unwrap().event.parts();
    let [Event::DeadLettered { reason, last_error, .. }, Event::Completed(step)] = &parts[..] else {
        panic!("unexpected parts: {parts:?}");
    };
    assert_eq!((*reason, &**last_error), (DeadReason::NonRetryable, "no"));
    assert_eq!(step.dead_letter, None);
}

#[test]
fn record_of_a_failed_effect_combines_its_end_and_its_dead_letter() {
    let (mut broker, delivery) = with_delivery();
    let token = TokenClaim::Shown(delivery.token);
    let claim = Some(DeliveryClaim { partition: delivery.partition, offset: delivery.offset, token });
    let identity = consume_effect("t", "g", "k");
    let mut begin = Begin::new(identity.clone(), owner("w"));
    begin.delivery.clone_from(&claim);
    let begun = broker.send(Command::Store(Box::new(StoreCommand::Begin(begin)))).unwrap();
    let Reply::Store(begun) = begun else { panic!("unexpected reply to a begin: {begun:?}") };
    let (token, outcome) = (TokenClaim::Shown(granted(Ok(begun))), final_failure("no"));
    let finish = Finish { identity: identity.clone(), token, outcome: outcome.clone(), dead_letter: claim };
    broker.send(Command::Store(Box::new(StoreCommand::Finish(finish)))).unwrap();
    let parts = broker.records.0.last().unwrap().event.parts();
    assert_eq!(parts[0], Event::EffectFinished { identity, outcome });
    assert!(matches!(&parts[1..], [Event::DeadLettered { .. }]), "{parts:?}");
}

#[test]
fn cumulative_ack_survives_every_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        broker.subscribe("t", "g", "w");
        broker.produce("t", "a");
        broker.produce("t", "b");
        broker.send(up_to(0, "w")).unwrap();
        assert_eq!(broker.pipeline.broker().counters().acked, 1);
        broker.restart(restart);
        let progress = broker.progress("t", "g");
        assert_eq!((progress.floor, progress.lag), (Some(Offset(0)), 1));
    }
}

#[test]
fn cumulative_ack_of_another_worker_changes_nothing() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "a");
    broker.send(up_to(9, "x")).unwrap();
    assert_eq!(broker.progress("t", "g").in_flight, 1);
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
}

#[test]
fn end_of_a_lease_whose_delivery_has_not_left_withdraws_it() {
    let mut broker = TestBroker::with_topic(1);
    broker.group("t", "g");
    broker.produce("t", "a");
    // Nothing is synced in between, so the delivery cannot have left, nor count against those the stream may get.
    broker.submit(Command::Subscribe(subscribe("t", "g", "w").deliveries_max(1)));
    broker.submit(expire(0));
    broker.run_until_idle();
    let delivery = broker.expect_delivery();
    assert_eq!((delivery.attempts, delivery.failures), (1, 0));
    assert_eq!(broker.pipeline.broker().counters().expired, 0);
}

#[test]
fn ended_lease_counts_as_a_failure_and_is_redelivered_at_once() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "a");
    broker.expect_delivery();
    broker.send(expire(0)).unwrap();
    let again = broker.expect_delivery();
    assert_eq!((again.attempts, again.failures), (2, 1));
    assert_eq!(again.last_error.as_str(), "ack_timeout");
    assert_eq!(broker.pipeline.broker().counters().expired, 1);
}

#[test]
fn cumulative_ack_is_refused_beyond_its_limit_and_acks_nothing() {
    let mut broker = TestBroker::with_limits(|limits| limits.work.acked_per_command = 3);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for value in ["a", "b", "c", "d"] {
        broker.produce("t", value);
    }
    let what = "delivered messages at or below the offset";
    let refused = broker.refused(|broker| broker.send(up_to(3, "w")));
    assert_eq!(refused, driftq_core::Refusal::TooMany { what, len: 4, max: 3 });
    broker.send(up_to(2, "w")).unwrap();
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn effect_committed_by_a_cumulative_ack_is_forgotten_with_its_window() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.try_produce(identified("t", "a", "k")).unwrap();
    broker.send(up_to(0, "w")).unwrap();
    assert_eq!(broker.effect_count("default"), 1);
    broker.advance(30 * 24 * 60 * 60 * 1_000);
    assert_eq!((broker.effect_count("default"), broker.next_timeout()), (0, None));
}
