//! The unanswered deliveries of a stream, oldest first.
//!
//! A consumer that hangs leaves all of its deliveries unanswered, although only the one it hangs on can be at fault. So
//! an expiry dead-letters a message only if its delivery is the oldest unanswered one of its stream.

use std::collections::VecDeque;

use crate::types::MessageRef;

/// Ended entries are removed once there are this many and they outnumber the others.
const ENDED_MAX: usize = 64;

/// The position of a delivery in the order of its stream. It rises with every delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeliveryOrder(pub(crate) u64);

/// The unanswered deliveries of one stream.
///
/// The first entry never has ended. A delivery that expires stays first until the stream answers any delivery, so a
/// silent stream has one oldest delivery, however many leases expire. Behind the first entry an expired delivery needs
/// no entry: every answer that removes the first one would remove it, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unanswered {
    pub(super) entries: VecDeque<Entry>,
    /// Entries of [`Status::Leased`].
    pub(super) leased: usize,
    /// Entries of [`Status::Ended`].
    pub(super) ended: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) order: DeliveryOrder,
    pub(super) message_ref: MessageRef,
    pub(super) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Leased,
    /// The lease expired, and the stream has answered nothing since. Only the first entry can have this status.
    Expired,
    Ended,
}

impl Unanswered {
    /// Adds a delivery with the next order and returns its order. A redelivery of the first entry's message, if that
    /// expired, continues it: a message that hangs its only consumer must not become the youngest each time.
    pub(crate) fn delivered(&mut self, order: DeliveryOrder, message_ref: MessageRef) -> DeliveryOrder {
        self.leased += 1;
        if let Some(first) = self.entries.front_mut()
            && first.status == Status::Expired
            && first.message_ref == message_ref
        {
            first.status = Status::Leased;
            return first.order;
        }
        debug_assert!(self.entries.back().is_none_or(|last| last.order < order), "orders rise");
        self.entries.push_back(Entry { order, message_ref, status: Status::Leased });
        order
    }

    /// Whether this delivery is the oldest unanswered one.
    pub(crate) fn is_oldest(&self, order: DeliveryOrder) -> bool {
        self.entries.front().is_some_and(|first| first.order == order)
    }

    /// The consumer answered this delivery, whose lease ends.
    pub(crate) fn answered(&mut self, order: DeliveryOrder) {
        self.end(order);
        self.answered_any();
    }

    /// The consumer answered a delivery whose lease continues or had expired.
    pub(crate) fn answered_any(&mut self) {
        if let Some(first) = self.entries.front_mut()
            && first.status == Status::Expired
        {
            first.status = Status::Ended;
            self.ended += 1;
            self.trim();
        }
    }

    /// The lease of this delivery expired.
    pub(crate) fn expired(&mut self, order: DeliveryOrder) {
        match self.entries.front_mut() {
            Some(first) if first.order == order && first.status == Status::Leased => {
                first.status = Status::Expired;
                self.leased -= 1;
            }
            _ => self.end(order),
        }
    }

    /// The lease of this delivery ended, neither by an answer nor by expiry.
    pub(crate) fn end(&mut self, order: DeliveryOrder) {
        if self.entries.front().is_some_and(|first| first.order == order && first.status == Status::Leased) {
            self.entries.pop_front();
            self.leased -= 1;
            return self.drop_ended_first();
        }
        let index = self.entries.binary_search_by_key(&order, |entry| entry.order);
        let Some(entry) = index.ok().and_then(|index| self.entries.get_mut(index)) else { return };
        if entry.status == Status::Leased {
            entry.status = Status::Ended;
            self.leased -= 1;
            self.ended += 1;
            self.trim();
        }
    }

    /// The messages that are leased.
    pub(crate) fn leased(&self) -> impl Iterator<Item = MessageRef> {
        self.entries.iter().filter(|entry| entry.status == Status::Leased).map(|entry| entry.message_ref)
    }

    /// Whether the stream has no lease.
    pub(crate) fn has_no_lease(&self) -> bool {
        self.leased == 0
    }

    /// The first entry never has ended.
    fn drop_ended_first(&mut self) {
        while self.entries.front().is_some_and(|first| first.status == Status::Ended) {
            self.entries.pop_front();
            self.ended -= 1;
        }
    }

    fn trim(&mut self) {
        self.drop_ended_first();
        if self.ended > ENDED_MAX && self.ended > self.entries.len() / 2 {
            self.entries.retain(|entry| entry.status != Status::Ended);
            self.ended = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{GroupId, PartitionId, Position, TopicId};

    fn message(position: u64) -> MessageRef {
        MessageRef { topic: TopicId(0), group: GroupId(0), partition: PartitionId(0), position: Position(position) }
    }

    fn stream(deliveries: u64) -> Unanswered {
        let mut stream = Unanswered::default();
        for number in 0..deliveries {
            stream.delivered(DeliveryOrder(number), message(number));
        }
        stream
    }

    fn oldest(stream: &Unanswered) -> Option<u64> {
        (0..1_000).find(|number| stream.is_oldest(DeliveryOrder(*number)))
    }

    #[test]
    fn answers_in_any_order_leave_the_oldest_unanswered_first() {
        let mut stream = stream(4);
        stream.answered(DeliveryOrder(1));
        assert_eq!(oldest(&stream), Some(0));
        stream.answered(DeliveryOrder(0));
        assert_eq!(oldest(&stream), Some(2));
        stream.answered(DeliveryOrder(2));
        stream.answered(DeliveryOrder(3));
        assert_eq!(oldest(&stream), None);
        assert!(stream.has_no_lease());
    }

    #[test]
    fn expired_delivery_stays_oldest_until_the_stream_answers() {
        let mut stream = stream(3);
        stream.expired(DeliveryOrder(0));
        stream.expired(DeliveryOrder(1));
        assert_eq!(oldest(&stream), Some(0));
        stream.answered(DeliveryOrder(2));
        assert_eq!(oldest(&stream), None);
    }

    #[test]
    fn expired_delivery_behind_the_oldest_is_forgotten() {
        let mut stream = stream(3);
        stream.expired(DeliveryOrder(1));
        stream.answered(DeliveryOrder(0));
        assert_eq!(oldest(&stream), Some(2));
    }

    #[test]
    fn redelivery_of_the_expired_oldest_message_continues_its_entry() {
        let mut stream = stream(2);
        stream.expired(DeliveryOrder(0));
        assert_eq!(stream.delivered(DeliveryOrder(2), message(0)), DeliveryOrder(0));
        stream.expired(DeliveryOrder(0));
        assert!(stream.is_oldest(DeliveryOrder(0)));
        stream.expired(DeliveryOrder(1));
        assert_eq!(stream.delivered(DeliveryOrder(3), message(1)), DeliveryOrder(3));
    }

    #[test]
    fn long_delivery_does_not_keep_the_entries_of_all_later_ones() {
        let mut stream = stream(1);
        for number in 1..10_000 {
            stream.delivered(DeliveryOrder(number), message(number));
            stream.answered(DeliveryOrder(number));
            assert!(stream.entries.len() <= 2 * ENDED_MAX + 2);
        }
        assert!(stream.is_oldest(DeliveryOrder(0)));
    }
}
