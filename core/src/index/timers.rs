//! Timers: leases, retries, delays, retention, deadlines and sweeps, ordered by time.
//!
//! Timers of durations are kept in broker time, timers of absolute times in wall time: an adjustment of the wall clock
//! moves no timer, only the time with which it is compared.

use std::collections::{BTreeMap, BTreeSet};

use crate::collections::cow::OwnMap;
use crate::types::{
    EffectNamespace, GroupId, MessageRef, PartitionId, Position, ProduceScope, Timestamp, TopicId, WallClock,
};

/// When a timer is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At this broker time.
    Broker(Timestamp),
    /// At this wall time.
    Wall(Timestamp),
}

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Self {
        Self::Broker(at)
    }
}

/// What happens when a timer fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A lease expires.
    Lease(MessageRef),
    /// A failed message is ready again.
    Retry(MessageRef),
    /// The delay of a message expires.
    Delay(TopicId, PartitionId, Position),
    /// The oldest retained message of a partition exceeds the retention age.
    Retention(TopicId, PartitionId),
    /// The deadline of a message passes.
    Deadline(TopicId, PartitionId, Position),
    /// A group has been without a consumer for so long that it is examined.
    IdleGroup(TopicId, GroupId),
}

/// A time and a timer, packed: ordered as `(Timestamp, Timer)`, but with two comparisons instead of up to six.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Time, kind and topic.
    high: u128,
    /// Group, partition and position; 0 where the kind has none.
    low: u128,
}

impl Key {
    fn new(at: Timestamp, timer: Timer) -> Self {
        let (kind, topic, group, partition, position) = match timer {
            Timer::Lease(MessageRef { topic, group, partition, position }) => (0, topic, group, partition, position),
            Timer::Retry(MessageRef { topic, group, partition, position }) => (1, topic, group, partition, position),
            Timer::Delay(topic, partition, position) => (2, topic, GroupId(0), partition, position),
            Timer::Retention(topic, partition) => (3, topic, GroupId(0), partition, Position(0)),
            Timer::Deadline(topic, partition, position) => (4, topic, GroupId(0), partition, position),
            Timer::IdleGroup(topic, group) => (5, topic, group, PartitionId(0), Position(0)),
        };
        Self {
            high: u128::from(at.0) << 64 | kind << 32 | u128::from(topic.0),
            low: u128::from(group.0) << 96 | u128::from(partition.0) << 64 | u128::from(position.0),
        }
    }

    fn at(self) -> Timestamp {
        Timestamp((self.high >> 64) as u64)
    }

    fn timer(self) -> Timer {
        let topic = TopicId(self.high as u32);
        let (group, partition) = (GroupId((self.low >> 96) as u32), PartitionId((self.low >> 64) as u32));
        let position = Position(self.low as u64);
        match (self.high >> 32) as u32 {
            0 => Timer::Lease(MessageRef { topic, group, partition, position }),
            1 => Timer::Retry(MessageRef { topic, group, partition, position }),
            2 => Timer::Delay(topic, partition, position),
            3 => Timer::Retention(topic, partition),
            4 => Timer::Deadline(topic, partition, position),
            _ => Timer::IdleGroup(topic, group),
        }
    }
}

/// All timers, ordered by time. A timer costs nothing until it is due.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    /// A [`OwnMap`] searches its ends first, and leases mostly end in the order they began.
    timers: OwnMap<Key, ()>,
    /// Due in wall time.
    wall_timers: OwnMap<Key, ()>,
    sweeps: BTreeSet<(Timestamp, Sweep)>,
    /// The time of each sweep in `sweeps`.
    sweep_times: BTreeMap<Sweep, Timestamp>,
}

/// A table whose expired entries are removed in batches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sweep {
    /// The dedupe table of a scope.
    Dedupe(ProduceScope),
    /// The effects of a namespace.
    Effects(EffectNamespace),
    /// The stored replies of completed steps.
    Completions,
    /// The winners of messages.
    Winners,
}

impl Timers {
    pub(crate) fn set(&mut self, due: impl Into<Due>, timer: Timer) {
        let before = match due.into() {
            Due::Broker(at) => self.timers.insert(Key::new(at, timer), ()),
            Due::Wall(at) => self.wall_timers.insert(Key::new(at, timer), ()),
        };
        debug_assert!(before.is_none() || matches!(timer, Timer::Deadline(..)), "a timer is set once");
    }

    pub(crate) fn cancel(&mut self, due: impl Into<Due>, timer: Timer) {
        match due.into() {
            Due::Broker(at) => self.timers.remove(&Key::new(at, timer)),
            Due::Wall(at) => self.wall_timers.remove(&Key::new(at, timer)),
        };
    }

    /// Moves the retention timer of a partition; `None` is a timer that is not set.
    pub(crate) fn move_retention(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    ) {
        if let Some(before) = before {
            self.cancel(before, Timer::Retention(topic, partition));
        }
        if let Some(after) = after {
            self.set(after, Timer::Retention(topic, partition));
        }
    }

    /// Schedules a sweep, unless it is scheduled for `at` or earlier.
    pub(crate) fn set_sweep(&mut self, at: Timestamp, sweep: &Sweep) {
        match self.sweep_times.get_mut(sweep) {
            Some(set) if *set <= at => {}
            Some(set) => {
                let before = std::mem::replace(set, at);
                self.sweeps.remove(&(before, sweep.clone()));
                self.sweeps.insert((at, sweep.clone()));
            }
            None => {
                self.sweep_times.insert(sweep.clone(), at);
                self.sweeps.insert((at, sweep.clone()));
            }
        }
    }

    /// Whether nothing is due at broker time `now`, as far as a look at the first of each shows.
    #[inline]
    pub(crate) fn is_quiet(&self, now: Timestamp) -> bool {
        self.timers.first().is_none_or(|(key, ())| key.at() > now)
            && self.wall_timers.is_empty()
            && self.sweeps.first().is_none_or(|(at, _)| *at > now)
    }

    /// The first timer due at broker time `now`. It stays set; handling it cancels it.
    pub(crate) fn due(&self, now: Timestamp) -> Option<(Due, Timer)> {
        let (key, ()) = self.timers.first()?;
        (key.at() <= now).then(|| (Due::Broker(key.at()), key.timer()))
    }

    /// As [`Timers::due`], of the timers in wall time by `clock`.
    pub(crate) fn due_in_wall_time(&self, clock: &WallClock, now: Timestamp) -> Option<(Due, Timer)> {
        let (key, ()) = self.wall_timers.first()?;
        (key.at() <= clock.wall(now)).then(|| (Due::Wall(key.at()), key.timer()))
    }

    /// Removes and returns the first sweep due at `now`.
    pub(crate) fn take_due_sweep(&mut self, now: Timestamp) -> Option<Sweep> {
        if self.sweeps.first()?.0 > now {
            return None;
        }
        let (_, sweep) = self.sweeps.pop_first()?;
        self.sweep_times.remove(&sweep);
        Some(sweep)
    }

    /// All timers.
    pub(super) fn all(&self) -> impl Iterator<Item = (Due, Timer)> {
        let broker = self.timers.iter().map(|(key, ())| (Due::Broker(key.at()), key.timer()));
        broker.chain(self.wall_timers.iter().map(|(key, ())| (Due::Wall(key.at()), key.timer())))
    }

    /// All sweeps.
    pub(super) fn all_sweeps(&self) -> impl Iterator<Item = (Timestamp, Sweep)> {
        self.sweeps.iter().cloned()
    }

    /// The wall time at which the first timer in wall time is due.
    pub(crate) fn next_wall(&self) -> Option<Timestamp> {
        self.wall_timers.first().map(|(key, ())| key.at())
    }

    /// The broker time at which the first timer or sweep in broker time is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(key, ())| key.at());
        let sweep = self.sweeps.first().map(|(at, _)| *at);
        timer.into_iter().chain(sweep).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timer() -> impl Strategy<Value = Timer> {
        let few = || prop_oneof![Just(0), 0_u32..3, Just(u32::MAX)];
        let position = prop_oneof![Just(0), 0_u64..3, Just(u64::MAX)];
        (0..6, few(), few(), few(), position).prop_map(|(kind, topic, group, partition, position)| {
            let (topic, group) = (TopicId(topic), GroupId(group));
            let (partition, position) = (PartitionId(partition), Position(position));
            match kind {
                0 => Timer::Lease(MessageRef { topic, group, partition, position }),
                1 => Timer::Retry(MessageRef { topic, group, partition, position }),
                2 => Timer::Delay(topic, partition, position),
                3 => Timer::Retention(topic, partition),
                4 => Timer::Deadline(topic, partition, position),
                _ => Timer::IdleGroup(topic, group),
            }
        })
    }

    proptest! {
        #[test]
        fn timer_keys_round_trip_and_sort_by_time_and_timer(
            one in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), timer()),
            other in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), timer()),
        ) {
            let (key, key_of_other) = (Key::new(one.0, one.1), Key::new(other.0, other.1));
            prop_assert_eq!(key.cmp(&key_of_other), one.cmp(&other));
            prop_assert_eq!((key.at(), key.timer()), one);
        }
    }
}
