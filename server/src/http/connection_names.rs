//! Names that the requests of a connection share.
//!
//! The requests of a connection, and the lines of a batch, mostly name the same topic, group and owner. If each had
//! names of its own, these would be allocated between messages that stay, and be cold memory when the request is
//! answered (measured: `docs/performance.md`).

use std::cell::Cell;

use driftq_core::types::{GroupName, NameError, OwnerName, TenantId, TopicName};

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
    /// As [`TopicName::of`], for the topic of a delivery.
    pub(crate) fn topic(&self, tenant: TenantId, text: &str) -> Result<TopicName, NameError> {
        self.topic.name(|last| is_topic(last, tenant, text), || TopicName::of(tenant, text))
    }

    /// As [`TopicName::of`], for the topic to which a message is produced.
    pub(crate) fn produced_to(&self, tenant: TenantId, text: &str) -> Result<TopicName, NameError> {
        self.produced_to.name(|last| is_topic(last, tenant, text), || TopicName::of(tenant, text))
    }

    /// As [`GroupName::new`].
    pub(crate) fn group(&self, text: &str) -> Result<GroupName, NameError> {
        self.group.name(|last| last.as_str() == text, || GroupName::new(text))
    }

    /// As [`OwnerName::new`].
    pub(crate) fn owner(&self, text: &str) -> Result<OwnerName, NameError> {
        self.owner.name(|last| last.as_str() == text, || OwnerName::new(text))
    }
}

/// The last valid name.
struct Last<N>(Cell<Option<N>>);

impl<N> Default for Last<N> {
    fn default() -> Self {
        Self(Cell::new(None))
    }
}

impl<N: Clone> Last<N> {
    /// The name that `new` makes: a clone of the last one if that is the same.
    fn name(
        &self,
        is_same: impl FnOnce(&N) -> bool,
        new: impl FnOnce() -> Result<N, NameError>,
    ) -> Result<N, NameError> {
        match self.0.take() {
            // A name is valid and trimmed, so an equal text is too.
            Some(last) if is_same(&last) => {
                self.0.set(Some(last.clone()));
                Ok(last)
            }
            last => {
                let name = new();
                self.0.set(name.as_ref().ok().cloned().or(last));
                name
            }
        }
    }
}

fn is_topic(last: &TopicName, tenant: TenantId, text: &str) -> bool {
    last.as_str() == text && last.tenant() == tenant
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: TenantId = TenantId::DEFAULT;

    fn is_shared(one: &TopicName, other: &TopicName) -> bool {
        std::ptr::eq(one.as_str(), other.as_str())
    }

    #[test]
    fn equal_names_in_a_row_are_shared() {
        let names = ConnectionNames::default();
        let first = names.topic(DEFAULT, "orders").unwrap();
        assert!(is_shared(&first, &names.topic(DEFAULT, "orders").unwrap()));
        let other = names.topic(DEFAULT, "orders.eu").unwrap();
        assert_eq!((first.as_str(), other.as_str()), ("orders", "orders.eu"));
        assert!(!is_shared(&first, &names.topic(DEFAULT, "orders").unwrap()));
    }

    #[test]
    fn every_name_is_what_it_is_without_sharing() {
        let names = ConnectionNames::default();
        for text in ["a", "a", " a ", "a", "A", "", "a", "a\n", "a\nb", "..", "größe", "größe", "a"] {
            assert_eq!(names.topic(DEFAULT, text), TopicName::new(text), "{text:?}");
            assert_eq!(names.produced_to(DEFAULT, text), TopicName::new(text), "{text:?}");
            assert_eq!(names.group(text), GroupName::new(text), "{text:?}");
            assert_eq!(names.owner(text), OwnerName::new(text), "{text:?}");
        }
    }

    #[test]
    fn invalid_name_does_not_replace_the_last_one() {
        let names = ConnectionNames::default();
        let first = names.topic(DEFAULT, "orders").unwrap();
        assert!(names.topic(DEFAULT, "").is_err());
        assert!(is_shared(&first, &names.topic(DEFAULT, "orders").unwrap()));
    }

    #[test]
    fn tenants_do_not_share() {
        let names = ConnectionNames::default();
        for tenant in [DEFAULT, TenantId(1), TenantId(2), TenantId(1), DEFAULT] {
            assert_eq!(names.topic(tenant, "orders"), TopicName::of(tenant, "orders"));
            assert_eq!(names.produced_to(tenant, "orders"), TopicName::of(tenant, "orders"));
        }
    }

    #[test]
    fn kinds_do_not_share() {
        let names = ConnectionNames::default();
        let longest = "t".repeat(255);
        assert!(names.group(&longest).is_ok());
        assert_eq!(names.topic(DEFAULT, &longest), TopicName::new(&longest));
        assert!(names.topic(DEFAULT, &longest).is_err());
    }
}
