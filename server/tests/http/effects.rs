//! The idempotency store: every row of its decision table, for every scope, before and after a crash; what it makes of
//! deliveries and acks; and what it refuses.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ask::{claim, in_ms, millis, now, until, with, without};
use crate::rig::{Reply, Server, config_file};

/// A lease that no test outlives.
const LONG: i64 = 60_000;
/// Longer than the leases and windows that are to end.
const A_MOMENT: Duration = Duration::from_millis(60);

/// Prepares everything twice, under two names; looks at the one, kills the broker, and looks at the other.
pub fn twice<T>(toml: &str, prepare: impl Fn(&Server, &str) -> T, look: impl Fn(&Server, &str, T)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = config_file(dir.path(), toml);
    let start = || Server::on(&dir.path().join("data"), &["--config", &file]);
    let mut server = start();
    let [before, after] = ["before", "after"].map(|name| prepare(&server, name));
    look(&server, "before", before);
    server.kill();
    look(&start(), "after", after);
}

/// Every kind of scope.
fn scopes() -> [Value; 5] {
    [
        json!({ "kind": "consume", "topic": "t", "group": "g" }),
        json!({ "kind": "tenant" }),
        json!({ "kind": "job", "id": "7" }),
        json!({ "kind": "task", "id": "7" }),
        json!({ "kind": "rpc", "principal": "me", "method": "pay" }),
    ]
}

fn identity(scope: &Value, key: &str) -> Value {
    json!({ "tenant_id": "acme", "scope": scope, "key": key })
}

/// The same identity as a query.
fn query(identity: &Value) -> String {
    let mut query = format!("key={}", identity["key"].as_str().expect("a key"));
    if let Some(tenant) = identity["tenant_id"].as_str() {
        query += &format!("&tenant_id={tenant}");
    }
    for (name, text) in identity["scope"].as_object().expect("a scope") {
        query += &format!("&{name}={}", text.as_str().expect("text"));
    }
    query
}

impl Server {
    pub fn begin(&self, identity: &Value, more: Value) -> Reply {
        let body = with(identity.clone(), json!({ "owner": "w", "lease_ms": LONG }));
        self.say("/v1/idempotency/begin", &with(body, more))
    }

    /// A begin that must be granted; gives the token.
    #[track_caller]
    pub fn granted(&self, identity: &Value, more: Value) -> String {
        let reply = self.begin(identity, more);
        assert_eq!((reply.status, &reply.json()["decision"]), (200, &json!("EXECUTE")), "{reply:?}");
        reply.json()["lease_token"].as_str().expect("a token").to_owned()
    }

    pub fn finish(&self, identity: &Value, token: &str, more: Value) -> Reply {
        let body = with(identity.clone(), json!({ "lease_token": token, "status": "SUCCEEDED" }));
        self.say("/v1/idempotency/finish", &with(body, more))
    }

    #[track_caller]
    pub fn finished(&self, identity: &Value, token: &str, more: Value) {
        let reply = self.finish(identity, token, more);
        assert_eq!((reply.status, reply.body.as_str()), (200, "{\"ok\":true}"), "{reply:?}");
    }

    pub fn effect(&self, identity: &Value) -> Reply {
        self.get(&format!("/v1/idempotency?{}", query(identity)))
    }

    /// All there is to see of an effect.
    fn seen(&self, identity: &Value) -> (u16, String) {
        let reply = self.effect(identity);
        (reply.status, reply.body)
    }
}

/// How an effect stands before it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Absent,
    InProgress,
    /// Granted, taken over, and in progress: the token at hand is the first one.
    TakenOver,
    /// Granted, and its lease has ended without word.
    Expired,
    Succeeded,
    FailedFinal,
    FailedRetryable,
}

use Standing::{Absent, Expired, FailedFinal, FailedRetryable, InProgress, Succeeded, TakenOver};

/// What an effect ends with here, whatever its status is.
fn outcome() -> Value {
    json!({ "response_code": -7, "result": { "a": [1, 2.50, "é\n"], "b": null }, "last_error": "hm \"so\"" })
}

impl Standing {
    /// Brings an effect there, and gives the token of its first grant. Its hash is `h`.
    fn bring(self, server: &Server, identity: &Value) -> String {
        let lease = match self {
            Absent => return "000000010000000000000001".to_owned(),
            TakenOver | Expired => 1,
            _ => LONG,
        };
        let token = server.granted(identity, json!({ "lease_ms": lease, "request_hash": "h" }));
        let status = match self {
            TakenOver => {
                sleep(A_MOMENT);
                server.granted(identity, json!({ "on_expired": "take_over" }));
                return token;
            }
            Succeeded => "SUCCEEDED",
            FailedFinal => "FAILED_FINAL",
            FailedRetryable => "FAILED_RETRYABLE",
            _ => return token,
        };
        server.finished(identity, &token, with(outcome(), json!({ "status": status })));
        token
    }
}

/// What is asked about it.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// With these further fields, JSON.
    Begin(&'static str),
    /// With the token at hand and these further fields.
    Finish(&'static str),
    Reacquire,
    Renew,
    Delete,
}

use Ask::{Begin, Delete, Finish, Reacquire, Renew};

impl Ask {
    fn put(self, server: &Server, identity: &Value, token: &str) -> Reply {
        let more = |text: &str| serde_json::from_str(text).expect("JSON");
        let of = |more: Value| with(identity.clone(), more);
        match self {
            Begin(fields) => server.begin(identity, more(fields)),
            Finish(fields) => server.finish(identity, token, with(outcome(), more(fields))),
            Reacquire => server.say("/v1/idempotency/reacquire", &of(json!({ "owner": "v", "lease_ms": LONG }))),
            Renew => server.say("/v1/idempotency/renew", &of(json!({ "lease_token": token, "lease_ms": 2 * LONG }))),
            Delete => server.delete(&format!("/v1/idempotency?{}", query(identity))),
        }
    }
}

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// EXECUTE with this attempt.
    Execute(u32),
    /// REPLAY with this status.
    Replay(&'static str),
    /// RETRYABLE with this status and last error.
    Retryable(&'static str, &'static str),
    /// 409 with a word on when to come again.
    Wait,
    /// `{"ok":true}`.
    Stored,
    /// The lease runs on.
    RunsOn,
    /// 204.
    Gone,
    /// 409 with this message.
    Conflict(&'static str),
    /// 422.
    Mismatch,
    /// 404.
    Unknown,
}

use Verdict::{Conflict, Execute, Gone, Mismatch, Replay, Retryable, RunsOn, Stored, Unknown, Wait};

impl Verdict {
    #[track_caller]
    fn check(self, reply: &Reply, asked_at: i64) {
        let conflict = |text: &str| {
            assert_eq!(reply.refused(409, "FAILED_PRECONDITION"), text);
        };
        if !matches!(self, Replay(_)) {
            assert_eq!(reply.header("idempotency-replayed"), None, "{reply:?}");
        }
        match self {
            Execute(attempt) => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let json = reply.json();
                let token = json["lease_token"].as_str().expect("a token");
                assert!(token.len() == 24 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
                let lease = millis(&json["lease_until"]) - asked_at;
                assert!((LONG - 5_000..=LONG + 5_000).contains(&lease), "{lease} ms");
                let rest = json!({
                    "decision": "EXECUTE", "attempt": attempt, "status": "IN_PROGRESS", "status_v1": "PENDING", "idempotent": true,
                });
                assert_eq!(without(json, &["lease_token", "lease_until"]), rest);
            }
            Replay(status) => {
                assert_eq!((reply.status, reply.header("idempotency-replayed")), (200, Some("true")), "{reply:?}");
                let v1 = if status == "SUCCEEDED" { "COMMITTED" } else { "FAILED" };
                let said = json!({ "decision": "REPLAY", "status": status, "status_v1": v1 });
                assert_eq!(reply.json(), with(outcome(), said));
            }
            Retryable(status, last_error) => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let v1 = if status == "IN_PROGRESS" { "PENDING" } else { "FAILED" };
                let said = json!({
                    "decision": "RETRYABLE", "attempt": 1, "status": status, "status_v1": v1, "last_error": last_error,
                });
                assert_eq!(reply.json(), said);
            }
            Wait => {
                conflict("the effect is in progress elsewhere");
                let json = reply.json();
                let wait = json["retry_after_ms"].as_i64().expect("a number");
                assert!((1..=LONG).contains(&wait), "{wait} ms");
                let seconds = ((wait + 999) / 1_000).to_string();
                assert_eq!((&json["decision"], reply.header("retry-after")), (&json!("IN_PROGRESS"), Some(&*seconds)));
                assert_eq!(json.get("reason"), None);
            }
            Stored => assert_eq!((reply.status, reply.body.as_str()), (200, "{\"ok\":true}"), "{reply:?}"),
            RunsOn => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let json = reply.json();
                let lease = millis(&json["lease_until"]) - asked_at;
                assert!((2 * LONG - 5_000..=2 * LONG + 5_000).contains(&lease), "{lease} ms");
                assert_eq!(json.as_object().map(serde_json::Map::len), Some(1), "{json}");
            }
            Gone => assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{reply:?}"),
            Conflict(message) => conflict(message),
            Mismatch => {
                reply.refused(422, "IDEMPOTENCY_MISMATCH");
            }
            Unknown => assert_eq!(reply.refused(404, "NOT_FOUND"), "no such idempotency record"),
        }
    }

    /// Whether it leaves everything as it was.
    fn changes_nothing(self) -> bool {
        !matches!(self, Execute(_) | Stored | RunsOn | Gone)
    }
}

/// One row: in every scope, before and after a crash.
fn row(standing: Standing, ask: Ask, others: Verdict, rpc: Verdict) {
    let prepare = |server: &Server, name: &str| {
        let tokens = scopes().map(|scope| standing.bring(server, &identity(&scope, name)));
        sleep(A_MOMENT);
        tokens
    };
    twice("", prepare, |server, name, tokens: [String; 5]| {
        for (scope, token) in scopes().iter().zip(tokens) {
            let identity = identity(scope, name);
            let verdict = if scope["kind"] == "rpc" { rpc } else { others };
            let (before, asked_at) = (server.seen(&identity), now());
            let reply = ask.put(server, &identity, &token);
            println!("{name} {scope}: {standing:?}, {ask:?} -> {verdict:?}");
            verdict.check(&reply, asked_at);
            // The same outcome a second time is taken, and changes nothing.
            if verdict.changes_nothing() || (verdict == Stored && standing == Succeeded) {
                assert_eq!(server.seen(&identity), before, "{identity}");
            } else {
                assert_ne!(server.seen(&identity), before, "{identity}");
            }
        }
    });
}

/// The decision table: how an effect stands, what is asked, what must come of it, and of an `rpc` where that differs.
macro_rules! rows {
    ($($name:ident: $standing:ident, $ask:expr => $verdict:expr $(, rpc $rpc:expr)?;)*) => {
        $(#[test]
        fn $name() {
            let others = $verdict;
            let rpc = [others $(, $rpc)?];
            row($standing, $ask, others, rpc[rpc.len() - 1]);
        })*
    };
}

const STALE: Verdict = Conflict("stale lease");
const OTHERWISE: Verdict = Conflict("the effect has already ended with another outcome");
const LEASE_EXPIRED: Verdict = Retryable("IN_PROGRESS", "lease_expired");
const FAILED_BEFORE: Verdict = Retryable("FAILED_RETRYABLE", "hm \"so\"");

rows! {
    begin_of_the_absent_executes: Absent, Begin("{}") => Execute(1);
    begin_of_what_is_in_progress_waits: InProgress, Begin("{}") => Wait;
    begin_of_what_is_in_progress_waits_whatever_is_to_happen_later: InProgress, Begin(r#"{"on_expired":"take_over"}"#) => Wait;
    begin_of_the_expired_takes_over_or_reports: Expired, Begin("{}") => Execute(2), rpc LEASE_EXPIRED;
    begin_of_the_expired_takes_over_where_told: Expired, Begin(r#"{"on_expired":"take_over"}"#) => Execute(2);
    begin_of_the_expired_takes_over_in_one_word: Expired, Begin(r#"{"on_expired":"takeover"}"#) => Execute(2);
    begin_of_the_expired_reports_where_told: Expired, Begin(r#"{"on_expired":"report"}"#) => LEASE_EXPIRED;
    begin_of_the_succeeded_replays: Succeeded, Begin("{}") => Replay("SUCCEEDED");
    begin_of_the_failed_replays: FailedFinal, Begin("{}") => Replay("FAILED_FINAL");
    begin_of_what_may_be_retried: FailedRetryable, Begin("{}") => Execute(2), rpc FAILED_BEFORE;
    begin_again_after_a_takeover_waits: TakenOver, Begin("{}") => Wait;

    the_same_hash_is_no_matter_in_progress: InProgress, Begin(r#"{"request_hash":"h"}"#) => Wait;
    the_same_hash_is_no_matter_succeeded: Succeeded, Begin(r#"{"request_hash":"h"}"#) => Replay("SUCCEEDED");
    another_hash_in_progress: InProgress, Begin(r#"{"request_hash":"i"}"#) => Mismatch;
    another_hash_expired: Expired, Begin(r#"{"request_hash":"i"}"#) => Mismatch;
    another_hash_succeeded: Succeeded, Begin(r#"{"request_hash":"i"}"#) => Mismatch;
    another_hash_failed: FailedFinal, Begin(r#"{"request_hash":"i"}"#) => Mismatch;
    another_hash_failed_retryable: FailedRetryable, Begin(r#"{"request_hash":"i"}"#) => Mismatch;

    finish_of_what_is_in_progress: InProgress, Finish("{}") => Stored;
    finish_after_the_lease_with_its_token: Expired, Finish("{}") => Stored;
    finish_with_a_token_that_was_taken_over: TakenOver, Finish("{}") => STALE;
    finish_with_no_token_at_all: InProgress, Finish(r#"{"lease_token":"gone"}"#) => STALE;
    finish_with_somebody_elses_token: InProgress, Finish(r#"{"lease_token":"0000000100000000ffffffff"}"#) => STALE;
    finish_as_before: Succeeded, Finish("{}") => Stored;
    finish_with_another_status: Succeeded, Finish(r#"{"status":"FAILED_FINAL"}"#) => OTHERWISE;
    finish_with_another_result: Succeeded, Finish(r#"{"result":1}"#) => OTHERWISE;
    finish_with_another_code: Succeeded, Finish(r#"{"response_code":1}"#) => OTHERWISE;
    finish_with_success_after_failure: FailedFinal, Finish("{}") => OTHERWISE;
    finish_with_success_after_a_retryable_failure: FailedRetryable, Finish("{}") => OTHERWISE;
    finish_of_the_unknown: Absent, Finish("{}") => Unknown;

    reacquire_of_the_unknown: Absent, Reacquire => Unknown;
    reacquire_of_what_is_in_progress: InProgress, Reacquire => Conflict("the effect cannot be reacquired: IN_PROGRESS");
    reacquire_of_the_expired: Expired, Reacquire => Execute(2);
    reacquire_of_the_succeeded: Succeeded, Reacquire => Conflict("the effect cannot be reacquired: SUCCEEDED");
    reacquire_of_the_failed: FailedFinal, Reacquire => Conflict("the effect cannot be reacquired: FAILED_FINAL");
    reacquire_of_what_may_be_retried: FailedRetryable, Reacquire => Execute(2);

    renew_of_the_unknown: Absent, Renew => STALE;
    renew_of_what_is_in_progress: InProgress, Renew => RunsOn;
    renew_of_what_was_taken_over: TakenOver, Renew => STALE;
    renew_of_the_expired: Expired, Renew => STALE;
    renew_of_the_succeeded: Succeeded, Renew => STALE;
    renew_of_what_may_be_retried: FailedRetryable, Renew => STALE;

    delete_of_the_unknown: Absent, Delete => Unknown;
    delete_of_what_is_in_progress: InProgress, Delete => Gone;
    delete_of_the_succeeded: Succeeded, Delete => Gone;
}

#[test]
fn a_record_shows_all_that_is_known() {
    let of = |name: &str| identity(&scopes()[1], name);
    let prepare = |server: &Server, name: &str| {
        let began = now();
        let token = server.granted(&of(name), json!({ "request_hash": "sha256:1" }));
        let running = server.effect(&of(name)).json();
        assert!((millis(&running["lease_until"]) - began - LONG).abs() < 5_000, "{running}");
        let moments = ["lease_until", "updated_at", "expires_at"];
        let rest = json!({
            "status": "IN_PROGRESS", "status_v1": "PENDING", "attempt": 1, "owner": "w", "result": null, "response_code": 0,
            "last_error": "", "request_hash": "sha256:1",
        });
        assert_eq!(without(running, &moments), rest);
        server.finished(&of(name), &token, with(outcome(), json!({ "status": "FAILED_RETRYABLE" })));
        now()
    };
    twice("", prepare, |server, name, finished_at| {
        let shown = server.effect(&of(name)).json();
        assert!((millis(&shown["updated_at"]) - finished_at).abs() < 5_000, "{shown}");
        assert_eq!(millis(&shown["expires_at"]) - millis(&shown["updated_at"]), 86_400_000, "24 h after its end");
        let rest = json!({
            "status": "FAILED_RETRYABLE", "status_v1": "FAILED", "attempt": 1, "owner": "w", "lease_until": null,
            "request_hash": "sha256:1",
        });
        assert_eq!(without(shown, &["updated_at", "expires_at"]), with(outcome(), rest));
        let bare = with(of(name), json!({ "key": format!("{name}-bare") }));
        server.granted(&bare, json!({}));
        assert_eq!(server.effect(&bare).json()["request_hash"], Value::Null);
    });
}

#[test]
fn any_json_value_is_handed_back_as_an_equal_one() {
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
            let token = server.granted(&of(name, at), json!({}));
            let reply = server.post("/v1/idempotency/finish", finish(&of(name, at), &token, &format!(" {value}\n")));
            assert_eq!(reply.status, 200, "{value}: {reply:?}");
        }
        let token = server.granted(&of(name, 99), json!({}));
        let reply = server.post("/v1/idempotency/finish", finish(&of(name, 99), &token, "null"));
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    twice("", prepare, |server, name, ()| {
        for (at, value) in values.iter().enumerate() {
            for reply in [server.begin(&of(name, at), json!({})), server.effect(&of(name, at))] {
                // As text: not every number has a place in memory.
                assert!(reply.body.contains(&format!("\"result\":{value},")), "{value}: {reply:?}");
            }
        }
        assert_eq!(server.begin(&of(name, 99), json!({})).json()["result"], Value::Null);
    });
}

#[test]
fn with_an_empty_key_everybody_executes_and_nothing_is_kept() {
    twice(
        "",
        |_, _| (),
        |server, _, ()| {
            for scope in scopes() {
                let identity = identity(&scope, "");
                let first = server.begin(&identity, json!({})).json();
                let second = server.begin(&identity, json!({})).json();
                for said in [&first, &second] {
                    assert_eq!(
                        (&said["decision"], &said["attempt"], &said["idempotent"]),
                        (&json!("EXECUTE"), &json!(1), &json!(false))
                    );
                }
                assert_ne!(first["lease_token"], second["lease_token"]);
                server.effect(&identity).refused(404, "NOT_FOUND");
                server
                    .finish(&identity, first["lease_token"].as_str().expect("a token"), json!({}))
                    .refused(404, "NOT_FOUND");
            }
            assert_eq!(server.figure("idempotency_records"), Some(0.0));
        },
    );
}

#[test]
fn no_tenant_is_the_default_one_and_no_two_identities_are_mixed_up() {
    let key = |name: &str| json!({ "scope": { "kind": "tenant" }, "key": name });
    let prepare = |server: &Server, name: &str| {
        let token = server.granted(&key(name), json!({}));
        server.finished(&key(name), &token, json!({ "result": "mine" }));
    };
    twice("", prepare, |server, name, ()| {
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
        server.granted(&with(key(name), json!({ "tenant_id": "other" })), json!({}));
        for scope in scopes().into_iter().filter(|scope| scope["kind"] != "tenant") {
            server.granted(&with(key(name), json!({ "scope": scope })), json!({}));
        }
        server.granted(
            &with(key(name), json!({ "scope": { "kind": "consume", "topic": "t", "group": "h" } })),
            json!({}),
        );
    });
}

#[test]
fn ttl_ms_counts_from_the_end_and_expires_at_is_a_moment() {
    let of = |name: &str, of: &str| identity(&scopes()[2], &format!("{name}-{of}"));
    let prepare = |server: &Server, name: &str| {
        for (which, more) in [
            ("until", json!({ "expires_at": in_ms(1_500) })),
            ("brief", json!({ "ttl_ms": 1 })),
            ("long", json!({ "ttl_ms": 86_400_001_i64 })),
            ("later", json!({ "expires_at": "2199-01-01T00:00:00Z" })),
            ("default", json!({})),
        ] {
            let token = server.granted(&of(name, which), more);
            let running = server.effect(&of(name, which)).json();
            assert!(
                millis(&running["expires_at"]) >= millis(&running["lease_until"]),
                "never while a lease runs: {running}"
            );
            server.finished(&of(name, which), &token, json!({}));
        }
        until("both windows end", || {
            ["brief", "until"].iter().all(|which| server.effect(&of(name, which)).status == 404)
        });
    };
    twice("", prepare, |server, name, ()| {
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
fn over_the_tenants_quota_nothing_new_begins_and_all_else_goes_on() {
    let of = |tenant: &str, key: &str| json!({ "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": key });
    let toml = "[limits]\neffects_max = 2\nretry_after_ms = 2500\n";
    let prepare = |server: &Server, name: &str| {
        let token = server.granted(&of(name, "a"), json!({}));
        server.granted(&of(name, "b"), json!({ "lease_ms": 1 }));
        sleep(A_MOMENT);
        token
    };
    twice(toml, prepare, |server, name, token| {
        let reply = server.begin(&of(name, "c"), json!({}));
        reply.refused(429, "RESOURCE_EXHAUSTED");
        let json = reply.json();
        assert_eq!(
            (&json["reason"], &json["retry_after_ms"], reply.header("retry-after")),
            (&json!("quota"), &json!(2500), Some("3"))
        );
        server.effect(&of(name, "c")).refused(404, "NOT_FOUND");
        server.granted(&of("somebody else", name), json!({}));
        server.granted(&of(name, "b"), json!({}));
        server.finished(&of(name, "a"), &token, json!({}));
        assert_eq!(server.begin(&of(name, "a"), json!({})).json()["decision"], "REPLAY");
        server.begin(&of(name, "c"), json!({})).refused(429, "RESOURCE_EXHAUSTED");
        assert_eq!(server.delete(&format!("/v1/idempotency?{}", query(&of(name, "a")))).status, 204);
        server.granted(&of(name, "c"), json!({}));
    });
}

/// A message of tenant `acme` with this identity, in a topic of this name.
fn send(server: &Server, topic: &str, key: &str) {
    let envelope = json!({ "tenant_id": "acme", "idempotency_key": key });
    server.produced(&json!({ "topic": topic, "value": "v", "envelope": envelope }));
}

/// The identity of group `g`'s work on it.
fn work(topic: &str, key: &str) -> Value {
    identity(&json!({ "kind": "consume", "topic": topic, "group": "g" }), key)
}

/// A delivery as a begin names it.
fn delivery(item: &Value) -> Value {
    let [partition, offset, token] = ["partition", "offset", "lease_token"].map(|name| item[name].clone());
    json!({ "delivery": { "partition": partition, "offset": offset, "lease_token": token } })
}

#[test]
fn a_newer_delivery_takes_over_at_once_and_an_older_one_is_stale() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let first = server.next(topic);
        let token = server.granted(&work(topic, "k"), delivery(&first));
        let same = server.begin(&work(topic, "k"), delivery(&first));
        Wait.check(&same, now());
        server.settled("release", topic, &first, json!({}));
        (first, server.next(topic), token)
    };
    twice("", prepare, |server, topic, (first, second, token)| {
        let of = work(topic, "k");
        let before = server.seen(&of);
        assert_eq!(server.begin(&of, delivery(&first)).refused(409, "FAILED_PRECONDITION"), "stale lease");
        Wait.check(&server.begin(&of, json!({})), now());
        for wrong in ["x", "0000000100000000ffffffff"] {
            let wrong = with(second.clone(), json!({ "lease_token": wrong }));
            assert_eq!(server.begin(&of, delivery(&wrong)).refused(409, "FAILED_PRECONDITION"), "stale lease");
        }
        assert_eq!(server.seen(&of), before);
        let asked_at = now();
        let taken = server.begin(&of, delivery(&second));
        Execute(2).check(&taken, asked_at);
        STALE.check(&server.finish(&of, &token, json!({})), now());
        let token = taken.json()["lease_token"].as_str().expect("a token").to_owned();
        server.finished(&of, &token, json!({ "result": 1 }));
        assert_eq!(server.begin(&of, delivery(&second)).json()["result"], 1, "what has ended is replayed");
        // A Finish alone is no ack: the message is still to be settled.
        assert_eq!(server.topic(topic)["groups"][0]["partitions"][0]["lag"], 1);
    });
}

#[test]
fn a_delivery_must_be_of_the_identitys_topic_group_and_tenant() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        server.next(topic)
    };
    twice("", prepare, |server, topic, item| {
        let foreign = with(work(topic, "k"), json!({ "tenant_id": "other" }));
        let message = server.begin(&foreign, delivery(&item)).refused(400, "INVALID_ARGUMENT");
        assert_eq!(message, "the delivered message is of another tenant");
        server.begin(&without(work(topic, "k"), &["tenant_id"]), delivery(&item)).refused(400, "INVALID_ARGUMENT");
        for scope in scopes().into_iter().filter(|scope| scope["kind"] != "consume") {
            server.begin(&identity(&scope, "k"), delivery(&item)).refused(400, "INVALID_ARGUMENT");
        }
        let scope =
            |topic: &str, group: &str| identity(&json!({ "kind": "consume", "topic": topic, "group": group }), "k");
        server.begin(&scope("absent", "g"), delivery(&item)).refused(404, "NOT_FOUND");
        server.begin(&scope(topic, "absent"), delivery(&item)).refused(404, "NOT_FOUND");
        assert_eq!(server.figure("idempotency_records"), Some(0.0));
    });
}

/// Produced keys are soon forgotten, so that a second message of the same identity can be stored.
const FORGETFUL: &str = "[limits]\ndedupe_ttl_ms = 1\n";

#[test]
fn an_ack_commits_and_a_later_message_of_the_identity_is_skipped() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        assert_eq!(server.say("/v1/groups", &json!({ "topic": topic, "group": "h" })).status, 201);
        send(server, topic, "k");
        let item = server.next(topic);
        server.settled("ack", topic, &item, json!({}));
        sleep(A_MOMENT);
    };
    twice(FORGETFUL, prepare, |server, topic, ()| {
        let of = work(topic, "k");
        let shown = server.effect(&of).json();
        assert_eq!(millis(&shown["expires_at"]) - millis(&shown["updated_at"]), 600_000, "10 min");
        let rest = json!({
            "status": "SUCCEEDED", "status_v1": "COMMITTED", "attempt": 0, "owner": "", "lease_until": null, "result": null,
            "response_code": 0, "last_error": "", "request_hash": null,
        });
        assert_eq!(without(shown, &["updated_at", "expires_at"]), rest);
        let replay = server.begin(&of, json!({}));
        assert_eq!((&replay.json()["decision"], &replay.json()["result"]), (&json!("REPLAY"), &Value::Null));
        assert_eq!(replay.header("idempotency-replayed"), Some("true"));
        let skipped = server.figure("messages_skipped_total").expect("a figure");
        send(server, topic, "k");
        send(server, topic, "other");
        assert_eq!(server.next(topic)["offset"], 2, "the one between was skipped");
        assert_eq!(server.figure("messages_skipped_total"), Some(skipped + 1.0));
        assert_eq!(server.fetch(topic, "h").len(), 3, "another group runs its own");
    });
}

#[test]
fn a_finish_after_the_ack_stores_its_result() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        let token = server.granted(&work(topic, "k"), delivery(&item));
        server.settled("ack", topic, &item, json!({}));
        token
    };
    twice("", prepare, |server, topic, token| {
        let of = work(topic, "k");
        assert_eq!(server.begin(&of, json!({})).json()["result"], Value::Null);
        OTHERWISE.check(&server.finish(&of, &token, json!({ "status": "FAILED_FINAL" })), now());
        server.finished(&of, &token, json!({ "result": { "receipt": 9 } }));
        assert_eq!(server.begin(&of, json!({})).json()["result"], json!({ "receipt": 9 }));
        server.finished(&of, &token, json!({ "result": { "receipt": 9 } }));
        OTHERWISE.check(&server.finish(&of, &token, json!({ "result": 1 })), now());
        assert_eq!(server.effect(&of).json()["result"], json!({ "receipt": 9 }));
    });
}

#[test]
fn a_finish_alone_skips_nothing() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        let token = server.granted(&work(topic, "k"), delivery(&item));
        server.finished(&work(topic, "k"), &token, json!({ "result": "done" }));
        server.settled("release", topic, &item, json!({}));
        sleep(A_MOMENT);
        send(server, topic, "k");
    };
    twice(FORGETFUL, prepare, |server, topic, ()| {
        let items = server.fetch(topic, "g");
        assert_eq!(items.len(), 2, "both are delivered: {items:?}");
        assert_eq!(server.begin(&work(topic, "k"), delivery(&items[0])).json()["result"], "done");
        let claimed = claim(topic, &items[0]);
        assert_eq!(server.say("/v1/ack", &claimed).status, 204);
    });
}

#[test]
fn figures_of_the_store_move() {
    let server = Server::start();
    let of = |key: &str| identity(&scopes()[1], key);
    let token = server.granted(&of("a"), json!({ "request_hash": "h" }));
    Wait.check(&server.begin(&of("a"), json!({})), now());
    Mismatch.check(&server.begin(&of("a"), json!({ "request_hash": "i" })), now());
    STALE.check(&server.finish(&of("a"), "x", json!({})), now());
    server.finished(&of("a"), &token, json!({ "status": "FAILED_RETRYABLE" }));
    let again = server.say("/v1/idempotency/reacquire", &with(of("a"), json!({ "owner": "w" }))).json();
    server.finished(&of("a"), again["lease_token"].as_str().expect("a token"), json!({}));
    server.begin(&of("a"), json!({}));
    server.granted(&of("b"), json!({}));
    for (name, value) in [
        ("idempotency_begun_total", 5.0),
        ("idempotency_executed_total", 3.0),
        ("idempotency_replayed_total", 1.0),
        ("idempotency_in_progress_total", 1.0),
        ("idempotency_mismatched_total", 1.0),
        ("idempotency_stale_total", 1.0),
        ("idempotency_records", 2.0),
        ("steps_completed_total", 0.0),
        ("completions_kept", 0.0),
        ("messages_skipped_total", 0.0),
    ] {
        assert_eq!(server.figure(name), Some(value), "{name}");
    }
    let gone = server.delete(&format!("/v1/idempotency?{}", query(&of("b"))));
    assert_eq!(gone.status, 204);
    until("forgotten", || server.figure("idempotency_records") == Some(1.0));
}

#[test]
fn leases_have_a_default_and_renewals_too() {
    let server = Server::start();
    for (at, lease) in [json!({}), json!({ "lease_ms": 0 }), json!({ "lease_ms": null })].into_iter().enumerate() {
        let of = identity(&scopes()[3], &at.to_string());
        let began = now();
        let body = with(with(of.clone(), json!({ "owner": " w " })), lease.clone());
        let said = server.say("/v1/idempotency/begin", &body).json();
        let until = millis(&said["lease_until"]) - began;
        assert!((1_900..=4_000).contains(&until), "{lease}: {until} ms");
        assert_eq!(server.effect(&of).json()["owner"], "w", "names are trimmed");
        let renewed = with(with(of, json!({ "lease_token": said["lease_token"] })), lease);
        assert!(millis(&server.say("/v1/idempotency/renew", &renewed).json()["lease_until"]) - began < 4_000);
    }
}

/// Everything that is refused shows its code and changes nothing: neither the effect it names nor any other.
#[test]
fn what_makes_no_sense_is_refused_and_leaves_no_trace() {
    let server = Server::start();
    server.create("t", 1);
    let of = identity(&scopes()[1], "k");
    let token = server.granted(&of, json!({ "request_hash": "h" }));
    let before = server.seen(&of);
    let begin = with(of.clone(), json!({ "owner": "w" }));
    let finish = with(of.clone(), json!({ "lease_token": token, "status": "SUCCEEDED" }));
    let reacquire = begin.clone();
    let renew = with(of.clone(), json!({ "lease_token": token }));
    let long = "k".repeat(256);

    let invalid_scopes = [
        json!({}),
        json!({ "kind": "queue" }),
        json!({ "kind": "produce", "topic": "t" }),
        json!({ "kind": "" }),
        json!({ "kind": 1 }),
        json!({ "kind": null }),
        json!({ "kind": "tenant", "id": "1" }),
        json!({ "kind": "tenant", "topic": "t" }),
        json!({ "kind": "tenant", "unknown": "t" }),
        json!({ "kind": "job" }),
        json!({ "kind": "job", "id": "" }),
        json!({ "kind": "job", "id": long }),
        json!({ "kind": "job", "id": 7 }),
        json!({ "kind": "task", "id": "1", "method": "m" }),
        json!({ "kind": "rpc", "principal": "p" }),
        json!({ "kind": "rpc", "method": "m" }),
        json!({ "kind": "rpc", "principal": "p", "method": "" }),
        json!({ "kind": "rpc", "principal": long, "method": "m" }),
        json!({ "kind": "consume", "topic": "t" }),
        json!({ "kind": "consume", "group": "g" }),
        json!({ "kind": "consume", "topic": "a b", "group": "g" }),
        json!({ "kind": "consume", "topic": "t", "group": ".." }),
        json!({ "kind": "consume", "topic": "t", "group": "g", "id": "1" }),
        json!(["tenant"]),
        json!("tenant"),
        Value::Null,
    ];
    let mut bad: Vec<(&str, Value)> = Vec::new();
    for (path, sound) in [("begin", &begin), ("finish", &finish), ("reacquire", &reacquire), ("renew", &renew)] {
        for scope in &invalid_scopes {
            bad.push((path, with(sound.clone(), json!({ "scope": scope }))));
        }
        for more in [
            json!({ "key": long }),
            json!({ "key": 1 }),
            json!({ "key": null }),
            json!({ "tenant_id": long }),
            json!({ "tenant_id": 1 }),
            json!({ "unknown": 1 }),
            json!({ "kind": "tenant" }),
        ] {
            bad.push((path, with(sound.clone(), more)));
        }
        bad.push((path, without(sound.clone(), &["key"])));
        bad.push((path, without(sound.clone(), &["scope"])));
        bad.push((path, json!([])));
    }
    for (path, sound) in [("begin", &begin), ("reacquire", &reacquire), ("renew", &renew)] {
        for lease in [json!(-1), json!("1"), json!(1.5)] {
            bad.push((path, with(sound.clone(), json!({ "lease_ms": lease }))));
        }
    }
    for (path, sound) in [("begin", &begin), ("reacquire", &reacquire)] {
        bad.push((path, without(sound.clone(), &["owner"])));
        bad.push((path, with(sound.clone(), json!({ "owner": "" }))));
        bad.push((path, with(sound.clone(), json!({ "owner": "a b" }))));
    }
    for (path, sound) in [("finish", &finish), ("renew", &renew)] {
        bad.push((path, without(sound.clone(), &["lease_token"])));
        bad.push((path, with(sound.clone(), json!({ "lease_token": 1 }))));
    }
    for more in [
        json!({ "ttl_ms": 0 }),
        json!({ "ttl_ms": -1 }),
        json!({ "ttl_ms": "1" }),
        json!({ "ttl_ms": 1000, "expires_at": in_ms(60_000) }),
        json!({ "expires_at": in_ms(-1_000) }),
        json!({ "expires_at": "1969-01-01T00:00:00Z" }),
        json!({ "expires_at": "tomorrow" }),
        json!({ "expires_at": "" }),
        json!({ "expires_at": 7257254400500_u64 }),
        json!({ "on_expired": "wait" }),
        json!({ "on_expired": "" }),
        json!({ "on_expired": true }),
        json!({ "request_hash": long }),
        json!({ "request_hash": 1 }),
        json!({ "delivery": {} }),
        json!({ "delivery": [0, 0, "x"] }),
        json!({ "delivery": { "partition": 0, "offset": 0 } }),
        json!({ "delivery": { "partition": 0, "lease_token": "x" } }),
        json!({ "delivery": { "offset": 0, "lease_token": "x" } }),
        json!({ "delivery": { "partition": -1, "offset": 0, "lease_token": "x" } }),
        json!({ "delivery": { "partition": 0, "offset": 0, "lease_token": "x", "topic": "t" } }),
        json!({ "delivery": { "partition": 0, "offset": 0, "lease_token": "x" } }),
    ] {
        bad.push(("begin", with(begin.clone(), more)));
    }
    for more in [
        json!({ "status": null }),
        json!({ "status": "" }),
        json!({ "status": "IN_PROGRESS" }),
        json!({ "status": "COMMITTED" }),
        json!({ "status": "succeeded" }),
        json!({ "status": 1 }),
        json!({ "response_code": "200" }),
        json!({ "response_code": 1.5 }),
        json!({ "last_error": 1 }),
        json!({ "last_error": "e".repeat(4_097) }),
        json!({ "owner": "w" }),
    ] {
        bad.push(("finish", with(finish.clone(), more)));
    }
    let mut connection = server.connect();
    let mut say = |path: &str, body: &str| connection.call("POST", &format!("/v1/idempotency/{path}"), &[], body);
    for (path, body) in &bad {
        let reply = say(path, &body.to_string());
        println!("{path} {body}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    for path in ["begin", "finish", "reacquire", "renew"] {
        let sound = with(begin.clone(), json!({})).to_string();
        let twice = sound.replacen('{', "{\"key\":\"k\",", 1);
        for text in [
            "",
            " ",
            "x",
            "null",
            "{",
            &format!("{sound}x"),
            &format!("{sound}{sound}"),
            &twice,
            "{\"scope\":{\"kind\":\"tenant\",\"kind\":\"tenant\"}}",
        ] {
            say(path, text).refused(400, "INVALID_ARGUMENT");
        }
    }
    let text = finish.to_string();
    for result in ["{", "[1,]", "nul", "\"", "01", "\u{1}"] {
        let broken = format!("{},\"result\":{result}}}", text.strip_suffix('}').expect("an object"));
        say("finish", &broken).refused(400, "INVALID_ARGUMENT");
    }
    let large = with(finish.clone(), json!({ "result": "r".repeat(65_535) }));
    say("finish", &large.to_string()).refused(413, "PAYLOAD_TOO_LARGE");
    for (path, sound) in [("finish", &finish), ("renew", &renew)] {
        let foreign = with(sound.clone(), json!({ "tenant_id": "other" }));
        let reply = say(path, &foreign.to_string());
        assert_eq!(reply.status, if path == "finish" { 404 } else { 409 }, "{reply:?}");
    }
    for missing in [
        "",
        "kind=tenant",
        "key=k",
        "kind=queue&key=k",
        "kind=tenant&key=k&id=1",
        "kind=job&key=k",
        "kind=tenant&key=k&key=k",
    ] {
        for method in ["GET", "DELETE"] {
            server.call(method, &format!("/v1/idempotency?{missing}"), &[], "").refused(400, "INVALID_ARGUMENT");
        }
    }
    for path in ["begin", "finish", "reacquire", "renew"] {
        for method in ["GET", "PUT", "DELETE"] {
            let reply = server.call(method, &format!("/v1/idempotency/{path}"), &[], "");
            reply.refused(405, "METHOD_NOT_ALLOWED");
            assert_eq!(reply.header("allow"), Some("POST"));
        }
    }
    assert_eq!(server.post("/v1/idempotency", "{}").header("allow"), Some("GET, DELETE"));
    server.get("/v1/idempotency/begin/x").refused(404, "NOT_FOUND");
    assert_eq!(server.seen(&of), before);
    assert_eq!(server.figure("idempotency_records"), Some(1.0));
    // An empty parameter is none, so that a whole form can be sent.
    let form = "tenant_id=acme&kind=tenant&topic=&group=&id=&principal=&method=&key=k";
    assert_eq!(server.get(&format!("/v1/idempotency?{form}")).body, before.1);
    server.finished(&of, &token, json!({ "result": "r".repeat(65_534) }));
}
