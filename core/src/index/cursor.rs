//! What a group may be handed next from one partition.

use std::collections::BTreeSet;

use super::priorities::PriorityQueue;
use crate::collections::cow::CowMap;
use crate::state::group::Progress;
use crate::types::message::Priority;
use crate::types::{ConsumerId, GroupId, Position};

/// Sorts higher priorities first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u8);

impl From<Priority> for Rank {
    fn from(priority: Priority) -> Self {
        Self(Priority::COUNT as u8 - 1 - priority.level())
    }
}

impl Rank {
    fn level(self) -> u8 {
        Priority::COUNT as u8 - 1 - self.0
    }
}

/// One group's way through one partition.
///
/// Every message that may be delivered is at or beyond its lane's frontier, or among the returned. A message is handed out
/// from wherever its rank and position come first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Per priority: everything of that lane below was handed out, or is done, or is among the returned.
    frontiers: [Position; Priority::COUNT],
    /// Messages below their frontier that may be delivered: retries, and delayed ones that were passed by.
    returned: BTreeSet<(Rank, Position)>,
    /// Which streams hold the running leases. A lease from before a restart has none.
    pub(crate) holders: CowMap<Position, ConsumerId>,
    matured_seen: u64,
    /// Registered with the queue as waiting for something new.
    pub(crate) waiting: bool,
    /// Found at the limit of leases; looked at again when one ends.
    pub(crate) full: bool,
}

impl Cursor {
    /// A cursor that starts at the group's floor, with releases up to `matured_seen` already in their queue.
    pub(crate) fn new(progress: &Progress, matured_seen: u64) -> Self {
        Self { frontiers: [progress.acked().floor(); Priority::COUNT], matured_seen, ..Self::default() }
    }

    pub(crate) fn give_back(&mut self, priority: Priority, position: Position) {
        self.returned.insert((priority.into(), position));
    }

    pub(crate) fn withdraw(&mut self, priority: Priority, position: Position) {
        if !self.returned.is_empty() {
            self.returned.remove(&(priority.into(), position));
        }
    }

    /// The next message to hand out, if there is one: the highest priority first, then the lowest position.
    pub(crate) fn peek(&mut self, queue: &PriorityQueue, progress: &Progress, end: Position) -> Option<Position> {
        self.take_in_matured(queue, progress);
        let returned = self.returned.first().copied();
        if queue.is_plain() {
            let plain =
                self.advance(0, queue, progress, end).map(|position| (Rank::from(Priority::default()), position));
            return returned.into_iter().chain(plain).min().map(|(_, position)| position);
        }
        for level in (0..Priority::COUNT as u8).rev() {
            let fresh = self.advance(level, queue, progress, end);
            let same_rank = returned.filter(|(rank, _)| rank.level() == level).map(|(_, position)| position);
            if let Some(position) = fresh.into_iter().chain(same_rank).min() {
                return Some(position);
            }
        }
        None
    }

    /// Whether nothing is left for the group once the message at `position` is handed out, where all queue are plain.
    pub(crate) fn is_last(&self, position: Position, end: Position) -> bool {
        position.next() == end && self.returned.is_empty()
    }

    /// Has `group`, whose cursor this is, told when something new comes.
    pub(crate) fn wait(&mut self, queue: &mut PriorityQueue, group: GroupId) {
        if !self.waiting {
            self.waiting = true;
            queue.wait(group);
        }
    }

    /// Notes that `position` is handed out.
    pub(crate) fn take(&mut self, priority: Priority, position: Position) {
        let frontier = &mut self.frontiers[priority.level() as usize];
        if position == *frontier {
            *frontier = position.next();
        }
        self.withdraw(priority, position);
    }

    /// Moves a lane's frontier past what is done or already handed out, to the next message or the end.
    fn advance(&mut self, level: u8, queue: &PriorityQueue, progress: &Progress, end: Position) -> Option<Position> {
        let frontier = &mut self.frontiers[level as usize];
        loop {
            let position = queue.next_of_priority(level, progress.acked().first_unacked_from(*frontier))?;
            if position >= end {
                return None;
            }
            *frontier = position;
            if progress.acked().contains(position) {
                continue;
            }
            if !progress.is_delivered(position) {
                return Some(position);
            }
            *frontier = position.next();
        }
    }

    fn take_in_matured(&mut self, queue: &PriorityQueue, progress: &Progress) {
        if queue.is_plain() {
            return;
        }
        for (serial, position, priority) in queue.matured_since(self.matured_seen) {
            self.matured_seen = serial;
            let passed = position < self.frontiers[priority.level() as usize];
            if passed && !progress.acked().contains(position) && !progress.is_delivered(position) {
                self.returned.insert((priority.into(), position));
            }
        }
    }
}
