//! The cursor of a group in a partition: which message is dispatched next.

use std::collections::BTreeSet;

use super::leases::Lease;
use super::priorities::PriorityQueue;
use crate::collections::cow::OwnMap;
use crate::state::Progress;
use crate::types::{GroupId, Position, Priority};

/// A priority as a sort key: higher priorities first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u8);

impl From<Priority> for Rank {
    fn from(priority: Priority) -> Self {
        Self(Priority::COUNT as u8 - 1 - priority.level())
    }
}

impl Rank {
    pub(super) fn level(self) -> u8 {
        Priority::COUNT as u8 - 1 - self.0
    }
}

/// The cursor of one group in one partition.
///
/// Every ready message is at or beyond the frontier of its priority, or among the returned ones. The next message is
/// the first of them by rank and position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Per priority: every message below was dispatched, is acked, is delayed or is among the returned ones.
    pub(super) frontiers: [Position; Priority::COUNT],
    /// Ready messages below their frontier: retries, and messages whose delay expired after the frontier passed them.
    pub(super) returned: BTreeSet<(Rank, Position)>,
    /// The newest delivery of every message that is leased, or queued after its lease expired.
    pub(crate) leases: OwnMap<Position, Lease>,
    pub(super) delay_serial_seen: u64,
    /// Whether the group is registered with the queue as waiting for messages.
    pub(crate) waiting: bool,
    /// Whether the in-flight limit was reached; the partition is a candidate again when a lease ends.
    pub(crate) full: bool,
}

impl Cursor {
    /// A cursor at the group's floor. Delays that expired up to `delay_serial_seen` are ahead of it.
    pub(crate) fn new(progress: &Progress, delay_serial_seen: u64) -> Self {
        Self { frontiers: [progress.acked().floor(); Priority::COUNT], delay_serial_seen, ..Self::default() }
    }

    /// Makes a message below its frontier ready.
    pub(crate) fn requeue(&mut self, priority: Priority, position: Position) {
        self.returned.insert((priority.into(), position));
    }

    pub(crate) fn withdraw(&mut self, priority: Priority, position: Position) {
        if !self.returned.is_empty() {
            self.returned.remove(&(priority.into(), position));
        }
    }

    /// The next message to dispatch: the highest priority first, then the lowest position.
    pub(crate) fn peek(&mut self, queue: &PriorityQueue, progress: &Progress, end: Position) -> Option<Position> {
        self.collect_expired_delays(queue, progress);
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

    /// Whether no message is ready after the one at `position`, given that the queue is plain.
    pub(crate) fn is_last(&self, position: Position, end: Position) -> bool {
        position.next() == end && self.returned.is_empty()
    }

    /// Registers `group`, to which this cursor belongs, to be woken by the next message.
    pub(crate) fn wait(&mut self, queue: &mut PriorityQueue, group: GroupId) {
        if !self.waiting {
            self.waiting = true;
            queue.wait(group);
        }
    }

    /// Removes the message at `position` from the ready ones: it was dispatched or acked.
    pub(crate) fn take(&mut self, priority: Priority, position: Position) {
        let frontier = &mut self.frontiers[priority.level() as usize];
        if position == *frontier {
            *frontier = position.next();
        }
        self.withdraw(priority, position);
    }

    /// Moves a frontier past acked and delivered messages to the next ready one; `None` at the end.
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

    fn collect_expired_delays(&mut self, queue: &PriorityQueue, progress: &Progress) {
        if queue.is_plain() {
            return;
        }
        for (serial, position, priority) in queue.delays_expired_since(self.delay_serial_seen) {
            self.delay_serial_seen = serial;
            let passed = position < self.frontiers[priority.level() as usize];
            if passed && !progress.acked().contains(position) && !progress.is_delivered(position) {
                self.returned.insert((priority.into(), position));
            }
        }
    }
}
