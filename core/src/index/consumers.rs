//! Connected consumers and their round robin.

use std::collections::BTreeSet;

use super::credit::Credit;
use super::turn_set::TurnSet;
use super::unanswered::Unanswered;
use crate::command::OnDisconnect;
use crate::types::{ConsumerId, GroupId, KeyId, Millis, OwnerName, PartitionId, Position, Timestamp, TopicId};

/// A connected consumer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) topic: TopicId,
    pub(crate) group: GroupId,
    pub(crate) owner: OwnerName,
    pub(crate) lease: Millis,
    pub(crate) credit: Credit,
    /// The number of its leases.
    pub(crate) in_flight: u32,
    /// The deliveries left until its maximum; `None` without a maximum.
    pub(crate) deliveries_left: Option<u64>,
    pub(crate) on_disconnect: OnDisconnect,
    /// Its leases; empty unless they are released when it disconnects.
    pub(crate) leases: BTreeSet<(PartitionId, Position)>,
    pub(crate) unanswered: Unanswered,
    /// The key that opened it, and when that expires.
    pub(crate) key: Option<(KeyId, Option<Timestamp>)>,
}

impl Consumer {
    /// The turn that its credit gives it.
    pub(crate) fn turn(&self) -> Turn {
        match (self.has_credit(), self.credit.is_last_resort()) {
            (false, _) => Turn::Never,
            (true, false) => Turn::Regular,
            (true, true) => Turn::LastResort,
        }
    }

    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight < self.credit.limit() && self.deliveries_left != Some(0)
    }
}

/// Whose turn a consumer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its own, in round robin.
    Regular,
    /// One that no other consumer can take.
    LastResort,
    /// None: it has no credit.
    Never,
}

/// Round robin over the consumers with credit, in the order they connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConsumerTurns {
    pub(super) members: BTreeSet<ConsumerId>,
    pub(super) with_credit: TurnSet<ConsumerId>,
    /// Consumers with credit that are asked last.
    pub(super) last_resort: TurnSet<ConsumerId>,
    last_served: ConsumerId,
}

impl ConsumerTurns {
    pub(crate) fn join(&mut self, consumer: ConsumerId) {
        self.members.insert(consumer);
    }

    pub(crate) fn leave(&mut self, consumer: ConsumerId) {
        self.members.remove(&consumer);
        self.set_turn(consumer, Turn::Never);
    }

    pub(crate) fn set_turn(&mut self, consumer: ConsumerId, turn: Turn) {
        match turn {
            Turn::Regular => self.with_credit.insert(consumer),
            Turn::LastResort | Turn::Never => self.with_credit.remove(consumer),
        }
        match turn {
            Turn::LastResort => self.last_resort.insert(consumer),
            Turn::Regular | Turn::Never => self.last_resort.remove(consumer),
        }
    }

    pub(crate) fn has_credit(&self) -> bool {
        !self.with_credit.is_empty() || !self.last_resort.is_empty()
    }

    pub(crate) fn members(&self) -> &BTreeSet<ConsumerId> {
        &self.members
    }

    /// The consumer whose turn it is.
    pub(crate) fn next(&self) -> Option<ConsumerId> {
        let from = self.last_served.next();
        self.with_credit.next_turn(from).or_else(|| self.last_resort.next_turn(from))
    }

    pub(crate) fn served(&mut self, consumer: ConsumerId) {
        self.last_served = consumer;
    }
}
