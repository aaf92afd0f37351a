//! Every forged history is rejected, by the check that it targets and by no other.

use std::collections::BTreeSet;

use driftq_history::{Check, LISTED_MAX, check};

use crate::builder::{History, item};
use crate::forgeries;

#[test]
fn forgery_is_rejected_by_its_check_only() {
    for forgery in forgeries::all() {
        let report = check(&forgery.history.entries);
        let checks: BTreeSet<Check> = report.violations.iter().map(|violation| violation.check).collect();
        assert_eq!(checks, BTreeSet::from([forgery.check]), "{}: {report}", forgery.name);
        let violation = &report.violations[0];
        assert!(violation.sentence.contains(forgery.sentence), "{}: {}", forgery.name, violation.sentence);
        let seqs: Vec<u64> = forgery.history.entries.iter().map(|entry| entry.seq).collect();
        assert!(violation.seqs.iter().all(|seq| seqs.contains(seq)), "{}: {:?}", forgery.name, violation.seqs);
        assert!(!report.passed(), "{}", forgery.name);
    }
}

#[test]
fn every_check_has_a_forgery() {
    let forged: BTreeSet<Check> = forgeries::all().iter().map(|forgery| forgery.check).collect();
    assert_eq!(forged, BTreeSet::from(Check::OF_HISTORY));
}

#[test]
fn thousand_violations_are_counted_and_twenty_are_listed() {
    let mut history = History::new();
    history.consume("w1", "g");
    for offset in 0..1_000 {
        history.deliver("w1", item(offset, offset + 1));
        history.ack("w1", offset, offset + 1);
    }
    let report = check(&history.drained().entries);
    assert_eq!(report.tally(Check::Unexpected).violations, 1_000);
    assert_eq!(report.violations.len(), LISTED_MAX);
    assert!(report.to_string().contains("unexpected: and 980 more"), "{report}");
}
