//! Who and what a step is about: small numbers that read as names, so that any part of a trace still makes sense.

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

/// The text names nothing a step can be about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a name used in traces")]
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
    /// A message, by the produce that made it: `m0`. Whatever becomes of it, its value says so.
    Message(u32), "m"
}
handle! {
    /// A call under way in the network: `c0`.
    Call(u32), "c"
}

/// A topic, or the one that takes its dead letters: `t0`, `dlq.t0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Topic {
    /// Its number.
    pub number: u8,
    /// Whether its dead letters are meant.
    pub dead: bool,
}

impl Topic {
    /// A topic that producers use.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self { number, dead: false }
    }

    /// The topic of its dead letters.
    #[must_use]
    pub const fn dlq(self) -> Self {
        Self { number: self.number, dead: true }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}t{}", if self.dead { "dlq." } else { "" }, self.number)
    }
}

impl FromStr for Topic {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (dead, name) = text.strip_prefix("dlq.").map_or((false, text), |name| (true, name));
        let number = name.strip_prefix('t').and_then(|digits| digits.parse().ok());
        number.map(|number| Self { number, dead }).ok_or_else(|| InvalidName(text.to_owned()))
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
    /// As the broker knows it.
    #[must_use]
    pub fn name(self) -> TopicName {
        TopicName::new(&self.to_string()).expect("the simulator's names are names")
    }

    /// Which of the simulator's topics the broker's name means.
    #[must_use]
    pub fn of(name: &TopicName) -> Option<Self> {
        name.as_str().parse().ok()
    }
}

impl Group {
    /// As the broker knows it.
    #[must_use]
    pub fn name(self) -> GroupName {
        GroupName::new(&self.to_string()).expect("the simulator's names are names")
    }
}

impl Worker {
    /// As the broker knows it.
    #[must_use]
    pub fn name(self) -> OwnerName {
        OwnerName::new(&self.to_string()).expect("the simulator's names are names")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_and_read_back_and_strangers_are_refused() {
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
