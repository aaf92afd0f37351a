//! Winners: a worker whose delivery did not ack a message is not told that it did.

use super::test_broker::*;
use driftq_core::command::{Claim, Complete, Redrive, RedriveSelection, SeekTo, TokenClaim};
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::reply::Delivery;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

const TTL: u64 = 10_000;

fn broker_with<F: Faults>(faults: F) -> TestBroker<F> {
    let mut config = small_config();
    config.limits.completion_ttl = Millis(TTL);
    config.limits.completions_max = 4;
    config.limits.adaptive_credit = false;
    let mut broker = TestBroker::with(config, faults);
    broker.topic("t", 1);
    broker
}

fn broker() -> TestBroker {
    broker_with(driftq_core::faults::NoFaults)
}

/// Produces a message and delivers it twice; returns both deliveries.
fn delivered_twice<F: Faults>(broker: &mut TestBroker<F>) -> (Delivery, Delivery) {
    broker.produce("t", "a");
    let consumer = broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.advance(2_000);
    let second = broker.expect_delivery();
    assert_eq!((first.offset, second.attempts), (second.offset, 2));
    broker.unsubscribe(consumer);
    (first, second)
}

fn of(delivery: &Delivery) -> Claim {
    claim("t", "g", "w", delivery)
}

fn winners<F: Faults>(broker: &TestBroker<F>) -> usize {
    broker.pipeline.state().winners().len()
}

/// The replies to every command with a claim that shows this token.
fn replies<F: Faults>(broker: &mut TestBroker<F>, claim: &Claim) -> [Result<(), Refusal>; 4] {
    [
        broker.ack(claim.clone()),
        broker.nack(claim.clone(), "late"),
        broker.release(claim.clone()),
        broker.extend(claim.clone(), None).map(drop),
    ]
}

const STALE: Result<(), Refusal> = Err(Refusal::StaleLease);

#[test]
fn claim_with_token_of_loser_is_refused_until_the_winner_is_forgotten() {
    for restart in RESTARTS {
        let mut broker = broker();
        let (first, second) = delivered_twice(&mut broker);
        broker.ack(of(&second)).unwrap();
        broker.restart(restart);
        let digest = broker.digest();
        assert_eq!(replies(&mut broker, &of(&first)), [STALE, STALE, STALE, STALE]);
        let unreadable = Claim { token: TokenClaim::Unreadable, ..of(&first) };
        assert_eq!(replies(&mut broker, &unreadable), [STALE, STALE, STALE, STALE]);
        // The winner, and a worker without a token, as always.
        assert_eq!(replies(&mut broker, &of(&second)), [Ok(()), Ok(()), Ok(()), STALE]);
        let without = Claim { token: TokenClaim::Absent, owner: owner("other"), ..of(&first) };
        assert_eq!(replies(&mut broker, &without), [Ok(()), Ok(()), Ok(()), STALE]);
        assert_eq!(broker.digest(), digest, "none of these changes anything");
        broker.advance(TTL - 1);
        assert_eq!(broker.ack(of(&first)), STALE);
        broker.advance(1);
        assert_eq!(broker.ack(of(&first)), Ok(()));
        assert_eq!(winners(&broker), 1, "expired winners are removed together");
        broker.advance(1_000);
        assert_eq!(winners(&broker), 0);
    }
}

#[test]
fn message_delivered_once_remembers_no_winner() {
    let mut broker = broker();
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let only = broker.expect_delivery();
    broker.ack(of(&only)).unwrap();
    assert_eq!(winners(&broker), 0);
    let other = Claim { token: TokenClaim::Shown(LeaseToken { boot: Boot(1), counter: 99 }), ..of(&only) };
    assert_eq!(broker.ack(other), Ok(()));
}

#[test]
fn delivery_after_release_is_contested() {
    let mut broker = broker();
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.release(of(&first)).unwrap();
    let second = broker.expect_delivery();
    assert_eq!((second.attempts, second.failures), (2, 0));
    broker.ack(of(&second)).unwrap();
    assert_eq!(broker.ack(of(&first)), STALE);
}

#[test]
fn ack_without_token_makes_the_newest_delivery_the_winner() {
    let mut broker = broker();
    let (first, second) = delivered_twice(&mut broker);
    broker.ack(Claim { token: TokenClaim::Absent, ..of(&second) }).unwrap();
    assert_eq!((broker.ack(of(&first)), broker.ack(of(&second))), (STALE, Ok(())));
}

#[test]
fn completed_step_remembers_its_winner() {
    for restart in RESTARTS {
        let mut broker = broker();
        let (first, second) = delivered_twice(&mut broker);
        let complete = |claim: Claim| {
            let produce = Vec::new();
            Command::Complete(Box::new(Complete { claim, result: None, produce, failed: None }))
        };
        broker.send(complete(of(&second))).unwrap();
        broker.restart(restart);
        assert_eq!(replies(&mut broker, &of(&first)), [STALE, STALE, STALE, STALE]);
        assert_eq!(broker.send(complete(of(&first))), Err(Refusal::StaleLease));
        assert_eq!(broker.ack(of(&second)), Ok(()));
        assert!(matches!(broker.send(complete(of(&second))), Ok(Reply::Completed(_))));
    }
}

#[test]
fn dead_lettered_message_refuses_every_token() {
    for restart in RESTARTS {
        let mut broker = broker();
        broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(2, 0, 0)));
        let consumer = broker.subscribe("t", "g", "w");
        let first = broker.expect_delivery();
        broker.nack(of(&first), "one").unwrap();
        let second = broker.expect_delivery();
        broker.unsubscribe(consumer);
        broker.nack(of(&second), "two").unwrap();
        assert_eq!(broker.dead_letters("t").len(), 1);
        broker.restart(restart);
        for token in [first.token, second.token] {
            let claim = Claim { token: TokenClaim::Shown(token), ..of(&second) };
            assert_eq!(replies(&mut broker, &claim), [STALE, STALE, STALE, STALE]);
        }
        let without = Claim { token: TokenClaim::Absent, ..of(&second) };
        assert_eq!(broker.ack(without), Ok(()));
        assert_eq!(broker.dead_letters("t").len(), 1, "the dead letter stays");
        broker.advance(TTL);
        assert_eq!(broker.ack(of(&second)), Ok(()));
    }
}

#[test]
fn dead_letter_by_deadline_refuses_tokens_too() {
    let mut broker = broker();
    let at = broker.now.after(Millis(3_000));
    broker.produce_with("t", "a", |request| request.envelope.deadline = deadline(at));
    broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.nack_with_delay(of(&first), 10_000).unwrap();
    broker.advance(10_000);
    assert_eq!(broker.dead_letters("t")[0].reason, DeadReason::DeadlineExceeded);
    assert_eq!(broker.ack(of(&first)), STALE);
}

#[test]
fn redriven_message_starts_without_a_winner() {
    let mut broker = broker();
    broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.nack(of(&first), "no").unwrap();
    broker.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 9 })).unwrap();
    let again = broker.expect_delivery();
    broker.ack(of(&again)).unwrap();
    assert_eq!((broker.ack(of(&first)), broker.ack(of(&again))), (STALE, Ok(())));
}

#[test]
fn group_or_topic_deleted_forgets_its_winners_alone() {
    for restart in RESTARTS {
        let mut broker = broker();
        broker.topic("u", 1);
        broker.group("t", "h");
        for (topic_name, group_name) in [("t", "g"), ("t", "h"), ("u", "g")] {
            broker.produce(topic_name, "a");
            let consumer = broker.subscribe(topic_name, group_name, "w");
            broker.advance(2_000);
            for delivery in broker.delivered().iter().filter(|delivery| delivery.attempts == 2) {
                broker.ack(claim(topic_name, group_name, "w", delivery)).unwrap();
            }
            broker.unsubscribe(consumer);
        }
        // Group h has two messages.
        assert_eq!(winners(&broker), 4);
        broker.delete_group("t", "h");
        assert_eq!(winners(&broker), 2);
        broker.restart(restart);
        broker.delete_topic("t");
        assert_eq!(winners(&broker), 1);
        broker.restart(restart);
        broker.delete_topic("u");
        assert_eq!(winners(&broker), 0);
    }
}

#[test]
fn seek_forgets_winners_and_what_it_replays_is_contested() {
    let mut broker = broker();
    broker.topic_with_retention("r", Some(1_000_000), None);
    broker.produce("r", "a");
    broker.subscribe("r", "g", "w");
    let first = broker.expect_delivery();
    broker.ack(claim("r", "g", "w", &first)).unwrap();
    assert_eq!(winners(&broker), 0);
    broker.seek("r", "g", SeekTo::Earliest).unwrap();
    let replayed = broker.expect_delivery();
    assert_eq!(replayed.attempts, 1);
    broker.ack(claim("r", "g", "w", &replayed)).unwrap();
    assert_eq!(broker.ack(claim("r", "g", "w", &first)), STALE);
    assert_eq!(broker.ack(claim("r", "g", "w", &replayed)), Ok(()));
    broker.seek("r", "g", SeekTo::Latest).unwrap();
    assert_eq!(winners(&broker), 0);
    assert_eq!(broker.ack(claim("r", "g", "w", &first)), Ok(()));
    // A message stored after the seek cannot have been delivered before it.
    broker.produce("r", "b");
    let after = broker.expect_delivery();
    broker.ack(claim("r", "g", "w", &after)).unwrap();
    assert_eq!(winners(&broker), 0);
}

/// Acks this many messages, each after its second delivery, and returns the first deliveries.
fn win<F: Faults>(broker: &mut TestBroker<F>, count: usize) -> Vec<Delivery> {
    let mut losers = Vec::new();
    for _ in 0..count {
        let (first, second) = delivered_twice(broker);
        broker.ack(of(&second)).unwrap();
        losers.push(first);
    }
    losers
}

#[test]
fn oldest_winners_are_forgotten_beyond_the_limit() {
    for restart in RESTARTS {
        let mut broker = broker();
        let losers = win(&mut broker, 4);
        assert_eq!(winners(&broker), 4);
        assert_eq!(broker.ack(of(&losers[0])), STALE);
        let more = win(&mut broker, 1);
        assert_eq!(winners(&broker), 4);
        broker.restart(restart);
        let replies: Vec<_> = losers.iter().chain(&more).map(|loser| broker.ack(of(loser)).is_ok()).collect();
        assert_eq!(replies, [true, false, false, false, false]);
    }
}

#[test]
fn winners_beyond_a_lowered_limit_are_forgotten_at_once() {
    let mut broker = broker();
    win(&mut broker, 3);
    broker.config.limits.completions_max = 1;
    broker.crash();
    assert_eq!(winners(&broker), 1, "the broker asks to be called for it");
}

#[test]
fn fault_winner_outlives_group_is_detected() {
    let mut broker = broker_with(Planted(Fault::WinnerOutlivesGroup));
    win(&mut broker, 1);
    broker.delete_group("t", "g");
    assert_eq!(winners(&broker), 1, "the planted fault keeps it");
    broker.snapshot();
    let mut storage = broker.storage.crash();
    let recovered = driftq_core::pipeline::inspect(&mut storage, None);
    assert!(recovered.is_err(), "a snapshot with the winner of no group is refused");
}

#[test]
fn winners_of_a_cumulative_ack_are_swept_with_their_window() {
    for others in [0, 1] {
        let mut broker = broker();
        let (_, second) = delivered_twice(&mut broker);
        broker.subscribe("t", "g", "w");
        for _ in 0..others {
            broker.produce("t", "once");
        }
        broker.delivered();
        let (topic, group, owner) = (topic("t"), group("g"), owner("w"));
        let (partition, offset) = (second.partition, Offset(second.offset.0 + others));
        let request = driftq_core::command::AckCumulative { topic, group, partition, offset, owner };
        broker.send(Command::AckCumulative(request)).unwrap();
        assert_eq!((winners(&broker), broker.progress("t", "g").lag), (1, 0), "the others were delivered once");
        broker.advance(TTL + 1_000);
        assert_eq!(winners(&broker), 0);
    }
}
