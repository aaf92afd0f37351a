//! The request to produce a message, and its answer.

use std::time::Duration;

use bytes::Bytes;
use serde::de::Error as _;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base64;
use crate::canonical::canonical_json;
use crate::envelope::{Envelope, RetryPolicy, millis};
use crate::error::Error;

/// As long as the names of the fields of a message are, without envelope, and a few characters that are escaped.
const FIELDS_LEN: usize = 64;
/// Longer than most envelopes.
const ENVELOPE_LEN: usize = 256;

/// The payload of a message: text, or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Bytes);

impl From<&str> for Payload {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

/// A message to be produced.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use driftq_client::{Produce, RetryPolicy, idempotency_key};
///
/// let order = Produce::json("orders", &serde_json::json!({"pizzas": 1}))?
///     .key("customer-7")
///     .idempotency_key(idempotency_key(["order".into(), 4711.into()])?)
///     .retry_policy(RetryPolicy::max_attempts(5).backoff(Duration::from_secs(1), Duration::from_secs(60)));
/// # Ok::<(), driftq_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produce {
    topic: String,
    key: String,
    value: Payload,
    envelope: Option<Box<Envelope>>,
    traceparent: Option<String>,
}

impl Produce {
    /// A message for a topic. The broker refuses an empty value.
    #[must_use]
    pub fn new(topic: impl Into<String>, value: impl Into<Payload>) -> Self {
        Self { topic: topic.into(), key: String::new(), value: value.into(), envelope: None, traceparent: None }
    }

    /// A message with a JSON value, in its [canonical form](canonical_json).
    ///
    /// # Errors
    /// As [`canonical_json`].
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<String>, value: &T) -> Result<Self, Error> {
        Ok(Self::new(topic, canonical_json(value)?))
    }

    /// Messages with the same key go to the same partition.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// A second produce with the same tenant, topic and key is a duplicate. A produce with such a key is repeated
    /// until its outcome is known.
    #[must_use]
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        self.envelope(|envelope| envelope.idempotency_key = key.into())
    }

    /// Stores the message in this partition instead of that of the key.
    #[must_use]
    pub fn partition_override(self, partition: u32) -> Self {
        self.envelope(|envelope| envelope.partition_override = Some(partition))
    }

    /// The tenant of the message and of its idempotency key.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        self.envelope(|envelope| envelope.tenant_id = tenant.into())
    }

    /// 0 to 9: messages of higher priority are delivered first within their partition.
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        self.envelope(|envelope| envelope.priority = Some(priority))
    }

    /// Holds the message back for so long.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.envelope(|envelope| envelope.delay_ms = Some(millis(delay)))
    }

    /// Holds the message back until this time (RFC 3339).
    #[must_use]
    pub fn deliver_at(self, time: impl Into<String>) -> Self {
        self.envelope(|envelope| envelope.deliver_at = time.into())
    }

    /// After this time (RFC 3339) the message is refused, or dead-lettered if it is stored already. It bounds the
    /// handler of a worker.
    #[must_use]
    pub fn deadline(self, time: impl Into<String>) -> Self {
        self.envelope(|envelope| envelope.deadline = time.into())
    }

    /// Adds a label.
    #[must_use]
    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envelope(|envelope| {
            envelope.labels.insert(name.into(), value.into());
        })
    }

    /// How often and when it is delivered again after a failure.
    #[must_use]
    pub fn retry_policy(self, policy: RetryPolicy) -> Self {
        self.envelope(|envelope| envelope.retry_policy = Some(policy))
    }

    /// The topic to store the message in instead.
    #[must_use]
    pub fn target_topic(self, topic: impl Into<String>) -> Self {
        self.envelope(|envelope| envelope.target_topic = topic.into())
    }

    /// The trace it belongs to, in the form of the W3C. It goes with a message that is produced alone; the messages
    /// of a batch or of a step have none of their own.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Changes any field of the envelope.
    #[must_use]
    pub fn envelope(mut self, change: impl FnOnce(&mut Envelope)) -> Self {
        change(self.envelope.get_or_insert_default());
        self
    }

    /// Whether it has an idempotency key, so that repeating it cannot double the message.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.envelope.as_ref().is_some_and(|envelope| !envelope.idempotency_key.is_empty())
    }

    pub(crate) fn trace(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Its body alone. It is written into room for all of it, as growing costs more than writing.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, Error> {
        let mut body = Vec::with_capacity(self.body_capacity());
        self.write_json(&mut body)?;
        Ok(body)
    }

    /// Enough for most bodies. One that is longer grows.
    fn body_capacity(&self) -> usize {
        let envelope_len = if self.envelope.is_some() { ENVELOPE_LEN } else { 0 };
        self.topic.len() + self.key.len() + self.value.0.len() + envelope_len + FIELDS_LEN
    }

    /// Its body, or a line of a batch.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        serde_json::to_writer(out, self).map_err(|error| Error::misuse(format!("the message is no JSON: {error}")))
    }
}

impl Serialize for Produce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut body = serializer.serialize_struct("Produce", 4)?;
        body.serialize_field("topic", &self.topic)?;
        if !self.key.is_empty() {
            body.serialize_field("key", &self.key)?;
        }
        match std::str::from_utf8(&self.value.0) {
            Ok(text) => body.serialize_field("value", text)?,
            Err(_) => body.serialize_field("value_base64", &base64::encode(&self.value.0))?,
        }
        if let Some(envelope) = self.envelope.as_ref().filter(|envelope| !envelope.is_empty()) {
            body.serialize_field("envelope", envelope)?;
        }
        body.end()
    }
}

#[derive(Deserialize)]
struct Body {
    topic: String,
    #[serde(default)]
    key: String,
    value: Option<String>,
    value_base64: Option<String>,
    envelope: Option<Box<Envelope>>,
}

impl<'de> Deserialize<'de> for Produce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Body { topic, key, value, value_base64, envelope } = Body::deserialize(deserializer)?;
        let value = match (value, value_base64) {
            (Some(text), None) => text.into(),
            (None, Some(text)) => base64::decode(&text).ok_or_else(|| D::Error::custom("no Base64"))?.into(),
            _ => return Err(D::Error::custom("either `value` or `value_base64` is needed")),
        };
        Ok(Self { topic, key, value, envelope, traceparent: None })
    }
}

/// Where a message was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Produced {
    /// The topic that was asked for, also where a router sent the message elsewhere.
    #[serde(default)]
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: u64,
    /// Whether the identity was accepted before: partition and offset are those of that message.
    #[serde(default)]
    pub duplicate: bool,
    /// Whether every group has finished a message of this identity: it is stored and delivered to none.
    #[serde(default)]
    pub already_done: bool,
    /// `set_aside` or `failed` if the message is stored without the router's decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(produce: &Produce) -> String {
        String::from_utf8(produce.to_json().expect("JSON")).expect("UTF-8")
    }

    #[test]
    fn only_what_is_given_is_sent() {
        assert_eq!(body(&Produce::new("t", "v")), r#"{"topic":"t","value":"v"}"#);
        assert_eq!(body(&Produce::new("t", &b"\xff"[..])), r#"{"topic":"t","value_base64":"/w=="}"#);
        let full = Produce::new("t", "v")
            .key("k")
            .idempotency_key("i")
            .tenant("x")
            .priority(3)
            .delay(Duration::from_micros(1))
            .label("a", "b")
            .retry_policy(RetryPolicy::max_attempts(2));
        let expected = concat!(
            r#"{"topic":"t","key":"k","value":"v","envelope":{"tenant_id":"x","idempotency_key":"i","#,
            r#""retry_policy":{"max_attempts":2,"backoff_ms":0,"max_backoff_ms":0},"priority":3,"delay_ms":1,"#,
            r#""labels":{"a":"b"}}}"#
        );
        assert_eq!(body(&full), expected);
        assert!(full.is_idempotent() && !Produce::new("t", "v").is_idempotent());
    }

    #[test]
    fn body_does_not_grow_while_it_is_written() {
        let plain = Produce::new("orders", "a value \"with\" escapes").key("customer-7");
        let enveloped = plain.clone().idempotency_key("order:4711").tenant("x").priority(3).label("a", "b");
        for produce in [Produce::new("t", "v"), plain, enveloped] {
            let body = produce.to_json().expect("JSON");
            assert_eq!(body.capacity(), produce.body_capacity(), "{}", body.len());
        }
    }

    #[test]
    fn json_value_is_canonical() {
        let produce = Produce::json("t", &serde_json::json!({"b": 1.0, "a": 2})).expect("JSON");
        assert_eq!(body(&produce), r#"{"topic":"t","value":"{\"a\":2,\"b\":1}"}"#);
    }
}
