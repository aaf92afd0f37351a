//! A whole life of a world: from a seed or a trace to a verdict.

use std::path::Path;

use driftq_core::faults::{Fault, Faults, NoFaults, Planted};

use crate::chain::Chain;
use crate::disk::Disk;
use crate::hush;
use crate::invariants::{Verdict, Violation, laws};
use crate::medium::Medium;
use crate::real::{RealDisk, RealError};
use crate::setup::Setup;
use crate::sometimes::Sometimes;
use crate::steps::Step;
use crate::swarm::{Profile, Swarm};
use crate::world::{Checks, Tally, World};

/// How a life is lived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The bug planted in the broker, if any.
    pub fault: Option<Fault>,
    /// Who watches.
    pub checks: Checks,
    /// What is in fashion, where a life is drawn from a seed.
    pub profile: Profile,
}

/// What a life was like.
#[derive(Clone, Debug)]
pub struct Life {
    /// The sizes and limits of its world.
    pub setup: Setup,
    /// What happened, up to the end or the violation.
    pub steps: Vec<Step>,
    /// The promise that was broken, by the last of the steps.
    pub violation: Option<Violation>,
    /// Everything that came out, as a number.
    pub chain: Chain,
    /// What was done.
    pub tally: Tally,
    /// What was met.
    pub sometimes: Sometimes,
}

/// Lives the life that belongs to a seed.
#[must_use]
pub fn live(seed: u64, conditions: Conditions) -> Life {
    match conditions.fault {
        None => live_with(seed, NoFaults, conditions),
        Some(fault) => live_with(seed, Planted(fault), conditions),
    }
}

/// Lives a life that was written down.
#[must_use]
pub fn relive(setup: &Setup, steps: &[Step], conditions: Conditions) -> Life {
    match conditions.fault {
        None => relive_with(setup, steps, NoFaults, conditions.checks),
        Some(fault) => relive_with(setup, steps, Planted(fault), conditions.checks),
    }
}

/// Lives a life that was written down once more, on the server's own files in a folder that is made for it or is empty. The files
/// stay there.
///
/// # Errors
/// [`RealError`] if the folder cannot be used, or if the files behaved otherwise than the simulated disk.
pub fn relive_on_files(
    setup: &Setup,
    steps: &[Step],
    conditions: Conditions,
    folder: &Path,
) -> Result<Life, RealError> {
    let disk = RealDisk::new(folder, setup.shows_given_up)?;
    let difference = disk.difference();
    let mut steps = steps.iter();
    let life = match conditions.fault {
        None => run(disk, setup, NoFaults, conditions.checks, |_| steps.next().cloned()),
        Some(fault) => run(disk, setup, Planted(fault), conditions.checks, |_| steps.next().cloned()),
    };
    match difference.told() {
        Some(told) => Err(RealError::Differ(told.to_owned())),
        None => Ok(life),
    }
}

fn live_with<F: Faults>(seed: u64, faults: F, Conditions { checks, profile, .. }: Conditions) -> Life {
    let mut swarm = Swarm::new(seed, profile);
    let setup = swarm.setup().clone();
    let mut left = swarm.steps();
    let mut drained = false;
    run(Disk::new(setup.shows_given_up), &setup, faults, checks, |world| {
        if left > 0 {
            left -= 1;
            return Some(swarm.next(world));
        }
        (!std::mem::replace(&mut drained, true)).then_some(Step::Drain)
    })
}

fn relive_with<F: Faults>(setup: &Setup, steps: &[Step], faults: F, checks: Checks) -> Life {
    let mut steps = steps.iter();
    run(Disk::new(setup.shows_given_up), setup, faults, checks, |_| steps.next().cloned())
}

fn run<F: Faults, M: Medium>(
    disk: M,
    setup: &Setup,
    faults: F,
    checks: Checks,
    mut next: impl FnMut(&World<F, M>) -> Option<Step>,
) -> Life {
    let mut life = Life {
        setup: setup.clone(),
        steps: Vec::new(),
        violation: None,
        chain: Chain::default(),
        tally: Tally::default(),
        sometimes: Sometimes::default(),
    };
    let begun = hush::catch(|| World::over(disk, setup, faults, checks)).map_err(never_panics);
    let mut world = match begun.and_then(|begun| begun) {
        Ok(world) => world,
        Err(violation) => return Life { violation: Some(violation), ..life },
    };
    let lived = hush::catch(|| -> Verdict {
        while let Some(step) = next(&world) {
            life.steps.push(step);
            if let Some(step) = life.steps.last() {
                world.take(step)?;
            }
        }
        Ok(())
    });
    life.violation = lived.map_err(never_panics).and_then(|verdict| verdict).err();
    life.chain = world.chain();
    life.tally = world.tally();
    life.sometimes = world.sometimes();
    life
}

/// A broker that panics has broken a promise of its own.
pub(crate) fn never_panics(said: String) -> Violation {
    laws::NEVER_PANICS.broken(said)
}
