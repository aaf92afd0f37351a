//! A world, and what has been used up on the way to it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use driftq_core::faults::Faults;

use super::transitions::{Transition, prologue};
use super::{Size, setup};
use crate::actions::Action;
use crate::invariants::{Verdict, Violation};
use crate::names::Worker;
use crate::panic_capture;
use crate::run::never_panics;
use crate::world::{Checks, Fingerprint, World};

/// Where a way has led to.
#[derive(Clone)]
pub(super) struct SearchState<F: Faults> {
    pub(super) world: World<F>,
    pub(super) size: Size,
    pub(super) budget: Budget,
}

/// What can be done only so often, and how often it was. A world in which everything can be done for ever has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Messages that were sent, once at least.
    sent: BTreeSet<u8>,
    /// How many workers have connected, once at least.
    come: u8,
    left: BTreeSet<u8>,
    crashes: u8,
}

impl Budget {
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

    fn spend(&mut self, taken: Transition) {
        match taken {
            Transition::Produce(nth) => drop(self.sent.insert(nth)),
            Transition::Subscribe(nth) => self.come = self.come.max(nth + 1),
            Transition::Leave(nth) => drop(self.left.insert(nth)),
            Transition::Crash(_) => self.crashes += 1,
            Transition::Say { .. } | Transition::Io(_) | Transition::Pass(_) | Transition::Wake => {}
        }
    }
}

impl<F: Faults> SearchState<F> {
    /// The beginning of every way.
    pub(super) fn beginning(size: Size, faults: F, checks: Checks) -> Result<Self, Violation> {
        let mut world = World::new(&setup(), faults, checks)?;
        prologue().iter().try_for_each(|action| world.apply(action))?;
        world.forget_history();
        Ok(Self { world, size, budget: Budget::default() })
    }

    /// Makes a move, after which workers read what they were sent. That is theirs alone to notice, so it makes no difference to
    /// anybody when they do, and it is no move of its own.
    pub(super) fn go(&mut self, taken: Transition) -> Verdict {
        self.tell(taken, |_| {})
    }

    /// Makes a move, and tells its steps.
    pub(super) fn tell(&mut self, taken: Transition, mut told: impl FnMut(&Action)) -> Verdict {
        self.budget.spend(taken);
        self.run_actions(taken.actions().inspect(&mut told))?;
        while let Some(read) = self.unread() {
            self.run_actions(std::iter::once(read).inspect(&mut told))?;
        }
        self.world.forget_history();
        Ok(())
    }

    fn unread(&self) -> Option<Action> {
        let unread = |worker: &Worker| self.world.network().unread(*worker) > 0;
        let worker = (0..self.size.consumers).map(Worker).find(unread)?;
        Some(Action::Read { worker, count: self.world.network().unread(worker) as u8 })
    }

    /// Lives some steps.
    pub(super) fn run_actions(&mut self, mut actions: impl Iterator<Item = Action>) -> Verdict {
        let lived = panic_capture::catch(|| actions.try_for_each(|action| self.world.apply(&action)));
        lived.map_err(never_panics).and_then(|verdict| verdict)
    }

    /// What a start would make of it if the power went now.
    pub(super) fn survives(&self) -> Verdict {
        panic_capture::catch(|| self.world.check_recovery()).map_err(never_panics).and_then(|verdict| verdict)
    }

    /// What there is to know, as a number.
    pub(super) fn fingerprint(&self, paper: &mut Vec<u8>) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        self.budget.hash(&mut hasher);
        self.world.fingerprint(paper).with(hasher.finish())
    }
}
