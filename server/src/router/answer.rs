//! A webhook's answer: a decision, or nonsense. There is nothing in between, so that a misspelt field is noticed.

use std::collections::BTreeMap;

use driftq_core::types::{PartitionId, Routing, RoutingDecision, Text, TopicName};
use serde::Deserialize;

use crate::config::decision_fits;

/// The most bytes of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    #[serde(default)]
    label: String,
    #[serde(default)]
    target_topic: Option<String>,
    #[serde(default)]
    partition_override: Option<u32>,
    #[serde(default)]
    meta: BTreeMap<String, String>,
}

/// The answer is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoDecision;

/// Reads the body of a 200. One that decides nothing at all is `None`, as a 204 is.
pub(super) fn decode(body: &[u8]) -> Result<Option<RoutingDecision>, NoDecision> {
    // Derived readers take a list for an object, field after field. An answer is an object.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(NoDecision);
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|_| NoDecision)?;
    // A router whose language has no absent texts says "" for "leave it": the specification's own interface does.
    let target_topic = answer.target_topic.filter(|name| !name.is_empty());
    let target_topic = target_topic.map(|name| TopicName::new(&name)).transpose().map_err(|_| NoDecision)?;
    let label: Text = answer.label.into();
    let meta = answer.meta.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    if !decision_fits(&label, &meta) {
        return Err(NoDecision);
    }
    let partition_override = answer.partition_override.map(PartitionId);
    let decision = RoutingDecision { routing: Routing { label, meta }, target_topic, partition_override };
    Ok(Some(decision).filter(|decision| *decision != RoutingDecision::default()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_s_example_is_a_decision() {
        let body = br#"{"label": "finance:classification", "target_topic": "tasks.finance.classify",
            "partition_override": null, "meta": {"source": "agno-router", "model": "gpt-4.1", "score": "0.92"}}"#;
        let decision = decode(body).unwrap().unwrap();
        assert_eq!(&*decision.routing.label, "finance:classification");
        assert_eq!(decision.routing.meta.len(), 3);
        assert_eq!(decision.target_topic, Some(TopicName::new("tasks.finance.classify").unwrap()));
        assert_eq!(decision.partition_override, None);
    }

    #[test]
    fn every_field_may_be_left_out_and_nothing_said_is_no_decision() {
        assert_eq!(decode(b"{}"), Ok(None));
        assert_eq!(decode(br#"{"label":"","target_topic":"","partition_override":null,"meta":{}}"#), Ok(None));
        let only = decode(br#"{"partition_override":0}"#).unwrap().unwrap();
        assert_eq!(only, RoutingDecision { partition_override: Some(PartitionId(0)), ..RoutingDecision::default() });
    }

    #[test]
    fn anything_else_is_nonsense() {
        let long_label = format!(r#"{{"label":"{}"}}"#, "l".repeat(256));
        let long_meta = format!(r#"{{"meta":{{"a":"{}"}}}}"#, "m".repeat(8192));
        let many: Vec<String> = (0..65).map(|n| format!(r#""{n}":"""#)).collect();
        let many = format!(r#"{{"meta":{{{}}}}}"#, many.join(","));
        for body in [
            "",
            "null",
            "[]",
            r#"["label", null, null, {}]"#,
            "\"label\"",
            "{",
            "{} {}",
            r#"{"lable":"x"}"#,
            r#"{"label":null}"#,
            r#"{"label":1}"#,
            r#"{"label":"a","label":"b"}"#,
            r#"{"target_topic":"no spaces"}"#,
            r#"{"target_topic":".."}"#,
            r#"{"partition_override":-1}"#,
            r#"{"partition_override":1.0}"#,
            r#"{"partition_override":"1"}"#,
            r#"{"partition_override":4294967296}"#,
            r#"{"meta":{"a":1}}"#,
            r#"{"meta":null}"#,
            &long_label,
            &long_meta,
            &many,
        ] {
            assert_eq!(decode(body.as_bytes()), Err(NoDecision), "{body}");
        }
        assert_eq!(decode(b"{\"label\":\"\xff\"}"), Err(NoDecision));
    }
}
