//! Connected streams: what was delivered to each and has not been written to its socket yet.
//!
//! A queue holds no more than its stream's prefetch: the broker grants no further lease beyond that, and deliveries whose lease
//! has ended unread are dropped. A stream that lets leases end unread is handed nothing more until it has read what it has.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{ConsumerId, GroupName, OwnerName, Timestamp, TopicName};

/// What is known of a stream before it is connected.
#[derive(Clone, Debug)]
pub(crate) struct StreamSeed {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owner: OwnerName,
    pub(crate) prefetch: u32,
}

/// A connected stream.
#[derive(Debug)]
pub(crate) struct Stream {
    seed: StreamSeed,
    queue: VecDeque<Box<Delivery>>,
    waker: Option<Waker>,
    /// It is over, and what is still in the queue will not be read: it is given back when the stream goes.
    over: bool,
    stall: Stall,
}

/// Whether a stream is being handed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Flowing,
    /// A lease ended unread. The broker was told to hand it nothing.
    Stalled,
}

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: HashMap<ConsumerId, Stream>,
}

/// What a stream finds when it looks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message.
    Delivery(Box<Delivery>),
    /// Nothing yet; the waker will be called.
    Nothing,
    /// Nothing any more.
    Over,
}

impl Streams {
    pub(crate) fn connect(&mut self, consumer: ConsumerId, seed: StreamSeed) {
        let stream = Stream { seed, queue: VecDeque::new(), waker: None, over: false, stall: Stall::Flowing };
        self.streams.insert(consumer, stream);
    }

    /// Takes a delivery for a stream. True if the stream has just been found not to read: the broker is to hand it nothing.
    pub(crate) fn deliver(&mut self, consumer: ConsumerId, delivery: Box<Delivery>, now: Timestamp) -> bool {
        let Some(stream) = self.streams.get_mut(&consumer) else { return false };
        let mut stalled = false;
        if stream.queue.len() >= stream.seed.prefetch as usize {
            let before = stream.queue.len();
            stream.queue.retain(|delivery| delivery.lease_until > now);
            stalled = stream.queue.len() < before && stream.stall == Stall::Flowing;
            if stalled {
                stream.stall = Stall::Stalled;
            }
        }
        stream.queue.push_back(delivery);
        stream.wake();
        stalled
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
            if delivery.lease_until > now {
                return Next::Delivery(delivery);
            }
        }
        match &mut stream.waker {
            Some(known) => known.clone_from(waker),
            None => stream.waker = Some(waker.clone()),
        }
        Next::Nothing
    }

    /// The prefetch to give back to a stream that has read everything it was handed, if it had been taken away.
    pub(crate) fn recovered(&mut self, consumer: ConsumerId) -> Option<u32> {
        let stream = self.streams.get_mut(&consumer)?;
        if stream.stall == Stall::Stalled && stream.queue.is_empty() {
            stream.stall = Stall::Flowing;
            return Some(stream.seed.prefetch);
        }
        None
    }

    /// A stream is gone. Gives claims on what it was handed and never read.
    pub(crate) fn disconnect(&mut self, consumer: ConsumerId) -> Vec<Claim> {
        let Some(Stream { seed, queue, .. }) = self.streams.remove(&consumer) else { return Vec::new() };
        let claim = |delivery: Box<Delivery>| Claim {
            topic: seed.topic.clone(),
            group: seed.group.clone(),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: seed.owner.clone(),
            token: TokenClaim::Shown(delivery.token),
        };
        queue.into_iter().map(claim).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }
}

impl Stream {
    fn end(&mut self) {
        self.over = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
