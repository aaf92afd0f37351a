//! SIGKILL at any time, under load.

use super::crashes::{Crashes, crash_under_load, in_histories};
use super::support::OnFault;
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::verdict::FaultSummary;

/// The most kills of one history, on one folder.
const KILLS_PER_HISTORY: u64 = 40;

/// Kills the server, each time under load, and starts it again.
///
/// # Errors
/// If the driver itself fails.
pub fn kills(options: &Options, kills: u64, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    in_histories("kill -9 under load", kills, KILLS_PER_HISTORY, |round, count| {
        let scenario = Scenario::new(options, &options.driftqd, LogMode::of_round(round))?;
        let crashes = Crashes { round, count, rng_stream: 1, running_ms: 0..280, first_during_start: true };
        let kill = |scenario: &mut Scenario| {
            scenario.kill();
            Ok(())
        };
        crash_under_load(scenario, options, &crashes, kill, on_fault)
    })
}
