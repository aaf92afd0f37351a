//! Requests as they are written, in JSON or in a query, and how each becomes what the broker understands.
//!
//! Unknown fields, fields given twice and values of the wrong kind are refused by the parser; names are trimmed and checked when
//! they become names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use driftq_core::command::{Claim, Produce, TokenClaim};
use driftq_core::types::{
    Deadline, Envelope, GroupName, Millis, Offset, OwnerName, PartitionId, Priority, RetryPolicy, Text, Timestamp,
    TopicName,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use super::query::Query;
use crate::moment;

/// Text that stays where it is in the body, if nothing in it is escaped. (A plain `Cow` in an `Option` is always copied.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Str<'a>(Cow<'a, str>);

impl Str<'_> {
    /// A copy that stands for itself.
    pub(crate) fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl std::ops::Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Str<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text).map(Str)
    }
}

/// A request that can be written as a JSON object or as a query.
pub(crate) trait Fields<'a>: Deserialize<'a> {
    /// Reads it from a query.
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError>;
}

/// Reads a JSON object, and nothing behind it.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    // Checked as a whole, not string by string.
    let text = std::str::from_utf8(body).map_err(|_| ApiError::invalid("bad JSON: it is not UTF-8"))?;
    let Object(fields) = serde_json::from_str(text)?;
    Ok(fields)
}

/// Fields that must stand in an object. Left alone, they would also be taken from a list, one after the other.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// An object within an object, or nothing.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(|Object(fields)| fields))
}

/// Reads a request: a body wins over the query.
pub(crate) fn read<'a, T: Fields<'a>>(body: &'a [u8], query: &'a Query<'a>) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) { T::from_query(query) } else { from_json(body) }
}

fn borrowed<'a>(text: Option<&'a str>) -> Option<Str<'a>> {
    text.map(Str::from)
}

/// A field that must be there.
pub(crate) fn required<T>(name: &'static str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::missing(name))
}

/// Text, unless it is empty.
pub(super) fn given(text: Option<Str<'_>>) -> Option<Text> {
    text.filter(|text| !text.is_empty()).map(|text| Text::from(&*text))
}

/// A span that must not be negative; 0 is for whoever asks to judge.
pub(crate) fn span(name: &'static str, value: Option<i64>) -> Result<Option<Millis>, ApiError> {
    let not_negative =
        |value| u64::try_from(value).map_err(|_| ApiError::invalid(format!("{name} must not be negative")));
    value.map(|value| not_negative(value).map(Millis)).transpose()
}

/// A moment, spelled as it must be.
pub(crate) fn moment_in(name: &'static str, text: &str) -> Result<Timestamp, ApiError> {
    let wrong = || ApiError::invalid(format!("bad {name}: want an RFC 3339 time such as 2025-12-21T12:00:00Z"));
    moment::parse(text).ok_or_else(wrong)
}

/// `POST /v1/produce`, and each line of its batches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProduceFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    key: Option<Str<'a>>,
    #[serde(borrow)]
    value: Option<Str<'a>>,
    // In a box, as most messages have none and would carry its room about.
    #[serde(borrow, default, deserialize_with = "object")]
    envelope: Option<Box<EnvelopeFields<'a>>>,
}

/// What a producer says beside the payload.
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

/// A retry policy; what is not given is unlimited, or none.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryFields {
    max_attempts: Option<u32>,
    backoff_ms: Option<u64>,
    max_backoff_ms: Option<u64>,
}

/// A map of texts in which no key comes twice.
#[derive(Debug)]
pub(crate) struct Labels(BTreeMap<Text, Text>);

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

/// What a request's head adds to a produce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProduceHead<'a> {
    /// `Idempotency-Key`.
    pub(crate) idempotency_key: Option<&'a str>,
    /// `traceparent`.
    pub(crate) trace: Option<&'a str>,
}

impl<'a> Fields<'a> for ProduceFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        let deadline = query.any(&["deadline", "deadline_rfc3339"])?;
        let deadline = match (deadline, query.value::<u64>("deadline_ms")?) {
            (Some(text), None) => Some(Str::from(text)),
            (None, Some(at)) => Some(Str(Cow::Owned(moment::text(Timestamp(at))))),
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
            run_id: borrowed(query.text("run_id")?),
            step_id: borrowed(query.text("step_id")?),
            parent_step_id: borrowed(query.text("parent_step_id")?),
            tenant_id: borrowed(query.any(&["tenant_id", "tenant"])?),
            idempotency_key: borrowed(query.any(&["idempotency_key", "idem_key"])?),
            target_topic: borrowed(query.text("target_topic")?),
            partition_override: query.value("partition_override")?,
            deadline,
            retry_policy: has_retry.then_some(retry),
            priority: query.value("priority")?,
            delay_ms: query.value("delay_ms")?,
            deliver_at: borrowed(query.text("deliver_at")?),
            labels: None,
        };
        Ok(Self {
            topic: borrowed(query.text("topic")?),
            key: borrowed(query.text("key")?),
            value: borrowed(query.text("value")?),
            envelope: Some(Box::new(envelope)),
        })
    }
}

impl ProduceFields<'_> {
    /// The command's parts, checked.
    pub(crate) fn into_produce(self, head: ProduceHead<'_>) -> Result<Box<Produce>, ApiError> {
        let topic = TopicName::new(&required("topic", self.topic)?)?;
        let value = required("value", self.value)?;
        if value.is_empty() {
            return Err(ApiError::invalid("value must not be empty"));
        }
        let key = self.key.map_or_else(Vec::new, |key| key.into_owned().into_bytes());
        let mut produce = Box::new(Produce::new(topic, key, value.into_owned()));
        if let Some(envelope) = self.envelope {
            (produce.envelope, produce.delay) = envelope.into_envelope()?;
        }
        if let Some(key) = head.idempotency_key.filter(|key| !key.is_empty()) {
            match &produce.envelope.idempotency_key {
                Some(said) if **said != *key => {
                    let message = "the Idempotency-Key header and envelope.idempotency_key differ";
                    return Err(ApiError::invalid(message));
                }
                _ => produce.envelope.idempotency_key = Some(key.into()),
            }
        }
        produce.trace = head.trace.map(Text::from);
        Ok(produce)
    }
}

impl EnvelopeFields<'_> {
    fn into_envelope(self) -> Result<(Envelope, Option<Millis>), ApiError> {
        let name = |text: Str<'_>| TopicName::new(&text);
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
            moment_in("deadline", &text).map(|at| Deadline { at, text: text.into_owned().into_boxed_str() })
        };
        let said = |text: &Str<'_>| !text.is_empty();
        let deliver_at = self.deliver_at.filter(said);
        if self.delay_ms.is_some() && deliver_at.is_some() {
            return Err(ApiError::invalid("give delay_ms or deliver_at, not both"));
        }
        let envelope = Envelope {
            run_id: given(self.run_id),
            step_id: given(self.step_id),
            parent_step_id: given(self.parent_step_id),
            tenant_id: given(self.tenant_id),
            idempotency_key: given(self.idempotency_key),
            target_topic: self.target_topic.filter(|text| !text.trim().is_empty()).map(name).transpose()?,
            partition_override: self.partition_override.map(partition).transpose()?,
            deadline: self.deadline.filter(said).map(deadline).transpose()?,
            retry_policy: self.retry_policy.map(|retry| RetryPolicy {
                max_attempts: retry.max_attempts.unwrap_or(0),
                backoff: Millis(retry.backoff_ms.unwrap_or(0)),
                max_backoff: Millis(retry.max_backoff_ms.unwrap_or(0)),
            }),
            priority: self.priority.map(priority).transpose()?,
            deliver_at: deliver_at.map(|text| moment_in("deliver_at", &text)).transpose()?,
            labels: self.labels.map_or_else(BTreeMap::new, |labels| labels.0),
        };
        Ok((envelope, span("delay_ms", self.delay_ms)?.filter(|delay| delay.0 > 0)))
    }
}

/// Defines a request about one delivered message: the claim, and what else it says.
macro_rules! claim_fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $from:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name<'a> {
            #[serde(borrow)]
            topic: Option<Str<'a>>,
            #[serde(borrow)]
            group: Option<Str<'a>>,
            partition: Option<u32>,
            offset: Option<u64>,
            #[serde(borrow)]
            owner: Option<Str<'a>>,
            #[serde(borrow)]
            lease_token: Option<Str<'a>>,
            $(pub(crate) $field: $type,)*
        }

        impl<'a> Fields<'a> for $name<'a> {
            fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
                Ok(Self {
                    topic: borrowed(query.text("topic")?),
                    group: borrowed(query.text("group")?),
                    partition: query.value("partition")?,
                    offset: query.value("offset")?,
                    owner: borrowed(query.text("owner")?),
                    lease_token: borrowed(query.text("lease_token")?),
                    $($field: ($from)(query)?,)*
                })
            }
        }

        impl $name<'_> {
            /// Whose word it is, about which message.
            pub(crate) fn claim(&self) -> Result<Claim, ApiError> {
                Ok(Claim {
                    topic: TopicName::new(required("topic", self.topic.as_deref())?)?,
                    group: GroupName::new(required("group", self.group.as_deref())?)?,
                    partition: PartitionId(required("partition", self.partition)?),
                    offset: Offset(required("offset", self.offset)?),
                    owner: OwnerName::new(required("owner", self.owner.as_deref())?)?,
                    token: TokenClaim::read(self.lease_token.as_deref()),
                })
            }
        }
    };
}

claim_fields! {
    /// `POST /v1/ack` and `/v1/release`.
    AckFields {}
}
claim_fields! {
    /// `POST /v1/nack`.
    NackFields {
        reason: Option<String> = |query: &Query<'_>| query.text("reason").map(|text| text.map(str::to_owned)),
        delay_ms: Option<i64> = |query: &Query<'_>| query.value("delay_ms"),
    }
}
claim_fields! {
    /// `POST /v1/extend`.
    ExtendFields {
        lease_ms: Option<i64> = |query: &Query<'_>| query.value("lease_ms"),
    }
}
