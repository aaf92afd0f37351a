//! Volatile side of leases: when they end, and on which stream their delivery went out.
//!
//! A lease runs from the moment its delivery could leave. Until the log has synced the record it has no end; then it
//! ends a lease length later, which is after the recorded end. What this adds is in no record and in no snapshot: after
//! a restart the recorded end counts, which is the one that the worker was told.

use std::collections::{BTreeMap, VecDeque};

use super::grants::Grants;
use super::unanswered::{DeliveryOrder, Unanswered};
use super::{Index, Timer};
use crate::command::OnDisconnect;
use crate::state::State;
use crate::types::{ConsumerId, GroupId, Identity, LeaseToken, Lsn, MessageRef, Millis, OwnerName, Timestamp, TopicId};

/// The newest delivery of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The stream it went to.
    pub(super) stream: ConsumerId,
    pub(super) order: DeliveryOrder,
    pub(super) end: LeaseEnd,
}

/// When a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The delivery cannot leave before the record with this LSN is durable.
    Unreleased(Lsn),
    /// The delivery of the record with this LSN waits for the bytes of its message, or of one that goes to the same
    /// stream before it.
    Unread(Lsn),
    /// The lease was extended; the reply cannot leave before the record with this LSN is durable.
    Extending(Lsn),
    /// Then.
    At(Timestamp),
    /// It has expired; the message waits for its redelivery.
    Expired,
}

/// What ended a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// An ack or a completed step.
    Ack,
    /// Any other answer of the consumer.
    Answer,
    /// Its expiry.
    Expiry,
    /// Nothing that the consumer did: the delivery was withdrawn, or the group sought.
    Other,
}

/// The volatile state of all leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    /// Whether credit adapts to what consumers show.
    adaptive_credit: bool,
    /// Deliveries, extensions and grants that are not durable yet, in the order of their records.
    unreleased: VecDeque<Unreleased>,
    pub(crate) grants: Grants,
    /// The unanswered deliveries of streams that ended, until their last lease ends, and of earlier boots.
    pub(crate) ended_streams: BTreeMap<ConsumerId, Unanswered>,
    next_order: DeliveryOrder,
    /// The message whose lease the broker itself ends with the record that is applied next, and why.
    ending: Option<(MessageRef, EndedBy)>,
}

#[derive(Clone, Copy, Debug)]
struct Unreleased {
    decided_at: Lsn,
    leased: Leased,
}

#[derive(Clone, Copy, Debug)]
enum Leased {
    Message(MessageRef, Millis),
    Grant(LeaseToken),
}

impl Leases {
    pub(super) fn new(adaptive_credit: bool) -> Self {
        Self { adaptive_credit, ..Self::default() }
    }

    pub(super) fn next_order(&mut self) -> DeliveryOrder {
        self.next_order.0 += 1;
        self.next_order
    }

    /// Holds the start of a message's lease until its record is durable.
    pub(super) fn hold(&mut self, decided_at: Lsn, message_ref: MessageRef, lease: Millis) {
        self.unreleased.push_back(Unreleased { decided_at, leased: Leased::Message(message_ref, lease) });
    }

    /// Holds the start of an effect's lease until its record is durable.
    pub(crate) fn hold_grant(
        &mut self,
        decided_at: Lsn,
        token: LeaseToken,
        identity: Identity,
        lease: Millis,
        until: Timestamp,
    ) {
        self.grants.granted(token, identity, decided_at, lease, until);
        self.unreleased.push_back(Unreleased { decided_at, leased: Leased::Grant(token) });
    }

    /// Keeps the order of a stream that ended, as long as it has leases.
    pub(super) fn keep_order(&mut self, stream: ConsumerId, unanswered: Unanswered) {
        if !unanswered.has_no_lease() {
            self.ended_streams.insert(stream, unanswered);
        }
    }

    /// The records that follow end the lease of this message, since its time is over, until [`Leases::end_done`].
    pub(crate) fn end_by_expiry(&mut self, message_ref: MessageRef) {
        self.ending = Some((message_ref, EndedBy::Expiry));
    }

    /// As [`Leases::end_by_expiry`], but the consumer never got the delivery.
    pub(crate) fn end_undelivered(&mut self, message_ref: MessageRef) {
        self.ending = Some((message_ref, EndedBy::Other));
    }

    pub(crate) fn end_done(&mut self) {
        self.ending = None;
    }

    /// What ends the lease of a message that is dead-lettered.
    pub(super) fn ended_by(&self, message_ref: &MessageRef) -> EndedBy {
        self.ending.as_ref().filter(|(ending, _)| ending == message_ref).map_or(EndedBy::Answer, |(_, by)| *by)
    }
}

impl Index {
    /// The log is durable through `durable`: the leases that waited for it begin to run.
    pub(crate) fn release(&mut self, durable: Lsn, now: Timestamp) {
        // Deliveries that follow each other are mostly neighbours in their partition.
        let mut near = 0;
        while let Some(&Unreleased { decided_at, leased }) = self.leases.unreleased.front()
            && decided_at <= durable
        {
            self.leases.unreleased.pop_front();
            match leased {
                Leased::Message(message_ref, lease) => {
                    self.release_message(&message_ref, decided_at, now.after(lease), &mut near);
                }
                Leased::Grant(token) => self.leases.grants.released(token, decided_at, now),
            }
        }
    }

    fn release_message(&mut self, message_ref: &MessageRef, decided_at: Lsn, end: Timestamp, near: &mut usize) {
        let group = self.topics.get_mut(&message_ref.topic).and_then(|topic| topic.groups.get_mut(&message_ref.group));
        let cursor = group.and_then(|group| group.cursors.get_mut(message_ref.partition.0 as usize));
        let lease = cursor.and_then(|cursor| cursor.leases.get_mut_near(&message_ref.position, near));
        let waits = |end| end == LeaseEnd::Unreleased(decided_at) || end == LeaseEnd::Extending(decided_at);
        if let Some(lease) = lease.filter(|lease| waits(lease.end)) {
            lease.end = LeaseEnd::At(end);
            self.timers.set(end, Timer::Lease(*message_ref));
        }
    }

    /// The delivery of a message that was decided at `decided_at` waits for bytes.
    pub(crate) fn await_bytes(&mut self, message_ref: &MessageRef, decided_at: Lsn) {
        let lease = self.lease_mut(message_ref);
        if let Some(lease) = lease.filter(|lease| lease.end == LeaseEnd::Unreleased(decided_at)) {
            lease.end = LeaseEnd::Unread(decided_at);
        }
    }

    /// The delivery of a message that was decided at `decided_at` leaves after it waited for bytes, or is dropped
    /// before: its lease begins to run.
    pub(crate) fn release_read(&mut self, message_ref: &MessageRef, decided_at: Lsn, end: Timestamp) {
        let waits = |end| end == LeaseEnd::Unread(decided_at) || end == LeaseEnd::Unreleased(decided_at);
        if let Some(lease) = self.lease_mut(message_ref).filter(|lease| waits(lease.end)) {
            lease.end = LeaseEnd::At(end);
            self.timers.set(end, Timer::Lease(*message_ref));
        }
    }

    /// The messages whose delivery to a consumer could not leave yet.
    pub(crate) fn unreleased_to(&self, consumer: ConsumerId) -> Vec<MessageRef> {
        let leased = self.consumers.get(&consumer).into_iter().flat_map(|consumer| consumer.unanswered.leased());
        let unreleased = |message_ref: &MessageRef| {
            matches!(self.lease_end(message_ref), Some(LeaseEnd::Unreleased(_) | LeaseEnd::Unread(_)))
        };
        leased.filter(unreleased).collect()
    }

    /// When the lease of a message ends; `None` if it has none.
    pub(crate) fn lease_end(&self, message_ref: &MessageRef) -> Option<LeaseEnd> {
        self.lease(message_ref).map(|lease| lease.end)
    }

    /// The stream to which the newest delivery of a message went.
    pub(crate) fn stream_of(&self, message_ref: &MessageRef) -> Option<ConsumerId> {
        self.lease(message_ref).map(|lease| lease.stream)
    }

    fn lease(&self, message_ref: &MessageRef) -> Option<&Lease> {
        let group = self.topics.get(&message_ref.topic)?.groups.get(&message_ref.group)?;
        group.cursors.get(message_ref.partition.0 as usize)?.leases.get(&message_ref.position)
    }

    fn lease_mut(&mut self, message_ref: &MessageRef) -> Option<&mut Lease> {
        let group = self.topics.get_mut(&message_ref.topic)?.groups.get_mut(&message_ref.group)?;
        group.cursors.get_mut(message_ref.partition.0 as usize)?.leases.get_mut(&message_ref.position)
    }

    /// Whether an expiry of this message's lease counts against the message: its delivery is the oldest that the stream
    /// has not answered.
    pub(crate) fn is_oldest_unanswered(&self, message_ref: &MessageRef) -> bool {
        let group = self.topics.get(&message_ref.topic).and_then(|topic| topic.groups.get(&message_ref.group));
        let cursor = group.and_then(|group| group.cursors.get(message_ref.partition.0 as usize));
        let Some(lease) = cursor.and_then(|cursor| cursor.leases.get(&message_ref.position)) else { return false };
        let connected = self.consumers.get(&lease.stream).map(|consumer| &consumer.unanswered);
        let stream = connected.or_else(|| self.leases.ended_streams.get(&lease.stream));
        stream.is_some_and(|stream| stream.is_oldest(lease.order))
    }

    /// The consumer answered a delivery without changing the message.
    pub(crate) fn answered(&mut self, message_ref: &MessageRef) {
        let Some(lease) = self.cursor_mut(message_ref).leases.get(&message_ref.position).copied() else { return };
        if let Some(stream) = self.unanswered_mut(lease.stream) {
            stream.answered_any();
        }
    }

    /// The lease of a message was extended by the record at `decided_at` and runs for `lease` from its release.
    pub(crate) fn extended(&mut self, message_ref: &MessageRef, decided_at: Lsn, lease: Millis) {
        let cursor = self.cursor_mut(message_ref);
        let Some(extended) = cursor.leases.get_mut(&message_ref.position) else { return };
        extended.end = LeaseEnd::Extending(decided_at);
        self.leases.hold(decided_at, *message_ref, lease);
        self.answered(message_ref);
    }

    /// Cancels the timer of a lease.
    pub(crate) fn cancel_lease_timer(&mut self, message_ref: &MessageRef) {
        if let Some(LeaseEnd::At(end)) = self.lease_end(message_ref) {
            self.timers.cancel(end, Timer::Lease(*message_ref));
        }
    }

    /// Ends the lease of a message, if it has one: updates the in-flight limit of its partition, and the order and
    /// credit of its stream. Forgets a lease that has expired before. Returns whether the message was leased.
    pub(super) fn end_lease(&mut self, message_ref: &MessageRef, by: EndedBy, now: Timestamp) -> bool {
        let cursor = self.cursor_mut(message_ref);
        let ended = match by {
            EndedBy::Expiry => cursor.leases.get_mut(&message_ref.position).map(|lease| {
                let ended = *lease;
                lease.end = LeaseEnd::Expired;
                ended
            }),
            _ => cursor.leases.remove(&message_ref.position),
        };
        let Some(lease) = ended else { return false };
        if lease.end == LeaseEnd::Expired {
            self.expired_lease_forgotten(lease, by, now);
            return false;
        }
        if std::mem::take(&mut cursor.full) {
            self.offer(message_ref.topic, message_ref.group, message_ref.partition);
        }
        if let LeaseEnd::At(end) = lease.end {
            self.timers.cancel(end, Timer::Lease(*message_ref));
        }
        self.lease_ended(message_ref, lease, by, now);
        true
    }

    fn lease_ended(&mut self, message_ref: &MessageRef, lease: Lease, by: EndedBy, now: Timestamp) {
        let adaptive_credit = self.leases.adaptive_credit;
        let Some(consumer) = self.consumers.get_mut(&lease.stream) else {
            return self.lease_of_ended_stream_ended(lease, by);
        };
        end_delivery(&mut consumer.unanswered, lease.order, by);
        let turn = consumer.turn();
        consumer.in_flight -= 1;
        if consumer.on_disconnect == OnDisconnect::Release {
            consumer.leases.remove(&(message_ref.partition, message_ref.position));
        }
        match by {
            EndedBy::Ack => consumer.credit.acked(now, consumer.lease),
            // The client said itself how many it takes.
            EndedBy::Expiry if adaptive_credit && consumer.deliveries_left.is_none() => {
                consumer.credit.expired(now, consumer.lease);
            }
            EndedBy::Expiry | EndedBy::Answer | EndedBy::Other => {}
        }
        if turn != consumer.turn() {
            self.refresh_credit(lease.stream);
        }
    }

    fn lease_of_ended_stream_ended(&mut self, lease: Lease, by: EndedBy) {
        if let Some(stream) = self.leases.ended_streams.get_mut(&lease.stream) {
            end_delivery(stream, lease.order, by);
            if stream.has_no_lease() {
                self.leases.ended_streams.remove(&lease.stream);
            }
        }
    }

    /// A message that waited for its redelivery is acked, dead-lettered or replayed.
    pub(super) fn forget_expired_lease(&mut self, message_ref: &MessageRef, by: EndedBy, now: Timestamp) {
        if let Some(lease) = self.cursor_mut(message_ref).leases.remove(&message_ref.position) {
            self.expired_lease_forgotten(lease, by, now);
        }
    }

    fn expired_lease_forgotten(&mut self, lease: Lease, by: EndedBy, now: Timestamp) {
        if by == EndedBy::Ack
            && let Some(consumer) = self.consumers.get_mut(&lease.stream)
        {
            consumer.credit.acked(now, consumer.lease);
            self.refresh_credit(lease.stream);
        }
        if let EndedBy::Ack | EndedBy::Answer = by
            && let Some(stream) = self.unanswered_mut(lease.stream)
        {
            stream.answered_any();
        }
    }

    fn unanswered_mut(&mut self, stream: ConsumerId) -> Option<&mut Unanswered> {
        match self.consumers.get_mut(&stream) {
            Some(consumer) => Some(&mut consumer.unanswered),
            None => self.leases.ended_streams.get_mut(&stream),
        }
    }

    /// Registers the leases of earlier boots: a stream is then a group and an owner, its order that of the tokens.
    pub(super) fn add_streams_of_earlier_boots(&mut self, state: &State) {
        let mut deliveries = Vec::new();
        for topic in state.topics() {
            for group in topic.groups() {
                for (partition, progress) in group.partitions() {
                    let leased = progress.deliveries().filter_map(|(position, delivery)| {
                        Some((delivery.token, position, delivery.owner.clone(), delivery.leased_until()?))
                    });
                    deliveries.extend(leased.map(|(token, position, owner, until)| {
                        let message_ref = MessageRef { topic: topic.id(), group: group.id(), partition, position };
                        (token, message_ref, owner, until)
                    }));
                }
            }
        }
        deliveries.sort_unstable_by_key(|(token, ..)| *token);
        let mut streams: BTreeMap<(TopicId, GroupId, OwnerName), ConsumerId> = BTreeMap::new();
        for (_, message_ref, owner, until) in deliveries {
            // Ids from the top: those of connected consumers count from 1.
            let next = ConsumerId(u64::MAX - streams.len() as u64);
            let stream = *streams.entry((message_ref.topic, message_ref.group, owner)).or_insert(next);
            let order = self.leases.next_order();
            self.leases.ended_streams.entry(stream).or_default().delivered(order, message_ref);
            let lease = Lease { stream, order, end: LeaseEnd::At(until) };
            self.cursor_mut(&message_ref).leases.insert(message_ref.position, lease);
            self.timers.set(until, Timer::Lease(message_ref));
        }
    }
}

fn end_delivery(stream: &mut Unanswered, order: DeliveryOrder, by: EndedBy) {
    match by {
        EndedBy::Ack | EndedBy::Answer => stream.answered(order),
        EndedBy::Expiry => stream.expired(order),
        EndedBy::Other => stream.end(order),
    }
}
