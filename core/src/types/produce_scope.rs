//! The scope of produce identities.

use super::topic_name::TopicName;
use crate::wire::Malformed;

/// The scope within which a produce identity (tenant and idempotency key) is unique: what the producer asked for,
/// before any router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProduceScope {
    /// The requested topic.
    pub topic: TopicName,
    /// The topic that the message is meant for: its `target_topic`, else the requested topic. Of the same tenant.
    pub destination: TopicName,
}

impl ProduceScope {
    /// The scope of a produce to `topic` with this target.
    #[must_use]
    pub fn new(topic: &TopicName, target: Option<&TopicName>) -> Self {
        Self { topic: topic.clone(), destination: target.unwrap_or(topic).clone() }
    }

    /// The scope of the recorded names of its topics.
    pub(crate) fn decode(topic: &str, destination: &str) -> Result<Self, Malformed> {
        let (topic, destination) = (TopicName::decode(topic)?, TopicName::decode(destination)?);
        match topic.has_tenant_of(&destination) {
            true => Ok(Self { topic, destination }),
            false => Err(Malformed("topics of two tenants in one scope")),
        }
    }

    /// Whether `topic` is the requested topic or the destination.
    #[must_use]
    pub fn names(&self, topic: &TopicName) -> bool {
        self.topic == *topic || self.destination == *topic
    }

    /// Whether `topic` is both the requested topic and the destination.
    #[must_use]
    pub fn is_only(&self, topic: &TopicName) -> bool {
        self.topic == *topic && self.destination == *topic
    }
}

impl std::fmt::Display for ProduceScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.topic == self.destination {
            true => write!(f, "{}", self.topic),
            false => write!(f, "{} for {}", self.topic, self.destination),
        }
    }
}
