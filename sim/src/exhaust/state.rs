//! A state of the search: a world and the limited transitions already taken.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use driftq_core::faults::Faults;

use super::transitions::{SettleOp, Transition, has_identity, setup_actions};
use super::{Size, setup};
use crate::actions::{Action, JobClass, Loss};
use crate::invariants::{Verdict, Violation};
use crate::names::{Message, Worker};
use crate::panic_capture;
use crate::run::never_panics;
use crate::world::{Checks, Fingerprint, World};

/// A state of the search.
#[derive(Clone)]
pub(super) struct SearchState<F: Faults> {
    pub(super) world: World<F>,
    pub(super) size: Size,
    pub(super) budget: Budget,
}

/// Transitions that may be taken a limited number of times. Without limits the search would not end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Messages sent at least once.
    sent: BTreeSet<u8>,
    /// How many workers have subscribed at least once.
    subscribed: u8,
    unsubscribed: BTreeSet<u8>,
    crashes: u8,
}

impl Budget {
    pub(super) fn has_sent(&self, message: u8) -> bool {
        self.sent.contains(&message)
    }

    pub(super) fn has_subscribed(&self, worker: u8) -> bool {
        worker < self.subscribed
    }

    pub(super) fn has_unsubscribed(&self, worker: u8) -> bool {
        self.unsubscribed.contains(&worker)
    }

    pub(super) fn crashes(&self) -> u8 {
        self.crashes
    }

    fn spend(&mut self, transition: Transition) {
        match transition {
            Transition::Produce(nth) => drop(self.sent.insert(nth)),
            Transition::Subscribe(nth) => self.subscribed = self.subscribed.max(nth + 1),
            Transition::Unsubscribe(nth) => drop(self.unsubscribed.insert(nth)),
            Transition::Crash(_) => self.crashes += 1,
            Transition::Settle { .. }
            | Transition::Io(_)
            | Transition::Batch
            | Transition::AdvanceTime(_)
            | Transition::Wake => {}
        }
    }
}

impl<F: Faults> SearchState<F> {
    /// The initial state.
    pub(super) fn initial(size: Size, faults: F, checks: Checks) -> Result<Self, Violation> {
        let mut world = World::new(&setup(), faults, checks)?;
        setup_actions().iter().try_for_each(|action| world.apply(action))?;
        world.forget_history();
        Ok(Self { world, size, budget: Budget::default() })
    }

    /// The transitions from here. Some may change nothing.
    pub(super) fn transitions(&self) -> Vec<Transition> {
        let (world, budget) = (&self.world, &self.budget);
        let network = world.network();
        let mut transitions = Vec::new();
        for nth in 0..self.size.messages {
            // A producer waits for the reply, and sends again only a message with an identity.
            let may_repeat = !self.size.batches && has_identity(nth);
            if !budget.has_sent(nth) || may_repeat && !world.is_producing(Message(u32::from(nth))) {
                transitions.push(Transition::Produce(nth));
            }
        }
        for nth in 0..self.size.consumers {
            let worker = Worker(nth);
            if !network.is_connected(worker) {
                // Workers are interchangeable, so they subscribe in order.
                if nth == 0 || budget.has_subscribed(nth - 1) {
                    transitions.push(Transition::Subscribe(nth));
                }
            } else if !self.size.batches && network.stream_of(worker).is_some() && !budget.has_unsubscribed(nth) {
                transitions.push(Transition::Unsubscribe(nth));
            }
            if world.is_claiming(&worker.name()) {
                continue;
            }
            for message in 0..self.size.messages {
                let count = network.read_by(worker).filter(|held| held.message.0 == u32::from(message)).count();
                for back in 0..count as u8 {
                    transitions.extend(SettleOp::ALL.map(|op| Transition::Settle { worker: nth, message, back, op }));
                }
            }
        }
        let may_crash = budget.crashes() < self.size.crashes;
        transitions.push(if self.size.batches { Transition::Batch } else { Transition::Io(JobClass::Log) });
        if may_crash && !self.size.batches {
            // Only recovery depends on how far the preallocation of a segment is.
            transitions.push(Transition::Io(JobClass::Background));
        }
        match world.until_timeout() {
            Some(0) => transitions.push(Transition::Wake),
            Some(wait) => transitions.extend(u32::try_from(wait).ok().map(Transition::AdvanceTime)),
            None => {}
        }
        if may_crash {
            let unsynced_len = world.disk().unsynced_len() as u32;
            transitions.extend((0..=unsynced_len).map(|bytes| Transition::Crash(Loss::Cut { bytes })));
            if unsynced_len > 0 {
                transitions.push(Transition::Crash(Loss::Nothing));
            }
        }
        transitions
    }

    /// Takes a transition, after which workers read their deliveries. The broker does not observe reads, so their
    /// time does not matter and they are not transitions.
    pub(super) fn apply(&mut self, transition: Transition) -> Verdict {
        self.apply_recorded(transition, |_| {})
    }

    /// Takes a transition and passes its actions to `record`.
    pub(super) fn apply_recorded(&mut self, transition: Transition, mut record: impl FnMut(&Action)) -> Verdict {
        self.budget.spend(transition);
        self.run_actions(transition.actions().inspect(&mut record))?;
        while transition == Transition::Batch && self.world.is_busy(JobClass::Log) {
            self.run_actions(transition.actions().inspect(&mut record))?;
        }
        while let Some(read) = self.next_read() {
            self.run_actions(std::iter::once(read).inspect(&mut record))?;
        }
        self.world.forget_history();
        panic_capture::catch(|| self.world.assert_searchable()).map_err(never_panics)
    }

    fn next_read(&self) -> Option<Action> {
        let unread = |worker: &Worker| self.world.network().unread(*worker) > 0;
        let worker = (0..self.size.consumers).map(Worker).find(unread)?;
        Some(Action::Read { worker, count: self.world.network().unread(worker) as u8 })
    }

    /// Executes actions.
    pub(super) fn run_actions(&mut self, mut actions: impl Iterator<Item = Action>) -> Verdict {
        let result = panic_capture::catch(|| actions.try_for_each(|action| self.world.apply(&action)));
        result.map_err(never_panics).and_then(|verdict| verdict)
    }

    /// Checks what recovery would find after a crash now.
    pub(super) fn check_recovery(&self) -> Verdict {
        panic_capture::catch(|| self.world.check_recovery()).map_err(never_panics).and_then(|verdict| verdict)
    }

    /// The fingerprint of the world and the budget.
    pub(super) fn fingerprint(&self, buffer: &mut Vec<u8>) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        self.budget.hash(&mut hasher);
        self.world.fingerprint(buffer).with(hasher.finish())
    }
}
