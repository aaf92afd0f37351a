//! Connected streams: what was delivered to each and has not been written to its socket yet.
//!
//! A lease must not sit in a socket that nobody reads. What a stream has not taken after [`PATIENCE`] is given back, unharmed, and
//! the stream is handed nothing more until it reads again. Its queue is bounded by that and by its prefetch: the broker grants
//! no further lease beyond it, and deliveries whose lease has ended unread are dropped.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use driftq_core::Command;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{ConsumerId, GroupName, Millis, OwnerName, Timestamp, TopicName};

/// How long a delivery waits for its stream to take it.
const PATIENCE: Millis = Millis(1_000);
/// How exactly that is watched. A stream is looked at no more often, however often its queue fills.
const WATCH_EVERY: Millis = Millis(250);

/// What is known of a stream before it is connected.
#[derive(Clone, Debug)]
pub(crate) struct StreamSeed {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owner: OwnerName,
    pub(crate) prefetch: u32,
    /// How many messages it is handed in all, if it said so.
    pub(crate) deliveries_max: Option<u64>,
}

/// A connected stream.
#[derive(Debug)]
struct Stream {
    seed: StreamSeed,
    queue: VecDeque<Box<Delivery>>,
    /// How many deliveries are still to come, where that is bounded.
    to_come: Option<u64>,
    waker: Option<Waker>,
    /// It is over, and what is still in the queue will not be read: it is given back when the stream goes.
    over: bool,
    /// Nobody reads it any more; it is kept until nothing can be on its way to it.
    gone: bool,
    /// It did not read, so the broker was told to hand it nothing.
    stalled: bool,
    /// When the oldest delivery in the queue came.
    unread_since: Timestamp,
    /// When it is looked at whether it reads.
    watched_at: Timestamp,
}

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: HashMap<ConsumerId, Stream, BuildHasherDefault<ByNumber>>,
    /// Who is to be looked at when; the soonest first.
    watched: VecDeque<(Timestamp, ConsumerId)>,
}

/// Streams are numbered one after the other, by us: their numbers are as good as any hash of them.
#[derive(Debug, Default)]
struct ByNumber(u64);

impl Hasher for ByNumber {
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("only a number is hashed here, not {bytes:?}");
    }

    fn write_u64(&mut self, number: u64) {
        // The map looks at the highest bits too.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a stream finds when it looks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message.
    Delivery(Box<Delivery>),
    /// Nothing yet; the waker will be called.
    Nothing,
    /// It was handed as many as it wanted, though not all of them were read in time. This is no disconnect.
    Spent,
    /// Nothing any more.
    Over,
}

impl Streams {
    pub(crate) fn connect(&mut self, consumer: ConsumerId, seed: StreamSeed) {
        let stream = Stream {
            to_come: seed.deliveries_max,
            seed,
            queue: VecDeque::new(),
            waker: None,
            over: false,
            gone: false,
            stalled: false,
            unread_since: Timestamp(0),
            watched_at: Timestamp(0),
        };
        self.streams.insert(consumer, stream);
    }

    /// Takes a delivery for a stream. Says how it is given back if the stream went while the delivery was on its way.
    pub(crate) fn deliver(&mut self, consumer: ConsumerId, delivery: Box<Delivery>, now: Timestamp) -> Option<Command> {
        let stream = self.streams.get_mut(&consumer)?;
        if stream.gone {
            return Some(stream.seed.release(&delivery));
        }
        stream.to_come = stream.to_come.map(|left| left.saturating_sub(1));
        if stream.queue.len() >= stream.seed.prefetch as usize {
            stream.queue.retain(|delivery| delivery.lease_until > now);
        }
        if stream.queue.is_empty() {
            stream.unread_since = now;
            if stream.watched_at < look_at(now) {
                stream.watched_at = look_at(now);
                self.watched.push_back((stream.watched_at, consumer));
            }
        }
        stream.queue.push_back(delivery);
        if let Some(waker) = stream.waker.take() {
            waker.wake();
        }
        None
    }

    /// When a stream is to be looked at next.
    pub(crate) fn next_look(&self) -> Option<Timestamp> {
        self.watched.front().map(|(at, _)| *at)
    }

    /// Looks at the streams whose time has come. Says what the broker is to be told of those that do not read.
    pub(crate) fn look(&mut self, now: Timestamp) -> Vec<Command> {
        let mut commands = Vec::new();
        while self.next_look().is_some_and(|at| at <= now) {
            let Some((_, consumer)) = self.watched.pop_front() else { break };
            let Some(stream) = self.streams.get_mut(&consumer) else { continue };
            if stream.queue.is_empty() || stream.over {
                continue;
            }
            if stream.unread_since.after(PATIENCE) > now {
                stream.watched_at = look_at(now);
                self.watched.push_back((stream.watched_at, consumer));
                continue;
            }
            stream.stalled = true;
            commands.push(Command::SetPrefetch { consumer, prefetch: 0 });
            commands.extend(stream.give_back());
        }
        commands
    }

    /// The broker ended a stream.
    pub(crate) fn close(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.streams.get_mut(&consumer) {
            stream.end();
        }
    }

    /// Ends every stream.
    pub(crate) fn close_all(&mut self) {
        self.streams.values_mut().for_each(Stream::end);
    }

    /// The next message of a stream. `waker` is called when there is one, if there is none now.
    pub(crate) fn next(&mut self, consumer: ConsumerId, now: Timestamp, waker: &Waker) -> Next {
        let Some(stream) = self.streams.get_mut(&consumer).filter(|stream| !stream.over) else { return Next::Over };
        while let Some(delivery) = stream.queue.pop_front() {
            stream.unread_since = now;
            if delivery.lease_until > now {
                return Next::Delivery(delivery);
            }
        }
        if stream.to_come == Some(0) {
            return Next::Spent;
        }
        match &mut stream.waker {
            Some(known) => known.clone_from(waker),
            None => stream.waker = Some(waker.clone()),
        }
        Next::Nothing
    }

    /// The prefetch to give back to a stream that reads again, if it had been taken away.
    pub(crate) fn recovered(&mut self, consumer: ConsumerId) -> Option<u32> {
        let stream = self.streams.get_mut(&consumer).filter(|stream| stream.stalled && stream.queue.is_empty())?;
        stream.stalled = false;
        Some(stream.seed.prefetch)
    }

    /// A stream is gone. Says how what it was handed and never read is given back.
    pub(crate) fn disconnect(&mut self, consumer: ConsumerId) -> Vec<Command> {
        let Some(stream) = self.streams.get_mut(&consumer) else { return Vec::new() };
        (stream.gone, stream.over) = (true, true);
        stream.give_back().collect()
    }

    /// Nothing more can come for a stream that is gone.
    pub(crate) fn forget(&mut self, consumer: ConsumerId) {
        self.streams.remove(&consumer);
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.values().filter(|stream| !stream.gone).count()
    }
}

/// When to look at a stream that was handed something now.
fn look_at(now: Timestamp) -> Timestamp {
    Timestamp((now.after(PATIENCE).0 / WATCH_EVERY.0 + 1).saturating_mul(WATCH_EVERY.0))
}

impl Stream {
    fn end(&mut self) {
        self.over = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Gives back what was not read.
    fn give_back(&mut self) -> impl Iterator<Item = Command> {
        let Self { seed, queue, .. } = self;
        queue.drain(..).map(|delivery| seed.release(&delivery))
    }
}

impl StreamSeed {
    fn release(&self, delivery: &Delivery) -> Command {
        Command::Release(Claim {
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: self.owner.clone(),
            token: TokenClaim::Shown(delivery.token),
        })
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::Body;
    use driftq_core::types::{Boot, LeaseToken, Offset, PartitionId};

    use super::*;

    const CONSUMER: ConsumerId = ConsumerId(1);

    fn connected(prefetch: u32) -> Streams {
        connected_for(None, prefetch)
    }

    fn connected_for(deliveries_max: Option<u64>, prefetch: u32) -> Streams {
        let mut streams = Streams::default();
        let seed = StreamSeed {
            topic: TopicName::new("t").expect("a name"),
            group: GroupName::new("g").expect("a name"),
            owner: OwnerName::new("w").expect("a name"),
            prefetch,
            deliveries_max,
        };
        streams.connect(CONSUMER, seed);
        streams
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

    fn offset_of(next: Next) -> Option<u64> {
        if let Next::Delivery(delivery) = next { Some(delivery.offset.0) } else { None }
    }

    #[test]
    fn what_is_not_read_in_time_is_given_back_and_nothing_more_is_handed_out() {
        let mut streams = connected(10);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(900));
        let look = streams.next_look().expect("it is watched");
        assert!((1_010..1_300).contains(&look.0), "{look:?}");
        assert_eq!(streams.look(Timestamp(look.0 - 1)), []);
        let told = streams.look(look);
        assert!(matches!(told[0], Command::SetPrefetch { prefetch: 0, .. }));
        let released: Vec<_> = told
            .iter()
            .filter_map(|c| if let Command::Release(claim) = c { Some(claim.offset.0) } else { None })
            .collect();
        assert_eq!(released, [1, 2]);
        assert_eq!(streams.next(CONSUMER, look, Waker::noop()), Next::Nothing);
        assert_eq!(streams.recovered(CONSUMER), Some(10), "it reads again");
        assert_eq!(streams.recovered(CONSUMER), None);
    }

    #[test]
    fn a_stream_that_reads_keeps_what_it_has() {
        let mut streams = connected(10);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(20));
        assert_eq!(offset_of(streams.next(CONSUMER, Timestamp(600), Waker::noop())), Some(1));
        assert_eq!(streams.look(Timestamp(1_250)), [], "the second has waited for no longer than the first was taken");
        assert!(!streams.look(Timestamp(2_500)).is_empty(), "but it is not forgotten");
    }

    #[test]
    fn the_queue_of_a_stream_that_reads_nothing_is_bounded_by_its_prefetch() {
        let mut streams = connected(2);
        for offset in 0..1_000 {
            // Each is delivered when the lease of the one before the last has ended.
            streams.deliver(CONSUMER, delivery(offset, offset + 2), Timestamp(offset));
            assert!(streams.streams[&CONSUMER].queue.len() <= 3);
        }
    }

    #[test]
    fn nothing_is_read_once_its_lease_has_ended_or_the_stream_is_over() {
        let mut streams = connected(10);
        streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
        streams.deliver(CONSUMER, delivery(2, 500), Timestamp(10));
        assert_eq!(offset_of(streams.next(CONSUMER, Timestamp(100), Waker::noop())), Some(2));
        streams.deliver(CONSUMER, delivery(3, 500), Timestamp(110));
        streams.close(CONSUMER);
        assert_eq!(streams.next(CONSUMER, Timestamp(120), Waker::noop()), Next::Over);
        assert_eq!(streams.disconnect(CONSUMER).len(), 1, "the third is given back");
    }

    #[test]
    fn a_stream_that_was_handed_all_it_wanted_ends_although_some_was_given_back_or_ran_out() {
        let mut streams = connected_for(Some(3), 10);
        streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        assert_eq!(offset_of(streams.next(CONSUMER, Timestamp(10), Waker::noop())), Some(1));
        assert_eq!(streams.next(CONSUMER, Timestamp(10), Waker::noop()), Next::Nothing, "two are to come");
        streams.deliver(CONSUMER, delivery(2, 50), Timestamp(20));
        streams.deliver(CONSUMER, delivery(3, 9_000), Timestamp(20));
        assert_eq!(streams.look(Timestamp(2_000)).len(), 3, "no more for it, and both are given back");
        assert_eq!(streams.next(CONSUMER, Timestamp(2_000), Waker::noop()), Next::Spent);

        let mut streams = connected_for(Some(1), 10);
        streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
        assert_eq!(streams.next(CONSUMER, Timestamp(100), Waker::noop()), Next::Spent);
    }

    #[test]
    fn what_comes_for_a_stream_that_went_meanwhile_is_given_back() {
        let mut streams = connected(10);
        assert_eq!(streams.disconnect(CONSUMER), []);
        assert_eq!(streams.len(), 0);
        let back = streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
        assert!(matches!(back, Some(Command::Release(claim)) if claim.offset.0 == 1));
        streams.forget(CONSUMER);
        assert_eq!(streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(10)), None);
    }
}
