//! A question as the webhook reads it: the message in the words of the HTTP surface.

use bytes::Bytes;

use super::Question;
use crate::json::Json;

/// The body of the request. Of the envelope it has what the producer said, and nothing for what was not said.
pub(super) fn encode(question: &Question<'_>) -> Bytes {
    let Question { topic, key, value, envelope } = *question;
    let mut json = Json::object();
    json.plain("topic", topic.as_str());
    json.text("key", key);
    json.text("value", value);
    json.object_in("envelope", |json| json.envelope(envelope));
    json.into_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use driftq_core::types::{Deadline, Envelope, Millis, PartitionId, Priority, RetryPolicy, Timestamp, TopicName};
    use serde_json::{Value, json};

    use super::*;

    fn asked(envelope: &Envelope) -> Value {
        let topic = TopicName::new("t").unwrap();
        serde_json::from_slice(&encode(&Question { topic: &topic, key: "k\n", value: "v\"", envelope })).unwrap()
    }

    #[test]
    fn a_bare_message_has_an_empty_envelope() {
        assert_eq!(asked(&Envelope::default()), json!({"topic": "t", "key": "k\n", "value": "v\"", "envelope": {}}));
    }

    #[test]
    fn every_field_is_spelt_as_in_a_produce() {
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
            labels: BTreeMap::from([("a".into(), "b".into())]),
        };
        let expected = json!({
            "run_id": "r", "step_id": "s", "parent_step_id": "p", "tenant_id": "te", "idempotency_key": "i",
            "target_topic": "tt", "partition_override": 0, "deadline": "2025-12-21T12:00:00+01:00",
            "retry_policy": {"max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000},
            "priority": 9, "deliver_at": "2025-12-21T12:00:00.500Z", "labels": {"a": "b"},
        });
        assert_eq!(asked(&envelope)["envelope"], expected);
    }
}
