//! Records of the idempotency store: fields, results, identities, expiry, quota and metrics.

use std::thread::sleep;

use serde_json::{Value, json};

use super::decisions::{Response, STALE};
use super::support::{EXPIRY, LONG_MS, before_and_after_crash, identity, outcome, query, scopes};
use crate::harness::{Server, wait_until};
use crate::requests::{ReplyExt, in_ms, millis, now, with, without};

#[test]
fn record_has_all_fields() {
    let of = |name: &str| identity(&scopes()[1], name);
    let prepare = |server: &Server, name: &str| {
        let began = now();
        let token = server.begin_granted(&of(name), json!({ "request_hash": "sha256:1" }));
        let running = server.effect(&of(name)).json();
        assert!((millis(&running["lease_until"]) - began - LONG_MS).abs() < 5_000, "{running}");
        let timestamps = ["lease_until", "updated_at", "expires_at"];
        let rest = json!({
            "status": "IN_PROGRESS", "status_v1": "PENDING", "attempt": 1, "owner": "w", "result": null, "response_code": 0,
            "last_error": "", "request_hash": "sha256:1",
        });
        assert_eq!(without(running, &timestamps), rest);
        server.finish_ok(&of(name), &token, with(outcome(), json!({ "status": "FAILED_RETRYABLE" })));
        now()
    };
    before_and_after_crash("", prepare, |server, name, finished_at| {
        let shown = server.effect(&of(name)).json();
        assert!((millis(&shown["updated_at"]) - finished_at).abs() < 5_000, "{shown}");
        assert_eq!(millis(&shown["expires_at"]) - millis(&shown["updated_at"]), 86_400_000, "24 h after its finish");
        let rest = json!({
            "status": "FAILED_RETRYABLE", "status_v1": "FAILED", "attempt": 1, "owner": "w", "lease_until": null,
            "request_hash": "sha256:1",
        });
        assert_eq!(without(shown, &["updated_at", "expires_at"]), with(outcome(), rest));
        let bare = with(of(name), json!({ "key": format!("{name}-bare") }));
        server.begin_granted(&bare, json!({}));
        assert_eq!(server.effect(&bare).json()["request_hash"], Value::Null);
    });
}

#[test]
fn result_is_returned_unchanged() {
    let values = [
        "0",
        "-0.0",
        "1e400",
        "12345678901234567890123",
        "\"\"",
        "\"\\u00e9\\\"\\\\\"",
        "true",
        "false",
        "[]",
        "{}",
        "[ 1 , {\"a\" : [ ] } ]",
        "{\"a\":{\"a\":{\"b\":\"c\"}}}",
    ];
    let of = |name: &str, at: usize| identity(&scopes()[1], &format!("{name}-{at}"));
    let finish = |identity: &Value, token: &str, result: &str| {
        let body = with(identity.clone(), json!({ "lease_token": token, "status": "SUCCEEDED" })).to_string();
        format!("{},\"result\":{result}}}", body.strip_suffix('}').expect("an object"))
    };
    let prepare = |server: &Server, name: &str| {
        for (at, value) in values.iter().enumerate() {
            let token = server.begin_granted(&of(name, at), json!({}));
            let reply = server.post("/v1/idempotency/finish", finish(&of(name, at), &token, &format!(" {value}\n")));
            assert_eq!(reply.status, 200, "{value}: {reply:?}");
        }
        let token = server.begin_granted(&of(name, 99), json!({}));
        let reply = server.post("/v1/idempotency/finish", finish(&of(name, 99), &token, "null"));
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    before_and_after_crash("", prepare, |server, name, ()| {
        for (at, value) in values.iter().enumerate() {
            for reply in [server.begin(&of(name, at), json!({})), server.effect(&of(name, at))] {
                // Compared as text: not every number can be represented.
                assert!(reply.body.contains(&format!("\"result\":{value},")), "{value}: {reply:?}");
            }
        }
        assert_eq!(server.begin(&of(name, 99), json!({})).json()["result"], Value::Null);
    });
}

#[test]
fn empty_key_always_executes_and_stores_nothing() {
    before_and_after_crash(
        "",
        |_, _| (),
        |server, _, ()| {
            for scope in scopes() {
                let identity = identity(&scope, "");
                let first = server.begin(&identity, json!({})).json();
                let second = server.begin(&identity, json!({})).json();
                for begun in [&first, &second] {
                    assert_eq!(
                        (&begun["decision"], &begun["attempt"], &begun["idempotent"]),
                        (&json!("EXECUTE"), &json!(1), &json!(false))
                    );
                }
                assert_ne!(first["lease_token"], second["lease_token"]);
                server.effect(&identity).refused(404, "NOT_FOUND");
                server
                    .finish(&identity, first["lease_token"].as_str().expect("a token"), json!({}))
                    .refused(404, "NOT_FOUND");
            }
            assert_eq!(server.metric("driftq_idempotency_records"), Some(0.0));
        },
    );
}

#[test]
fn missing_tenant_is_default_and_identities_are_separate() {
    let key = |name: &str| json!({ "scope": { "kind": "tenant" }, "key": name });
    let prepare = |server: &Server, name: &str| {
        let token = server.begin_granted(&key(name), json!({}));
        server.finish_ok(&key(name), &token, json!({ "result": "mine" }));
    };
    before_and_after_crash("", prepare, |server, name, ()| {
        for tenant in
            [json!({}), json!({ "tenant_id": "" }), json!({ "tenant_id": null }), json!({ "tenant_id": "default" })]
        {
            let reply = server.begin(&with(key(name), tenant), json!({}));
            assert_eq!(
                (&reply.json()["decision"], &reply.json()["result"]),
                (&json!("REPLAY"), &json!("mine")),
                "{reply:?}"
            );
        }
        server.begin_granted(&with(key(name), json!({ "tenant_id": "other" })), json!({}));
        for scope in scopes().into_iter().filter(|scope| scope["kind"] != "tenant") {
            server.begin_granted(&with(key(name), json!({ "scope": scope })), json!({}));
        }
        server.begin_granted(
            &with(key(name), json!({ "scope": { "kind": "consume", "topic": "t", "group": "h" } })),
            json!({}),
        );
    });
}

#[test]
fn ttl_ms_is_relative_to_finish_and_expires_at_is_absolute() {
    let of = |name: &str, of: &str| identity(&scopes()[2], &format!("{name}-{of}"));
    let prepare = |server: &Server, name: &str| {
        for (which, more) in [
            ("until", json!({ "expires_at": in_ms(700) })),
            ("brief", json!({ "ttl_ms": 1 })),
            ("long", json!({ "ttl_ms": 86_400_001_i64 })),
            ("later", json!({ "expires_at": "2199-01-01T00:00:00Z" })),
            ("default", json!({})),
        ] {
            let token = server.begin_granted(&of(name, which), more);
            let running = server.effect(&of(name, which)).json();
            assert!(
                millis(&running["expires_at"]) >= millis(&running["lease_until"]),
                "not before the lease: {running}"
            );
            server.finish_ok(&of(name, which), &token, json!({}));
        }
        wait_until("both windows end", || {
            ["brief", "until"].iter().all(|which| server.effect(&of(name, which)).status == 404)
        });
    };
    before_and_after_crash("", prepare, |server, name, ()| {
        for which in ["brief", "until"] {
            server.effect(&of(name, which)).refused(404, "NOT_FOUND");
            assert_eq!(server.begin(&of(name, which), json!({})).json()["attempt"], 1, "{which}");
        }
        let window = |which: &str| {
            let shown = server.effect(&of(name, which)).json();
            millis(&shown["expires_at"]) - millis(&shown["updated_at"])
        };
        assert_eq!((window("long"), window("default")), (86_400_001, 7 * 86_400_000));
        assert_eq!(server.effect(&of(name, "later")).json()["expires_at"], "2199-01-01T00:00:00.000Z");
        assert_eq!(server.begin(&of(name, "long"), json!({})).json()["decision"], "REPLAY");
    });
}

#[test]
fn tenant_over_quota_cannot_begin_new_effects() {
    let of = |tenant: &str, key: &str| json!({ "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": key });
    let toml = "[limits]\neffects_max = 2\nretry_after_ms = 2500\n";
    let prepare = |server: &Server, name: &str| {
        let token = server.begin_granted(&of(name, "a"), json!({}));
        server.begin_granted(&of(name, "b"), json!({ "lease_ms": 1 }));
        sleep(EXPIRY);
        token
    };
    before_and_after_crash(toml, prepare, |server, name, token| {
        let reply = server.begin(&of(name, "c"), json!({}));
        reply.refused(429, "RESOURCE_EXHAUSTED");
        let json = reply.json();
        assert_eq!(
            (&json["reason"], &json["retry_after_ms"], reply.header("retry-after")),
            (&json!("quota"), &json!(2500), Some("3"))
        );
        server.effect(&of(name, "c")).refused(404, "NOT_FOUND");
        server.begin_granted(&of("other", name), json!({}));
        server.begin_granted(&of(name, "b"), json!({}));
        server.finish_ok(&of(name, "a"), &token, json!({}));
        assert_eq!(server.begin(&of(name, "a"), json!({})).json()["decision"], "REPLAY");
        server.begin(&of(name, "c"), json!({})).refused(429, "RESOURCE_EXHAUSTED");
        assert_eq!(server.delete(&format!("/v1/idempotency?{}", query(&of(name, "a")))).status, 204);
        server.begin_granted(&of(name, "c"), json!({}));
    });
}

#[test]
fn store_metrics_change() {
    let server = Server::start();
    let of = |key: &str| identity(&scopes()[1], key);
    let token = server.begin_granted(&of("a"), json!({ "request_hash": "h" }));
    Response::Wait.check(&server.begin(&of("a"), json!({})), now());
    Response::Mismatch.check(&server.begin(&of("a"), json!({ "request_hash": "i" })), now());
    STALE.check(&server.finish(&of("a"), "x", json!({})), now());
    server.finish_ok(&of("a"), &token, json!({ "status": "FAILED_RETRYABLE" }));
    let again = server.post_json("/v1/idempotency/reacquire", &with(of("a"), json!({ "owner": "w" }))).json();
    server.finish_ok(&of("a"), again["lease_token"].as_str().expect("a token"), json!({}));
    server.begin(&of("a"), json!({}));
    server.begin_granted(&of("b"), json!({}));
    for (name, value) in [
        ("driftq_idempotency_begun_total", 5.0),
        ("driftq_idempotency_executed_total", 3.0),
        ("driftq_idempotency_replayed_total", 1.0),
        ("driftq_idempotency_in_progress_total", 1.0),
        ("driftq_idempotency_mismatched_total", 1.0),
        ("driftq_idempotency_stale_total", 1.0),
        ("driftq_idempotency_records", 2.0),
        ("driftq_steps_completed_total", 0.0),
        ("driftq_completions_kept", 0.0),
        ("driftq_winners_kept", 0.0),
        ("driftq_messages_skipped_total", 0.0),
    ] {
        assert_eq!(server.metric(name), Some(value), "{name}");
    }
    let deleted = server.delete(&format!("/v1/idempotency?{}", query(&of("b"))));
    assert_eq!(deleted.status, 204);
    wait_until("the record is removed", || server.metric("driftq_idempotency_records") == Some(1.0));
}

#[test]
fn lease_and_renewal_have_default_duration() {
    let server = Server::start();
    for (at, lease) in [json!({}), json!({ "lease_ms": 0 }), json!({ "lease_ms": null })].into_iter().enumerate() {
        let of = identity(&scopes()[3], &at.to_string());
        let began = now();
        let body = with(with(of.clone(), json!({ "owner": " w " })), lease.clone());
        let begun = server.post_json("/v1/idempotency/begin", &body).json();
        let lasts = millis(&begun["lease_until"]) - began;
        assert!((29_900..=32_000).contains(&lasts), "{lease}: {lasts} ms");
        assert_eq!(server.effect(&of).json()["owner"], "w", "names are trimmed");
        let renewed = with(with(of, json!({ "lease_token": begun["lease_token"] })), lease);
        assert!(millis(&server.post_json("/v1/idempotency/renew", &renewed).json()["lease_until"]) - began < 32_000);
    }
}
