//! Power losses: what had not reached the medium is lost.

use std::path::Path;

use super::crashes::{Crashes, crash_under_load, in_histories};
use super::support::OnFault;
use crate::torture::disk::{Disk, FileSystem};
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::verdict::{FaultSummary, Verdict};

/// The most power losses of one history, on one disk.
const LOSSES_PER_HISTORY: u64 = 10;

/// Cuts the power of a disk with this file system, each time under load.
///
/// # Errors
/// If the driver itself fails.
pub fn power(
    options: &Options,
    file_system: FileSystem,
    losses: u64,
    on_fault: OnFault<'_>,
) -> Result<FaultSummary, String> {
    let fault = format!("power loss, {}", file_system.name());
    if let Some(reason) = file_system.missing() {
        return Ok(FaultSummary::skipped(fault, reason));
    }
    in_histories(&fault, losses, LOSSES_PER_HISTORY, |round, count| {
        cut_power_under_load(options, &options.driftqd, file_system, (round, count), on_fault)
    })
}

/// One history with `count` power losses of `program`. Returns how many there were.
pub(super) fn cut_power_under_load(
    options: &Options,
    program: &Path,
    file_system: FileSystem,
    (round, count): (u64, u64),
    on_fault: OnFault<'_>,
) -> Result<(u64, Verdict), String> {
    let mount = |home: &Path| Disk::with(file_system, home);
    let scenario = Scenario::on_disk(options, program, LogMode::of_round(round), mount)?;
    // Before the first power loss there is nothing to recover.
    let crashes = Crashes { round, count, rng_stream: 2, running_ms: 60..350, first_during_start: false };
    crash_under_load(scenario, options, &crashes, Scenario::cut_power, on_fault)
}
