//! The canary: the same power loss under a broker that does not sync, which must be detected.

use std::sync::atomic::{AtomicU64, Ordering};

use super::crashes::in_histories;
use super::power::cut_power_under_load;
use super::support::OnFault;
use crate::torture::disk::FileSystem;
use crate::torture::scenario::Options;
use crate::torture::verdict::{FaultSummary, Verdict};

/// Cuts the power of the canary's disk `runs` times, each time on a new disk, and counts how often that is detected: by
/// its history, or because it does not start again.
///
/// # Errors
/// If the driver itself fails.
pub fn canary(options: &Options, runs: u64, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    let fault = "the canary's power loss";
    let usable: Vec<FileSystem> = FileSystem::ALL.into_iter().filter(|kind| kind.missing().is_none()).collect();
    if usable.is_empty() {
        return Ok(FaultSummary::skipped(fault, FileSystem::Ext4.missing().unwrap_or_default()));
    }
    // Its losses are expected, so its files are not kept.
    let options = Options { keep: None, ..options.clone() };
    let detected = AtomicU64::new(0);
    let mut summary = in_histories(fault, runs, 1, |round, count| {
        let file_system = usable[(round % usable.len() as u64) as usize];
        let (runs, verdict) = cut_power_under_load(&options, &options.canary, file_system, (round, count), on_fault)?;
        // A start that failed before any power loss shows nothing.
        detected.fetch_add(u64::from(runs > 0 && !verdict.passed()), Ordering::Relaxed);
        Ok((runs, Verdict { violations: Vec::new(), notes: Vec::new(), ..verdict }))
    })?;
    summary.detected = Some(detected.into_inner());
    Ok(summary)
}
