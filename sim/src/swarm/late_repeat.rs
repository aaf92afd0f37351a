//! A producer that sends a message again after its dedupe window, when all groups of the topic have done its work, or
//! all but one: alone or as the output of a step. The broker must skip it in the first case only, and say so.

use std::collections::VecDeque;

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::clients::delivery_ref;
use super::random::{Source, Stream};
use crate::actions::{Action, EffectBegin, EffectOutcome, GrantRef, NewMessage, Request, Subscription, Tampering};
use crate::names::{Group, Message, Topic, Worker};
use crate::world::{HeldDelivery, World};

/// A topic of its own, so that all groups have done the work.
const TOPIC: Topic = Topic::new(5);

/// The worker of the first group; the others follow.
const FIRST_WORKER: u8 = 7;

/// The first message.
const FIRST_MESSAGE: u32 = 1 << 23;

/// The key that is used again.
const IDENTITY: u8 = 9;

/// Effects are remembered for longer than any dedupe window of a world, but for those of weeks.
const REMEMBERED_MS: u32 = 1 << 30;

/// A world whose dedupe window is longer has no such producer.
const WINDOW_MS_MAX: u64 = 100_000;

/// At most so many actions.
const ACTIONS: u32 = 200;

/// One of so many worlds has such a producer.
const ONE_IN: u64 = 6;

/// Drives the producer and its workers.
#[derive(Debug)]
pub(super) struct LateRepeat {
    source: Source,
    /// When it begins, in actions; `None` in a world without it.
    begins_in: Option<u32>,
    groups: u8,
    /// All groups, or all but the last: then there is always one that has not done its work.
    working_groups: u8,
    actions: u32,
    produced: u32,
    /// Deliveries up to this one are settled.
    seen: Option<LeaseToken>,
    /// Deliveries that were settled since the last message was produced.
    settled: u8,
    scheduled: VecDeque<Action>,
    turn: u32,
}

impl LateRepeat {
    pub(super) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed, Stream::LateRepeat);
        let begins_in = source.one_in(ONE_IN).then(|| 5 + source.below(40) as u32);
        let groups = 1 + source.below(3) as u8;
        let working_groups = if groups > 1 && source.one_in(2) { groups - 1 } else { groups };
        let scheduled = VecDeque::from([request(Request::CreateTopic {
            topic: TOPIC,
            partitions: Some(1 + source.below(2) as u32),
            keep_ms: None,
            keep_bytes: None,
        })]);
        Self {
            source,
            begins_in,
            groups,
            working_groups,
            actions: 0,
            produced: 0,
            seen: None,
            settled: 0,
            scheduled,
            turn: 0,
        }
    }

    /// The next action of a serving broker, while the producer works.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let begins_in = self.begins_in.as_mut()?;
        if *begins_in > 0 {
            *begins_in -= 1;
            return None;
        }
        self.actions += 1;
        let window_ms = world.limits().dedupe_ttl.0;
        if self.actions > ACTIONS || window_ms > WINDOW_MS_MAX {
            self.begins_in = None;
            return None;
        }
        if let Some(action) = self.scheduled.pop_front() {
            return Some(action);
        }
        let workers = (0..self.groups).map(|group| (Worker(FIRST_WORKER + group), Group(group)));
        if let Some((worker, group)) = workers.clone().find(|(worker, _)| !world.network().is_connected(*worker)) {
            let owner = worker;
            return Some(request(Request::Subscribe(Subscription {
                worker,
                topic: TOPIC,
                group,
                owner,
                prefetch: 4,
                ..Subscription::default()
            })));
        }
        let working = workers.take(usize::from(self.working_groups));
        for (worker, _) in working.clone() {
            let unseen = world.network().read_by(worker).filter(|held| Some(held.token) > self.seen);
            if let Some(held) = unseen.min_by_key(|held| held.token) {
                return Some(self.settle(worker, held, world));
            }
        }
        if let Some((worker, _)) = working.clone().find(|(worker, _)| world.network().unread(*worker) > 0) {
            return Some(Action::Read { worker, count: 1 });
        }
        if self.settled >= self.working_groups || self.produced == 0 || self.source.one_in(20) {
            self.settled = 0;
            return Some(self.produce(window_ms));
        }
        self.turn += 1;
        Some(if self.turn.is_multiple_of(2) { Action::Wake } else { Action::FlushIo })
    }

    /// The next message: with the key, after its window, or without one, so that a step can use the key.
    fn produce(&mut self, window_ms: u64) -> Action {
        let has_key = self.produced.is_multiple_of(2);
        if has_key && self.produced > 0 {
            let produce = request(Request::Produce(self.message(has_key)));
            self.scheduled.extend([Action::Wake, Action::FlushIo, produce]);
            return Action::AdvanceTime { ms: window_ms as u32 + 1 };
        }
        request(Request::Produce(self.message(has_key)))
    }

    fn message(&mut self, has_key: bool) -> NewMessage {
        self.produced += 1;
        NewMessage {
            message: Message(FIRST_MESSAGE + self.produced),
            topic: TOPIC,
            identity: has_key.then_some(IDENTITY),
            ..NewMessage::default()
        }
    }

    /// Does the work of a message with a key and acks it; completes a step with the key for one without.
    fn settle<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> Action {
        (self.seen, self.settled) = (Some(held.token), self.settled + 1);
        let delivery = delivery_ref(worker, held, world);
        let Some(effect) = held.effect else {
            let window_ms = world.limits().dedupe_ttl.0;
            let mut produce = vec![self.message(true)];
            if self.source.one_in(2) {
                produce.push(self.message(false));
            }
            let step = Request::Complete { delivery, result: 1, produce, failed: None };
            // The lease may not last; then the step is refused, and the message comes again.
            self.scheduled.extend([Action::Wake, request(step), Action::FlushIo]);
            return Action::AdvanceTime { ms: self.source.pick(&[0, 1, window_ms as u32 + 1]) };
        };
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        let outcome = EffectOutcome::Succeeded;
        self.scheduled.extend([
            Action::FlushIo,
            Action::RunEffect(grant),
            request(Request::FinishEffect { grant, outcome, result: 1, error: 0, dead_letter: None }),
            request(Request::Ack(delivery)),
            Action::FlushIo,
        ]);
        request(Request::BeginEffect(EffectBegin {
            worker,
            effect,
            ttl_ms: Some(REMEMBERED_MS),
            delivery: Some(delivery),
            ..EffectBegin::default()
        }))
    }
}

fn request(request: Request) -> Action {
    Action::Request(request)
}
