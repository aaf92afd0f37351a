//! What a run came to: a table for people, JSON for programs.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Case, Outcome, Verdict};

/// A case and what it came to.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The case.
    pub case: Case,
    /// What it came to.
    pub verdict: Verdict,
}

/// What a run came to, case by case in the order of the specification.
#[derive(Clone, Debug)]
pub struct Report {
    /// The server.
    pub url: String,
    /// How long the run took.
    pub took: Duration,
    /// Every case that was asked for.
    pub entries: Vec<Entry>,
}

impl Report {
    /// How many cases came to an outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.entries.iter().filter(|entry| entry.verdict.outcome == outcome).count()
    }

    /// The names of the cases that came to an outcome.
    #[must_use]
    pub fn names(&self, outcome: Outcome) -> Vec<&'static str> {
        let of_it = self.entries.iter().filter(|entry| entry.verdict.outcome == outcome);
        of_it.map(|entry| entry.case.name).collect()
    }

    /// Counts and time in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = Outcome::ALL.map(|outcome| format!("{} {}", self.count(outcome), outcome.words()));
        let cases = self.entries.len();
        format!("{cases} cases against {} in {:.1} s: {}", self.url, self.took.as_secs_f64(), counts.join(", "))
    }

    /// The report for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let count = |outcome| self.count(outcome);
        let cases = self.entries.iter().map(|Entry { case, verdict }| {
            json!({
                "section": case.section, "clause": case.clause, "name": case.name,
                "result": verdict.outcome.words(), "seen": verdict.seen,
            })
        });
        json!({
            "url": self.url,
            "took_ms": self.took.as_millis() as u64,
            "counts": {
                "pass": count(Outcome::Pass), "fail": count(Outcome::Fail),
                "deviates on purpose": count(Outcome::Deviates), "not applicable": count(Outcome::NotApplicable),
            },
            "cases": cases.collect::<Vec<_>>(),
        })
    }
}

/// The table for people: a heading for each section, a line for each clause, and below it what was seen, where that says more.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for Entry { case, verdict } in &self.entries {
            if case.section != section {
                section = case.section;
                writeln!(f, "\n{section}")?;
            }
            let words = verdict.outcome.words();
            writeln!(f, "  {words:<19}  {}  [{}]", case.clause, case.name)?;
            if !verdict.seen.is_empty() {
                writeln!(f, "  {:<19}  - {}", "", verdict.seen)?;
            }
        }
        f.write_char('\n')?;
        f.write_str(&self.summary())
    }
}
