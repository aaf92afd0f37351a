//! The judge on traces that are written here: what a run cannot be made to show at will.

use driftq_conformance::judge;
use driftq_conformance::trace::{Entry, read};
use serde_json::{Value, json};

/// A trace of what is seen, a millisecond after the other, for one produce of a message with a deadline.
fn trace(seen: Vec<Value>) -> Vec<Entry> {
    let scenario = json!({"name": "s", "about": "", "end": {"effects": false}});
    let start = json!({"seen": "run", "adapter": "a", "seed": 1, "scenario": scenario});
    let end = [
        json!({"seen": "ended", "incarnation": 0, "expected": true}),
        json!({"seen": "final", "state": {"topics": {}, "effects": []}}),
    ];
    let lines: Vec<String> = [start]
        .into_iter()
        .chain(seen)
        .chain(end)
        .enumerate()
        .map(|(n, mut entry)| {
            entry["t"] = json!(n * 1_000);
            entry.to_string()
        })
        .collect();
    read(lines.join("\n").as_bytes()).expect("entries")
}

fn produce_refused_with(status: u16, body: &Value) -> Vec<Entry> {
    let message = json!({"topic": "t", "value": "v", "idempotency_key": "k", "deadline": "2026-01-01T00:00:00.000Z"});
    let mut call = message.clone();
    call["op"] = json!("produce");
    let error = json!({"kind": "invalid", "status": 400, "message": "deadline has passed", "retry_is_safe": false});
    trace(vec![
        json!({"seen": "call", "incarnation": 0, "id": 1, "request": call}),
        json!({
            "seen": "request", "exchange": 1, "incarnation": 0, "connection": 1, "method": "POST",
            "target": "/v1/produce", "batch": false,
            "body": {"topic": "t", "value": "v", "envelope": {"idempotency_key": "k"}},
        }),
        json!({"seen": "end", "exchange": 1, "status": status, "body": body, "complete": true}),
        json!({"seen": "answer", "incarnation": 0, "answer": {"id": 1, "error": error}}),
    ])
}

#[test]
fn produce_that_the_broker_refuses_after_its_deadline_is_acquitted() {
    let passed = json!({"error": "INVALID_ARGUMENT", "message": "deadline has passed"});
    assert_eq!(judge(&produce_refused_with(400, &passed)), []);
}

#[test]
fn deadline_that_only_the_client_says_has_passed_is_convicted() {
    let produced = json!({"topic": "t", "partition": 0, "offset": 0});
    let convictions = judge(&produce_refused_with(200, &produced));
    assert!(convictions.iter().any(|conviction| conviction.rule == "wrong_answer"), "{convictions:?}");
}

/// A side effect that runs for two deliveries of a message. Its client gives the message back `given_back_ms` after it
/// asked for the first grant, without having recorded anything.
fn side_effect_twice(given_back_ms: u64) -> Vec<Entry> {
    let scenario = json!({
        "name": "s", "about": "", "end": {"effects": false},
        "workers": [{
            "worker": "w", "topic": "t", "group": "g", "concurrency": 1, "lease_ms": 1_000,
            "handler": [{"do": "side_effect", "name": "charge", "args": 1}],
        }],
    });
    let request = |exchange: u64, target: &str, body: Value| {
        json!({
            "seen": "request", "exchange": exchange, "incarnation": 0, "connection": exchange, "method": "POST",
            "target": target, "batch": false, "body": body,
        })
    };
    let end = |exchange: u64, body: Value| json!({"seen": "end", "exchange": exchange, "status": 200, "body": body, "complete": true});
    let line = |token: &str, attempts: u64| {
        let line = json!({
            "partition": 0, "offset": 3, "lease_token": token, "attempts": attempts,
            "envelope": {"idempotency_key": "k"},
        });
        json!({"seen": "line", "exchange": 0, "line": line})
    };
    let begin = json!({"scope": {"kind": "task", "id": "t:g:k"}, "key": "charge:hash", "owner": "o"});
    let granted = |token: &str| json!({"decision": "EXECUTE", "lease_token": token});
    let effect = |attempt: u64| {
        json!({
            "seen": "effect", "incarnation": 0, "name": "charge", "message": "t/0/3", "attempt": attempt, "worker": "w",
        })
    };
    let settle = |token: &str| json!({"topic": "t", "group": "g", "partition": 0, "offset": 3, "lease_token": token});
    let extended = json!({"lease_until": ""});
    let seen = [
        (0, json!({"seen": "run", "adapter": "a", "seed": 1, "scenario": scenario})),
        (1, request(0, "/v1/consume?topic=t&group=g&prefetch=1", Value::Null)),
        (2, line("d1", 1)),
        (10, request(1, "/v1/idempotency/begin", begin.clone())),
        (11, end(1, granted("e1"))),
        (12, effect(1)),
        (given_back_ms / 2, request(2, "/v1/extend", settle("d1"))),
        (given_back_ms / 2 + 1, end(2, extended)),
        (10 + given_back_ms, request(3, "/v1/nack", settle("d1"))),
        (11 + given_back_ms, end(3, Value::Null)),
        (1_500, line("d2", 2)),
        (1_501, request(4, "/v1/idempotency/begin", begin)),
        (1_502, end(4, granted("e2"))),
        (1_503, effect(2)),
        (1_504, json!({"seen": "final", "state": {"topics": {}, "effects": []}})),
    ];
    let lines: Vec<String> = seen
        .into_iter()
        .map(|(ms, mut entry): (u64, Value)| {
            entry["t"] = json!(ms * 1_000);
            entry.to_string()
        })
        .collect();
    read(lines.join("\n").as_bytes()).expect("entries")
}

fn has_run_twice(entries: &[Entry]) -> bool {
    judge(entries).iter().any(|conviction| conviction.rule == "effect_twice")
}

#[test]
fn side_effect_whose_message_was_given_back_too_early_has_run_twice() {
    assert!(has_run_twice(&side_effect_twice(400)));
    assert!(has_run_twice(&side_effect_twice(990)));
}

#[test]
fn side_effect_whose_lease_had_to_count_as_lost_may_run_again() {
    assert!(!has_run_twice(&side_effect_twice(1_010)));
}
