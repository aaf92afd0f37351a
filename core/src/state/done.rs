//! Which positions of a partition one group is finished with: everything below a floor, and runs above it.
//!
//! Messages are finished out of order, since several workers hold leases at once. What is finished above the first
//! unfinished message is kept as runs, so that a single slow message costs one run however far the others get ahead.

use super::cow::CowMap;
use crate::types::{Offset, Position};

#[cfg(test)]
mod tests;

/// The finished positions of one partition for one group.
///
/// With every run, and with the floor, goes the topic offset of its last message, so that progress can be told in
/// offsets without asking the partition. All operations are O(log n) in the number of runs; a clone is cheap in the way
/// of the state's maps. Two sets are equal if they hold the same positions and tell the same offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckSet {
    /// The first position that is not done.
    floor: Position,
    /// The topic offset of the message just below the floor; `None` while nothing there is done.
    floor_offset: Option<Offset>,
    /// Keyed by start. Disjoint, not adjacent to each other or to the floor, none empty.
    runs: CowMap<Position, Run>,
    /// How many positions the runs cover.
    above: u64,
}

/// The rest of a run that starts at its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first position after the run.
    end: Position,
    /// The topic offset of the run's last message.
    last_offset: Offset,
}

impl AckSet {
    /// Nothing is done.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_floor(Position(0), None)
    }

    /// Everything below `floor` is done, nothing from there on. `floor_offset` is the topic offset of the message just
    /// below `floor`, or `None` if there never was one.
    #[must_use]
    pub(super) const fn with_floor(floor: Position, floor_offset: Option<Offset>) -> Self {
        Self { floor, floor_offset, runs: CowMap::new(), above: 0 }
    }

    /// Marks the message at `position`, whose topic offset is `offset`, as done. `false`, and no change, if it already
    /// was.
    pub(super) fn insert(&mut self, position: Position, offset: Offset) -> bool {
        if position == self.floor && self.runs.is_empty() {
            // In order and nothing ahead: by far the most common.
            self.floor = position.next();
            self.floor_offset = Some(offset);
            return true;
        }
        self.cover(position, Run { end: position.next(), last_offset: offset })
    }

    /// Marks all of `start..end` as done; `last_offset` is the topic offset of the message at `end` − 1.
    ///
    /// Any part of it may be done already. An empty or backward run changes nothing.
    pub(super) fn extend_run(&mut self, start: Position, end: Position, last_offset: Offset) {
        self.cover(start, Run { end, last_offset });
    }

    /// Whether the message at `position` is done.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        self.first_undone_from(position) != position
    }

    /// The first position that is not done.
    #[must_use]
    pub const fn floor(&self) -> Position {
        self.floor
    }

    /// The topic offset of the message just below the floor; `None` while nothing there is done.
    #[must_use]
    pub const fn floor_offset(&self) -> Option<Offset> {
        self.floor_offset
    }

    /// The first position that is not done and has nothing done above it.
    #[must_use]
    pub(super) fn end(&self) -> Position {
        self.runs.last().map_or(self.floor, |(_, run)| run.end)
    }

    /// How many positions above the floor are done.
    #[must_use]
    pub const fn done_above(&self) -> u64 {
        self.above
    }

    /// Whether no position is done at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.floor.0 == 0 && self.runs.is_empty()
    }

    /// The runs above the floor in rising order: first position, first position after the run, and the topic offset of
    /// the run's last message.
    pub fn runs(&self) -> impl Iterator<Item = (Position, Position, Offset)> {
        self.runs.iter().map(|(&start, run)| (start, run.end, run.last_offset))
    }

    /// The same runs, taken apart a piece at a time: what was shared is let go of as it is read.
    pub(super) fn into_runs(self) -> impl Iterator<Item = (Position, Position, Offset)> + Clone {
        let runs = |chunk: std::sync::Arc<super::cow::Chunk<Position, Run>>| {
            chunk.iter().map(|(&start, run)| (start, run.end, run.last_offset)).collect::<Vec<_>>()
        };
        self.runs.into_chunks().flat_map(runs)
    }

    /// The topic offset of the last message of the floor or of a run that ends at or below `position`.
    #[must_use]
    pub fn last_offset_below(&self, position: Position) -> Option<Offset> {
        if position < self.floor {
            return None;
        }
        let below = self.runs.last_below(&position);
        match below {
            Some((_, run)) if run.end <= position => Some(run.last_offset),
            // A run that reaches beyond ends too late; the one before it, if any, ends below.
            Some((start, _)) => self.runs.last_below(start).map_or(self.floor_offset, |(_, run)| Some(run.last_offset)),
            None => self.floor_offset,
        }
    }

    /// How many positions below `next` are not done: the lag, if `next` is the position the next message will get.
    ///
    /// Nothing at `next` or above may be done.
    #[must_use]
    pub fn undone_before(&self, next: Position) -> u64 {
        let end = self.end();
        debug_assert!(end <= next, "position {next} is not written yet, but done up to {end}");
        next.0.saturating_sub(self.floor.0).saturating_sub(self.above)
    }

    /// The first position at or above `position` that is not done.
    #[must_use]
    pub fn first_undone_from(&self, position: Position) -> Position {
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

    /// Adds a run and says whether any of its positions is newly done. Every run it touches becomes part of it, and so it
    /// becomes part of the floor if it touches that.
    fn cover(&mut self, start: Position, added: Run) -> bool {
        let mut start = start.max(self.floor);
        if start >= added.end {
            return false;
        }
        let mut run = added;
        let mut absorbed = 0;
        // The run before, if it reaches here, grows in message_ref: the insert below replaces it.
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
            self.runs.remove(&after).expect("a run just looked at is there");
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
