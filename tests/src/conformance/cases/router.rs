//! v1.5: the router hook. A router is configured at the server, so over HTTP only its absence can be observed with
//! certainty.

use serde_json::json;

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe};
use crate::conformance::verdict::{Finding, Verdict, ensure, not_applicable, pass};

const UNCHANGED: &str = "v1.5 Without a router";
const ROUTED: &str = "v1.5 With a router";

pub(super) const CASES: &[Case] = &[
    case(UNCHANGED, "router_absent_routing", "without a router messages have no routing metadata", no_routing),
    case(
        UNCHANGED,
        "router_absent_topic",
        "without a router a message goes to the topic it was produced to",
        own_topic,
    ),
    case(
        UNCHANGED,
        "router_absent_precedence",
        "without a router the envelope's routing controls win over hashing",
        envelope_wins,
    ),
    case(ROUTED, "router_called_on_produce", "a configured router is called on produce", needs_router),
    case(ROUTED, "router_metadata", "its label and meta are delivered as routing.label and routing.meta", needs_router),
    case(ROUTED, "router_wins", "its target_topic and partition_override win over the envelope's", needs_router),
    case(ROUTED, "router_failure", "its failure does not crash the broker", needs_router),
    case(ROUTED, "router_metadata_survives", "routing metadata survives a restart", needs_router),
];

/// A delivery without routing metadata.
fn unrouted(probe: &Probe<'_>, topic: &str) -> Result<Item, Verdict> {
    let (item, _) = probe.take(topic, "g", LONG_MS)?;
    match &item.json["routing"] {
        routing if routing["label"].as_str().is_some_and(|label| !label.is_empty()) => {
            Err(not_applicable(format!("a router is configured here: {routing}")))
        }
        _ => Ok(item),
    }
}

fn no_routing(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let item = unrouted(probe, &topic)?;
    ensure(item.json.get("routing").is_none_or(serde_json::Value::is_null), "no routing", &item.json)?;
    pass("none")
}

fn own_topic(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(3)?;
    probe.produce(&topic, "v")?;
    let item = unrouted(probe, &topic)?;
    ensure(item.partition == 0, "partition 0", &item.json)?;
    pass("its own topic, partition 0")
}

fn envelope_wins(probe: &Probe<'_>) -> Finding {
    let (requested, target) = (probe.topic(1)?, probe.topic(3)?);
    let envelope = json!({ "target_topic": target, "partition_override": 1 });
    probe.produce_body(&json!({ "topic": requested, "key": "user:2", "value": "v", "envelope": envelope }))?;
    let item = unrouted(probe, &target)?;
    ensure(item.partition == 1, "partition 1", &item.json)?;
    pass("the envelope's topic and partition")
}

fn needs_router(_: &Probe<'_>) -> Finding {
    Err(not_applicable("needs a router at the server"))
}
