//! The report of a run, as text and as JSON.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::case::Case;
use super::verdict::{Verdict, VerdictKind};

/// A case and its verdict.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The case.
    pub case: Case,
    /// Its verdict.
    pub verdict: Verdict,
}

/// The verdicts of a run, in the order of the specification.
#[derive(Clone, Debug)]
pub struct Report {
    /// The server.
    pub url: String,
    /// How long the run took.
    pub took: Duration,
    /// All selected cases.
    pub entries: Vec<Entry>,
}

impl Report {
    /// How many cases have a kind of verdict.
    #[must_use]
    pub fn count(&self, kind: VerdictKind) -> usize {
        self.entries.iter().filter(|entry| entry.verdict.kind == kind).count()
    }

    /// The names of the cases with a kind of verdict.
    #[must_use]
    pub fn names(&self, kind: VerdictKind) -> Vec<&'static str> {
        let entries = self.entries.iter().filter(|entry| entry.verdict.kind == kind);
        entries.map(|entry| entry.case.name).collect()
    }

    /// Counts and time as one line of text.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = VerdictKind::ALL.map(|kind| format!("{} {}", self.count(kind), kind.as_str()));
        let cases = self.entries.len();
        format!("{cases} cases against {} in {:.1} s: {}", self.url, self.took.as_secs_f64(), counts.join(", "))
    }

    /// The report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let count = |kind| self.count(kind);
        let cases = self.entries.iter().map(|Entry { case, verdict }| {
            json!({
                "section": case.section, "clause": case.clause, "name": case.name,
                "result": verdict.kind.as_str(), "seen": verdict.seen,
            })
        });
        json!({
            "url": self.url,
            "took_ms": self.took.as_millis() as u64,
            "counts": {
                "pass": count(VerdictKind::Pass), "fail": count(VerdictKind::Fail),
                "deviates on purpose": count(VerdictKind::Deviates), "not applicable": count(VerdictKind::NotApplicable),
            },
            "cases": cases.collect::<Vec<_>>(),
        })
    }
}

/// A heading per section, a line per clause, and below it what was observed.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for Entry { case, verdict } in &self.entries {
            if case.section != section {
                section = case.section;
                writeln!(f, "\n{section}")?;
            }
            let kind = verdict.kind.as_str();
            writeln!(f, "  {kind:<19}  {}  [{}]", case.clause, case.name)?;
            if !verdict.seen.is_empty() {
                writeln!(f, "  {:<19}  - {}", "", verdict.seen)?;
            }
        }
        f.write_char('\n')?;
        f.write_str(&self.summary())
    }
}
