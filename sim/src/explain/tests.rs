use super::*;

fn kept(name: &str) -> Trace {
    let path = format!("{}/regressions/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    Trace::read(path.as_ref()).expect("it is kept")
}

/// A curve that is known beforehand: from which step on everything is lost, and how much rises where.
fn looked(last: usize, share: impl Fn(usize) -> u64) -> BTreeMap<usize, Point> {
    let point = |after| Point { after, futures: 64, same: share(after), another: 0 };
    let mut points = BTreeMap::from([(last, point(last))]);
    let mut next = first_look(last);
    while !next.is_empty() {
        points.extend(next.iter().map(|after| (*after, point(*after))));
        next = closer_look(&points);
    }
    points
}

#[test]
fn in_a_long_life_the_very_step_is_found_with_few_looks() {
    for (last, edge) in [(1_800, 1), (1_800, 1_799), (1_001, 640), (65, 64), (500, 500)] {
        let points = looked(last, |after| if after >= edge { 64 } else { 3 });
        assert!(points.len() <= POINTS_MAX, "{} looks", points.len());
        let points: Vec<Point> = points.into_values().collect();
        assert_eq!(from_on(&points, Point::is_certain), Some(edge), "of {last}");
    }
}

#[test]
fn a_rise_long_before_the_end_is_looked_at_closely_too() {
    let points = looked(1_600, |after| {
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
fn a_way_out_later_on_means_that_it_was_not_inevitable_before() {
    let point = |after, same| Point { after, futures: 64, same, another: 64 - same };
    let points = [point(0, 64), point(1, 63), point(2, 64), point(3, 64)];
    assert_eq!(from_on(&points, Point::is_certain), Some(2));
    assert_eq!(from_on(&points, Point::is_doomed), Some(0));
}

/// As if the planted bug were the broker's own: no future counts then, and one is shown.
#[test]
fn a_future_that_breaks_without_the_bug_does_not_count_and_is_told() {
    let trace = kept("mutant-segment-removed-early");
    let fault = trace.header.mutant.expect("it is of a mutant");
    let wanted = trace.header.violates.clone().expect("it says what it breaks");
    let actions = &trace.actions;
    let case = Case { setup: &trace.header.setup, actions, fault: Some(fault), wanted, is_innocent: true };
    let options = Options { futures: 16, jobs: NonZeroUsize::MIN };
    // The last step breaks the promise, and would break the forged broker too; what comes before does not.
    let honest = curve(&case, Planted(fault), NoFaults, options).expect("it does not break before its last step");
    assert!(honest.sound_breaks.is_none());
    assert!(honest.points.iter().any(|point| point.after < actions.len() && point.same > 0));
    let forged = curve(&case, Planted(fault), Planted(fault), options).expect("the same");
    assert!(forged.points.iter().all(|point| point.after == actions.len() || point.same + point.another == 0));
    let shown = forged.sound_breaks.expect("a future that breaks without the bug is told");
    assert!(shown.replay(Some(fault)).violation.is_some(), "and can be replayed");
    assert_eq!(shown.header.mutant, None);
}
