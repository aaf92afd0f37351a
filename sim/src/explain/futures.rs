//! What could come next. A future goes on from a clone of a world: partly with what is still to come in the trace, partly with
//! steps like those of the trace, drawn anew. Nothing happens in it that could not have happened in the trace: the same topics,
//! groups and workers, the same kinds of calls and faults, about as often.

use std::collections::VecDeque;

use driftq_core::faults::Faults;

use crate::actions::{Action, Damage, DeliveryRef, EffectBegin, Loss, NewMessage, Request};
use crate::invariants::{Violation, catalog};
use crate::names::{Call, Message};
use crate::panic_capture;
use crate::shrink::json;
use crate::swarm::delivery_ref;
use crate::swarm::random::{Source, Stream};
use crate::world::World;

/// How many steps a future has before everything is drained: as many as the trace had left, but no fewer and no more than these.
/// One that went on for long would find its own way into the same trouble, and say nothing about the steps before it.
const STEPS: std::ops::RangeInclusive<usize> = 16..=256;
/// Of so many futures the first knows nothing of what the trace still had in store, and the last hardly anything else.
const LOYALTIES: u64 = 8;

/// What the futures of one trace are drawn from.
#[derive(Clone, Debug)]
pub struct FutureSampler<'a> {
    actions: &'a [Action],
    /// What can be drawn at any moment. Every future ends with a drain, so none is drawn.
    alike: Vec<&'a Action>,
    next_message: u32,
    next_call: u32,
}

impl<'a> FutureSampler<'a> {
    /// The steps of a trace, as a source of others.
    #[must_use]
    pub fn new(actions: &'a [Action]) -> Self {
        // Whatever is new must not have the name of something old.
        let next = |kind: char| {
            let named = |action: &Action| json::subjects(&json::of(action));
            let names = actions.iter().flat_map(named);
            let numbers =
                names.filter_map(|name| json::name(&name).filter(|(_, found, _)| *found == kind).map(|n| n.2));
            numbers.max().map_or(0, |most| most.saturating_add(1))
        };
        let alike = actions.iter().filter(|action| **action != Action::Drain).collect();
        Self { actions, alike, next_message: next('m'), next_call: next('c') }
    }

    /// The future of that number after so many steps of the trace: the same one every time.
    #[must_use]
    pub fn future(&self, number: u64, after: usize) -> Future<'_> {
        let coming: VecDeque<&Action> =
            self.actions[after..].iter().filter(|action| **action != Action::Drain).collect();
        Future {
            source: Source::new(number, Stream::Futures),
            loyalty: number % LOYALTIES,
            left: coming.len().clamp(*STEPS.start(), *STEPS.end()),
            coming,
            alike: &self.alike,
            next_message: self.next_message,
            next_call: self.next_call,
            drained: false,
        }
    }
}

/// One way things could go on.
#[derive(Clone, Debug)]
pub struct Future<'a> {
    source: Source,
    /// Of [`LOYALTIES`] steps, how many are the trace's own.
    loyalty: u64,
    left: usize,
    coming: VecDeque<&'a Action>,
    alike: &'a [&'a Action],
    next_message: u32,
    next_call: u32,
    drained: bool,
}

impl Future<'_> {
    /// What happens next in that world; nothing when it is over.
    pub fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        if self.left == 0 {
            return (!std::mem::replace(&mut self.drained, true)).then_some(Action::Drain);
        }
        self.left -= 1;
        if self.source.below(LOYALTIES) < self.loyalty
            && let Some(action) = self.coming()
        {
            return Some(action);
        }
        Some(self.fresh(world))
    }

    /// What the trace has in store: mostly as it stands there, sometimes later, sometimes never.
    fn coming(&mut self) -> Option<Action> {
        let mut action = self.coming.pop_front()?;
        match self.source.below(8) {
            0 => action = self.coming.pop_front()?,
            1 if !self.coming.is_empty() => {
                let later = self.source.below(self.coming.len() as u64) as usize;
                std::mem::swap(&mut action, &mut self.coming[later]);
            }
            _ => {}
        }
        Some(action.clone())
    }

    /// Something like what happens in the trace, where it makes sense now.
    fn fresh<F: Faults>(&mut self, world: &World<F>) -> Action {
        // A broker that is down stays down only for a while, whether or not the trace has a start in store.
        if !world.is_serving() && self.source.one_in(2) {
            return if world.broker().is_some() { Action::Crash { loss: Loss::Nothing } } else { Action::Boot };
        }
        let nth = self.source.below(self.alike.len() as u64) as usize;
        let Some(action) = self.alike.get(nth).map(|action| (*action).clone()) else { return Action::Wake };
        match action {
            Action::Request(request) => Action::Request(self.renewed(request, world)),
            Action::Send { request, .. } => {
                let call = Call(self.next_call);
                self.next_call += 1;
                Action::Send { call, request: self.renewed(request, world) }
            }
            Action::Arrive { call } => {
                let calls: Vec<Call> = world.network().in_transit_calls().collect();
                Action::Arrive { call: if calls.is_empty() { call } else { self.source.pick(&calls) } }
            }
            Action::AdvanceTime { ms } => match world.until_timeout() {
                // As long as the broker waits for, which is when something happens.
                Some(due) if self.source.one_in(2) => Action::AdvanceTime { ms: due.clamp(1, 30_000) as u32 },
                _ => Action::AdvanceTime { ms },
            },
            Action::Crash { loss } => Action::Crash { loss: self.luck(loss) },
            Action::BootAndCrash { after, loss } => {
                let after = if self.source.one_in(2) { self.source.below(9) as u8 } else { after };
                Action::BootAndCrash { after, loss: self.luck(loss) }
            }
            Action::Probe { loss, damage } => Action::Probe { loss: self.luck(loss), damage: self.place(damage) },
            other => other,
        }
    }

    fn renewed<F: Faults>(&mut self, request: Request, world: &World<F>) -> Request {
        match request {
            // Now and then a producer sends the very same again.
            Request::Produce(new_message) if self.source.one_in(4) => Request::Produce(new_message),
            Request::Produce(new_message) => Request::Produce(self.new_message(new_message, world)),
            Request::Ack(delivery) => Request::Ack(self.delivery_ref(delivery, world)),
            Request::Nack { delivery, reason, delay_ms } => {
                Request::Nack { delivery: self.delivery_ref(delivery, world), reason, delay_ms }
            }
            Request::Extend { delivery, lease_ms } => {
                Request::Extend { delivery: self.delivery_ref(delivery, world), lease_ms }
            }
            Request::Release(delivery) => Request::Release(self.delivery_ref(delivery, world)),
            Request::Complete { delivery, result, produce } => Request::Complete {
                delivery: self.delivery_ref(delivery, world),
                result,
                produce: produce.into_iter().map(|new_message| self.new_message(new_message, world)).collect(),
            },
            Request::BeginEffect(begin) => {
                let delivery = begin.delivery.map(|delivery| self.delivery_ref(delivery, world));
                let expires_at = begin.expires_at.map(|_| world.elapsed() + self.source.below(3_000));
                Request::BeginEffect(EffectBegin { delivery, expires_at, ..begin })
            }
            other => other,
        }
    }

    /// A message like that one, which nobody has sent before.
    fn new_message<F: Faults>(&mut self, mut new_message: NewMessage, world: &World<F>) -> NewMessage {
        new_message.message = Message(self.next_message);
        self.next_message += 1;
        new_message.deliver_at = new_message.deliver_at.map(|_| world.elapsed() + self.source.below(2_000));
        new_message.deadline = new_message.deadline.map(|_| world.elapsed() + self.source.below(4_000));
        new_message
    }

    /// The same worker speaks by a delivery that it has read: by the newest, or by any.
    fn delivery_ref<F: Faults>(&mut self, before: DeliveryRef, world: &World<F>) -> DeliveryRef {
        let read: Vec<_> = world.network().read_by(before.worker).collect();
        let nth = if self.source.one_in(2) { 0 } else { self.source.below(read.len() as u64) as usize };
        match read.get(nth) {
            Some(held) => DeliveryRef { tampering: before.tampering, ..delivery_ref(before.worker, held, world) },
            None => before,
        }
    }

    fn luck(&mut self, loss: Loss) -> Loss {
        match loss {
            Loss::Partial { .. } => Loss::Partial { seed: self.source.below(1 << 20) as u32 },
            other => other,
        }
    }

    /// The same kind of damage, somewhere.
    fn place(&mut self, damage: Damage) -> Damage {
        let mut any = || self.source.below(1 << 30) as u32;
        match damage {
            Damage::Flip { .. } => Damage::Flip { bit: any() },
            Damage::Zero { .. } => Damage::Zero { sector: any() },
            Damage::Misdirect { .. } => Damage::Misdirect { from: any(), to: any() },
            Damage::Unreadable { .. } => Damage::Unreadable { sector: any() },
        }
    }
}

/// How a future went.
#[derive(Clone, Debug)]
pub struct Lived {
    /// What happened in it, up to its end or the violation.
    pub actions: Vec<Action>,
    /// The promise that was broken, by the last of the steps.
    pub violation: Option<Violation>,
}

/// Goes on from a world with whatever `next` says, until it says nothing or a promise is broken.
pub fn go_on<F: Faults>(world: &World<F>, mut next: impl FnMut(&World<F>) -> Option<Action>) -> Lived {
    let mut actions = Vec::new();
    let lived = panic_capture::catch(|| {
        let mut world = world.clone();
        while let Some(action) = next(&world) {
            actions.push(action);
            if let Some(action) = actions.last() {
                world.apply(action)?;
            }
        }
        Ok(())
    });
    let violation = lived.map_err(|said| catalog::NEVER_PANICS.violated_by(said)).and_then(|verdict| verdict).err();
    Lived { actions, violation }
}
