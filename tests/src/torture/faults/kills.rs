//! `kill -9` at any moment, under load.

use super::{Tick, conclude, shares, timed, while_working};
use crate::torture::dice::Dice;
use crate::torture::interrupt::pause;
use crate::torture::judge::Row;
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::workload::Load;

/// As many kills are one history, on one folder.
const KILLS_PER_HISTORY: u64 = 40;
/// One kill in so many comes while the log is being read.
const DURING_START: u64 = 6;

/// Kills the server so often, each time while everybody works, and starts it again.
///
/// # Errors
/// For what is the driver's own fault.
pub fn kills(rig: &Rig, kills: u64, tick: Tick<'_>) -> Result<Row, String> {
    timed("kill -9 under load", |row| {
        for (round, share) in (0..).zip(shares(kills, KILLS_PER_HISTORY)) {
            let mut stage = Stage::new(rig, &rig.driftqd, Log::of_round(round))?;
            let mut dice = Dice::new(rig.seed + round, 1);
            let mut done = 0;
            let harmed = (|| {
                stage.start()?;
                stage.furnish()?;
                stage.stop()?;
                let work = stage.work(Load::default(), "w", rig.seed + round)?;
                while_working(work, |_| {
                    for _ in 0..share {
                        if dice.once_in(DURING_START) {
                            stage.launch()?;
                            pause(dice.millis(0, 40))?;
                        } else {
                            stage.start()?;
                            pause(dice.millis(0, 280))?;
                        }
                        stage.kill();
                        done += 1;
                        tick();
                    }
                    stage.start()
                })
            })();
            row.add(done, conclude(stage, harmed)?);
        }
        Ok(())
    })
}
