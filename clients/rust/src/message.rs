//! Messages as they are delivered, and what settles them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::base64;
use crate::envelope::{Envelope, Routing};
use crate::error::Error;

/// A delivery of a message to a consumer, or a message that was read without consuming it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The topic it was consumed from.
    pub topic: Arc<str>,
    /// The partition it is in.
    pub partition: u32,
    /// Its offset there.
    pub offset: u64,
    /// The number of this delivery to this group, from 1; 0 in a peek.
    pub attempts: u32,
    /// How many earlier deliveries ended in a nack or an expired lease.
    pub failures: u32,
    /// The key; empty if the message has none.
    pub key: String,
    /// The payload.
    pub value: Bytes,
    /// The cause of the last failure, or empty.
    pub last_error: String,
    /// The token of this delivery. Every claim shows it; only the newest one counts.
    pub lease_token: String,
    /// When the lease ends, as the broker's clock sees it (RFC 3339).
    pub lease_until: String,
    /// When it was produced (RFC 3339).
    pub produced_at: String,
    /// Tenant, idempotency key, deadline and so on.
    pub envelope: Envelope,
    /// The router's decision, if there was one.
    pub routing: Option<Routing>,
    /// The `traceparent` of the produce.
    pub trace: Option<String>,
    /// Whether the payload was damaged on disk: key and value are empty then.
    pub lost: bool,
    /// How often it has been redriven.
    pub redrives: u32,
}

impl Message {
    /// The payload as text.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) if it is not UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.value).map_err(|error| Error::misuse(format!("the value of {}: {error}", self.id())))
    }

    /// The payload as a JSON value.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) if it is not JSON, or has another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.value)
            .map_err(|error| Error::misuse(format!("the value of {}: {error}", self.id())))
    }

    /// `topic/partition/offset`, the identity of the message in logs and traces.
    #[must_use]
    pub fn id(&self) -> MessageId<'_> {
        MessageId(self)
    }

    /// The idempotency key, or `partition:offset` for a message without one.
    #[must_use]
    pub fn effective_key(&self) -> String {
        if self.envelope.idempotency_key.is_empty() {
            format!("{}:{}", self.partition, self.offset)
        } else {
            self.envelope.idempotency_key.clone()
        }
    }
}

impl fmt::Debug for Message {
    /// Without key and payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &format_args!("{}", self.id()))
            .field("attempts", &self.attempts)
            .field("failures", &self.failures)
            .field("value_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

impl Serialize for Message {
    /// As the broker writes it, with the topic in front. What it leaves out where there is none is left out.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut item = serializer.serialize_map(None)?;
        item.serialize_entry("topic", &*self.topic)?;
        item.serialize_entry("partition", &self.partition)?;
        item.serialize_entry("offset", &self.offset)?;
        item.serialize_entry("attempts", &self.attempts)?;
        item.serialize_entry("key", &self.key)?;
        match std::str::from_utf8(&self.value) {
            Ok(text) => item.serialize_entry("value", text)?,
            Err(_) => item.serialize_entry("value_base64", &base64::encode(&self.value))?,
        }
        item.serialize_entry("last_error", &self.last_error)?;
        item.serialize_entry("failures", &self.failures)?;
        item.serialize_entry("produced_at", &self.produced_at)?;
        for (name, text) in [("lease_token", &self.lease_token), ("lease_until", &self.lease_until)] {
            if !text.is_empty() {
                item.serialize_entry(name, text)?;
            }
        }
        if !self.envelope.is_empty() {
            item.serialize_entry("envelope", &self.envelope)?;
        }
        if let Some(routing) = &self.routing {
            item.serialize_entry("routing", routing)?;
        }
        if let Some(trace) = &self.trace {
            item.serialize_entry("trace", trace)?;
        }
        if self.lost {
            item.serialize_entry("lost", &true)?;
        }
        if self.redrives > 0 {
            item.serialize_entry("redrives", &self.redrives)?;
        }
        item.end()
    }
}

/// The identity of a message: it displays as `topic/partition/offset`.
#[derive(Clone, Copy)]
pub struct MessageId<'a>(&'a Message);

impl fmt::Display for MessageId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.0.topic, self.0.partition, self.0.offset)
    }
}

impl fmt::Debug for MessageId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A line of a stream, or an entry of a peek.
#[derive(Deserialize)]
pub(crate) struct Item {
    partition: u32,
    offset: u64,
    key: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    value_base64: Option<String>,
    #[serde(default)]
    attempts: u32,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    last_error: String,
    #[serde(default)]
    lease_token: String,
    #[serde(default)]
    lease_until: String,
    produced_at: String,
    #[serde(default)]
    envelope: Option<Envelope>,
    #[serde(default)]
    routing: Option<Routing>,
    #[serde(default)]
    trace: Option<String>,
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    redrives: u32,
}

impl Item {
    /// The message of this item of `topic`.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if its payload is not what it says.
    pub(crate) fn into_message(self, topic: &Arc<str>) -> Result<Message, Error> {
        let value = match (self.value, self.value_base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => Bytes::from(
                base64::decode(&text).ok_or_else(|| Error::protocol("an item's `value_base64` is not Base64"))?,
            ),
            // A payload that is lost.
            (None, None) => Bytes::new(),
            (Some(_), Some(_)) => return Err(Error::protocol("an item has both `value` and `value_base64`")),
        };
        Ok(Message {
            topic: Arc::clone(topic),
            partition: self.partition,
            offset: self.offset,
            attempts: self.attempts,
            failures: self.failures,
            key: self.key,
            value,
            last_error: self.last_error,
            lease_token: self.lease_token,
            lease_until: self.lease_until,
            produced_at: self.produced_at,
            envelope: self.envelope.unwrap_or_default(),
            routing: self.routing,
            trace: self.trace,
            lost: self.lost,
            redrives: self.redrives,
        })
    }
}

/// A claim on a delivered message: what ack, nack, extend, release and complete name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// The topic it was consumed from.
    #[serde(serialize_with = "as_text")]
    pub topic: Arc<str>,
    /// The group it was delivered to.
    #[serde(serialize_with = "as_text")]
    pub group: Arc<str>,
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// The owner of the stream.
    #[serde(serialize_with = "as_text")]
    pub owner: Arc<str>,
    /// The token of the delivery. Without one only the owner is compared, and the request is not repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_token: Option<String>,
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl Claim {
    /// The claim on a message that was delivered to a group's owner.
    #[must_use]
    pub fn new(message: &Message, group: impl Into<Arc<str>>, owner: impl Into<Arc<str>>) -> Self {
        Self {
            topic: Arc::clone(&message.topic),
            group: group.into(),
            partition: message.partition,
            offset: message.offset,
            owner: owner.into(),
            lease_token: Some(message.lease_token.clone()).filter(|token| !token.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &str) -> Result<Message, Error> {
        let item: Item = serde_json::from_str(line).expect("an item");
        item.into_message(&"t".into())
    }

    #[test]
    fn item_with_bytes_is_decoded() {
        let line =
            r#"{"partition":1,"offset":2,"key":"k","value_base64":"/w==","produced_at":"p","attempts":3,"new":1}"#;
        let message = message(line).expect("a message");
        assert_eq!((message.partition, message.offset, message.attempts), (1, 2, 3));
        assert_eq!(message.value, b"\xff"[..]);
        assert!(message.text().is_err());
        assert_eq!(message.effective_key(), "1:2");
        assert_eq!(message.id().to_string(), "t/1/2");
    }

    #[test]
    fn message_is_written_as_it_was_read() {
        let lines = [
            r#"{"partition":1,"offset":2,"attempts":3,"key":"k","value_base64":"/w==","last_error":"e","failures":1,
                "produced_at":"p","lease_token":"t","lease_until":"u","envelope":{"tenant_id":"x"},"redrives":1}"#,
            r#"{"partition":0,"offset":0,"attempts":0,"key":"","value":"v","last_error":"","failures":0,
                "produced_at":"p"}"#,
        ];
        for line in lines {
            let mut expected: serde_json::Value = serde_json::from_str(line).expect("JSON");
            expected["topic"] = "t".into();
            assert_eq!(serde_json::to_value(message(line).expect("a message")).expect("JSON"), expected);
        }
    }

    #[test]
    fn item_whose_payload_is_not_base64_is_a_protocol_error() {
        let error = message(r#"{"partition":0,"offset":0,"key":"","value_base64":"?","produced_at":""}"#);
        assert_eq!(error.expect_err("refused").kind(), crate::ErrorKind::Protocol);
    }

    #[test]
    fn debug_text_shows_neither_key_nor_payload() {
        let line = r#"{"partition":0,"offset":0,"key":"private","value":"secret","produced_at":""}"#;
        let shown = format!("{:?}", message(line).expect("a message"));
        assert!(!shown.contains("private") && !shown.contains("secret"), "{shown}");
    }
}
