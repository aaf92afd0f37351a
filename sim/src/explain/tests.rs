//! Explanations of kept traces.

use super::*;

fn stored_trace(name: &str) -> Trace {
    let path = format!("{}/regressions/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    Trace::read(path.as_ref()).expect("the trace is kept")
}

/// The points of a known curve.
fn points_of(last: usize, share: impl Fn(usize) -> u64) -> BTreeMap<usize, CurvePoint> {
    let point = |after| CurvePoint { after, futures: 64, same: share(after), another: 0 };
    let mut points = BTreeMap::from([(last, point(last))]);
    let mut next = initial_points(last);
    while !next.is_empty() {
        points.extend(next.iter().map(|after| (*after, point(*after))));
        next = refined_points(&points);
    }
    points
}

#[test]
fn inevitable_action_in_a_long_run_is_found_with_few_points() {
    for (last, inevitable) in [(1_800, 1), (1_800, 1_799), (1_001, 640), (65, 64), (500, 500)] {
        let points = points_of(last, |after| if after >= inevitable { 64 } else { 3 });
        assert!(points.len() <= POINTS_MAX, "{} points", points.len());
        let points: Vec<CurvePoint> = points.into_values().collect();
        assert_eq!(first_of_tail(&points, CurvePoint::is_same_in_all), Some(inevitable), "of {last}");
    }
}

#[test]
fn early_rise_of_the_curve_is_refined() {
    let points = points_of(1_600, |after| {
        if after >= 1_500 {
            64
        } else if after >= 333 {
            40
        } else {
            0
        }
    });
    for after in [332, 333, 1_499, 1_500] {
        assert!(points.contains_key(&after), "{after}: {:?}", points.keys());
    }
}

#[test]
fn violation_avoided_later_is_not_inevitable_before() {
    let point = |after, same| CurvePoint { after, futures: 64, same, another: 64 - same };
    let points = [point(0, 64), point(1, 63), point(2, 64), point(3, 64)];
    assert_eq!(first_of_tail(&points, CurvePoint::is_same_in_all), Some(2));
    assert_eq!(first_of_tail(&points, CurvePoint::is_violated_in_all), Some(0));
}

/// The planted bug is also in the broker that should be without it: no future counts, and one is returned.
#[test]
fn future_that_fails_without_the_bug_does_not_count_and_is_returned() {
    let trace = stored_trace("mutant-segment-removed-early");
    let fault = trace.header.mutant.expect("the trace has a mutant");
    let wanted = trace.header.violates.clone().expect("the trace names the invariant");
    let actions = &trace.actions;
    let case = Case { setup: &trace.header.setup, actions, fault: Some(fault), wanted, passes_without_fault: true };
    let options = Options { futures: 16, jobs: NonZeroUsize::MIN };
    // Only the last action violates the invariant, so both brokers get as far as every fork.
    let curve_without = curve(&case, Planted(fault), NoFaults, options).expect("no violation before the last action");
    assert!(curve_without.violation_without_fault.is_none());
    assert!(curve_without.points.iter().any(|point| point.after < actions.len() && point.same > 0));
    let curve_with =
        curve(&case, Planted(fault), Planted(fault), options).expect("no violation before the last action");
    assert!(curve_with.points.iter().all(|point| point.after == actions.len() || point.same + point.another == 0));
    let trace = curve_with.violation_without_fault.expect("a future that fails without the bug is returned");
    assert!(trace.replay(Some(fault)).violation.is_some(), "it can be replayed");
    assert_eq!(trace.header.mutant, None);
}
