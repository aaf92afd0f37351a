//! I/O schedules that independent draws hardly ever give: one class of jobs runs to its end and then the power fails, a
//! crash hits between two jobs, a sync takes seconds; and damage to the disk of a stopped broker.

use driftq_core::faults::Faults;
use driftq_core::log::HEADER_BYTES;

use super::kinds::ActionKind;
use super::profile::Profile;
use super::random::{Source, Stream};
use crate::actions::{Action, Damage, JobClass, Loss};
use crate::disk::{Disk, SECTOR_BYTES};
use crate::world::World;

/// Which schedules a world has, and the one in progress. Each draw is of one in so many actions.
#[derive(Debug)]
pub(super) struct IoSchedule {
    source: Source,
    bursts: Option<u64>,
    boundary_crashes: Option<u64>,
    stalls: Option<u64>,
    damages: bool,
    burst: Option<Burst>,
    /// For how many more actions the log is not written.
    stalled: u32,
    was_busy: [bool; 2],
}

/// Jobs of one class run, and no others.
#[derive(Clone, Copy, Debug)]
struct Burst {
    class: JobClass,
    left: u32,
    /// Operations in a row that did not leave a job in progress: then there is none.
    idle: u32,
    ends_in: Option<Loss>,
}

/// A burst ends after this many operations without a job in progress; a job of one operation leaves none.
const IDLE_MAX: u32 = 3;

impl IoSchedule {
    pub(super) fn new(seed: u64, profile: Profile) -> Self {
        let mut source = Source::new(seed, Stream::IoSchedule);
        let bursts = source.one_in(2).then(|| source.pick(&[25, 60, 150]));
        let boundary_crashes = source.one_in(4).then(|| source.pick(&[16, 64, 128]));
        let stalls = source.one_in(3).then(|| source.pick(&[40, 100]));
        let damages = source.one_in(3);
        if profile == Profile::Weeks {
            // Few faults: crashes are drawn one by one.
            return Self::without_faults(source, stalls);
        }
        Self { source, bursts, boundary_crashes, stalls, damages, burst: None, stalled: 0, was_busy: [false; 2] }
    }

    fn without_faults(source: Source, stalls: Option<u64>) -> Self {
        let (bursts, boundary_crashes, burst) = (None, None, None);
        let (damages, stalled, was_busy) = (false, 0, [false; 2]);
        Self { source, bursts, boundary_crashes, stalls, damages, burst, stalled, was_busy }
    }

    /// The next action of a serving broker, if a schedule determines it.
    pub(super) fn next<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        self.stalled = self.stalled.saturating_sub(1);
        let is_busy = [world.is_busy(JobClass::Log), world.is_busy(JobClass::Background)];
        let was_busy = std::mem::replace(&mut self.was_busy, is_busy);
        let has_ended = was_busy.iter().zip(is_busy).any(|(was, is)| *was && !is);
        if let Some(burst) = self.burst {
            return self.continue_burst(burst, is_busy[burst.class as usize]);
        }
        if let Some(times) = self.boundary_crashes
            && has_ended
            && self.source.one_in(times)
        {
            return Some(Action::Crash { loss: self.power_loss() });
        }
        if let Some(times) = self.stalls
            && self.stalled == 0
            && is_busy[JobClass::Log as usize]
            && self.source.one_in(times)
        {
            self.stalled = 8 + self.source.below(40) as u32;
        }
        let times = self.bursts?;
        if self.stalled > 0 || !self.source.one_in(times) {
            return None;
        }
        let class = self.source.pick(&[JobClass::Log, JobClass::Background, JobClass::Background]);
        let left = 1 + self.source.below(80) as u32;
        let ends_in = (!self.source.one_in(3)).then(|| self.power_loss());
        // In most bursts of background work a snapshot is among it.
        let snapshots = class == JobClass::Background && !self.source.one_in(3);
        self.burst = Some(Burst { class, left, idle: 0, ends_in });
        Some(if snapshots { Action::Snapshot } else { Action::Io { class, fault: None } })
    }

    fn continue_burst(&mut self, burst: Burst, is_busy: bool) -> Option<Action> {
        let idle = if is_busy { 0 } else { burst.idle + 1 };
        if burst.left > 0 && idle <= IDLE_MAX {
            self.burst = Some(Burst { left: burst.left - 1, idle, ..burst });
            return Some(Action::Io { class: burst.class, fault: None });
        }
        self.burst = None;
        burst.ends_in.map(|loss| Action::Crash { loss })
    }

    /// The broker is not serving.
    pub(super) fn stop(&mut self) {
        (self.burst, self.stalled, self.was_busy) = (None, 0, [false; 2]);
    }

    /// While the log is not written: what happens instead of an action that would write it.
    pub(super) fn instead_of(&mut self, kind: ActionKind) -> Option<Action> {
        let writes = matches!(kind, ActionKind::LogIo | ActionKind::FlushIo | ActionKind::IoFault | ActionKind::Close);
        if self.stalled == 0 || !writes {
            return None;
        }
        Some(match self.source.below(3) {
            0 => Action::Wake,
            1 => Action::AdvanceTime { ms: 1_000 + self.source.below(9_000) as u32 },
            _ => Action::AdvanceTime { ms: 1 + self.source.below(500) as u32 },
        })
    }

    /// Damage to the disk of a stopped broker, in some worlds.
    pub(super) fn damage(&mut self, disk: &Disk) -> Option<Action> {
        let times = if disk.is_injured() { 8 } else { 2 };
        if !self.damages || !self.source.one_in(times) {
            return None;
        }
        Some(Action::Damage { damage: self.aimed_damage(disk) })
    }

    /// Damage to a part of a file, each of which has another meaning to recovery.
    pub(super) fn aimed_damage(&mut self, disk: &Disk) -> Damage {
        let lens: Vec<usize> = disk.files().map(|(_, bytes)| bytes.len()).collect();
        let nth = self.source.below(lens.len() as u64) as usize;
        let len = lens.get(nth).copied().unwrap_or_default();
        let behind = len.saturating_sub(HEADER_BYTES);
        let at = match self.source.below(6) {
            0 => self.source.below(128),
            1 => self.source.below(HEADER_BYTES as u64),
            2 => (len - behind.min(64)) as u64 + self.source.below(behind.min(64) as u64),
            _ => (len - behind) as u64 + self.source.below(behind as u64),
        };
        let at = usize::try_from(at).unwrap_or_default().min(len.saturating_sub(1));
        let bytes_before: usize = lens.iter().take(nth).sum();
        let sectors_before: usize = lens.iter().take(nth).map(|len| len.div_ceil(SECTOR_BYTES)).sum();
        let sector = (sectors_before + at / SECTOR_BYTES) as u32;
        match self.source.below(6) {
            0 => Damage::Zero { sector },
            1 => Damage::Misdirect { from: self.source.below(1 << 30) as u32, to: sector },
            2 => Damage::Unreadable { sector },
            _ => Damage::Flip { bit: ((bytes_before + at) * 8) as u32 + self.source.below(8) as u32 },
        }
    }

    fn power_loss(&mut self) -> Loss {
        match self.source.below(4) {
            0 | 1 => Loss::All,
            _ => Loss::Partial { seed: self.source.below(1 << 20) as u32 },
        }
    }
}
