//! A message that fails again and again, with a backoff that doubles each time: more often than a number has bits.

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::clients::delivery_ref;
use super::random::{Source, Stream};
use crate::actions::{Action, NewMessage, Request, RetryPolicy, Subscription};
use crate::names::{Message, Topic, Worker};
use crate::world::World;

/// The message.
const MESSAGE: Message = Message(1 << 21);

/// After so many failures the doubled backoff has more than 64 bits.
const FAILURES: u32 = 70;

/// At most so many actions.
const ACTIONS: u32 = 420;

/// A topic of its own: no other message is in the way.
const TOPIC: Topic = Topic::new(6);

const WORKER: Worker = Worker(5);

/// The message and its worker, in one of so many worlds.
const ONE_IN: u64 = 6;

/// Drives one message from failure to failure.
#[derive(Debug)]
pub(super) struct PersistentFailure {
    source: Source,
    /// When it begins, in actions; `None` in a world without it.
    begins_in: Option<u32>,
    actions: u32,
    is_produced: bool,
    failures: u32,
    /// The newest delivery that was nacked.
    nacked: Option<LeaseToken>,
    turn: u32,
}

impl PersistentFailure {
    pub(super) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed, Stream::PersistentFailure);
        let begins_in = source.one_in(ONE_IN).then(|| 20 + source.below(60) as u32);
        Self { source, begins_in, actions: 0, is_produced: false, failures: 0, nacked: None, turn: 0 }
    }

    /// The next action of a serving broker, while the message fails.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let begins_in = self.begins_in.as_mut()?;
        if *begins_in > 0 {
            *begins_in -= 1;
            return None;
        }
        self.actions += 1;
        if self.failures >= FAILURES || self.actions > ACTIONS {
            self.begins_in = None;
            return None;
        }
        if self.actions == 1 {
            return Some(Action::Request(Request::CreateTopic {
                topic: TOPIC,
                partitions: Some(1),
                keep_ms: None,
                keep_bytes: None,
            }));
        }
        let network = world.network();
        if !network.is_connected(WORKER) {
            let (worker, topic, owner) = (WORKER, TOPIC, WORKER);
            return Some(Action::Request(Request::Subscribe(Subscription {
                worker,
                topic,
                owner,
                prefetch: 1,
                ..Subscription::default()
            })));
        }
        if !self.is_produced {
            self.is_produced = true;
            let max_backoff_ms = 1 + self.source.below(3);
            return Some(Action::Request(Request::Produce(NewMessage {
                message: MESSAGE,
                topic: TOPIC,
                policy: Some(RetryPolicy { attempts: 0, backoff_ms: 1, max_backoff_ms }),
                ..NewMessage::default()
            })));
        }
        let newest = network.read_by(WORKER).find(|held| held.message == MESSAGE);
        if let Some(held) = newest.filter(|held| Some(held.token) > self.nacked) {
            (self.failures, self.nacked) = (self.failures + 1, Some(held.token));
            let delivery = delivery_ref(WORKER, held, world);
            return Some(Action::Request(Request::Nack { delivery, reason: 0, delay_ms: None, never: false }));
        }
        if network.unread(WORKER) > 0 {
            return Some(Action::Read { worker: WORKER, count: 1 });
        }
        self.turn += 1;
        Some(match self.turn % 3 {
            0 => Action::AdvanceTime { ms: 3 },
            1 => Action::Wake,
            _ => Action::FlushIo,
        })
    }
}
