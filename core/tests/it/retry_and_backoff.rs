//! Retries: when a failed message comes again.

use super::rig::*;
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::reply::Blocked;
use driftq_core::types::*;

const DAY: u64 = 24 * 60 * 60 * 1_000;

/// Produces one message under `policy`, fails it `times` times as soon as it comes, and gives the waits in between.
fn waits<F: Faults>(mut rig: Rig<F>, policy: RetryPolicy, times: usize) -> Vec<u64> {
    rig.topic("t", 1);
    rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy));
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000 * DAY)));
    let mut delivery = rig.one();
    let mut waits = Vec::new();
    for _ in 0..times {
        let failed_at = rig.now;
        rig.nack(claim("t", "g", "w", &delivery), "again").unwrap();
        while rig.deliveries.is_empty() {
            let next = rig.next_moment().expect("a retry is due some time");
            rig.pass(next.since(rig.now).0);
        }
        waits.push(rig.now.since(failed_at).0);
        delivery = rig.one();
    }
    waits
}

#[test]
fn without_a_policy_a_nack_redelivers_at_once() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    for attempt in 1..=50 {
        let delivery = rig.one();
        assert_eq!(delivery.attempts, attempt);
        rig.nack(claim("t", "g", "w", &delivery), "again").unwrap();
    }
}

#[test]
fn the_wait_doubles_with_every_failure_up_to_the_cap_and_at_least_half_of_it_is_fixed() {
    let waits = waits(Rig::new(), policy(0, 1_000, 6_000), 6);
    for (wait, whole) in waits.iter().zip([1_000, 2_000, 4_000, 6_000, 6_000, 6_000]) {
        assert!((whole / 2..=whole).contains(wait), "{wait} after {whole}");
    }
}

#[test]
fn without_a_cap_the_wait_is_at_most_a_day() {
    let waits = waits(Rig::new(), policy(0, 20 * 60 * 60 * 1_000, 0), 3);
    assert!((DAY / 2..=DAY).contains(&waits[1]) && (DAY / 2..=DAY).contains(&waits[2]), "{waits:?}");
}

#[test]
fn a_policy_that_says_nothing_waits_for_nothing_and_never_gives_up() {
    assert_eq!(waits(Rig::new(), policy(0, 0, 0), 100), [0; 100]);
}

#[test]
fn a_backoff_ignored_would_be_caught() {
    assert!(waits(Rig::new(), policy(0, 1_000, 0), 1)[0] >= 500);
    let planted = Rig::with(small_config(), Planted(Fault::BackoffIgnored));
    assert_eq!(waits(planted, policy(0, 1_000, 0), 1), [0]);
}

#[test]
fn the_spread_is_the_same_on_every_run_and_differs_between_messages_and_attempts() {
    let once = waits(Rig::new(), policy(0, 1_000_000, 1_000_000), 5);
    assert_eq!(once, waits(Rig::new(), policy(0, 1_000_000, 1_000_000), 5));
    assert!(once.windows(2).all(|pair| pair[0] != pair[1]), "attempts differ: {once:?}");
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for _ in 0..20 {
        rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(0, 1_000_000, 0)));
    }
    rig.subscribe("t", "g", "w");
    rig.pass(2_000);
    rig.delivered();
    let mut moments = std::collections::BTreeSet::new();
    while let Some(next) = rig.next_moment().filter(|at| *at <= START.after(Millis(1_002_000))) {
        rig.pass(next.since(rig.now).0);
        moments.extend((!rig.delivered().is_empty()).then_some(rig.now));
    }
    assert!(moments.len() > 10, "twenty messages do not come back together: {moments:?}");
}

#[test]
fn a_retry_waits_after_an_expiry_as_after_a_nack_and_its_moment_survives_a_restart() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(0, 10_000, 0)));
        rig.subscribe("t", "g", "w");
        rig.delivered();
        rig.pass(2_000);
        assert_eq!(rig.delivered(), []);
        let moment = rig.next_moment().unwrap();
        let wait = moment.since(rig.now).0;
        assert!((5_000..=10_000).contains(&wait), "{wait}");
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.next_moment(), Some(moment));
        rig.pass(wait - 1);
        assert_eq!(rig.delivered(), []);
        rig.pass(1);
        let again = rig.one();
        assert_eq!((again.attempts, again.failures, again.last_error.as_str()), (2, 1, "ack_timeout"));
    }
}

#[test]
fn a_retry_due_while_the_broker_was_down_is_due_when_it_is_back() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.produce("t", "a");
        rig.subscribe("t", "g", "w");
        let delivery = rig.one();
        rig.nack_with_delay(claim("t", "g", "w", &delivery), 5_000).unwrap();
        rig.restart_after(way, 5_000);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.one().attempts, 2);
    }
}

#[test]
fn a_delay_given_with_the_nack_wins_over_the_policy() {
    for policy in [None, Some(policy(0, 60_000, 0))] {
        for delay in [0, 1, 777] {
            let mut rig = Rig::new();
            rig.topic("t", 1);
            rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = policy);
            rig.subscribe("t", "g", "w");
            let delivery = rig.one();
            rig.nack_with_delay(claim("t", "g", "w", &delivery), delay).unwrap();
            rig.pass(delay.saturating_sub(1));
            assert_eq!(rig.delivered().len(), usize::from(delay == 0), "{policy:?} {delay}");
            rig.pass(1);
            assert_eq!(rig.delivered().len(), usize::from(delay > 0), "{policy:?} {delay}");
        }
    }
}

#[test]
fn a_message_waiting_for_its_retry_holds_no_lease_and_is_not_in_flight() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.produce("t", "b");
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    let first = rig.one();
    rig.nack_with_delay(claim("t", "g", "w", &first), 1_000_000).unwrap();
    assert_eq!(rig.values(), ["b"], "neither the place in flight nor the stream's credit is taken");
    let progress = rig.progress("t", "g");
    assert_eq!((progress.in_flight, progress.waiting, progress.lag), (1, 1, 2));
}

#[test]
fn a_group_all_of_whose_messages_wait_for_their_retry_is_said_to_wait() {
    let mut rig = Rig::with_topic(1);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.nack_with_delay(claim("t", "g", "w", &delivery), 1_000).unwrap();
    assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::NotYetDue));
}

#[test]
fn the_wait_grows_with_failures_and_not_with_deliveries() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce_with("t", "a", |asked| asked.envelope.retry_policy = Some(policy(0, 1_000, 0)));
    rig.subscribe("t", "g", "w");
    for _ in 0..10 {
        let delivery = rig.one();
        rig.release(claim("t", "g", "w", &delivery)).unwrap();
    }
    let delivery = rig.one();
    assert_eq!(delivery.attempts, 11);
    rig.nack(claim("t", "g", "w", &delivery), "now it failed").unwrap();
    rig.pass(1_000);
    assert_eq!(rig.one().failures, 1);
}

#[test]
fn a_failing_message_does_not_hold_back_its_neighbours() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce_with("t", "bad", |asked| asked.envelope.retry_policy = Some(policy(0, 60_000, 0)));
    rig.subscribe("t", "g", "w");
    let bad = rig.one();
    rig.nack(claim("t", "g", "w", &bad), "no").unwrap();
    for value in ["x", "y"] {
        rig.produce("t", value);
    }
    assert_eq!(rig.values(), ["x", "y"]);
}
