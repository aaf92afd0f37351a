//! A wall clock that jumps between two starts.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{OnFault, timed, under_load};
use crate::torture::interrupt::sleep;
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::tools;
use crate::torture::verdict::FaultSummary;
use crate::torture::workload::Load;

/// An hour back and forth, which is within the lifetime of idempotency keys and effects; then a month ahead, and back.
const JUMPS: [&str; 5] = ["+0d", "-1h", "+0d", "+30d", "-1h"];
/// The shortest time between two changes of the clock that the broker follows at once.
const INTERVAL: Duration = Duration::from_millis(3_500);
/// Deliveries per call that nacks, releases and expired leases explain. A redelivery storm has more.
const DELIVERIES_PER_CALL_MAX: u64 = 3;

/// Starts the server with different clocks one after the other, each under load.
///
/// # Errors
/// If the driver itself fails.
pub fn clock_jumps(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let fault = "clock jumps";
    let Some(library) = tools::faketime_library() else {
        return Ok(FaultSummary::skipped(fault, "there is no faketime".to_owned()));
    };
    timed(fault, |summary| {
        let mut scenario = Scenario::new(options, &options.driftqd, LogMode::Complete)?;
        let (mut runs, mut started) = (0, None::<Instant>);
        let injected = (|| {
            for (number, shift) in (0..).zip(JUMPS) {
                let launcher = scenario.launcher().clone().env("LD_PRELOAD", &library.to_string_lossy());
                let launcher = launcher.env("FAKETIME", shift).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                sleep(started.map_or(Duration::ZERO, |started| INTERVAL.saturating_sub(started.elapsed())))?;
                scenario.recorder().driver("clock", &json!({ "shift": shift }));
                scenario.start_with(&launcher)?;
                started = Some(Instant::now());
                scenario.create_topics()?;
                scenario.recorder().driver("clock", &json!({ "settled": true }));
                // New clients each time: a month later a key may be used again, so no client may repeat one over a
                // jump.
                let workload =
                    scenario.start_workload(Load::default(), &format!("w{number}"), options.seed + number)?;
                under_load(workload, |_| sleep(Duration::from_millis(500)))?;
                if number % 2 == 0 {
                    scenario.kill();
                } else {
                    scenario.stop()?;
                }
                runs += 1;
                on_fault();
            }
            Ok(())
        })();
        let mut verdict = scenario.finish(injected)?;
        if verdict.counts.deliveries > verdict.counts.calls * DELIVERIES_PER_CALL_MAX {
            verdict.add_violation(format!(
                "a redelivery storm: {} deliveries for {} calls",
                verdict.counts.deliveries, verdict.counts.calls
            ));
        }
        summary.add(runs, verdict);
        Ok(())
    })
}
