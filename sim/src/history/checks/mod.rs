//! The checks, a room for each family. None of them knows the core.

use super::Entry;
use super::facts::Facts;
use super::report::{Check, Report};

/// Judges a history by what its clients saw.
///
/// Nothing is accused that the history does not prove: a call without a clear answer may have happened once or never, times are
/// compared only where no clock was tampered with, and what nobody looked at is not missed.
#[must_use]
pub fn check(entries: &[Entry]) -> Report {
    let facts = Facts::of(entries);
    let mut report = Report { counts: facts.counts, ..Report::default() };
    report.begin(&Check::OF_HISTORY);
    report.looked_at(Check::Form, entries.len());
    for (seq, what) in &facts.malformed {
        report.accuse(Check::Form, [*seq], || what.clone());
    }
    report
}
