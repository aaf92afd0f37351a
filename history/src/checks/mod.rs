//! The checks that use only the history, one module per family. None of them uses the core.

mod content;
mod effects;
mod identity;
mod in_flight;
mod leases;
mod offsets;
mod presence;
mod settles;
mod steps;

use crate::entry::Entry;
use crate::parsed::{ParsedHistory, parse};
use crate::report::{Check, Report};

/// Checks a history by what its clients saw.
///
/// Reports only what the history proves: a call without a definite answer may have taken effect once or never, times
/// are not compared across clock changes, and a message is missing only if a consumer would have received it.
#[must_use]
pub fn check(entries: &[Entry]) -> Report {
    let history = parse(entries);
    let mut report = Report { counts: history.counts, ..Report::default() };
    report.list(&Check::OF_HISTORY);
    form(&history, entries.len(), &mut report);
    presence::lost(&history, &mut report);
    content::check(&history, &mut report);
    settles::check(&history, &mut report);
    leases::attempts(&history, &mut report);
    leases::overlap(&history, &mut report);
    offsets::check(&history, &mut report);
    leases::order(&history, &mut report);
    in_flight::check(&history, entries, &mut report);
    identity::check(&history, &mut report);
    presence::drained(&history, &mut report);
    effects::check(&history, &mut report);
    steps::check(&history, &mut report);
    report.violations.sort_by_key(|violation| violation.check);
    report
}

fn form(history: &ParsedHistory<'_>, lines: usize, report: &mut Report) {
    report.count(Check::Form, lines);
    for (seq, problem) in &history.malformed {
        report.add_violation(Check::Form, [*seq], || problem.clone());
    }
    // Tokens sort by age as text only if all have the same length.
    let width = history.deliveries.first().map_or(0, |delivery| delivery.token.len());
    let is_token = |token: &str| {
        token.len() == width && token.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    for delivery in history.deliveries.iter().filter(|delivery| !is_token(delivery.token)) {
        report.add_violation(Check::Form, [delivery.seq], || {
            format!("\"{}\" is not a lease token: lowercase hexadecimal, all of one length", delivery.token)
        });
    }
}
