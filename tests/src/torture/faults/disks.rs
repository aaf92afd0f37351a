//! Disks that fail, fill up, or are slow.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use driftq_history::{self as history, Phase};
use serde_json::json;

use super::support::{OnFault, at_once, timed, under_load};
use crate::http::Request;
use crate::torture::disk::Disk;
use crate::torture::interrupt::{sleep, wait_until};
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::syscall_injector::{LOG_THREAD, SyscallInjector};
use crate::torture::tools;
use crate::torture::verdict::{FaultSummary, Verdict};
use crate::torture::workload::{Load, Workload};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Large values, which fill a disk quickly.
const LARGE: Load = Load { producers: 3, workers: 1, pause: Duration::from_millis(4), padding: 6_000 };

/// Syncs of the log that fail once, and permanently.
///
/// # Errors
/// If the driver itself fails.
pub fn failing_sync(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let cases = [("fdatasync", "error=EIO:when=5"), ("fdatasync", "error=EIO:when=5+")];
    failing(options, "failing sync", &cases, on_fault)
}

/// Writes of the log that fail: no space in an allocated file, and an I/O error.
///
/// # Errors
/// If the driver itself fails.
pub fn failing_write(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let cases = [("pwrite64", "error=ENOSPC:when=2+3"), ("pwrite64", "error=EIO:when=7")];
    failing(options, "failing write", &cases, on_fault)
}

fn failing(
    options: &Options,
    fault: &str,
    cases: &[(&str, &str)],
    on_fault: OnFault<'_>,
) -> Result<FaultSummary, String> {
    if let Some(reason) = tools::missing_for_syscalls() {
        return Ok(FaultSummary::skipped(fault, reason));
    }
    at_once(fault, cases, on_fault, |round, (calls, action)| {
        let inject = |scenario: &mut Scenario| {
            let injector = SyscallInjector::attach(scenario.daemon()?.pid(), LOG_THREAD, calls, action)?;
            scenario.recorder().driver("fault", &json!({ "calls": calls, "how": action }));
            Ok(Some(injector))
        };
        let (mut verdict, responses) = log_failure(options, round, Load::default(), inject)?;
        if verdict.passed() && responses.unavailable == 0 {
            verdict.add_violation("no call was answered 503 after the log had failed".to_owned());
        }
        Ok(verdict)
    })
}

/// A write that is cut short, and whose rest is refused: the limit on file sizes is set to the middle of a segment.
///
/// # Errors
/// If the driver itself fails.
pub fn short_write(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    at_once("short write", &[150_001, 300_007], on_fault, |round, limit| {
        let inject = |scenario: &mut Scenario| {
            let pid = scenario.daemon()?.pid().to_string();
            scenario.recorder().driver("fault", &json!({ "file_bytes_max": limit }));
            tools::run(Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}:{limit}")]))?;
            Ok(None)
        };
        Ok(log_failure(options, round, LARGE, inject)?.0)
    })
}

/// One history in which the log fails under load. From then on no call may succeed, until a restart.
fn log_failure(
    options: &Options,
    round: u64,
    load: Load,
    inject: impl FnOnce(&mut Scenario) -> Result<Option<SyscallInjector>, String>,
) -> Result<(Verdict, Responses), String> {
    let mut scenario = Scenario::new(options, &options.driftqd, LogMode::of_round(round))?;
    let mut responses = Responses::default();
    let injected = (|| {
        scenario.start_with_topics()?;
        let workload = scenario.start_workload(load, "w", options.seed + round)?;
        under_load(workload, |workload| {
            sleep(Duration::from_millis(200))?;
            let injector = inject(&mut scenario)?;
            let client = scenario.client();
            let failed = || !client.call(&Request::get("/v1/readyz")).is_ok_and(|reply| reply.status == 200);
            wait_until("the log fails", TIMEOUT, failed)?;
            // Responses that arrive now were decided before the failure.
            sleep(Duration::from_millis(50))?;
            let from = scenario.recorder().len();
            sleep(Duration::from_millis(300))?;
            responses = responses_since(&scenario, from)?;
            drop(injector);
            scenario.kill();
            scenario.start()?;
            wait_for_progress(workload)
        })
    })();
    let mut verdict = scenario.finish(injected)?;
    if responses.successes > 0 {
        verdict.add_violation(format!("{} calls succeeded after the log had failed", responses.successes));
    }
    Ok((verdict, responses))
}

/// Counts of responses.
#[derive(Clone, Copy, Debug, Default)]
struct Responses {
    successes: usize,
    /// 503.
    unavailable: usize,
    /// 507 `STORAGE_FULL`.
    full: usize,
}

/// The responses to calls made from line `from` of the history on.
fn responses_since(scenario: &Scenario, from: u64) -> Result<Responses, String> {
    let entries = history::read(scenario.recorder().path()).map_err(|error| error.to_string())?;
    let (mut responses, mut open) = (Responses::default(), HashSet::new());
    for entry in entries.iter().filter(|entry| entry.seq >= from) {
        let call = (&entry.client, entry.incarnation, &entry.op);
        if entry.phase == Phase::Invoke {
            open.insert(call);
        } else if open.remove(&call) {
            let status = &entry.result["status"];
            responses.successes += usize::from(entry.phase == Phase::Ok);
            responses.unavailable += usize::from(status == 503);
            responses.full += usize::from(status == 507 && entry.result["error"] == "STORAGE_FULL");
        }
    }
    Ok(responses)
}

/// Waits until further produces and acks succeed.
fn wait_for_progress(workload: &Workload) -> Result<(), String> {
    let shared = workload.shared();
    let before = (shared.produced.load(Ordering::Relaxed), shared.acked.load(Ordering::Relaxed));
    wait_until("produces and acks succeed", TIMEOUT, || {
        shared.produced.load(Ordering::Relaxed) > before.0 && shared.acked.load(Ordering::Relaxed) > before.1
    })
}

/// A disk that fills up under load: produces are refused, acks succeed, and with more space everything continues.
///
/// # Errors
/// If the driver itself fails.
pub fn full_disk(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let fault = "full disk";
    if let Some(reason) = tools::missing_for_mounts() {
        return Ok(FaultSummary::skipped(fault, reason));
    }
    at_once(fault, &[0, 1].map(LogMode::of_round), on_fault, |round, mode| {
        let mount = |home: &Path| Disk::in_memory(6 << 20, home);
        let mut scenario = Scenario::on_disk(options, &options.driftqd, *mode, mount)?;
        let injected = (|| {
            scenario.start_with_topics()?;
            let workload = scenario.start_workload(LARGE, "w", options.seed + round)?;
            under_load(workload, |workload| fill_disk(&mut scenario, workload))
        })();
        scenario.finish(injected)
    })
}

fn fill_disk(scenario: &mut Scenario, workload: &Workload) -> Result<(), String> {
    let shared = workload.shared();
    wait_until("the disk is full", TIMEOUT * 2, || shared.rejected.load(Ordering::Relaxed) > 30)?;
    scenario.recorder().driver("fault", &json!({ "disk": "full" }));
    if responses_since(scenario, 0)?.full == 0 {
        return Err("produces were refused on a full disk, but not with STORAGE_FULL".to_owned());
    }
    let acked = shared.acked.load(Ordering::Relaxed);
    wait_until("acks succeed on a full disk", TIMEOUT, || shared.acked.load(Ordering::Relaxed) > acked)?;
    // The restart has little free space: its first segment is small.
    scenario.kill();
    scenario.start()?;
    sleep(Duration::from_millis(200))?;
    scenario.disk()?.resize(128 << 20)?;
    scenario.recorder().driver("fault", &json!({ "disk": "has room" }));
    wait_for_progress(workload)
}

/// A disk that takes 200 ms for every sync, which is longer than many leases.
///
/// # Errors
/// If the driver itself fails.
pub fn slow_disk(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let fault = "slow disk";
    if let Some(reason) = tools::missing_for_syscalls() {
        return Ok(FaultSummary::skipped(fault, reason));
    }
    timed(fault, |summary| {
        let mut scenario = Scenario::new(options, &options.driftqd, LogMode::Complete)?;
        let injected = (|| {
            scenario.start_with_topics()?;
            let workload = scenario.start_workload(Load::default(), "w", options.seed)?;
            under_load(workload, |workload| {
                sleep(Duration::from_millis(200))?;
                let pid = scenario.daemon()?.pid();
                let injector = SyscallInjector::attach(pid, LOG_THREAD, "fdatasync", "delay_enter=200000")?;
                scenario.recorder().driver("fault", &json!({ "sync_ms": 200 }));
                let produced = &workload.shared().produced;
                let before = produced.load(Ordering::Relaxed);
                sleep(Duration::from_secs(2))?;
                wait_until("produces succeed", TIMEOUT, || produced.load(Ordering::Relaxed) > before)?;
                drop(injector);
                wait_for_progress(workload)
            })
        })();
        summary.add(1, scenario.finish(injected)?);
        on_fault();
        Ok(())
    })
}
