//! What a history proves, in the figures that are published.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use driftq_history::{self as history, Check, Report};

use super::recorder::{Counts, Recorder};

/// What one history came to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How much it is about.
    pub counts: Counts,
    /// Acknowledged and never seen again.
    pub lost: u64,
    /// Acked and delivered again.
    pub resurrected: u64,
    /// Acks that were taken with a token that had been replaced.
    pub stale_acks: u64,
    /// Attempts or tokens that came twice, or did not rise.
    pub repeated_attempts: u64,
    /// Every other broken promise.
    pub other: u64,
    /// How many things each check looked at, so that nothing passes because there was nothing.
    pub looked_at: BTreeMap<Check, u64>,
    /// What is wrong, in words: the first few of each kind.
    pub sentences: Vec<String>,
    /// What could not be judged, and why.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Whether no promise is broken.
    #[must_use]
    pub fn is_innocent(&self) -> bool {
        self.lost + self.resurrected + self.stale_acks + self.repeated_attempts + self.other == 0
    }

    /// Adds a broken promise that the driver saw itself.
    pub fn accuse(&mut self, sentence: String) {
        self.other += 1;
        self.sentences.push(sentence);
    }

    fn take(&mut self, report: Report) {
        for (check, tally) in &report.tallies {
            let figure = match check {
                Check::Lost | Check::LogMessages => &mut self.lost,
                Check::Resurrected => &mut self.resurrected,
                Check::Stale => &mut self.stale_acks,
                Check::Attempts => &mut self.repeated_attempts,
                _ => &mut self.other,
            };
            *figure += tally.violations;
            *self.looked_at.entry(*check).or_default() += tally.looked_at;
        }
        self.sentences.extend(report.violations.iter().map(ToString::to_string));
        self.notes.extend(report.notes);
    }
}

/// Judges a history by itself and against the log of its server, which must have ended. `trouble` is what kept the server from
/// getting to the end of it, if anything did.
///
/// # Errors
/// If the history cannot be read, which is the driver's own fault.
pub fn judge(recorder: &Recorder, data: &Path, trouble: Option<String>) -> Result<Verdict, String> {
    let mut verdict = Verdict { counts: recorder.counts(), ..Verdict::default() };
    let entries = history::read(recorder.path()).map_err(|error| format!("the history: {error}"))?;
    verdict.take(history::check(&entries));
    match trouble {
        Some(trouble) => verdict.accuse(trouble),
        // Whose log could not even be opened by its own server need not be asked for its story.
        None => match history::compare(&entries, data) {
            Ok(report) => verdict.take(report),
            Err(error) => verdict.accuse(format!("the log cannot be replayed: {error}")),
        },
    }
    Ok(verdict)
}

/// Keeps what it takes to look into a broken promise: the history, what the server said, and its folder.
///
/// # Errors
/// If it cannot be kept.
pub fn keep(verdict: &Verdict, home: &Path, data: &Path, keep: &Path) -> Result<(), String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let place = keep.join(format!("history-{}", now.as_nanos()));
    let copy = || {
        fs::create_dir_all(place.join("data"))?;
        fs::write(place.join("verdict.txt"), verdict.sentences.join("\n") + "\n")?;
        for file in ["history.jsonl", "driftqd.log", "driftqd.toml"] {
            if home.join(file).exists() {
                fs::copy(home.join(file), place.join(file))?;
            }
        }
        for file in fs::read_dir(data).into_iter().flatten().flatten() {
            fs::copy(file.path(), place.join("data").join(file.file_name()))?;
        }
        Ok(())
    };
    copy().map_err(|error: std::io::Error| format!("{} cannot be kept: {error}", place.display()))
}

/// Everything that was tried of one kind.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What was done.
    pub fault: String,
    /// How often.
    pub runs: u64,
    /// What came of it, all histories together.
    pub sum: Verdict,
    /// How long it took.
    pub time: Duration,
    /// Why it was not tried, where it was not.
    pub skipped: Option<String>,
    /// How many runs were convicted, where that is what is wanted.
    pub convicted: Option<u64>,
}

impl Row {
    /// Nothing yet.
    #[must_use]
    pub fn of(fault: impl Into<String>) -> Self {
        Self { fault: fault.into(), ..Self::default() }
    }

    /// Not tried, for this reason.
    #[must_use]
    pub fn skipped(fault: impl Into<String>, why: String) -> Self {
        Self { skipped: Some(why), ..Self::of(fault) }
    }

    /// Adds what came of `runs` more.
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
        for (check, looked_at) in verdict.looked_at {
            *self.sum.looked_at.entry(check).or_default() += looked_at;
        }
        self.sum.sentences.extend(verdict.sentences);
        self.sum.notes.extend(verdict.notes);
    }

    /// How many things a check looked at, in all histories.
    #[must_use]
    pub fn looked_at(&self, check: Check) -> u64 {
        self.sum.looked_at.get(&check).copied().unwrap_or_default()
    }

    /// Whether it went as it must.
    #[must_use]
    pub fn passed(&self) -> bool {
        match self.convicted {
            // One in ten may be lucky: the power went just when the system had written everything by itself.
            Some(convicted) => convicted >= self.runs * 9 / 10 && convicted > 0,
            None => self.sum.is_innocent(),
        }
    }
}

/// Where histories of broken promises are, for whoever reads the end of a run.
#[must_use]
pub fn kept_in(keep: Option<&PathBuf>) -> String {
    keep.map_or_else(
        || "use --keep DIR to keep the histories".to_owned(),
        |keep| format!("the histories are in {}", keep.display()),
    )
}
