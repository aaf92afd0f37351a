//! Connected streams: deliveries that are not yet written to their sockets.
//!
//! A lease must not run out in the buffer of a client that has stopped reading. A delivery that its stream has not
//! taken within half its lease, at most [`UNREAD_TIMEOUT`], is withdrawn: its attempt does not count, and the stream
//! gets no more deliveries until it reads again. This and the prefetch bound the queue of a stream: the broker grants
//! no further lease beyond the prefetch, and deliveries whose lease expired unread are dropped.
//!
//! All queues together hold a bounded number of bytes, and no stream can keep the others from theirs:
//!
//! * For a delivery beyond the bound, the newest ones of the longest queue are withdrawn, as long as that queue is
//!   longer than the one the delivery is for; the oldest one stays. If that makes no room, the delivery itself is
//!   withdrawn.
//! * A stream from which something was withdrawn gets no more until half of the bytes are free, or until it has read
//!   its queue and another one is longer; and in no case before it reads. Who had to wait the longest is served first.
//!
//! So a stream that does not read holds its part for as long as a delivery may be unread, and one that reads slowly
//! holds no more than the others. Neither is disconnected: that would cost an attempt for everything in the buffers of
//! its connection, which counts as sent.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::task::Waker;

use driftq_core::Command;
use driftq_core::command::{Claim, SetPrefetch, TokenClaim, Withdraw};
use driftq_core::reply::Delivery;
use driftq_core::types::{ConsumerId, GroupName, Millis, OwnerName, Timestamp, TopicName};

use super::crossing::RefusedDelivery;
use super::id_hasher::IdHasher;

/// How long a delivery waits at most for its stream to take it.
const UNREAD_TIMEOUT: Millis = Millis(1_000);
/// Granularity of that timeout: a stream is checked no more often, however often its queue fills.
const CHECK_INTERVAL: Millis = Millis(250);
/// What a queued delivery takes beside the bytes of its message, roughly.
const DELIVERY_OVERHEAD: usize = 256;

/// Parameters of a stream that is about to be connected.
#[derive(Clone, Debug)]
pub(crate) struct StreamSpec {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owner: OwnerName,
    pub(crate) lease: Millis,
    pub(crate) prefetch: u32,
    /// Total number of deliveries, if limited.
    pub(crate) deliveries_max: Option<u64>,
}

/// A connected stream.
#[derive(Debug)]
struct Stream {
    spec: StreamSpec,
    queue: VecDeque<Unread>,
    /// The bytes of the queue.
    bytes: usize,
    /// Deliveries left until the limit, if there is one.
    remaining: Option<u64>,
    waker: Option<Waker>,
    /// The stream has ended. Its queue is no longer read, and is withdrawn when the stream disconnects.
    closed: bool,
    /// The client has disconnected. The entry is kept until no delivery can be on its way.
    disconnected: bool,
    /// The client does not read, or there is no room, so the broker has a prefetch of 0 for it.
    stalled: bool,
    /// The bytes of the last delivery for which there was no room.
    refused_bytes: usize,
    /// Number of the last delivery that was queued, over all streams.
    served: u64,
    /// When the oldest delivery in the queue arrived, or the last one was read.
    unread_since: Timestamp,
    /// When the stream is checked next.
    check_at: Timestamp,
}

/// A delivery that is not yet written.
#[derive(Debug)]
struct Unread {
    delivery: Box<Delivery>,
    /// When its lease ends.
    ends_at: Timestamp,
}

impl Unread {
    fn bytes(&self) -> usize {
        bytes_of(&self.delivery)
    }
}

/// The bytes that a delivery takes, roughly.
pub(super) fn bytes_of(delivery: &Delivery) -> usize {
    usize::try_from(delivery.body.encoded_len()).unwrap_or(usize::MAX).saturating_add(DELIVERY_OVERHEAD)
}

/// All streams.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The most bytes of all queues.
    bytes_max: usize,
    bytes: usize,
    /// Streams that get no more deliveries until there is room.
    throttled: BTreeSet<ConsumerId>,
    /// Deliveries that were withdrawn for want of room.
    refused: u64,
    /// Deliveries that were queued.
    queued: u64,
    streams: HashMap<ConsumerId, Stream, BuildHasherDefault<IdHasher>>,
    /// Those whose clients are connected.
    connected: usize,
    /// Streams to check, the soonest first.
    checks: BTreeSet<(Timestamp, ConsumerId)>,
}

/// Result of polling a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextDelivery {
    /// A message.
    Delivery(Box<Delivery>),
    /// Nothing yet; the waker is registered.
    Pending,
    /// The stream got its total number of deliveries, although not all were read in time. Not a disconnect.
    LimitReached,
    /// The stream has ended.
    Closed,
}

impl Streams {
    /// No streams, whose queues may hold `bytes_max` bytes; a single delivery may be longer.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            throttled: BTreeSet::new(),
            refused: 0,
            queued: 0,
            streams: HashMap::default(),
            connected: 0,
            checks: BTreeSet::new(),
        }
    }

    /// The bytes of all queues.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Deliveries that were withdrawn because all queues together held too many bytes.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether streams without deliveries for want of room can get some again.
    pub(crate) fn has_room(&self) -> bool {
        !self.throttled.is_empty() && self.bytes <= self.bytes_max / 2
    }

    /// The commands that give deliveries again to streams that got none for want of room, if there is room; first to
    /// those that got the last one long ago. A stream that does not read gets some when it does.
    pub(crate) fn readmit(&mut self) -> Vec<Command> {
        if !self.has_room() {
            return Vec::new();
        }
        let throttled = std::mem::take(&mut self.throttled);
        let is_waiting = |consumer: &ConsumerId| self.streams.get(consumer).is_some_and(Stream::is_waiting);
        let mut waiting: Vec<_> = throttled.into_iter().filter(is_waiting).collect();
        waiting.sort_by_key(|consumer| self.streams[consumer].served);
        let recovered = waiting.into_iter().filter_map(|consumer| Some((consumer, self.take_recovered(consumer)?)));
        recovered.map(|(consumer, prefetch)| Command::SetPrefetch(SetPrefetch { consumer, prefetch })).collect()
    }

    pub(crate) fn connect(&mut self, consumer: ConsumerId, spec: StreamSpec) {
        let stream = Stream {
            remaining: spec.deliveries_max,
            spec,
            queue: VecDeque::new(),
            bytes: 0,
            waker: None,
            closed: false,
            disconnected: false,
            stalled: false,
            refused_bytes: 0,
            served: 0,
            unread_since: Timestamp(0),
            check_at: Timestamp(0),
        };
        let before = self.streams.insert(consumer, stream);
        assert!(before.is_none(), "{consumer:?} is connected once");
        self.connected += 1;
    }

    /// Queues a delivery released at `now`. Returns the commands that withdraw it if the stream disconnected meanwhile,
    /// that withdraw it or others if there is no room, and that stop further ones.
    pub(crate) fn deliver(&mut self, consumer: ConsumerId, delivery: Box<Delivery>, now: Timestamp) -> Vec<Command> {
        let Some(stream) = self.streams.get_mut(&consumer) else { return Vec::new() };
        if stream.disconnected {
            return vec![stream.spec.withdraw(&delivery)];
        }
        stream.remaining = stream.remaining.map(|remaining| remaining.saturating_sub(1));
        if stream.queue.len() >= stream.spec.prefetch as usize {
            self.bytes -= stream.drop_expired(now);
        }
        let bytes = bytes_of(&delivery);
        let wanted = stream.bytes.saturating_add(bytes);
        let mut commands = self.shorten_longer_queues(wanted, bytes);
        let is_refused = !self.fits(bytes);
        if is_refused {
            commands.extend(self.throttle(consumer, bytes));
        }
        let Some(stream) = self.streams.get_mut(&consumer) else { return commands };
        if is_refused {
            commands.push(stream.spec.withdraw(&delivery));
            if stream.remaining == Some(0) {
                // It waits for nothing any more.
                stream.wake();
            }
            return commands;
        }
        self.bytes += bytes;
        self.queued += 1;
        stream.served = self.queued;
        if stream.queue.is_empty() {
            stream.unread_since = now;
            let check_at = stream.spec.check_after(now);
            if stream.check_at < check_at {
                stream.check_at = check_at;
                self.checks.insert((check_at, consumer));
            }
        }
        let ends_at = delivery.lease_until.max(now.after(stream.spec.lease));
        stream.bytes += bytes;
        stream.queue.push_back(Unread { delivery, ends_at });
        stream.wake();
        commands
    }

    /// As [`Streams::deliver`], for a delivery without room on its way.
    pub(super) fn refuse(&mut self, consumer: ConsumerId, delivery: RefusedDelivery) -> Vec<Command> {
        let Some(stream) = self.streams.get_mut(&consumer) else { return Vec::new() };
        let withdraw = stream.spec.withdraw_refused(delivery);
        if stream.disconnected {
            return vec![withdraw];
        }
        stream.remaining = stream.remaining.map(|remaining| remaining.saturating_sub(1));
        if stream.remaining == Some(0) {
            stream.wake();
        }
        self.throttle(consumer, delivery.bytes).into_iter().chain([withdraw]).collect()
    }

    fn fits(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes.saturating_add(bytes) <= self.bytes_max
    }

    /// The stream with the longest queue of at least two deliveries, and the bytes of that queue. A single delivery
    /// does not give way to others, so that every stream that reads goes on.
    fn longest(&self) -> Option<(ConsumerId, usize)> {
        let several = self.streams.iter().filter(|(_, stream)| stream.queue.len() > 1);
        several.map(|(consumer, stream)| (*consumer, stream.bytes)).max_by_key(|(consumer, bytes)| (*bytes, *consumer))
    }

    /// Withdraws the newest deliveries of queues longer than `wanted` until `bytes` fit, as far as possible. Returns
    /// the commands for that, and those that stop the streams.
    fn shorten_longer_queues(&mut self, wanted: usize, bytes: usize) -> Vec<Command> {
        let mut commands = Vec::new();
        while !self.fits(bytes)
            && let Some((consumer, _)) = self.longest().filter(|(_, longest)| *longest > wanted)
        {
            while !self.fits(bytes)
                && let Some(stream) = self.streams.get_mut(&consumer)
                && stream.bytes > wanted
                && stream.queue.len() > 1
                && let Some(unread) = stream.queue.pop_back()
            {
                commands.push(stream.spec.withdraw(&unread.delivery));
                stream.bytes -= unread.bytes();
                self.bytes -= unread.bytes();
                commands.extend(self.throttle(consumer, unread.bytes()));
            }
        }
        commands
    }

    /// There was no room for a delivery of so many bytes. Returns the command that stops further ones.
    fn throttle(&mut self, consumer: ConsumerId, bytes: usize) -> Option<Command> {
        self.refused += 1;
        let stream = self.streams.get_mut(&consumer)?;
        (stream.stalled, stream.refused_bytes) = (true, bytes);
        let is_new = self.throttled.insert(consumer);
        is_new.then_some(Command::SetPrefetch(SetPrefetch { consumer, prefetch: 0 }))
    }

    /// When [`Streams::check_unread`] is due.
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.checks.first().map(|(at, _)| *at)
    }

    /// Checks the streams that are due. Returns the commands that stop deliveries to stalled ones and withdraw what
    /// they did not read.
    pub(crate) fn check_unread(&mut self, now: Timestamp) -> Vec<Command> {
        let mut commands = Vec::new();
        while self.next_check().is_some_and(|at| at <= now) {
            let Some((_, consumer)) = self.checks.pop_first() else { break };
            let Some(stream) = self.streams.get_mut(&consumer) else { continue };
            if stream.queue.is_empty() || stream.closed {
                continue;
            }
            if stream.unread_since.after(stream.spec.unread_timeout()) > now {
                stream.check_at = stream.spec.check_after(now);
                self.checks.insert((stream.check_at, consumer));
                continue;
            }
            stream.stalled = true;
            commands.push(Command::SetPrefetch(SetPrefetch { consumer, prefetch: 0 }));
            self.bytes -= stream.bytes;
            commands.extend(stream.withdraw_unread());
        }
        commands
    }

    /// The broker ended a stream.
    pub(crate) fn close(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.streams.get_mut(&consumer) {
            stream.close();
        }
    }

    /// Ends every stream.
    pub(crate) fn close_all(&mut self) {
        self.streams.values_mut().for_each(Stream::close);
    }

    /// The next delivery of a stream whose lease still runs. Registers `waker` if there is none. The time is asked only
    /// if a delivery is queued: a stream is polled more often than it has one.
    pub(crate) fn poll_next(
        &mut self,
        consumer: ConsumerId,
        mut now: impl FnMut() -> Timestamp,
        waker: &Waker,
    ) -> NextDelivery {
        let Some(stream) = self.streams.get_mut(&consumer).filter(|stream| !stream.closed) else {
            return NextDelivery::Closed;
        };
        while let Some(unread) = stream.queue.pop_front() {
            self.bytes -= unread.bytes();
            stream.bytes -= unread.bytes();
            stream.unread_since = now();
            if unread.ends_at > stream.unread_since {
                return NextDelivery::Delivery(unread.delivery);
            }
        }
        if stream.remaining == Some(0) {
            return NextDelivery::LimitReached;
        }
        match &mut stream.waker {
            Some(registered) => registered.clone_from(waker),
            None => stream.waker = Some(waker.clone()),
        }
        let refused_bytes = stream.refused_bytes;
        if self.throttled.contains(&consumer) && self.longest().is_some_and(|(_, longest)| longest > refused_bytes) {
            // It is its turn: for its next delivery the longest queue has to give way.
            self.throttled.remove(&consumer);
        }
        NextDelivery::Pending
    }

    /// The prefetch to restore for a stream that was stalled and reads again.
    pub(crate) fn take_recovered(&mut self, consumer: ConsumerId) -> Option<u32> {
        if self.throttled.contains(&consumer) {
            return None;
        }
        let stream = self.streams.get_mut(&consumer).filter(|stream| stream.stalled && stream.queue.is_empty())?;
        stream.stalled = false;
        Some(stream.spec.prefetch)
    }

    /// The client of a stream has disconnected. Returns the commands that withdraw what it did not read.
    pub(crate) fn disconnect(&mut self, consumer: ConsumerId) -> Vec<Command> {
        let Some(stream) = self.streams.get_mut(&consumer) else { return Vec::new() };
        if !stream.disconnected {
            self.connected -= 1;
        }
        (stream.disconnected, stream.closed) = (true, true);
        self.throttled.remove(&consumer);
        self.bytes -= stream.bytes;
        stream.withdraw_unread().collect()
    }

    /// Removes a disconnected stream to which no delivery can be on its way.
    pub(crate) fn remove(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.streams.remove(&consumer) {
            self.bytes -= stream.bytes;
            self.connected -= usize::from(!stream.disconnected);
            self.throttled.remove(&consumer);
        }
    }

    /// Number of connected streams.
    pub(crate) fn len(&self) -> usize {
        self.connected
    }
}

impl Stream {
    fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// It has read everything and waits for more.
    fn is_waiting(&self) -> bool {
        self.queue.is_empty() && self.waker.is_some()
    }

    /// Drops the deliveries whose lease has ended, and returns their bytes.
    fn drop_expired(&mut self, now: Timestamp) -> usize {
        let expired: usize = self.queue.iter().filter(|unread| unread.ends_at <= now).map(Unread::bytes).sum();
        self.queue.retain(|unread| unread.ends_at > now);
        self.bytes -= expired;
        expired
    }

    fn withdraw_unread(&mut self) -> impl Iterator<Item = Command> {
        self.bytes = 0;
        let Self { spec, queue, .. } = self;
        queue.drain(..).map(|unread| spec.withdraw(&unread.delivery))
    }
}

impl StreamSpec {
    /// How long a delivery waits for the stream to take it. Its lease must not end meanwhile.
    fn unread_timeout(&self) -> Millis {
        UNREAD_TIMEOUT.min(Millis(self.lease.0 / 2))
    }

    /// When to check a stream that got a delivery at `now`.
    fn check_after(&self, now: Timestamp) -> Timestamp {
        let timeout = self.unread_timeout();
        let interval = CHECK_INTERVAL.min(Millis(timeout.0 / 4)).max(Millis(1));
        Timestamp((now.after(timeout).0 / interval.0 + 1).saturating_mul(interval.0))
    }

    fn withdraw(&self, delivery: &Delivery) -> Command {
        self.withdraw_refused(RefusedDelivery::of(delivery))
    }

    fn withdraw_refused(&self, delivery: RefusedDelivery) -> Command {
        Command::Withdraw(Withdraw(Claim {
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: self.owner.clone(),
            token: TokenClaim::Shown(delivery.token),
        }))
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
