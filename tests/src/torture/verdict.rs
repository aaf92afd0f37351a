//! The verdict on a history, and the summary of a fault.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use driftq_history::{self as history, Check, Report};

use super::recorder::{Counts, Recorder};

/// The result of verifying one history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The size of the history.
    pub counts: Counts,
    /// Messages that were acknowledged and never delivered.
    pub lost: u64,
    /// Messages that were acked and delivered again.
    pub resurrected: u64,
    /// Acks that succeeded with a token that had been replaced.
    pub stale_acks: u64,
    /// Attempts or tokens that were repeated or did not increase.
    pub repeated_attempts: u64,
    /// All other violations.
    pub other: u64,
    /// How many things each check examined, so that nothing passes vacuously.
    pub examined: BTreeMap<Check, u64>,
    /// The violations, the first few of each kind.
    pub violations: Vec<String>,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Whether there is no violation.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.lost + self.resurrected + self.stale_acks + self.repeated_attempts + self.other == 0
    }

    /// Adds a violation that was observed outside of the history.
    pub fn add_violation(&mut self, violation: String) {
        self.other += 1;
        self.violations.push(violation);
    }

    fn add_report(&mut self, report: Report) {
        for (check, tally) in &report.tallies {
            let count = match check {
                Check::Lost | Check::LogMessages => &mut self.lost,
                Check::Resurrected => &mut self.resurrected,
                Check::Stale => &mut self.stale_acks,
                Check::Attempts => &mut self.repeated_attempts,
                _ => &mut self.other,
            };
            *count += tally.violations;
            *self.examined.entry(*check).or_default() += tally.looked_at;
        }
        self.violations.extend(report.violations.iter().map(ToString::to_string));
        self.notes.extend(report.notes);
    }
}

/// Verifies a history by itself and against the log of its server, which must have exited. `failure` is why the server
/// could not be drained, if it could not.
///
/// # Errors
/// If the history cannot be read.
pub fn verify(recorder: &Recorder, data: &Path, failure: Option<String>) -> Result<Verdict, String> {
    let mut verdict = Verdict { counts: recorder.counts(), ..Verdict::default() };
    let entries = history::read(recorder.path()).map_err(|error| format!("the history: {error}"))?;
    verdict.add_report(history::check(&entries));
    match failure {
        Some(failure) => verdict.add_violation(failure),
        // Without a failure: a log that its own server cannot open need not be replayed.
        None => match history::compare(&entries, data) {
            Ok(report) => verdict.add_report(report),
            Err(error) => verdict.add_violation(format!("the log cannot be replayed: {error}")),
        },
    }
    Ok(verdict)
}

/// Copies history, server log, configuration and data folder of a failed scenario below `keep`.
///
/// # Errors
/// If they cannot be copied.
pub fn keep(verdict: &Verdict, home: &Path, data: &Path, keep: &Path) -> Result<(), String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let folder = keep.join(format!("history-{}", now.as_nanos()));
    let copy = || {
        fs::create_dir_all(folder.join("data"))?;
        fs::write(folder.join("verdict.txt"), verdict.violations.join("\n") + "\n")?;
        for file in ["history.jsonl", "driftqd.log", "driftqd.toml"] {
            if home.join(file).exists() {
                fs::copy(home.join(file), folder.join(file))?;
            }
        }
        for file in fs::read_dir(data).into_iter().flatten().flatten() {
            fs::copy(file.path(), folder.join("data").join(file.file_name()))?;
        }
        Ok(())
    };
    copy().map_err(|error: std::io::Error| format!("{} cannot be written: {error}", folder.display()))
}

/// The runs of one fault: a row of the table.
#[derive(Clone, Debug, Default)]
pub struct FaultSummary {
    /// The fault.
    pub fault: String,
    /// How often it was injected.
    pub runs: u64,
    /// The sum of all verdicts.
    pub sum: Verdict,
    /// How long it took.
    pub time: Duration,
    /// Why it was skipped, if it was.
    pub skipped: Option<String>,
    /// In how many runs a violation was detected, for a fault that must cause one.
    pub detected: Option<u64>,
}

impl FaultSummary {
    /// A summary without runs.
    #[must_use]
    pub fn new(fault: impl Into<String>) -> Self {
        Self { fault: fault.into(), ..Self::default() }
    }

    /// The summary of a fault that was skipped.
    #[must_use]
    pub fn skipped(fault: impl Into<String>, reason: String) -> Self {
        Self { skipped: Some(reason), ..Self::new(fault) }
    }

    /// Adds the verdict on `runs` further runs.
    pub fn add(&mut self, runs: u64, verdict: Verdict) {
        self.runs += runs;
        let Counts { calls, acked, deliveries, dead } = verdict.counts;
        self.sum.counts.calls += calls;
        self.sum.counts.acked += acked;
        self.sum.counts.deliveries += deliveries;
        self.sum.counts.dead += dead;
        self.sum.lost += verdict.lost;
        self.sum.resurrected += verdict.resurrected;
        self.sum.stale_acks += verdict.stale_acks;
        self.sum.repeated_attempts += verdict.repeated_attempts;
        self.sum.other += verdict.other;
        for (check, examined) in verdict.examined {
            *self.sum.examined.entry(check).or_default() += examined;
        }
        self.sum.violations.extend(verdict.violations);
        self.sum.notes.extend(verdict.notes);
    }

    /// How many things a check examined in all histories.
    #[must_use]
    pub fn examined(&self, check: Check) -> u64 {
        self.sum.examined.get(&check).copied().unwrap_or_default()
    }

    /// Whether the outcome is the required one.
    #[must_use]
    pub fn passed(&self) -> bool {
        match self.detected {
            // One run in ten may lose nothing: the power was cut just after the kernel had written everything back.
            Some(detected) => detected >= self.runs * 9 / 10 && detected > 0,
            None => self.sum.passed(),
        }
    }
}

/// Where the files of failed scenarios are, as a line of output.
#[must_use]
pub fn kept_in(keep: Option<&PathBuf>) -> String {
    keep.map_or_else(
        || "use --keep DIR to keep the histories".to_owned(),
        |keep| format!("the histories are in {}", keep.display()),
    )
}
