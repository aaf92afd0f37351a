//! Two thousand lives: no promise is broken in any of them, and every rare situation is met in one.

use driftq_sim::campaign::{Extent, Plan, run};
use driftq_sim::parallel::cores;
use driftq_sim::report::{FULL_COVERAGE_SEEDS, missed};
use driftq_sim::run::RunOptions;

#[test]
fn two_thousand_lives_keep_every_promise_and_meet_every_situation() {
    let plan = Plan {
        start: 0,
        extent: Extent::Seeds(FULL_COVERAGE_SEEDS),
        jobs: cores(),
        options: RunOptions::default(),
        failures_max: 1,
    };
    let summary = run(&plan, |_| {});
    let broken: Vec<_> = summary.failures.iter().map(|failure| (failure.seed, &failure.run.violation)).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let missed: Vec<_> = missed(&summary).iter().map(|point| point.sentence()).collect();
    assert!(missed.is_empty(), "never met: {missed:?}");
    assert!(summary.counters.predicted * 10 > summary.counters.replies * 9, "the naive model has followed too little");
}
