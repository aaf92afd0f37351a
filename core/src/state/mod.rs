//! The durable state of a broker.
//!
//! Only [`State::apply`] changes a [`State`], live and in recovery. Its maps are copy-on-write, so that a [`View`] of
//! the current state is taken in constant time per topic and read while the state changes.

mod access;
mod apply;
mod completions;
mod dead_letters;
mod dedupe;
mod effects;
mod group;
mod groups;
mod memory;
mod message;
mod message_map;
mod partition;
mod purge;
mod referrers;
mod relocation;
mod restore;
mod topic;
mod validate;
mod view;
mod winners;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

pub use self::access::{Access, AuditLog, Keys, Tenants};
pub use self::completions::Completions;
pub use self::dedupe::{DedupeEntry, DedupeTable};
pub(crate) use self::effects::list::VisibleEffects;
pub use self::effects::store::EffectStore;
pub(crate) use self::effects::store::NamespaceRef;
pub use self::effects::table::EffectTable;
pub use self::group::{Group, Progress};
pub use self::memory::StateMemory;
pub use self::message::Message;
pub(crate) use self::message::NewMessage;
pub(crate) use self::message_map::ChunkParts;
pub use self::message_map::{AckRun, MessageChunk};
pub use self::partition::{Load, Partition};
pub(crate) use self::referrers::Referrers;
pub use self::topic::Topic;
pub use self::validate::InconsistentState;
pub use self::view::View;
pub use self::winners::Winners;
pub use crate::collections::ack_set::AckSet;
use crate::collections::id_map::IdMap;
use crate::collections::shared::unshared;
use crate::types::{
    Boot, DeliveryState, Lsn, MessageRef, PayloadId, ProduceScope, TenantId, Timestamp, TopicId, TopicName, WallClock,
};

/// The durable state of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The LSN of the last record.
    last_lsn: Lsn,
    clock: Timestamp,
    wall_clock: WallClock,
    boot: Boot,
    next_topic: TopicId,
    access: Access,
    pub(crate) topics: IdMap<TopicId, Arc<Topic>>,
    names: BTreeMap<TopicName, TopicId>,
    pub(crate) dedupe: BTreeMap<ProduceScope, Arc<DedupeTable>>,
    pub(crate) store: EffectStore,
    completions: Arc<Completions>,
    pub(crate) winners: Arc<Winners>,
    pub(crate) referrers: Referrers,
}

/// A record that cannot follow the state: it was decided against another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record contradicts the state: {0}")]
pub struct Contradiction(pub &'static str);

impl State {
    /// The LSN of the last record; 0 before the first.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Continues behind the record with this LSN. A log from which damaged records were removed does not have every
    /// LSN.
    pub fn continue_behind(&mut self, last: Lsn) {
        self.last_lsn = last;
    }

    /// The time of the last record. The broker's time never falls behind it.
    #[must_use]
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// The mapping of broker time to wall time.
    #[must_use]
    pub fn wall_clock(&self) -> &WallClock {
        &self.wall_clock
    }

    /// The wall time of the last record.
    #[must_use]
    pub fn wall(&self) -> Timestamp {
        self.wall_clock.wall(self.clock)
    }

    /// Whether the delay or the `deliver_at` of a message has not passed at broker time `now`.
    #[must_use]
    pub fn is_delayed(&self, message: &Message, now: Timestamp) -> bool {
        if !message.flags().has_delay {
            return false;
        }
        message.delayed_until().is_some_and(|until| until > now)
            || message.deliver_at().is_some_and(|at| at > self.wall_clock.wall(now))
    }

    /// The current boot; 0 before the first.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// The id of the next topic.
    #[must_use]
    pub fn next_topic(&self) -> TopicId {
        self.next_topic
    }

    /// The topic with this id.
    #[must_use]
    pub fn topic(&self, topic: TopicId) -> Option<&Topic> {
        self.topics.get(&topic).map(|topic| &**topic)
    }

    /// The newest delivery of an unacked message.
    #[must_use]
    pub(crate) fn delivery(&self, message_ref: &MessageRef) -> Option<&DeliveryState> {
        let group = self.topic(message_ref.topic)?.group(message_ref.group)?;
        group.progress(message_ref.partition)?.delivery(message_ref.position)
    }

    /// The topic with this name.
    #[must_use]
    pub fn topic_named(&self, name: &TopicName) -> Option<&Topic> {
        self.topic(*self.names.get(name)?)
    }

    /// The topic whose dead letters the topic `name` stores.
    #[must_use]
    pub(crate) fn dead_letter_source(&self, name: &TopicName) -> Option<&Topic> {
        self.topic_named(&name.dead_letter_source()?)
    }

    /// All topics, in the order of their names.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.names.values().map(|id| &*self.topics[id])
    }

    /// The topics of a tenant, in byte order of their names.
    pub fn topics_of(&self, tenant: TenantId) -> impl Iterator<Item = &Topic> {
        let from = self.names.range((Excluded(TopicName::start_of(tenant)), Unbounded));
        let names = from.take_while(move |(name, _)| name.tenant() == tenant);
        names.map(|(_, id)| &*self.topics[id])
    }

    /// The number of topics.
    #[must_use]
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The dedupe table of what producers asked for, before routing; `None` if it has no entries.
    #[must_use]
    pub fn dedupe(&self, scope: &ProduceScope) -> Option<&DedupeTable> {
        self.dedupe.get(scope).map(|table| &**table)
    }

    /// All dedupe tables and their scopes.
    pub fn dedupe_tables(&self) -> impl Iterator<Item = (&ProduceScope, &DedupeTable)> {
        self.dedupe.iter().map(|(scope, table)| (scope, &**table))
    }

    /// The idempotency store.
    #[must_use]
    pub fn store(&self) -> &EffectStore {
        &self.store
    }

    /// The stored replies of completed steps.
    #[must_use]
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    /// The winners of messages that were delivered more than once or dead-lettered.
    #[must_use]
    pub fn winners(&self) -> &Winners {
        &self.winners
    }

    /// A record that a message refers to and that stands in none of these ranges, which ascend.
    pub(crate) fn record_outside(&self, held: &[Range<Lsn>]) -> Option<Lsn> {
        let holds = |lsns: RangeInclusive<Lsn>| {
            if *lsns.end() == PayloadId::LOST.lsn {
                return true;
            }
            let at = held.partition_point(|held| held.start <= *lsns.start());
            held[..at].last().is_some_and(|held| lsns.end() < &held.end)
        };
        let partitions = self.topics().flat_map(Topic::partitions);
        { partitions }.find_map(|(_, partition)| partition.messages.lsn_outside(holds))
    }

    pub(crate) fn topic_mut(&mut self, topic: TopicId) -> Result<&mut Topic, Contradiction> {
        self.topics.get_mut(&topic).map(unshared).ok_or(Contradiction("no such topic"))
    }
}
