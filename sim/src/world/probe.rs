//! Probes: recovery from a damaged copy of the disk must be unaffected, or refuse to start where the damage is to what
//! it needs, or nothing proves that the data was synced.

use driftq_core::faults::Faults;
use driftq_core::pipeline::inspect_start_with;

use super::state::World;
use crate::actions::{Damage, Loss};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::durability::{
    damage_is_detected, read_error_is_refused, refusal_is_needed, sound_log_accepted, whole_snapshots_are_kept,
};
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Damages a copy of the disk after a simulated crash and checks recovery.
    pub(super) fn probe(&mut self, loss: Loss, damage: Damage) -> Verdict {
        self.counters.events += 1;
        let mut disk = self.disk.model().clone();
        disk.crash(loss);
        if self.broker.is_none() || self.setup.rots {
            // Damage of a stopped broker's disk, and rot, are judged by its next start.
            disk.heal();
        }
        let (state, undamaged) =
            sound_log_accepted(inspect_start_with(&mut self.faults.storage(&mut disk.clone()), None, &self.faults))?;
        let Some((file, hit)) = disk.damage(damage) else { return Ok(()) };
        let is_unreadable = matches!(damage, Damage::Unreadable { .. });
        let details = (damage, file, &hit);
        let (after, found) = match inspect_start_with(&mut self.faults.storage(&mut disk.clone()), None, &self.faults) {
            Err(error) => {
                refusal_is_needed(self.may_refuse(&disk, undamaged.last.frame), (&error, details))?;
                self.coverage.hit(if is_unreadable { Point::ReadRefused } else { Point::DamageDetected });
                return Ok(());
            }
            Ok(found) => found,
        };
        whole_snapshots_are_kept(&disk.usable_snapshots(), &found)?;
        if found.last == undamaged.last && after.digest() == state.digest() {
            self.coverage.hit(Point::DamageHarmless);
            return Ok(());
        }
        read_error_is_refused(is_unreadable, details)?;
        damage_is_detected(found.last.frame, self.proven(&disk, undamaged.last.frame), details)?;
        self.coverage.hit(Point::DamageInWindow);
        Ok(())
    }
}
