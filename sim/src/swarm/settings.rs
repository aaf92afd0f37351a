//! Other configurations between two starts, in every second world.

use driftq_core::faults::Faults;

use super::limits;
use super::profile::Profile;
use super::random::{Source, Stream};
use crate::actions::{Action, Loss};
use crate::reconfiguration::Reconfiguration;
use crate::setup::Setup;
use crate::world::World;

/// One in so many actions of a running broker configures the next start.
const EVERY: u64 = 160;

/// Draws configurations.
#[derive(Debug)]
pub(super) struct Settings {
    /// `None` in a world whose configuration stays.
    source: Option<Source>,
    /// The restart that the last configuration needs.
    restart: Option<Action>,
}

impl Settings {
    pub(super) fn new(seed: u64, profile: Profile) -> Self {
        let mut source = Source::new(seed, Stream::Settings);
        let changes = source.one_in(2) && profile != Profile::Weeks;
        Self { source: changes.then_some(source), restart: None }
    }

    /// Another configuration, or the restart after it.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let source = self.source.as_mut()?;
        if let Some(restart) = self.restart.take().filter(|_| world.is_serving()) {
            return Some(restart);
        }
        let times = if world.broker().is_none() { 4 } else { EVERY };
        if !source.one_in(times) {
            return None;
        }
        self.restart = match source.below(4) {
            0 => None,
            1 => Some(Action::Crash { loss: Loss::Nothing }),
            _ => Some(Action::Close),
        };
        // The limits of another world, each in every second case.
        let other = source.below(1 << 32);
        let draw = |stream| Source::new(other, stream);
        let mut sources = [Stream::Shape, Stream::Effects, Stream::Bounds, Stream::Files, Stream::Work].map(draw);
        let [shape, effects, bounds, files, work] = &mut sources;
        let drawn = limits::setup(shape, effects, bounds, files, work);
        let Setup { memory_bytes, state_bytes_max, read_steps, clean_spare_segments, scrub_ms, rots, .. } =
            *world.next_setup();
        let drawn = Setup { read_ahead_bytes: world.next_setup().read_ahead_bytes, ..drawn };
        let kept = Setup { memory_bytes, state_bytes_max, read_steps, clean_spare_segments, scrub_ms, rots, ..drawn };
        let mut change = Reconfiguration::between(world.next_setup(), &kept);
        change.retain(|| source.one_in(2));
        Some(Action::Configure(change))
    }
}
