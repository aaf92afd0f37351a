//! Disks that fail, fill up, or take their time.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use driftq_history::{self as history, Phase};
use serde_json::json;

use super::{Tick, conclude, timed, while_working};
use crate::http::Request;
use crate::torture::disk::Disk;
use crate::torture::interrupt::{await_that, pause};
use crate::torture::judge::{Row, Verdict};
use crate::torture::meddler::{LOG_THREAD, Meddler};
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::tools;
use crate::torture::workload::{Load, Workload};

const SOON: Duration = Duration::from_secs(20);
/// Values of some size, so that room is soon used up.
const LARGE: Load = Load { producers: 3, workers: 1, rest: Duration::from_millis(4), padding: 6_000 };

/// Syncs of the log that fail once, and for good.
///
/// # Errors
/// For what is the driver's own fault.
pub fn failing_sync(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    failing(rig, "failing sync", &[("fdatasync", "error=EIO:when=5"), ("fdatasync", "error=EIO:when=5+")], tick)
}

/// Writes of the log that fail: for want of room where room had been made, and because the disk is broken.
///
/// # Errors
/// For what is the driver's own fault.
pub fn failing_write(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    failing(rig, "failing write", &[("pwrite64", "error=ENOSPC:when=2+3"), ("pwrite64", "error=EIO:when=7")], tick)
}

fn failing(rig: &Rig, fault: &str, cases: &[(&str, &str)], tick: Tick<'_>) -> Result<Row, String> {
    if let Some(why) = tools::missing_for_syscalls() {
        return Ok(Row::skipped(fault, why));
    }
    timed(fault, |row| {
        for (round, (calls, how)) in (0..).zip(cases) {
            let broken = |stage: &mut Stage| {
                let meddler = Meddler::on(stage.daemon()?.pid(), LOG_THREAD, calls, how)?;
                stage.recorder().driver("fault", &json!({ "calls": calls, "how": how }));
                Ok(Some(meddler))
            };
            let (mut verdict, seen) = poisoned(rig, round, Load::default(), broken)?;
            if verdict.is_innocent() && seen.unavailable == 0 {
                verdict.accuse("nobody was told 503 when the log had failed".to_owned());
            }
            row.add(1, verdict);
            tick();
        }
        Ok(())
    })
}

/// A write that stops in its middle, and whose rest is refused: the limit on file sizes is put into the middle of a segment.
///
/// # Errors
/// For what is the driver's own fault.
pub fn short_write(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    timed("short write", |row| {
        for (round, limit) in (0..).zip([150_001, 300_007]) {
            let broken = |stage: &mut Stage| {
                let pid = stage.daemon()?.pid().to_string();
                stage.recorder().driver("fault", &json!({ "file_bytes_max": limit }));
                tools::run(Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}:{limit}")]))?;
                Ok(None)
            };
            row.add(1, poisoned(rig, round, LARGE, broken)?.0);
            tick();
        }
        Ok(())
    })
}

/// One history in which the log is broken while everybody works. Whatever is asked from then on must not be answered with success, and
/// a restart goes on.
fn poisoned(
    rig: &Rig,
    round: u64,
    load: Load,
    broken: impl FnOnce(&mut Stage) -> Result<Option<Meddler>, String>,
) -> Result<(Verdict, Seen), String> {
    let mut stage = Stage::new(rig, &rig.driftqd, Log::of_round(round))?;
    let mut seen = Seen::default();
    let harmed = (|| {
        stage.start()?;
        stage.furnish()?;
        let work = stage.work(load, "w", rig.seed + round)?;
        while_working(work, |work| {
            pause(Duration::from_millis(200))?;
            let meddler = broken(&mut stage)?;
            let server = stage.server();
            let gone = || !server.call(&Request::get("/v1/readyz")).is_ok_and(|reply| reply.status == 200);
            await_that("the log fails", SOON, gone)?;
            // What is answered now was decided before.
            pause(Duration::from_millis(50))?;
            let from = stage.recorder().len();
            pause(Duration::from_millis(300))?;
            seen = seen_since(&stage, from)?;
            drop(meddler);
            stage.kill();
            stage.start()?;
            goes_on(work)
        })
    })();
    let mut verdict = conclude(stage, harmed)?;
    if seen.successes > 0 {
        verdict.accuse(format!("{} calls were answered with success after the log had failed", seen.successes));
    }
    Ok((verdict, seen))
}

/// How calls were answered.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    successes: usize,
    /// 503.
    unavailable: usize,
    /// 507.
    full: usize,
}

/// How calls were answered that were made from line `from` on.
fn seen_since(stage: &Stage, from: u64) -> Result<Seen, String> {
    let entries = history::read(stage.recorder().path()).map_err(|error| error.to_string())?;
    let (mut seen, mut open) = (Seen::default(), HashSet::new());
    for entry in entries.iter().filter(|entry| entry.seq >= from) {
        let call = (&entry.client, entry.incarnation, &entry.op);
        if entry.phase == Phase::Invoke {
            open.insert(call);
        } else if open.remove(&call) {
            let status = &entry.result["status"];
            seen.successes += usize::from(entry.phase == Phase::Ok);
            seen.unavailable += usize::from(status == 503);
            seen.full += usize::from(status == 507 && entry.result["error"] == "STORAGE_FULL");
        }
    }
    Ok(seen)
}

/// Waits until produces and acks are taken again.
fn goes_on(work: &Workload) -> Result<(), String> {
    let shared = work.shared();
    let so_far = (shared.produced.load(Ordering::Relaxed), shared.acked.load(Ordering::Relaxed));
    await_that("produces and acks are taken", SOON, || {
        shared.produced.load(Ordering::Relaxed) > so_far.0 && shared.acked.load(Ordering::Relaxed) > so_far.1
    })
}

/// A disk that fills up while everybody works: produces are refused, acks are taken, and with room it all goes on.
///
/// # Errors
/// For what is the driver's own fault.
pub fn full_disk(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    let fault = "full disk";
    if let Some(why) = tools::missing_for_mounts() {
        return Ok(Row::skipped(fault, why));
    }
    timed(fault, |row| {
        for round in 0..2 {
            let small = |home: &Path| Disk::in_memory(6 << 20, home);
            let mut stage = Stage::on_disk(rig, &rig.driftqd, Log::of_round(round), small)?;
            let harmed = (|| {
                stage.start()?;
                stage.furnish()?;
                let work = stage.work(LARGE, "w", rig.seed + round)?;
                while_working(work, |work| fill_up(&mut stage, work))
            })();
            row.add(1, conclude(stage, harmed)?);
            tick();
        }
        Ok(())
    })
}

fn fill_up(stage: &mut Stage, work: &Workload) -> Result<(), String> {
    let shared = work.shared();
    await_that("the disk is full", SOON * 2, || shared.no_room.load(Ordering::Relaxed) > 30)?;
    stage.recorder().driver("fault", &json!({ "disk": "full" }));
    if seen_since(stage, 0)?.full == 0 {
        return Err("produces were refused on a full disk, but not by name".to_owned());
    }
    let acked = shared.acked.load(Ordering::Relaxed);
    await_that("acks are taken on a full disk", SOON, || shared.acked.load(Ordering::Relaxed) > acked)?;
    // Killed as it is, with no room at all to start in.
    stage.kill();
    stage.start()?;
    pause(Duration::from_millis(200))?;
    stage.disk()?.resize(128 << 20)?;
    stage.recorder().driver("fault", &json!({ "disk": "has room" }));
    goes_on(work)
}

/// A disk that takes 200 ms for every sync, which is longer than many a lease.
///
/// # Errors
/// For what is the driver's own fault.
pub fn slow_disk(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    let fault = "slow disk";
    if let Some(why) = tools::missing_for_syscalls() {
        return Ok(Row::skipped(fault, why));
    }
    timed(fault, |row| {
        let mut stage = Stage::new(rig, &rig.driftqd, Log::Whole)?;
        let harmed = (|| {
            stage.start()?;
            stage.furnish()?;
            let work = stage.work(Load::default(), "w", rig.seed)?;
            while_working(work, |work| {
                pause(Duration::from_millis(200))?;
                let meddler = Meddler::on(stage.daemon()?.pid(), LOG_THREAD, "fdatasync", "delay_enter=200000")?;
                stage.recorder().driver("fault", &json!({ "sync_ms": 200 }));
                let produced = &work.shared().produced;
                let so_far = produced.load(Ordering::Relaxed);
                pause(Duration::from_secs(2))?;
                await_that("produces are taken", SOON, || produced.load(Ordering::Relaxed) > so_far)?;
                drop(meddler);
                goes_on(work)
            })
        })();
        row.add(1, conclude(stage, harmed)?);
        tick();
        Ok(())
    })
}
