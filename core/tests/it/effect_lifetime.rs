//! How long effects are kept: windows per scope, explicit lifetimes, expiry in bounded calls, and the tenant quota.

use super::consume_effects::{DEDUPE_TTL, ack, deduplicating_broker, delivered, k};
use super::effects::{DAY, LEASE, with_quota};
use super::test_broker::*;
use driftq_core::command::{Begin, DeliveryClaim, Lookup, StoreCommand, TokenClaim};
use driftq_core::faults::NoFaults;
use driftq_core::record::{Event, Record};
use driftq_core::reply::Overload;
use driftq_core::types::{EffectStatus, Identity, Lifetime, Scope, *};
use driftq_core::{Command, Refusal};

#[test]
fn effect_window_depends_on_scope_and_ends_exactly() {
    let windows =
        [(effect("k"), DAY), (rpc_effect("k"), DAY), (job_effect("j", "k"), 7 * DAY), (task_effect("t", "k"), 7 * DAY)];
    for restart in RESTARTS {
        for (identity, window) in windows.clone().into_iter().chain([(consume_effect("t", "g", "k"), DAY)]) {
            for end in [success("1"), final_failure("no"), retryable_failure("no")] {
                let mut broker = TestBroker::new();
                let token = granted(broker.begin_with(&identity, |request| request.lease = Some(Millis(60_000))));
                broker.advance(10_000);
                broker.finish(&identity, token, end.clone()).unwrap();
                broker.advance(window / 2);
                // Reads and repeated calls do not extend the window.
                broker.effect(&identity).unwrap();
                broker.finish(&identity, token, end.clone()).unwrap();
                if end.status.is_final() {
                    assert_eq!(broker.begin(&identity), Ok(replay(end.clone())));
                }
                broker.restart_after(restart, window / 2 - 1);
                assert_eq!(broker.status(&identity), Some(end.status), "{identity:?}");
                broker.advance(1);
                assert_eq!((broker.status(&identity), broker.effect_count("default")), (None, 0));
                assert_eq!(broker.next_timeout(), None, "no timer is left");
                granted(broker.begin(&identity));
            }
        }
    }
}

#[test]
fn begin_with_window_sets_effect_lifetime() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let window = Lifetime::Window(Millis(5_000));
        let token = granted(broker.begin_with(&effect("k"), |request| request.lifetime = Some(window)));
        broker.advance(1_000);
        broker.finish(&effect("k"), token, success("1")).unwrap();
        broker.restart_after(restart, 4_999);
        assert_eq!(broker.status(&effect("k")), Some(EffectStatus::Succeeded));
        broker.advance(1);
        assert_eq!(broker.status(&effect("k")), None);
    }
}

#[test]
fn begin_with_expiry_time_sets_effect_lifetime() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let expires_at = START.after(Millis(30_000));
        let until = Lifetime::Until(expires_at);
        let refused = broker.refused(|broker| {
            broker.begin_with(&rpc_effect("k"), |request| request.lifetime = Some(Lifetime::Until(START)))
        });
        assert_eq!(refused, Refusal::Invalid("expires_at has passed"));
        let token = granted(broker.begin_with(&rpc_effect("k"), |request| request.lifetime = Some(until)));
        granted(broker.begin_with(&rpc_effect("abandoned"), |request| request.lifetime = Some(until)));
        let long = granted(broker.begin_with(&rpc_effect("long"), |request| {
            (request.lifetime, request.lease) = (Some(until), Some(Millis(40_000)));
        }));
        broker.advance(1_000);
        broker.finish(&rpc_effect("k"), token, success("1")).unwrap();
        broker.restart_after(restart, 28_999);
        assert_eq!(broker.effect_count("default"), 3);
        broker.advance(1);
        assert_eq!((broker.status(&rpc_effect("k")), broker.status(&rpc_effect("abandoned"))), (None, None));
        assert_eq!(broker.status(&rpc_effect("long")), Some(EffectStatus::InProgress), "never during a running lease");
        broker.finish(&rpc_effect("long"), long, success("1")).unwrap();
        assert_eq!(broker.status(&rpc_effect("long")), None, "its expiry time has passed");
    }
}

#[test]
fn ack_at_the_end_of_its_window_keeps_an_effect_as_long_as_an_ack_alone() {
    for acked_after in [10, 11] {
        let mut broker = deduplicating_broker();
        let first = delivered(&mut broker, "v");
        let token = granted(broker.begin_with(&k(), |request| {
            let token = TokenClaim::Shown(first.token);
            request.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
            request.lifetime = Some(Lifetime::Window(Millis(10)));
        }));
        broker.finish(&k(), token, success("1")).unwrap();
        broker.advance(acked_after);
        ack(&mut broker, &first);
        broker.advance(DEDUPE_TTL - acked_after - 1);
        assert_eq!(broker.status(&k()), Some(EffectStatus::Succeeded), "acked after {acked_after} ms");
        broker.advance(1);
        assert_eq!(broker.status(&k()), None);
    }
}

#[test]
fn abandoned_effect_lasts_its_window_from_lease_end() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let token = granted(broker.begin(&effect("k")));
        broker.advance(1_000);
        broker.renew(&effect("k"), token, 10_000).unwrap();
        broker.restart_after(restart, 10_000 + DAY - 1);
        assert_eq!(broker.status(&effect("k")), Some(EffectStatus::InProgress));
        broker.advance(1);
        assert_eq!((broker.status(&effect("k")), broker.effect_count("default")), (None, 0));
        assert_eq!(broker.refused(|broker| broker.finish(&effect("k"), token, success("1"))), Refusal::UnknownEffect);
        assert_eq!(broker.next_timeout(), None);
    }
}

#[test]
fn shortened_lease_expires_on_time() {
    let mut broker = TestBroker::new();
    let token = granted(broker.begin_with(&effect("k"), |request| request.lease = Some(Millis(DAY))));
    broker.renew(&effect("k"), token, 1).unwrap();
    broker.advance(DAY + 1);
    assert_eq!(broker.effect_count("default"), 0);
}

#[test]
fn thousands_of_windows_ending_together_expire_together() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        for number in 0..3_000 {
            broker.begin(&effect(&number.to_string())).unwrap();
        }
        broker.advance(1);
        granted(broker.begin(&effect("later")));
        broker.restart_after(restart, DAY + LEASE - 2);
        assert_eq!(broker.effect_count("default"), 3_001);
        broker.advance(1);
        assert_eq!(broker.effect_count("default"), 1);
        broker.advance(1);
        assert_eq!((broker.effect_count("default"), broker.next_timeout()), (0, None));
    }
}

#[test]
fn expiry_of_many_effects_is_bounded_per_call() {
    let mut broker = TestBroker::new();
    for number in 0..5_000 {
        broker.begin(&effect(&number.to_string())).unwrap();
    }
    broker.now = broker.now.after(Millis(DAY + LEASE));
    let identity = effect("4999");
    let ticket = broker.submit(Command::Store(Box::new(StoreCommand::Lookup(Lookup { identity }))));
    let left = broker.effect_count("default");
    assert!((1..2_000).contains(&left), "{left} are left");
    assert_eq!(broker.next_timeout(), Some(broker.now));
    broker.run_until_idle();
    assert_eq!(
        broker.reply(ticket),
        Some(Err(Refusal::UnknownEffect)),
        "an effect past its window is unknown, swept or not"
    );
    assert_eq!(broker.effect_count("default"), 0);
}

#[test]
fn last_effect_of_group_drops_its_table() {
    let mut broker = TestBroker::with_topic(1);
    broker.group("t", "g");
    for key in ["a", "b"] {
        broker.begin(&consume_effect("t", "g", key)).unwrap();
    }
    for (key, left) in [("a", 1), ("b", 0)] {
        broker.forget(&consume_effect("t", "g", key)).unwrap();
        assert_eq!(
            (broker.effect_count("default"), broker.pipeline.state().store().tables().count() as u64),
            (left, left)
        );
    }
}

#[test]
fn tenant_at_quota_is_refused_new_effects_and_keeps_old_ones() {
    for restart in RESTARTS {
        let mut broker = with_quota(NoFaults);
        let tokens = ["a", "b", "c"].map(|key| granted(broker.begin(&effect(key))));
        broker.finish(&effect("a"), tokens[0], success("1")).unwrap();
        broker.restart(restart);
        assert_eq!(broker.refused(|broker| broker.begin(&effect("d"))), overloaded(Overload::Effects));
        assert_eq!(broker.refused(|broker| broker.begin(&job_effect("j", "a"))), overloaded(Overload::Effects));
        granted(broker.begin(&Identity::new("other", Scope::Tenant, "d")));
        assert_eq!(broker.begin(&effect("a")), Ok(replay(success("1"))), "stored effects stay usable");
        broker.advance(LEASE);
        granted(broker.begin(&effect("b")));
        broker.reacquire(&effect("c")).unwrap();
        broker.forget(&effect("c")).unwrap();
        granted(broker.begin(&effect("d")));
        assert_eq!(broker.effect_count("default"), 3);
    }
}

#[test]
fn quota_has_room_at_exact_end_of_window() {
    for restart in RESTARTS {
        let mut broker = with_quota(NoFaults);
        for key in ["a", "b", "c"] {
            let token = granted(broker.begin(&effect(key)));
            broker.finish(&effect(key), token, success("1")).unwrap();
        }
        broker.restart_after(restart, DAY - 1);
        assert_eq!(broker.refused(|broker| broker.begin(&effect("d"))), overloaded(Overload::Effects));
        broker.now = broker.now.after(Millis(1));
        granted(broker.begin(&effect("d")));
        assert_eq!(broker.effect_count("default"), 1);
    }
}

#[test]
fn effect_that_has_expired_but_is_not_swept_is_begun_anew() {
    let mut broker = super::recording_broker::RecordingBroker::new();
    let begin = StoreCommand::Begin(Begin::new(effect("k"), owner("w")));
    broker.send(Command::Store(Box::new(begin))).unwrap();
    let Some(Record { event: Event::EffectBegun(begun), .. }) = broker.records.0.last() else { panic!("not begun") };
    let mut state = broker.broker.state().clone();
    let mut again = begun.clone();
    again.token.counter += 1;
    let at = begun.until.after(Millis(DAY));
    state.apply(&Record { at, event: Event::EffectBegun(again.clone()) }).unwrap();
    let known = state.store().get(&effect("k")).unwrap();
    assert_eq!((known.attempt, known.token), (1, Some(again.token)));
}
