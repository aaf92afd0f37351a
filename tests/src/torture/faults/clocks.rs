//! A wall clock that jumps between two starts.

use std::time::Duration;

use serde_json::json;

use super::{Tick, conclude, timed, while_working};
use crate::torture::interrupt::pause;
use crate::torture::judge::Row;
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::tools;
use crate::torture::workload::Load;

/// An hour back and forth, which is within what idempotency keys and effects last; then a month ahead, and back.
const JUMPS: [&str; 5] = ["+0d", "-1h", "+0d", "+30d", "-1h"];
/// Deliveries for each call that may be one's own doing: workers nack, release and forget. A storm has more.
const DELIVERIES_PER_CALL_MAX: u64 = 3;

/// Starts the server with one clock after the other, and has everybody work under each.
///
/// # Errors
/// For what is the driver's own fault.
pub fn clocks(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    let fault = "clock jumps";
    let Some(library) = tools::lying_clock() else {
        return Ok(Row::skipped(fault, "there is no faketime".to_owned()));
    };
    timed(fault, |row| {
        let mut stage = Stage::new(rig, &rig.driftqd, Log::Whole)?;
        let mut done = 0;
        let harmed = (|| {
            for (number, shift) in (0..).zip(JUMPS) {
                let mut recipe = stage.recipe().clone();
                recipe.env = vec![
                    ("LD_PRELOAD".to_owned(), library.to_string_lossy().into_owned()),
                    ("FAKETIME".to_owned(), shift.to_owned()),
                    ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
                ];
                stage.recorder().driver("clock", &json!({ "shift": shift }));
                stage.start_as(&recipe)?;
                stage.furnish()?;
                // Others each time: after a month a key may be used again, and so nobody may repeat one over a jump.
                let work = stage.work(Load::default(), &format!("w{number}"), rig.seed + number)?;
                while_working(work, |_| pause(Duration::from_millis(500)))?;
                if number % 2 == 0 {
                    stage.kill();
                } else {
                    stage.stop()?;
                }
                done += 1;
                tick();
            }
            Ok(())
        })();
        let mut verdict = conclude(stage, harmed)?;
        if verdict.counts.deliveries > verdict.counts.calls * DELIVERIES_PER_CALL_MAX {
            verdict.accuse(format!(
                "a storm: {} deliveries for {} calls",
                verdict.counts.deliveries, verdict.counts.calls
            ));
        }
        row.add(done, verdict);
        Ok(())
    })
}
