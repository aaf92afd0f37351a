//! Retries: when a failed message is redelivered.

use super::test_broker::*;
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::reply::Blocked;
use driftq_core::types::*;

const DAY: u64 = 24 * 60 * 60 * 1_000;

/// Produces one message under `policy`, nacks it `times` times at once, and returns the backoff after each nack.
fn backoffs<F: Faults>(mut broker: TestBroker<F>, policy: RetryPolicy, times: usize) -> Vec<u64> {
    broker.topic("t", 1);
    broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy));
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000 * DAY)));
    let mut delivery = broker.expect_delivery();
    let mut backoffs = Vec::new();
    for _ in 0..times {
        let failed_at = broker.now;
        broker.nack(claim("t", "g", "w", &delivery), "again").unwrap();
        while broker.deliveries.is_empty() {
            let next = broker.next_timeout().expect("a retry is scheduled");
            broker.advance(next.since(broker.now).0);
        }
        backoffs.push(broker.now.since(failed_at).0);
        delivery = broker.expect_delivery();
    }
    backoffs
}

#[test]
fn nack_without_policy_redelivers_at_once() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    for attempt in 1..=50 {
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.attempts, attempt);
        broker.nack(claim("t", "g", "w", &delivery), "again").unwrap();
    }
}

#[test]
fn backoff_doubles_up_to_cap_with_at_most_half_jitter() {
    let backoffs = backoffs(TestBroker::new(), policy(0, 1_000, 6_000), 6);
    for (wait, whole) in backoffs.iter().zip([1_000, 2_000, 4_000, 6_000, 6_000, 6_000]) {
        assert!((whole / 2..=whole).contains(wait), "{wait} after {whole}");
    }
}

#[test]
fn backoff_without_cap_is_at_most_one_day() {
    let backoffs = backoffs(TestBroker::new(), policy(0, 20 * 60 * 60 * 1_000, 0), 3);
    assert!((DAY / 2..=DAY).contains(&backoffs[1]) && (DAY / 2..=DAY).contains(&backoffs[2]), "{backoffs:?}");
}

#[test]
fn empty_policy_retries_forever_without_backoff() {
    assert_eq!(backoffs(TestBroker::new(), policy(0, 0, 0), 100), [0; 100]);
}

#[test]
fn fault_backoff_ignored_is_detected() {
    assert!(backoffs(TestBroker::new(), policy(0, 1_000, 0), 1)[0] >= 500);
    let planted = TestBroker::with(small_config(), Planted(Fault::BackoffIgnored));
    assert_eq!(backoffs(planted, policy(0, 1_000, 0), 1), [0]);
}

#[test]
fn jitter_is_deterministic_and_differs_by_message_and_attempt() {
    let once = backoffs(TestBroker::new(), policy(0, 1_000_000, 1_000_000), 5);
    assert_eq!(once, backoffs(TestBroker::new(), policy(0, 1_000_000, 1_000_000), 5));
    assert!(once.windows(2).all(|pair| pair[0] != pair[1]), "backoff differs between attempts: {once:?}");
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for _ in 0..20 {
        broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(0, 1_000_000, 0)));
    }
    broker.subscribe("t", "g", "w");
    broker.advance(2_000);
    broker.delivered();
    let mut times = std::collections::BTreeSet::new();
    while let Some(next) = broker.next_timeout().filter(|at| *at <= START.after(Millis(1_002_000))) {
        broker.advance(next.since(broker.now).0);
        times.extend((!broker.delivered().is_empty()).then_some(broker.now));
    }
    assert!(times.len() > 10, "twenty messages are not redelivered together: {times:?}");
}

#[test]
fn retry_after_expiry_backs_off_and_survives_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(0, 10_000, 0)));
        broker.subscribe("t", "g", "w");
        broker.delivered();
        broker.advance(2_000);
        assert_eq!(broker.delivered(), []);
        let retry_at = broker.next_timeout().unwrap();
        let wait = retry_at.since(broker.now).0;
        assert!((5_000..=10_000).contains(&wait), "{wait}");
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.next_timeout(), Some(retry_at));
        broker.advance(wait - 1);
        assert_eq!(broker.delivered(), []);
        broker.advance(1);
        let again = broker.expect_delivery();
        assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 1, "ack_timeout"));
    }
}

#[test]
fn retry_due_during_downtime_is_due_after_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        broker.nack_with_delay(claim("t", "g", "w", &delivery), 5_000).unwrap();
        broker.restart_after(restart, 5_000);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.expect_delivery().attempts, 2);
    }
}

#[test]
fn nack_delay_beats_policy() {
    for policy in [None, Some(policy(0, 60_000, 0))] {
        for delay in [0, 1, 777] {
            let mut broker = TestBroker::new();
            broker.topic("t", 1);
            broker.produce_with("t", "a", |request| request.envelope.retry_policy = policy);
            broker.subscribe("t", "g", "w");
            let delivery = broker.expect_delivery();
            broker.nack_with_delay(claim("t", "g", "w", &delivery), delay).unwrap();
            broker.advance(delay.saturating_sub(1));
            assert_eq!(broker.delivered().len(), usize::from(delay == 0), "{policy:?} {delay}");
            broker.advance(1);
            assert_eq!(broker.delivered().len(), usize::from(delay > 0), "{policy:?} {delay}");
        }
    }
}

#[test]
fn message_awaiting_retry_holds_no_lease_and_no_slot() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    broker.produce("t", "a");
    broker.produce("t", "b");
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    let first = broker.expect_delivery();
    broker.nack_with_delay(claim("t", "g", "w", &first), 1_000_000).unwrap();
    assert_eq!(broker.delivered_values(), ["b"], "a pending retry takes no in-flight slot and no credit");
    let progress = broker.progress("t", "g");
    assert_eq!((progress.in_flight, progress.waiting, progress.lag), (1, 1, 2));
}

#[test]
fn group_with_only_pending_retries_is_reported_not_yet_due() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.nack_with_delay(claim("t", "g", "w", &delivery), 1_000).unwrap();
    assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::NotYetDue));
}

#[test]
fn backoff_grows_with_failures_not_deliveries() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce_with("t", "a", |request| request.envelope.retry_policy = Some(policy(0, 1_000, 0)));
    broker.subscribe("t", "g", "w");
    for _ in 0..10 {
        let delivery = broker.expect_delivery();
        broker.release(claim("t", "g", "w", &delivery)).unwrap();
    }
    let delivery = broker.expect_delivery();
    assert_eq!(delivery.attempts, 11);
    broker.nack(claim("t", "g", "w", &delivery), "failed").unwrap();
    broker.advance(1_000);
    assert_eq!(broker.expect_delivery().failures, 1);
}

#[test]
fn failing_message_does_not_block_others() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce_with("t", "bad", |request| request.envelope.retry_policy = Some(policy(0, 60_000, 0)));
    broker.subscribe("t", "g", "w");
    let bad = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &bad), "no").unwrap();
    for value in ["x", "y"] {
        broker.produce("t", value);
    }
    assert_eq!(broker.delivered_values(), ["x", "y"]);
}
