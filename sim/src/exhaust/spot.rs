//! A world, and what has been used up on the way to it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use driftq_core::faults::Faults;

use super::moves::{Move, prologue};
use super::{Size, setup};
use crate::hush;
use crate::invariants::{Verdict, Violation};
use crate::life::never_panics;
use crate::names::Worker;
use crate::steps::Step;
use crate::world::{Checks, Fingerprint, World};

/// Where a way has led to.
#[derive(Clone)]
pub(super) struct Spot<F: Faults> {
    pub(super) world: World<F>,
    pub(super) size: Size,
    pub(super) spent: Spent,
}

/// What can be done only so often, and how often it was. A world in which everything can be done for ever has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Spent {
    /// Messages that were sent, once at least.
    sent: BTreeSet<u8>,
    /// How many workers have connected, once at least.
    come: u8,
    left: BTreeSet<u8>,
    crashes: u8,
}

impl Spent {
    pub(super) fn has_sent(&self, message: u8) -> bool {
        self.sent.contains(&message)
    }

    pub(super) fn has_come(&self, worker: u8) -> bool {
        worker < self.come
    }

    pub(super) fn has_left(&self, worker: u8) -> bool {
        self.left.contains(&worker)
    }

    pub(super) fn crashes(&self) -> u8 {
        self.crashes
    }

    fn spend(&mut self, taken: Move) {
        match taken {
            Move::Produce(nth) => drop(self.sent.insert(nth)),
            Move::Subscribe(nth) => self.come = self.come.max(nth + 1),
            Move::Leave(nth) => drop(self.left.insert(nth)),
            Move::Crash(_) => self.crashes += 1,
            Move::Say { .. } | Move::Io(_) | Move::Pass(_) | Move::Wake => {}
        }
    }
}

impl<F: Faults> Spot<F> {
    /// The beginning of every way.
    pub(super) fn beginning(size: Size, faults: F, checks: Checks) -> Result<Self, Violation> {
        let mut world = World::new(&setup(), faults, checks)?;
        prologue().iter().try_for_each(|step| world.take(step))?;
        world.forget();
        Ok(Self { world, size, spent: Spent::default() })
    }

    /// Makes a move, after which workers read what they were sent. That is theirs alone to notice, so it makes no difference to
    /// anybody when they do, and it is no move of its own.
    pub(super) fn go(&mut self, taken: Move) -> Verdict {
        self.tell(taken, |_| {})
    }

    /// Makes a move, and tells its steps.
    pub(super) fn tell(&mut self, taken: Move, mut told: impl FnMut(&Step)) -> Verdict {
        self.spent.spend(taken);
        self.live(taken.steps().inspect(&mut told))?;
        while let Some(read) = self.unread() {
            self.live(std::iter::once(read).inspect(&mut told))?;
        }
        self.world.forget();
        Ok(())
    }

    fn unread(&self) -> Option<Step> {
        let unread = |worker: &Worker| self.world.edge().unread(*worker) > 0;
        let worker = (0..self.size.consumers).map(Worker).find(unread)?;
        Some(Step::Read { worker, count: self.world.edge().unread(worker) as u8 })
    }

    /// Lives some steps.
    pub(super) fn live(&mut self, mut steps: impl Iterator<Item = Step>) -> Verdict {
        let lived = hush::catch(|| steps.try_for_each(|step| self.world.take(&step)));
        lived.map_err(never_panics).and_then(|verdict| verdict)
    }

    /// What a start would make of it if the power went now.
    pub(super) fn survives(&self) -> Verdict {
        hush::catch(|| self.world.survives()).map_err(never_panics).and_then(|verdict| verdict)
    }

    /// What there is to know, as a number.
    pub(super) fn fingerprint(&self, paper: &mut Vec<u8>) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        self.spent.hash(&mut hasher);
        self.world.fingerprint(paper).with(hasher.finish())
    }
}
