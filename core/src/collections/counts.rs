//! A number per position, stored as runs of equal numbers.

use super::cow::CowMap;
use crate::types::Position;

/// A number for each position, 0 by default.
///
/// Neighbours with the same number take one run, so that a change of a million positions costs as much as the runs in
/// that range. Extending the last run and shortening the first move nothing. A clone shares its runs. Two maps are
/// equal if they have the same number for every position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Every number below is 0. Only the first run can begin below: a run that is shortened keeps its key.
    floor: Position,
    /// Keyed by start. Disjoint, none empty, none of number 0, each ends above the floor; adjacent runs differ.
    runs: CowMap<Position, CountRun>,
}

/// A run; its key is its first position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountRun {
    /// The first position after the run.
    end: Position,
    count: u32,
}

impl PartialEq for Counts {
    fn eq(&self, other: &Self) -> bool {
        self.runs().eq(other.runs())
    }
}

impl Eq for Counts {}

impl Counts {
    /// Whether every number is 0.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of runs.
    pub(crate) const fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The number of `position`.
    pub(crate) fn get(&self, position: Position) -> u32 {
        self.run_at(position).map_or(0, |(_, run)| run.count)
    }

    /// The end of the run of `position`; `None` if its number is 0.
    pub(crate) fn end_of_run(&self, position: Position) -> Option<Position> {
        self.run_at(position).map(|(_, run)| run.end)
    }

    /// The runs in ascending order: first position, first position after it, number.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Position, Position, u32)> {
        self.runs.iter().map(|(start, run)| ((*start).max(self.floor), run.end, run.count))
    }

    /// The first run.
    pub(crate) fn first(&self) -> Option<(Position, Position)> {
        self.runs.first().map(|(start, run)| ((*start).max(self.floor), run.end))
    }

    /// Sets the number of every position of `start..end`.
    pub(crate) fn set(&mut self, start: Position, end: Position, count: u32) {
        if start >= end {
            return;
        }
        if count == 0 {
            match self.first() {
                None => return,
                Some((first, _)) if start <= first => return self.raise_floor(end),
                Some(_) => {}
            }
        } else if start >= self.floor {
            match self.runs.last().map(|(last, run)| (*last, *run)) {
                Some((_, run)) if run.end > start => {}
                Some((last, run)) if (run.end, run.count) == (start, count) => {
                    return self.runs.get_mut(&last).expect("the run was just found").end = end;
                }
                _ => {
                    self.runs.insert(start, CountRun { end, count });
                    return;
                }
            }
        }
        self.clip();
        self.clear(start, end);
        if count == 0 {
            return;
        }
        let mut end = end;
        if let Some(next) = self.runs.get(&end).copied().filter(|next| next.count == count) {
            self.runs.remove(&end);
            end = next.end;
        }
        let before = self.runs.last_below(&start).filter(|(_, run)| run.end == start && run.count == count);
        match before.map(|(first, _)| *first).and_then(|first| self.runs.get_mut(&first)) {
            Some(run) => run.end = end,
            None => drop(self.runs.insert(start, CountRun { end, count })),
        }
    }

    /// Adds 1 to every position of `start..end`.
    pub(crate) fn increment(&mut self, start: Position, end: Position) {
        let mut at = start;
        let mut pieces = Vec::new();
        for (from, to, count) in self.runs_between(start, end) {
            pieces.extend((at < from).then_some((at, from, 1)));
            pieces.push((from, to, count + 1));
            at = to;
        }
        pieces.extend((at < end).then_some((at, end, 1)));
        pieces.into_iter().for_each(|(from, to, count)| self.set(from, to, count));
    }

    /// Subtracts 1 from every position of `start..end` whose number is not 0.
    pub(crate) fn decrement(&mut self, start: Position, end: Position) {
        for (from, to, count) in self.runs_between(start, end) {
            self.set(from, to, count - 1);
        }
    }

    /// The parts of runs within `start..end`.
    pub(crate) fn runs_between(&self, start: Position, end: Position) -> Vec<(Position, Position, u32)> {
        let start = start.max(self.floor);
        let first = self.runs.at_or_below(&start).map_or(start, |(first, _)| *first);
        let runs = self.runs.range_from(&first).take_while(|(from, _)| **from < end);
        let parts = runs.map(|(from, run)| ((*from).max(start), run.end.min(end), run.count));
        parts.filter(|(from, to, _)| from < to).collect()
    }

    fn run_at(&self, position: Position) -> Option<(Position, CountRun)> {
        let (start, run) = self.runs.at_or_below(&position)?;
        (self.floor <= position && position < run.end).then_some((*start, *run))
    }

    /// Sets every number below `floor` to 0.
    fn raise_floor(&mut self, floor: Position) {
        self.floor = self.floor.max(floor);
        while self.runs.first().is_some_and(|(_, run)| run.end <= floor) {
            self.runs.pop_first();
        }
    }

    /// Has no run begin below the floor, and lowers the floor.
    fn clip(&mut self) {
        if let Some((start, run)) = self.runs.first().map(|(start, run)| (*start, *run))
            && start < self.floor
        {
            self.runs.pop_first();
            self.runs.insert(self.floor, run);
        }
        self.floor = Position(0);
    }

    /// Sets the number of every position of `start..end` to 0.
    fn clear(&mut self, start: Position, end: Position) {
        if let Some((first, run)) = self.run_at(start).filter(|(first, _)| *first < start) {
            self.runs.get_mut(&first).expect("the run was just found").end = start;
            if run.end > end {
                self.runs.insert(end, run);
                return;
            }
        }
        while let Some((first, run)) = self.runs.range_from(&start).next().map(|(first, run)| (*first, *run))
            && first < end
        {
            self.runs.remove(&first);
            if run.end > end {
                self.runs.insert(end, run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const END: u64 = 40;

    fn counts(runs: &[(u64, u64, u32)]) -> Counts {
        let mut counts = Counts::default();
        runs.iter().for_each(|(start, end, count)| counts.set(Position(*start), Position(*end), *count));
        counts
    }

    #[test]
    fn maps_are_equal_if_every_number_is() {
        let mut lowered = counts(&[(2, 9, 1)]);
        lowered.set(Position(0), Position(4), 0);
        assert_eq!(lowered, counts(&[(4, 9, 1)]));
        for other in [&[][..], &[(4, 9, 2)], &[(4, 8, 1)], &[(3, 9, 1)], &[(4, 9, 1), (12, 13, 1)]] {
            assert_ne!(lowered, counts(other));
        }
    }

    #[test]
    fn run_of_a_position_ends_where_the_number_changes() {
        let counts = counts(&[(2, 5, 1), (5, 7, 2)]);
        let ends = [1, 2, 4, 5, 6, 7].map(|at| counts.end_of_run(Position(at)).map(|end| end.0));
        assert_eq!(ends, [None, Some(5), Some(5), Some(7), Some(7), None]);
    }

    proptest! {
        #[test]
        fn counts_equal_model(changes in prop::collection::vec((0_u8..4, 0..END, 0..END, 0_u32..4), 0..80)) {
            let mut counts = Counts::default();
            let mut model = [0_u32; END as usize];
            for (change, start, end, count) in changes {
                let range = start as usize..(end as usize).max(start as usize);
                let (from, to) = (Position(start), Position(end));
                match change {
                    0 | 1 => {
                        counts.set(from, to, count);
                        model[range].fill(count);
                    }
                    2 => {
                        counts.increment(from, to);
                        model[range].iter_mut().for_each(|number| *number += 1);
                    }
                    _ => {
                        counts.decrement(from, to);
                        model[range].iter_mut().for_each(|number| *number = number.saturating_sub(1));
                    }
                }
                let found: Vec<_> = (0..END).map(|at| counts.get(Position(at))).collect();
                prop_assert_eq!(&found[..], &model[..]);
                prop_assert_eq!(counts.is_empty(), model.iter().all(|number| *number == 0));
                let runs: Vec<_> = counts.runs().collect();
                let differ = runs.windows(2).all(|pair| pair[0].1 < pair[1].0 || pair[0].1 == pair[1].0 && pair[0].2 != pair[1].2);
                prop_assert!(differ && runs.iter().all(|(start, end, count)| start < end && *count > 0), "{runs:?}");
            }
        }
    }
}
