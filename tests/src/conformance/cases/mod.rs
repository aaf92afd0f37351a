//! The clauses, room by room. Each room lists its cases in a table at its top and has a function for each below.

mod backpressure;
mod dead_letters;
mod durability;
mod effects;
mod envelope;
mod groups;
mod http_api;
mod http_consume;
mod http_produce;
mod idempotency;
mod offsets;
mod partitions;
mod redelivery;
mod retries;
mod router;

use serde_json::Value;

use super::probe::Probe;
use super::verdict::{Verdict, ensure, glimpse};
use super::{Case, case, durable};
use crate::http::Reply;

/// Every case, in the order of the specification.
#[must_use]
pub fn cases() -> Vec<Case> {
    let rooms = [
        http_api::CASES,
        http_produce::CASES,
        http_consume::CASES,
        groups::CASES,
        offsets::CASES,
        redelivery::CASES,
        backpressure::CASES,
        partitions::CASES,
        durability::CASES,
        envelope::CASES,
        router::CASES,
        redelivery::CASES_V1_6,
        idempotency::CASES,
        retries::CASES,
        effects::CASES,
        dead_letters::CASES,
    ];
    rooms.concat()
}

/// Ends a case whose answer is not that of a refused request: a 4xx.
fn ensure_refused(reply: &Reply, what: &str) -> Result<(), Verdict> {
    ensure((400..500).contains(&reply.status), format!("{what} to be refused"), glimpse(reply))
}

/// Ends a case whose answer has not these fields among others.
fn ensure_fields(reply: &Reply, expected: &Value) -> Result<(), Verdict> {
    let json = reply.json();
    let fields = expected.as_object().into_iter().flatten();
    let missing: Vec<&String> =
        fields.filter(|(name, value)| json.get(name) != Some(*value)).map(|(name, _)| name).collect();
    ensure(missing.is_empty(), expected, glimpse(reply))
}

/// How many one-byte messages a topic's only partition takes until it says 429, `most` at the most.
fn fill(probe: &Probe<'_>, topic: &str, most: usize) -> Result<usize, Verdict> {
    for sent in 0..most {
        let body = serde_json::json!({ "topic": topic, "value": sent.to_string() });
        let reply = probe.post("/v1/produce", &body)?;
        match reply.status {
            200..=299 => {}
            429 => return Ok(sent),
            _ => ensure(false, "200 or 429 to a produce", glimpse(&reply))?,
        }
    }
    Ok(most)
}
