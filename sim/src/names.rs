//! Names in traces. They stand for topics, messages and workers instead of offsets and tokens, so that any subsequence
//! of a trace stays meaningful.

use std::fmt;
use std::str::FromStr;

use driftq_core::types::{GroupName, OwnerName, TopicName};
use serde::{Deserialize, Serialize};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                let number = text.strip_prefix($prefix).and_then(|digits| digits.parse().ok());
                number.map(Self).ok_or_else(|| InvalidName(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.to_string()
            }
        }
    };
}

/// The text is not a name of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a valid name in a trace")]
pub struct InvalidName(String);

handle! {
    /// A consumer group: `g0`.
    Group(u8), "g"
}
handle! {
    /// A worker: `w0`.
    Worker(u8), "w"
}
handle! {
    /// A message, by the produce that created it: `m0`. Its value starts with the number.
    Message(u32), "m"
}
handle! {
    /// A request held by the network: `c0`.
    Call(u32), "c"
}

/// A topic or its dead-letter topic: `t0`, `dlq.t0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Topic {
    /// The number.
    pub number: u8,
    /// Whether it is the dead-letter topic.
    pub is_dlq: bool,
}

impl Topic {
    /// A topic that producers use.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self { number, is_dlq: false }
    }

    /// The dead-letter topic of this topic.
    #[must_use]
    pub const fn dlq(self) -> Self {
        Self { number: self.number, is_dlq: true }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}t{}", if self.is_dlq { "dlq." } else { "" }, self.number)
    }
}

impl FromStr for Topic {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (is_dlq, name) = text.strip_prefix("dlq.").map_or((false, text), |name| (true, name));
        let number = name.strip_prefix('t').and_then(|digits| digits.parse().ok());
        number.map(|number| Self { number, is_dlq }).ok_or_else(|| InvalidName(text.to_owned()))
    }
}

impl TryFrom<String> for Topic {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Topic> for String {
    fn from(topic: Topic) -> Self {
        topic.to_string()
    }
}

impl Topic {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> TopicName {
        TopicName::new(&self.to_string()).expect("generated names are valid")
    }

    /// The topic with this name, if it is one of the simulator's.
    #[must_use]
    pub fn of(name: &TopicName) -> Option<Self> {
        name.as_str().parse().ok()
    }
}

impl Group {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> GroupName {
        GroupName::new(&self.to_string()).expect("generated names are valid")
    }
}

impl Worker {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> OwnerName {
        OwnerName::new(&self.to_string()).expect("generated names are valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_invalid_names_are_refused() {
        for text in ["t0", "dlq.t3"] {
            let topic: Topic = text.parse().expect("a topic");
            assert_eq!(topic.to_string(), text);
            assert_eq!(topic.name().as_str(), text);
            assert_eq!(Topic::of(&topic.name()), Some(topic));
        }
        assert_eq!("m17".parse(), Ok(Message(17)));
        for text in ["", "x1", "m", "m-1", "g999", "dlq.g1"] {
            assert!(text.parse::<Topic>().is_err() && text.parse::<Message>().is_err(), "{text}");
            assert!(text.parse::<Group>().is_err(), "{text}");
        }
    }
}
