//! A worker that acks steadily and leaves single messages unanswered, so that their leases expire while it shows how
//! much it gets done: the credit of its stream follows from that.

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::clients::delivery_ref;
use super::random::{Source, Stream};
use crate::actions::{Action, NewMessage, Request, Subscription};
use crate::names::{Group, Message, Topic, Worker};
use crate::world::World;

/// The worker.
const WORKER: Worker = Worker(6);

/// Its first message.
const FIRST_MESSAGE: u32 = 1 << 22;

/// At most so many messages at a time.
const MESSAGES_MAX: u32 = 24;

/// At most so many actions.
const ACTIONS: u32 = 300;

/// One of so many worlds has such a worker.
const ONE_IN: u64 = 10;

/// Drives the worker.
#[derive(Debug)]
pub(super) struct ForgetfulWorker {
    source: Source,
    /// When it begins, in actions; `None` in a world without it.
    begins_in: Option<u32>,
    subscription: Subscription,
    lease_ms: u32,
    actions: u32,
    /// Messages produced for it.
    produced: u32,
    /// Deliveries up to this one are acked or forgotten.
    seen: Option<LeaseToken>,
    turn: u32,
}

impl ForgetfulWorker {
    pub(super) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed, Stream::ForgetfulWorker);
        let begins_in = source.one_in(ONE_IN).then(|| 10 + source.below(80) as u32);
        let lease_ms = source.pick(&[40, 200, 1_000]);
        let subscription = Subscription {
            worker: WORKER,
            topic: Topic::new(0),
            group: Group(source.below(2) as u8),
            owner: WORKER,
            lease_ms: Some(lease_ms),
            prefetch: source.pick(&[2, 3, 5, 8, 16]),
            ..Subscription::default()
        };
        Self { source, begins_in, subscription, lease_ms, actions: 0, produced: 0, seen: None, turn: 0 }
    }

    /// The next action of a serving broker, while the worker works.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let begins_in = self.begins_in.as_mut()?;
        if *begins_in > 0 {
            *begins_in -= 1;
            return None;
        }
        self.actions += 1;
        if self.actions > ACTIONS {
            self.begins_in = None;
            return None;
        }
        if !world.network().is_connected(WORKER) {
            return Some(Action::Request(Request::Subscribe(self.subscription)));
        }
        // The oldest delivery that was not looked at yet.
        let unseen = world.network().read_by(WORKER).filter(|held| Some(held.token) > self.seen);
        if let Some(held) = unseen.min_by_key(|held| held.token) {
            self.seen = Some(held.token);
            if !self.source.one_in(7) {
                return Some(Action::Request(Request::Ack(delivery_ref(WORKER, held, world))));
            }
        }
        if world.network().unread(WORKER) > 0 {
            return Some(Action::Read { worker: WORKER, count: 1 + self.source.below(4) as u8 });
        }
        self.turn += 1;
        Some(match self.turn % 4 {
            0 if self.produced < MESSAGES_MAX || self.source.one_in(3) => {
                let message = Message(FIRST_MESSAGE + self.produced);
                self.produced += 1;
                Action::Request(Request::Produce(NewMessage { message, topic: Topic::new(0), ..NewMessage::default() }))
            }
            // Several acks fall into one lease, and now and then a lease ends.
            1 => Action::AdvanceTime { ms: 1 + self.source.below(u64::from(self.lease_ms) / 4) as u32 },
            2 => Action::Wake,
            _ => Action::FlushIo,
        })
    }
}
