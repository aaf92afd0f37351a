//! Everything that must survive, and the one function that changes it.
//!
//! [`State`] is changed by [`State::apply`] alone, live and in recovery alike. Reading it is free for all. Its maps are
//! copy-on-write, so that a [`View`] of this very moment can be taken at once and written out at leisure.

pub mod apply;
mod completions;
mod dead_letters;
mod dedupe;
mod effects;
pub mod group;
mod groups;
pub mod partition;
mod restore;
pub mod topic;
mod validate;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::completions::Completions;
pub use self::dedupe::{DedupeEntry, DedupeTable};
pub use self::effects::store::EffectStore;
pub use self::effects::table::EffectTable;
use self::topic::Topic;
pub use self::validate::InconsistentState;
pub use self::view::View;
use crate::collections::shared::unshared;
use crate::types::{Boot, Timestamp, TopicId, TopicName};

/// The durable state of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    clock: Timestamp,
    boot: Boot,
    next_topic: TopicId,
    pub(crate) topics: BTreeMap<TopicId, Arc<Topic>>,
    names: BTreeMap<TopicName, TopicId>,
    dedupe: BTreeMap<TopicName, Arc<DedupeTable>>,
    pub(crate) store: EffectStore,
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
    pub fn dedupe(&self, scope: &TopicName) -> Option<&DedupeTable> {
        self.dedupe.get(scope).map(|table| &**table)
    }

    /// The scopes that have produce identities.
    pub fn dedupe_tables(&self) -> impl Iterator<Item = (&TopicName, &DedupeTable)> {
        self.dedupe.iter().map(|(scope, table)| (scope, &**table))
    }

    /// The idempotency store.
    #[must_use]
    pub fn store(&self) -> &EffectStore {
        &self.store
    }

    /// The answers of completed steps.
    #[must_use]
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    pub(crate) fn topic_mut(&mut self, topic: TopicId) -> Result<&mut Topic, Contradiction> {
        self.topics.get_mut(&topic).map(unshared).ok_or(Contradiction("no such topic"))
    }
}
