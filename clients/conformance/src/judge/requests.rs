//! Requests: which are repeated, and what they must carry.

use std::collections::HashMap;

use serde_json::Value;

use super::Conviction;
use super::facts::{Call, Facts};

/// Requests about a lease: all of them show its token.
const OF_LEASES: [&str; 8] = [
    "/v1/ack",
    "/v1/nack",
    "/v1/extend",
    "/v1/release",
    "/v1/complete",
    "/v1/idempotency/finish",
    "/v1/idempotency/renew",
    "/v1/ack-cumulative",
];
/// Requests that change something by being carried out, so that sending them again after a refusal is an error.
const OUTCOMES: [&str; 5] = ["/v1/produce", "/v1/complete", "/v1/ack", "/v1/nack", "/v1/idempotency/finish"];

pub(super) fn check(facts: &Facts, convictions: &mut Vec<Conviction>) {
    produces(facts, convictions);
    refusals(facts, convictions);
    delays(facts, convictions);
    for call in facts.calls.iter().filter(|call| OF_LEASES.contains(&call.path.as_str())) {
        if call.body["lease_token"].as_str().is_none_or(str::is_empty) {
            convictions.push(Conviction {
                rule: "no_token",
                text: format!("{} shows no token", call.path),
                entries: vec![call.entry],
            });
        }
    }
}

/// The idempotency key of a produce.
fn key(call: &Call) -> Option<&str> {
    call.body["envelope"]["idempotency_key"].as_str().or(call.idempotency_key.as_deref()).filter(|key| !key.is_empty())
}

/// In a scenario, values are unique: a produce of the same value is the same message again.
fn produces(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let mut sent: HashMap<(&Value, &Value), Vec<&Call>> = HashMap::new();
    for call in facts.calls.iter().filter(|call| call.path == "/v1/produce") {
        let before = sent.entry((&call.body["topic"], &call.body["value"])).or_default();
        if let Some(first) = before.iter().find(|first| key(first) != key(call)) {
            convictions.push(Conviction {
                rule: "other_key",
                text: format!("{} is produced with the keys {:?} and {:?}", call.body["value"], key(first), key(call)),
                entries: vec![first.entry, call.entry],
            });
        }
        let doubtful = before.iter().find(|first| !first.is_without_effect());
        if let Some(first) = doubtful.filter(|_| key(call).is_none()) {
            convictions.push(Conviction {
                rule: "unsafe_repeat",
                text: format!("{} is produced again without an idempotency key", call.body["value"]),
                entries: vec![first.entry, call.entry],
            });
        }
        before.push(call);
    }
}

/// A failure that names a delay is nacked with it.
fn delays(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for call in facts.calls.iter().filter(|call| call.path == "/v1/nack") {
        let reason = call.body["reason"].as_str().unwrap_or_default();
        let delivery = call.delivery_token().and_then(|token| facts.delivery(token));
        let handler = delivery.and_then(|delivery| facts.worker_of(delivery)).map(|worker| &worker.handler);
        let failed = handler
            .into_iter()
            .flatten()
            .find(|step| step["delay_ms"].is_u64() && step["text"].as_str().is_some_and(|text| reason.contains(text)));
        if let Some(step) = failed.filter(|step| step["delay_ms"] != call.body["delay_ms"]) {
            convictions.push(Conviction {
                rule: "other_delay",
                text: format!(
                    "{reason:?} is nacked with a delay of {}, not {}",
                    call.body["delay_ms"], step["delay_ms"]
                ),
                entries: vec![call.entry],
            });
        }
    }
}

/// A request that was refused for what it says, and is sent again as it was.
fn refusals(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let mut refused: HashMap<(usize, &str, String), &Call> = HashMap::new();
    for call in facts.calls.iter().filter(|call| OUTCOMES.contains(&call.path.as_str())) {
        let request = (call.incarnation, call.path.as_str(), call.body.to_string());
        // Not of a pair that was on its way at the same time.
        if let Some(first) = refused.get(&request).filter(|first| first.ended < call.sent) {
            convictions.push(Conviction {
                rule: "repeat_after_refusal",
                text: format!("{} is sent again after it was refused with {}", call.path, first.status),
                entries: vec![first.entry, call.entry],
            });
        }
        if (400..500).contains(&call.status) && call.status != 429 {
            refused.entry(request).or_insert(call);
        }
    }
}
