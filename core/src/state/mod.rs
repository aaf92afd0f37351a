//! Everything that must survive, and the one function that changes it.
//!
//! [`State`] is changed by [`State::apply`] alone, live and in recovery alike. Reading it is free for all. Its maps are
//! copy-on-write, so that a [`View`] of this very moment can be taken at once and written out at leisure.

pub mod apply;
pub(crate) mod cow;
mod dead;
mod dedupe;
mod done;
mod effects;
pub mod entry;
pub mod group;
mod groups;
pub mod partition;
mod restore;
pub(crate) mod shared;
pub mod topic;
mod validate;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::dedupe::{Accepted, Identities, IdentityKey};
pub use self::done::AckSet;
use self::shared::unshared;
use self::topic::Topic;
pub use self::validate::InconsistentState;
pub use self::view::View;
use crate::idempotency::{Completions, Store};
use crate::types::{Boot, Timestamp, TopicId, TopicName};

/// The durable state of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    clock: Timestamp,
    boot: Boot,
    next_topic: TopicId,
    topics: BTreeMap<TopicId, Arc<Topic>>,
    names: BTreeMap<TopicName, TopicId>,
    identities: BTreeMap<TopicName, Arc<Identities>>,
    store: Store,
    completions: Arc<Completions>,
}

/// A record that cannot follow from this state: it was not decided against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record contradicts the state: {0}")]
pub struct Contradiction(pub &'static str);

impl State {
    /// The last recorded moment. Time inside the broker never runs behind it.
    #[must_use]
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// The boot in force; 0 before the first.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// The number the next topic gets.
    #[must_use]
    pub fn next_topic(&self) -> TopicId {
        self.next_topic
    }

    /// A topic, by number.
    #[must_use]
    pub fn topic(&self, topic: TopicId) -> Option<&Topic> {
        self.topics.get(&topic).map(|topic| &**topic)
    }

    /// A topic, by name.
    #[must_use]
    pub fn topic_named(&self, name: &TopicName) -> Option<&Topic> {
        self.topic(*self.names.get(name)?)
    }

    /// All topics, by name in byte order.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.names.values().map(|id| &*self.topics[id])
    }

    /// How many topics there are.
    #[must_use]
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The produce identities of a topic as producers mean it, if it has any.
    #[must_use]
    pub fn identities(&self, scope: &TopicName) -> Option<&Identities> {
        self.identities.get(scope).map(|identities| &**identities)
    }

    /// The scopes that have produce identities.
    pub fn identity_scopes(&self) -> impl Iterator<Item = (&TopicName, &Identities)> {
        self.identities.iter().map(|(scope, identities)| (scope, &**identities))
    }

    /// The idempotency store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The answers of completed steps.
    #[must_use]
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    /// The planted bug: offsets go on from the newest message that is kept.
    pub(crate) fn forget_offsets(&mut self) {
        for topic in self.topics.values_mut().map(unshared) {
            let kept = topic.partitions().filter_map(|(_, partition)| partition.messages().last());
            topic.next_offset = kept.map(|(_, message)| message.offset.next()).max().unwrap_or_default();
        }
    }

    fn topic_mut(&mut self, topic: TopicId) -> Result<&mut Topic, Contradiction> {
        self.topics.get_mut(&topic).map(unshared).ok_or(Contradiction("no such topic"))
    }
}
