//! A set of positions stored as ranges.

use std::collections::BTreeMap;

use crate::types::Position;

/// Disjoint, non-adjacent ranges: start to exclusive end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    ranges: BTreeMap<Position, Position>,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Position> {
        self.ranges.iter().flat_map(|(start, end)| (start.0..end.0).map(Position))
    }

    /// The first position at or after `position` that is not in the set.
    pub(crate) fn first_outside(&self, position: Position) -> Position {
        match self.containing(position) {
            Some((_, end)) => end,
            None => position,
        }
    }

    pub(crate) fn insert(&mut self, position: Position) {
        if self.containing(position).is_some() {
            return;
        }
        let mut start = position;
        let mut end = position.next();
        if let Some(after) = self.ranges.remove(&end) {
            end = after;
        }
        if let Some((before, before_end)) = self.ranges.range(..position).next_back()
            && *before_end == position
        {
            start = *before;
        }
        self.ranges.insert(start, end);
    }

    pub(crate) fn remove(&mut self, position: Position) {
        let Some((start, end)) = self.containing(position) else { return };
        self.ranges.remove(&start);
        if start < position {
            self.ranges.insert(start, position);
        }
        if position.next() < end {
            self.ranges.insert(position.next(), end);
        }
    }

    fn containing(&self, position: Position) -> Option<(Position, Position)> {
        let (start, end) = self.ranges.range(..=position).next_back()?;
        (position < *end).then_some((*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_equal_model(changes in prop::collection::vec((any::<bool>(), 0_u64..40), 0..200)) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (insert, position) in changes {
                if insert {
                    ranges.insert(Position(position));
                    model.insert(position);
                } else {
                    ranges.remove(Position(position));
                    model.remove(&position);
                }
                for at in 0..42 {
                    let expected = (at..).find(|p| !model.contains(p)).unwrap();
                    prop_assert_eq!(ranges.first_outside(Position(at)), Position(expected));
                }
                prop_assert_eq!(ranges.is_empty(), model.is_empty());
                let neighbours = ranges.ranges.iter().zip(ranges.ranges.iter().skip(1));
                prop_assert!(neighbours.into_iter().all(|((_, end), (start, _))| end < start), "ranges do not touch");
            }
        }
    }
}
