//! Hundreds of seeds violate no invariant. Thousands, which hit every coverage point, are run by `driftq-sim run`; it
//! checks that they do.

use std::sync::atomic::AtomicBool;

use driftq_sim::campaign::{Extent, Plan, run};
use driftq_sim::parallel::cores;
use driftq_sim::run::RunOptions;

#[test]
fn seeds_violate_no_invariant_and_the_oracle_predicts_all() {
    let stop = AtomicBool::new(false);
    let plan = Plan {
        start: 0,
        extent: Extent::Seeds(600),
        jobs: cores(),
        options: RunOptions::default(),
        failures_max: 1,
        stop: &stop,
    };
    let summary = run(&plan, |_| {});
    let violations: Vec<_> = summary.failures.iter().map(|failure| (failure.seed, &failure.run.violation)).collect();
    assert!(violations.is_empty(), "{violations:?}");
    let counters = summary.counters;
    assert_eq!(counters.predicted, counters.replies + counters.deliveries + counters.closed, "the oracle predicts all");
}
