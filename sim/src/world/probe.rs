//! Probes: recovery from a damaged copy of the disk must refuse to start, or be unaffected, or nothing proves that the
//! data was synced.

use std::ops::Range;

use driftq_core::faults::Faults;
use driftq_core::log::FileId;
use driftq_core::pipeline::inspect_with;
use driftq_core::types::Lsn;

use super::state::World;
use crate::actions::{Damage, Loss};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::durability::{damage_is_detected, read_error_is_refused, sound_log_accepted};
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Damages a copy of the disk after a simulated crash and checks recovery.
    pub(super) fn probe(&mut self, loss: Loss, damage: Damage) -> Verdict {
        self.counters.events += 1;
        let mut disk = self.disk.model().clone();
        disk.crash(loss);
        let (state, undamaged) =
            sound_log_accepted(inspect_with(&mut self.faults.storage(&mut disk.clone()), None, &self.faults))?;
        let Some((file, hit)) = disk.damage(damage) else { return Ok(()) };
        let is_unreadable = matches!(damage, Damage::Unreadable { .. });
        let (after, found) = match inspect_with(&mut self.faults.storage(&mut disk), None, &self.faults) {
            Err(_) => {
                self.coverage.hit(if is_unreadable { Point::ReadRefused } else { Point::DamageDetected });
                return Ok(());
            }
            Ok(found) => found,
        };
        if found.last_lsn == undamaged.last_lsn && after.digest() == state.digest() {
            self.coverage.hit(Point::DamageHarmless);
            return Ok(());
        }
        let details = (damage, file, &hit);
        read_error_is_refused(is_unreadable, details)?;
        let proven = self.proven(&disk, file, &hit, undamaged.last_lsn);
        damage_is_detected(found.last_lsn, proven, details)?;
        self.coverage.hit(Point::DamageInWindow);
        Ok(())
    }

    /// How far undamaged data proves the log to have been synced.
    fn proven(&self, disk: &crate::disk::Disk, file: FileId, hit: &Range<usize>, last: Lsn) -> Lsn {
        let is_undamaged = |frame: &&crate::shadow::WrittenFrame| {
            frame.lsn <= last && (frame.file != file || frame.range.end <= hit.start || hit.end <= frame.range.start)
        };
        let frames = self.shadow.frames().iter().filter(is_undamaged).map(|frame| frame.synced);
        let snapshots = disk.files().filter_map(|(name, _)| match name {
            FileId::Snapshot(lsn) => Some(lsn),
            _ => None,
        });
        frames.chain(snapshots).max().unwrap_or_default()
    }
}
