//! Random operations on an [`AckSet`] compared with a plain set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

impl AckSet {
    /// Panics unless the runs are disjoint, not adjacent to each other or to the floor, and counted correctly.
    pub(crate) fn check(&self) {
        self.runs.check();
        let mut end = self.floor;
        let mut above = 0;
        for (start, run) in &self.runs {
            assert!(end < *start, "the run at {start} touches what ends at {end}");
            assert!(*start < run.end, "the run at {start} is empty");
            above += run.end.0 - start.0;
            end = run.end;
        }
        assert_eq!(self.above, above, "the count is correct");
    }

    fn run_list(&self) -> Vec<(u64, u64, u64)> {
        self.runs().map(|(start, end, last)| (start.0, end.0, last.0)).collect()
    }
}

/// Offsets as in a topic with ten partitions.
fn offset_of(position: u64) -> Offset {
    Offset(position * 10 + 3)
}

fn acked(positions: impl IntoIterator<Item = u64>) -> AckSet {
    let mut set = AckSet::default();
    for position in positions {
        assert!(set.insert(Position(position), offset_of(position)));
        set.check();
    }
    set
}

#[test]
fn new_set_is_empty() {
    let set = AckSet::default();
    assert!(!set.contains(Position(0)));
    assert_eq!((set.floor(), set.floor_offset(), set.acked_above()), (Position(0), None, 0));
    assert_eq!((set.unacked_before(Position(5)), set.first_unacked_from(Position(3))), (5, Position(3)));
    assert_eq!(set, AckSet::default());
}

#[test]
fn ack_in_order_raises_floor() {
    let set = acked(0..5);
    assert_eq!((set.floor(), set.floor_offset(), set.acked_above()), (Position(5), Some(offset_of(4)), 0));
    assert_eq!(set.runs().count(), 0);
}

#[test]
fn raised_floor_takes_in_what_it_covers_and_keeps_what_is_above() {
    let mut set = acked([2, 3, 7, 9]);
    assert_eq!(set.end(), Position(10));
    set.raise_floor(Position(6), offset_of(5));
    set.check();
    assert_eq!((set.floor(), set.floor_offset()), (Position(6), Some(offset_of(5))));
    assert_eq!((set.run_list(), set.end()), (vec![(7, 8, 73), (9, 10, 93)], Position(10)));
    set.raise_floor(Position(8), offset_of(7));
    set.check();
    assert_eq!((set.floor(), set.run_list()), (Position(8), vec![(9, 10, 93)]));
    set.raise_floor(Position(3), offset_of(2));
    assert_eq!(set.floor(), Position(8), "it is never lowered");
    set.raise_floor(Position(20), offset_of(19));
    set.check();
    assert_eq!((set.floor(), set.acked_above(), set.end()), (Position(20), 0, Position(20)));
}

#[test]
fn first_acked_position_can_be_the_one_asked_for() {
    let set = acked([0, 3, 4, 8]);
    let found = |from| set.first_acked_from(Position(from)).map(|position| position.0);
    assert_eq!([0, 1, 3, 4, 5, 8, 9].map(found), [Some(0), Some(3), Some(3), Some(4), Some(8), Some(8), None]);
}

#[test]
fn ack_above_gap_leaves_floor_until_gap_is_closed() {
    let mut set = acked([0, 2, 3, 4, 7]);
    assert_eq!((set.floor(), set.floor_offset(), set.acked_above()), (Position(1), Some(offset_of(0)), 4));
    assert_eq!(set.run_list(), [(2, 5, 43), (7, 8, 73)]);
    assert_eq!(set.unacked_before(Position(8)), 3);
    assert!(set.insert(Position(1), offset_of(1)));
    set.check();
    assert_eq!(
        (set.floor(), set.floor_offset()),
        (Position(5), Some(offset_of(4))),
        "the floor takes the run's last offset"
    );
    assert_eq!(set.run_list(), [(7, 8, 73)]);
    assert_eq!((set.acked_above(), set.unacked_before(Position(8))), (1, 2));
}

#[test]
fn run_merges_with_both_neighbours() {
    assert_eq!(acked([5, 6]).run_list(), [(5, 7, 63)]);
    assert_eq!(acked([6, 5]).run_list(), [(5, 7, 63)]);
    assert_eq!(acked([5, 7, 6]).run_list(), [(5, 8, 73)]);
    assert_eq!(acked([5, 7]).run_list(), [(5, 6, 53), (7, 8, 73)]);
}

#[test]
fn second_ack_returns_false_and_changes_nothing() {
    let mut set = acked([0, 1, 5, 6, 7]);
    let before = set.clone();
    for position in [0, 1, 5, 6, 7] {
        assert!(!set.insert(Position(position), Offset(999)));
    }
    assert_eq!(set, before);
}

#[test]
fn first_unacked_skips_runs() {
    let set = acked([0, 2, 3, 5]);
    let next: Vec<_> = (0..8).map(|position| set.first_unacked_from(Position(position)).0).collect();
    assert_eq!(next, [1, 1, 4, 4, 4, 6, 6, 7]);
    let contained: Vec<_> = (0..8).filter(|&position| set.contains(Position(position))).collect();
    assert_eq!(contained, [0, 2, 3, 5]);
}

#[test]
fn set_starts_at_any_floor() {
    let mut set = AckSet::with_floor(Position(10), Some(Offset(44)));
    assert_eq!((set.floor(), set.floor_offset()), (Position(10), Some(Offset(44))));
    assert!(set.contains(Position(9)) && !set.contains(Position(10)));
    assert!(!set.insert(Position(3), Offset(1)));
    assert!(set.insert(Position(10), Offset(45)));
    assert_eq!((set.floor(), set.floor_offset()), (Position(11), Some(Offset(45))));
}

#[test]
fn empty_or_backward_run_changes_nothing() {
    let mut set = acked([0, 3]);
    let before = set.clone();
    set.extend_run(Position(5), Position(5), Offset(9));
    set.extend_run(Position(7), Position(2), Offset(9));
    set.extend_run(Position(1), Position(1), Offset(9));
    assert_eq!(set, before);
}

#[test]
fn run_merges_with_every_run_it_touches() {
    let mut set = acked([2, 4, 6, 8, 12, 13, 14]);
    set.extend_run(Position(3), Position(12), offset_of(11));
    set.check();
    assert_eq!(set.run_list(), [(2, 15, 143)]);
    set.extend_run(Position(0), Position(4), offset_of(3));
    set.check();
    assert_eq!((set.floor(), set.floor_offset(), set.acked_above()), (Position(15), Some(offset_of(14)), 0));
}

#[test]
fn set_is_restored_from_floor_and_runs() {
    let set = acked([0, 1, 5, 9, 7, 8, 20]);
    let mut restored = AckSet::with_floor(set.floor(), set.floor_offset());
    set.runs().for_each(|(start, end, last_offset)| restored.extend_run(start, end, last_offset));
    restored.check();
    assert_eq!(restored, set);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "position 5 is not written yet")]
fn ack_above_next_position_panics() {
    let _ = acked([7]).unacked_before(Position(5));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    AtFloor,
    Run(u64, u64),
    EverySecond(u64, u64),
    Clone,
}

const POSITIONS: u64 = 2500;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (0..POSITIONS).prop_map(Op::Insert),
        8 => (0..40_u64).prop_map(Op::Insert),
        4 => Just(Op::AtFloor),
        3 => (0..POSITIONS, 0..60_u64).prop_map(|(start, len)| Op::Run(start, start + len)),
        1 => (0..POSITIONS, 0..900_u64).prop_map(|(start, len)| Op::Run(start, start + len)),
        1 => (0..POSITIONS, 0..900_u64).prop_map(|(start, len)| Op::EverySecond(start, start + len)),
        1 => Just(Op::Clone),
    ];
    prop::collection::vec(op, 1..250)
}

/// Compares every query of the set with the model.
fn same(set: &AckSet, model: &BTreeSet<u64>) {
    set.check();
    let floor = (0..).find(|position| !model.contains(position)).unwrap();
    assert_eq!(set.floor(), Position(floor));
    assert_eq!(set.floor_offset(), floor.checked_sub(1).map(offset_of));
    assert_eq!(set.acked_above(), model.range(floor..).count() as u64);
    let in_runs: Vec<_> = set.runs().flat_map(|(start, end, _)| start.0..end.0).collect();
    assert!(in_runs.iter().eq(model.range(floor..)));
    assert!(set.runs().all(|(_, end, last_offset)| last_offset == offset_of(end.0 - 1)));
    let next = model.last().map_or(0, |last| last + 1);
    assert_eq!(set.unacked_before(Position(next)), next - model.len() as u64);
    let mut undone = next;
    for position in (0..next).rev() {
        let is_done = model.contains(&position);
        undone = if is_done { undone } else { position };
        assert_eq!(set.contains(Position(position)), is_done);
        assert_eq!(set.first_unacked_from(Position(position)), Position(undone));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn set_equals_model_and_clones_do_not_change(ops in ops()) {
        let mut set = AckSet::default();
        let mut model = BTreeSet::new();
        let mut clones = Vec::new();
        for op in ops {
            match op {
                Op::Insert(position) => {
                    prop_assert_eq!(set.insert(Position(position), offset_of(position)), model.insert(position));
                }
                Op::AtFloor => {
                    let floor = set.floor();
                    prop_assert!(set.insert(floor, offset_of(floor.0)) && model.insert(floor.0));
                }
                Op::Run(start, end) => {
                    set.extend_run(Position(start), Position(end), Offset((end * 10 + 3).saturating_sub(10)));
                    model.extend(start..end);
                }
                Op::EverySecond(start, end) => {
                    for position in (start..end).step_by(2) {
                        prop_assert_eq!(set.insert(Position(position), offset_of(position)), model.insert(position));
                    }
                }
                Op::Clone => clones.push((set.clone(), model.clone())),
            }
            set.check();
        }
        same(&set, &model);
        for (set, model) in &clones {
            same(set, model);
        }
    }

    #[test]
    fn order_of_acks_makes_no_difference(mut order in Just((0..600_u64).collect::<Vec<_>>()).prop_shuffle()) {
        let all = acked(order.iter().copied());
        prop_assert_eq!(&all, &AckSet::with_floor(Position(600), Some(offset_of(599))));
        order.truncate(300);
        let some = acked(order.iter().copied());
        order.sort_unstable();
        prop_assert_eq!(some, acked(order));
    }
}

#[test]
fn last_offset_below_is_that_of_the_nearest_run() {
    let mut acked = AckSet::with_floor(Position(2), Some(Offset(20)));
    acked.extend_run(Position(4), Position(6), Offset(50));
    acked.extend_run(Position(8), Position(10), Offset(90));
    let below = |position| acked.last_offset_below(Position(position)).map(|offset| offset.0);
    assert_eq!([1, 2, 3, 4, 5].map(below), [None, Some(20), Some(20), Some(20), Some(20)]);
    assert_eq!([6, 7, 8, 9, 10, 99].map(below), [Some(50), Some(50), Some(50), Some(50), Some(90), Some(90)]);
}

#[test]
fn into_runs_equals_runs() {
    let mut acked = AckSet::default();
    for start in (1..2_000).step_by(3) {
        acked.insert(Position(start), Offset(start * 10));
    }
    let runs: Vec<_> = acked.runs().collect();
    assert_eq!(runs.len(), 667);
    assert_eq!(acked.into_runs().collect::<Vec<_>>(), runs);
}
