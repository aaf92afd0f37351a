//! A question as the webhook reads it: the message in the words of the HTTP surface.

use std::collections::BTreeMap;

use bytes::Bytes;
use driftq_core::types::{Envelope, Priority, Text, Timestamp, TopicName};
use serde::Serialize;

use super::Question;

#[derive(Serialize)]
struct QuestionJson<'a> {
    topic: &'a str,
    key: &'a str,
    value: &'a str,
    envelope: EnvelopeJson<'a>,
}

/// Only what the producer said: an absent field is absent here too.
#[derive(Serialize)]
struct EnvelopeJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_step_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition_override: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<RetryPolicyJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct RetryPolicyJson {
    max_attempts: u32,
    backoff_ms: u64,
    max_backoff_ms: u64,
}

impl<'a> EnvelopeJson<'a> {
    fn of(envelope: &'a Envelope) -> Self {
        // Taken apart in full, so that a field added to the envelope is not forgotten here.
        let Envelope {
            run_id,
            step_id,
            parent_step_id,
            tenant_id,
            idempotency_key,
            target_topic,
            partition_override,
            deadline,
            retry_policy,
            priority,
            deliver_at,
            labels,
        } = envelope;
        let text = |text: &'a Option<Text>| text.as_deref();
        Self {
            run_id: text(run_id),
            step_id: text(step_id),
            parent_step_id: text(parent_step_id),
            tenant_id: text(tenant_id),
            idempotency_key: text(idempotency_key),
            target_topic: target_topic.as_ref().map(TopicName::as_str),
            partition_override: partition_override.map(|partition| partition.0),
            deadline: deadline.as_ref().map(|deadline| &*deadline.text),
            retry_policy: retry_policy.map(|policy| RetryPolicyJson {
                max_attempts: policy.max_attempts,
                backoff_ms: policy.backoff.0,
                max_backoff_ms: policy.max_backoff.0,
            }),
            priority: priority.map(Priority::level),
            deliver_at: deliver_at.map(rfc_3339),
            labels: labels.iter().map(|(name, value)| (&**name, &**value)).collect(),
        }
    }
}

/// The moment as RFC 3339 text; one beyond the calendar's end is written as that end.
fn rfc_3339(at: Timestamp) -> String {
    let moment = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The body of the request.
pub(super) fn encode(question: &Question<'_>) -> Bytes {
    let Question { topic, key, value, envelope } = *question;
    let json = QuestionJson { topic: topic.as_str(), key, value, envelope: EnvelopeJson::of(envelope) };
    // Texts, numbers and maps with text keys: there is nothing that JSON could not say.
    serde_json::to_vec(&json).expect("a question is representable as JSON").into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use driftq_core::types::{Deadline, Millis, PartitionId, RetryPolicy};
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
            "priority": 9, "deliver_at": "2025-12-21T12:00:00.5Z", "labels": {"a": "b"},
        });
        assert_eq!(asked(&envelope)["envelope"], expected);
    }

    #[test]
    fn a_moment_beyond_the_calendar_is_its_end() {
        assert_eq!(rfc_3339(Timestamp(0)), "1970-01-01T00:00:00Z");
        assert!(rfc_3339(Timestamp::MAX).starts_with("9999-12-30T"));
    }
}
