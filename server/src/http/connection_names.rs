//! Names that the requests of a connection share.
//!
//! The requests of a connection, and the lines of a batch, mostly name the same topic, group and owner. If each had
//! names of its own, these would be allocated between messages that stay, and be cold memory when the request is
//! answered (measured: `docs/performance.md`).

use std::borrow::Borrow;
use std::cell::Cell;
use std::str::FromStr;

use driftq_core::types::{GroupName, NameError, OwnerName, TopicName};

/// The last valid name of each kind. Shares memory and nothing else: the names are the same without it.
#[derive(Default)]
pub(crate) struct ConnectionNames {
    /// The topic of a delivery.
    topic: Last<TopicName>,
    /// The topic to which a message is produced. A step has both.
    produced_to: Last<TopicName>,
    group: Last<GroupName>,
    owner: Last<OwnerName>,
}

impl ConnectionNames {
    /// As [`TopicName::new`], for the topic of a delivery.
    pub(crate) fn topic(&self, text: &str) -> Result<TopicName, NameError> {
        self.topic.name(text)
    }

    /// As [`TopicName::new`], for the topic to which a message is produced.
    pub(crate) fn produced_to(&self, text: &str) -> Result<TopicName, NameError> {
        self.produced_to.name(text)
    }

    /// As [`GroupName::new`].
    pub(crate) fn group(&self, text: &str) -> Result<GroupName, NameError> {
        self.group.name(text)
    }

    /// As [`OwnerName::new`].
    pub(crate) fn owner(&self, text: &str) -> Result<OwnerName, NameError> {
        self.owner.name(text)
    }
}

/// The last valid name.
struct Last<N>(Cell<Option<N>>);

impl<N> Default for Last<N> {
    fn default() -> Self {
        Self(Cell::new(None))
    }
}

impl<N: Borrow<str> + Clone + FromStr<Err = NameError>> Last<N> {
    /// The name `text`: a clone of the last one if that is the same.
    fn name(&self, text: &str) -> Result<N, NameError> {
        match self.0.take() {
            // A name is valid and trimmed, so an equal text is too.
            Some(last) if last.borrow() == text => {
                self.0.set(Some(last.clone()));
                Ok(last)
            }
            last => {
                let name: Result<N, NameError> = text.parse();
                self.0.set(name.as_ref().ok().cloned().or(last));
                name
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_shared(one: &TopicName, other: &TopicName) -> bool {
        std::ptr::eq(one.as_str(), other.as_str())
    }

    #[test]
    fn equal_names_in_a_row_are_shared() {
        let names = ConnectionNames::default();
        let first = names.topic("orders").unwrap();
        assert!(is_shared(&first, &names.topic("orders").unwrap()));
        let other = names.topic("orders.eu").unwrap();
        assert_eq!((first.as_str(), other.as_str()), ("orders", "orders.eu"));
        assert!(!is_shared(&first, &names.topic("orders").unwrap()));
    }

    #[test]
    fn every_name_is_what_it_is_without_sharing() {
        let names = ConnectionNames::default();
        for text in ["a", "a", " a ", "a", "A", "", "a", "a\n", "a\nb", "..", "größe", "größe", "a"] {
            assert_eq!(names.topic(text), TopicName::new(text), "{text:?}");
            assert_eq!(names.produced_to(text), TopicName::new(text), "{text:?}");
            assert_eq!(names.group(text), GroupName::new(text), "{text:?}");
            assert_eq!(names.owner(text), OwnerName::new(text), "{text:?}");
        }
    }

    #[test]
    fn invalid_name_does_not_replace_the_last_one() {
        let names = ConnectionNames::default();
        let first = names.topic("orders").unwrap();
        assert!(names.topic("").is_err());
        assert!(is_shared(&first, &names.topic("orders").unwrap()));
    }

    #[test]
    fn kinds_do_not_share() {
        let names = ConnectionNames::default();
        let longest = "t".repeat(255);
        assert!(names.group(&longest).is_ok());
        assert_eq!(names.topic(&longest), TopicName::new(&longest));
        assert!(names.topic(&longest).is_err());
    }
}
