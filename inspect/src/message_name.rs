//! The name of a message: topic and offset.

use std::fmt;
use std::str::FromStr;

use driftq_core::types::{NameError, Offset, TopicName};

use crate::topic_text::parse_topic;

/// A message, named by its topic and its offset: `topic/offset`. The last slash separates them. The topic is as in
/// [`topic_text`](crate::topic_text()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageName {
    /// The topic.
    pub topic: TopicName,
    /// The offset.
    pub offset: Offset,
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.offset)
    }
}

/// Why a text is not a [`MessageName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageNameError {
    /// There is no slash, or no number after it.
    #[error("{0:?} is not a message; write topic and offset, such as orders/17")]
    Form(String),
    /// The part before the slash is not a topic name.
    #[error(transparent)]
    Topic(#[from] NameError),
}

impl FromStr for MessageName {
    type Err = MessageNameError;

    fn from_str(text: &str) -> Result<Self, MessageNameError> {
        let parts = text.rsplit_once('/').and_then(|(topic, offset)| Some((topic, offset.parse().ok()?)));
        let (topic, offset) = parts.ok_or_else(|| MessageNameError::Form(text.to_owned()))?;
        Ok(Self { topic: parse_topic(topic)?, offset: Offset(offset) })
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::types::TenantId;

    use super::*;

    #[test]
    fn topic_slash_offset_parses_and_other_text_is_refused() {
        let name: MessageName = "dlq.orders/17".parse().unwrap();
        assert_eq!((name.topic.as_str(), name.offset), ("dlq.orders", Offset(17)));
        assert_eq!(name.to_string(), "dlq.orders/17");
        let name: MessageName = "orders/eu/3".parse().unwrap();
        assert_eq!((name.topic.as_str(), name.offset), ("orders/eu", Offset(3)));
        let name: MessageName = "my topic/3".parse().unwrap();
        assert_eq!((name.topic.as_str(), name.to_string().as_str()), ("my topic", "\"my topic\"/3"));
        let name: MessageName = "#7:orders/17".parse().unwrap();
        assert_eq!((name.topic.tenant(), name.topic.as_str(), name.offset), (TenantId(7), "orders", Offset(17)));
        assert_eq!(name.to_string(), "#7:orders/17");
        for text in ["", "orders", "orders/", "orders/x", "orders/-1", "/3", "../3", "a\nb/3"] {
            assert!(text.parse::<MessageName>().is_err(), "{text}");
        }
    }
}
