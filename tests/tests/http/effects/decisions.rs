//! The decision table: the state of an effect, a request, and the response, in every scope, before and after a crash.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use super::support::{EXPIRY, LONG_MS, before_and_after_crash, identity, outcome, query, scopes};
use crate::harness::Server;
use crate::requests::{ReplyExt, millis, now, with, without};

/// The state of an effect before the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    InProgress,
    /// Granted, taken over, and in progress: the token of the request is the first one.
    TakenOver,
    /// Granted, and its lease has expired.
    Expired,
    Succeeded,
    FailedFinal,
    FailedRetryable,
}

use State::{Absent, Expired, FailedFinal, FailedRetryable, InProgress, Succeeded, TakenOver};

impl State {
    /// Begins the effect with the request hash `h`, if it is to exist. Returns the token.
    fn begin(self, server: &Server, identity: &Value) -> String {
        let lease = match self {
            Absent => return "000000010000000000000001".to_owned(),
            TakenOver | Expired => 1,
            _ => LONG_MS,
        };
        server.begin_granted(identity, json!({ "lease_ms": lease, "request_hash": "h" }))
    }

    /// Brings the effect from its begin, whose short leases have expired, to its state.
    fn reach(self, server: &Server, identity: &Value, token: &str) {
        let status = match self {
            TakenOver => {
                server.begin_granted(identity, json!({ "on_expired": "take_over" }));
                return;
            }
            Succeeded => "SUCCEEDED",
            FailedFinal => "FAILED_FINAL",
            FailedRetryable => "FAILED_RETRYABLE",
            _ => return,
        };
        server.finish_ok(identity, token, with(outcome(), json!({ "status": status })));
    }
}

/// The request.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// With these further fields, JSON.
    Begin(&'static str),
    /// With the token and these further fields.
    Finish(&'static str),
    Reacquire,
    Renew,
    Delete,
}

use Operation::{Begin, Delete, Finish, Reacquire, Renew};

impl Operation {
    fn send(self, server: &Server, identity: &Value, token: &str) -> Reply {
        let more = |text: &str| serde_json::from_str(text).expect("JSON");
        let of = |more: Value| with(identity.clone(), more);
        match self {
            Begin(fields) => server.begin(identity, more(fields)),
            Finish(fields) => server.finish(identity, token, with(outcome(), more(fields))),
            Reacquire => {
                server.post_json("/v1/idempotency/reacquire", &of(json!({ "owner": "v", "lease_ms": LONG_MS })))
            }
            Renew => {
                server.post_json("/v1/idempotency/renew", &of(json!({ "lease_token": token, "lease_ms": 2 * LONG_MS })))
            }
            Delete => server.delete(&format!("/v1/idempotency?{}", query(identity))),
        }
    }
}

/// The expected response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// EXECUTE with this attempt.
    Execute(u32),
    /// REPLAY with this status.
    Replay(&'static str),
    /// RETRYABLE with this status and last error.
    Retryable(&'static str, &'static str),
    /// 409 with a time to retry.
    Wait,
    /// `{"ok":true}`.
    Stored,
    /// The new end of the lease.
    Renewed,
    /// 204.
    Deleted,
    /// 409 with this message.
    Conflict(&'static str),
    /// 422.
    Mismatch,
    /// 404.
    Unknown,
}

use Response::{Conflict, Deleted, Execute, Mismatch, Renewed, Replay, Retryable, Stored, Unknown, Wait};

impl Response {
    /// Asserts the response to a request that was sent at `sent_at`.
    #[track_caller]
    pub(super) fn check(self, reply: &Reply, sent_at: i64) {
        let conflict = |text: &str| {
            assert_eq!(reply.refused(409, "FAILED_PRECONDITION"), text);
        };
        let about = |span: i64| span - 5_000..=span + 5_000;
        if !matches!(self, Replay(_)) {
            assert_eq!(reply.header("idempotency-replayed"), None, "{reply:?}");
        }
        match self {
            Execute(attempt) => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let json = reply.json();
                let token = json["lease_token"].as_str().expect("a token");
                assert!(token.len() == 24 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
                let lease = millis(&json["lease_until"]) - sent_at;
                assert!(about(LONG_MS).contains(&lease), "{lease} ms");
                let rest = json!({
                    "decision": "EXECUTE", "attempt": attempt, "status": "IN_PROGRESS", "status_v1": "PENDING", "idempotent": true,
                });
                assert_eq!(without(json, &["lease_token", "lease_until"]), rest);
            }
            Replay(status) => {
                assert_eq!((reply.status, reply.header("idempotency-replayed")), (200, Some("true")), "{reply:?}");
                let v1 = if status == "SUCCEEDED" { "COMMITTED" } else { "FAILED" };
                let replay = json!({ "decision": "REPLAY", "status": status, "status_v1": v1 });
                assert_eq!(reply.json(), with(outcome(), replay));
            }
            Retryable(status, last_error) => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let v1 = if status == "IN_PROGRESS" { "PENDING" } else { "FAILED" };
                let retryable = json!({
                    "decision": "RETRYABLE", "attempt": 1, "status": status, "status_v1": v1, "last_error": last_error,
                });
                assert_eq!(reply.json(), retryable);
            }
            Wait => {
                conflict("the effect is in progress elsewhere");
                let json = reply.json();
                let wait = json["retry_after_ms"].as_i64().expect("a number");
                assert!((1..=LONG_MS).contains(&wait), "{wait} ms");
                let seconds = ((wait + 999) / 1_000).to_string();
                assert_eq!((&json["decision"], reply.header("retry-after")), (&json!("IN_PROGRESS"), Some(&*seconds)));
                assert_eq!(json.get("reason"), None);
            }
            Stored => assert_eq!((reply.status, reply.body.as_str()), (200, "{\"ok\":true}"), "{reply:?}"),
            Renewed => {
                assert_eq!(reply.status, 200, "{reply:?}");
                let json = reply.json();
                let lease = millis(&json["lease_until"]) - sent_at;
                assert!(about(2 * LONG_MS).contains(&lease), "{lease} ms");
                assert_eq!(json.as_object().map(serde_json::Map::len), Some(1), "{json}");
            }
            Deleted => assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{reply:?}"),
            Conflict(message) => conflict(message),
            Mismatch => {
                reply.refused(422, "IDEMPOTENCY_MISMATCH");
            }
            Unknown => assert_eq!(reply.refused(404, "NOT_FOUND"), "no such idempotency record"),
        }
    }

    /// Whether the request leaves the effect unchanged.
    fn changes_nothing(self) -> bool {
        !matches!(self, Execute(_) | Stored | Renewed | Deleted)
    }
}

pub(super) const STALE: Response = Conflict("stale lease");
pub(super) const OTHER_OUTCOME: Response = Conflict("the effect has already ended with another outcome");
const LEASE_EXPIRED: Response = Retryable("IN_PROGRESS", "lease_expired");
const FAILED_BEFORE: Response = Retryable("FAILED_RETRYABLE", "an \"error\"");

/// A row: its name, the state, the request, the response, and the response in the scope `rpc`.
type Row = (&'static str, State, Operation, Response, Response);

const fn row(name: &'static str, state: State, operation: Operation, response: Response) -> Row {
    (name, state, operation, response, response)
}

const ROWS: &[Row] = &[
    row("begin_absent_executes", Absent, Begin("{}"), Execute(1)),
    row("begin_in_progress_waits", InProgress, Begin("{}"), Wait),
    row("begin_in_progress_with_on_expired_waits", InProgress, Begin(r#"{"on_expired":"take_over"}"#), Wait),
    ("begin_expired_takes_over_or_reports", Expired, Begin("{}"), Execute(2), LEASE_EXPIRED),
    row("begin_expired_with_take_over", Expired, Begin(r#"{"on_expired":"take_over"}"#), Execute(2)),
    row("begin_expired_with_takeover_spelled_as_one", Expired, Begin(r#"{"on_expired":"takeover"}"#), Execute(2)),
    row("begin_expired_with_report", Expired, Begin(r#"{"on_expired":"report"}"#), LEASE_EXPIRED),
    row("begin_succeeded_replays", Succeeded, Begin("{}"), Replay("SUCCEEDED")),
    row("begin_failed_final_replays", FailedFinal, Begin("{}"), Replay("FAILED_FINAL")),
    ("begin_failed_retryable_retries_or_reports", FailedRetryable, Begin("{}"), Execute(2), FAILED_BEFORE),
    row("begin_taken_over_waits", TakenOver, Begin("{}"), Wait),
    row("same_hash_in_progress", InProgress, Begin(r#"{"request_hash":"h"}"#), Wait),
    row("same_hash_succeeded", Succeeded, Begin(r#"{"request_hash":"h"}"#), Replay("SUCCEEDED")),
    row("other_hash_in_progress", InProgress, Begin(r#"{"request_hash":"i"}"#), Mismatch),
    row("other_hash_expired", Expired, Begin(r#"{"request_hash":"i"}"#), Mismatch),
    row("other_hash_succeeded", Succeeded, Begin(r#"{"request_hash":"i"}"#), Mismatch),
    row("other_hash_failed_final", FailedFinal, Begin(r#"{"request_hash":"i"}"#), Mismatch),
    row("other_hash_failed_retryable", FailedRetryable, Begin(r#"{"request_hash":"i"}"#), Mismatch),
    row("finish_in_progress", InProgress, Finish("{}"), Stored),
    row("finish_expired_with_its_token", Expired, Finish("{}"), Stored),
    row("finish_with_taken_over_token", TakenOver, Finish("{}"), STALE),
    row("finish_with_malformed_token", InProgress, Finish(r#"{"lease_token":"gone"}"#), STALE),
    row("finish_with_unknown_token", InProgress, Finish(r#"{"lease_token":"0000000100000000ffffffff"}"#), STALE),
    row("finish_repeated", Succeeded, Finish("{}"), Stored),
    row("finish_with_another_status", Succeeded, Finish(r#"{"status":"FAILED_FINAL"}"#), OTHER_OUTCOME),
    row("finish_with_another_result", Succeeded, Finish(r#"{"result":1}"#), OTHER_OUTCOME),
    row("finish_with_another_code", Succeeded, Finish(r#"{"response_code":1}"#), OTHER_OUTCOME),
    row("finish_with_success_after_final_failure", FailedFinal, Finish("{}"), OTHER_OUTCOME),
    row("finish_with_success_after_retryable_failure", FailedRetryable, Finish("{}"), OTHER_OUTCOME),
    row("finish_absent", Absent, Finish("{}"), Unknown),
    row("reacquire_absent", Absent, Reacquire, Unknown),
    row("reacquire_in_progress", InProgress, Reacquire, Conflict("the effect cannot be reacquired: IN_PROGRESS")),
    row("reacquire_expired", Expired, Reacquire, Execute(2)),
    row("reacquire_succeeded", Succeeded, Reacquire, Conflict("the effect cannot be reacquired: SUCCEEDED")),
    row("reacquire_failed_final", FailedFinal, Reacquire, Conflict("the effect cannot be reacquired: FAILED_FINAL")),
    row("reacquire_failed_retryable", FailedRetryable, Reacquire, Execute(2)),
    row("renew_absent_is_stale", Absent, Renew, STALE),
    row("renew_in_progress", InProgress, Renew, Renewed),
    row("renew_taken_over_is_stale", TakenOver, Renew, STALE),
    row("renew_expired_is_stale", Expired, Renew, STALE),
    row("renew_succeeded_is_stale", Succeeded, Renew, STALE),
    row("renew_failed_retryable_is_stale", FailedRetryable, Renew, STALE),
    row("delete_absent", Absent, Delete, Unknown),
    row("delete_in_progress", InProgress, Delete, Deleted),
    row("delete_succeeded", Succeeded, Delete, Deleted),
];

/// The identities of all rows in all scopes, with their rows.
fn cases(prefix: &str) -> Vec<(&'static Row, Value, Value)> {
    let of_row = |row: &'static Row| {
        scopes().map(|scope| (row, scope.clone(), identity(&scope, &format!("{prefix}-{}", row.0))))
    };
    ROWS.iter().flat_map(of_row).collect()
}

#[test]
fn decision_table_holds_in_every_scope_before_and_after_crash() {
    let prepare = |server: &Server, prefix: &str| {
        let cases = cases(prefix);
        let tokens: Vec<String> =
            cases.iter().map(|((_, state, ..), _, identity)| state.begin(server, identity)).collect();
        sleep(EXPIRY);
        for (((_, state, ..), _, identity), token) in cases.iter().zip(&tokens) {
            state.reach(server, identity, token);
        }
        tokens
    };
    before_and_after_crash("", prepare, |server, prefix, tokens| {
        let check = |((name, state, operation, response, rpc), scope, identity): (&Row, Value, Value),
                     token: String| {
            println!("{prefix} {name}: {scope}, {state:?}, {operation:?}");
            let response = if scope["kind"] == "rpc" { *rpc } else { *response };
            let (before, sent_at) = (server.effect_state(&identity), now());
            response.check(&operation.send(server, &identity, &token), sent_at);
            // A repeated finish succeeds and changes nothing.
            let unchanged = response.changes_nothing() || (response == Stored && *state == Succeeded);
            assert_eq!(server.effect_state(&identity) == before, unchanged, "{identity}");
        };
        let names = cases(prefix).into_iter().zip(tokens).filter_map(|(case, token)| {
            let name = case.0.0;
            catch_unwind(AssertUnwindSafe(|| check(case, token))).is_err().then_some(name)
        });
        let failed: Vec<&str> = names.collect();
        assert!(failed.is_empty(), "{prefix}: {failed:?}");
    });
}
