//! Connected consumers and their round robin.

use std::collections::BTreeSet;

use crate::command::OnDisconnect;
use crate::types::{ConsumerId, GroupId, Millis, OwnerName, PartitionId, Position, TopicId};

/// A connected consumer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) topic: TopicId,
    pub(crate) group: GroupId,
    pub(crate) owner: OwnerName,
    pub(crate) lease: Millis,
    pub(crate) prefetch: u32,
    /// The number of its leases.
    pub(crate) in_flight: u32,
    /// The deliveries left until its maximum; `None` without a maximum.
    pub(crate) deliveries_left: Option<u64>,
    pub(crate) on_disconnect: OnDisconnect,
    /// Its leases; empty unless they are released when it disconnects.
    pub(crate) leases: BTreeSet<(PartitionId, Position)>,
}

impl Consumer {
    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight < self.prefetch && self.deliveries_left != Some(0)
    }
}

/// Round robin over the consumers with credit, in the order they connected.
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

    /// The consumer whose turn it is.
    pub(crate) fn next(&self) -> Option<ConsumerId> {
        next_turn(&self.with_credit, self.last_served.next())
    }

    pub(crate) fn served(&mut self, consumer: ConsumerId) {
        self.last_served = consumer;
    }
}

/// The first element at or after `from`; if there is none, the first of all.
///
/// Checks both ends before it searches a range, which costs more; usually there is one element or `from` is past the
/// last.
pub(super) fn next_turn<T: Ord + Copy>(set: &BTreeSet<T>, from: T) -> Option<T> {
    let first = *set.first()?;
    if first >= from || *set.last()? < from {
        return Some(first);
    }
    set.range(from..).next().copied()
}
