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

/// The broker's names of topics, groups and workers, by number. The first is plain, so that a short trace reads well;
/// the others have characters that paths, metrics, JSON and pages must escape. They are as long as the names in traces
/// and sort like them, so that they change no sizes and no order.
const TOPIC_NAMES: [&str; 4] = ["t0", "u/", "v\"", "é"];
const GROUP_NAMES: [&str; 4] = ["g0", "h@", "i%", "ñ"];
const WORKER_NAMES: [&str; 4] = ["w0", "x&", "y<", "ö"];

/// The broker's name of the object with this number and this name in traces.
fn broker_name(names: &[&str], number: u8, name: String) -> String {
    names.get(usize::from(number)).map_or(name, |name| (*name).to_owned())
}

impl Topic {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> TopicName {
        let name = broker_name(&TOPIC_NAMES, self.number, format!("t{}", self.number));
        let prefix = if self.is_dlq { "dlq." } else { "" };
        TopicName::new(&format!("{prefix}{name}")).expect("generated names are valid")
    }

    /// The topic with this name, if it is one of the simulator's.
    #[must_use]
    pub fn of(name: &TopicName) -> Option<Self> {
        let text = name.as_str();
        let (is_dlq, bare) = text.strip_prefix("dlq.").map_or((false, text), |bare| (true, bare));
        let number = TOPIC_NAMES.iter().position(|known| *known == bare).and_then(|at| u8::try_from(at).ok());
        let number = number.or_else(|| bare.strip_prefix('t').and_then(|digits| digits.parse().ok()))?;
        Some(Self { number, is_dlq }).filter(|topic| topic.name() == *name)
    }
}

/// The name in traces of a topic of the broker; for other topics, the broker's.
#[must_use]
pub fn topic_in_traces(name: &TopicName) -> String {
    Topic::of(name).map_or_else(|| name.to_string(), |topic| topic.to_string())
}

/// The name in traces of a group of the broker; for other groups, the broker's.
#[must_use]
pub fn group_in_traces(name: &GroupName) -> String {
    Group::of(name).map_or_else(|| name.to_string(), |group| group.to_string())
}

/// The name in traces of an owner of the broker; for other owners, the broker's.
#[must_use]
pub fn worker_in_traces(name: &OwnerName) -> String {
    let number = WORKER_NAMES.iter().position(|known| *known == name.as_str());
    number.map_or_else(|| name.to_string(), |number| format!("w{number}"))
}

impl Group {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> GroupName {
        GroupName::new(&broker_name(&GROUP_NAMES, self.0, self.to_string())).expect("generated names are valid")
    }

    /// The group with this name, if it is one of the simulator's.
    #[must_use]
    pub fn of(name: &GroupName) -> Option<Self> {
        let known = GROUP_NAMES.iter().position(|known| *known == name.as_str());
        let number = known.and_then(|at| u8::try_from(at).ok()).map(Self);
        number.or_else(|| name.as_str().parse().ok()).filter(|group| group.name() == *name)
    }
}

impl Worker {
    /// The broker's name of it.
    #[must_use]
    pub fn name(self) -> OwnerName {
        OwnerName::new(&broker_name(&WORKER_NAMES, self.0, self.to_string())).expect("generated names are valid")
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
            assert_eq!(Topic::of(&topic.name()), Some(topic));
        }
        assert_eq!("m17".parse(), Ok(Message(17)));
        for text in ["", "x1", "m", "m-1", "g999", "dlq.g1"] {
            assert!(text.parse::<Topic>().is_err() && text.parse::<Message>().is_err(), "{text}");
            assert!(text.parse::<Group>().is_err(), "{text}");
        }
    }

    #[test]
    fn broker_names_are_distinct_and_as_long_as_names_in_traces() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..=u8::MAX {
            for topic in [Topic::new(number), Topic::new(number).dlq()] {
                assert_eq!(Topic::of(&topic.name()), Some(topic));
                assert_eq!(topic.name().as_str().len(), topic.to_string().len());
                assert!(seen.insert(topic.name().as_str().to_owned()), "{topic}");
                assert_eq!(topic_in_traces(&topic.name()), topic.to_string());
            }
            assert_eq!(Group::of(&Group(number).name()), Some(Group(number)));
            assert_eq!(group_in_traces(&Group(number).name()), Group(number).to_string());
            assert_eq!(worker_in_traces(&Worker(number).name()), Worker(number).to_string());
        }
        assert_eq!(Topic::new(1).dlq().name().as_str(), "dlq.u/");
        for absent in ["t1", "t01", "t+5", "dlq.dlq.t9", "x"] {
            assert_eq!(Topic::of(&TopicName::new(absent).expect("valid name")), None, "{absent}");
        }
    }
}
