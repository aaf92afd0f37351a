//! A service with idempotent requests.

use serde_json::{Value, json};

use super::{Broker, with};

/// The response to a caller.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// The result of this or an earlier request.
    Result(Value),
    /// Retry in this many milliseconds.
    Later(u64),
    /// It failed and will be retried.
    WillBeRetried,
    /// The key belongs to another request.
    Misused,
    /// Another handler has taken over.
    Superseded,
}

/// Handles a request with an idempotency key.
pub fn handle(
    broker: &dyn Broker,
    caller: &str,
    key: &str,
    request: &Value,
    run: impl FnOnce(&Value) -> Result<Value, String>,
) -> Answer {
    let (status, begun) = broker.post(
        "/v1/idempotency/begin",
        json!({
            "scope": { "kind": "rpc", "principal": caller, "method": "/payments.Payments/Charge" },
            "key": key,
            "owner": "payments-1",
            "lease_ms": 30_000,
            "ttl_ms": 24 * 60 * 60 * 1_000,
            "request_hash": hash_of(request),
        }),
    );
    match (status, begun["decision"].as_str()) {
        (200, Some("EXECUTE")) => finish(broker, caller, key, &begun["lease_token"], run(request)),
        (200, Some("REPLAY")) => Answer::Result(begun["result"].clone()),
        (200, Some("RETRYABLE")) => Answer::WillBeRetried,
        (409, Some("IN_PROGRESS")) => Answer::Later(begun["retry_after_ms"].as_u64().unwrap_or(1_000)),
        (422, _) => Answer::Misused,
        other => panic!("begin: {other:?} {begun}"),
    }
}

/// Retries a request that failed or whose lease expired.
pub fn retry(
    broker: &dyn Broker,
    caller: &str,
    key: &str,
    request: &Value,
    run: impl FnOnce(&Value) -> Result<Value, String>,
) -> Answer {
    let reacquire = json!({
        "scope": { "kind": "rpc", "principal": caller, "method": "/payments.Payments/Charge" },
        "key": key,
        "owner": "retrier-1",
        "lease_ms": 30_000,
    });
    match broker.post("/v1/idempotency/reacquire", reacquire) {
        (200, granted) => finish(broker, caller, key, &granted["lease_token"], run(request)),
        (409, _) => Answer::Superseded,
        other => panic!("reacquire: {other:?}"),
    }
}

fn finish(broker: &dyn Broker, caller: &str, key: &str, token: &Value, ran: Result<Value, String>) -> Answer {
    let body = json!({
        "scope": { "kind": "rpc", "principal": caller, "method": "/payments.Payments/Charge" },
        "key": key,
        "lease_token": token,
    });
    let outcome = match &ran {
        Ok(result) => json!({ "status": "SUCCEEDED", "result": result }),
        Err(error) => json!({ "status": "FAILED_RETRYABLE", "last_error": error }),
    };
    match (broker.post("/v1/idempotency/finish", with(body, outcome)), ran) {
        ((200, _), Ok(result)) => Answer::Result(result),
        ((200, _), Err(_)) => Answer::WillBeRetried,
        // The lease expired and another handler was granted the request: this outcome is discarded.
        ((409, _), _) => Answer::Superseded,
        (other, _) => panic!("finish: {other:?}"),
    }
}

/// A hash of the request: FNV-1a over its canonical JSON, whose keys are sorted. It must be the same in every version
/// of the program and on every machine, which a language's own hash is not. Where callers may be hostile, use SHA-256.
fn hash_of(request: &Value) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = request.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x}")
}

#[test]
fn hash_of_a_request_never_changes() {
    assert_eq!(hash_of(&json!({ "amount": 12, "to": "é" })), hash_of(&json!({ "to": "é", "amount": 12 })));
    assert_eq!(hash_of(&json!({ "amount": 12 })), "4d7397969f70fe22");
    assert_ne!(hash_of(&json!({ "amount": 12 })), hash_of(&json!({ "amount": 13 })));
}
