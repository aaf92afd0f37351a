//! v1.4: the envelope.

use serde_json::{Value, json};

use super::expect::ensure_refused;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe, SILENCE};
use crate::conformance::verdict::{Finding, Verdict, brief, deviates, ensure, fail, pass};

const FIELDS: &str = "v1.4 Envelope fields";
const ROUTING: &str = "v1.4 Routing controls";
const POLICY: &str = "v1.4 Deadline and labels";

pub(super) const CASES: &[Case] = &[
    case(
        FIELDS,
        "envelope_workflow_identity",
        "run_id, step_id and parent_step_id are delivered as they were sent",
        workflow_identity,
    ),
    case(FIELDS, "envelope_tenant", "tenant_id is delivered as it was sent", tenant),
    case(FIELDS, "envelope_idempotency_key", "idempotency_key is delivered as it was sent", idempotency_key),
    case(FIELDS, "envelope_target_topic", "target_topic is delivered as it was sent", target_topic_field),
    case(
        FIELDS,
        "envelope_partition_override",
        "partition_override is delivered as it was sent",
        partition_override_field,
    ),
    case(FIELDS, "envelope_deadline", "deadline is delivered as it was sent", deadline_field),
    case(FIELDS, "envelope_retry_policy", "retry_policy is delivered as it was sent", retry_policy_field),
    case(FIELDS, "envelope_is_optional", "a message without an envelope is delivered without one", is_optional),
    case(FIELDS, "envelope_whole", "an envelope with every field is delivered whole", whole),
    case(FIELDS, "envelope_on_redelivery", "a redelivery has the envelope too", on_redelivery),
    case(FIELDS, "envelope_leaves_payload", "the envelope does not change the payload", leaves_payload),
    case(ROUTING, "target_topic_routes", "target_topic sends a message to that topic instead", target_topic_routes),
    case(ROUTING, "target_topic_with_override", "partition_override applies to the target topic", target_with_override),
    case(ROUTING, "target_topic_answer", "a routed produce gets 200 like any other", target_answer),
    case(POLICY, "deadline_expired", "a produce whose deadline has passed is rejected", deadline_expired),
    case(POLICY, "deadline_future", "a produce whose deadline is in the future is accepted", deadline_future),
    case(POLICY, "labels", "labels are not accepted over HTTP", labels),
    case(POLICY, "dlq_on_input", "an envelope's dlq is not accepted over HTTP", dlq_on_input),
];

/// Produces a message with an envelope and returns its delivery.
fn deliver_with(probe: &Probe<'_>, topic: &str, envelope: &Value) -> Result<Item, Verdict> {
    probe.produce_with(topic, "v", envelope)?;
    Ok(probe.take(topic, "g", LONG_MS)?.0)
}

fn round_trip(probe: &Probe<'_>, envelope: &Value) -> Finding {
    let topic = probe.topic(3)?;
    let item = deliver_with(probe, &topic, envelope)?;
    for (name, value) in envelope.as_object().into_iter().flatten() {
        ensure(item.envelope()[name] == *value, format!("{name} {value}"), item.envelope())?;
    }
    pass(envelope.to_string())
}

fn workflow_identity(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "run_id": "run_123", "step_id": "step_7", "parent_step_id": "step_3" }))
}

fn tenant(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "tenant_id": "tenant_a" }))
}

fn idempotency_key(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "idempotency_key": format!("tenant_a:{}", probe.fixed("run")) }))
}

fn target_topic_field(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let item = deliver_with(probe, &topic, &json!({ "target_topic": topic }))?;
    ensure(item.envelope()["target_topic"] == topic, format!("target_topic {topic}"), item.envelope())?;
    pass("target_topic as sent")
}

fn partition_override_field(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "partition_override": 1 }))
}

fn deadline_field(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "deadline": "2199-12-21T12:00:00Z" }))
}

fn retry_policy_field(probe: &Probe<'_>) -> Finding {
    round_trip(probe, &json!({ "retry_policy": { "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 } }))
}

fn is_optional(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    let none = item.envelope().is_null() || *item.envelope() == json!({});
    ensure(none, "no envelope", item.envelope())?;
    pass("none")
}

fn whole(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let envelope = json!({
        "run_id": "run_123", "step_id": "step_7", "parent_step_id": "step_3", "tenant_id": "tenant_a",
        "idempotency_key": probe.fixed("key"), "target_topic": topic, "partition_override": 1,
        "deadline": "2199-12-21T12:00:00Z",
        "retry_policy": { "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 },
    });
    let item = deliver_with(probe, &topic, &envelope)?;
    ensure(*item.envelope() == envelope, &envelope, item.envelope())?;
    pass("all nine fields, and no other")
}

fn on_redelivery(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &json!({ "run_id": "r", "tenant_id": "acme" }))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "again")?;
    let second = worker.next()?;
    worker.ack(&second)?;
    ensure(first.envelope() == second.envelope(), first.envelope(), second.envelope())?;
    pass("the same one")
}

fn leaves_payload(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (key, value) = ("k\"é", "{\"n\":\t1}\\ 🦀");
    let envelope = json!({ "run_id": "r", "step_id": "s" });
    probe.produce_body(&json!({ "topic": topic, "key": key, "value": value, "envelope": envelope }))?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure((item.key.as_str(), item.value.as_str()) == (key, value), format!("{key:?} and {value:?}"), &item.json)?;
    pass("quotes, tabs, backslashes and an emoji are unchanged")
}

fn target_topic_routes(probe: &Probe<'_>) -> Finding {
    let (requested, target) = (probe.topic(1)?, probe.topic(1)?);
    let mut other = probe.worker(&requested, "g", LONG_MS)?;
    probe.produce_with(&requested, "v", &json!({ "target_topic": target }))?;
    let (item, _) = probe.take(&target, "g", LONG_MS)?;
    ensure(item.value == "v", "the message in the target topic", &item.json)?;
    other.expect_nothing(SILENCE, "nothing in the requested topic")?;
    pass("in the target topic, and only there")
}

fn target_with_override(probe: &Probe<'_>) -> Finding {
    let (requested, target) = (probe.topic(1)?, probe.topic(3)?);
    probe.produce_with(&requested, "v", &json!({ "target_topic": target, "partition_override": 2 }))?;
    let (item, _) = probe.take(&target, "g", LONG_MS)?;
    ensure(item.partition == 2, "partition 2 of the target", item.partition)?;
    pass("partition 2 of 3, though the requested topic has 1")
}

fn target_answer(probe: &Probe<'_>) -> Finding {
    let (requested, target) = (probe.topic(1)?, probe.topic(1)?);
    let body = json!({ "topic": requested, "value": "v", "envelope": { "target_topic": target } });
    let reply = probe.post("/v1/produce", &body)?;
    let json = reply.json();
    let topic = &json["topic"];
    let named = reply.status == 200 && json["status"] == "produced" && (*topic == requested || *topic == target);
    ensure(named, "200 with status produced and a topic", brief(&reply))?;
    pass(if *topic == requested { "it names the requested topic" } else { "it names the target" })
}

fn deadline_expired(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = json!({ "topic": topic, "value": "v", "envelope": { "deadline": "2020-01-01T00:00:00Z" } });
    let reply = probe.post("/v1/produce", &body)?;
    ensure_refused(&reply, "a deadline in 2020")?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.is_empty(), "no message from a rejected produce", format!("{} of them", items.len()))?;
    pass(brief(&reply))
}

fn deadline_future(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    deliver_with(probe, &topic, &json!({ "deadline": "2199-12-21T12:00:00Z" }))?;
    pass("accepted and delivered")
}

fn labels(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let labels = json!({ "env": "test" });
    let reply =
        probe.post("/v1/produce", &json!({ "topic": topic, "value": "v", "envelope": { "labels": labels } }))?;
    match reply.status {
        400 => pass("400"),
        200 => {
            let (item, _) = probe.take(&topic, "g", LONG_MS)?;
            ensure(item.envelope()["labels"] == labels, "400, or the labels delivered", item.envelope())?;
            deviates("labels are accepted and delivered", "labels accepted: docs/http.md")
        }
        _ => Err(fail("400", brief(&reply))),
    }
}

fn dlq_on_input(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let dlq = json!({ "original_topic": "x" });
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "v", "envelope": { "dlq": dlq } }))?;
    ensure(reply.status == 400, "400", brief(&reply))?;
    pass("400")
}
