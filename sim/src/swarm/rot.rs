//! Sectors that rot under live payloads, in every sixth world.

use super::profile::Profile;
use super::random::{Source, Stream};
use crate::actions::Action;
use crate::setup::Setup;

/// Draws what rots.
#[derive(Debug)]
pub(super) struct Rot {
    source: Source,
    /// One in so many actions of a running broker; `None` in a world without rot.
    every: Option<u64>,
}

impl Rot {
    pub(super) fn new(seed: u64, profile: Profile) -> Self {
        let mut source = Source::new(seed, Stream::Rot);
        let rots = source.one_in(6) && profile != Profile::Weeks;
        let every = rots.then(|| source.pick(&[15, 40, 150]));
        Self { source, every }
    }

    /// A world with rot reads nearly every payload: to deliver it, to clean its segment, or to look for damage.
    pub(super) fn setup(&mut self, drawn: Setup) -> Setup {
        if self.every.is_none() {
            return drawn;
        }
        let memory_bytes = self.source.pick(&[Some(0), Some(0), Some(300), drawn.memory_bytes]);
        let scrub_ms = self.source.pick(&[None, Some(3_000), Some(3_000), Some(40_000)]);
        Setup { rots: true, memory_bytes, scrub_ms, ..drawn }
    }

    pub(super) fn next(&mut self) -> Option<Action> {
        let is_due = self.every.is_some_and(|every| self.source.one_in(every));
        is_due.then(|| Action::Rot { payload: self.source.below(256) as u8, bit: self.source.below(1 << 16) as u16 })
    }
}
