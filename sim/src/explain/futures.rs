//! Futures: sampled continuations of a run. A future continues a clone of a world, partly with the remaining actions of
//! the trace, partly with new actions like those of the trace. It uses the same topics, groups and workers and the same
//! kinds of requests and faults, about as often.

use std::collections::VecDeque;

use driftq_core::faults::Faults;

use crate::actions::{Action, Damage, DeliveryRef, EffectBegin, Loss, NewMessage, Request};
use crate::invariants::Violation;
use crate::names::{Call, Message};
use crate::panic_capture;
use crate::run::never_panics;
use crate::shrink::json;
use crate::swarm::delivery_ref;
use crate::swarm::random::{Source, Stream};
use crate::world::World;

/// The number of actions of a future before its drain: as many as the trace had left, within these bounds. A longer
/// future would run into the same violation on its own and carry no information about the actions before it.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;
/// Futures cycle through this many degrees of fidelity: the first ignores the rest of the trace, the last follows
/// almost nothing else.
const FIDELITIES: u64 = 8;

/// Samples the futures of one trace.
#[derive(Clone, Debug)]
pub struct FutureSampler<'a> {
    actions: &'a [Action],
    /// The actions to sample from. Every future ends with a drain, so drains are left out.
    templates: Vec<&'a Action>,
    next_message: u32,
    next_call: u32,
}

impl<'a> FutureSampler<'a> {
    /// A sampler of actions like those of a trace.
    #[must_use]
    pub fn new(actions: &'a [Action]) -> Self {
        // New names must differ from those in the trace.
        let next = |kind: char| {
            let subjects = |action: &Action| json::subjects(&json::of(action));
            let names = actions.iter().flat_map(subjects);
            let numbers = names.filter_map(|name| {
                json::name(&name).filter(|(_, found, _)| *found == kind).map(|(_, _, number)| number)
            });
            numbers.max().map_or(0, |max| max.saturating_add(1))
        };
        let templates = actions.iter().filter(|action| **action != Action::Drain).collect();
        Self { actions, templates, next_message: next('m'), next_call: next('c') }
    }

    /// A future of the first `after` actions. The same number always gives the same future.
    #[must_use]
    pub fn future(&self, number: u64, after: usize) -> Future<'_> {
        let remaining: VecDeque<&Action> =
            self.actions[after..].iter().filter(|action| **action != Action::Drain).collect();
        Future {
            source: Source::new(number, Stream::Futures),
            fidelity: number % FIDELITIES,
            left: remaining.len().clamp(*LENGTHS.start(), *LENGTHS.end()),
            remaining,
            templates: &self.templates,
            next_message: self.next_message,
            next_call: self.next_call,
            drained: false,
        }
    }
}

/// One continuation.
#[derive(Clone, Debug)]
pub struct Future<'a> {
    source: Source,
    /// Out of [`FIDELITIES`] actions, how many come from the trace.
    fidelity: u64,
    left: usize,
    remaining: VecDeque<&'a Action>,
    templates: &'a [&'a Action],
    next_message: u32,
    next_call: u32,
    drained: bool,
}

impl Future<'_> {
    /// The next action in that world; `None` at the end.
    pub fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        if self.left == 0 {
            return (!std::mem::replace(&mut self.drained, true)).then_some(Action::Drain);
        }
        self.left -= 1;
        if self.source.below(FIDELITIES) < self.fidelity
            && let Some(action) = self.next_remaining()
        {
            return Some(action);
        }
        Some(self.sample(world))
    }

    /// The next action of the trace: mostly in place, sometimes later, sometimes dropped.
    fn next_remaining(&mut self) -> Option<Action> {
        let mut action = self.remaining.pop_front()?;
        match self.source.below(8) {
            0 => action = self.remaining.pop_front()?,
            1 if !self.remaining.is_empty() => {
                let later = self.source.below(self.remaining.len() as u64) as usize;
                std::mem::swap(&mut action, &mut self.remaining[later]);
            }
            _ => {}
        }
        Some(action.clone())
    }

    /// A new action like one of the trace, adapted to the world.
    fn sample<F: Faults>(&mut self, world: &World<F>) -> Action {
        // A broker that is down is soon restarted, even if the trace has no start left.
        if !world.is_serving() && self.source.one_in(2) {
            return if world.broker().is_some() { Action::Crash { loss: Loss::Nothing } } else { Action::Boot };
        }
        let nth = self.source.below(self.templates.len() as u64) as usize;
        let Some(action) = self.templates.get(nth).map(|action| (*action).clone()) else { return Action::Wake };
        match action {
            Action::Request(request) => Action::Request(self.adapt(request, world)),
            Action::Send { request, .. } => {
                let call = Call(self.next_call);
                self.next_call += 1;
                Action::Send { call, request: self.adapt(request, world) }
            }
            Action::Arrive { call } => {
                let calls: Vec<Call> = world.network().in_transit_calls().collect();
                Action::Arrive { call: if calls.is_empty() { call } else { self.source.pick(&calls) } }
            }
            Action::AdvanceTime { ms } => match world.until_timeout() {
                // Up to the next timeout, which is when something happens.
                Some(due) if self.source.one_in(2) => Action::AdvanceTime { ms: due.clamp(1, 30_000) as u32 },
                _ => Action::AdvanceTime { ms },
            },
            Action::Crash { loss } => Action::Crash { loss: self.reseed(loss) },
            Action::BootAndCrash { after, loss } => {
                let after = if self.source.one_in(2) { self.source.below(9) as u8 } else { after };
                Action::BootAndCrash { after, loss: self.reseed(loss) }
            }
            Action::Probe { loss, damage } => Action::Probe { loss: self.reseed(loss), damage: self.relocate(damage) },
            Action::Damage { damage } => Action::Damage { damage: self.relocate(damage) },
            other => other,
        }
    }

    fn adapt<F: Faults>(&mut self, request: Request, world: &World<F>) -> Request {
        match request {
            // Sometimes a producer sends the same message again.
            Request::Produce(new_message) if self.source.one_in(4) => Request::Produce(new_message),
            Request::Produce(new_message) => Request::Produce(self.new_message(new_message, world)),
            Request::Ack(delivery) => Request::Ack(self.delivery_ref(delivery, world)),
            Request::Nack { delivery, reason, delay_ms, never } => {
                Request::Nack { delivery: self.delivery_ref(delivery, world), reason, delay_ms, never }
            }
            Request::AckCumulative(delivery) => Request::AckCumulative(self.delivery_ref(delivery, world)),
            Request::ExpireLease(delivery) => Request::ExpireLease(self.delivery_ref(delivery, world)),
            Request::Extend { delivery, lease_ms } => {
                Request::Extend { delivery: self.delivery_ref(delivery, world), lease_ms }
            }
            Request::Release(delivery) => Request::Release(self.delivery_ref(delivery, world)),
            Request::Complete { delivery, result, produce, failed } => Request::Complete {
                delivery: self.delivery_ref(delivery, world),
                result,
                produce: produce.into_iter().map(|new_message| self.new_message(new_message, world)).collect(),
                failed,
            },
            Request::BeginEffect(begin) => {
                let delivery = begin.delivery.map(|delivery| self.delivery_ref(delivery, world));
                let expires_at = begin.expires_at.map(|_| world.wall_elapsed() + self.source.below(3_000));
                Request::BeginEffect(EffectBegin { delivery, expires_at, ..begin })
            }
            other => other,
        }
    }

    /// A message like that one, with a new name.
    fn new_message<F: Faults>(&mut self, mut new_message: NewMessage, world: &World<F>) -> NewMessage {
        new_message.message = Message(self.next_message);
        self.next_message += 1;
        new_message.deliver_at = new_message.deliver_at.map(|_| world.wall_elapsed() + self.source.below(2_000));
        new_message.deadline = new_message.deadline.map(|_| world.wall_elapsed() + self.source.below(4_000));
        new_message
    }

    /// A delivery that the same worker has read: the newest, or any.
    fn delivery_ref<F: Faults>(&mut self, before: DeliveryRef, world: &World<F>) -> DeliveryRef {
        let read: Vec<_> = world.network().read_by(before.worker).collect();
        let nth = if self.source.one_in(2) { 0 } else { self.source.below(read.len() as u64) as usize };
        match read.get(nth) {
            Some(held) => DeliveryRef { tampering: before.tampering, ..delivery_ref(before.worker, held, world) },
            None => before,
        }
    }

    fn reseed(&mut self, loss: Loss) -> Loss {
        match loss {
            Loss::Partial { .. } => Loss::Partial { seed: self.source.below(1 << 20) as u32 },
            other => other,
        }
    }

    /// The same kind of damage elsewhere.
    fn relocate(&mut self, damage: Damage) -> Damage {
        let mut any = || self.source.below(1 << 30) as u32;
        match damage {
            Damage::Flip { .. } => Damage::Flip { bit: any() },
            Damage::Zero { .. } => Damage::Zero { sector: any() },
            Damage::Misdirect { .. } => Damage::Misdirect { from: any(), to: any() },
            Damage::Unreadable { .. } => Damage::Unreadable { sector: any() },
        }
    }
}

/// The result of a future.
#[derive(Clone, Debug)]
pub struct FutureResult {
    /// Its actions, up to the end or the violation.
    pub actions: Vec<Action>,
    /// The invariant violated by the last action.
    pub violation: Option<Violation>,
}

/// Continues a clone of a world with the actions from `next`, until there are none or an invariant is violated.
pub fn run_future<F: Faults>(world: &World<F>, mut next: impl FnMut(&World<F>) -> Option<Action>) -> FutureResult {
    let mut actions = Vec::new();
    let result = panic_capture::catch(|| {
        let mut world = world.clone();
        while let Some(action) = next(&world) {
            actions.push(action);
            if let Some(action) = actions.last() {
                world.apply(action)?;
            }
        }
        Ok(())
    });
    let violation = result.map_err(never_panics).and_then(|verdict| verdict).err();
    FutureResult { actions, violation }
}
