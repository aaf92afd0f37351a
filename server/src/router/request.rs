//! What a router is asked about, and its JSON form for the webhook.

use bytes::Bytes;
use driftq_core::types::{Envelope, TopicName};

use crate::json::Json;

/// A message to be routed.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The topic the producer asked for.
    pub topic: &'a TopicName,
    /// The partitioning key; may be empty.
    pub key: &'a str,
    /// The payload.
    pub value: &'a str,
    /// The producer's metadata.
    pub envelope: &'a Envelope,
}

impl RouteRequest<'_> {
    /// The request body. The envelope has only the fields that the producer set, named as in a produce.
    pub(super) fn to_json(self) -> Bytes {
        let mut json = Json::object();
        json.text("topic", self.topic.as_str());
        json.text("key", self.key);
        json.text("value", self.value);
        json.object_in("envelope", |json| json.envelope(self.envelope));
        json.into_bytes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use driftq_core::types::{Deadline, Millis, PartitionId, Priority, RetryPolicy, Timestamp};
    use serde_json::{Value, json};

    use super::*;

    fn encoded(envelope: &Envelope) -> Value {
        let topic = TopicName::new("t\"/").unwrap();
        let request = RouteRequest { topic: &topic, key: "k\n", value: "v\"", envelope };
        serde_json::from_slice(&request.to_json()).unwrap()
    }

    #[test]
    fn message_without_metadata_has_an_empty_envelope() {
        assert_eq!(
            encoded(&Envelope::default()),
            json!({"topic": "t\"/", "key": "k\n", "value": "v\"", "envelope": {}})
        );
    }

    #[test]
    fn envelope_fields_are_named_as_in_a_produce() {
        let envelope = Envelope {
            run_id: Some("r".into()),
            step_id: Some("s".into()),
            parent_step_id: Some("p".into()),
            tenant_id: Some("te".into()),
            idempotency_key: Some("i".into()),
            target_topic: Some(TopicName::new("tt").unwrap()),
            partition_override: Some(PartitionId(0)),
            deadline: Some(Deadline { at: Timestamp(1), text: "2025-12-21T12:00:00+01:00".into() }),
            retry_policy: Some(RetryPolicy { max_attempts: 5, backoff: Millis(250), max_backoff: Millis(5_000) }),
            priority: Priority::new(9),
            deliver_at: Some(Timestamp(1_766_318_400_500)),
            delayed_until: None,
            labels: BTreeMap::from([("a".into(), "b".into())]),
        };
        let expected = json!({
            "run_id": "r", "step_id": "s", "parent_step_id": "p", "tenant_id": "te", "idempotency_key": "i",
            "target_topic": "tt", "partition_override": 0, "deadline": "2025-12-21T12:00:00+01:00",
            "retry_policy": {"max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000},
            "priority": 9, "deliver_at": "2025-12-21T12:00:00.500Z", "labels": {"a": "b"},
        });
        assert_eq!(encoded(&envelope)["envelope"], expected);
    }
}
