//! Effects in consume scopes: bound to deliveries, committed by acks.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::{DeliveryClaim, TokenClaim};
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::reply::{Delivery, Overload};
use driftq_core::types::{EffectStatus, Identity, Lifetime, Scope, *};

pub(super) const DAY: u64 = 24 * 60 * 60 * 1_000;
pub(super) const DEDUPE_TTL: u64 = 10 * 60 * 1_000;

/// A broker with a topic `t` and a consumer `w` of group `g`.
pub(super) fn broker() -> TestBroker {
    with_consumer(NoFaults)
}

/// As [`broker`], with a dedupe window: an ack alone is remembered until it ends.
pub(super) fn deduplicating_broker() -> TestBroker {
    let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(DEDUPE_TTL));
    broker.topic("t", 1);
    subscribe_worker(&mut broker);
    broker
}

pub(super) fn with_consumer<F: Faults>(faults: F) -> TestBroker<F> {
    let mut config = small_config();
    // Without a dedupe window, two messages of one identity can be stored right after each other.
    config.limits.dedupe_ttl = Millis(0);
    let mut broker = TestBroker::with(config, faults);
    broker.topic("t", 1);
    subscribe_worker(&mut broker);
    broker
}

pub(super) fn subscribe_worker<F: Faults>(broker: &mut TestBroker<F>) {
    broker.subscribe("t", "g", "w");
}

/// A delivered message with the idempotency key `k`.
pub(super) fn delivered<F: Faults>(broker: &mut TestBroker<F>, value: &str) -> Delivery {
    broker.try_produce(identified("t", value, "k")).unwrap();
    broker.expect_delivery()
}

pub(super) fn k() -> Identity {
    consume_effect("t", "g", "k")
}

pub(super) fn ack<F: Faults>(broker: &mut TestBroker<F>, delivery: &Delivery) {
    broker.ack(claim("t", "g", "w", delivery)).unwrap();
}

pub(super) fn nack(broker: &mut TestBroker, delivery: &Delivery) {
    broker.nack(claim("t", "g", "w", delivery), "no").unwrap();
}

#[test]
fn begin_twice_for_same_delivery_is_in_progress() {
    let mut broker = broker();
    let first = delivered(&mut broker, "v");
    granted(broker.begin_for(&k(), &first));
    assert!(matches!(broker.refused(|broker| broker.begin_for(&k(), &first)), Refusal::InProgress { .. }));
    assert!(matches!(broker.refused(|broker| broker.begin(&k())), Refusal::InProgress { .. }));
}

#[test]
fn newer_delivery_takes_over_and_fences_older_grant() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "v");
        let old = granted(broker.begin_with(&k(), |request| {
            let token = TokenClaim::Shown(first.token);
            request.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
            request.lease = Some(Millis(DAY));
        }));
        nack(&mut broker, &first);
        let second = broker.expect_delivery();
        let new = granted(broker.begin_for(&k(), &second));
        assert_eq!(broker.effect(&k()).unwrap().attempt, 2);
        assert_eq!(broker.refused(|broker| broker.finish(&k(), old, success("1"))), Refusal::StaleLease);
        assert_eq!(broker.refused(|broker| broker.begin_for(&k(), &first)), Refusal::StaleLease);
        broker.restart_after(restart, 2_000);
        subscribe_worker(&mut broker);
        let third = broker.expect_delivery();
        let newest = granted(broker.begin_for(&k(), &third));
        assert!(newest > new, "also after a restart");
    }
}

#[test]
fn begin_for_outdated_or_missing_delivery_is_stale() {
    let mut broker = deduplicating_broker();
    let first = delivered(&mut broker, "v");
    let claim_of = |token| DeliveryClaim { partition: first.partition, offset: first.offset, token };
    for token in [TokenClaim::Absent, TokenClaim::Unreadable] {
        let refusal =
            broker.refused(|broker| broker.begin_with(&k(), |request| request.delivery = Some(claim_of(token))));
        assert_eq!(refusal, Refusal::StaleLease);
    }
    nack(&mut broker, &first);
    let second = broker.expect_delivery();
    assert_eq!(broker.refused(|broker| broker.begin_for(&k(), &first)), Refusal::StaleLease);
    ack(&mut broker, &second);
    broker.forget(&k()).unwrap();
    assert_eq!(broker.refused(|broker| broker.begin_for(&k(), &second)), Refusal::StaleLease, "its message is acked");
}

#[test]
fn begin_for_expired_lease_without_redelivery_is_granted() {
    let mut broker = broker();
    let first = delivered(&mut broker, "v");
    broker.pause("t", "g");
    broker.advance(2_000);
    granted(broker.begin_for(&k(), &first));
}

#[test]
fn begin_for_unknown_topic_group_or_partition_is_refused() {
    let mut broker = broker();
    let first = delivered(&mut broker, "v");
    assert_eq!(
        broker.refused(|broker| broker.begin_for(&consume_effect("u", "g", "k"), &first)),
        Refusal::UnknownTopic(topic("u"))
    );
    assert_eq!(
        broker.refused(|broker| broker.begin_for(&consume_effect("t", "h", "k"), &first)),
        Refusal::UnknownGroup(group("h"))
    );
    let far = Delivery { partition: PartitionId(9), ..first.clone() };
    assert!(matches!(broker.refused(|broker| broker.begin_for(&k(), &far)), Refusal::PartitionOutOfRange { .. }));
    let never = Delivery { offset: Offset(9), ..first };
    assert_eq!(broker.refused(|broker| broker.begin_for(&k(), &never)), Refusal::StaleLease);
}

#[test]
fn begin_for_message_of_another_tenant_is_refused() {
    let mut broker = broker();
    let mut request = identified("t", "v", "k");
    request.envelope.tenant_id = Some("acme".into());
    broker.try_produce(request).unwrap();
    let first = broker.expect_delivery();
    let refusal = broker.refused(|broker| broker.begin_for(&k(), &first));
    assert_eq!(refusal, Refusal::Invalid("the delivered message is of another tenant"));
    granted(broker.begin_for(&Identity::new("acme", k().scope, "k"), &first));
}

#[test]
fn begin_for_stale_delivery_replays_outcome() {
    let mut broker = broker();
    let first = delivered(&mut broker, "v");
    let token = granted(broker.begin_for(&k(), &first));
    broker.finish(&k(), token, success("1")).unwrap();
    nack(&mut broker, &first);
    assert_eq!(broker.begin_for(&k(), &first), Ok(replay(success("1"))));
}

/// Ends a delivery so that its message is delivered again.
type Return = fn(&mut TestBroker, &Delivery);

#[test]
fn effect_is_kept_while_its_message_can_be_redelivered() {
    let returns: [(bool, Return); 4] = [
        (true, |_, _| {}),
        (false, |broker, delivery| nack(broker, delivery)),
        (false, |broker, delivery| broker.release(claim("t", "g", "w", delivery)).unwrap()),
        (false, |broker, _| broker.advance(2_000)),
    ];
    for restart in RESTARTS {
        for (by_delivery, give_back) in returns {
            let mut broker = broker();
            let first = delivered(&mut broker, "v");
            let token = granted(if by_delivery { broker.begin_for(&k(), &first) } else { broker.begin(&k()) });
            broker.finish(&k(), token, success("1")).unwrap();
            broker.pause("t", "g");
            give_back(&mut broker, &first);
            broker.restart_after(restart, 3 * DAY);
            assert_eq!(broker.begin(&k()), Ok(replay(success("1"))), "kept long after its window");
            broker.resume("t", "g");
            subscribe_worker(&mut broker);
            let again = broker.expect_delivery();
            assert_eq!(broker.begin_for(&k(), &again), Ok(replay(success("1"))));
            ack(&mut broker, &again);
            broker.advance(1);
            assert_eq!((broker.status(&k()), broker.effect_count("default")), (None, 0), "until its message is acked");
        }
    }
}

#[test]
fn effect_granted_again_for_a_delivery_is_kept_while_its_message_is_leased() {
    for restart in RESTARTS {
        let mut broker = broker();
        granted(broker.begin_with(&k(), |request| request.lease = Some(Millis(100))));
        broker.advance(100);
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_with(&k(), |request| {
            let token = TokenClaim::Shown(first.token);
            request.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
            request.lifetime = Some(Lifetime::Window(Millis(10)));
        }));
        assert_eq!(broker.effect(&k()).unwrap().attempt, 2);
        broker.finish(&k(), token, success("1")).unwrap();
        broker.restart_after(restart, 1_000);
        broker.advance(1);
        assert_eq!(broker.begin(&k()), Ok(replay(success("1"))), "its message is not acked");
        assert_eq!(broker.effect_count("default"), 1);
        ack(&mut broker, &first);
        broker.advance(1);
        assert_eq!((broker.status(&k()), broker.effect_count("default")), (None, 0), "until its message is acked");
    }
}

#[test]
fn effect_of_acked_message_expires_with_its_window() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_for(&k(), &first));
        broker.finish(&k(), token, success("1")).unwrap();
        broker.advance(1_000);
        ack(&mut broker, &first);
        broker.restart_after(restart, DAY - 1_001);
        assert_eq!(broker.status(&k()), Some(EffectStatus::Succeeded));
        broker.advance(1);
        assert_eq!((broker.status(&k()), broker.effect_count("default")), (None, 0));
        assert_eq!(broker.next_timeout(), None);
    }
}

/// Two messages of one identity may be pending at once. The effect stays pinned by the first.
#[test]
fn pin_of_first_message_survives_death_of_second() {
    for restart in RESTARTS {
        let mut broker = broker();
        broker.try_produce(identified("t", "first", "k")).unwrap();
        let first = broker.expect_delivery();
        let token = granted(broker.begin_for(&k(), &first));
        broker.finish(&k(), token, success("1")).unwrap();
        broker.nack_with_delay(claim("t", "g", "w", &first), 4 * DAY).unwrap();
        broker.advance(1);
        let mut failing = identified("t", "second", "k");
        failing.envelope.retry_policy = Some(policy(2, 0, 0));
        broker.try_produce(failing).unwrap();
        let second = broker.expect_delivery();
        nack(&mut broker, &second);
        let second = broker.expect_delivery();
        broker.pause("t", "g");
        nack(&mut broker, &second);
        assert_eq!(broker.dead_letters("t").len(), 1, "the second message is dead-lettered");
        broker.restart_after(restart, 3 * DAY);
        assert_eq!(broker.begin(&k()), Ok(replay(success("1"))), "the first message can still be delivered");
    }
}

#[test]
fn unpinned_effect_past_its_window_is_dropped_at_once() {
    let mut broker = broker();
    let mut request = identified("t", "v", "k");
    request.envelope.retry_policy = Some(policy(1, 0, 0));
    broker.try_produce(request).unwrap();
    let first = broker.expect_delivery();
    let token = granted(broker.begin_with(&k(), |request| {
        let token = TokenClaim::Shown(first.token);
        request.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
        request.lifetime = Some(Lifetime::Window(Millis(10)));
    }));
    broker.finish(&k(), token, success("1")).unwrap();
    broker.advance(1_000);
    assert_eq!(broker.effect_count("default"), 1, "its window is over, its message is not acked");
    let look_at = broker.effect(&k()).and_then(|effect| effect.pin).map(|pin| pin.look_at);
    assert_eq!(look_at, Some(START.after(Millis(10 + 600_000))), "it is looked at again in ten minutes");
    nack(&mut broker, &first);
    assert_eq!(broker.dead_letters("t").len(), 1);
    broker.advance(1);
    assert_eq!(broker.effect_count("default"), 0);
}

#[test]
fn ack_commits_effect_never_begun() {
    for restart in RESTARTS {
        let mut broker = deduplicating_broker();
        let first = delivered(&mut broker, "v");
        broker.advance(1_000);
        ack(&mut broker, &first);
        broker.restart(restart);
        let known = broker.effect(&k()).unwrap();
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, false));
        assert_eq!((known.attempt, known.token, known.owner), (0, None, None));
        let succeeded = driftq_core::types::Outcome { result: None, ..success("") };
        assert_eq!(broker.begin(&k()), Ok(replay(succeeded)));
        broker.advance(DEDUPE_TTL - 1_001);
        assert_eq!(broker.status(&k()), Some(EffectStatus::Succeeded));
        broker.advance(1);
        assert_eq!(broker.status(&k()), None, "no longer than a produce of its key is a duplicate");
        broker.advance(1_000);
        assert_eq!(broker.next_timeout(), None);
    }
}

#[test]
fn ack_after_dedupe_window_leaves_no_effect() {
    for restart in RESTARTS {
        let mut broker = deduplicating_broker();
        let mut request = identified("t", "v", "k");
        request.delay = Some(Millis(DEDUPE_TTL));
        broker.try_produce(request).unwrap();
        broker.advance(DEDUPE_TTL);
        let first = broker.expect_delivery();
        ack(&mut broker, &first);
        broker.restart(restart);
        assert_eq!((broker.status(&k()), broker.effect_count("default")), (None, 0));
    }
}

#[test]
fn finish_after_ack_with_same_token_stores_result() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_for(&k(), &first));
        ack(&mut broker, &first);
        broker.restart(restart);
        assert_eq!(broker.status(&k()), Some(EffectStatus::Succeeded));
        let stale = LeaseToken { counter: token.counter + 1, ..token };
        assert_eq!(broker.refused(|broker| broker.finish(&k(), stale, success("1"))), Refusal::StaleLease);
        assert_eq!(broker.refused(|broker| broker.finish(&k(), token, final_failure("no"))), Refusal::OtherOutcome);
        broker.advance(1_000);
        broker.finish(&k(), token, success("1")).unwrap();
        assert_eq!(broker.refused(|broker| broker.finish(&k(), token, success("2"))), Refusal::OtherOutcome);
        broker.restart_after(restart, DAY - 1);
        assert_eq!(broker.begin(&k()), Ok(replay(success("1"))), "the window starts at the finish");
        broker.advance(1);
        assert_eq!(broker.status(&k()), None);
    }
}

#[test]
fn ack_after_retryable_failure_counts_as_success_without_result() {
    for restart in RESTARTS {
        let mut broker = deduplicating_broker();
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_for(&k(), &first));
        let failure = outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy");
        broker.finish(&k(), token, failure).unwrap();
        ack(&mut broker, &first);
        broker.restart(restart);
        let known = broker.effect(&k()).unwrap();
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, false));
        assert_eq!((known.result.clone(), known.last_error()), (None, ""));
        assert_eq!(known.expires_at, START.after(Millis(DEDUPE_TTL)));
        broker.finish(&k(), token, success("1")).unwrap();
        assert_eq!(broker.begin(&k()), Ok(replay(success("1"))));
    }
}

#[test]
fn ack_after_final_outcome_keeps_outcome() {
    for end in [success("1"), final_failure("no")] {
        let mut broker = broker();
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_for(&k(), &first));
        broker.finish(&k(), token, end.clone()).unwrap();
        let before = broker.effect(&k()).unwrap();
        broker.advance(5);
        ack(&mut broker, &first);
        let found = broker.found_effect(&k()).unwrap();
        let after = &found.effect;
        assert_eq!((found.outcome(), after.expires_at), (end, before.expires_at));
        assert!(after.committed && after.finished);
        assert!(broker.try_produce(identified("t", "again", "k")).unwrap().already_done);
        assert_eq!(broker.delivered_values(), [""; 0], "later messages of the identity are skipped");
    }
}

#[test]
fn ack_beyond_quota_commits_and_begin_is_refused() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.effects_max = 1);
        broker.topic("t", 1);
        subscribe_worker(&mut broker);
        for key in ["a", "b", "c"] {
            broker.try_produce(identified("t", key, key)).unwrap();
            let delivery = broker.expect_delivery();
            ack(&mut broker, &delivery);
        }
        broker.restart(restart);
        assert_eq!(broker.effect_count("default"), 3);
        assert_eq!(broker.refused(|broker| broker.begin(&effect("d"))), overloaded(Overload::Effects));
        broker.advance(DEDUPE_TTL);
        granted(broker.begin(&effect("d")));
    }
}

#[test]
fn message_without_key_commits_nothing() {
    let mut broker = broker();
    broker.produce("t", "plain");
    let plain = broker.expect_delivery();
    ack(&mut broker, &plain);
    broker.try_produce(identified("t", "empty", "")).unwrap();
    let empty = broker.expect_delivery();
    ack(&mut broker, &empty);
    assert_eq!(broker.effect_count("default"), 0);
}

#[test]
fn effects_begun_before_group_exists_belong_to_it() {
    let mut broker = broker();
    let early = Identity::new("", Scope::Consume { topic: topic("later"), group: group("g") }, "k");
    granted(broker.begin(&early));
    broker.topic("later", 1);
    broker.subscribe("later", "g", "w");
    broker.try_produce(identified("later", "v", "k")).unwrap();
    let delivery = broker.expect_delivery();
    assert_eq!(broker.begin_for(&early, &delivery).map(|_| ()), Ok(()), "the delivery is newer than the grant");
    broker.delete_topic("later");
    assert_eq!(broker.effect_count("default"), 0);
}
