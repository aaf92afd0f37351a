//! The messages of a partition by priority and delay, shared by all groups: a produce costs the same for one group and
//! for ten thousand.
//!
//! Messages without priority and delay, by far the most, are implicit and take no memory; the others are exceptions.

use std::collections::{BTreeMap, BTreeSet};

use super::timers::Due;
use crate::collections::ranges::Ranges;
use crate::types::{GroupId, Position, Priority};

/// The messages of one partition by priority and delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriorityQueue {
    /// Groups that found no message and wait for the next.
    pub(super) waiters: Vec<GroupId>,
    pub(super) special: Option<Box<Special>>,
}

/// The messages with a priority or a delay.
#[derive(Clone, Debug, Default)]
pub(super) struct Special {
    /// All positions in `urgent` and `delayed`.
    pub(super) exceptions: Ranges,
    /// Positions of priority 1 to 9 without a running delay.
    pub(super) urgent: [BTreeSet<Position>; Priority::COUNT - 1],
    /// Positions with a running delay, and its end.
    pub(super) delayed: BTreeMap<Position, (Due, Priority)>,
    /// Positions whose delay has expired, in that order, for groups whose frontier had passed them before.
    pub(super) expired_delays: BTreeMap<u64, (Position, Priority)>,
    pub(super) expired_delay_serials: BTreeMap<Position, u64>,
}

impl PriorityQueue {
    /// Adds the message at `position`, delayed until `delayed_until`.
    pub(crate) fn add(&mut self, position: Position, priority: Priority, delayed_until: Option<Due>) {
        if priority.level() == 0 && delayed_until.is_none() {
            return;
        }
        let special = self.special.get_or_insert_default();
        special.exceptions.insert(position);
        match delayed_until {
            Some(until) => drop(special.delayed.insert(position, (until, priority))),
            None => drop(special.urgent[priority.level() as usize - 1].insert(position)),
        }
    }

    /// The delay of the message at `position` has expired. `serial` must increase from call to call.
    pub(crate) fn expire_delay(&mut self, position: Position, serial: u64) {
        let Some(special) = self.special.as_deref_mut() else { return };
        let Some((_, priority)) = special.delayed.remove(&position) else { return };
        if priority.level() == 0 {
            special.exceptions.remove(position);
        } else {
            special.urgent[priority.level() as usize - 1].insert(position);
        }
        special.expired_delays.insert(serial, (position, priority));
        special.expired_delay_serials.insert(position, serial);
    }

    /// Removes the message at `position`. Returns the end of its delay if it is delayed.
    pub(crate) fn remove(&mut self, position: Position) -> Option<Due> {
        let special = self.special.as_deref_mut()?;
        special.exceptions.remove(position);
        for positions in &mut special.urgent {
            positions.remove(&position);
        }
        if let Some(serial) = special.expired_delay_serials.remove(&position) {
            special.expired_delays.remove(&serial);
        }
        let delayed_until = special.delayed.remove(&position).map(|(until, _)| until);
        if special.exceptions.is_empty() && special.expired_delays.is_empty() {
            debug_assert!(special.delayed.is_empty(), "delayed positions are exceptions");
            self.special = None;
        }
        delayed_until
    }

    /// Every position with a priority or a delay, running or expired.
    pub(crate) fn special_positions(&self) -> Vec<Position> {
        let Some(special) = self.special.as_deref() else { return Vec::new() };
        let urgent = special.urgent.iter().flatten();
        urgent.chain(special.delayed.keys()).chain(special.expired_delay_serials.keys()).copied().collect()
    }

    /// The delayed positions and the end of each delay.
    pub(crate) fn delayed(&self) -> impl Iterator<Item = (Position, Due)> {
        self.special.iter().flat_map(|special| special.delayed.iter()).map(|(position, (until, _))| (*position, *until))
    }

    pub(crate) fn delayed_len(&self) -> usize {
        self.special.as_deref().map_or(0, |special| special.delayed.len())
    }

    pub(crate) fn is_delayed(&self, position: Position) -> bool {
        self.special.as_deref().is_some_and(|special| special.delayed.contains_key(&position))
    }

    /// Whether no message has a priority or a delay.
    pub(crate) fn is_plain(&self) -> bool {
        self.special.is_none()
    }

    /// The first position at or after `from` of priority `level`, delayed ones excluded. For level 0 it is a lower
    /// bound: the partition can end before it.
    pub(crate) fn next_of_priority(&self, level: u8, from: Position) -> Option<Position> {
        match (self.special.as_deref(), level) {
            (None, 0) => Some(from),
            (None, _) => None,
            (Some(special), 0) => Some(special.exceptions.first_outside(from)),
            (Some(special), level) => special.urgent[level as usize - 1].range(from..).next().copied(),
        }
    }

    /// The positions whose delay expired after serial `seen`, with their serials.
    pub(crate) fn delays_expired_since(&self, seen: u64) -> impl Iterator<Item = (u64, Position, Priority)> {
        let expired = self.special.iter().flat_map(move |special| special.expired_delays.range(seen + 1..));
        expired.map(|(serial, (position, priority))| (*serial, *position, *priority))
    }

    pub(crate) fn wait(&mut self, group: GroupId) {
        self.waiters.push(group);
    }

    pub(crate) fn stop_waiting(&mut self, group: GroupId) {
        self.waiters.retain(|waiter| *waiter != group);
    }

    /// Removes and returns the waiting groups.
    pub(crate) fn take_waiters(&mut self) -> impl Iterator<Item = GroupId> {
        self.waiters.drain(..)
    }
}
