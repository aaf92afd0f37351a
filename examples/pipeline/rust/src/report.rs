//! What a run has shown, as a table.

use std::fmt;
use std::time::Duration;

use crate::crashes::Kills;
use crate::evidence::{Evidence, Grants};
use crate::ledger::Kind;
use crate::metrics::Totals;
use crate::verify::{Finding, verify};

/// The end of a run.
#[derive(Debug)]
pub struct Report {
    /// What is wrong; empty if each effect happened once.
    pub findings: Vec<Finding>,
    seed: u64,
    requests: usize,
    sent_twice: usize,
    kills: Kills,
    totals: Totals,
    steps: Vec<Step>,
    dead_letters: u64,
    drain: Duration,
    /// From the produce of a request to its report, ascending.
    latencies: Vec<Duration>,
}

/// The figures of a step.
#[derive(Debug)]
struct Step {
    kind: Kind,
    messages: usize,
    handlers: u64,
    /// Grants of side effects, where the step has one.
    side_effects: Option<u64>,
    attempts: u64,
    effects: u64,
}

impl Report {
    pub(crate) fn new(seed: u64, evidence: &Evidence, kills: Kills, totals: Totals, drain: Duration) -> Self {
        let mut latencies: Vec<Duration> = evidence
            .requests
            .iter()
            .filter_map(|request| {
                let report = evidence.effects.get(&(Kind::Report, request.identity(Kind::Report)))?;
                Some(report.at.saturating_duration_since(request.sent_at))
            })
            .collect();
        latencies.sort_unstable();
        Self {
            findings: verify(evidence),
            seed,
            requests: evidence.requests.len(),
            sent_twice: evidence.requests.iter().filter(|request| request.is_sent_twice).count(),
            kills,
            totals,
            steps: Kind::ALL.map(|kind| Step::new(kind, evidence)).into(),
            dead_letters: evidence.dead_letters,
            drain,
            latencies,
        }
    }

    fn percentile(&self, percent: usize) -> f64 {
        let index = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(index).copied().unwrap_or_default().as_secs_f64()
    }
}

impl Step {
    fn new(kind: Kind, evidence: &Evidence) -> Self {
        let sum = |grants: &Grants| -> u64 {
            grants.iter().filter(|((granted, _), _)| *granted == kind).map(|(_, count)| count).sum()
        };
        let recorded = || evidence.effects.iter().filter(|((recorded, _), _)| *recorded == kind).map(|(_, it)| it);
        Self {
            kind,
            messages: evidence.messages.get(&kind).map_or(0, Vec::len),
            handlers: sum(&evidence.handlers),
            side_effects: (kind == Kind::Charge).then(|| sum(&evidence.side_effects)),
            attempts: recorded().map(|effect| effect.attempts).sum(),
            effects: recorded().map(|effect| effect.effects).sum(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, requests, sent_twice, kills, totals, .. } = self;
        writeln!(f, "seed {seed}")?;
        writeln!(f, "requests              {requests}, of which {sent_twice} were sent twice")?;
        writeln!(f, "kills                 {} of workers, {} of the broker", kills.workers, kills.broker)?;
        writeln!(f, "leases run out        {}, at least", totals.expired)?;
        writeln!(f, "replays               {}, at least: stored results used instead of an effect", totals.replayed)?;
        writeln!(f, "dead letters          {}", self.dead_letters)?;
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.percentile(percent));
        writeln!(f, "request to report     p50 {p50:.2} s, p99 {p99:.2} s, max {max:.2} s")?;
        writeln!(f, "drained within        {:.1} s of the last crash", self.drain.as_secs_f64())?;
        writeln!(f)?;
        let header = ["step", "messages", "handler runs", "grants of effect", "attempts", "repeats", "effects"];
        let widths = header.map(|name| name.len().max(8));
        let row = |f: &mut fmt::Formatter<'_>, cells: [String; 7]| -> fmt::Result {
            let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            writeln!(f, "{}", cells.join("  "))
        };
        row(f, header.map(ToOwned::to_owned))?;
        for step in &self.steps {
            row(
                f,
                [
                    step.kind.topic().to_owned(),
                    step.messages.to_string(),
                    step.handlers.to_string(),
                    step.side_effects.unwrap_or(step.handlers).to_string(),
                    step.attempts.to_string(),
                    (step.attempts - step.effects.min(step.attempts)).to_string(),
                    step.effects.to_string(),
                ],
            )?;
        }
        writeln!(f)?;
        if self.findings.is_empty() {
            return write!(f, "each of {requests} requests was planned, charged and reported exactly once");
        }
        writeln!(f, "FAILED:")?;
        let findings: Vec<String> = self.findings.iter().map(|finding| format!("  {finding}")).collect();
        write!(f, "{}", findings.join("\n"))
    }
}
