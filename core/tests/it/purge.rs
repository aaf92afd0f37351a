//! Purge: every message that a topic stores is removed in one step.

use super::test_broker::*;
use driftq_core::command::{Claim, Purge, Redrive, RedriveSelection, SeekTo, TokenClaim};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{GroupStart, Retention, *};
use driftq_core::{Body, Command, Refusal, Reply};

fn purge(broker: &mut TestBroker, name: &str) -> Result<u64, Refusal> {
    match broker.send(Command::Purge(Purge { topic: topic(name) }))? {
        Reply::Purged { count } => Ok(count),
        other => panic!("unexpected reply to a purge: {other:?}"),
    }
}

#[test]
fn purge_removes_ready_delayed_leased_waiting_and_retained_messages() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic_with_retention("t", Some(1_000_000), None);
        broker.group("t", "other");
        let consumer = broker.subscribe("t", "g", "w");
        broker.produce("t", "retained in g");
        let acked = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &acked)).unwrap();
        broker.produce_with("t", "waiting", |request| request.envelope.retry_policy = Some(policy(0, 60_000, 60_000)));
        let failed = broker.expect_delivery();
        broker.nack(claim("t", "g", "w", &failed), "no").unwrap();
        broker.produce("t", "leased");
        broker.expect_delivery();
        broker.unsubscribe(consumer);
        broker.produce_with("t", "delayed", |request| request.delay = Some(Millis(60_000)));
        broker.produce_with("t", "urgent", |request| request.envelope.priority = Priority::new(3));
        broker.produce("t", "ready");
        broker.restart(restart);
        assert_eq!(purge(&mut broker, "t"), Ok(6));
        assert_eq!(purge(&mut broker, "t"), Ok(0), "nothing is left");
        broker.produce("t", "later");
        broker.restart(restart);
        for name in ["g", "other", "later"] {
            broker.subscribe("t", name, "w");
            assert_eq!(broker.delivered_values(), ["later"], "{name}");
            broker.seek("t", name, SeekTo::Earliest).unwrap();
            assert_eq!(broker.delivered_values(), ["later"], "{name} after a seek");
        }
        broker.advance(120_000);
        assert!(broker.delivered_values().iter().all(|value| value == "later"));
        assert_eq!(broker.stored_values("t"), ["later"]);
        assert_eq!(broker.topics(), ["t"], "a purged message is no dead letter");
    }
}

#[test]
fn ack_of_purged_message_is_refused_to_its_lease_and_confirmed_otherwise() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        broker.subscribe("t", "g", "w");
        broker.produce("t", "a");
        let leased = broker.expect_delivery();
        assert_eq!(purge(&mut broker, "t"), Ok(1));
        broker.restart(restart);
        assert_eq!(broker.ack(claim("t", "g", "w", &leased)), Err(Refusal::StaleLease));
        assert_eq!(broker.nack(claim("t", "g", "w", &leased), "no"), Err(Refusal::StaleLease));
        let without_token = Claim { token: TokenClaim::Absent, ..claim("t", "g", "w", &leased) };
        assert_eq!(broker.ack(without_token), Ok(()), "as for any done message");
    }
}

#[test]
fn purge_gives_back_credit_and_capacity() {
    let mut broker = TestBroker::with_limits(|limits| (limits.partition_messages_max, limits.in_flight_max) = (2, 1));
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    broker.produce("t", "a");
    broker.produce("t", "b");
    broker.expect_delivery();
    assert_eq!(purge(&mut broker, "t"), Ok(2));
    broker.produce("t", "c");
    broker.produce("t", "d");
    assert_eq!(broker.delivered_values(), ["c"], "the ended lease takes no credit");
}

#[test]
fn purged_dead_letter_is_not_redriven() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    broker.subscribe("t", "g", "w");
    let failed = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &failed), "no").unwrap();
    assert_eq!(purge(&mut broker, "dlq.t"), Ok(1));
    let redrive = Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 9 };
    assert_eq!(broker.send(Command::Redrive(redrive)), Ok(Reply::Redriven { count: 0, rest: None }));
    assert_eq!(purge(&mut broker, "absent"), Err(Refusal::UnknownTopic(topic("absent"))));
}

#[test]
fn duplicate_of_purged_message_is_still_a_duplicate() {
    let mut broker = TestBroker::with_topic(1);
    broker.try_produce(identified("t", "a", "k")).unwrap();
    assert_eq!(purge(&mut broker, "t"), Ok(1));
    let again = broker.try_produce(identified("t", "a", "k")).unwrap();
    assert!(again.duplicate);
    assert_eq!(broker.stored_values("t"), [""; 0]);
}

/// The state of a topic with three messages that were delivered to one group, and those in `released` given back.
fn with_three_delivered(released: &[u64]) -> State {
    let (id, to, partition) = (TopicId(0), GroupId(0), PartitionId(0));
    let (start, origin, retention) = (GroupStart::Earliest, GroupOrigin::Requested, Retention::default());
    let at = |position| MessageRef { topic: id, group: to, partition, position: Position(position) };
    let mut events = vec![
        Event::Booted { boot: Boot(1) },
        Event::TopicCreated { topic: id, name: topic("t"), partitions: 1, retention },
        Event::GroupCreated { topic: id, group: to, name: group("g"), start, origin },
    ];
    for number in 0..3 {
        let (offset, body) = (Offset(number), Body::pack(&Metadata::default(), b"", b"v"));
        events.push(Event::Produced { topic: id, partition, offset, body, dedupe: None, skipped: Vec::new() });
        let token = LeaseToken { boot: Boot(1), counter: number };
        let until = START.after(Millis(2_000));
        events.push(Event::Delivered { message_ref: at(number), token, owner: owner("w"), until });
    }
    events.extend(released.iter().map(|position| Event::Released { message_ref: at(*position) }));
    let mut state = State::default();
    events.into_iter().for_each(|event| state.apply(&Record { at: START, event }).unwrap());
    state
}

/// The broker purges up to the end of every partition, but a record names the first position that stays.
#[test]
fn purge_up_to_a_position_ends_only_the_leases_below_it() {
    let until = START.after(Millis(60_000));
    for (released, end, in_flight, waiting, fenced) in [
        (&[1][..], 2, 1, 0, &[0][..]),
        (&[], 2, 1, 0, &[0, 1]),
        (&[], 1, 2, 0, &[0]),
        (&[2], 1, 1, 1, &[0]),
        (&[], 3, 0, 0, &[0, 1, 2]),
        (&[], 0, 3, 0, &[]),
    ] {
        let mut state = with_three_delivered(released);
        let ends = [Position(end)].into();
        let event = Event::Purged { topic: TopicId(0), ends, winner_until: until };
        state.apply(&Record { at: START, event }).unwrap();
        let topic = state.topic(TopicId(0)).unwrap();
        let progress = topic.group(GroupId(0)).and_then(|group| group.progress(PartitionId(0))).unwrap();
        assert_eq!((progress.in_flight(), progress.waiting()), (in_flight, waiting), "{released:?} to {end}");
        assert_eq!(progress.acked().floor(), Position(end));
        assert_eq!(topic.partition(PartitionId(0)).unwrap().backlog().messages, 3 - end);
        let winners: Vec<_> = state.winners().entries().map(|(message, winner)| (message.offset.0, *winner)).collect();
        let expected: Vec<_> = fenced.iter().map(|offset| (*offset, Winner { token: None, until })).collect();
        assert_eq!(winners, expected, "{released:?} to {end}");
        assert_eq!(state.check(), Ok(()));
    }
}
