//! Fields of a message to produce, and the request headers that add to it.

use std::collections::BTreeMap;

use driftq_core::command::Produce;
use driftq_core::types::{Deadline, Envelope, Millis, PartitionId, Priority, RetryPolicy, Text, Timestamp};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use super::fields::{Fields, Str, millis, non_empty, object, required, timestamp};
use super::head::RequestHead;
use super::plain_json::{Plain, PlainReader, plain_object, read_plain};
use super::query::Query;
use super::requester::Names;
use crate::traceparent::TraceParent;
use crate::{base64, rfc3339};

/// A message to produce: the body of a produce, a line of a batch, an output of a step.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProduceFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    key: Option<Str<'a>>,
    #[serde(borrow)]
    value: Option<Str<'a>>,
    #[serde(borrow)]
    value_base64: Option<Str<'a>>,
    // Boxed, as it is large and most messages have none.
    #[serde(borrow, default, deserialize_with = "object")]
    envelope: Option<Box<EnvelopeFields<'a>>>,
}

plain_object!(ProduceFields<'a> { topic, key, value, value_base64, envelope });

/// The metadata of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvelopeFields<'a> {
    #[serde(borrow)]
    run_id: Option<Str<'a>>,
    #[serde(borrow)]
    step_id: Option<Str<'a>>,
    #[serde(borrow)]
    parent_step_id: Option<Str<'a>>,
    #[serde(borrow)]
    tenant_id: Option<Str<'a>>,
    #[serde(borrow)]
    idempotency_key: Option<Str<'a>>,
    #[serde(borrow)]
    target_topic: Option<Str<'a>>,
    partition_override: Option<i64>,
    #[serde(borrow)]
    deadline: Option<Str<'a>>,
    #[serde(default, deserialize_with = "object")]
    retry_policy: Option<RetryFields>,
    priority: Option<u64>,
    delay_ms: Option<i64>,
    #[serde(borrow)]
    deliver_at: Option<Str<'a>>,
    labels: Option<Labels>,
}

plain_object!(EnvelopeFields<'a> {
    run_id, step_id, parent_step_id, tenant_id, idempotency_key, target_topic, partition_override, deadline, retry_policy,
    priority, delay_ms, deliver_at, labels,
});

/// A retry policy; an absent field means no limit or no delay.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryFields {
    max_attempts: Option<u32>,
    backoff_ms: Option<u64>,
    max_backoff_ms: Option<u64>,
}

plain_object!(RetryFields { max_attempts, backoff_ms, max_backoff_ms });

/// A map of texts without repeated keys.
#[derive(Debug)]
pub(crate) struct Labels(BTreeMap<Text, Text>);

impl Plain<'_> for Labels {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        let mut labels = BTreeMap::new();
        reader.object(|name, reader| {
            let before = labels.insert(Text::from(name), Text::from(reader.text()?));
            before.is_none().then_some(())
        })?;
        Some(Self(labels))
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Labels;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<Text, Text>()? {
                    if labels.insert(key, value).is_some() {
                        return Err(serde::de::Error::custom("a label is given twice"));
                    }
                }
                Ok(Labels(labels))
            }
        }
        deserializer.deserialize_map(Texts)
    }
}

/// The request headers that add to a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageHeaders<'a> {
    /// `Idempotency-Key`.
    pub(crate) idempotency_key: Option<&'a str>,
    /// `traceparent`. One that is invalid is ignored, as the W3C recommendation requires.
    pub(crate) trace: Option<&'a str>,
}

impl<'a> MessageHeaders<'a> {
    /// Reads them from the head of a request.
    pub(crate) fn of(head: &RequestHead<'a>) -> Result<Self, ApiError> {
        if head.idempotency_key_count > 1 {
            return Err(ApiError::invalid("more than one Idempotency-Key"));
        }
        let key = head.idempotency_key.map(|key| std::str::from_utf8(key.as_bytes()));
        let idempotency_key = key.transpose().map_err(|_| ApiError::invalid("the Idempotency-Key is not UTF-8"))?;
        let trace = head.trace().and_then(|trace| trace.to_str().ok());
        Ok(Self { idempotency_key, trace: trace.filter(|trace| TraceParent::parse(trace).is_some()) })
    }
}

impl<'a> Fields<'a> for ProduceFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        let deadline = query.any_of(&["deadline", "deadline_rfc3339"])?;
        let deadline = match (deadline, query.value::<u64>("deadline_ms")?) {
            (Some(text), None) => Some(Str::from(text)),
            (None, Some(at)) => Some(Str::from(rfc3339::format(Timestamp(at)))),
            (None, None) => None,
            (Some(_), Some(_)) => return Err(ApiError::invalid("give deadline or deadline_ms, not both")),
        };
        let retry = RetryFields {
            max_attempts: query.value("retry_max_attempts")?,
            backoff_ms: query.value("retry_backoff_ms")?,
            max_backoff_ms: query.value("retry_max_backoff_ms")?,
        };
        let has_retry = retry.max_attempts.is_some() || retry.backoff_ms.is_some() || retry.max_backoff_ms.is_some();
        let envelope = EnvelopeFields {
            run_id: query.text("run_id")?.map(Str::from),
            step_id: query.text("step_id")?.map(Str::from),
            parent_step_id: query.text("parent_step_id")?.map(Str::from),
            tenant_id: query.any_of(&["tenant_id", "tenant"])?.map(Str::from),
            idempotency_key: query.any_of(&["idempotency_key", "idem_key"])?.map(Str::from),
            target_topic: query.text("target_topic")?.map(Str::from),
            partition_override: query.value("partition_override")?,
            deadline,
            retry_policy: has_retry.then_some(retry),
            priority: query.value("priority")?,
            delay_ms: query.value("delay_ms")?,
            deliver_at: query.text("deliver_at")?.map(Str::from),
            labels: None,
        };
        Ok(Self {
            topic: query.text("topic")?.map(Str::from),
            key: query.text("key")?.map(Str::from),
            value: query.text("value")?.map(Str::from),
            value_base64: query.text("value_base64")?.map(Str::from),
            envelope: Some(Box::new(envelope)),
        })
    }

    fn from_plain(text: &'a str) -> Option<Self> {
        read_plain(text)
    }
}

impl ProduceFields<'_> {
    /// The produce command.
    pub(crate) fn into_produce(self, names: &Names, headers: MessageHeaders<'_>) -> Result<Box<Produce>, ApiError> {
        let topic = names.produced_to(&required("topic", self.topic)?)?;
        let decoded;
        let value = match (&self.value, &self.value_base64) {
            (Some(_), Some(_)) => return Err(ApiError::invalid("give value or value_base64, not both")),
            (None, Some(text)) => {
                decoded = base64::decode(text).ok_or_else(|| {
                    ApiError::invalid("bad value_base64: want Base64 with the standard alphabet and padding")
                })?;
                &*decoded
            }
            (value, None) => required("value", value.as_deref())?.as_bytes(),
        };
        if value.is_empty() {
            return Err(ApiError::invalid("value must not be empty"));
        }
        let key = self.key.as_deref().unwrap_or_default().as_bytes();
        let mut produce = Box::new(Produce::new(topic, key, value));
        if let Some(envelope) = self.envelope {
            (produce.envelope, produce.delay) = envelope.into_envelope(names)?;
        } else {
            produce.envelope.tenant_id = names.tenant_text(None)?.map(Text::from);
        }
        if let Some(key) = headers.idempotency_key.filter(|key| !key.is_empty()) {
            match &produce.envelope.idempotency_key {
                Some(in_envelope) if **in_envelope != *key => {
                    let message = "the Idempotency-Key header and envelope.idempotency_key differ";
                    return Err(ApiError::invalid(message));
                }
                _ => produce.envelope.idempotency_key = Some(key.into()),
            }
        }
        produce.trace = headers.trace.map(Text::from);
        Ok(produce)
    }
}

impl EnvelopeFields<'_> {
    fn into_envelope(self, names: &Names) -> Result<(Envelope, Option<Millis>), ApiError> {
        let name = |text: Str<'_>| names.rare_topic(&text);
        let priority = |level: u64| {
            let level = u8::try_from(level).ok().and_then(Priority::new);
            level.ok_or_else(|| ApiError::invalid("priority must be 0 to 9"))
        };
        let partition = |partition: i64| {
            u32::try_from(partition)
                .map(PartitionId)
                .map_err(|_| ApiError::invalid("partition_override is out of range"))
        };
        let deadline = |text: Str<'_>| {
            timestamp("deadline", &text).map(|at| Deadline { at, text: text.into_owned().into_boxed_str() })
        };
        let is_given = |text: &Str<'_>| !text.is_empty();
        let deliver_at = self.deliver_at.filter(is_given);
        if self.delay_ms.is_some() && deliver_at.is_some() {
            return Err(ApiError::invalid("give delay_ms or deliver_at, not both"));
        }
        let envelope = Envelope {
            run_id: non_empty(self.run_id),
            step_id: non_empty(self.step_id),
            parent_step_id: non_empty(self.parent_step_id),
            tenant_id: names.tenant_text(self.tenant_id.as_deref())?.map(Text::from),
            idempotency_key: non_empty(self.idempotency_key),
            target_topic: self.target_topic.filter(|text| !text.trim().is_empty()).map(name).transpose()?,
            partition_override: self.partition_override.map(partition).transpose()?,
            deadline: self.deadline.filter(is_given).map(deadline).transpose()?,
            retry_policy: self.retry_policy.map(|retry| RetryPolicy {
                max_attempts: retry.max_attempts.unwrap_or(0),
                backoff: Millis(retry.backoff_ms.unwrap_or(0)),
                max_backoff: Millis(retry.max_backoff_ms.unwrap_or(0)),
            }),
            priority: self.priority.map(priority).transpose()?,
            deliver_at: deliver_at.map(|text| timestamp("deliver_at", &text)).transpose()?,
            delayed_until: None,
            labels: self.labels.map_or_else(BTreeMap::new, |labels| labels.0),
        };
        Ok((envelope, millis("delay_ms", self.delay_ms)?.filter(|delay| delay.0 > 0)))
    }
}
