//! Names of the lines of a batch, shared by consecutive lines.
//!
//! The lines of a batch mostly name the same topic, group and owner. A name of its own for each line is allocated
//! between messages that stay, and is cold memory once the line is answered (measured: `docs/performance.md`).

use std::borrow::Borrow;
use std::str::FromStr;

use driftq_core::types::{GroupName, NameError, OwnerName, TopicName};

/// The last valid name of each kind. A single request has a new one.
#[derive(Debug, Default)]
pub(crate) struct RecentNames {
    topic: Recent<TopicName>,
    group: Recent<GroupName>,
    owner: Recent<OwnerName>,
}

impl RecentNames {
    /// As [`TopicName::new`].
    pub(crate) fn topic(&mut self, text: &str) -> Result<TopicName, NameError> {
        self.topic.name(text)
    }

    /// As [`GroupName::new`].
    pub(crate) fn group(&mut self, text: &str) -> Result<GroupName, NameError> {
        self.group.name(text)
    }

    /// As [`OwnerName::new`].
    pub(crate) fn owner(&mut self, text: &str) -> Result<OwnerName, NameError> {
        self.owner.name(text)
    }
}

/// The last valid name.
#[derive(Debug)]
struct Recent<N>(Option<N>);

impl<N> Default for Recent<N> {
    fn default() -> Self {
        Self(None)
    }
}

impl<N: Borrow<str> + Clone + FromStr<Err = NameError>> Recent<N> {
    /// The name `text`, which shares the memory of the last one if that is the same.
    fn name(&mut self, text: &str) -> Result<N, NameError> {
        match &self.0 {
            Some(last) if last.borrow() == text => Ok(last.clone()),
            _ => {
                let name: N = text.parse()?;
                self.0 = Some(name.clone());
                Ok(name)
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
        let mut names = RecentNames::default();
        let first = names.topic("orders").unwrap();
        assert!(is_shared(&first, &names.topic("orders").unwrap()));
        let other = names.topic("orders.eu").unwrap();
        assert_eq!((first.as_str(), other.as_str()), ("orders", "orders.eu"));
        assert!(!is_shared(&first, &names.topic("orders").unwrap()));
    }

    #[test]
    fn every_name_is_what_it_is_without_sharing() {
        let mut names = RecentNames::default();
        for text in ["a", "a", " a ", "a", "A", "", "a", "a\n", "a\nb", "..", "größe", "größe", "a"] {
            assert_eq!(names.topic(text), TopicName::new(text), "{text:?}");
            assert_eq!(names.group(text), GroupName::new(text), "{text:?}");
            assert_eq!(names.owner(text), OwnerName::new(text), "{text:?}");
        }
    }

    #[test]
    fn invalid_name_does_not_replace_the_last_one() {
        let mut names = RecentNames::default();
        let first = names.topic("orders").unwrap();
        assert!(names.topic("").is_err());
        assert!(is_shared(&first, &names.topic("orders").unwrap()));
    }

    #[test]
    fn kinds_do_not_share() {
        let mut names = RecentNames::default();
        let longest = "t".repeat(255);
        assert!(names.group(&longest).is_ok());
        assert_eq!(names.topic(&longest), TopicName::new(&longest));
        assert!(names.topic(&longest).is_err());
    }
}
