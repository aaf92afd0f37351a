//! Swarm testing: from a seed to the actions of a run.
//!
//! Every seed disables about half of all features, so that the others occur often: some worlds never crash, some never
//! ack, some hold one message. Each subsystem draws from its own random stream and disabled features draw nothing, so a
//! change to one does not change what the others draw.

mod clients;
mod details;
mod effects;
mod forgetful_worker;
mod io_schedule;
mod kinds;
mod late_repeat;
mod limits;
mod persistent_failure;
mod profile;
pub(crate) mod random;
mod read_schedule;
mod repeats;
mod rot;
mod settings;
mod store_users;

use driftq_core::faults::Faults;

use self::clients::Clients;
pub(crate) use self::clients::delivery_ref;
use self::details::RareDetails;
use self::forgetful_worker::ForgetfulWorker;
use self::io_schedule::IoSchedule;
use self::kinds::{ActionKind, Weights};
use self::late_repeat::LateRepeat;
use self::persistent_failure::PersistentFailure;
pub use self::profile::Profile;
use self::random::{Source, Stream};
use self::read_schedule::ReadSchedule;
use self::rot::Rot;
use self::settings::Settings;
use self::store_users::StoreUsers;
use crate::actions::{Action, Damage, IoFault, JobClass, Loss};
use crate::setup::Setup;
use crate::world::World;

/// The generator of one world's actions.
#[derive(Debug)]
pub struct Swarm {
    setup: Setup,
    weights: Weights,
    clients: Clients,
    schedule: Source,
    clock: Source,
    disk: Source,
    crash_source: Source,
    settings: Settings,
    details: RareDetails,
    persistent_failure: PersistentFailure,
    forgetful_worker: ForgetfulWorker,
    late_repeat: LateRepeat,
    io_schedule: IoSchedule,
    read_schedule: ReadSchedule,
    rot: Rot,
    /// The last operation of the log was to fail. A broker that goes on is closed: all it has confirmed must be there.
    has_failed_log: bool,
    actions: u32,
    profile: Profile,
}

impl Swarm {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        let mut shape = Source::new(seed, Stream::Shape);
        let mut effects = Source::new(seed, Stream::Effects);
        let (mut bounds, mut files) = (Source::new(seed, Stream::Bounds), Source::new(seed, Stream::Files));
        let mut work = Source::new(seed, Stream::Work);
        let drawn = limits::setup(&mut shape, &mut effects, &mut bounds, &mut files, &mut work);
        let drawn = if profile == Profile::Weeks { limits::weeks(&drawn, &mut bounds) } else { drawn };
        let mut memory = Source::new(seed, Stream::Memory);
        let (memory_bytes, state_bytes_max) = (limits::memory(&mut memory), limits::state_memory(&mut memory));
        let read_ahead_bytes = limits::read_ahead(&mut memory);
        let read_schedule = ReadSchedule::new(seed, profile);
        let read_steps = read_schedule.are_steps();
        let (clean_spare_segments, scrub_ms) = limits::cleaning(&mut Source::new(seed, Stream::Cleaning));
        let drawn = Setup { memory_bytes, read_ahead_bytes, ..drawn };
        let mut rot = Rot::new(seed, profile);
        let setup = rot.setup(Setup { state_bytes_max, read_steps, clean_spare_segments, scrub_ms, ..drawn });
        let weights = Weights::draw(&mut shape, &mut effects, profile);
        let actions = [200, 500, 1_000, 1_800][shape.below(4) as usize];
        Self {
            clients: Clients::new(
                seed,
                &mut shape,
                StoreUsers::new(effects, profile),
                weights.is_enabled(ActionKind::ContinueDelivery),
                &setup,
            ),
            setup,
            weights,
            schedule: Source::new(seed, Stream::Schedule),
            clock: Source::new(seed, Stream::Clock),
            disk: Source::new(seed, Stream::Disk),
            crash_source: Source::new(seed, Stream::Crash),
            settings: Settings::new(seed, profile),
            details: RareDetails::new(seed),
            persistent_failure: PersistentFailure::new(seed),
            forgetful_worker: ForgetfulWorker::new(seed),
            late_repeat: LateRepeat::new(seed),
            io_schedule: IoSchedule::new(seed, profile),
            read_schedule,
            rot,
            has_failed_log: false,
            actions,
            profile,
        }
    }

    /// The limits of its world.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The number of actions before the drain.
    #[must_use]
    pub fn actions(&self) -> u32 {
        self.actions
    }

    /// The next action.
    pub fn next<F: Faults>(&mut self, world: &World<F>) -> Action {
        let mut action = self.draw(world);
        self.details.add(&mut action, world);
        action
    }

    /// The next action of the clients that follow a plan.
    fn scripted<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let Self { persistent_failure, forgetful_worker, late_repeat, .. } = self;
        let first = persistent_failure.next(world).or_else(|| forgetful_worker.next(world));
        first.or_else(|| late_repeat.next(world))
    }

    fn draw<F: Faults>(&mut self, world: &World<F>) -> Action {
        if let Some(action) = self.clients.next_scheduled() {
            return action;
        }
        if let Some(action) = self.settings.next(world) {
            return action;
        }
        if !world.is_serving() {
            self.has_failed_log = false;
            self.io_schedule.stop();
            return self.recovery_action(world);
        }
        if let Some(action) = self.rot.next() {
            return action;
        }
        if !self.has_failed_log
            && let Some(action) = self.read_schedule.next(world)
        {
            return action;
        }
        if !self.has_failed_log
            && let Some(action) = self.scripted(world)
        {
            return action;
        }
        if !self.has_failed_log
            && let Some(action) = self.io_schedule.next(world)
        {
            return action;
        }
        let kind = match std::mem::take(&mut self.has_failed_log) {
            true if self.weights.is_enabled(ActionKind::Close) => ActionKind::Close,
            _ => self.weights.pick(&mut self.schedule),
        };
        match self.io_schedule.instead_of(kind) {
            Some(action) => action,
            None => self.action_of(kind, world),
        }
    }

    fn action_of<F: Faults>(&mut self, kind: ActionKind, world: &World<F>) -> Action {
        match kind {
            ActionKind::AdvanceTime => Action::AdvanceTime { ms: self.time_advance(world) },
            ActionKind::AdvanceTimeFar if self.profile == Profile::Weeks => {
                // Minutes to two days.
                Action::AdvanceTime { ms: 60_000 * (1 + self.clock.below(2_880) as u32) }
            }
            ActionKind::JumpClock if self.profile == Profile::Weeks => {
                // The wall clock drifts.
                let by = 1 + self.clock.below(400) as i64;
                Action::JumpClock { ms: if self.clock.one_in(2) { -by } else { by } }
            }
            ActionKind::AdvanceTimeFar => Action::AdvanceTime { ms: 1_000 * (1 + self.clock.below(600) as u32) },
            ActionKind::JumpClock => {
                let by = [1, 50, 2_000, 60_000, 3_600_000][self.clock.below(5) as usize];
                Action::JumpClock { ms: if self.clock.one_in(2) { -by } else { by } }
            }
            ActionKind::Wake => Action::Wake,
            ActionKind::LogIo => Action::Io { class: JobClass::Log, fault: None },
            ActionKind::BackgroundIo => Action::Io { class: JobClass::Background, fault: None },
            ActionKind::FlushIo => Action::FlushIo,
            ActionKind::IoFault => {
                let class = if self.disk.one_in(3) { JobClass::Background } else { JobClass::Log };
                let fault = match (self.disk.below(3), class) {
                    (0, _) => IoFault::Short { bytes: self.disk.below(300) as u16 },
                    // Only background jobs create files.
                    (1, JobClass::Background) => IoFault::NoDescriptor,
                    _ => IoFault::Fail,
                };
                self.has_failed_log = class == JobClass::Log && fault == IoFault::Fail;
                Action::Io { class, fault: Some(fault) }
            }
            ActionKind::SetFreeSpace => {
                let bytes = (!self.disk.one_in(3)).then(|| self.disk.below(6_000) as u32);
                Action::SetFreeSpace { bytes }
            }
            ActionKind::Snapshot => Action::Snapshot,
            ActionKind::Probe => self.probe(world),
            ActionKind::Crash => Action::Crash { loss: self.loss() },
            ActionKind::Kill => Action::Crash { loss: Loss::Nothing },
            ActionKind::Close => Action::Close,
            client => self.clients.action(client, world),
        }
    }

    /// The next action while the broker is down or its log has failed.
    fn recovery_action<F: Faults>(&mut self, world: &World<F>) -> Action {
        if world.broker().is_some() {
            // A broker with a failed log still refuses requests.
            return match self.crash_source.below(4) {
                0 => self.clients.action(ActionKind::Produce, world),
                1 => Action::Io { class: JobClass::Log, fault: None },
                2 => Action::Crash { loss: Loss::Nothing },
                _ => Action::Crash { loss: self.loss() },
            };
        }
        if let Some(damage) = self.io_schedule.damage(world.disk()) {
            return damage;
        }
        if self.weights.is_enabled(ActionKind::BootAndCrash) && self.crash_source.one_in(3) {
            return Action::BootAndCrash { after: self.crash_source.below(9) as u8, loss: self.loss() };
        }
        match self.crash_source.below(8) {
            0 => Action::AdvanceTime { ms: self.crash_source.below(5_000) as u32 },
            1 if self.weights.is_enabled(ActionKind::SetFreeSpace) => Action::SetFreeSpace { bytes: None },
            2 if self.weights.is_enabled(ActionKind::Crash) => Action::Crash { loss: self.loss() },
            3 if self.weights.is_enabled(ActionKind::JumpClock) => Action::RebaseClock,
            _ => Action::Boot,
        }
    }

    fn loss(&mut self) -> Loss {
        match self.crash_source.below(4) {
            0 => Loss::All,
            _ => Loss::Partial { seed: self.crash_source.below(1 << 20) as u32 },
        }
    }

    fn probe<F: Faults>(&mut self, world: &World<F>) -> Action {
        let end = 1 << 30;
        let damage = match self.disk.below(12) {
            6.. => self.io_schedule.aimed_damage(world.disk()),
            0 => Damage::Zero { sector: self.disk.below(end) as u32 },
            1 => Damage::Misdirect { from: self.disk.below(end) as u32, to: self.disk.below(end) as u32 },
            2 => Damage::Unreadable { sector: self.disk.below(end) as u32 },
            _ => Damage::Flip { bit: self.disk.below(end) as u32 },
        };
        let loss = match self.disk.below(3) {
            0 => Loss::All,
            1 => Loss::Nothing,
            _ => Loss::Partial { seed: self.disk.below(1 << 20) as u32 },
        };
        Action::Probe { loss, damage }
    }

    /// A short time, the time until the next timeout, or a little more.
    fn time_advance<F: Faults>(&mut self, world: &World<F>) -> u32 {
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
