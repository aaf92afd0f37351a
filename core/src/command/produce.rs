//! Producing a message.

use std::fmt;

use crate::types::{Body, Envelope, Millis, RoutingDecision, Text, TopicName};

/// Stores a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Produce {
    /// The requested topic.
    pub topic: TopicName,
    /// Key and value, packed once: a message without metadata is stored as it is here.
    packed: Body,
    /// The producer's metadata.
    pub envelope: Envelope,
    /// Holds the message back this long; excludes a `deliver_at` in the envelope.
    pub delay: Option<Millis>,
    /// The router's decision, if a router was consulted.
    pub routing: Option<RoutingDecision>,
    /// The trace context, delivered with the message.
    pub trace: Option<Text>,
}

impl Produce {
    /// A message without metadata. The key may be empty, the value must not be.
    ///
    /// # Panics
    /// If the key is longer than 4 GiB.
    #[must_use]
    pub fn new(topic: TopicName, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        let packed = Body::bare(key.as_ref(), value.as_ref());
        Self { topic, packed, envelope: Envelope::default(), delay: None, routing: None, trace: None }
    }

    /// The partitioning key; may be empty.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.packed.key()
    }

    /// The payload.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.packed.value()
    }

    /// The bytes of key and value.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.packed.payload_len() as usize
    }

    /// Replaces the key.
    pub fn set_key(&mut self, key: impl AsRef<[u8]>) {
        self.packed = Body::bare(key.as_ref(), self.value());
    }

    /// Replaces the value.
    pub fn set_value(&mut self, value: impl AsRef<[u8]>) {
        self.packed = Body::bare(self.key(), value.as_ref());
    }

    /// Key and value without metadata.
    pub(crate) fn packed(&self) -> &Body {
        &self.packed
    }
}

/// Prints what the fields say, key and value apart.
impl fmt::Debug for Produce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, packed, envelope, delay, routing, trace } = self;
        f.debug_struct("Produce")
            .field("topic", topic)
            .field("key", &packed.key())
            .field("value", &packed.value())
            .field("envelope", envelope)
            .field("delay", delay)
            .field("routing", routing)
            .field("trace", trace)
            .finish()
    }
}
