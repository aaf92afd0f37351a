//! The acked positions of one partition in one group: a floor, below which everything is acked, and runs above it.
//!
//! Acks arrive out of order, since several workers hold leases at once. Acks above the first unacked message are stored
//! as runs, so that one slow message costs one run, however far the others get ahead.

use super::cow::CowMap;
use crate::types::{Offset, Position};

#[cfg(test)]
mod tests;

/// The acked positions of one partition in one group.
///
/// The floor and each run store the topic offset of their last message, so that progress can be reported in offsets
/// without a lookup in the partition. All operations are O(log n) in the number of runs; a clone shares its runs. Two
/// sets are equal if they contain the same positions and store the same offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckSet {
    /// The first unacked position.
    floor: Position,
    /// The topic offset of the message just below the floor; `None` if there is none.
    floor_offset: Option<Offset>,
    /// Keyed by start. Disjoint, not adjacent to each other or to the floor, none empty.
    runs: CowMap<Position, Run>,
    /// The number of positions in the runs.
    above: u64,
}

/// A run; its key is its first position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first position after the run.
    end: Position,
    /// The topic offset of the run's last message.
    last_offset: Offset,
}

impl AckSet {
    /// The set of all positions below `floor`. `floor_offset` is the topic offset of the message just below `floor`, or
    /// `None` if there never was one.
    #[must_use]
    pub(crate) const fn with_floor(floor: Position, floor_offset: Option<Offset>) -> Self {
        Self { floor, floor_offset, runs: CowMap::new(), above: 0 }
    }

    /// Adds `position`, whose message has the topic offset `offset`. Returns false if it was in the set.
    pub(crate) fn insert(&mut self, position: Position, offset: Offset) -> bool {
        if position == self.floor && self.runs.is_empty() {
            // In order and nothing ahead: by far the most common case.
            self.floor = position.next();
            self.floor_offset = Some(offset);
            return true;
        }
        self.cover(position, Run { end: position.next(), last_offset: offset })
    }

    /// Adds `start..end`; `last_offset` is the topic offset of the message at `end` − 1.
    ///
    /// Parts of the run may be in the set. An empty or backward run changes nothing.
    pub(crate) fn extend_run(&mut self, start: Position, end: Position, last_offset: Offset) {
        self.cover(start, Run { end, last_offset });
    }

    /// Adds every position below `floor`; `last_offset` is the topic offset of the message at `floor` − 1.
    pub(crate) fn raise_floor(&mut self, floor: Position, last_offset: Offset) {
        if floor >= self.end() {
            *self = Self::with_floor(floor, Some(last_offset));
        } else {
            self.cover(Position(0), Run { end: floor, last_offset });
        }
    }

    /// Whether `position` is acked.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        self.first_unacked_from(position) != position
    }

    /// The first unacked position.
    #[must_use]
    pub const fn floor(&self) -> Position {
        self.floor
    }

    /// The topic offset of the message just below the floor; `None` if there is none.
    #[must_use]
    pub(crate) const fn floor_offset(&self) -> Option<Offset> {
        self.floor_offset
    }

    /// The first position above all acked ones.
    #[must_use]
    pub fn end(&self) -> Position {
        self.runs.last().map_or(self.floor, |(_, run)| run.end)
    }

    /// The number of acked positions above the floor.
    #[must_use]
    pub(crate) const fn acked_above(&self) -> u64 {
        self.above
    }

    /// The number of runs above the floor.
    #[must_use]
    pub(crate) const fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The runs above the floor in ascending order: first position, first position after the run, topic offset of the
    /// last message.
    pub fn runs(&self) -> impl Iterator<Item = (Position, Position, Offset)> {
        self.runs.iter().map(|(&start, run)| (start, run.end, run.last_offset))
    }

    /// The same runs; each chunk is freed once it is read, so that it is no longer shared.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = (Position, Position, Offset)> + Clone {
        let runs = |chunk: std::sync::Arc<super::cow::Chunk<Position, Run>>| {
            chunk.iter().map(|(&start, run)| (start, run.end, run.last_offset)).collect::<Vec<_>>()
        };
        self.runs.into_chunks().flat_map(runs)
    }

    /// The topic offset stored with the last run, or the floor, that ends at or below `position`.
    #[must_use]
    pub(crate) fn last_offset_below(&self, position: Position) -> Option<Offset> {
        if position < self.floor {
            return None;
        }
        let below = self.runs.last_below(&position);
        match below {
            Some((_, run)) if run.end <= position => Some(run.last_offset),
            // This run ends above `position`; the one before it, if any, ends below.
            Some((start, _)) => self.runs.last_below(start).map_or(self.floor_offset, |(_, run)| Some(run.last_offset)),
            None => self.floor_offset,
        }
    }

    /// The number of unacked positions below `next`: the lag, if `next` is the next message's position.
    ///
    /// No position at or above `next` may be acked.
    #[must_use]
    pub fn unacked_before(&self, next: Position) -> u64 {
        let end = self.end();
        debug_assert!(end <= next, "position {next} is not written yet, but acked up to {end}");
        next.0.saturating_sub(self.floor.0).saturating_sub(self.above)
    }

    /// The first unacked position at or above `position`.
    #[must_use]
    pub(crate) fn first_unacked_from(&self, position: Position) -> Position {
        if position < self.floor {
            return self.floor;
        }
        if self.runs.is_empty() {
            return position;
        }
        match self.runs.at_or_below(&position) {
            Some((_, run)) if run.end > position => run.end,
            _ => position,
        }
    }

    /// The first acked position at or above `position`; `None` if none is acked from there on.
    #[must_use]
    pub(crate) fn first_acked_from(&self, position: Position) -> Option<Position> {
        if self.first_unacked_from(position) != position {
            return Some(position);
        }
        self.runs.range_from(&position).next().map(|(start, _)| *start)
    }

    /// Adds a run, merging it with every run it touches and with the floor. Returns whether a position was added.
    fn cover(&mut self, start: Position, added: Run) -> bool {
        let mut start = start.max(self.floor);
        if start >= added.end {
            return false;
        }
        let mut run = added;
        let mut absorbed = 0;
        // The run before, if it reaches `start`, is extended: the insert below replaces it.
        if let Some((&before, reached)) = self.runs.at_or_below(&start)
            && reached.end >= start
        {
            if reached.end >= run.end {
                return false;
            }
            absorbed += reached.end.0 - before.0;
            start = before;
        }
        while let Some((&after, next)) = self.runs.range_from(&start.next()).next()
            && after <= run.end
        {
            absorbed += next.end.0 - after.0;
            if next.end > run.end {
                run = *next;
            }
            self.runs.remove(&after).expect("the run was just found");
        }
        self.above -= absorbed;
        if start == self.floor {
            self.floor = run.end;
            self.floor_offset = Some(run.last_offset);
        } else {
            self.above += run.end.0 - start.0;
            self.runs.insert(start, run);
        }
        true
    }
}
