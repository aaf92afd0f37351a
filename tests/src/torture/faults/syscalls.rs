//! Killed at an exact system call: the first, the second, the third … until a fixed piece of work gets through unharmed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{Tick, conclude, timed};
use crate::torture::client::{Answer, Client};
use crate::torture::interrupt;
use crate::torture::judge::{Row, Verdict};
use crate::torture::meddler::{FILES_THREAD, LOG_THREAD, Meddler, wrapper};
use crate::torture::stage::{Log, Rig, Stage};
use crate::torture::tools;
use crate::torture::workload::OUTPUTS;

/// When the work is unharmed only after so many kills, something repeats itself.
const KILLS_MAX: u64 = 400;
/// Points that are tried at the same time: most of a history is waiting for silence.
const AT_ONCE: usize = 4;
/// Long values that fill a segment, so that the next one and a snapshot are made.
const LONG_VALUES: usize = 24;
const LONG_BYTES: usize = 28_000;

/// A series of kills: at this call, of this thread; of any thread during the start, where none is named.
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

/// Kills the server at every write, sync and rename of its start and of a fixed piece of work.
///
/// # Errors
/// For what is the driver's own fault.
pub fn syscalls(rig: &Rig, tick: Tick<'_>) -> Result<Row, String> {
    let fault = "killed at an exact syscall";
    if let Some(why) = tools::missing_for_syscalls() {
        return Ok(Row::skipped(fault, why));
    }
    timed(fault, |row| {
        for series in SERIES {
            let kills = row.runs;
            every_point(rig, series, row, tick)?;
            if row.runs == kills {
                return Err(format!("{series:?} was never killed: the server does not make that call any more"));
            }
        }
        Ok(())
    })
}

fn every_point(rig: &Rig, series: Series, row: &mut Row, tick: Tick<'_>) -> Result<(), String> {
    let (next, unharmed_from) = (AtomicU64::new(1), AtomicU64::new(KILLS_MAX));
    let row = Mutex::new(row);
    let take_points = || -> Result<(), String> {
        loop {
            let point = next.fetch_add(1, Ordering::Relaxed);
            if point >= unharmed_from.load(Ordering::Relaxed) || interrupt::asked() {
                return Ok(());
            }
            let (killed, verdict) = one_point(rig, series, point)?;
            if !killed {
                unharmed_from.fetch_min(point, Ordering::Relaxed);
            }
            tick();
            row.lock().map_err(|_| "a row was lost")?.add(u64::from(killed), verdict);
        }
    };
    let done: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(take_points)).collect();
        let panicked = |_| Err("a thread that tries points panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    done.into_iter().collect::<Result<(), String>>()?;
    match unharmed_from.load(Ordering::Relaxed) {
        _ if interrupt::asked() => Err(interrupt::INTERRUPTED.to_owned()),
        KILLS_MAX => Err(format!("{series:?}: still killed at the {KILLS_MAX}th call")),
        _ => Ok(()),
    }
}

/// One history with a kill at one point, and whether it came to that.
fn one_point(rig: &Rig, series: Series, point: u64) -> Result<(bool, Verdict), String> {
    let mut stage = Stage::new(rig, &rig.driftqd, Log::Snapshots)?;
    let how = format!("signal=KILL:when={point}");
    stage.recorder().driver("fault", &json!({ "call": series.call, "thread": series.thread, "when": point }));
    let mut killed = false;
    let harmed = (|| {
        match series.thread {
            None => {
                // There is something to recover.
                stage.start()?;
                stage.furnish()?;
                errand(&stage);
                stage.kill();
                let mut recipe = stage.recipe().clone();
                recipe.wrapper = wrapper(series.call, &how);
                // Not to be ready is what is wanted here, and the next start tells whether it did harm.
                killed = stage.start_as(&recipe).is_err();
            }
            Some(thread) => {
                stage.start()?;
                stage.furnish()?;
                let meddler = Meddler::on(stage.daemon()?.pid(), thread, series.call, &how)?;
                errand(&stage);
                // Whatever the other thread is still at.
                interrupt::pause(std::time::Duration::from_millis(50))?;
                killed = !stage.daemon()?.is_running();
                drop(meddler);
            }
        }
        Ok(())
    })();
    Ok((killed, conclude(stage, harmed)?))
}

/// The fixed piece of work: a little of everything, until it is done or nobody answers.
fn errand(stage: &Stage) -> Option<()> {
    let (recorder, server) = (stage.recorder(), stage.server());
    let mut calls = Client::new(recorder, &server, "errand".into());
    let mut streams = Client::new(recorder, &server, "errand-stream".into());
    for number in 0..6 {
        let mut message = json!({ "topic": "orders", "key": format!("k{number}"), "value": format!("order {number}") });
        if number % 2 == 0 {
            message["envelope"] = json!({ "idempotency_key": format!("order-{number}") });
            answered(&calls.call("produce", &message))?;
        }
        answered(&calls.call("produce", &message))?;
    }
    let args =
        json!({ "topic": "orders", "group": "kitchen", "owner": "cook", "lease_ms": 250, "max": 6, "wait_ms": 300 });
    let mut stream = streams.consume(&args)?;
    let mut number = 0;
    while let Some(item) = stream.next() {
        let lease = json!({
            "topic": "orders", "group": "kitchen", "owner": "cook", "partition": item["partition"],
            "offset": item["offset"], "lease_token": item["lease_token"],
        });
        answered(&settle(&mut calls, number, &item, lease))?;
        number += 1;
    }
    for number in 0..LONG_VALUES {
        let value = format!("long {number} {}", "x".repeat(LONG_BYTES));
        answered(&calls.call("produce", &json!({ "topic": "mail", "value": value })))?;
    }
    Some(())
}

fn settle(calls: &mut Client, number: usize, item: &Value, mut lease: Value) -> Answer {
    match number {
        0 => {
            lease["produce"] = json!([{ "topic": OUTPUTS, "value": "receipt" }]);
            lease["result"] = json!({ "paid": true });
            calls.call("complete", &lease)
        }
        1 => {
            lease["reason"] = "no onions".into();
            lease["delay_ms"] = 20.into();
            calls.call("nack", &lease)
        }
        2 => calls.call("release", &lease),
        3 if item["envelope"]["idempotency_key"].is_string() => {
            let effect = json!({
                "scope": { "kind": "consume", "topic": "orders", "group": "kitchen" },
                "key": item["envelope"]["idempotency_key"], "owner": "cook", "lease_ms": 100,
            });
            let Answer::Ok(begun) = calls.call("begin", &effect) else { return Answer::Unknown };
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

/// Goes on as long as somebody is there.
fn answered(answer: &Answer) -> Option<()> {
    match answer {
        Answer::Unknown | Answer::Refused(0) => None,
        Answer::Ok(_) | Answer::Refused(_) => Some(()),
    }
}
