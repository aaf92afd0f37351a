//! v1.1: producer backpressure, and the limits of "Current implementation defaults".
//!
//! A server's limits are unknown, so the specification's defaults are tried. With larger limits the cases are not
//! applicable.

use serde_json::json;

use super::expect::fill_partition;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::Probe;
use crate::conformance::verdict::{Finding, Verdict, brief, deviates, ensure, fail, not_applicable, pass};
use crate::http::Reply;

const BACKPRESSURE: &str = "v1.1 Producer backpressure";
const DEFAULTS: &str = "Current implementation defaults";

/// Messages after which a limit is no longer looked for.
const TRIED_MAX: usize = 5;

pub(super) const CASES: &[Case] = &[
    case(BACKPRESSURE, "overload_status", "a produce beyond a partition's message limit is rejected with 429", status),
    case(BACKPRESSURE, "overload_retry_after", "429 has a Retry-After header in seconds", retry_after),
    case(
        BACKPRESSURE,
        "overload_body",
        "429 has error RESOURCE_EXHAUSTED, message, reason overloaded and retry_after_ms",
        body,
    ),
    case(BACKPRESSURE, "overload_not_enqueued", "a rejected message is not enqueued", not_enqueued),
    case(BACKPRESSURE, "overload_per_partition", "the limits are each partition's own", per_partition),
    case(BACKPRESSURE, "overload_ends", "acked messages free capacity", ends),
    case(
        BACKPRESSURE,
        "overload_bytes",
        "a produce beyond a partition's byte limit (key + value) is rejected with 429",
        bytes,
    ),
    case(
        BACKPRESSURE,
        "overload_lone_message",
        "a message that alone exceeds the byte limit is rejected",
        lone_message,
    ),
    case(DEFAULTS, "default_partition_messages", "maxPartitionMsgs is 2", default_messages),
    case(DEFAULTS, "default_partition_bytes", "maxPartitionBytes is 20", default_bytes),
    case(DEFAULTS, "default_idempotency_ttl", "the idempotency TTL is 10 minutes", default_ttl),
];

/// The response of a full partition, and how many messages it holds.
fn overloaded(probe: &Probe<'_>, topic: &str) -> Result<(Reply, usize), Verdict> {
    let accepted = fill_partition(probe, topic, TRIED_MAX)?;
    if accepted == TRIED_MAX {
        return Err(not_applicable(format!(
            "a partition accepts {accepted} messages or more: larger limits than v1's"
        )));
    }
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "x" }))?;
    ensure(reply.status == 429, "429 again from a full partition", brief(&reply))?;
    Ok((reply, accepted))
}

fn status(probe: &Probe<'_>) -> Finding {
    let (reply, accepted) = overloaded(probe, &probe.topic(1)?)?;
    pass(format!("{accepted} accepted, then {}", reply.status))
}

fn retry_after(probe: &Probe<'_>) -> Finding {
    let (reply, _) = overloaded(probe, &probe.topic(1)?)?;
    let header = reply.header("retry-after").unwrap_or("none");
    ensure(header.parse::<u32>().is_ok(), "Retry-After in seconds", header)?;
    pass(format!("Retry-After: {header}"))
}

fn body(probe: &Probe<'_>) -> Finding {
    let (reply, _) = overloaded(probe, &probe.topic(1)?)?;
    let json = reply.json();
    let named = json["error"] == "RESOURCE_EXHAUSTED" && json["reason"] == "overloaded";
    let detailed = json["message"].is_string() && json["retry_after_ms"].is_u64();
    ensure(named && detailed, "RESOURCE_EXHAUSTED, a message, overloaded, retry_after_ms", brief(&reply))?;
    pass(brief(&reply))
}

fn not_enqueued(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (_, accepted) = overloaded(probe, &topic)?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.len() == accepted, format!("{accepted} messages"), format!("{} of them", items.len()))?;
    pass(format!("{accepted} accepted, {accepted} delivered"))
}

fn per_partition(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    overloaded(probe, &topic)?;
    probe.produce_to(&topic, 1, "v")?;
    pass("partition 0 is full, partition 1 accepts a message")
}

fn ends(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    overloaded(probe, &topic)?;
    probe.drain(&topic, "g")?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "x" }))?;
    match reply.status {
        200 => pass("a message is accepted after the acks"),
        429 => Err(not_applicable("acks free no capacity here, and the specification does not require it")),
        _ => Err(fail("200 or 429", brief(&reply))),
    }
}

/// Two messages of 12 and 9 bytes, keys included: one byte more than 20.
fn bytes_beyond(probe: &Probe<'_>) -> Result<Reply, Verdict> {
    let topic = probe.topic(1)?;
    probe.produce_body(&json!({ "topic": topic, "key": "1234", "value": "12345678" }))?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "key": "1234", "value": "12345" }))?;
    if reply.status == 200 {
        return Err(not_applicable("a partition accepts 21 bytes or more: larger limits than v1's"));
    }
    Ok(reply)
}

fn bytes(probe: &Probe<'_>) -> Finding {
    let reply = bytes_beyond(probe)?;
    ensure(reply.status == 429, "429", brief(&reply))?;
    pass(brief(&reply))
}

fn lone_message(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "123456789012345678901" }))?;
    match reply.status {
        429 => pass(brief(&reply)),
        413 => deviates("413", "a retry cannot succeed, so it is not overload: docs/http.md"),
        200 => Err(not_applicable("a partition accepts 21 bytes or more: larger limits than v1's")),
        _ => Err(fail("429", brief(&reply))),
    }
}

fn default_messages(probe: &Probe<'_>) -> Finding {
    let (_, accepted) = overloaded(probe, &probe.topic(1)?)?;
    if accepted == 2 { pass("the third is refused") } else { Err(not_applicable(format!("{accepted} are configured"))) }
}

fn default_bytes(probe: &Probe<'_>) -> Finding {
    bytes_beyond(probe)?;
    let topic = probe.topic(1)?;
    probe.produce(&topic, "12345678901234567890")?;
    pass("20 bytes are accepted, 21 are not")
}

fn default_ttl(_: &Probe<'_>) -> Finding {
    Err(not_applicable("observing it takes ten minutes"))
}
