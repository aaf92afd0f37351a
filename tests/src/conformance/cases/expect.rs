//! Expectations that several cases share.

use serde_json::Value;

use crate::conformance::probe::Probe;
use crate::conformance::verdict::{Verdict, brief, ensure};
use crate::http::Reply;

/// Fails the case unless the response is a 4xx.
pub(super) fn ensure_refused(reply: &Reply, what: &str) -> Result<(), Verdict> {
    ensure((400..500).contains(&reply.status), format!("{what} to be refused"), brief(reply))
}

/// Fails the case unless the response has these fields, among others.
pub(super) fn ensure_fields(reply: &Reply, expected: &Value) -> Result<(), Verdict> {
    let json = reply.json();
    let fields = expected.as_object().into_iter().flatten();
    let missing: Vec<&String> =
        fields.filter(|(name, value)| json.get(name) != Some(*value)).map(|(name, _)| name).collect();
    ensure(missing.is_empty(), expected, brief(reply))
}

/// Produces one-byte messages to a topic's only partition until it responds 429, at most `most`. Returns how many
/// succeeded.
pub(super) fn fill_partition(probe: &Probe<'_>, topic: &str, most: usize) -> Result<usize, Verdict> {
    for sent in 0..most {
        let body = serde_json::json!({ "topic": topic, "value": sent.to_string() });
        let reply = probe.post("/v1/produce", &body)?;
        match reply.status {
            200..=299 => {}
            429 => return Ok(sent),
            _ => ensure(false, "200 or 429 to a produce", brief(&reply))?,
        }
    }
    Ok(most)
}
