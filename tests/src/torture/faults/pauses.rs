//! A server that sleeps longer than its leases, and a second one that wants to share its folder.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::{Tick, conclude, timed, while_working};
use crate::daemon::{Daemon, free_addr};
use crate::torture::interrupt::pause;
use crate::torture::judge::Row;
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::workload::{AWAY_MS_MAX, Load};

/// Stops the server so often with SIGSTOP, each time for longer than any lease. Whoever held one is late then, and must be fenced.
///
/// # Errors
/// For what is the driver's own fault.
pub fn paused_server(rig: &Rig, pauses: u64, tick: Tick<'_>) -> Result<Row, String> {
    timed("paused past its leases", |row| {
        let mut stage = Stage::new(rig, &rig.driftqd, Log::Whole)?;
        let (mut done, mut fenced) = (0, 0);
        let harmed = (|| {
            stage.start()?;
            stage.furnish()?;
            let work = stage.work(Load::default(), "w", rig.seed)?;
            while_working(work, |work| {
                for _ in 0..pauses {
                    pause(Duration::from_millis(250))?;
                    stage.pause()?;
                    pause(Duration::from_millis(AWAY_MS_MAX + 150))?;
                    stage.resume()?;
                    done += 1;
                    tick();
                }
                // Those who are late say so.
                pause(Duration::from_millis(AWAY_MS_MAX + 300))?;
                fenced = work.shared().fenced.load(Ordering::Relaxed);
                Ok(())
            })
        })();
        let mut verdict = conclude(stage, harmed)?;
        if fenced == 0 {
            verdict.accuse("nobody was late and fenced: either the leases never end, or this tries nothing".to_owned());
        }
        row.add(done, verdict);
        Ok(())
    })
}

/// Starts a second server on the folder of one that works.
///
/// # Errors
/// For what is the driver's own fault.
pub fn second_server(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    timed("two servers, one folder", |row| {
        let mut stage = Stage::new(rig, &rig.driftqd, Log::Whole)?;
        let mut complaint = None;
        let harmed = (|| {
            stage.start()?;
            stage.furnish()?;
            let work = stage.work(Load::default(), "w", rig.seed)?;
            while_working(work, |_| {
                pause(Duration::from_millis(200))?;
                stage.recorder().driver("fault", &json!({ "second": "server" }));
                let addr = free_addr().map_err(|error| error.to_string())?;
                let log = stage.home().join("second.log");
                match Daemon::start(stage.recipe(), stage.data(), addr, &log) {
                    Ok(_) => complaint = Some("a second server started on the same folder".to_owned()),
                    Err(why) if why.contains("in use") => {}
                    Err(why) => complaint = Some(format!("a second server was not refused by name: {why}")),
                }
                pause(Duration::from_millis(200))
            })
        })();
        let mut verdict = conclude(stage, harmed)?;
        complaint.into_iter().for_each(|complaint| verdict.accuse(complaint));
        row.add(1, verdict);
        tick();
        Ok(())
    })
}
