//! Two thousand lives: no promise is broken in any of them, and every rare situation is met in one.

use driftq_sim::life::Conditions;
use driftq_sim::parallel::cores;
use driftq_sim::report::{SEEDS_THAT_MEET_ALL, missed};
use driftq_sim::run::{Extent, Plan, run};

#[test]
fn two_thousand_lives_keep_every_promise_and_meet_every_situation() {
    let plan = Plan {
        start: 0,
        extent: Extent::Seeds(SEEDS_THAT_MEET_ALL),
        jobs: cores(),
        conditions: Conditions::default(),
        failures_max: 1,
    };
    let summary = run(&plan, |_| {});
    let broken: Vec<_> = summary.failures.iter().map(|failure| (failure.seed, &failure.life.violation)).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let missed: Vec<_> = missed(&summary).iter().map(|point| point.sentence()).collect();
    assert!(missed.is_empty(), "never met: {missed:?}");
    assert!(summary.tally.predicted * 10 > summary.tally.replies * 9, "the naive model has followed too little");
}
