//! The idempotency store: begin, finish, renew, reacquire, forget and get of effects.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::{DeliveryClaim, OnExpired, TokenClaim};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::StoreReply;
use driftq_core::types::{EffectStatus, Identity, Outcome, Scope, *};

pub(super) const LEASE: u64 = 2_000;
pub(super) const DAY: u64 = 24 * 60 * 60 * 1_000;

/// A broker with a quota of three effects per tenant.
pub(super) fn with_quota<F: Faults>(faults: F) -> TestBroker<F> {
    let mut config = small_config();
    config.limits.effects_max = 3;
    TestBroker::with(config, faults)
}

/// One effect in each state: lease expired, in progress, succeeded, failed finally, failed retryably.
fn in_every_state(broker: &mut TestBroker) -> [(Identity, LeaseToken); 5] {
    let [expired, leased, succeeded, failed_final, failed_retryable] =
        ["expired", "leased", "succeeded", "failed_final", "failed_retryable"].map(effect);
    let expired_token = granted(broker.begin(&expired));
    broker.advance(LEASE);
    let mut begun =
        |identity: &Identity| granted(broker.begin_with(identity, |request| request.lease = Some(Millis(9_000))));
    let tokens = [begun(&leased), begun(&succeeded), begun(&failed_final), begun(&failed_retryable)];
    broker.finish(&succeeded, tokens[1], success("1")).unwrap();
    broker.finish(&failed_final, tokens[2], final_failure("never")).unwrap();
    broker.finish(&failed_retryable, tokens[3], retryable_failure("not now")).unwrap();
    [
        (expired, expired_token),
        (leased, tokens[0]),
        (succeeded, tokens[1]),
        (failed_final, tokens[2]),
        (failed_retryable, tokens[3]),
    ]
}

#[test]
fn begin_of_unknown_effect_is_granted() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let reply = broker.begin_with(&effect("k"), |request| request.lease = Some(Millis(500))).unwrap();
        let StoreReply::Execute { attempt: 1, token, lease_until, idempotent: true } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(lease_until, START.after(Millis(500)));
        broker.restart(restart);
        let known = broker.effect(&effect("k")).unwrap();
        assert_eq!((known.status, known.attempt, known.token), (EffectStatus::InProgress, 1, Some(token)));
        assert_eq!((known.owner, known.lease_until), (Some(owner("w")), lease_until));
    }
}

#[test]
fn effect_is_leased_while_it_is_in_progress_and_its_lease_runs() {
    let mut broker = TestBroker::new();
    let token = granted(broker.begin(&effect("k")));
    let running = broker.effect(&effect("k")).unwrap();
    assert!(running.is_leased(START.after(Millis(LEASE - 1))));
    assert!(!running.is_leased(START.after(Millis(LEASE))));
    broker.finish(&effect("k"), token, success("1")).unwrap();
    let finished = broker.effect(&effect("k")).unwrap();
    assert!(START < finished.lease_until && !finished.is_leased(START));
}

#[test]
fn begin_with_zero_or_no_lease_gets_default_lease() {
    let mut broker = TestBroker::new();
    for (key, lease) in [("a", None), ("b", Some(Millis(0)))] {
        broker.begin_with(&effect(key), |request| request.lease = lease).unwrap();
        assert_eq!(broker.effect(&effect(key)).unwrap().lease_until, START.after(Millis(LEASE)));
    }
}

#[test]
fn empty_tenant_is_default_and_tenants_share_no_effects() {
    let mut broker = TestBroker::new();
    let of = |tenant: &str| Identity::new(tenant, Scope::Tenant, "k");
    granted(broker.begin(&of("")));
    assert!(matches!(broker.begin(&of("default")), Err(Refusal::InProgress { .. })));
    granted(broker.begin(&of("other")));
    assert_eq!((broker.effect_count("default"), broker.effect_count("other"), broker.effect_count("none")), (1, 1, 0));
}

#[test]
fn scopes_share_no_effects_for_any_texts() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let mut identities =
            vec![effect("k"), effect("tenantk"), job_effect("a", "k"), job_effect("ak", "k"), job_effect("a", "kk")];
        identities.extend([
            task_effect("a", "k"),
            rpc_effect_of("a", "b", "k"),
            rpc_effect_of("ab", "k", "k"),
            rpc_effect_of("a", "bk", "k"),
        ]);
        identities.extend([
            consume_effect("t", "g", "k"),
            consume_effect("t", "h", "k"),
            consume_effect("u", "g", "k"),
            consume_effect("tg", "h", "k"),
        ]);
        identities.extend([Identity::new("a", Scope::Tenant, "bk"), Identity::new("ab", Scope::Tenant, "k")]);
        for (number, identity) in identities.iter().enumerate() {
            let token = granted(broker.begin(identity));
            broker.finish(identity, token, success(&number.to_string())).unwrap();
        }
        broker.restart(restart);
        for (number, identity) in identities.iter().enumerate() {
            assert_eq!(broker.begin(identity), Ok(replay(success(&number.to_string()))), "{identity:?}");
        }
    }
}

#[test]
fn begin_with_empty_key_always_executes_and_stores_nothing() {
    let mut broker = TestBroker::with_topic(1);
    let digest = broker.digest();
    for identity in [effect(""), job_effect("a", ""), rpc_effect_of("a", "b", ""), consume_effect("t", "g", "")] {
        for _ in 0..2 {
            let reply = broker.begin(&identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 1, idempotent: false, .. }), "{reply:?}");
        }
    }
    assert_eq!((broker.digest(), broker.effect_count("default")), (digest, 0));
}

#[test]
fn begin_during_lease_is_in_progress_with_retry_after() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        granted(broker.begin(&effect("k")));
        broker.advance(500);
        broker.restart(restart);
        let retry_after = Millis(LEASE - 500);
        assert_eq!(broker.refused(|broker| broker.begin(&effect("k"))), Refusal::InProgress { retry_after });
        broker.advance(LEASE - 501);
        assert_eq!(broker.refused(|broker| broker.begin(&effect("k"))), Refusal::InProgress { retry_after: Millis(1) });
        broker.advance(1);
        granted(broker.begin(&effect("k")));
        assert_eq!(broker.pipeline.broker().counters().in_progress, 2);
    }
}

#[test]
fn begin_after_lease_end_takes_over_with_new_token_and_attempt() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let old = granted(broker.begin(&effect("k")));
        broker.restart_after(restart, LEASE);
        let reply = broker.begin(&effect("k")).unwrap();
        let StoreReply::Execute { attempt: 2, token, .. } = reply else { panic!("{reply:?}") };
        assert!(token > old, "tokens sort by age");
        assert_eq!(broker.refused(|broker| broker.finish(&effect("k"), old, success("1"))), Refusal::StaleLease);
        assert_eq!(broker.refused(|broker| broker.renew(&effect("k"), old, 1)), Refusal::StaleLease);
        broker.finish(&effect("k"), token, success("2")).unwrap();
        assert_eq!(broker.begin(&effect("k")), Ok(replay(success("2"))));
    }
}

#[test]
fn begin_after_lease_end_on_rpc_or_by_request_only_reports() {
    let mut broker = TestBroker::new();
    granted(broker.begin(&effect("k")));
    granted(broker.begin(&rpc_effect("k")));
    broker.advance(LEASE);
    let digest = broker.digest();
    let expired =
        StoreReply::Retryable { attempt: 1, status: EffectStatus::InProgress, last_error: "lease_expired".into() };
    assert_eq!(broker.begin(&rpc_effect("k")), Ok(expired.clone()));
    let report = broker.begin_with(&effect("k"), |request| request.on_expired = Some(OnExpired::Report));
    assert_eq!((report, broker.digest()), (Ok(expired), digest));
    granted(broker.begin_with(&rpc_effect("k"), |request| request.on_expired = Some(OnExpired::TakeOver)));
    granted(broker.begin(&effect("k")));
}

#[test]
fn begin_after_final_outcome_replays_it_in_full() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let succeeded = Outcome { response_code: -7, ..success("{\"a\":[1]}") };
        let failed = Outcome { response_code: 404, ..outcome(EffectStatus::FailedFinal, Some("null"), "no such") };
        let coded = Outcome { response_code: 1, ..success("1") };
        for (key, outcome) in [("s", &succeeded), ("f", &failed), ("c", &coded)] {
            let token = granted(broker.begin(&effect(key)));
            broker.finish(&effect(key), token, outcome.clone()).unwrap();
        }
        broker.restart(restart);
        let digest = broker.digest();
        for (key, outcome) in [("s", succeeded), ("f", failed), ("c", coded)] {
            assert_eq!(broker.begin(&effect(key)), Ok(replay(outcome)));
        }
        assert_eq!(broker.digest(), digest, "a replay changes nothing");
    }
}

#[test]
fn begin_after_retryable_failure_executes_except_rpc_which_reacquires() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        for identity in
            [effect("k"), job_effect("j", "k"), task_effect("t", "k"), consume_effect("t", "g", "k"), rpc_effect("k")]
        {
            let token = granted(broker.begin(&identity));
            broker.finish(&identity, token, retryable_failure("not now")).unwrap();
        }
        broker.restart(restart);
        for identity in [effect("k"), job_effect("j", "k"), task_effect("t", "k"), consume_effect("t", "g", "k")] {
            let reply = broker.begin(&identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 2, .. }), "{reply:?}");
        }
        let (attempt, status) = (1, EffectStatus::FailedRetryable);
        let retryable = StoreReply::Retryable { attempt, status, last_error: "not now".into() };
        assert_eq!(broker.begin(&rpc_effect("k")), Ok(retryable));
        let reply = broker.reacquire(&rpc_effect("k")).unwrap();
        assert!(matches!(reply, StoreReply::Execute { attempt: 2, .. }), "{reply:?}");
        assert_eq!(broker.effect(&rpc_effect("k")).unwrap().owner, Some(owner("other")));
    }
}

#[test]
fn begin_after_failure_clears_stored_failure() {
    let mut broker = TestBroker::new();
    let token = granted(broker.begin(&effect("k")));
    let failure = Outcome { response_code: 503, ..outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy") };
    broker.finish(&effect("k"), token, failure).unwrap();
    let token = granted(broker.begin(&effect("k")));
    assert_eq!(broker.effect(&effect("k")).unwrap().result, None);
    broker.finish(&effect("k"), token, success("1")).unwrap();
    assert_eq!(broker.begin(&effect("k")), Ok(replay(success("1"))));
}

#[test]
fn finish_compares_only_the_token() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let token = granted(broker.begin(&effect("k")));
        let other = granted(broker.begin(&effect("other")));
        broker.restart_after(restart, LEASE + 1);
        for shown in [TokenClaim::Absent, TokenClaim::Unreadable, TokenClaim::Shown(other)] {
            let refusal = broker.refused(|broker| broker.finish_by(&effect("k"), shown, success("1")));
            assert_eq!(refusal, Refusal::StaleLease, "{shown:?}");
        }
        broker.finish(&effect("k"), token, success("1")).expect("the expired lease was not taken over");
        let digest = broker.digest();
        broker.finish(&effect("k"), token, success("1")).expect("a repeated finish succeeds");
        assert_eq!(broker.digest(), digest);
        for other in
            [success("2"), final_failure(""), retryable_failure(""), Outcome { response_code: 1, ..success("1") }]
        {
            assert_eq!(broker.refused(|broker| broker.finish(&effect("k"), token, other)), Refusal::OtherOutcome);
        }
        assert_eq!(
            broker.refused(|broker| broker.finish(&effect("none"), token, success("1"))),
            Refusal::UnknownEffect
        );
        let open = outcome(EffectStatus::InProgress, None, "");
        assert!(matches!(broker.refused(|broker| broker.finish(&effect("k"), token, open)), Refusal::Invalid(_)));
    }
}

#[test]
fn finish_repeated_succeeds_and_other_outcome_is_refused() {
    let mut broker = TestBroker::new();
    for failure in [final_failure("no"), retryable_failure("no")] {
        let identity = effect(failure.status.as_str());
        let token = granted(broker.begin(&identity));
        broker.finish(&identity, token, failure.clone()).unwrap();
        broker.finish(&identity, token, failure).unwrap();
        assert_eq!(broker.refused(|broker| broker.finish(&identity, token, success("1"))), Refusal::OtherOutcome);
    }
}

#[test]
fn reacquire_of_failed_or_expired_effect_succeeds_and_others_are_refused() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let [expired, leased, succeeded, failed_final, failed_retryable] = in_every_state(&mut broker);
        broker.restart(restart);
        for (identity, status) in [
            (&leased.0, EffectStatus::InProgress),
            (&succeeded.0, EffectStatus::Succeeded),
            (&failed_final.0, EffectStatus::FailedFinal),
        ] {
            assert_eq!(broker.refused(|broker| broker.reacquire(identity)), Refusal::NotRetryable { status });
        }
        assert_eq!(broker.refused(|broker| broker.reacquire(&effect("none"))), Refusal::UnknownEffect);
        for (identity, old) in [expired, failed_retryable] {
            let reply = broker.reacquire(&identity).unwrap();
            let StoreReply::Execute { attempt: 2, token, lease_until, idempotent: true } = reply else {
                panic!("{reply:?}")
            };
            assert!(token > old);
            assert_eq!(lease_until, broker.now.after(Millis(LEASE)));
            assert_eq!(broker.refused(|broker| broker.finish(&identity, old, success("1"))), Refusal::StaleLease);
            broker.finish(&identity, token, success("1")).unwrap();
        }
    }
}

#[test]
fn renew_changes_running_lease_only() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let [expired, leased, succeeded, failed_final, failed_retryable] = in_every_state(&mut broker);
        broker.restart(restart);
        for (identity, token) in [expired, succeeded, failed_final, failed_retryable, (effect("none"), leased.1)] {
            assert_eq!(broker.refused(|broker| broker.renew(&identity, token, 1)), Refusal::StaleLease);
        }
        let (identity, token) = leased;
        let other = LeaseToken { counter: token.counter + 1, ..token };
        assert_eq!(broker.refused(|broker| broker.renew(&identity, other, 1)), Refusal::StaleLease);
        for lease in [60_000, 300] {
            let lease_until = broker.now.after(Millis(lease));
            assert_eq!(broker.renew(&identity, token, lease), Ok(StoreReply::Renewed { lease_until }));
            let retry_after = Millis(lease);
            assert_eq!(broker.refused(|broker| broker.begin(&identity)), Refusal::InProgress { retry_after });
        }
        broker.advance(300);
        granted(broker.begin(&identity));
    }
}

#[test]
fn get_returns_same_effect_after_restart_in_every_state() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let effects = in_every_state(&mut broker);
        let stored = |broker: &mut TestBroker| effects.clone().map(|(identity, _)| broker.effect(&identity).unwrap());
        let before = stored(&mut broker);
        broker.restart(restart);
        assert_eq!(stored(&mut broker), before);
        let statuses = before.map(|effect| effect.status.as_v1());
        assert_eq!(statuses, ["PENDING", "PENDING", "COMMITTED", "FAILED", "FAILED"]);
        assert_eq!(broker.effect(&effect("none")), None);
    }
}

#[test]
fn forget_allows_begin_in_every_state() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let effects = in_every_state(&mut broker);
        for (identity, token) in &effects {
            broker.forget(identity).unwrap();
            assert_eq!(broker.refused(|broker| broker.forget(identity)), Refusal::UnknownEffect);
            assert_eq!(broker.refused(|broker| broker.finish(identity, *token, success("1"))), Refusal::UnknownEffect);
        }
        broker.restart(restart);
        assert_eq!(broker.effect_count("default"), 0);
        for (identity, _) in &effects {
            let reply = broker.begin(identity).unwrap();
            assert!(matches!(reply, StoreReply::Execute { attempt: 1, .. }), "{reply:?}");
        }
    }
}

#[test]
fn begin_with_other_request_hash_is_refused_in_every_state() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let states: [fn(&mut TestBroker, &Identity, LeaseToken); 5] = [
            |_, _, _| {},
            |broker, _, _| broker.advance(LEASE),
            |broker, identity, token| broker.finish(identity, token, success("1")).unwrap(),
            |broker, identity, token| broker.finish(identity, token, final_failure("")).unwrap(),
            |broker, identity, token| broker.finish(identity, token, retryable_failure("")).unwrap(),
        ];
        for (number, state) in states.into_iter().enumerate() {
            for identity in [effect(&number.to_string()), rpc_effect(&number.to_string())] {
                let token =
                    granted(broker.begin_with(&identity, |request| request.request_hash = Some("first".into())));
                state(&mut broker, &identity, token);
                broker.restart(restart);
                let other = |broker: &mut TestBroker| {
                    broker.begin_with(&identity, |request| request.request_hash = Some("other".into()))
                };
                assert_eq!(broker.refused(other), Refusal::HashMismatch, "{number}");
                // The hash of the first request stays stored, also when a later request is granted the effect.
                let same = |broker: &mut TestBroker| {
                    broker.begin_with(&identity, |request| request.request_hash = Some("first".into()))
                };
                assert_ne!(same(&mut broker).err(), Some(Refusal::HashMismatch));
                assert_eq!(broker.refused(other), Refusal::HashMismatch, "{number}");
                assert_ne!(
                    broker.begin(&identity).err(),
                    Some(Refusal::HashMismatch),
                    "without a hash, none is compared"
                );
                assert_eq!(broker.effect(&identity).unwrap().request_hash(), Some("first"));
            }
        }
    }
}

#[test]
fn request_hash_missing_at_first_begin_is_never_compared() {
    let mut broker = TestBroker::new();
    granted(broker.begin(&effect("k")));
    for hash in ["one", "other"] {
        broker.advance(LEASE);
        granted(broker.begin_with(&effect("k"), |request| request.request_hash = Some(hash.into())));
        assert_eq!(broker.effect(&effect("k")).unwrap().request_hash(), None);
    }
}

#[test]
fn effect_texts_over_limit_are_refused() {
    let mut broker =
        TestBroker::with_limits(|limits| (limits.result_bytes_max, limits.error_text_bytes_max) = (100, 50));
    let long = "x".repeat(256);
    let too_large = |what, len, max| Refusal::TooLarge { what, len, max };
    assert_eq!(broker.refused(|broker| broker.begin(&effect(&long))), too_large("idempotency key", 256, 255));
    let tenant = Identity::new(&long, Scope::Tenant, "k");
    assert_eq!(broker.refused(|broker| broker.begin(&tenant)), too_large("tenant id", 256, 255));
    assert_eq!(broker.refused(|broker| broker.begin(&job_effect(&long, "k"))), too_large("job id", 256, 255));
    assert_eq!(broker.refused(|broker| broker.begin(&task_effect(&long, "k"))), too_large("task id", 256, 255));
    assert_eq!(
        broker.refused(|broker| broker.begin(&rpc_effect_of(&long, "m", "k"))),
        too_large("principal", 256, 255)
    );
    assert_eq!(broker.refused(|broker| broker.begin(&rpc_effect_of("p", &long, "k"))), too_large("method", 256, 255));
    for identity in
        [job_effect("", "k"), task_effect("", "k"), rpc_effect_of("", "m", "k"), rpc_effect_of("p", "", "k")]
    {
        assert!(matches!(broker.refused(|broker| broker.begin(&identity)), Refusal::Invalid(_)));
    }
    let hashed =
        broker.refused(|broker| broker.begin_with(&effect("k"), |request| request.request_hash = Some(long.into())));
    assert_eq!(hashed, too_large("request hash", 256, 255));
    let token = granted(broker.begin(&effect("k")));
    let result = broker.refused(|broker| broker.finish(&effect("k"), token, success(&"1".repeat(101))));
    assert_eq!(result, too_large("result", 101, 100));
    let error = broker.refused(|broker| broker.finish(&effect("k"), token, final_failure(&"x".repeat(51))));
    assert_eq!(error, too_large("last_error", 51, 50));
    broker.finish(&effect("k"), token, success(&"1".repeat(100))).unwrap();
}

#[test]
fn delivery_with_scope_other_than_consume_is_refused() {
    let mut broker = TestBroker::new();
    let delivery = DeliveryClaim { partition: PartitionId(0), offset: Offset(0), token: TokenClaim::Absent };
    let refused = broker.refused(|broker| broker.begin_with(&effect("k"), |request| request.delivery = Some(delivery)));
    assert_eq!(refused, Refusal::Invalid("a delivery goes with a consume scope"));
}

#[test]
fn store_counters_count_every_reply() {
    let mut broker = TestBroker::new();
    let token = granted(broker.begin_with(&effect("k"), |request| request.request_hash = Some("a".into())));
    broker.begin(&effect("k")).unwrap_err();
    broker.begin_with(&effect("k"), |request| request.request_hash = Some("b".into())).unwrap_err();
    broker.renew(&effect("k"), LeaseToken { counter: 0, ..token }, 1).unwrap_err();
    broker.finish(&effect("k"), token, retryable_failure("")).unwrap();
    let token = granted(broker.reacquire(&effect("k")));
    broker.finish(&effect("k"), token, success("1")).unwrap();
    broker.begin(&effect("k")).unwrap();
    let counters = broker.pipeline.broker().counters();
    assert_eq!((counters.begun, counters.executed, counters.replayed), (4, 2, 1));
    assert_eq!((counters.in_progress, counters.mismatched, counters.stale), (1, 1, 1));
}

/// A random sequence of commands keeps every count equal to a full scan.
#[test]
fn effect_counts_are_exact_after_random_history() {
    let mut broker = TestBroker::with_limits(|limits| {
        (limits.effects_max, limits.effect_ttl) = (9, Millis(900));
        (limits.job_ttl, limits.dedupe_ttl) = (Millis(1_500), Millis(50));
        limits.completion_ttl = Millis(700);
    });
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(100)));
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
                if let Ok(StoreReply::Execute { token, .. }) = broker.begin(&identity) {
                    tokens.insert(identity, token);
                }
            }
            4 | 5 => drop(broker.finish(&identity, token, success("1"))),
            6 => drop(broker.finish(&identity, token, retryable_failure(""))),
            7 => drop(broker.renew(&identity, token, 200)),
            8 => drop(broker.forget(&identity)),
            9 | 10 => {
                let mut request = identified("t", "v", &key);
                request.envelope.tenant_id = Some(tenant.into());
                broker.try_produce(request).unwrap();
            }
            11 => held.iter().for_each(|delivery| drop(broker.ack(claim("t", "g", "w", delivery)))),
            12 => held.iter().for_each(|delivery| drop(broker.nack(claim("t", "g", "w", delivery), ""))),
            13 if round % 50 == 0 => {
                broker.delete_group("t", "g");
                broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(100)));
            }
            14 if round % 10 == 0 => {
                broker.restart(RESTARTS[draw(2) as usize]);
                broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(100)));
            }
            _ => broker.advance(draw(60)),
        }
        held = broker.delivered();
        broker.effect_count("default");
    }
    assert_eq!(broker.pipeline.state().check(), Ok(()));
    broker.delete_topic("t");
    broker.advance(10_000);
    assert_eq!((broker.pipeline.state().store().len(), broker.next_timeout()), (0, None));
}

/// Asserts that a scenario passes without the fault and fails with it.
fn assert_detected(fault: Fault, passes: bool, passes_with_fault: bool) {
    assert!(passes, "fails without {}", fault.name());
    assert!(!passes_with_fault, "{} is not detected", fault.name());
}

#[test]
fn faults_of_store_are_detected() {
    fn finish_with_stale_token_is_refused<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        let token = granted(broker.begin(&effect("k")));
        let stale = LeaseToken { counter: token.counter + 9, ..token };
        broker.finish(&effect("k"), stale, success("1")) == Err(Refusal::StaleLease)
    }
    fn takeover_fences_previous_grant<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        let token = granted(broker.begin(&effect("k")));
        broker.advance(LEASE);
        granted(broker.begin(&effect("k")));
        broker.finish(&effect("k"), token, success("1")) == Err(Refusal::StaleLease)
    }
    fn other_request_hash_is_refused<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        granted(broker.begin_with(&effect("k"), |request| request.request_hash = Some("a".into())));
        broker.begin_with(&effect("k"), |request| request.request_hash = Some("b".into())) == Err(Refusal::HashMismatch)
    }
    fn grant_survives_crash<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        granted(broker.begin(&effect("k")));
        broker.crash();
        matches!(broker.begin(&effect("k")), Err(Refusal::InProgress { .. }))
    }
    fn success_is_never_granted_again<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        let token = granted(broker.begin(&effect("k")));
        broker.finish(&effect("k"), token, success("1")).unwrap();
        matches!(broker.begin(&effect("k")), Ok(StoreReply::Replay { .. }))
    }
    fn window_starts_at_finish<F: Faults>(faults: F) -> bool {
        let mut broker = TestBroker::with(small_config(), faults);
        let token = granted(broker.begin(&effect("k")));
        broker.advance(1_000);
        broker.finish(&effect("k"), token, success("1")).unwrap();
        broker.advance(DAY - 1);
        broker.effect(&effect("k")).is_some()
    }
    fn full_quota_evicts_nothing<F: Faults>(faults: F) -> bool {
        let mut broker = with_quota(faults);
        for key in ["a", "b", "c"] {
            granted(broker.begin(&effect(key)));
        }
        drop(broker.begin(&effect("d")));
        broker.effect(&effect("a")).is_some()
    }
    macro_rules! detected {
        ($fault:ident, $scenario:ident) => {
            assert_detected(Fault::$fault, $scenario(NoFaults), $scenario(Planted(Fault::$fault)))
        };
    }
    detected!(FinishIgnoresToken, finish_with_stale_token_is_refused);
    detected!(TakeoverKeepsToken, takeover_fences_previous_grant);
    detected!(HashNotCompared, other_request_hash_is_refused);
    detected!(EffectLostOnReplay, grant_survives_crash);
    detected!(BeginAfterSuccessExecutes, success_is_never_granted_again);
    detected!(TtlFromBegin, window_starts_at_finish);
    detected!(QuotaEvictsLive, full_quota_evicts_nothing);
}
