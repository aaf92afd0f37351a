//! A consumer group and its progress: acked messages and delivery states.

use std::sync::Arc;

use crate::collections::ack_set::AckSet;
use crate::collections::cow::CowMap;
use crate::types::{DeliveryState, GroupId, GroupName, GroupOrigin, Offset, PartitionId, Phase, Position};

/// A group of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub(super) id: GroupId,
    pub(super) name: GroupName,
    pub(crate) paused: bool,
    pub(crate) skipped: u64,
    pub(crate) origin: GroupOrigin,
    pub(crate) has_acked: bool,
    pub(crate) partitions: Vec<Arc<Progress>>,
}

/// A group's progress in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(crate) acked: AckSet,
    pub(crate) deliveries: CowMap<Position, DeliveryState>,
    pub(crate) in_flight: u32,
    /// Messages below were stored when the group last sought, so they may have been delivered before.
    pub(super) replayed_below: Position,
}

impl Group {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The number of messages it has acked without a delivery, since it had acked a message of their identity before.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// How it came into being.
    #[must_use]
    pub fn origin(&self) -> GroupOrigin {
        self.origin
    }

    /// Whether a consumer has ever acked a message in it. Dead-lettered and skipped messages do not count, nor does
    /// anything once the group was requested: the broker never deletes it then.
    #[must_use]
    pub fn has_acked(&self) -> bool {
        self.has_acked
    }

    /// Its progress in a partition; `None` if the topic has no such partition.
    #[must_use]
    pub fn progress(&self, partition: PartitionId) -> Option<&Progress> {
        self.partitions.get(partition.0 as usize).map(|progress| &**progress)
    }

    /// Its progress in every partition, in order.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Progress)> {
        (0..).map(PartitionId).zip(self.partitions.iter().map(|progress| &**progress))
    }
}

impl Progress {
    /// The acked positions.
    #[must_use]
    pub fn acked(&self) -> &AckSet {
        &self.acked
    }

    /// The delivery state of an unacked message; `None` if it was never delivered.
    #[must_use]
    pub fn delivery(&self, position: Position) -> Option<&DeliveryState> {
        self.deliveries.get(&position)
    }

    /// Whether the message is unacked and was delivered. Needs no search for a message beyond all delivered ones, the
    /// most common case.
    #[must_use]
    pub fn is_delivered(&self, position: Position) -> bool {
        self.deliveries.last().is_some_and(|(last, _)| *last >= position) && self.deliveries.contains_key(&position)
    }

    /// The delivery state of the unacked message with this offset; `None` if it was never delivered.
    #[must_use]
    pub fn find_delivery(&self, offset: Offset) -> Option<(Position, &DeliveryState)> {
        self.deliveries
            .find_by(|_, delivery| delivery.offset.cmp(&offset))
            .map(|(position, delivery)| (*position, delivery))
    }

    /// The delivery states of all delivered, unacked messages, in order.
    pub fn deliveries(&self) -> impl Iterator<Item = (Position, &DeliveryState)> {
        self.deliveries.iter().map(|(position, delivery)| (*position, delivery))
    }

    /// The number of messages in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Messages below were stored when the group last sought, so they may have been delivered before.
    #[must_use]
    pub fn replayed_below(&self) -> Position {
        self.replayed_below
    }

    /// The number of messages queued for redelivery.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.deliveries.len() as u64 - u64::from(self.in_flight)
    }

    pub(crate) fn remove_delivery(&mut self, position: Position) -> Option<DeliveryState> {
        let delivery = self.deliveries.remove(&position)?;
        if let Phase::Leased { .. } = delivery.phase {
            self.in_flight -= 1;
        }
        Some(delivery)
    }

    /// Ends a lease and queues its message. Returns `None` if the message is not leased.
    pub(super) fn requeue(
        &mut self,
        position: Position,
        change: impl FnOnce(&mut DeliveryState) -> Phase,
    ) -> Option<()> {
        let delivery = self.deliveries.get_mut(&position)?;
        let Phase::Leased { .. } = delivery.phase else { return None };
        delivery.phase = change(delivery);
        debug_assert!(matches!(delivery.phase, Phase::Queued { .. }), "a lease that ends leaves the message queued");
        self.in_flight -= 1;
        Some(())
    }
}
