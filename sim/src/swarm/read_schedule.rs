//! When reads of payloads are performed: at once or late, in order or not, with passing faults.

use driftq_core::faults::Faults;

use super::profile::Profile;
use super::random::{Source, Stream};
use crate::actions::{Action, ReadFault};
use crate::world::World;

/// How the reads of a world go. Each draw is of one in so many.
#[derive(Debug)]
pub(super) struct ReadSchedule {
    source: Source,
    are_steps: bool,
    /// Actions per step of a read, while one is under way.
    every: u64,
    faults: Option<u64>,
    late: Option<u64>,
    stalls: Option<u64>,
    /// For how many more actions nothing is read.
    stalled: u32,
}

impl ReadSchedule {
    pub(super) fn new(seed: u64, profile: Profile) -> Self {
        let mut source = Source::new(seed, Stream::Reads);
        let are_steps = !source.one_in(4);
        let every = source.pick(&[1, 2, 4, 12]);
        let faults = source.one_in(2).then(|| source.pick(&[2, 6, 20]));
        let late = source.one_in(2).then(|| source.pick(&[2, 5]));
        let stalls = source.one_in(3).then(|| source.pick(&[20, 80]));
        let faults = faults.filter(|_| profile != Profile::Weeks);
        Self { source, are_steps, every, faults, late, stalls, stalled: 0 }
    }

    /// Whether reads are steps of their own.
    pub(super) fn are_steps(&self) -> bool {
        self.are_steps
    }

    /// The next step of a read, if one is under way and it is its turn.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let (planned, performed) = world.reads_under_way();
        if planned + performed == 0 {
            return None;
        }
        if self.stalled > 0 {
            self.stalled -= 1;
            return None;
        }
        if let Some(times) = self.stalls
            && self.source.one_in(times)
        {
            self.stalled = 5 + self.source.below(40) as u32;
            return None;
        }
        if !self.source.one_in(self.every) {
            return None;
        }
        let nth = if self.source.one_in(2) { 0 } else { self.source.below(4) as u8 };
        if performed > 0 && (planned == 0 || self.source.one_in(2)) {
            return Some(Action::CompleteRead { nth });
        }
        let fault = self.faults.filter(|times| self.source.one_in(*times)).map(|_| self.fault());
        let late = self.late.is_some_and(|times| self.source.one_in(times));
        Some(Action::PerformRead { nth, fault, late })
    }

    fn fault(&mut self) -> ReadFault {
        match self.source.below(4) {
            0 => ReadFault::Fail,
            1 => ReadFault::Short { bytes: self.source.below(2_000) as u16 },
            _ => ReadFault::Flip { bit: self.source.below(1 << 16) as u16 },
        }
    }
}
