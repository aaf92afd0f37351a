//! Beyond v1: what workers report, batches of it, and binary payloads.

use std::time::Duration;

use serde_json::{Value, json};

use super::beyond::supported;
use super::dead_letters::dead_letter_of;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe, SILENCE, Worker};
use crate::conformance::verdict::{Finding, Verdict, brief, ensure, ensure_status, not_applicable, pass};
use crate::http::Reply;

const VERDICTS: &str = "Beyond v1: what workers report";
const BATCHES: &str = "Beyond v1: batches and payloads";

pub(super) const CASES: &[Case] = &[
    case(
        VERDICTS,
        "nack_not_retryable",
        "a nack with retryable=false dead-letters at once, reason non_retryable",
        nack_not_retryable,
    ),
    case(
        VERDICTS,
        "complete_dead_letter",
        "a complete with dead_letter=true dead-letters its message and produces its outputs",
        complete_dead_letter,
    ),
    case(
        VERDICTS,
        "finish_dead_letter",
        "a finish as FAILED_FINAL with dead_letter=true dead-letters the message of its delivery",
        finish_dead_letter,
    ),
    case(
        VERDICTS,
        "finish_success_failure",
        "SUCCESS and FAILURE are other names of outcomes, stored as SUCCEEDED and FAILED_RETRYABLE",
        finish_success_failure,
    ),
    case(
        VERDICTS,
        "produce_already_done",
        "a produce of an identity that every group has completed is told so, and not delivered",
        already_done,
    ),
    case(BATCHES, "batch_of_nacks", "NDJSON of nacks: a line for each, malformed ones too", nacks),
    case(BATCHES, "batch_of_completes", "NDJSON of completes: a line for each, malformed ones too", completes),
    case(BATCHES, "batch_of_begins", "NDJSON of begins: a line for each, malformed ones too", begins),
    case(BATCHES, "batch_of_finishes", "NDJSON of finishes: a line for each, malformed ones too", finishes),
    case(BATCHES, "value_base64", "a payload that is not UTF-8 goes in and comes out as value_base64", value_base64),
];

fn with(mut body: Value, more: Value) -> Value {
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

/// A topic with one message that was delivered, and its worker.
fn delivered<'a>(probe: &'a Probe<'a>, envelope: &Value) -> Result<(String, Worker<'a>, Item), Verdict> {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", envelope)?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let item = worker.next()?;
    Ok((topic, worker, item))
}

/// The claim of a delivery with its token.
fn step(worker: &Worker<'_>, item: &Item, more: Value) -> Value {
    with(with(worker.claim(item).json(), json!({ "lease_token": item.json["lease_token"] })), more)
}

/// The dead letter of a topic has this reason and error.
fn ensure_dead_letter(probe: &Probe<'_>, topic: &str, error: &str) -> Result<(), Verdict> {
    let dead_letter = dead_letter_of(probe, topic)?;
    let dlq = &dead_letter.envelope()["dlq"];
    let is_right = dlq["reason"] == "non_retryable" && dlq["last_error"] == error;
    ensure(is_right, format!("a dead letter, non_retryable, {error}"), &dead_letter.json)
}

fn nack_not_retryable(probe: &Probe<'_>) -> Finding {
    let (topic, worker, item) = delivered(probe, &json!({}))?;
    let body = with(worker.claim(&item).json(), json!({ "reason": "bad", "retryable": false }));
    let reply = probe.post("/v1/nack", &body)?;
    if reply.status == 400 {
        return Err(not_applicable("nack has no retryable"));
    }
    ensure(matches!(reply.status, 200..=299), "the nack to succeed", brief(&reply))?;
    ensure(probe.topics()?.contains(&format!("dlq.{topic}")), "dlq.<topic> at once", "none")?;
    ensure_dead_letter(probe, &topic, "bad")?;
    pass("dead-lettered at its first attempt")
}

fn complete_dead_letter(probe: &Probe<'_>) -> Finding {
    let (topic, worker, item) = delivered(probe, &json!({}))?;
    let next = probe.topic(1)?;
    let outcome = json!({ "dead_letter": true, "last_error": "bad", "produce": [{ "topic": next, "value": "o" }] });
    let reply = supported(probe.post("/v1/complete", &step(&worker, &item, outcome))?, "POST /v1/complete")?;
    ensure_status(&reply, 200, "a complete")?;
    ensure(probe.topics()?.contains(&format!("dlq.{topic}")), "dlq.<topic> at once", "none")?;
    ensure_dead_letter(probe, &topic, "bad")?;
    let (output, _) = probe.take(&next, "g", LONG_MS)?;
    ensure(output.value == "o", "the output", &output.json)?;
    pass("a dead letter and an output")
}

fn finish_dead_letter(probe: &Probe<'_>) -> Finding {
    let key = probe.name("key");
    let (topic, _worker, item) = delivered(probe, &json!({ "idempotency_key": key }))?;
    let delivery =
        json!({ "partition": item.partition, "offset": item.offset, "lease_token": item.json["lease_token"] });
    let identity = json!({ "scope": { "kind": "consume", "topic": topic, "group": "g" }, "key": key });
    let granted = begin(probe, with(identity.clone(), json!({ "delivery": delivery })))?;
    let outcome = json!({
        "lease_token": granted.json()["lease_token"], "status": "FAILED_FINAL", "last_error": "bad", "dead_letter": true,
        "delivery": delivery,
    });
    ensure_status(&probe.post("/v1/idempotency/finish", &with(identity, outcome))?, 200, "a finish")?;
    ensure(probe.topics()?.contains(&format!("dlq.{topic}")), "dlq.<topic> at once", "none")?;
    ensure_dead_letter(probe, &topic, "bad")?;
    pass("a dead letter")
}

fn begin(probe: &Probe<'_>, identity: Value) -> Result<Reply, Verdict> {
    let body = with(identity, json!({ "owner": "w", "lease_ms": LONG_MS }));
    supported(probe.post("/v1/idempotency/begin", &body)?, "idempotency store over HTTP")
}

fn finish_success_failure(probe: &Probe<'_>) -> Finding {
    let tenant = probe.name("tenant");
    for (key, sent, stored) in [("s", "SUCCESS", "SUCCEEDED"), ("f", "FAILURE", "FAILED_RETRYABLE")] {
        let identity = json!({ "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": key });
        let token = begin(probe, identity.clone())?.json()["lease_token"].clone();
        let finish = with(identity, json!({ "lease_token": token, "status": sent }));
        ensure_status(&probe.post("/v1/idempotency/finish", &finish)?, 200, &format!("a finish as {sent}"))?;
        let reply = probe.get(&format!("/v1/idempotency?tenant_id={tenant}&kind=tenant&key={key}"))?;
        ensure(reply.json()["status"] == stored, stored, brief(&reply))?;
    }
    pass("both are accepted and stored under their own names")
}

fn already_done(probe: &Probe<'_>) -> Finding {
    // Five partitions, one of which is used: the stub knows the case by it.
    let topic = probe.topic(5)?;
    let body = json!({ "topic": topic, "value": "v", "envelope": { "idempotency_key": probe.name("key"), "partition_override": 0 } });
    probe.produce_body(&body)?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let item = worker.next()?;
    let completed = probe.post("/v1/complete", &step(&worker, &item, json!({})))?;
    ensure_status(&supported(completed, "POST /v1/complete")?, 200, "a complete")?;
    // A server whose window is a millisecond has forgotten the key now.
    std::thread::sleep(Duration::from_millis(50));
    let reply = probe.post("/v1/produce", &body)?;
    if reply.json()["duplicate"] == true {
        return Err(not_applicable("the key is still remembered; a window of a millisecond shows it"));
    }
    worker.expect_nothing(SILENCE, "no delivery of what is already done")?;
    ensure(reply.json()["already_done"] == true, "already_done", brief(&reply))?;
    pass("told, and not delivered")
}

/// Sends lines with a malformed one in the middle; the status of each response line, and the lines.
fn batch(probe: &Probe<'_>, route: &str, lines: [&Value; 2]) -> Result<Vec<Value>, Verdict> {
    let body = format!("{}\n{{\"topic\":\n{}\n", lines[0], lines[1]);
    let reply = probe.send("POST", route, &[("Content-Type", "application/x-ndjson")], &body)?;
    let reply = supported(reply, route)?;
    if reply.status == 400 {
        return Err(not_applicable(format!("no NDJSON on {route}")));
    }
    ensure_status(&reply, 200, &format!("a batch to {route}"))?;
    let lines: Vec<Value> = reply.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap_or(0)).collect();
    let is_right = matches!(statuses[..], [200..=299, 400, 200..=299]);
    ensure(is_right, "success, 400, success", brief(&reply))?;
    Ok(lines)
}

/// Two deliveries of a topic.
fn two<'a>(probe: &'a Probe<'a>) -> Result<(Worker<'a>, Item, Item), Verdict> {
    let topic = probe.topic(2)?;
    probe.produce_to(&topic, 0, "a")?;
    probe.produce_to(&topic, 1, "b")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let (first, second) = (worker.next()?, worker.next()?);
    Ok((worker, first, second))
}

fn nacks(probe: &Probe<'_>) -> Finding {
    let (mut worker, first, second) = two(probe)?;
    let lines = [&first, &second].map(|item| with(worker.claim(item).json(), json!({ "reason": "r" })));
    batch(probe, "/v1/nack", [&lines[0], &lines[1]])?;
    let mut again: Vec<i64> = worker.take(2)?.iter().map(|item| item.offset).collect();
    again.sort_unstable();
    let mut both = [first.offset, second.offset];
    both.sort_unstable();
    ensure(again == both, "both again", format!("{again:?}"))?;
    pass("both are delivered again")
}

fn completes(probe: &Probe<'_>) -> Finding {
    let (worker, first, second) = two(probe)?;
    let next = probe.topic(1)?;
    let output = json!({ "produce": [{ "topic": next, "value": "o" }] });
    let lines = [&first, &second].map(|item| step(&worker, item, output.clone()));
    batch(probe, "/v1/complete", [&lines[0], &lines[1]])?;
    let outputs = probe.drain(&next, "g")?;
    ensure(outputs.len() == 2, "two outputs", outputs.len())?;
    pass("two outputs")
}

/// Two effects of a new tenant, as the fields of a begin.
fn effects(probe: &Probe<'_>) -> [Value; 2] {
    let tenant = probe.name("tenant");
    ["a", "b"].map(|key| json!({ "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": key }))
}

fn begun(probe: &Probe<'_>, effects: &[Value; 2]) -> Result<[Value; 2], Verdict> {
    let lines = effects.each_ref().map(|effect| with(effect.clone(), json!({ "owner": "w", "lease_ms": LONG_MS })));
    let replies = batch(probe, "/v1/idempotency/begin", [&lines[0], &lines[1]])?;
    let decisions = [&replies[0]["decision"], &replies[2]["decision"]];
    ensure(decisions == ["EXECUTE", "EXECUTE"], "EXECUTE twice", format!("{replies:?}"))?;
    Ok([replies[0]["lease_token"].clone(), replies[2]["lease_token"].clone()])
}

fn begins(probe: &Probe<'_>) -> Finding {
    let [first, second] = begun(probe, &effects(probe))?;
    ensure(first != second, "two grants", first)?;
    pass("two grants")
}

fn finishes(probe: &Probe<'_>) -> Finding {
    let effects = effects(probe);
    let mut lines = effects.clone();
    for line in &mut lines {
        let token = begin(probe, line.clone())?.json()["lease_token"].clone();
        (line["lease_token"], line["status"]) = (token, json!("SUCCEEDED"));
    }
    batch(probe, "/v1/idempotency/finish", [&lines[0], &lines[1]])?;
    for effect in effects {
        let reply = begin(probe, effect)?;
        ensure(reply.json()["decision"] == "REPLAY", "REPLAY", brief(&reply))?;
    }
    pass("both are finished")
}

fn value_base64(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    // The bytes ff fe 00 01.
    let body = json!({ "topic": topic, "value_base64": "//4AAQ==" });
    let reply = probe.post("/v1/produce", &body)?;
    if reply.status == 400 {
        return Err(not_applicable("no value_base64"));
    }
    ensure_status(&reply, 200, "a binary payload")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    let is_right = item.json["value_base64"] == "//4AAQ==" && item.json.get("value").is_none();
    ensure(is_right, "the same bytes as value_base64, and no value", &item.json)?;
    pass("the same bytes")
}
