//! The checks, a room for each family. None of them knows the core.

mod content;
mod effects;
mod flight;
mod identity;
mod leases;
mod offsets;
mod presence;
mod settles;
mod steps;

use super::Entry;
use super::parsed::Facts;
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
    form(&facts, entries.len(), &mut report);
    presence::lost(&facts, &mut report);
    content::check(&facts, &mut report);
    settles::check(&facts, &mut report);
    leases::attempts(&facts, &mut report);
    leases::overlap(&facts, &mut report);
    offsets::check(&facts, &mut report);
    leases::order(&facts, &mut report);
    flight::check(&facts, entries, &mut report);
    identity::check(&facts, &mut report);
    presence::drained(&facts, &mut report);
    effects::check(&facts, &mut report);
    steps::check(&facts, &mut report);
    report.violations.sort_by_key(|violation| violation.check);
    report
}

fn form(facts: &Facts<'_>, lines: usize, report: &mut Report) {
    report.looked_at(Check::Form, lines);
    for (seq, what) in &facts.malformed {
        report.accuse(Check::Form, [*seq], || what.clone());
    }
    // The order of tokens as texts is their order by age only if all are as long.
    let width = facts.deliveries.first().map_or(0, |delivery| delivery.token.len());
    let is_token = |token: &str| {
        token.len() == width && token.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    for delivery in facts.deliveries.iter().filter(|delivery| !is_token(delivery.token)) {
        report.accuse(Check::Form, [delivery.seq], || {
            format!("\"{}\" is not a lease token: lowercase hexadecimal, all of one length", delivery.token)
        });
    }
}
