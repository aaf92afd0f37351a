//! Killed at an exact system call: the first, the second, … until a fixed sequence of calls completes without a kill.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{OnFault, in_parallel, timed};
use crate::procfs;
use crate::torture::client::{CallResult, RecordedClient};
use crate::torture::interrupt;
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::syscall_injector::{FILES_THREAD, LOG_THREAD, SyscallInjector, wrapper};
use crate::torture::tools;
use crate::torture::verdict::{FaultSummary, Verdict};
use crate::torture::workload::{OUTPUTS, lease_of};

/// A series that is still killed at this call does not end.
const KILLS_MAX: u64 = 400;
/// Scenarios at a time: most of a scenario is waiting.
const PARALLEL: usize = 12;
/// Long values that fill a segment, so that the next segment and a snapshot are created.
const LONG_VALUES: usize = 12;
const LONG_BYTES: usize = 14_000;
/// How often a point is tried before the series counts as complete: on a busy machine the call can come before its
/// tracer.
const TRIES: usize = 3;
/// How long no thread of the server may have been at work until its background work counts as complete.
const QUIET: Duration = Duration::from_secs(1);
/// How long background work may take: on a busy machine a traced thread is slow.
const BACKGROUND_WITHIN: Duration = Duration::from_secs(30);
/// How long a server that does not respond any more may take to exit: on a busy machine its tracer delays it.
const EXIT_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// A series of kills at this call: of a thread while it serves, or of any thread during the start.
#[derive(Clone, Copy, Debug)]
struct Series {
    call: &'static str,
    thread: Option<&'static str>,
}

const SERIES: [Series; 8] = [
    Series { call: "fdatasync", thread: None },
    Series { call: "fsync", thread: None },
    Series { call: "pwrite64", thread: None },
    Series { call: "fdatasync", thread: Some(LOG_THREAD) },
    Series { call: "pwrite64", thread: Some(LOG_THREAD) },
    Series { call: "fdatasync", thread: Some(FILES_THREAD) },
    Series { call: "pwrite64", thread: Some(FILES_THREAD) },
    Series { call: "renameat2", thread: Some(FILES_THREAD) },
];

/// Kills the server at every write, sync and rename of its start and of a fixed sequence of calls.
///
/// # Errors
/// If the driver itself fails.
pub fn exact_syscalls(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let fault = "killed at an exact syscall";
    if let Some(reason) = tools::missing_for_syscalls() {
        return Ok(FaultSummary::skipped(fault, reason));
    }
    timed(fault, |summary| {
        // All series at once, point by point: few scenarios are started beyond the end of a series.
        let points: Vec<(usize, u64)> =
            (1..KILLS_MAX).flat_map(|point| (0..SERIES.len()).map(move |series| (series, point))).collect();
        let completed_at = SERIES.map(|_| AtomicU64::new(KILLS_MAX));
        let summary = Mutex::new(summary);
        in_parallel(PARALLEL, &points, |&(series, point)| {
            if point >= completed_at[series].load(Ordering::Relaxed) {
                return Ok(());
            }
            for _ in 0..TRIES {
                let (killed, verdict) = kill_at(options, SERIES[series], point)?;
                on_fault();
                summary.lock().map_err(|_| "another scenario panicked")?.add(u64::from(killed), verdict);
                if killed {
                    return Ok(());
                }
            }
            completed_at[series].fetch_min(point, Ordering::Relaxed);
            Ok(())
        })?;
        for (series, completed_at) in SERIES.iter().zip(completed_at) {
            match completed_at.into_inner() {
                1 => return Err(format!("{series:?} was never killed: the server does not make that call any more")),
                KILLS_MAX => return Err(format!("{series:?} is still killed at call {KILLS_MAX}")),
                _ => {}
            }
        }
        Ok(())
    })
}

/// One history with a kill at one call. Returns whether the kill happened.
fn kill_at(options: &Options, series: Series, point: u64) -> Result<(bool, Verdict), String> {
    let mut scenario = Scenario::new(options, &options.driftqd, LogMode::SmallSnapshots)?;
    let action = format!("signal=KILL:when={point}");
    scenario.recorder().driver("fault", &json!({ "call": series.call, "thread": series.thread, "when": point }));
    let mut killed = false;
    let injected = (|| {
        scenario.start_with_topics()?;
        match series.thread {
            None => {
                // The start that is killed has a log to recover.
                fixed_calls(&scenario);
                scenario.kill();
                let launcher = scenario.launcher().clone().wrapper(&wrapper(series.call, &action));
                // A start that fails is the fault; the next start shows whether it did harm.
                killed = scenario.start_with(&launcher).is_err();
            }
            Some(thread) => {
                let pid = scenario.daemon()?.pid();
                let injector = SyscallInjector::attach(pid, thread, series.call, &action)?;
                let (limit, quiet) = match fixed_calls(&scenario) {
                    Some(()) => (BACKGROUND_WITHIN, QUIET),
                    None => (EXIT_WITHIN, EXIT_WITHIN),
                };
                let daemon = scenario.daemon()?;
                let deadline = Instant::now() + limit;
                let mut busy = Instant::now();
                while daemon.is_running() && Instant::now() < deadline && busy.elapsed() < quiet {
                    if !procfs::is_asleep(pid) {
                        busy = Instant::now();
                    }
                    interrupt::sleep(POLL)?;
                }
                killed = !daemon.is_running();
                drop(injector);
            }
        }
        Ok(())
    })();
    Ok((killed, scenario.finish(injected)?))
}

/// The fixed sequence of calls: some of every kind, until it is complete or the server does not respond.
fn fixed_calls(scenario: &Scenario) -> Option<()> {
    let (recorder, client) = (scenario.recorder(), scenario.client());
    let mut calls = RecordedClient::new(recorder, &client, "fixed".into());
    let mut streams = RecordedClient::new(recorder, &client, "fixed-stream".into());
    for number in 0..6 {
        let mut message = json!({ "topic": "orders", "key": format!("k{number}"), "value": format!("order {number}") });
        if number % 2 == 0 {
            message["envelope"] = json!({ "idempotency_key": format!("order-{number}") });
            responded(&calls.call("produce", &message))?;
        }
        responded(&calls.call("produce", &message))?;
    }
    let args =
        json!({ "topic": "orders", "group": "billing", "owner": "worker", "lease_ms": 250, "max": 6, "wait_ms": 300 });
    let mut stream = streams.consume(&args)?;
    let mut number = 0;
    while let Some(item) = stream.next() {
        let lease = lease_of(&item, "orders", "billing", "worker");
        responded(&settle(&mut calls, number, &item, lease))?;
        number += 1;
    }
    for number in 0..LONG_VALUES {
        let value = format!("long {number} {}", "x".repeat(LONG_BYTES));
        responded(&calls.call("produce", &json!({ "topic": "mail", "value": value })))?;
    }
    Some(())
}

fn settle(calls: &mut RecordedClient, number: usize, item: &Value, mut lease: Value) -> CallResult {
    match number {
        0 => {
            lease["produce"] = json!([{ "topic": OUTPUTS, "value": "receipt" }]);
            lease["result"] = json!({ "paid": true });
            calls.call("complete", &lease)
        }
        1 => {
            lease["reason"] = "temporary failure".into();
            lease["delay_ms"] = 20.into();
            calls.call("nack", &lease)
        }
        2 => calls.call("release", &lease),
        3 if item["envelope"]["idempotency_key"].is_string() => {
            let effect = json!({
                "scope": { "kind": "consume", "topic": "orders", "group": "billing" },
                "key": item["envelope"]["idempotency_key"], "owner": "worker", "lease_ms": 100,
            });
            let CallResult::Ok(begun) = calls.call("begin", &effect) else { return CallResult::Unknown };
            let finish = json!({
                "scope": effect["scope"], "key": effect["key"], "lease_token": begun["lease_token"],
                "status": "SUCCEEDED", "result": 1,
            });
            calls.call("finish", &finish);
            calls.call("ack", &lease)
        }
        _ => calls.call("ack", &lease),
    }
}

/// Continues as long as the server responds.
fn responded(result: &CallResult) -> Option<()> {
    match result {
        CallResult::Unknown | CallResult::Rejected(0) => None,
        CallResult::Ok(_) | CallResult::Rejected(_) => Some(()),
    }
}
