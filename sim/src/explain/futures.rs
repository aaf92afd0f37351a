//! What could come next. A future goes on from a clone of a world: partly with what is still to come in the trace, partly with
//! steps like those of the trace, drawn anew. Nothing happens in it that could not have happened in the trace: the same topics,
//! groups and workers, the same kinds of calls and faults, about as often.

use std::collections::VecDeque;

use driftq_core::faults::Faults;

use crate::hush;
use crate::invariants::{Violation, laws};
use crate::names::{Call, Message};
use crate::shrink::json;
use crate::steps::{Ask, Beginning, Damage, Loss, Made, Right, Step};
use crate::swarm::draw::{Source, Stream};
use crate::swarm::right;
use crate::world::World;

/// How many steps a future has before everything is drained: as many as the trace had left, but no fewer and no more than these.
/// One that went on for long would find its own way into the same trouble, and say nothing about the steps before it.
const STEPS: std::ops::RangeInclusive<usize> = 16..=256;
/// Of so many futures the first knows nothing of what the trace still had in store, and the last hardly anything else.
const LOYALTIES: u64 = 8;

/// What the futures of one trace are drawn from.
#[derive(Clone, Debug)]
pub struct Deck<'a> {
    steps: &'a [Step],
    /// What can be drawn at any moment. Every future ends with a drain, so none is drawn.
    alike: Vec<&'a Step>,
    next_message: u32,
    next_call: u32,
}

impl<'a> Deck<'a> {
    /// The steps of a trace, as a source of others.
    #[must_use]
    pub fn new(steps: &'a [Step]) -> Self {
        // Whatever is new must not have the name of something old.
        let next = |kind: char| {
            let named = |step: &Step| json::subjects(&json::of(step));
            let names = steps.iter().flat_map(named);
            let numbers =
                names.filter_map(|name| json::name(&name).filter(|(_, found, _)| *found == kind).map(|n| n.2));
            numbers.max().map_or(0, |most| most.saturating_add(1))
        };
        let alike = steps.iter().filter(|step| **step != Step::Drain).collect();
        Self { steps, alike, next_message: next('m'), next_call: next('c') }
    }

    /// The future of that number after so many steps of the trace: the same one every time.
    #[must_use]
    pub fn future(&self, number: u64, after: usize) -> Future<'_> {
        let coming: VecDeque<&Step> = self.steps[after..].iter().filter(|step| **step != Step::Drain).collect();
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
    coming: VecDeque<&'a Step>,
    alike: &'a [&'a Step],
    next_message: u32,
    next_call: u32,
    drained: bool,
}

impl Future<'_> {
    /// What happens next in that world; nothing when it is over.
    pub fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Step> {
        if self.left == 0 {
            return (!std::mem::replace(&mut self.drained, true)).then_some(Step::Drain);
        }
        self.left -= 1;
        if self.source.below(LOYALTIES) < self.loyalty
            && let Some(step) = self.coming()
        {
            return Some(step);
        }
        Some(self.fresh(world))
    }

    /// What the trace has in store: mostly as it stands there, sometimes later, sometimes never.
    fn coming(&mut self) -> Option<Step> {
        let mut step = self.coming.pop_front()?;
        match self.source.below(8) {
            0 => step = self.coming.pop_front()?,
            1 if !self.coming.is_empty() => {
                let later = self.source.below(self.coming.len() as u64) as usize;
                std::mem::swap(&mut step, &mut self.coming[later]);
            }
            _ => {}
        }
        Some(step.clone())
    }

    /// Something like what happens in the trace, where it makes sense now.
    fn fresh<F: Faults>(&mut self, world: &World<F>) -> Step {
        // A broker that is down stays down only for a while, whether or not the trace has a start in store.
        if !world.is_serving() && self.source.one_in(2) {
            return if world.broker().is_some() { Step::Crash { loss: Loss::Nothing } } else { Step::Boot };
        }
        let nth = self.source.below(self.alike.len() as u64) as usize;
        let Some(step) = self.alike.get(nth).map(|step| (*step).clone()) else { return Step::Wake };
        match step {
            Step::Ask(ask) => Step::Ask(self.renewed(ask, world)),
            Step::Send { ask, .. } => {
                let call = Call(self.next_call);
                self.next_call += 1;
                Step::Send { call, ask: self.renewed(ask, world) }
            }
            Step::Arrive { call } => {
                let calls: Vec<Call> = world.edge().under_way().collect();
                Step::Arrive { call: if calls.is_empty() { call } else { self.source.pick(&calls) } }
            }
            Step::Pass { ms } => match world.until_timeout() {
                // As long as the broker waits for, which is when something happens.
                Some(due) if self.source.one_in(2) => Step::Pass { ms: due.clamp(1, 30_000) as u32 },
                _ => Step::Pass { ms },
            },
            Step::Crash { loss } => Step::Crash { loss: self.luck(loss) },
            Step::BootAndCrash { after, loss } => {
                let after = if self.source.one_in(2) { self.source.below(9) as u8 } else { after };
                Step::BootAndCrash { after, loss: self.luck(loss) }
            }
            Step::Probe { loss, damage } => Step::Probe { loss: self.luck(loss), damage: self.place(damage) },
            other => other,
        }
    }

    fn renewed<F: Faults>(&mut self, ask: Ask, world: &World<F>) -> Ask {
        match ask {
            // Now and then a producer sends the very same again.
            Ask::Produce(made) if self.source.one_in(4) => Ask::Produce(made),
            Ask::Produce(made) => Ask::Produce(self.made(made, world)),
            Ask::Ack(right) => Ask::Ack(self.right(right, world)),
            Ask::Nack { right, reason, delay_ms } => Ask::Nack { right: self.right(right, world), reason, delay_ms },
            Ask::Extend { right, lease_ms } => Ask::Extend { right: self.right(right, world), lease_ms },
            Ask::Release(right) => Ask::Release(self.right(right, world)),
            Ask::Complete { right, result, produce } => Ask::Complete {
                right: self.right(right, world),
                result,
                produce: produce.into_iter().map(|made| self.made(made, world)).collect(),
            },
            Ask::Begin(begin) => {
                let delivery = begin.delivery.map(|right| self.right(right, world));
                let expires_at = begin.expires_at.map(|_| world.elapsed() + self.source.below(3_000));
                Ask::Begin(Beginning { delivery, expires_at, ..begin })
            }
            other => other,
        }
    }

    /// A message like that one, which nobody has sent before.
    fn made<F: Faults>(&mut self, mut made: Made, world: &World<F>) -> Made {
        made.message = Message(self.next_message);
        self.next_message += 1;
        made.deliver_at = made.deliver_at.map(|_| world.elapsed() + self.source.below(2_000));
        made.deadline = made.deadline.map(|_| world.elapsed() + self.source.below(4_000));
        made
    }

    /// The same worker speaks by a delivery that it has read: by the newest, or by any.
    fn right<F: Faults>(&mut self, before: Right, world: &World<F>) -> Right {
        let read: Vec<_> = world.edge().read_by(before.worker).collect();
        let nth = if self.source.one_in(2) { 0 } else { self.source.below(read.len() as u64) as usize };
        match read.get(nth) {
            Some(held) => Right { twist: before.twist, ..right(before.worker, held, world) },
            None => before,
        }
    }

    fn luck(&mut self, loss: Loss) -> Loss {
        match loss {
            Loss::Some { .. } => Loss::Some { luck: self.source.below(1 << 20) as u32 },
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
    pub steps: Vec<Step>,
    /// The promise that was broken, by the last of the steps.
    pub violation: Option<Violation>,
}

/// Goes on from a world with whatever `next` says, until it says nothing or a promise is broken.
pub fn go_on<F: Faults>(world: &World<F>, mut next: impl FnMut(&World<F>) -> Option<Step>) -> Lived {
    let mut steps = Vec::new();
    let lived = hush::catch(|| {
        let mut world = world.clone();
        while let Some(step) = next(&world) {
            steps.push(step);
            if let Some(step) = steps.last() {
                world.take(step)?;
            }
        }
        Ok(())
    });
    let violation = lived.map_err(|said| laws::NEVER_PANICS.broken(said)).and_then(|verdict| verdict).err();
    Lived { steps, violation }
}
