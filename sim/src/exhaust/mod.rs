//! Small worlds, to the end: not some lives but all of them, up to so many steps.
//!
//! A few messages, a few workers, a crash. From every state every [move](Transition) that changes something is made, level by level, so
//! that what goes wrong is found by a shortest way. Where two ways meet, by [fingerprint](crate::world::Fingerprint), one is gone
//! on with. The crash comes at every state, and there at every byte of what was not synced, each followed by a start with all
//! its checks. Nothing is drawn: the same plan always counts the same, on any number of threads.

mod search;
mod state;
mod transitions;

use std::num::NonZeroUsize;
use std::time::Duration;

use driftq_core::faults::{NoFaults, Planted};

pub use self::transitions::{SettleOp, Transition};
use crate::run::{Run, RunOptions};
use crate::setup::Setup;

/// How small the world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// How many messages there are to produce.
    pub messages: u8,
    /// How many workers consume them.
    pub consumers: u8,
    /// How often the power goes.
    pub crashes: u8,
}

impl Default for Size {
    fn default() -> Self {
        Self { messages: 2, consumers: 2, crashes: 1 }
    }
}

/// What is to be searched.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The world.
    pub size: Size,
    /// How many moves away from the beginning.
    pub depth: u32,
    /// On how many threads.
    pub jobs: NonZeroUsize,
    /// What is planted, and who watches.
    pub options: RunOptions,
}

/// What was found so many moves away from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// States that were not met nearer to the beginning.
    pub states: u64,
    /// Moves that led here, each from another state or another move.
    pub transitions: u64,
    /// Those of them that were a crash and a start.
    pub crashes: u64,
}

/// What came of a search.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// By how many moves it takes; the first is the beginning.
    pub levels: Vec<Level>,
    /// States in which the power went.
    pub crash_states: u64,
    /// States from which everything was worked off.
    pub drained: u64,
    /// The life in which a promise was broken, by a shortest way there.
    pub failure: Option<Run>,
    /// No more than the plan's depth was left to search: the world has no more states.
    pub is_complete: bool,
    /// How long it took.
    pub elapsed: Duration,
}

impl Summary {
    /// How many states there are.
    #[must_use]
    pub fn states(&self) -> u64 {
        self.levels.iter().map(|level| level.states).sum()
    }

    /// How many moves were made.
    #[must_use]
    pub fn transitions(&self) -> u64 {
        self.levels.iter().map(|level| level.transitions).sum()
    }

    /// How many of them were a crash and a start.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.levels.iter().map(|level| level.crashes).sum()
    }

    /// How far it went.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.levels.len().saturating_sub(1)
    }
}

/// Searches. `watch` is told how far it is, now and then.
pub fn exhaust(plan: &Plan, watch: impl FnMut(&Summary)) -> Summary {
    match plan.options.fault {
        None => search::search(plan, NoFaults, watch),
        Some(fault) => search::search(plan, Planted(fault), watch),
    }
}

/// The limits of the world.
///
/// Leases are shorter than the time after which an idle log says so, so that they can end first. A segment is long enough for
/// everything and no longer, since every start reads all of it; its header takes half.
#[must_use]
pub fn setup() -> Setup {
    Setup { lease_ms: 50, segment_bytes: 8_192, reserve_bytes: 256, ..Setup::default() }
}
