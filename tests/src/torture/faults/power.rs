//! The power goes: what had not reached the medium is gone.

use std::path::Path;

use super::{Tick, conclude, shares, timed, while_working};
use crate::torture::dice::Dice;
use crate::torture::disk::{Disk, FileSystem};
use crate::torture::interrupt::pause;
use crate::torture::judge::{Row, Verdict};
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::workload::Load;

/// As many power losses are one history, on one disk.
const LOSSES_PER_HISTORY: u64 = 10;
/// One power loss in so many comes while the log is being read; never the first, which finds work done.
const DURING_START: u64 = 6;

/// Cuts the power of a disk with that file system so often, each time while everybody works.
///
/// # Errors
/// For what is the driver's own fault.
pub fn power(rig: &Rig, file_system: FileSystem, losses: u64, tick: Tick<'_>) -> Result<Row, String> {
    let fault = format!("power loss, {}", file_system.name());
    if let Some(why) = file_system.missing() {
        return Ok(Row::skipped(fault, why));
    }
    timed(&fault, |row| {
        for (round, share) in (0..).zip(shares(losses, LOSSES_PER_HISTORY)) {
            let (done, verdict) = on_a_disk(rig, &rig.driftqd, file_system, (round, share), tick)?;
            row.add(done, verdict);
        }
        Ok(())
    })
}

/// One history of `losses` power losses of `program`, and how many there were.
pub(super) fn on_a_disk(
    rig: &Rig,
    program: &Path,
    file_system: FileSystem,
    (round, losses): (u64, u64),
    tick: Tick<'_>,
) -> Result<(u64, Verdict), String> {
    let mut stage = Stage::on_disk(rig, program, Log::of_round(round), |home| Disk::with(file_system, home))?;
    let mut dice = Dice::new(rig.seed + round, 2);
    let mut done = 0;
    let harmed = (|| {
        stage.start()?;
        stage.furnish()?;
        stage.stop()?;
        let work = stage.work(Load::default(), "w", rig.seed + round)?;
        while_working(work, |_| {
            for _ in 0..losses {
                if done > 0 && dice.once_in(DURING_START) {
                    stage.launch()?;
                    pause(dice.millis(0, 40))?;
                } else {
                    stage.start()?;
                    pause(dice.millis(60, 350))?;
                }
                stage.cut_power()?;
                done += 1;
                tick();
            }
            stage.start()
        })
    })();
    Ok((done, conclude(stage, harmed)?))
}
