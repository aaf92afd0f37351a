//! The streams of a group, and whose turn it is.

use std::collections::BTreeSet;

use crate::command::OnDisconnect;
use crate::types::{ConsumerId, GroupId, Millis, OwnerName, PartitionId, Position, TopicId};

/// A connected stream.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) topic: TopicId,
    pub(crate) group: GroupId,
    pub(crate) owner: OwnerName,
    pub(crate) lease: Millis,
    pub(crate) prefetch: u32,
    /// Running leases it holds.
    pub(crate) live: u32,
    /// Deliveries it may still be given in all.
    pub(crate) deliveries_left: Option<u64>,
    pub(crate) on_disconnect: OnDisconnect,
    /// What it holds; kept only where its leases are released with it.
    pub(crate) held: BTreeSet<(PartitionId, Position)>,
}

impl Consumer {
    pub(crate) fn has_credit(&self) -> bool {
        self.live < self.prefetch && self.deliveries_left != Some(0)
    }
}

/// Round robin over the streams that have credit: after the one served last, in the order they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConsumerTurns {
    members: BTreeSet<ConsumerId>,
    with_credit: BTreeSet<ConsumerId>,
    last_served: ConsumerId,
}

impl ConsumerTurns {
    pub(crate) fn join(&mut self, consumer: ConsumerId) {
        self.members.insert(consumer);
    }

    pub(crate) fn leave(&mut self, consumer: ConsumerId) {
        self.members.remove(&consumer);
        self.with_credit.remove(&consumer);
    }

    pub(crate) fn set_credit(&mut self, consumer: ConsumerId, has_credit: bool) {
        if has_credit {
            self.with_credit.insert(consumer);
        } else {
            self.with_credit.remove(&consumer);
        }
    }

    pub(crate) fn has_credit(&self) -> bool {
        !self.with_credit.is_empty()
    }

    pub(crate) fn members(&self) -> &BTreeSet<ConsumerId> {
        &self.members
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> Option<ConsumerId> {
        next_turn(&self.with_credit, self.last_served.next())
    }

    pub(crate) fn served(&mut self, consumer: ConsumerId) {
        self.last_served = consumer;
    }
}

/// The first at or after `from`, or else the first of all: whose turn it is when turns go round.
///
/// Mostly there is one, or none is left; a range, which costs more than both looks at the ends, is sought last.
pub(super) fn next_turn<T: Ord + Copy>(set: &BTreeSet<T>, from: T) -> Option<T> {
    let first = *set.first()?;
    if first >= from || *set.last()? < from {
        return Some(first);
    }
    set.range(from..).next().copied()
}
