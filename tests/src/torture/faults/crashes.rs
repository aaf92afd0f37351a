//! Repeated crashes of a server under load, by whatever means: kills and power losses.

use std::ops::Range;
use std::sync::Mutex;

use super::support::{OnFault, in_parallel, shares, timed, under_load};
use crate::torture::interrupt::sleep;
use crate::torture::rng::SeededRng;
use crate::torture::scenario::{Options, Scenario};
use crate::torture::verdict::{FaultSummary, Verdict};
use crate::torture::workload::Load;

/// Histories at a time: most of a history is waiting.
const PARALLEL: usize = 3;
/// One crash in this many comes during recovery.
const DURING_START: u64 = 6;

/// The crashes of one history.
pub(super) struct Crashes {
    /// The number of the history, which varies the seed.
    pub(super) round: u64,
    /// How many.
    pub(super) count: u64,
    /// The stream of random numbers.
    pub(super) rng_stream: u64,
    /// How long the server runs before a crash, in milliseconds.
    pub(super) running_ms: Range<u64>,
    /// Whether the first crash may come during recovery.
    pub(super) first_during_start: bool,
}

/// Crashes a server under load with `crash`, and starts it again after each crash. Returns how many crashes there were.
pub(super) fn crash_under_load(
    mut scenario: Scenario,
    options: &Options,
    crashes: &Crashes,
    crash: impl Fn(&mut Scenario) -> Result<(), String>,
    on_fault: OnFault<'_>,
) -> Result<(u64, Verdict), String> {
    let mut rng = SeededRng::new(options.seed + crashes.round, crashes.rng_stream);
    let mut runs = 0;
    let injected = (|| {
        scenario.start_with_topics()?;
        scenario.stop()?;
        let workload = scenario.start_workload(Load::default(), "w", options.seed + crashes.round)?;
        under_load(workload, |_| {
            for _ in 0..crashes.count {
                if (runs > 0 || crashes.first_during_start) && rng.one_in(DURING_START) {
                    scenario.launch()?;
                    sleep(rng.millis(0, 40))?;
                } else {
                    scenario.start()?;
                    sleep(rng.millis(crashes.running_ms.start, crashes.running_ms.end))?;
                }
                crash(&mut scenario)?;
                runs += 1;
                on_fault();
            }
            scenario.start()
        })
    })();
    Ok((runs, scenario.finish(injected)?))
}

/// Divides `total` crashes among histories of at most `per_history`, several at a time. `run` gets the number of a
/// history and its share.
pub(super) fn in_histories(
    fault: &str,
    total: u64,
    per_history: u64,
    run: impl Fn(u64, u64) -> Result<(u64, Verdict), String> + Sync,
) -> Result<FaultSummary, String> {
    timed(fault, |summary| {
        let rounds: Vec<(u64, u64)> = (0..).zip(shares(total, per_history)).collect();
        let summary = Mutex::new(summary);
        in_parallel(PARALLEL, &rounds, |&(round, share)| {
            let (runs, verdict) = run(round, share)?;
            summary.lock().map_err(|_| "another history panicked")?.add(runs, verdict);
            Ok(())
        })
    })
}
