//! Damage to what was synced: it is noticed, or it does no harm, or nothing could have told.

use std::ops::Range;

use driftq_core::faults::Faults;
use driftq_core::log::FileId;
use driftq_core::pipeline::inspect;
use driftq_core::types::Lsn;

use super::World;
use crate::actions::{Damage, Loss};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::durability::{damage_is_detected, read_error_is_refused, sound_log_accepted};
use crate::storage::SimStorage;

impl<F: Faults, M: SimStorage> World<F, M> {
    /// A look at what would happen if the machine died now and its disk were damaged.
    pub(super) fn probe(&mut self, loss: Loss, damage: Damage) -> Verdict {
        self.counters.events += 1;
        let mut disk = self.disk.model().clone();
        disk.crash(loss);
        let (state, sound) = sound_log_accepted(inspect(&mut disk.clone(), None, &self.faults))?;
        let Some((file, hit)) = disk.damage(damage) else { return Ok(()) };
        let unread = matches!(damage, Damage::Unreadable { .. });
        let (after, found) = match inspect(&mut disk, None, &self.faults) {
            Err(_) => {
                self.coverage.hit(if unread { Point::ReadRefused } else { Point::DamageDetected });
                return Ok(());
            }
            Ok(found) => found,
        };
        if found.last_lsn == sound.last_lsn && after.digest() == state.digest() {
            self.coverage.hit(Point::DamageHarmless);
            return Ok(());
        }
        let story = (damage, file, &hit);
        read_error_is_refused(unread, story)?;
        let proven = self.proven(&disk, file, &hit, sound.last_lsn);
        damage_is_detected(found.last_lsn, proven, story)?;
        self.coverage.hit(Point::DamageInWindow);
        Ok(())
    }

    /// How far the log is proven to have been synced by what was not hit.
    fn proven(&self, disk: &crate::disk::Disk, file: FileId, hit: &Range<usize>, last: Lsn) -> Lsn {
        let whole = |frame: &&crate::shadow::Written| {
            frame.lsn <= last && (frame.file != file || frame.range.end <= hit.start || hit.end <= frame.range.start)
        };
        let frames = self.shadow.frames().iter().filter(whole).map(|frame| frame.synced);
        let snapshots = disk.files().filter_map(|(name, _)| match name {
            FileId::Snapshot(lsn) => Some(lsn),
            _ => None,
        });
        frames.chain(snapshots).max().unwrap_or_default()
    }
}
