//! Leases and fencing: tokens, owners, expiry, extension and release.

use super::test_broker::*;
use driftq_core::command::{Ack, Claim, CloseStream, Extend, Nack, OnDisconnect, Release, Retry, TokenClaim};
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

/// A topic with one message leased by `w` of group `g`, whose stream is closed.
fn abandoned() -> (TestBroker, driftq_core::reply::Delivery) {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    let consumer = broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.unsubscribe(consumer);
    (broker, delivery)
}

fn without_token(claim: Claim) -> Claim {
    Claim { token: TokenClaim::Absent, ..claim }
}

#[test]
fn tokens_are_unique_and_their_text_sorts_by_age() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    let mut tokens: Vec<LeaseToken> = Vec::new();
    for restart in [Restart::Crash, Restart::Snapshot, Restart::Crash] {
        for _ in 0..3 {
            broker.produce("t", "v");
        }
        for name in ["g", "h"] {
            broker.subscribe("t", name, "w");
        }
        broker.advance(10_000);
        tokens.extend(broker.delivered().iter().map(|delivery| delivery.token));
        broker.restart(restart);
    }
    assert!(tokens.len() > 50);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens ascend");
    assert!(tokens.windows(2).all(|pair| pair[0].to_string() < pair[1].to_string()), "their text ascends");
    assert!(tokens.iter().all(|token| token.to_string().len() == 24), "their text has a fixed width");
}

#[test]
fn attempts_failures_error_and_lease_survive_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.subscribe("t", "g", "w");
        let first = broker.expect_delivery();
        assert_eq!((first.attempts, first.failures, first.last_error.as_str()), (1, 0, ""));
        broker.nack(claim("t", "g", "w", &first), "bad luck").unwrap();
        let second = broker.expect_delivery();
        assert_eq!((second.attempts, second.failures, second.last_error.as_str()), (2, 1, "bad luck"));
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        broker.advance(1_999);
        assert_eq!(broker.delivered(), [], "the lease continues through the restart");
        broker.advance(1);
        let third = broker.expect_delivery();
        assert_eq!((third.attempts, third.failures, third.last_error.as_str()), (3, 2, "bad luck"));
    }
}

fn attempts_after_crash(mut broker: TestBroker<impl Faults>) -> u32 {
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    broker.advance(2_000);
    broker.delivered();
    broker.crash();
    broker.subscribe("t", "g", "w");
    broker.advance(2_000);
    broker.expect_delivery().attempts
}

#[test]
fn fault_attempts_forgotten_on_replay_is_detected() {
    assert_eq!(attempts_after_crash(TestBroker::new()), 3);
    let planted = TestBroker::with(small_config(), Planted(Fault::AttemptsForgottenOnReplay));
    assert_eq!(attempts_after_crash(planted), 1, "the planted fault resets the count");
}

#[test]
fn token_from_before_restart_is_valid_after_it() {
    for restart in RESTARTS {
        let (mut broker, delivery) = abandoned();
        broker.restart(restart);
        assert_eq!(broker.extend(claim("t", "g", "w", &delivery), Some(5_000)), Ok(START.after(Millis(5_000))));
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(broker.progress("t", "g").lag, 0);
    }
}

/// Sends commands with the token of an older delivery after a redelivery, and returns the replies.
fn replies_to_stale_token<F: Faults>(mut broker: TestBroker<F>) -> Vec<Result<Reply, Refusal>> {
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let old = broker.expect_delivery();
    broker.advance(2_000);
    let new = broker.expect_delivery();
    assert_eq!(new.attempts, 2);
    let stale = claim("t", "g", "w", &old);
    let digest = broker.digest();
    let replies = vec![
        broker.send(Command::Extend(Extend { claim: stale.clone(), lease: None })),
        broker.send(Command::Nack(Nack { claim: stale.clone(), reason: "late".into(), retry: Retry::ByPolicy })),
        broker.send(Command::Release(Release(stale.clone()))),
        broker.send(Command::Ack(Ack(stale))),
    ];
    if replies.iter().all(Result::is_err) {
        assert_eq!(broker.digest(), digest, "a stale token changes nothing");
        broker.ack(claim("t", "g", "w", &new)).unwrap();
    }
    replies
}

#[test]
fn stale_token_is_refused_for_every_command() {
    assert_eq!(replies_to_stale_token(TestBroker::new()), vec![Err(Refusal::StaleLease); 4]);
}

#[test]
fn fault_skip_token_check_is_detected() {
    let replies = replies_to_stale_token(TestBroker::with(small_config(), Planted(Fault::SkipTokenCheck)));
    assert!(replies.iter().any(Result::is_ok), "the planted fault accepts the stale token");
}

#[test]
fn unreadable_token_is_refused_as_stale() {
    let (mut broker, delivery) = abandoned();
    for text in ["", "zz", "00000001ffffffffffffffff0"] {
        let claim = Claim { token: TokenClaim::read(Some(text)), ..claim("t", "g", "w", &delivery) };
        assert_eq!(broker.ack(claim), Err(Refusal::StaleLease), "{text:?}");
    }
    let shown = TokenClaim::read(Some(&delivery.token.to_string()));
    broker.ack(Claim { token: shown, ..claim("t", "g", "w", &delivery) }).unwrap();
}

#[test]
fn claim_without_token_is_checked_by_newest_owner() {
    let (mut broker, old) = abandoned();
    broker.advance(2_000);
    broker.subscribe("t", "g", "x");
    let new = broker.expect_delivery();
    assert_eq!(broker.ack(without_token(claim("t", "g", "w", &old))), Err(Refusal::NotOwner));
    assert_eq!(broker.extend(without_token(claim("t", "g", "w", &old)), None), Err(Refusal::NotOwner));
    broker.extend(without_token(claim("t", "g", "x", &new)), None).unwrap();
    broker.ack(without_token(claim("t", "g", "x", &new))).unwrap();
}

#[test]
fn claim_on_undelivered_message_is_refused() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.group("t", "g");
    broker.produce("t", "a");
    let undelivered = first_message("t", "g", "w");
    assert_eq!(broker.ack(undelivered.clone()), Err(Refusal::NotOwner));
    let token = TokenClaim::Shown(LeaseToken { boot: Boot(1), counter: 1 });
    assert_eq!(broker.ack(Claim { token, ..undelivered }), Err(Refusal::StaleLease));
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn ack_after_expiry_before_redelivery_succeeds() {
    let (mut broker, delivery) = abandoned();
    broker.advance(60_000);
    assert_eq!(broker.progress("t", "g").waiting, 1);
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered(), []);
}

#[test]
fn nack_after_expiry_before_redelivery_only_updates_reason() {
    let (mut broker, delivery) = abandoned();
    broker.advance(60_000);
    let late = Command::Nack(Nack {
        claim: claim("t", "g", "w", &delivery),
        reason: "was slow".into(),
        retry: Retry::After(Millis(1_000_000)),
    });
    assert_eq!(broker.send(late), Ok(Reply::Success));
    broker.restart(Restart::Crash);
    broker.subscribe("t", "g", "w");
    let again = broker.expect_delivery();
    assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 1, "was slow"));
}

#[test]
fn late_nack_without_new_reason_writes_nothing() {
    let (mut broker, delivery) = abandoned();
    broker.advance(60_000);
    let late = claim("t", "g", "w", &delivery);
    broker.nack(late.clone(), "was slow").unwrap();
    let appended = broker.pipeline.broker().appended();
    broker.nack(late.clone(), "was slow").unwrap();
    broker.nack(late, "").unwrap();
    assert_eq!(broker.pipeline.broker().appended(), appended);
}

#[test]
fn extend_after_expiry_is_refused() {
    let (mut broker, delivery) = abandoned();
    broker.advance(2_000);
    let digest = broker.digest();
    assert_eq!(broker.extend(claim("t", "g", "w", &delivery), Some(9_000)), Err(Refusal::StaleLease));
    assert_eq!(broker.digest(), digest);
}

#[test]
fn extend_counts_from_now_and_moves_lease_end() {
    for restart in RESTARTS {
        let (mut broker, delivery) = abandoned();
        broker.advance(1_500);
        assert_eq!(broker.extend(claim("t", "g", "w", &delivery), Some(3_000)), Ok(START.after(Millis(4_500))));
        broker.restart(restart);
        broker.subscribe("t", "g", "x");
        broker.advance(2_999);
        assert_eq!(broker.delivered(), []);
        broker.advance(1);
        assert_eq!(broker.expect_delivery().attempts, 2);
    }
}

#[test]
fn extend_without_length_grants_default_lease() {
    let mut broker = TestBroker::with_limits(|limits| limits.lease_default = Millis(7_000));
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe_with("t", "g", "w", |request| request.lease = None);
    let delivery = broker.expect_delivery();
    assert_eq!(delivery.lease_until, START.after(Millis(7_000)));
    broker.advance(100);
    assert_eq!(broker.extend(claim("t", "g", "w", &delivery), None), Ok(START.after(Millis(7_100))));
}

#[test]
fn dropped_stream_leaves_its_leases_running() {
    let (mut broker, delivery) = abandoned();
    broker.subscribe("t", "g", "x");
    broker.advance(1_999);
    assert_eq!(broker.delivered(), []);
    assert_eq!(broker.progress("t", "g").in_flight, 1);
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    broker.advance(60_000);
    assert_eq!(broker.delivered(), []);
}

#[test]
fn stream_with_release_on_disconnect_returns_its_leases() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    for partition in [0, 1, 0] {
        broker.produce_to("t", partition, "v");
    }
    let leaving = broker.subscribe_with("t", "g", "w", |request| request.on_disconnect = OnDisconnect::Release);
    let held = broker.delivered();
    assert_eq!(held.len(), 3);
    broker.ack(claim("t", "g", "w", &held[0])).unwrap();
    broker.subscribe("t", "g", "x");
    broker.unsubscribe(leaving);
    let again = broker.delivered();
    assert_eq!(again.len(), 2, "the acked message is not redelivered");
    for delivery in again {
        assert_eq!((delivery.attempts, delivery.failures, delivery.last_error.as_str()), (2, 0, ""));
    }
}

#[test]
fn closed_stream_keeps_its_leases_despite_release_on_disconnect() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "v");
    let ending = broker.subscribe_with("t", "g", "w", |request| request.on_disconnect = OnDisconnect::Release);
    let delivery = broker.expect_delivery();
    broker.subscribe("t", "g", "x");
    assert_eq!(broker.send(Command::CloseStream(CloseStream { consumer: ending })), Ok(Reply::Success));
    assert_eq!(broker.send(Command::CloseStream(CloseStream { consumer: ending })), Err(Refusal::UnknownConsumer));
    broker.advance(1_999);
    assert_eq!(broker.delivered(), []);
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
}

#[test]
fn release_is_no_failure_and_redelivers_at_once() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(5, 1_000, 0)));
        let first = broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        broker.set_prefetch(first, 0);
        broker.release(claim("t", "g", "w", &delivery)).unwrap();
        broker.restart(restart);
        broker.subscribe("t", "g", "x");
        let again = broker.expect_delivery();
        assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 0, ""));
        let digest = broker.digest();
        assert_eq!(broker.release(claim("t", "g", "w", &delivery)), Err(Refusal::StaleLease));
        assert_eq!(broker.digest(), digest);
    }
}

#[test]
fn release_after_expiry_changes_nothing() {
    let (mut broker, delivery) = abandoned();
    broker.advance(2_000);
    let digest = broker.digest();
    broker.release(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(broker.digest(), digest);
    assert_eq!(broker.progress("t", "g").waiting, 1);
}

#[test]
fn leased_message_is_delivered_to_one_consumer_only() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    for owner_name in ["w", "x", "y"] {
        broker.subscribe("t", "g", owner_name);
    }
    assert_eq!(broker.delivered_values(), ["a"]);
    broker.advance(1_999);
    assert_eq!(broker.delivered(), []);
}
