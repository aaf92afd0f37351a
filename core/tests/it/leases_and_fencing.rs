//! Leases: whose a message is, by which proof, and for how long.

use super::rig::*;
use driftq_core::command::{Claim, OnDisconnect, TokenClaim};
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

/// A topic with one message, held by `w` of group `g`, whose stream is gone.
fn abandoned() -> (Rig, driftq_core::reply::Delivery) {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    let consumer = rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.unsubscribe(consumer);
    (rig, delivery)
}

fn without_token(claim: Claim) -> Claim {
    Claim { token: TokenClaim::Absent, ..claim }
}

#[test]
fn no_delivery_ever_has_the_token_of_another_and_their_text_sorts_by_age() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    let mut tokens: Vec<LeaseToken> = Vec::new();
    for way in [Restart::Crash, Restart::Snapshot, Restart::Crash] {
        for _ in 0..3 {
            rig.produce("t", "v");
        }
        for name in ["g", "h"] {
            rig.subscribe("t", name, "w");
        }
        rig.pass(10_000);
        tokens.extend(rig.delivered().iter().map(|delivery| delivery.token));
        rig.restart(way);
    }
    assert!(tokens.len() > 50);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise");
    assert!(tokens.windows(2).all(|pair| pair[0].to_string() < pair[1].to_string()), "and so does their text");
    assert!(tokens.iter().all(|token| token.to_string().len() == 24), "which has a fixed width");
}

#[test]
fn attempts_failures_the_error_and_the_lease_survive_a_restart() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        rig.subscribe("t", "g", "w");
        let first = rig.one();
        assert_eq!((first.attempts, first.failures, first.last_error.as_str()), (1, 0, ""));
        rig.nack(claim("t", "g", "w", &first), "bad luck").unwrap();
        let second = rig.one();
        assert_eq!((second.attempts, second.failures, second.last_error.as_str()), (2, 1, "bad luck"));
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        rig.pass(1_999);
        assert_eq!(rig.delivered(), [], "the lease runs on through the restart");
        rig.pass(1);
        let third = rig.one();
        assert_eq!((third.attempts, third.failures, third.last_error.as_str()), (3, 2, "bad luck"));
    }
}

fn attempts_after_a_crash(mut rig: Rig<impl Faults>) -> u32 {
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    rig.pass(2_000);
    rig.delivered();
    rig.crash();
    rig.subscribe("t", "g", "w");
    rig.pass(2_000);
    rig.one().attempts
}

#[test]
fn attempts_forgotten_on_replay_would_be_caught() {
    assert_eq!(attempts_after_a_crash(Rig::new()), 3);
    let planted = Rig::with(small_config(), Planted(Fault::AttemptsForgottenOnReplay));
    assert_eq!(attempts_after_a_crash(planted), 1, "the planted bug starts counting anew");
}

#[test]
fn a_token_granted_before_a_restart_still_proves_the_delivery_after_it() {
    for way in RESTARTS {
        let (mut rig, delivery) = abandoned();
        rig.restart(way);
        assert_eq!(rig.extend(claim("t", "g", "w", &delivery), Some(5_000)), Ok(START.after(Millis(5_000))));
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(rig.progress("t", "g").lag, 0);
    }
}

/// An older delivery's worker speaks up after the message went to somebody else. Gives what it was answered.
fn zombie<F: Faults>(mut rig: Rig<F>) -> Vec<Result<Reply, Refusal>> {
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let old = rig.one();
    rig.pass(2_000);
    let new = rig.one();
    assert_eq!(new.attempts, 2);
    let stale = claim("t", "g", "w", &old);
    let digest = rig.digest();
    let answers = vec![
        rig.send(Command::Extend { claim: stale.clone(), lease: None }),
        rig.send(Command::Nack { claim: stale.clone(), reason: "late".into(), delay: None }),
        rig.send(Command::Release(stale.clone())),
        rig.send(Command::Ack(stale)),
    ];
    if answers.iter().all(Result::is_err) {
        assert_eq!(rig.digest(), digest, "a stale token changes nothing");
        rig.ack(claim("t", "g", "w", &new)).unwrap();
    }
    answers
}

#[test]
fn only_the_newest_deliverys_token_is_taken() {
    assert_eq!(zombie(Rig::new()), vec![Err(Refusal::StaleLease); 4]);
}

#[test]
fn a_token_check_left_out_would_be_caught() {
    let answers = zombie(Rig::with(small_config(), Planted(Fault::SkipTokenCheck)));
    assert!(answers.iter().any(Result::is_ok), "the planted bug lets the zombie in");
}

#[test]
fn a_token_that_cannot_be_read_is_stale() {
    let (mut rig, delivery) = abandoned();
    for text in ["", "zz", "00000001ffffffffffffffff0"] {
        let claim = Claim { token: TokenClaim::read(Some(text)), ..claim("t", "g", "w", &delivery) };
        assert_eq!(rig.ack(claim), Err(Refusal::StaleLease), "{text:?}");
    }
    let shown = TokenClaim::read(Some(&delivery.token.to_string()));
    rig.ack(Claim { token: shown, ..claim("t", "g", "w", &delivery) }).unwrap();
}

#[test]
fn without_a_token_the_newest_deliverys_owner_decides_alone() {
    let (mut rig, old) = abandoned();
    rig.pass(2_000);
    rig.subscribe("t", "g", "x");
    let new = rig.one();
    assert_eq!(rig.ack(without_token(claim("t", "g", "w", &old))), Err(Refusal::NotOwner));
    assert_eq!(rig.extend(without_token(claim("t", "g", "w", &old)), None), Err(Refusal::NotOwner));
    rig.extend(without_token(claim("t", "g", "x", &new)), None).unwrap();
    rig.ack(without_token(claim("t", "g", "x", &new))).unwrap();
}

#[test]
fn a_message_nobody_was_handed_belongs_to_nobody() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.group("t", "g");
    rig.produce("t", "a");
    let stranger = first_message("t", "g", "w");
    assert_eq!(rig.ack(stranger.clone()), Err(Refusal::NotOwner));
    let token = TokenClaim::Shown(LeaseToken { boot: Boot(1), counter: 1 });
    assert_eq!(rig.ack(Claim { token, ..stranger }), Err(Refusal::StaleLease));
    assert_eq!(rig.progress("t", "g").lag, 1);
}

#[test]
fn an_expired_lease_not_yet_redelivered_still_takes_an_ack() {
    let (mut rig, delivery) = abandoned();
    rig.pass(60_000);
    assert_eq!(rig.progress("t", "g").waiting, 1);
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.delivered(), []);
}

#[test]
fn an_expired_lease_not_yet_redelivered_takes_a_nack_which_only_updates_the_reason() {
    let (mut rig, delivery) = abandoned();
    rig.pass(60_000);
    let late = Command::Nack {
        claim: claim("t", "g", "w", &delivery),
        reason: "was slow".into(),
        delay: Some(Millis(1_000_000)),
    };
    assert_eq!(rig.send(late), Ok(Reply::Done));
    rig.restart(Restart::Crash);
    rig.subscribe("t", "g", "w");
    let again = rig.one();
    assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 1, "was slow"));
}

#[test]
fn a_late_nack_that_says_nothing_new_writes_nothing() {
    let (mut rig, delivery) = abandoned();
    rig.pass(60_000);
    let late = claim("t", "g", "w", &delivery);
    rig.nack(late.clone(), "was slow").unwrap();
    let appended = rig.pipeline.broker().appended();
    rig.nack(late.clone(), "was slow").unwrap();
    rig.nack(late, "").unwrap();
    assert_eq!(rig.pipeline.broker().appended(), appended);
}

#[test]
fn an_expired_lease_cannot_be_extended() {
    let (mut rig, delivery) = abandoned();
    rig.pass(2_000);
    let digest = rig.digest();
    assert_eq!(rig.extend(claim("t", "g", "w", &delivery), Some(9_000)), Err(Refusal::StaleLease));
    assert_eq!(rig.digest(), digest);
}

#[test]
fn an_extension_counts_from_now_and_moves_the_leases_end() {
    for way in RESTARTS {
        let (mut rig, delivery) = abandoned();
        rig.pass(1_500);
        assert_eq!(rig.extend(claim("t", "g", "w", &delivery), Some(3_000)), Ok(START.after(Millis(4_500))));
        rig.restart(way);
        rig.subscribe("t", "g", "x");
        rig.pass(2_999);
        assert_eq!(rig.delivered(), []);
        rig.pass(1);
        assert_eq!(rig.one().attempts, 2);
    }
}

#[test]
fn an_extension_without_a_length_gives_the_default_lease() {
    let mut rig = Rig::with_limits(|limits| limits.lease_default = Millis(7_000));
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = None);
    let delivery = rig.one();
    assert_eq!(delivery.lease_until, START.after(Millis(7_000)));
    rig.pass(100);
    assert_eq!(rig.extend(claim("t", "g", "w", &delivery), None), Ok(START.after(Millis(7_100))));
}

#[test]
fn a_dropped_stream_leaves_its_leases_running() {
    let (mut rig, delivery) = abandoned();
    rig.subscribe("t", "g", "x");
    rig.pass(1_999);
    assert_eq!(rig.delivered(), []);
    assert_eq!(rig.progress("t", "g").in_flight, 1);
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    rig.pass(60_000);
    assert_eq!(rig.delivered(), []);
}

#[test]
fn a_stream_that_asked_for_it_gives_its_leases_back_when_it_goes() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    for partition in [0, 1, 0] {
        rig.produce_to("t", partition, "v");
    }
    let leaving = rig.subscribe_with("t", "g", "w", |asked| asked.on_disconnect = OnDisconnect::Release);
    let held = rig.delivered();
    assert_eq!(held.len(), 3);
    rig.ack(claim("t", "g", "w", &held[0])).unwrap();
    rig.subscribe("t", "g", "x");
    rig.unsubscribe(leaving);
    let again = rig.delivered();
    assert_eq!(again.len(), 2, "what was acked stays done");
    for delivery in again {
        assert_eq!((delivery.attempts, delivery.failures, delivery.last_error.as_str()), (2, 0, ""));
    }
}

#[test]
fn a_stream_that_has_had_all_it_wanted_keeps_its_leases_whatever_it_asked_for() {
    let mut rig = Rig::with_topic(1);
    rig.produce("t", "v");
    let ending = rig.subscribe_with("t", "g", "w", |asked| asked.on_disconnect = OnDisconnect::Release);
    let delivery = rig.one();
    rig.subscribe("t", "g", "x");
    assert_eq!(rig.send(Command::Finish { consumer: ending }), Ok(Reply::Done));
    assert_eq!(rig.send(Command::Finish { consumer: ending }), Err(Refusal::UnknownConsumer));
    rig.pass(1_999);
    assert_eq!(rig.delivered(), []);
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
}

#[test]
fn a_release_is_no_failure_and_gives_the_message_to_the_next_at_once() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(5, 1_000, 0)));
        let first = rig.subscribe("t", "g", "w");
        let delivery = rig.one();
        rig.set_prefetch(first, 0);
        rig.release(claim("t", "g", "w", &delivery)).unwrap();
        rig.restart(way);
        rig.subscribe("t", "g", "x");
        let again = rig.one();
        assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 0, ""));
        let digest = rig.digest();
        assert_eq!(rig.release(claim("t", "g", "w", &delivery)), Err(Refusal::StaleLease));
        assert_eq!(rig.digest(), digest);
    }
}

#[test]
fn releasing_what_has_already_come_back_changes_nothing() {
    let (mut rig, delivery) = abandoned();
    rig.pass(2_000);
    let digest = rig.digest();
    rig.release(claim("t", "g", "w", &delivery)).unwrap();
    assert_eq!(rig.digest(), digest);
    assert_eq!(rig.progress("t", "g").waiting, 1);
}

#[test]
fn a_held_message_has_one_holder() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    for who in ["w", "x", "y"] {
        rig.subscribe("t", "g", who);
    }
    assert_eq!(rig.values(), ["a"]);
    rig.pass(1_999);
    assert_eq!(rig.delivered(), []);
}
