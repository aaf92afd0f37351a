//! Exhaustive search: all runs of a small world, up to a number of transitions.
//!
//! A few messages, a few workers, a crash. The search is breadth-first, so a violation is found by a shortest path.
//! From every state every [transition](Transition) that changes something is taken; states with the same
//! [fingerprint](crate::world::Fingerprint) are explored once. A crash happens in every state at every byte of the
//! unsynced data, each followed by a start with all checks. No random numbers are drawn: the same plan gives the same
//! counts, on any number of threads.
//!
//! [`crash_in_relocation`] follows one path that is longer than a search gets, and crashes at every byte of it.

mod relocation;
mod search;
mod state;
mod transitions;

use std::num::NonZeroUsize;
use std::time::Duration;

use driftq_core::faults::{NoFaults, Planted};

pub use self::relocation::{RelocationCrashes, crash_in_relocation};
pub use self::transitions::{SettleOp, Transition};
use crate::coverage::Coverage;
use crate::run::{Run, RunOptions};
use crate::setup::Setup;

/// The size of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Messages to produce.
    pub messages: u8,
    /// Workers.
    pub consumers: u8,
    /// Crashes per run.
    pub crashes: u8,
    /// A batch of the log is written by one transition, a message is sent once and no worker leaves. A run so long that
    /// a lease is extended and a message fails twice is then within reach.
    pub batches: bool,
}

impl Default for Size {
    fn default() -> Self {
        Self { messages: 2, consumers: 2, crashes: 1, batches: false }
    }
}

/// What to search.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The world.
    pub size: Size,
    /// The most transitions from the initial state.
    pub depth: u32,
    /// The number of threads.
    pub jobs: NonZeroUsize,
    /// The planted bug and the active checkers.
    pub options: RunOptions,
}

/// What was found at one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// States not found at a lower depth.
    pub states: u64,
    /// Transitions that lead here, each from another state or of another kind.
    pub transitions: u64,
    /// Those of them that are a crash and a start.
    pub crashes: u64,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// By depth; the first is the initial state.
    pub levels: Vec<Level>,
    /// States in which a crash happened.
    pub crash_states: u64,
    /// States from which everything was drained.
    pub drained: u64,
    /// What happened on the way to the expanded states.
    pub coverage: Coverage,
    /// The run that violated an invariant, by a shortest path.
    pub failure: Option<Run>,
    /// All reachable states were explored within the depth.
    pub is_complete: bool,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl Summary {
    /// The number of states.
    #[must_use]
    pub fn states(&self) -> u64 {
        self.levels.iter().map(|level| level.states).sum()
    }

    /// The number of transitions.
    #[must_use]
    pub fn transitions(&self) -> u64 {
        self.levels.iter().map(|level| level.transitions).sum()
    }

    /// The number of transitions that are a crash and a start.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.levels.iter().map(|level| level.crashes).sum()
    }

    /// The depth reached.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.levels.len().saturating_sub(1)
    }
}

/// Searches. `watch` is called from time to time.
pub fn exhaust(plan: &Plan, watch: impl FnMut(&Summary)) -> Summary {
    match plan.options.fault {
        None => search::search(plan, NoFaults, watch),
        Some(fault) => search::search(plan, Planted(fault), watch),
    }
}

/// The limits of the world.
///
/// Leases are shorter than the interval after which an idle log writes a mark, so that they can expire first. A segment
/// is just long enough, since every recovery reads all of it; its header takes half.
#[must_use]
pub fn setup() -> Setup {
    Setup { lease_ms: 50, segment_bytes: 8_192, reserve_bytes: 256, ..Setup::default() }
}
