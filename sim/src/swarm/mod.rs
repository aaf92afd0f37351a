//! From a seed to a life: which things happen in a world at all, how often, and what comes next.
//!
//! Every seed turns about half of everything off, so that the rest is not drowned: some worlds never crash, some never
//! ack, some have room for one message. Each subsystem draws from a stream of its own, and what is off draws nothing, so
//! that a change to one does not change what the others do.

mod clients;
pub(crate) mod draw;
mod effects;
mod family;
mod shape;

use clap::ValueEnum;
use driftq_core::faults::Faults;
use serde::{Deserialize, Serialize};

use self::clients::Clients;
pub(crate) use self::clients::right;
use self::draw::{Source, Stream};
use self::effects::Users;
use self::family::{Family, Weights};
use crate::setup::Setup;
use crate::steps::{Damage, IoFault, JobClass, Loss, Step};
use crate::world::World;

/// What is in fashion among the worlds of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Everything, about half of it off in every world
    #[default]
    Default,
    /// Workers that use the idempotency store, in every world and above all
    Effects,
}

impl Profile {
    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Effects => "effects",
        }
    }
}

/// What happens in one world.
#[derive(Debug)]
pub struct Swarm {
    setup: Setup,
    weights: Weights,
    clients: Clients,
    schedule: Source,
    clock: Source,
    disk: Source,
    power: Source,
    steps: u32,
}

impl Swarm {
    /// The life that belongs to a seed.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        let mut shape = Source::new(seed, Stream::Shape);
        let mut effects = Source::new(seed, Stream::Effects);
        let setup = shape::setup(&mut shape, &mut effects);
        let weights = Weights::draw(&mut shape, &mut effects, profile);
        let steps = [200, 500, 1_000, 1_800][shape.below(4) as usize];
        Self {
            clients: Clients::new(seed, &mut shape, Users::new(effects, profile), weights.is_on(Family::Work)),
            setup,
            weights,
            schedule: Source::new(seed, Stream::Schedule),
            clock: Source::new(seed, Stream::Clock),
            disk: Source::new(seed, Stream::Disk),
            power: Source::new(seed, Stream::Power),
            steps,
        }
    }

    /// The sizes and limits of its world.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// How many steps it has before everything is drained.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// What happens next.
    pub fn next<F: Faults>(&mut self, world: &World<F>) -> Step {
        if let Some(step) = self.clients.prelude() {
            return step;
        }
        if !world.is_serving() {
            return self.recovery(world);
        }
        let family = self.weights.pick(&mut self.schedule);
        self.of(family, world)
    }

    fn of<F: Faults>(&mut self, family: Family, world: &World<F>) -> Step {
        match family {
            Family::Pass => Step::Pass { ms: self.span(world) },
            Family::PassLong => Step::Pass { ms: 1_000 * (1 + self.clock.below(600) as u32) },
            Family::Jump => {
                let by = [1, 50, 2_000, 60_000, 3_600_000][self.clock.below(5) as usize];
                Step::Jump { ms: if self.clock.one_in(2) { -by } else { by } }
            }
            Family::Wake => Step::Wake,
            Family::LogIo => Step::Io { class: JobClass::Log, fault: None },
            Family::BackgroundIo => Step::Io { class: JobClass::Background, fault: None },
            Family::Settle => Step::Settle,
            Family::IoFault => {
                let class = if self.disk.one_in(3) { JobClass::Background } else { JobClass::Log };
                let fault = match self.disk.below(3) {
                    0 => IoFault::Short { bytes: self.disk.below(300) as u16 },
                    _ => IoFault::Fail,
                };
                Step::Io { class, fault: Some(fault) }
            }
            Family::Room => {
                let bytes = (!self.disk.one_in(3)).then(|| self.disk.below(6_000) as u32);
                Step::Room { bytes }
            }
            Family::Snapshot => Step::Snapshot,
            Family::Probe => self.probe(),
            Family::Crash => Step::Crash { loss: self.loss() },
            Family::Kill => Step::Crash { loss: Loss::Nothing },
            Family::Close => Step::Close,
            client => self.clients.step(client, world),
        }
    }

    /// The broker is down, or its log has failed.
    fn recovery<F: Faults>(&mut self, world: &World<F>) -> Step {
        if world.broker().is_some() {
            // It still answers, if only to refuse.
            return match self.power.below(4) {
                0 => self.clients.step(Family::Produce, world),
                1 => Step::Io { class: JobClass::Log, fault: None },
                2 => Step::Crash { loss: Loss::Nothing },
                _ => Step::Crash { loss: self.loss() },
            };
        }
        if self.weights.is_on(Family::BootAndCrash) && self.power.one_in(3) {
            return Step::BootAndCrash { after: self.power.below(9) as u8, loss: self.loss() };
        }
        match self.power.below(8) {
            0 => Step::Pass { ms: self.power.below(5_000) as u32 },
            1 if self.weights.is_on(Family::Room) => Step::Room { bytes: None },
            2 if self.weights.is_on(Family::Crash) => Step::Crash { loss: self.loss() },
            _ => Step::Boot,
        }
    }

    fn loss(&mut self) -> Loss {
        match self.power.below(4) {
            0 => Loss::All,
            _ => Loss::Some { luck: self.power.below(1 << 20) as u32 },
        }
    }

    fn probe(&mut self) -> Step {
        let any = 1 << 30;
        let damage = match self.disk.below(6) {
            0 => Damage::Zero { sector: self.disk.below(any) as u32 },
            1 => Damage::Misdirect { from: self.disk.below(any) as u32, to: self.disk.below(any) as u32 },
            2 => Damage::Unreadable { sector: self.disk.below(any) as u32 },
            _ => Damage::Flip { bit: self.disk.below(any) as u32 },
        };
        let loss = match self.disk.below(3) {
            0 => Loss::All,
            1 => Loss::Nothing,
            _ => Loss::Some { luck: self.disk.below(1 << 20) as u32 },
        };
        Step::Probe { loss, damage }
    }

    /// A little time, or as much as the broker waits for, or a little more.
    fn span<F: Faults>(&mut self, world: &World<F>) -> u32 {
        let due = world.until_timeout().unwrap_or(10).min(30_000) as u32;
        match self.clock.below(8) {
            0 | 1 => 1 + self.clock.below(10) as u32,
            2..=4 => due.max(1),
            5 => due + 1 + self.clock.below(100) as u32,
            6 => due.saturating_sub(1).max(1),
            _ => 100 * (1 + self.clock.below(50) as u32),
        }
    }
}
