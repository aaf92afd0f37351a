//! A webhook's response body: a decision or invalid. Unknown fields are invalid, so that a misspelt one is noticed.

use std::collections::BTreeMap;

use driftq_core::types::{PartitionId, Routing, RoutingDecision, TenantId, Text, TopicName};
use serde::Deserialize;

use crate::config::is_decision_within_limits;

/// Most bytes of a response body.
pub(super) const RESPONSE_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseFields {
    #[serde(default)]
    label: String,
    #[serde(default)]
    target_topic: Option<String>,
    #[serde(default)]
    partition_override: Option<u32>,
    #[serde(default)]
    meta: BTreeMap<String, String>,
}

/// The body is not a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidResponse;

/// Parses the body of a 200 about a message of `tenant`. A body that decides nothing is `None`, as a 204 is.
pub(super) fn decode(body: &[u8], tenant: TenantId) -> Result<Option<RoutingDecision>, InvalidResponse> {
    // A derived deserializer also accepts an array, field after field.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(InvalidResponse);
    }
    let fields: ResponseFields = serde_json::from_slice(body).map_err(|_| InvalidResponse)?;
    // The specification's own router interface says "" for "no target topic".
    let target_topic = fields.target_topic.filter(|name| !name.is_empty());
    let target_topic =
        target_topic.map(|name| TopicName::of(tenant, &name)).transpose().map_err(|_| InvalidResponse)?;
    let label: Text = fields.label.into();
    let meta = fields.meta.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    if !is_decision_within_limits(&label, &meta) {
        return Err(InvalidResponse);
    }
    let partition_override = fields.partition_override.map(PartitionId);
    let decision = RoutingDecision { routing: Routing { label, meta }, target_topic, partition_override };
    Ok(Some(decision).filter(|decision| *decision != RoutingDecision::default()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn decode(body: &[u8]) -> Result<Option<RoutingDecision>, InvalidResponse> {
        super::decode(body, TenantId::DEFAULT)
    }

    #[test]
    fn target_is_of_the_tenant_of_the_message() {
        let decision = super::decode(br#"{"target_topic":"t"}"#, TenantId(7)).unwrap().unwrap();
        assert_eq!(decision.target_topic, Some(TopicName::of(TenantId(7), "t").unwrap()));
        assert_eq!(super::decode(b"{\"target_topic\":\"\\u0001\\u0017t\"}", TenantId(7)), Err(InvalidResponse));
    }

    #[test]
    fn specification_example_is_a_decision() {
        let body = br#"{"label": "finance:classification", "target_topic": "tasks.finance.classify",
            "partition_override": null, "meta": {"source": "agno-router", "model": "gpt-4.1", "score": "0.92"}}"#;
        let decision = decode(body).unwrap().unwrap();
        assert_eq!(&*decision.routing.label, "finance:classification");
        assert_eq!(decision.routing.meta.len(), 3);
        assert_eq!(decision.target_topic, Some(TopicName::new("tasks.finance.classify").unwrap()));
        assert_eq!(decision.partition_override, None);
    }

    #[test]
    fn empty_object_is_no_decision() {
        assert_eq!(decode(b"{}"), Ok(None));
        assert_eq!(decode(br#"{"label":"","target_topic":"","partition_override":null,"meta":{}}"#), Ok(None));
        let only = decode(br#"{"partition_override":0}"#).unwrap().unwrap();
        assert_eq!(only, RoutingDecision { partition_override: Some(PartitionId(0)), ..RoutingDecision::default() });
    }

    #[test]
    fn malformed_body_is_invalid() {
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
            r#"{"target_topic":"a\u0001b"}"#,
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
            assert_eq!(decode(body.as_bytes()), Err(InvalidResponse), "{body}");
        }
        assert_eq!(decode(b"{\"label\":\"\xff\"}"), Err(InvalidResponse));
    }
}
