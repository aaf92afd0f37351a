//! Whoever claims to notice a loss must notice this one: the same power loss under a broker that does not sync.

use super::power::on_a_disk;
use super::{Tick, timed};
use crate::torture::disk::FileSystem;
use crate::torture::judge::{Row, Verdict};
use crate::torture::stage::Rig;

/// Cuts the power of the canary so often, each time on a new disk, and counts how often it is convicted: by its history, or because
/// it does not even start again.
///
/// # Errors
/// For what is the driver's own fault.
pub fn canary(rig: &Rig, runs: u64, tick: Tick<'_>) -> Result<Row, String> {
    let fault = "the canary's power loss";
    let usable: Vec<FileSystem> = FileSystem::ALL.into_iter().filter(|kind| kind.missing().is_none()).collect();
    if usable.is_empty() {
        return Ok(Row::skipped(fault, FileSystem::Ext4.missing().unwrap_or_default()));
    }
    timed(fault, |row| {
        let mut convicted = 0;
        for run in 0..runs {
            let file_system = usable[(run % usable.len() as u64) as usize];
            // What it loses is wanted, and not kept.
            let rig = Rig { keep: None, ..rig.clone() };
            let (_, verdict) = on_a_disk(&rig, &rig.canary, file_system, (run, 1), tick)?;
            convicted += u64::from(!verdict.is_innocent());
            let Verdict { counts, lost, resurrected, stale_acks, repeated_attempts, other, .. } = verdict;
            row.add(
                1,
                Verdict { counts, lost, resurrected, stale_acks, repeated_attempts, other, ..Verdict::default() },
            );
        }
        row.convicted = Some(convicted);
        Ok(())
    })
}
