//! HTTP API Reference: `GET /v1/consume`, `POST /v1/ack`, `POST /v1/nack`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Claim, LONG_MS, Probe, SHORT_MS};
use crate::conformance::verdict::{
    Finding, Verdict, brief, deviates, ensure, ensure_status, fail, not_applicable, pass,
};
use crate::http::{Reply, Request};

const CONSUME: &str = "HTTP API: consume";
const SETTLE: &str = "HTTP API: ack and nack";

pub(super) const CASES: &[Case] = &[
    case(CONSUME, "consume_content_type", "a stream is application/x-ndjson; charset=utf-8", content_type),
    case(
        CONSUME,
        "consume_item_shape",
        "an item has partition, offset, attempts, key, value and last_error",
        item_shape,
    ),
    case(CONSUME, "consume_by_json", "GET /v1/consume accepts its parameters in a JSON body", by_json),
    case(
        CONSUME,
        "consume_missing_parameters",
        "a consume without topic, group or owner is refused with 400",
        missing_parameters,
    ),
    case(
        CONSUME,
        "consume_unknown_field",
        "a consume with an unknown field in its body is refused with 400",
        consume_unknown_field,
    ),
    case(CONSUME, "consume_default_lease", "without lease_ms a lease lasts 2000 ms", default_lease),
    case(CONSUME, "consume_lease_ms", "lease_ms sets how long a lease lasts", lease_ms),
    case(CONSUME, "consume_lease_bounds", "a lease_ms of any length is accepted and held within bounds", lease_bounds),
    case(SETTLE, "ack_by_json", "POST /v1/ack with a JSON body returns 204 without a body", ack_by_json),
    case(SETTLE, "ack_by_query", "POST /v1/ack with a query returns 204 without a body", ack_by_query),
    case(
        SETTLE,
        "ack_not_owner",
        "an ack by another owner returns 409 {\"error\":\"FAILED_PRECONDITION\",\"message\":\"not owner\"}",
        ack_not_owner,
    ),
    case(
        SETTLE,
        "ack_not_owner_changes_nothing",
        "an ack by another owner leaves the message with its owner",
        ack_not_owner_changes_nothing,
    ),
    case(SETTLE, "ack_undelivered", "an ack of a message that was never delivered is refused", ack_undelivered),
    case(SETTLE, "ack_missing_parameters", "an ack that lacks a parameter is refused with 400", ack_missing_parameters),
    case(SETTLE, "ack_unknown_field", "an ack with an unknown field is refused with 400", ack_unknown_field),
    case(SETTLE, "nack_by_json", "POST /v1/nack with a JSON body returns 204 without a body", nack_by_json),
    case(SETTLE, "nack_by_query", "POST /v1/nack with a query returns 204 without a body", nack_by_query),
    case(
        SETTLE,
        "nack_not_owner",
        "a nack by another owner returns 409 {\"error\":\"FAILED_PRECONDITION\",\"message\":\"not owner\"}",
        nack_not_owner,
    ),
    case(
        SETTLE,
        "nack_missing_parameters",
        "a nack that lacks a parameter is refused with 400",
        nack_missing_parameters,
    ),
    case(SETTLE, "nack_unknown_field", "a nack with an unknown field is refused with 400", nack_unknown_field),
];

fn content_type(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let worker = probe.worker(&topic, "g", LONG_MS)?;
    let seen = worker.stream.head.header("content-type").unwrap_or("none").to_owned();
    let plain: String = seen.to_lowercase().split_whitespace().collect();
    ensure(plain == "application/x-ndjson;charset=utf-8", "application/x-ndjson; charset=utf-8", &seen)?;
    pass(seen)
}

fn item_shape(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_body(&json!({ "topic": topic, "key": "k", "value": "v" }))?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    let json = &item.json;
    for name in ["partition", "offset", "attempts"] {
        ensure(json[name].is_u64(), format!("{name} as a number"), json)?;
    }
    for (name, value) in [("key", "k"), ("value", "v")] {
        ensure(json[name] == value, format!("{name} {value:?}"), json)?;
    }
    // An absent field means the same as an empty one.
    ensure(json["last_error"] == "" || json["last_error"].is_null(), "an empty last_error", json)?;
    pass("every field")
}

fn by_json(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let owner = probe.name("w");
    let body = json!({ "topic": topic, "group": "g", "owner": owner, "lease_ms": LONG_MS }).to_string();
    let headers = [("Content-Type", "application/json")];
    let request = Request { method: "GET", target: "/v1/consume", headers: &headers, body: &body };
    let mut worker = probe.worker_with(&request, &topic, "g", &owner)?;
    let item = worker.next()?;
    worker.ack(&item)?;
    pass("a stream with the message")
}

fn missing_parameters(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let all = [("topic", topic.as_str()), ("group", "g"), ("owner", "w")];
    for (missing, _) in all {
        let rest = all.iter().filter(|(name, _)| *name != missing);
        let query: Vec<String> = rest.map(|(name, value)| format!("{name}={value}")).collect();
        // As a stream, so that a server that opens one does not keep the case waiting for its end.
        let status = probe.stream_status(&format!("/v1/consume?{}", query.join("&")))?;
        ensure(status == 400, format!("400 to a consume without {missing}"), status)?;
    }
    pass("400 for each of the three")
}

fn consume_unknown_field(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = json!({ "topic": topic, "group": "g", "owner": "w", "colour": "red" });
    let status = probe.stream_status_with_body("/v1/consume", &body.to_string())?;
    ensure(status == 400, "400 to an unknown field", status)?;
    pass("400")
}

/// The observed duration of the lease of a first delivery.
fn observed_lease(probe: &Probe<'_>, lease: &str) -> Result<Duration, Verdict> {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let query = format!("/v1/consume?topic={topic}&group=g&owner=w{lease}");
    let mut worker = probe.worker_with(&Request::get(&query), &topic, "g", "w")?;
    let (first, second) = (worker.next()?, worker.next()?);
    worker.ack(&second)?;
    Ok(second.at - first.at)
}

/// The lease that a delivery states, in milliseconds, if it states its end.
fn stated_lease(probe: &Probe<'_>, lease: &str) -> Result<Option<i64>, Verdict> {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let query = format!("/v1/consume?topic={topic}&group=g&owner=w{lease}");
    let mut worker = probe.worker_with(&Request::get(&query), &topic, "g", "w")?;
    let item = worker.next()?;
    let time = |name: &str| item.json[name].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let (from, until) = (time("produced_at"), time("lease_until"));
    Ok(from.zip(until).map(|(from, until)| until.as_millisecond() - from.as_millisecond()))
}

fn default_lease(probe: &Probe<'_>) -> Finding {
    if let Some(stated) = stated_lease(probe, "")?.filter(|stated| *stated >= 10_000) {
        let reason = "in production a lease lasts 30 s, so that slow work is not delivered twice: docs/http.md";
        return deviates(format!("a lease of {stated} ms"), reason);
    }
    let seen = observed_lease(probe, "")?.as_millis();
    ensure((1_800..4_000).contains(&seen), "a redelivery after some 2000 ms", format!("one after {seen} ms"))?;
    pass(format!("redelivered after {seen} ms"))
}

fn lease_ms(probe: &Probe<'_>) -> Finding {
    // Longer than the default: a busy server may be late, but never early.
    let seen = observed_lease(probe, "&lease_ms=3200")?.as_millis();
    ensure(seen >= 2_900, "no redelivery before 3200 ms", format!("one after {seen} ms"))?;
    pass(format!("redelivered after {seen} ms"))
}

fn lease_bounds(probe: &Probe<'_>) -> Finding {
    const DAY_MS: i64 = 86_400_000;
    let mut seen = Vec::new();
    for requested in [1, i64::MAX] {
        let Some(stated) = stated_lease(probe, &format!("&lease_ms={requested}"))? else {
            return Err(not_applicable("deliveries do not state the end of their lease"));
        };
        ensure((1..=2 * DAY_MS).contains(&stated), "a lease of 1 ms to 2 days", format!("{stated} for {requested}"))?;
        seen.push(stated);
    }
    pass(format!("leases of {seen:?} ms"))
}

/// The claim of a delivery whose worker has disconnected.
fn delivered(probe: &Probe<'_>) -> Result<Claim, Verdict> {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    Ok(probe.take(&topic, "g", LONG_MS)?.1)
}

fn no_content(reply: &Reply, request: &str) -> Finding {
    ensure_status(reply, 204, request)?;
    ensure(reply.body.is_empty(), "no body", brief(reply))?;
    pass("204")
}

fn ack_by_json(probe: &Probe<'_>) -> Finding {
    no_content(&probe.ack(&delivered(probe)?)?, "an ack")
}

fn ack_by_query(probe: &Probe<'_>) -> Finding {
    let claim = delivered(probe)?;
    no_content(&probe.query(&format!("/v1/ack?{}", claim.query()))?, "an ack by query")
}

fn nack_by_json(probe: &Probe<'_>) -> Finding {
    no_content(&probe.nack(&delivered(probe)?, "timeout calling upstream")?, "a nack")
}

fn nack_by_query(probe: &Probe<'_>) -> Finding {
    let claim = delivered(probe)?;
    no_content(&probe.query(&format!("/v1/nack?{}&reason=upstream", claim.query()))?, "a nack by query")
}

fn not_owner(reply: &Reply) -> Finding {
    ensure_status(reply, 409, "a claim by another owner")?;
    let expected = json!({ "error": "FAILED_PRECONDITION", "message": "not owner" });
    ensure(reply.json() == expected, expected, brief(reply))?;
    pass(brief(reply))
}

fn ack_not_owner(probe: &Probe<'_>) -> Finding {
    let claim = delivered(probe)?;
    let reply = probe.ack(&claim.by("other-owner"))?;
    probe.ack(&claim)?;
    not_owner(&reply)
}

fn nack_not_owner(probe: &Probe<'_>) -> Finding {
    let claim = delivered(probe)?;
    let reply = probe.nack(&claim.by("other-owner"), "mine")?;
    probe.ack(&claim)?;
    not_owner(&reply)
}

fn ack_not_owner_changes_nothing(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let first = worker.next()?;
    probe.ack(&worker.claim(&first).by("other-owner"))?;
    let again = worker.wait(probe.timeout())?;
    let again = again.ok_or_else(|| fail("a redelivery", "none: another owner's ack was accepted"))?;
    ensure(again.offset == first.offset, "the same message", &again.json)?;
    worker.ack(&again)?;
    pass("it was redelivered, and its owner acked it")
}

fn ack_undelivered(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (item, claim) = probe.take(&topic, "g", LONG_MS)?;
    let reply = probe.ack(&Claim { offset: item.offset + 1, ..claim.clone() })?;
    probe.ack(&claim)?;
    ensure((400..500).contains(&reply.status), "an ack of an undelivered message to be refused", brief(&reply))?;
    pass(brief(&reply))
}

/// Omits one parameter after the other, in the body and in the query.
fn without_each_parameter(probe: &Probe<'_>, route: &str) -> Finding {
    let claim = delivered(probe)?;
    let complete = claim.json();
    for missing in ["topic", "group", "partition", "offset", "owner"] {
        let fields = complete.as_object().into_iter().flatten().filter(|(name, _)| *name != missing);
        let body: Value = Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect());
        ensure_status(&probe.post(route, &body)?, 400, &format!("{route} without {missing}"))?;
        let query = claim.query();
        let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with(&format!("{missing}="))).collect();
        let reply = probe.query(&format!("{route}?{}", rest.join("&")))?;
        ensure_status(&reply, 400, &format!("{route} without {missing}, by query"))?;
    }
    probe.ack(&claim)?;
    pass("400 for each of the five")
}

fn ack_missing_parameters(probe: &Probe<'_>) -> Finding {
    without_each_parameter(probe, "/v1/ack")
}

fn nack_missing_parameters(probe: &Probe<'_>) -> Finding {
    without_each_parameter(probe, "/v1/nack")
}

fn unknown_field(probe: &Probe<'_>, route: &str) -> Finding {
    let claim = delivered(probe)?;
    let mut body = claim.json();
    body["colour"] = json!("red");
    let reply = probe.post(route, &body)?;
    probe.ack(&claim)?;
    ensure_status(&reply, 400, "an unknown field")?;
    pass(brief(&reply))
}

fn ack_unknown_field(probe: &Probe<'_>) -> Finding {
    unknown_field(probe, "/v1/ack")
}

fn nack_unknown_field(probe: &Probe<'_>) -> Finding {
    unknown_field(probe, "/v1/nack")
}
