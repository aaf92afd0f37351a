//! One run of a world, from a seed or a trace to a verdict.

use std::path::Path;

use driftq_core::faults::{Fault, Faults, NoFaults, Planted};

use crate::actions::Action;
use crate::coverage::Coverage;
use crate::digest_chain::DigestChain;
use crate::disk::Disk;
use crate::file_disk::{FileDisk, FileDiskError};
use crate::invariants::{Verdict, Violation, catalog};
use crate::panic_capture;
use crate::setup::Setup;
use crate::sim_storage::SimStorage;
use crate::swarm::{Profile, Swarm};
use crate::world::{Checks, Counters, World};

/// How a run is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The bug planted in the broker, if any.
    pub fault: Option<Fault>,
    /// Which checkers are active.
    pub checks: Checks,
    /// The workload profile of a run generated from a seed.
    pub profile: Profile,
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The limits of its world.
    pub setup: Setup,
    /// The executed actions, up to the end or the violation.
    pub actions: Vec<Action>,
    /// The invariant violated by the last action.
    pub violation: Option<Violation>,
    /// The digest chain of all outputs.
    pub chain: DigestChain,
    /// What was executed.
    pub counters: Counters,
    /// Which coverage points were hit.
    pub coverage: Coverage,
}

/// Runs a seed.
#[must_use]
pub fn run_seed(seed: u64, options: RunOptions) -> Run {
    match options.fault {
        None => run_seed_with(seed, NoFaults, options),
        Some(fault) => run_seed_with(seed, Planted(fault), options),
    }
}

/// Replays recorded actions.
#[must_use]
pub fn replay(setup: &Setup, actions: &[Action], options: RunOptions) -> Run {
    match options.fault {
        None => replay_with(setup, actions, NoFaults, options.checks),
        Some(fault) => replay_with(setup, actions, Planted(fault), options.checks),
    }
}

/// Replays recorded actions on the server's own file storage, in a directory that is created or is empty. The files are
/// kept.
///
/// # Errors
/// [`FileDiskError`] if the directory cannot be used or the files behave differently from the simulated disk.
pub fn replay_on_files(
    setup: &Setup,
    actions: &[Action],
    options: RunOptions,
    folder: &Path,
) -> Result<Run, FileDiskError> {
    let disk = FileDisk::new(folder, setup.shows_given_up)?;
    let difference = disk.difference();
    let mut actions = actions.iter();
    let run = match options.fault {
        None => execute(disk, setup, NoFaults, options.checks, |_| actions.next().cloned()),
        Some(fault) => execute(disk, setup, Planted(fault), options.checks, |_| actions.next().cloned()),
    };
    match difference.found() {
        Some(found) => Err(FileDiskError::Differ(found.to_owned())),
        None => Ok(run),
    }
}

fn run_seed_with<F: Faults>(seed: u64, faults: F, RunOptions { checks, profile, .. }: RunOptions) -> Run {
    let mut swarm = Swarm::new(seed, profile);
    let setup = swarm.setup().clone();
    let mut left = swarm.actions();
    let mut drained = false;
    execute(Disk::new(setup.shows_given_up), &setup, faults, checks, |world| {
        if left > 0 {
            left -= 1;
            return Some(swarm.next(world));
        }
        (!std::mem::replace(&mut drained, true)).then_some(Action::Drain)
    })
}

fn replay_with<F: Faults>(setup: &Setup, actions: &[Action], faults: F, checks: Checks) -> Run {
    let mut actions = actions.iter();
    execute(Disk::new(setup.shows_given_up), setup, faults, checks, |_| actions.next().cloned())
}

fn execute<F: Faults, S: SimStorage>(
    disk: S,
    setup: &Setup,
    faults: F,
    checks: Checks,
    mut next: impl FnMut(&World<F, S>) -> Option<Action>,
) -> Run {
    let mut run = Run {
        setup: setup.clone(),
        actions: Vec::new(),
        violation: None,
        chain: DigestChain::default(),
        counters: Counters::default(),
        coverage: Coverage::default(),
    };
    let started = panic_capture::catch(|| World::with_storage(disk, setup, faults, checks)).map_err(never_panics);
    let mut world = match started.and_then(|started| started) {
        Ok(world) => world,
        Err(violation) => return Run { violation: Some(violation), ..run },
    };
    let result = panic_capture::catch(|| -> Verdict {
        while let Some(action) = next(&world) {
            run.actions.push(action);
            if let Some(action) = run.actions.last() {
                world.apply(action)?;
            }
        }
        Ok(())
    });
    run.violation = result.map_err(never_panics).and_then(|verdict| verdict).err();
    run.chain = world.chain();
    run.counters = world.counters();
    run.coverage = world.coverage();
    run
}

/// A panic of the broker, as a violation.
pub(crate) fn never_panics(message: String) -> Violation {
    catalog::NEVER_PANICS.violated_by(message)
}
