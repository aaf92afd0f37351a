//! Every trace in `sim/regressions` still shows what it was kept for, and one that does not is reported.

use std::path::{Path, PathBuf};

use driftq_core::faults::Fault;
use driftq_sim::regression::{self, Regression, check, check_with};
use driftq_sim::trace::{Trace, ViolatedInvariant};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

fn kept() -> Vec<(String, Trace)> {
    regression::load(&folder()).expect("the traces are part of the crate")
}

/// A planted bug and a kept trace of it.
fn mutant_trace() -> (Fault, Trace) {
    let (_, trace) = kept().into_iter().find(|(_, trace)| trace.header.mutant.is_some()).expect("one is kept");
    (trace.header.mutant.expect("the trace has a mutant"), trace)
}

#[test]
fn kept_traces_show_what_they_were_kept_for() {
    let kept = kept();
    assert!(!kept.is_empty(), "no traces in {}", folder().display());
    let wrong: Vec<String> = kept
        .iter()
        .filter_map(|(name, trace)| check(trace).err().map(|regression| format!("{name}: {regression}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kept_traces_are_short_and_described() {
    for (name, trace) in kept() {
        assert!(trace.actions.len() <= 25, "{name} has {} actions", trace.actions.len());
        assert!(trace.header.about.is_some(), "{name} has no description in \"about\"");
    }
}

#[test]
fn mutant_that_violates_nothing_is_reported() {
    let (fault, mut trace) = mutant_trace();
    trace.actions.clear();
    let survived = check(&trace);
    assert!(matches!(&survived, Err(Regression::Survived { fault: found, .. }) if *found == fault), "{survived:?}");
}

#[test]
fn mutant_that_violates_another_invariant_is_reported() {
    let (_, mut trace) = mutant_trace();
    trace.header.violates = Some(ViolatedInvariant { invariant: 99, sentence: "no such invariant".to_owned() });
    let another = check(&trace);
    assert!(matches!(another, Err(Regression::Another { .. })), "{another:?}");
    trace.header.violates = None;
    assert_eq!(check(&trace), Err(Regression::Unspecified));
}

#[test]
fn returned_bug_is_reported() {
    let (fault, trace) = mutant_trace();
    // The planted bug is present whether or not it is requested.
    let with_fault = |_| trace.replay(Some(fault)).violation;
    let mutant_result = check_with(&trace, with_fault);
    assert!(matches!(mutant_result, Err(Regression::Violated(_))), "{mutant_result:?}");
    let mut without_mutant = trace.clone();
    without_mutant.header.mutant = None;
    let result = check_with(&without_mutant, with_fault);
    assert!(matches!(result, Err(Regression::Violated(_))), "{result:?}");
    assert_eq!(check(&without_mutant), Ok(()), "the broker without the planted bug passes");
}
