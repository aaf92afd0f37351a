//! Names of topics, groups and owners: checked when made, shared afterwards.

use crate::wire::Malformed;
use std::fmt;
use std::sync::Arc;

/// The longest name of a group or an owner, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest name of a topic that is not itself a dead-letter topic: `dlq.` must still fit in front.
pub const TOPIC_BYTES_MAX: usize = NAME_BYTES_MAX - DEAD_LETTER_PREFIX.len();
/// What a dead-letter topic's name starts with.
pub const DEAD_LETTER_PREFIX: &str = "dlq.";

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing is left after trimming.
    #[error("{what} must not be empty")]
    Empty {
        /// Which name it was to be.
        what: &'static str,
    },
    /// More bytes than such a name may have.
    #[error("{what} has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Which name it was to be.
        what: &'static str,
        /// How many bytes it has.
        len: usize,
        /// How many it may have.
        max: usize,
    },
    /// A character outside `[A-Za-z0-9._:-]`.
    #[error("{what} may hold only A-Z a-z 0-9 . _ : -")]
    BadCharacter {
        /// Which name it was to be.
        what: &'static str,
    },
    /// `.` and `..` would be path steps.
    #[error("{what} must not be \".\" or \"..\"")]
    Dots {
        /// Which name it was to be.
        what: &'static str,
    },
}

fn check(text: &str, what: &'static str, max: usize) -> Result<Arc<str>, NameError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max {
        return Err(NameError::TooLong { what, len: text.len(), max });
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-')) {
        return Err(NameError::BadCharacter { what });
    }
    if text == "." || text == ".." {
        return Err(NameError::Dots { what });
    }
    Ok(Arc::from(text))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Trims `text` and checks it.
            ///
            /// # Errors
            /// [`NameError`] says what is wrong with it.
            pub fn new(text: &str) -> Result<Self, NameError> {
                let max: fn(&str) -> usize = $max;
                check(text, $what, max(text.trim())).map(Self)
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

name! {
    /// The name of a topic: 1–251 bytes, or up to 255 where it starts with `dlq.`.
    TopicName, "topic", |text| if text.starts_with(DEAD_LETTER_PREFIX) { NAME_BYTES_MAX } else { TOPIC_BYTES_MAX }
}
name! {
    /// The name of a consumer group.
    GroupName, "group", |_| NAME_BYTES_MAX
}
name! {
    /// The name a worker gives itself; deliveries belong to it.
    OwnerName, "owner", |_| NAME_BYTES_MAX
}

impl TopicName {
    /// Whether this is a dead-letter topic: its messages are never dead-lettered again.
    #[must_use]
    pub fn is_dead_letter(&self) -> bool {
        self.0.starts_with(DEAD_LETTER_PREFIX)
    }

    /// The topic that takes this topic's dead letters, or `None` where this already is one.
    #[must_use]
    pub fn dead_letter(&self) -> Option<Self> {
        if self.is_dead_letter() {
            return None;
        }
        Some(Self(Arc::from(format!("{DEAD_LETTER_PREFIX}{}", self.0))))
    }

    /// The name of the topic whose dead letters this topic takes, if it takes any.
    #[must_use]
    pub fn dead_letter_source(&self) -> Option<&str> {
        self.0.strip_prefix(DEAD_LETTER_PREFIX).filter(|source| !source.starts_with(DEAD_LETTER_PREFIX))
    }
}

pub(crate) fn owner_name(text: &str) -> Result<OwnerName, Malformed> {
    OwnerName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not an owner name"))
}

pub(crate) fn group_name(text: &str) -> Result<GroupName, Malformed> {
    GroupName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a group name"))
}

pub(crate) fn topic_name(text: &str) -> Result<TopicName, Malformed> {
    TopicName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a topic name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_then_checked() {
        assert_eq!(TopicName::new("  a.b_c:d-9 ").unwrap().as_str(), "a.b_c:d-9");
        assert_eq!(TopicName::new("   "), Err(NameError::Empty { what: "topic" }));
        assert_eq!(GroupName::new("a b"), Err(NameError::BadCharacter { what: "group" }));
        assert_eq!(OwnerName::new(".."), Err(NameError::Dots { what: "owner" }));
        assert_eq!(OwnerName::new("é"), Err(NameError::BadCharacter { what: "owner" }));
    }

    #[test]
    fn the_longest_topic_still_has_a_dead_letter_topic() {
        let longest = "t".repeat(TOPIC_BYTES_MAX);
        let topic = TopicName::new(&longest).unwrap();
        let dead = topic.dead_letter().unwrap();
        assert_eq!(dead.as_str().len(), NAME_BYTES_MAX);
        assert_eq!(TopicName::new(dead.as_str()), Ok(dead.clone()));
        assert_eq!(dead.dead_letter(), None);
        assert_eq!((dead.dead_letter_source(), topic.dead_letter_source()), (Some(topic.as_str()), None));
        assert_eq!(TopicName::new("dlq.dlq.a").unwrap().dead_letter_source(), None);
        assert!(TopicName::new(&format!("{longest}t")).is_err());
    }
}
