//! Producing a message.

use crate::types::{Envelope, Millis, RoutingDecision, Text, TopicName};

/// Stores a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produce {
    /// The requested topic.
    pub topic: TopicName,
    /// The partitioning key; may be empty.
    pub key: Vec<u8>,
    /// The payload; must not be empty.
    pub value: Vec<u8>,
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
    /// A message without metadata.
    #[must_use]
    pub fn new(topic: TopicName, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let envelope = Envelope::default();
        Self { topic, key: key.into(), value: value.into(), envelope, delay: None, routing: None, trace: None }
    }
}
