//! A partition's messages sorted by urgency, shared by all its groups, so that a produce costs the same for one group and
//! for ten thousand.
//!
//! Most messages have no priority and no delay: they stand in the plain lane, which takes no memory at all. The others are
//! exceptions to it and stand in queue of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::collections::ranges::Ranges;
use crate::types::message::Priority;
use crate::types::{GroupId, Position, Timestamp};

/// The queue of one partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriorityQueue {
    /// Groups that found nothing here and want to know when that changes.
    waiters: Vec<GroupId>,
    special: Option<Box<Special>>,
}

/// What differs from the plain lane.
#[derive(Clone, Debug, Default)]
struct Special {
    /// Positions that are not in the plain lane.
    exceptions: Ranges,
    /// Positions of priority 1 to 9 that may be delivered.
    urgent: [BTreeSet<Position>; Priority::COUNT - 1],
    /// Positions held back, and until when.
    delayed: BTreeMap<Position, (Timestamp, Priority)>,
    /// Positions that were held back and are no longer, in the order of their release; a group that had passed one
    /// before finds it here.
    matured: BTreeMap<u64, (Position, Priority)>,
    matured_at: BTreeMap<Position, u64>,
}

impl PriorityQueue {
    /// A message with `priority` stands at `position`; `held_until` if it may not be delivered yet.
    pub(crate) fn add(&mut self, position: Position, priority: Priority, held_until: Option<Timestamp>) {
        if priority.level() == 0 && held_until.is_none() {
            return;
        }
        let special = self.special.get_or_insert_default();
        special.exceptions.insert(position);
        match held_until {
            Some(until) => drop(special.delayed.insert(position, (until, priority))),
            None => drop(special.urgent[priority.level() as usize - 1].insert(position)),
        }
    }

    /// The message at `position` may be delivered from now on. `serial` rises from call to call.
    pub(crate) fn mature(&mut self, position: Position, serial: u64) {
        let Some(special) = self.special.as_deref_mut() else { return };
        let Some((_, priority)) = special.delayed.remove(&position) else { return };
        if priority.level() == 0 {
            special.exceptions.remove(position);
        } else {
            special.urgent[priority.level() as usize - 1].insert(position);
        }
        special.matured.insert(serial, (position, priority));
        special.matured_at.insert(position, serial);
    }

    /// The message at `position` is done in every group.
    pub(crate) fn remove(&mut self, position: Position) -> Option<Timestamp> {
        let special = self.special.as_deref_mut()?;
        special.exceptions.remove(position);
        for lane in &mut special.urgent {
            lane.remove(&position);
        }
        if let Some(serial) = special.matured_at.remove(&position) {
            special.matured.remove(&serial);
        }
        let held_until = special.delayed.remove(&position).map(|(until, _)| until);
        if special.exceptions.is_empty() && special.matured.is_empty() {
            debug_assert!(special.delayed.is_empty(), "what is delayed is an exception");
            self.special = None;
        }
        held_until
    }

    /// Every position that is not simply in the plain lane.
    pub(crate) fn special_positions(&self) -> Vec<Position> {
        let Some(special) = self.special.as_deref() else { return Vec::new() };
        let urgent = special.urgent.iter().flatten();
        urgent.chain(special.delayed.keys()).chain(special.matured_at.keys()).copied().collect()
    }

    /// Positions still held back, and until when.
    pub(crate) fn delayed(&self) -> impl Iterator<Item = (Position, Timestamp)> {
        self.special.iter().flat_map(|special| special.delayed.iter()).map(|(position, (until, _))| (*position, *until))
    }

    pub(crate) fn delayed_len(&self) -> usize {
        self.special.as_deref().map_or(0, |special| special.delayed.len())
    }

    pub(crate) fn is_delayed(&self, position: Position) -> bool {
        self.special.as_deref().is_some_and(|special| special.delayed.contains_key(&position))
    }

    /// Whether every message stands in the plain lane.
    pub(crate) fn is_plain(&self) -> bool {
        self.special.is_none()
    }

    /// The first position at or after `from` that may stand in the lane of `level`. In the plain lane that is a bound, not a
    /// promise: the partition may end before it.
    pub(crate) fn next_of_priority(&self, level: u8, from: Position) -> Option<Position> {
        match (self.special.as_deref(), level) {
            (None, 0) => Some(from),
            (None, _) => None,
            (Some(special), 0) => Some(special.exceptions.first_outside(from)),
            (Some(special), level) => special.urgent[level as usize - 1].range(from..).next().copied(),
        }
    }

    /// Positions released since `seen`, with their serials.
    pub(crate) fn matured_since(&self, seen: u64) -> impl Iterator<Item = (u64, Position, Priority)> {
        let matured = self.special.iter().flat_map(move |special| special.matured.range(seen + 1..));
        matured.map(|(serial, (position, priority))| (*serial, *position, *priority))
    }

    pub(crate) fn wait(&mut self, group: GroupId) {
        self.waiters.push(group);
    }

    pub(crate) fn stop_waiting(&mut self, group: GroupId) {
        self.waiters.retain(|waiter| *waiter != group);
    }

    /// Those who wait; they wait no longer.
    pub(crate) fn waiters(&mut self) -> impl Iterator<Item = GroupId> {
        self.waiters.drain(..)
    }
}
