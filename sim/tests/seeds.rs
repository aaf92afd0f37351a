//! Two thousand seeds violate no invariant and hit every coverage point.

use std::sync::atomic::AtomicBool;

use driftq_sim::campaign::{Extent, Plan, run};
use driftq_sim::parallel::cores;
use driftq_sim::report::{FULL_COVERAGE_SEEDS, missed};
use driftq_sim::run::RunOptions;

#[test]
fn two_thousand_seeds_pass_with_full_coverage() {
    let stop = AtomicBool::new(false);
    let plan = Plan {
        start: 0,
        extent: Extent::Seeds(FULL_COVERAGE_SEEDS),
        jobs: cores(),
        options: RunOptions::default(),
        failures_max: 1,
        stop: &stop,
    };
    let summary = run(&plan, |_| {});
    let violations: Vec<_> = summary.failures.iter().map(|failure| (failure.seed, &failure.run.violation)).collect();
    assert!(violations.is_empty(), "{violations:?}");
    let missed: Vec<_> = missed(&summary).iter().map(|point| point.sentence()).collect();
    assert!(missed.is_empty(), "never hit: {missed:?}");
    let counters = summary.counters;
    assert_eq!(counters.predicted, counters.replies + counters.deliveries + counters.closed, "the oracle predicts all");
}
