//! Connected streams: deliveries that are not yet written to their sockets.
//!
//! A lease must not run out in the buffer of a client that has stopped reading. A delivery that its stream has not
//! taken within half its lease, at most [`UNREAD_TIMEOUT`], is withdrawn: its attempt does not count, and the stream
//! gets no more deliveries until it reads again. This and the prefetch bound the queue of a stream: the broker grants
//! no further lease beyond the prefetch, and deliveries whose lease expired unread are dropped.
//!
//! All queues together hold a bounded number of bytes. A delivery beyond it is withdrawn at once, and its stream gets
//! no more until half of the bytes are read.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use driftq_core::Command;
use driftq_core::command::{Claim, SetPrefetch, TokenClaim, Withdraw};
use driftq_core::reply::Delivery;
use driftq_core::types::{ConsumerId, GroupName, Millis, OwnerName, Timestamp, TopicName};

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
    /// Deliveries left until the limit, if there is one.
    remaining: Option<u64>,
    waker: Option<Waker>,
    /// The stream has ended. Its queue is no longer read, and is withdrawn when the stream disconnects.
    closed: bool,
    /// The client has disconnected. The entry is kept until no delivery can be on its way.
    disconnected: bool,
    /// The client does not read, so the broker has a prefetch of 0 for it.
    stalled: bool,
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

fn bytes_of(delivery: &Delivery) -> usize {
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
    streams: HashMap<ConsumerId, Stream, BuildHasherDefault<IdHasher>>,
    /// Streams to check, the soonest first.
    checks: BTreeSet<(Timestamp, ConsumerId)>,
}

/// Consumer ids are sequential numbers of our own, so a multiplication spreads them well enough.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("a consumer id hashes as one u64, not as {bytes:?}");
    }

    fn write_u64(&mut self, id: u64) {
        // The map uses the highest bits too.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
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
            streams: HashMap::default(),
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

    /// The commands that give deliveries again to streams that got none for want of room, if there is room. A stream
    /// that does not read gets some when it does.
    pub(crate) fn readmit(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        if self.has_room() {
            for consumer in std::mem::take(&mut self.throttled) {
                if let Some(prefetch) = self.take_recovered(consumer) {
                    commands.push(Command::SetPrefetch(SetPrefetch { consumer, prefetch }));
                }
            }
        }
        commands
    }

    pub(crate) fn connect(&mut self, consumer: ConsumerId, spec: StreamSpec) {
        let stream = Stream {
            remaining: spec.deliveries_max,
            spec,
            queue: VecDeque::new(),
            waker: None,
            closed: false,
            disconnected: false,
            stalled: false,
            unread_since: Timestamp(0),
            check_at: Timestamp(0),
        };
        self.streams.insert(consumer, stream);
    }

    /// Queues a delivery released at `now`. Returns the commands that withdraw it if the stream disconnected meanwhile
    /// or there is no room, and that stop further ones.
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
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > self.bytes_max {
            self.refused += 1;
            stream.stalled = true;
            let is_new = self.throttled.insert(consumer);
            let stop = is_new.then_some(Command::SetPrefetch(SetPrefetch { consumer, prefetch: 0 }));
            return stop.into_iter().chain([stream.spec.withdraw(&delivery)]).collect();
        }
        self.bytes += bytes;
        if stream.queue.is_empty() {
            stream.unread_since = now;
            let check_at = stream.spec.check_after(now);
            if stream.check_at < check_at {
                stream.check_at = check_at;
                self.checks.insert((check_at, consumer));
            }
        }
        let ends_at = delivery.lease_until.max(now.after(stream.spec.lease));
        stream.queue.push_back(Unread { delivery, ends_at });
        if let Some(waker) = stream.waker.take() {
            waker.wake();
        }
        Vec::new()
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
            self.bytes -= stream.bytes();
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

    /// The next delivery of a stream whose lease still runs. Registers `waker` if there is none.
    pub(crate) fn poll_next(&mut self, consumer: ConsumerId, now: Timestamp, waker: &Waker) -> NextDelivery {
        let Some(stream) = self.streams.get_mut(&consumer).filter(|stream| !stream.closed) else {
            return NextDelivery::Closed;
        };
        while let Some(unread) = stream.queue.pop_front() {
            self.bytes -= unread.bytes();
            stream.unread_since = now;
            if unread.ends_at > now {
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
        (stream.disconnected, stream.closed) = (true, true);
        self.throttled.remove(&consumer);
        self.bytes -= stream.bytes();
        stream.withdraw_unread().collect()
    }

    /// Removes a disconnected stream to which no delivery can be on its way.
    pub(crate) fn remove(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.streams.remove(&consumer) {
            self.bytes -= stream.bytes();
            self.throttled.remove(&consumer);
        }
    }

    /// Number of connected streams.
    pub(crate) fn len(&self) -> usize {
        self.streams.values().filter(|stream| !stream.disconnected).count()
    }
}

impl Stream {
    fn close(&mut self) {
        self.closed = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The bytes of its queue.
    fn bytes(&self) -> usize {
        self.queue.iter().map(Unread::bytes).sum()
    }

    /// Drops the deliveries whose lease has ended, and returns their bytes.
    fn drop_expired(&mut self, now: Timestamp) -> usize {
        let before = self.bytes();
        self.queue.retain(|unread| unread.ends_at > now);
        before - self.bytes()
    }

    fn withdraw_unread(&mut self) -> impl Iterator<Item = Command> {
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
mod tests {
    use driftq_core::Body;
    use driftq_core::types::{Boot, LeaseToken, Offset, PartitionId};

    use super::*;

    const CONSUMER: ConsumerId = ConsumerId(1);

    fn connected(prefetch: u32, lease: u64) -> Streams {
        connected_for(None, prefetch, lease)
    }

    fn connected_for(deliveries_max: Option<u64>, prefetch: u32, lease: u64) -> Streams {
        let mut streams = Streams::new(usize::MAX);
        let spec = StreamSpec {
            topic: TopicName::new("t").expect("a name"),
            group: GroupName::new("g").expect("a name"),
            owner: OwnerName::new("w").expect("a name"),
            lease: Millis(lease),
            prefetch,
            deliveries_max,
        };
        streams.connect(CONSUMER, spec);
        streams
    }

    /// Two streams whose queues hold at most three deliveries of [`delivery`].
    fn bounded() -> (Streams, ConsumerId) {
        let other = ConsumerId(2);
        let mut streams = connected(10, 9_000);
        let spec = streams.streams[&CONSUMER].spec.clone();
        streams.connect(other, spec);
        streams.bytes_max = 3 * bytes_of(&delivery(0, 0));
        (streams, other)
    }

    fn delivery(offset: u64, lease_until: u64) -> Box<Delivery> {
        Box::new(Delivery {
            partition: PartitionId(0),
            offset: Offset(offset),
            attempts: 1,
            failures: 0,
            last_error: Default::default(),
            token: LeaseToken { boot: Boot(1), counter: offset },
            lease_until: Timestamp(lease_until),
            produced_at: Timestamp(0),
            body: Body::bare(b"", b"value"),
        })
    }

    fn offset_of(next: NextDelivery) -> Option<u64> {
        if let NextDelivery::Delivery(delivery) = next { Some(delivery.offset.0) } else { None }
    }

    #[test]
    fn unread_delivery_is_withdrawn_and_prefetch_taken_away() {
        let mut streams = connected(10, 9_000);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(900));
        let check = streams.next_check().expect("a check is due");
        assert!((1_010..1_300).contains(&check.0), "{check:?}");
        assert_eq!(streams.check_unread(Timestamp(check.0 - 1)), []);
        let commands = streams.check_unread(check);
        assert!(matches!(commands[0], Command::SetPrefetch(SetPrefetch { prefetch: 0, .. })));
        let withdrawn: Vec<_> = commands
            .iter()
            .filter_map(|c| if let Command::Withdraw(Withdraw(claim)) = c { Some(claim.offset.0) } else { None })
            .collect();
        assert_eq!(withdrawn, [1, 2]);
        assert_eq!(streams.poll_next(CONSUMER, check, Waker::noop()), NextDelivery::Pending);
        assert_eq!(streams.take_recovered(CONSUMER), Some(10), "it reads again");
        assert_eq!(streams.take_recovered(CONSUMER), None);
    }

    #[test]
    fn unread_delivery_with_short_lease_is_withdrawn_before_it_ends() {
        let mut streams = connected(10, 100);
        streams.deliver(CONSUMER, delivery(1, 110), Timestamp(10));
        let check = streams.next_check().expect("a check is due");
        assert!(check < Timestamp(100), "{check:?}");
        assert_eq!(streams.check_unread(check).len(), 2, "one SetPrefetch and one withdrawal");
    }

    #[test]
    fn lease_in_the_queue_runs_from_the_release() {
        let mut streams = connected(10, 100);
        streams.deliver(CONSUMER, delivery(1, 110), Timestamp(5_000));
        assert_eq!(offset_of(streams.poll_next(CONSUMER, Timestamp(5_099), Waker::noop())), Some(1));
    }

    #[test]
    fn reading_stream_keeps_its_deliveries() {
        let mut streams = connected(10, 9_000);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(20));
        assert_eq!(offset_of(streams.poll_next(CONSUMER, Timestamp(600), Waker::noop())), Some(1));
        assert_eq!(streams.check_unread(Timestamp(1_250)), [], "the timeout restarts when a delivery is read");
        assert!(!streams.check_unread(Timestamp(2_500)).is_empty(), "the second is withdrawn later");
    }

    #[test]
    fn queue_of_unread_stream_is_bounded_by_prefetch() {
        let mut streams = connected(2, 2);
        for offset in 0..1_000 {
            // Each is delivered when the lease of the one before the last has expired.
            streams.deliver(CONSUMER, delivery(offset, offset + 2), Timestamp(offset));
            assert!(streams.streams[&CONSUMER].queue.len() <= 3);
        }
    }

    #[test]
    fn expired_deliveries_and_closed_streams_yield_nothing() {
        let mut streams = connected(10, 90);
        streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 500), Timestamp(10));
        assert_eq!(offset_of(streams.poll_next(CONSUMER, Timestamp(100), Waker::noop())), Some(2));
        streams.deliver(CONSUMER, delivery(3, 500), Timestamp(110));
        streams.close(CONSUMER);
        assert_eq!(streams.poll_next(CONSUMER, Timestamp(120), Waker::noop()), NextDelivery::Closed);
        assert_eq!(streams.disconnect(CONSUMER).len(), 1, "the third is withdrawn");
    }

    #[test]
    fn stream_ends_at_its_delivery_limit_although_some_were_withdrawn_or_expired() {
        let mut streams = connected_for(Some(3), 10, 90);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        assert_eq!(offset_of(streams.poll_next(CONSUMER, Timestamp(10), Waker::noop())), Some(1));
        assert_eq!(streams.poll_next(CONSUMER, Timestamp(10), Waker::noop()), NextDelivery::Pending, "two remain");
        streams.deliver(CONSUMER, delivery(2, 50), Timestamp(20));
        streams.deliver(CONSUMER, delivery(3, 9_000), Timestamp(20));
        assert_eq!(streams.check_unread(Timestamp(2_000)).len(), 3, "one SetPrefetch and two withdrawals");
        assert_eq!(streams.poll_next(CONSUMER, Timestamp(2_000), Waker::noop()), NextDelivery::LimitReached);

        let mut streams = connected_for(Some(1), 10, 90);
        streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
        assert_eq!(streams.poll_next(CONSUMER, Timestamp(100), Waker::noop()), NextDelivery::LimitReached);
    }

    #[test]
    fn delivery_to_disconnected_stream_is_withdrawn() {
        let mut streams = connected(10, 9_000);
        assert_eq!(streams.disconnect(CONSUMER), []);
        assert_eq!(streams.len(), 0);
        let withdraw = streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        assert!(matches!(&withdraw[..], [Command::Withdraw(Withdraw(claim))] if claim.offset.0 == 1));
        streams.remove(CONSUMER);
        assert_eq!(streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(10)), []);
    }

    #[test]
    fn delivery_beyond_the_bytes_of_all_queues_is_withdrawn_and_stops_its_stream() {
        let (mut streams, other) = bounded();
        for offset in 0..3 {
            assert_eq!(streams.deliver(CONSUMER, delivery(offset, 9_000), Timestamp(10)), []);
        }
        let commands = streams.deliver(other, delivery(3, 9_000), Timestamp(10));
        let [Command::SetPrefetch(stop), Command::Withdraw(Withdraw(claim))] = &commands[..] else { panic!() };
        assert_eq!((stop.consumer, stop.prefetch, claim.offset.0), (other, 0, 3));
        assert_eq!((streams.bytes(), streams.refused()), (streams.bytes_max, 1));
        assert_eq!(streams.poll_next(other, Timestamp(10), Waker::noop()), NextDelivery::Pending);
        assert_eq!(streams.take_recovered(other), None, "there is no room yet");
        assert_eq!((streams.has_room(), streams.readmit()), (false, vec![]));
        for _ in 0..2 {
            assert!(offset_of(streams.poll_next(CONSUMER, Timestamp(10), Waker::noop())).is_some());
        }
        assert!(streams.has_room());
        let again = Command::SetPrefetch(SetPrefetch { consumer: other, prefetch: 10 });
        assert_eq!(streams.readmit(), [again]);
        assert!(!streams.has_room(), "no stream waits for it");
        assert_eq!(streams.deliver(other, delivery(3, 9_000), Timestamp(10)), []);
    }

    #[test]
    fn bytes_of_queues_are_counted_until_they_are_read_withdrawn_or_expired() {
        let (mut streams, other) = bounded();
        let one = streams.bytes_max / 3;
        for (consumer, offset) in [(CONSUMER, 0), (CONSUMER, 1), (other, 2)] {
            assert_eq!(streams.deliver(consumer, delivery(offset, 9_000), Timestamp(10)), []);
        }
        assert!(offset_of(streams.poll_next(CONSUMER, Timestamp(10), Waker::noop())).is_some());
        assert_eq!(streams.bytes(), 2 * one);
        assert_eq!(streams.disconnect(other).len(), 1);
        assert_eq!(streams.bytes(), one);
        assert!(!streams.check_unread(Timestamp(2_000)).is_empty());
        assert_eq!(streams.bytes(), 0);
        streams.deliver(CONSUMER, delivery(5, 2_100), Timestamp(2_000));
        streams.streams.get_mut(&CONSUMER).expect("connected").spec.prefetch = 1;
        streams.streams.get_mut(&CONSUMER).expect("connected").queue[0].ends_at = Timestamp(2_100);
        streams.deliver(CONSUMER, delivery(6, 9_000), Timestamp(2_200));
        assert_eq!(streams.bytes(), one, "the first has expired");
        streams.remove(CONSUMER);
        assert_eq!(streams.bytes(), 0);
    }

    #[test]
    fn delivery_longer_than_the_bound_is_queued_if_it_is_alone() {
        let (mut streams, other) = bounded();
        streams.bytes_max = 1;
        assert_eq!(streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10)), []);
        assert_eq!(streams.deliver(other, delivery(2, 9_000), Timestamp(10)).len(), 2);
        assert!(offset_of(streams.poll_next(CONSUMER, Timestamp(10), Waker::noop())).is_some());
        assert_eq!(streams.readmit().len(), 1);
    }
}
