//! The idempotency store: who may run an effect, what its ending means, and how long that is remembered.

use super::rig::*;
use driftq_core::command::{DeliveryClaim, OnExpired, StoreCommand, TokenClaim};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::idempotency::{EffectStatus, Identity, Lifetime, Outcome, Scope};
use driftq_core::reply::{Overload, StoreReply};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

const LEASE: u64 = 2_000;
const DAY: u64 = 24 * 60 * 60 * 1_000;

fn job(id: &str, key: &str) -> Identity {
    Identity::new("", Scope::Job { id: id.into() }, key)
}

fn task(id: &str, key: &str) -> Identity {
    Identity::new("", Scope::Task { id: id.into() }, key)
}

fn rpc(principal: &str, method: &str, key: &str) -> Identity {
    Identity::new("", Scope::Rpc { principal: principal.into(), method: method.into() }, key)
}

/// An effect in each state there is, by the name of the state: in progress, run out of its lease, and the three endings.
fn in_every_state(rig: &mut Rig) -> [(Identity, LeaseToken); 5] {
    let [late, leased, done, dead, failed] = ["late", "leased", "done", "dead", "failed"].map(effect);
    let late_token = granted(rig.begin(&late));
    rig.pass(LEASE);
    let mut begun = |identity: &Identity| granted(rig.begin_with(identity, |asked| asked.lease = Some(Millis(9_000))));
    let tokens = [begun(&leased), begun(&done), begun(&dead), begun(&failed)];
    rig.finish(&done, tokens[1], success("1")).unwrap();
    rig.finish(&dead, tokens[2], final_failure("never")).unwrap();
    rig.finish(&failed, tokens[3], retryable_failure("not now")).unwrap();
    [(late, late_token), (leased, tokens[0]), (done, tokens[1]), (dead, tokens[2]), (failed, tokens[3])]
}

#[test]
fn an_effect_nobody_knows_is_granted() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let reply = rig.begin_with(&effect("k"), |asked| asked.lease = Some(Millis(500))).unwrap();
        let StoreReply::Execute { attempt: 1, token, lease_until, idempotent: true } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(lease_until, START.after(Millis(500)));
        rig.restart(way);
        let known = rig.effect(&effect("k")).unwrap();
        assert_eq!((known.status, known.attempt, known.token), (EffectStatus::InProgress, 1, Some(token)));
        assert_eq!((known.owner, known.lease_until), (Some(owner("w")), lease_until));
    }
}

#[test]
fn a_lease_of_no_length_or_none_is_the_default_one() {
    let mut rig = Rig::new();
    for (key, lease) in [("a", None), ("b", Some(Millis(0)))] {
        rig.begin_with(&effect(key), |asked| asked.lease = lease).unwrap();
        assert_eq!(rig.effect(&effect(key)).unwrap().lease_until, START.after(Millis(LEASE)));
    }
}

#[test]
fn no_tenant_is_the_default_tenant_and_tenants_do_not_share_effects() {
    let mut rig = Rig::new();
    let of = |tenant: &str| Identity::new(tenant, Scope::Tenant, "k");
    granted(rig.begin(&of("")));
    assert!(matches!(rig.begin(&of("default")), Err(Refusal::InProgress { .. })));
    granted(rig.begin(&of("other")));
    assert_eq!((rig.effects_of("default"), rig.effects_of("other"), rig.effects_of("none")), (1, 1, 0));
}

#[test]
fn no_two_scopes_share_an_effect_whatever_their_texts_are() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let mut identities = vec![effect("k"), effect("tenantk"), job("a", "k"), job("ak", "k"), job("a", "kk")];
        identities.extend([task("a", "k"), rpc("a", "b", "k"), rpc("ab", "k", "k"), rpc("a", "bk", "k")]);
        identities.extend([work("t", "g", "k"), work("t", "h", "k"), work("u", "g", "k"), work("tg", "h", "k")]);
        identities.extend([Identity::new("a", Scope::Tenant, "bk"), Identity::new("ab", Scope::Tenant, "k")]);
        for (number, identity) in identities.iter().enumerate() {
            let token = granted(rig.begin(identity));
            rig.finish(identity, token, success(&number.to_string())).unwrap();
        }
        rig.restart(way);
        for (number, identity) in identities.iter().enumerate() {
            assert_eq!(rig.begin(identity), Ok(StoreReply::Replay(success(&number.to_string()))), "{identity:?}");
        }
    }
}

#[test]
fn an_empty_key_means_run_it_each_time_and_nothing_is_stored() {
    let mut rig = Rig::with_topic(1);
    let digest = rig.digest();
    for identity in [effect(""), job("a", ""), rpc("a", "b", ""), work("t", "g", "")] {
        for _ in 0..2 {
            let reply = rig.begin(&identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 1, idempotent: false, .. }), "{reply:?}");
        }
    }
    assert_eq!((rig.digest(), rig.effects_of("default")), (digest, 0));
}

#[test]
fn a_running_lease_is_in_progress_and_says_how_long_it_runs_at_most() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        granted(rig.begin(&effect("k")));
        rig.pass(500);
        rig.restart(way);
        let retry_after = Millis(LEASE - 500);
        assert_eq!(rig.refused(|rig| rig.begin(&effect("k"))), Refusal::InProgress { retry_after });
        rig.pass(LEASE - 501);
        assert_eq!(rig.refused(|rig| rig.begin(&effect("k"))), Refusal::InProgress { retry_after: Millis(1) });
        rig.pass(1);
        granted(rig.begin(&effect("k")));
        assert_eq!(rig.pipeline.broker().counters().in_progress, 2);
    }
}

#[test]
fn a_lease_that_has_ended_is_taken_over_with_a_new_token_and_attempt() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let old = granted(rig.begin(&effect("k")));
        rig.restart_after(way, LEASE);
        let reply = rig.begin(&effect("k")).unwrap();
        let StoreReply::Execute { attempt: 2, token, .. } = reply else { panic!("{reply:?}") };
        assert!(token > old, "string order is age");
        assert_eq!(rig.refused(|rig| rig.finish(&effect("k"), old, success("1"))), Refusal::StaleLease);
        assert_eq!(rig.refused(|rig| rig.renew(&effect("k"), old, 1)), Refusal::StaleLease);
        rig.finish(&effect("k"), token, success("2")).unwrap();
        assert_eq!(rig.begin(&effect("k")), Ok(StoreReply::Replay(success("2"))));
    }
}

#[test]
fn an_ended_lease_is_only_reported_where_that_is_asked_for_as_it_is_for_calls() {
    let mut rig = Rig::new();
    granted(rig.begin(&effect("k")));
    granted(rig.begin(&call("k")));
    rig.pass(LEASE);
    let digest = rig.digest();
    let expired =
        StoreReply::Retryable { attempt: 1, status: EffectStatus::InProgress, last_error: "lease_expired".into() };
    assert_eq!(rig.begin(&call("k")), Ok(expired.clone()));
    let report = rig.begin_with(&effect("k"), |asked| asked.on_expired = Some(OnExpired::Report));
    assert_eq!((report, rig.digest()), (Ok(expired), digest));
    granted(rig.begin_with(&call("k"), |asked| asked.on_expired = Some(OnExpired::TakeOver)));
    granted(rig.begin(&effect("k")));
}

#[test]
fn an_effect_that_has_ended_for_good_is_replayed_with_all_that_was_stored() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let succeeded = Outcome { response_code: -7, ..success("{\"a\":[1]}") };
        let failed = Outcome { response_code: 404, ..outcome(EffectStatus::FailedFinal, Some("null"), "no such") };
        for (key, outcome) in [("s", &succeeded), ("f", &failed)] {
            let token = granted(rig.begin(&effect(key)));
            rig.finish(&effect(key), token, outcome.clone()).unwrap();
        }
        rig.restart(way);
        let digest = rig.digest();
        for (key, outcome) in [("s", succeeded), ("f", failed)] {
            assert_eq!(rig.begin(&effect(key)), Ok(StoreReply::Replay(outcome)));
        }
        assert_eq!(rig.digest(), digest, "an answer changes nothing");
    }
}

#[test]
fn a_retryable_failure_is_granted_again_but_for_calls_which_reacquire() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        for identity in [effect("k"), job("j", "k"), task("t", "k"), work("t", "g", "k"), call("k")] {
            let token = granted(rig.begin(&identity));
            rig.finish(&identity, token, retryable_failure("not now")).unwrap();
        }
        rig.restart(way);
        for identity in [effect("k"), job("j", "k"), task("t", "k"), work("t", "g", "k")] {
            let reply = rig.begin(&identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 2, .. }), "{reply:?}");
        }
        let (attempt, status) = (1, EffectStatus::FailedRetryable);
        let retryable = StoreReply::Retryable { attempt, status, last_error: "not now".into() };
        assert_eq!(rig.begin(&call("k")), Ok(retryable));
        let reply = rig.reacquire(&call("k")).unwrap();
        assert!(matches!(reply, StoreReply::Execute { attempt: 2, .. }), "{reply:?}");
        assert_eq!(rig.effect(&call("k")).unwrap().owner, Some(owner("other")));
    }
}

#[test]
fn a_grant_after_a_failure_leaves_nothing_of_the_failure_to_be_replayed() {
    let mut rig = Rig::new();
    let token = granted(rig.begin(&effect("k")));
    let failure = Outcome { response_code: 503, ..outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy") };
    rig.finish(&effect("k"), token, failure).unwrap();
    let token = granted(rig.begin(&effect("k")));
    assert_eq!(rig.effect(&effect("k")).unwrap().result, None);
    rig.finish(&effect("k"), token, success("1")).unwrap();
    assert_eq!(rig.begin(&effect("k")), Ok(StoreReply::Replay(success("1"))));
}

#[test]
fn finish_compares_the_token_and_nothing_else() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let token = granted(rig.begin(&effect("k")));
        let other = granted(rig.begin(&effect("other")));
        rig.restart_after(way, LEASE + 1);
        for shown in [TokenClaim::Absent, TokenClaim::Unreadable, TokenClaim::Shown(other)] {
            let refusal = rig.refused(|rig| rig.finish_by(&effect("k"), shown, success("1")));
            assert_eq!(refusal, Refusal::StaleLease, "{shown:?}");
        }
        rig.finish(&effect("k"), token, success("1")).expect("nobody has taken the ended lease over");
        let digest = rig.digest();
        rig.finish(&effect("k"), token, success("1")).expect("said again");
        assert_eq!(rig.digest(), digest);
        for other in
            [success("2"), final_failure(""), retryable_failure(""), Outcome { response_code: 1, ..success("1") }]
        {
            assert_eq!(rig.refused(|rig| rig.finish(&effect("k"), token, other)), Refusal::OtherOutcome);
        }
        assert_eq!(rig.refused(|rig| rig.finish(&effect("none"), token, success("1"))), Refusal::UnknownEffect);
        let open = outcome(EffectStatus::InProgress, None, "");
        assert!(matches!(rig.refused(|rig| rig.finish(&effect("k"), token, open)), Refusal::Invalid(_)));
    }
}

#[test]
fn a_failure_said_again_is_taken_and_another_word_after_it_is_not() {
    let mut rig = Rig::new();
    for failure in [final_failure("no"), retryable_failure("no")] {
        let identity = effect(failure.status.as_str());
        let token = granted(rig.begin(&identity));
        rig.finish(&identity, token, failure.clone()).unwrap();
        rig.finish(&identity, token, failure).unwrap();
        assert_eq!(rig.refused(|rig| rig.finish(&identity, token, success("1"))), Refusal::OtherOutcome);
    }
}

#[test]
fn reacquire_is_for_what_has_failed_or_run_out_of_its_lease() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let [late, leased, done, dead, failed] = in_every_state(&mut rig);
        rig.restart(way);
        for (identity, status) in [
            (&leased.0, EffectStatus::InProgress),
            (&done.0, EffectStatus::Succeeded),
            (&dead.0, EffectStatus::FailedFinal),
        ] {
            assert_eq!(rig.refused(|rig| rig.reacquire(identity)), Refusal::NotRetryable { status });
        }
        assert_eq!(rig.refused(|rig| rig.reacquire(&effect("none"))), Refusal::UnknownEffect);
        for (identity, old) in [late, failed] {
            let reply = rig.reacquire(&identity).unwrap();
            let StoreReply::Execute { attempt: 2, token, lease_until, idempotent: true } = reply else {
                panic!("{reply:?}")
            };
            assert!(token > old);
            assert_eq!(lease_until, rig.now.after(Millis(LEASE)));
            assert_eq!(rig.refused(|rig| rig.finish(&identity, old, success("1"))), Refusal::StaleLease);
            rig.finish(&identity, token, success("1")).unwrap();
        }
    }
}

#[test]
fn renew_makes_a_running_lease_longer_or_shorter_and_no_other() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let [late, leased, done, dead, failed] = in_every_state(&mut rig);
        rig.restart(way);
        for (identity, token) in [late, done, dead, failed, (effect("none"), leased.1)] {
            assert_eq!(rig.refused(|rig| rig.renew(&identity, token, 1)), Refusal::StaleLease);
        }
        let (identity, token) = leased;
        let other = LeaseToken { counter: token.counter + 1, ..token };
        assert_eq!(rig.refused(|rig| rig.renew(&identity, other, 1)), Refusal::StaleLease);
        for lease in [60_000, 300] {
            let lease_until = rig.now.after(Millis(lease));
            assert_eq!(rig.renew(&identity, token, lease), Ok(StoreReply::Renewed { lease_until }));
            let retry_after = Millis(lease);
            assert_eq!(rig.refused(|rig| rig.begin(&identity)), Refusal::InProgress { retry_after });
        }
        rig.pass(300);
        granted(rig.begin(&identity));
    }
}

#[test]
fn what_is_known_is_told_in_every_state_before_and_after_a_restart() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let effects = in_every_state(&mut rig);
        let told = |rig: &mut Rig| effects.clone().map(|(identity, _)| rig.effect(&identity).unwrap());
        let before = told(&mut rig);
        rig.restart(way);
        assert_eq!(told(&mut rig), before);
        let statuses = before.map(|effect| effect.status.as_v1());
        assert_eq!(statuses, ["PENDING", "PENDING", "COMMITTED", "FAILED", "FAILED"]);
        assert_eq!(rig.effect(&effect("none")), None);
    }
}

#[test]
fn what_is_forgotten_may_be_run_anew_in_every_state() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let effects = in_every_state(&mut rig);
        for (identity, token) in &effects {
            rig.forget(identity).unwrap();
            assert_eq!(rig.refused(|rig| rig.forget(identity)), Refusal::UnknownEffect);
            assert_eq!(rig.refused(|rig| rig.finish(identity, *token, success("1"))), Refusal::UnknownEffect);
        }
        rig.restart(way);
        assert_eq!(rig.effects_of("default"), 0);
        for (identity, _) in &effects {
            let reply = rig.begin(identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 1, .. }), "{reply:?}");
        }
    }
}

#[test]
fn another_request_under_the_same_key_is_refused_in_every_state() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let states: [fn(&mut Rig, &Identity, LeaseToken); 5] = [
            |_, _, _| {},
            |rig, _, _| rig.pass(LEASE),
            |rig, identity, token| rig.finish(identity, token, success("1")).unwrap(),
            |rig, identity, token| rig.finish(identity, token, final_failure("")).unwrap(),
            |rig, identity, token| rig.finish(identity, token, retryable_failure("")).unwrap(),
        ];
        for (number, state) in states.into_iter().enumerate() {
            for identity in [effect(&number.to_string()), call(&number.to_string())] {
                let token = granted(rig.begin_with(&identity, |asked| asked.request_hash = Some("first".into())));
                state(&mut rig, &identity, token);
                rig.restart(way);
                let other =
                    |rig: &mut Rig| rig.begin_with(&identity, |asked| asked.request_hash = Some("other".into()));
                assert_eq!(rig.refused(other), Refusal::HashMismatch, "{number}");
                // The first request's hash stays the one that counts, whoever is granted the effect later.
                let same = |rig: &mut Rig| rig.begin_with(&identity, |asked| asked.request_hash = Some("first".into()));
                assert_ne!(same(&mut rig).err(), Some(Refusal::HashMismatch));
                assert_eq!(rig.refused(other), Refusal::HashMismatch, "{number}");
                assert_ne!(
                    rig.begin(&identity).err(),
                    Some(Refusal::HashMismatch),
                    "where none is said, none is compared"
                );
                assert_eq!(rig.effect(&identity).unwrap().request_hash(), Some("first"));
            }
        }
    }
}

#[test]
fn a_hash_that_the_first_request_did_not_have_is_never_compared_nor_stored() {
    let mut rig = Rig::new();
    granted(rig.begin(&effect("k")));
    for hash in ["one", "other"] {
        rig.pass(LEASE);
        granted(rig.begin_with(&effect("k"), |asked| asked.request_hash = Some(hash.into())));
        assert_eq!(rig.effect(&effect("k")).unwrap().request_hash(), None);
    }
}

#[test]
fn the_window_is_the_scopes_own_and_ends_to_the_millisecond() {
    let windows = [(effect("k"), DAY), (call("k"), DAY), (job("j", "k"), 7 * DAY), (task("t", "k"), 7 * DAY)];
    for way in RESTARTS {
        for (identity, window) in windows.clone().into_iter().chain([(work("t", "g", "k"), DAY)]) {
            for end in [success("1"), final_failure("no"), retryable_failure("no")] {
                let mut rig = Rig::new();
                let token = granted(rig.begin_with(&identity, |asked| asked.lease = Some(Millis(60_000))));
                rig.pass(10_000);
                rig.finish(&identity, token, end.clone()).unwrap();
                rig.pass(window / 2);
                // None of this makes it longer.
                rig.effect(&identity).unwrap();
                rig.finish(&identity, token, end.clone()).unwrap();
                if end.status.is_final() {
                    assert_eq!(rig.begin(&identity), Ok(StoreReply::Replay(end.clone())));
                }
                rig.restart_after(way, window / 2 - 1);
                assert_eq!(rig.status(&identity), Some(end.status), "{identity:?}");
                rig.pass(1);
                assert_eq!((rig.status(&identity), rig.effects_of("default")), (None, 0));
                assert_eq!(rig.next_moment(), None, "and nobody need look again");
                granted(rig.begin(&identity));
            }
        }
    }
}

#[test]
fn whoever_begins_may_say_how_long_the_end_is_remembered() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let window = Lifetime::Window(Millis(5_000));
        let token = granted(rig.begin_with(&effect("k"), |asked| asked.lifetime = Some(window)));
        rig.pass(1_000);
        rig.finish(&effect("k"), token, success("1")).unwrap();
        rig.restart_after(way, 4_999);
        assert_eq!(rig.status(&effect("k")), Some(EffectStatus::Succeeded));
        rig.pass(1);
        assert_eq!(rig.status(&effect("k")), None);
    }
}

#[test]
fn a_moment_may_be_named_until_which_it_is_remembered() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let moment = START.after(Millis(30_000));
        let until = Lifetime::Until(moment);
        let refused =
            rig.refused(|rig| rig.begin_with(&call("k"), |asked| asked.lifetime = Some(Lifetime::Until(START))));
        assert_eq!(refused, Refusal::Invalid("expires_at has passed"));
        let token = granted(rig.begin_with(&call("k"), |asked| asked.lifetime = Some(until)));
        granted(rig.begin_with(&call("abandoned"), |asked| asked.lifetime = Some(until)));
        let long = granted(rig.begin_with(&call("long"), |asked| {
            (asked.lifetime, asked.lease) = (Some(until), Some(Millis(40_000)));
        }));
        rig.pass(1_000);
        rig.finish(&call("k"), token, success("1")).unwrap();
        rig.restart_after(way, 28_999);
        assert_eq!(rig.effects_of("default"), 3);
        rig.pass(1);
        assert_eq!((rig.status(&call("k")), rig.status(&call("abandoned"))), (None, None));
        assert_eq!(rig.status(&call("long")), Some(EffectStatus::InProgress), "never while a lease is running");
        rig.finish(&call("long"), long, success("1")).unwrap();
        assert_eq!(rig.status(&call("long")), None, "its moment has passed");
    }
}

#[test]
fn an_abandoned_lease_is_remembered_for_its_window_from_the_end_of_the_lease() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        let token = granted(rig.begin(&effect("k")));
        rig.pass(1_000);
        rig.renew(&effect("k"), token, 10_000).unwrap();
        rig.restart_after(way, 10_000 + DAY - 1);
        assert_eq!(rig.status(&effect("k")), Some(EffectStatus::InProgress));
        rig.pass(1);
        assert_eq!((rig.status(&effect("k")), rig.effects_of("default")), (None, 0));
        assert_eq!(rig.refused(|rig| rig.finish(&effect("k"), token, success("1"))), Refusal::UnknownEffect);
        assert_eq!(rig.next_moment(), None);
    }
}

#[test]
fn a_lease_that_is_made_shorter_is_looked_at_in_time() {
    let mut rig = Rig::new();
    let token = granted(rig.begin_with(&effect("k"), |asked| asked.lease = Some(Millis(DAY))));
    rig.renew(&effect("k"), token, 1).unwrap();
    rig.pass(DAY + 1);
    assert_eq!(rig.effects_of("default"), 0);
}

#[test]
fn thousands_of_windows_that_end_at_once_are_forgotten_at_once() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        for number in 0..3_000 {
            rig.begin(&effect(&number.to_string())).unwrap();
        }
        rig.pass(1);
        granted(rig.begin(&effect("later")));
        rig.restart_after(way, DAY + LEASE - 2);
        assert_eq!(rig.effects_of("default"), 3_001);
        rig.pass(1);
        assert_eq!(rig.effects_of("default"), 1);
        rig.pass(1);
        assert_eq!((rig.effects_of("default"), rig.next_moment()), (0, None));
    }
}

#[test]
fn one_call_forgets_a_bounded_number_of_effects_and_the_next_go_on_at_once() {
    let mut rig = Rig::new();
    for number in 0..5_000 {
        rig.begin(&effect(&number.to_string())).unwrap();
    }
    rig.now = rig.now.after(Millis(DAY + LEASE));
    let identity = effect("4999");
    let ticket = rig.submit(Command::Store(Box::new(StoreCommand::Get { identity })));
    let left = rig.effects_of("default");
    assert!((1..2_000).contains(&left), "{left} are left");
    assert_eq!(rig.next_moment(), Some(rig.now));
    rig.settle();
    assert_eq!(rig.reply(ticket), Some(Err(Refusal::UnknownEffect)), "what is past its window counts no more");
    assert_eq!(rig.effects_of("default"), 0);
}

#[test]
fn the_last_effect_of_a_groups_work_takes_its_table_along() {
    let mut rig = Rig::with_topic(1);
    rig.group("t", "g");
    for key in ["a", "b"] {
        rig.begin(&work("t", "g", key)).unwrap();
    }
    for (key, left) in [("a", 1), ("b", 0)] {
        rig.forget(&work("t", "g", key)).unwrap();
        assert_eq!((rig.effects_of("default"), rig.pipeline.state().store().tables().count() as u64), (left, left));
    }
}

fn with_quota<F: Faults>(faults: F) -> Rig<F> {
    let mut config = small_config();
    config.limits.effects_max = 3;
    Rig::with(config, faults)
}

#[test]
fn a_tenant_at_its_quota_begins_nothing_new_and_loses_nothing() {
    for way in RESTARTS {
        let mut rig = with_quota(NoFaults);
        let tokens = ["a", "b", "c"].map(|key| granted(rig.begin(&effect(key))));
        rig.finish(&effect("a"), tokens[0], success("1")).unwrap();
        rig.restart(way);
        assert_eq!(rig.refused(|rig| rig.begin(&effect("d"))), overloaded(Overload::Effects));
        assert_eq!(rig.refused(|rig| rig.begin(&job("j", "a"))), overloaded(Overload::Effects));
        granted(rig.begin(&Identity::new("other", Scope::Tenant, "d")));
        assert_eq!(rig.begin(&effect("a")), Ok(StoreReply::Replay(success("1"))), "what is there goes on");
        rig.pass(LEASE);
        granted(rig.begin(&effect("b")));
        rig.reacquire(&effect("c")).unwrap();
        rig.forget(&effect("c")).unwrap();
        granted(rig.begin(&effect("d")));
        assert_eq!(rig.effects_of("default"), 3);
    }
}

#[test]
fn the_quota_has_room_again_in_the_very_millisecond_a_window_ends() {
    for way in RESTARTS {
        let mut rig = with_quota(NoFaults);
        for key in ["a", "b", "c"] {
            let token = granted(rig.begin(&effect(key)));
            rig.finish(&effect(key), token, success("1")).unwrap();
        }
        rig.restart_after(way, DAY - 1);
        assert_eq!(rig.refused(|rig| rig.begin(&effect("d"))), overloaded(Overload::Effects));
        rig.now = rig.now.after(Millis(1));
        granted(rig.begin(&effect("d")));
        assert_eq!(rig.effects_of("default"), 1);
    }
}

#[test]
fn texts_that_are_too_long_are_refused_by_name() {
    let mut rig = Rig::with_limits(|limits| (limits.result_bytes_max, limits.error_text_bytes_max) = (100, 50));
    let long = "x".repeat(256);
    let too_large = |what, len, max| Refusal::TooLarge { what, len, max };
    assert_eq!(rig.refused(|rig| rig.begin(&effect(&long))), too_large("idempotency key", 256, 255));
    let tenant = Identity::new(&long, Scope::Tenant, "k");
    assert_eq!(rig.refused(|rig| rig.begin(&tenant)), too_large("tenant id", 256, 255));
    assert_eq!(rig.refused(|rig| rig.begin(&job(&long, "k"))), too_large("job id", 256, 255));
    assert_eq!(rig.refused(|rig| rig.begin(&task(&long, "k"))), too_large("task id", 256, 255));
    assert_eq!(rig.refused(|rig| rig.begin(&rpc(&long, "m", "k"))), too_large("principal", 256, 255));
    assert_eq!(rig.refused(|rig| rig.begin(&rpc("p", &long, "k"))), too_large("method", 256, 255));
    for identity in [job("", "k"), task("", "k"), rpc("", "m", "k"), rpc("p", "", "k")] {
        assert!(matches!(rig.refused(|rig| rig.begin(&identity)), Refusal::Invalid(_)));
    }
    let hashed = rig.refused(|rig| rig.begin_with(&effect("k"), |asked| asked.request_hash = Some(long.into())));
    assert_eq!(hashed, too_large("request hash", 256, 255));
    let token = granted(rig.begin(&effect("k")));
    let result = rig.refused(|rig| rig.finish(&effect("k"), token, success(&"1".repeat(101))));
    assert_eq!(result, too_large("result", 101, 100));
    let error = rig.refused(|rig| rig.finish(&effect("k"), token, final_failure(&"x".repeat(51))));
    assert_eq!(error, too_large("last_error", 51, 50));
    rig.finish(&effect("k"), token, success(&"1".repeat(100))).unwrap();
}

#[test]
fn a_delivery_goes_with_a_consume_scope_only() {
    let mut rig = Rig::new();
    let delivery = DeliveryClaim { partition: PartitionId(0), offset: Offset(0), token: TokenClaim::Absent };
    let refused = rig.refused(|rig| rig.begin_with(&effect("k"), |asked| asked.delivery = Some(delivery)));
    assert_eq!(refused, Refusal::Invalid("a delivery goes with a consume scope"));
}

#[test]
fn what_the_store_says_is_counted() {
    let mut rig = Rig::new();
    let token = granted(rig.begin_with(&effect("k"), |asked| asked.request_hash = Some("a".into())));
    rig.begin(&effect("k")).unwrap_err();
    rig.begin_with(&effect("k"), |asked| asked.request_hash = Some("b".into())).unwrap_err();
    rig.renew(&effect("k"), LeaseToken { counter: 0, ..token }, 1).unwrap_err();
    rig.finish(&effect("k"), token, retryable_failure("")).unwrap();
    let token = granted(rig.reacquire(&effect("k")));
    rig.finish(&effect("k"), token, success("1")).unwrap();
    rig.begin(&effect("k")).unwrap();
    let counters = rig.pipeline.broker().counters();
    assert_eq!((counters.begun, counters.executed, counters.replayed), (4, 2, 1));
    assert_eq!((counters.in_progress, counters.mismatched, counters.stale), (1, 1, 1));
}

/// Counts never drift from what is there, whatever happens in whatever order.
#[test]
fn counts_are_exact_after_any_history() {
    let mut rig = Rig::with_limits(|limits| {
        (limits.effects_max, limits.effect_ttl, limits.ack_ttl) = (9, Millis(900), Millis(300));
        (limits.job_ttl, limits.dedupe_ttl) = (Millis(1_500), Millis(50));
    });
    rig.topic("t", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(100)));
    let mut seed = 7_u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut tokens = std::collections::BTreeMap::new();
    let mut held = Vec::new();
    for round in 0..4_000 {
        let tenant = ["a", "b", ""][draw(3) as usize];
        let key = draw(5).to_string();
        let scope = match draw(4) {
            0 => Scope::Tenant,
            1 => Scope::Job { id: "j".into() },
            2 => Scope::Rpc { principal: "p".into(), method: "m".into() },
            _ => Scope::Consume { topic: topic("t"), group: group("g") },
        };
        let identity = Identity::new(tenant, scope, &key);
        let token = tokens.get(&identity).copied().unwrap_or(LeaseToken { boot: Boot(1), counter: 0 });
        match draw(16) {
            0..=3 => {
                if let Ok(StoreReply::Execute { token, .. }) = rig.begin(&identity) {
                    tokens.insert(identity, token);
                }
            }
            4 | 5 => drop(rig.finish(&identity, token, success("1"))),
            6 => drop(rig.finish(&identity, token, retryable_failure(""))),
            7 => drop(rig.renew(&identity, token, 200)),
            8 => drop(rig.forget(&identity)),
            9 | 10 => {
                let mut asked = identified("t", "v", &key);
                asked.envelope.tenant_id = Some(tenant.into());
                rig.try_produce(asked).unwrap();
            }
            11 => held.iter().for_each(|delivery| drop(rig.ack(claim("t", "g", "w", delivery)))),
            12 => held.iter().for_each(|delivery| drop(rig.nack(claim("t", "g", "w", delivery), ""))),
            13 if round % 50 == 0 => {
                rig.delete_group("t", "g");
                rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(100)));
            }
            14 if round % 10 == 0 => {
                rig.restart(RESTARTS[draw(2) as usize]);
                rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(100)));
            }
            _ => rig.pass(draw(60)),
        }
        held = rig.delivered();
        rig.effects_of("default");
    }
    assert_eq!(rig.pipeline.state().check(), Ok(()));
    rig.delete_topic("t");
    rig.pass(10_000);
    assert_eq!((rig.pipeline.state().store().len(), rig.next_moment()), (0, None));
}

/// A scenario that holds, and does not with the fault.
fn caught(fault: Fault, whole: bool, faulty: bool) {
    assert!(whole, "it holds without {}", fault.name());
    assert!(!faulty, "{} goes unseen", fault.name());
}

#[test]
fn each_planted_fault_of_the_store_breaks_a_promise_of_this_file() {
    fn finish_by_a_stale_token_is_refused<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        let token = granted(rig.begin(&effect("k")));
        let stale = LeaseToken { counter: token.counter + 9, ..token };
        rig.finish(&effect("k"), stale, success("1")) == Err(Refusal::StaleLease)
    }
    fn a_takeover_fences_the_one_before<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        let token = granted(rig.begin(&effect("k")));
        rig.pass(LEASE);
        granted(rig.begin(&effect("k")));
        rig.finish(&effect("k"), token, success("1")) == Err(Refusal::StaleLease)
    }
    fn another_request_is_refused<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        granted(rig.begin_with(&effect("k"), |asked| asked.request_hash = Some("a".into())));
        rig.begin_with(&effect("k"), |asked| asked.request_hash = Some("b".into())) == Err(Refusal::HashMismatch)
    }
    fn a_grant_survives_a_crash<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        granted(rig.begin(&effect("k")));
        rig.crash();
        matches!(rig.begin(&effect("k")), Err(Refusal::InProgress { .. }))
    }
    fn a_success_is_never_granted_again<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        let token = granted(rig.begin(&effect("k")));
        rig.finish(&effect("k"), token, success("1")).unwrap();
        matches!(rig.begin(&effect("k")), Ok(StoreReply::Replay(_)))
    }
    fn the_window_is_from_the_end<F: Faults>(faults: F) -> bool {
        let mut rig = Rig::with(small_config(), faults);
        let token = granted(rig.begin(&effect("k")));
        rig.pass(1_000);
        rig.finish(&effect("k"), token, success("1")).unwrap();
        rig.pass(DAY - 1);
        rig.effect(&effect("k")).is_some()
    }
    fn nothing_is_evicted<F: Faults>(faults: F) -> bool {
        let mut rig = with_quota(faults);
        for key in ["a", "b", "c"] {
            granted(rig.begin(&effect(key)));
        }
        drop(rig.begin(&effect("d")));
        rig.effect(&effect("a")).is_some()
    }
    macro_rules! caught {
        ($fault:ident, $scenario:ident) => {
            caught(Fault::$fault, $scenario(NoFaults), $scenario(Planted(Fault::$fault)))
        };
    }
    caught!(FinishIgnoresToken, finish_by_a_stale_token_is_refused);
    caught!(TakeoverKeepsToken, a_takeover_fences_the_one_before);
    caught!(HashNotCompared, another_request_is_refused);
    caught!(EffectLostOnReplay, a_grant_survives_a_crash);
    caught!(BeginAfterSuccessExecutes, a_success_is_never_granted_again);
    caught!(TtlFromBegin, the_window_is_from_the_end);
    caught!(QuotaEvictsLive, nothing_is_evicted);
}
