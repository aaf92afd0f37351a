//! HTTP API Reference: `POST /v1/produce`.

use serde_json::json;

use super::expect::ensure_fields;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{LONG_MS, Probe};
use crate::conformance::verdict::{Finding, brief, ensure, ensure_status, pass};

const PRODUCE: &str = "HTTP API: produce";

pub(super) const CASES: &[Case] = &[
    case(
        PRODUCE,
        "produce_by_json",
        "POST /v1/produce with a JSON body returns 200 {\"status\":\"produced\",\"topic\"}",
        by_json,
    ),
    case(PRODUCE, "produce_by_query", "POST /v1/produce?topic=&key=&value= does the same", by_query),
    case(
        PRODUCE,
        "produce_query_envelope",
        "envelope fields of the query are delivered in the envelope",
        query_envelope,
    ),
    case(
        PRODUCE,
        "produce_query_retry_policy",
        "retry_max_attempts, retry_backoff_ms and retry_max_backoff_ms make a retry policy",
        query_retry_policy,
    ),
    case(PRODUCE, "produce_alias_tenant", "tenant is an alias of tenant_id in a query", alias_tenant),
    case(PRODUCE, "produce_alias_idem_key", "idem_key is an alias of idempotency_key in a query", alias_idem_key),
    case(PRODUCE, "produce_without_a_topic", "a produce without a topic is refused with 400", without_topic),
    case(PRODUCE, "produce_without_a_value", "a produce without a value is refused with 400", without_value),
    case(PRODUCE, "produce_unknown_field", "a produce with an unknown field is refused with 400", unknown_field),
    case(
        PRODUCE,
        "produce_envelope_unknown_field",
        "an envelope with an unknown field is refused with 400",
        envelope_unknown_field,
    ),
    case(
        PRODUCE,
        "produce_malformed_deadline",
        "a deadline that is not an RFC 3339 timestamp is refused with 400",
        malformed_deadline,
    ),
];

fn by_json(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "key": "k", "value": "v" }))?;
    ensure_status(&reply, 200, "POST /v1/produce")?;
    ensure_fields(&reply, &json!({ "status": "produced", "topic": topic }))?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure((item.key.as_str(), item.value.as_str()) == ("k", "v"), "key k and value v", &item.json)?;
    pass("200 with status and topic")
}

fn by_query(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let reply = probe.query(&format!("/v1/produce?topic={topic}&key=k&value=v%20%C3%A4"))?;
    ensure_status(&reply, 200, "POST /v1/produce?…")?;
    ensure_fields(&reply, &json!({ "status": "produced", "topic": topic }))?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure((item.key.as_str(), item.value.as_str()) == ("k", "v ä"), "key k and value \"v ä\"", &item.json)?;
    pass("200 with status and topic")
}

fn query_envelope(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let fields = [
        ("run_id", json!("r1")),
        ("step_id", json!("s2")),
        ("parent_step_id", json!("s1")),
        ("tenant_id", json!("acme")),
        ("idempotency_key", json!(probe.fixed("key"))),
        ("target_topic", json!(topic)),
        ("partition_override", json!(1)),
        ("deadline", json!("2199-12-21T12:00:00Z")),
    ];
    let query = fields
        .each_ref()
        .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    let reply = probe.query(&format!("/v1/produce?topic={topic}&value=v&{}", query.join("&")))?;
    ensure_status(&reply, 200, "a produce with its envelope in the query")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    for (name, value) in fields {
        ensure(item.envelope()[name] == value, format!("{name} {value}"), item.envelope())?;
    }
    pass("all of them")
}

fn query_retry_policy(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let policy = "retry_max_attempts=5&retry_backoff_ms=250&retry_max_backoff_ms=5000";
    let reply = probe.query(&format!("/v1/produce?topic={topic}&value=v&{policy}"))?;
    ensure_status(&reply, 200, "a produce with its retry policy in the query")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    let expected = json!({ "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 });
    ensure(item.envelope()["retry_policy"] == expected, expected, item.envelope())?;
    pass("all three")
}

fn alias_tenant(probe: &Probe<'_>) -> Finding {
    alias(probe, "tenant", "tenant_id")
}

fn alias_idem_key(probe: &Probe<'_>) -> Finding {
    alias(probe, "idem_key", "idempotency_key")
}

fn alias(probe: &Probe<'_>, alias: &str, name: &str) -> Finding {
    let (topic, value) = (probe.topic(1)?, probe.fixed("value"));
    let reply = probe.query(&format!("/v1/produce?topic={topic}&value=v&{alias}={value}"))?;
    ensure_status(&reply, 200, &format!("a produce with {alias}"))?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure(item.envelope()[name] == value, format!("{name} {value}"), item.envelope())?;
    pass(format!("it is delivered as {name}"))
}

fn without_topic(probe: &Probe<'_>) -> Finding {
    ensure_status(&probe.post("/v1/produce", &json!({ "value": "v" }))?, 400, "a produce without a topic")?;
    ensure_status(&probe.query("/v1/produce?value=v")?, 400, "a produce without a topic, by query")?;
    pass("400 by JSON and by query")
}

fn without_value(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    ensure_status(&probe.post("/v1/produce", &json!({ "topic": topic }))?, 400, "a produce without a value")?;
    let reply = probe.query(&format!("/v1/produce?topic={topic}"))?;
    ensure_status(&reply, 400, "a produce without a value, by query")?;
    pass("400 by JSON and by query")
}

fn unknown_field(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "v", "colour": "red" }))?;
    ensure_status(&reply, 400, "an unknown field")?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.is_empty(), "no message from a refused produce", format!("{} of them", items.len()))?;
    pass("400, and no message")
}

fn envelope_unknown_field(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    for envelope in [json!({ "colour": "red" }), json!({ "retry_policy": { "max_attempts": 1, "colour": "red" } })] {
        let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "v", "envelope": envelope }))?;
        ensure_status(&reply, 400, &format!("an unknown field in {envelope}"))?;
    }
    pass("400 in the envelope and in its retry policy")
}

fn malformed_deadline(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let reply = probe
        .post("/v1/produce", &json!({ "topic": topic, "value": "v", "envelope": { "deadline": "next tuesday" } }))?;
    ensure_status(&reply, 400, "a deadline of \"next tuesday\"")?;
    let reply = probe.query(&format!("/v1/produce?topic={topic}&value=v&deadline=tuesday"))?;
    ensure_status(&reply, 400, "a deadline of \"tuesday\" in the query")?;
    pass(brief(&reply))
}
