//! Who wants to be woken when.

use std::collections::{BTreeMap, BTreeSet};

use crate::collections::cow::CowMap;
use crate::types::{EffectNamespace, GroupId, MessageRef, PartitionId, Position, Timestamp, TopicId, TopicName};

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A lease ends.
    Lease(MessageRef),
    /// A message that failed may be delivered again.
    Retry(MessageRef),
    /// A delayed message may be delivered.
    Mature(TopicId, PartitionId, Position),
    /// The oldest done message of a partition grows too old to keep.
    Retention(TopicId, PartitionId),
}

/// An timer and its moment as they are sorted: in the order of `(Timestamp, Timer)`, but by two comparisons where that has
/// up to six.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Moment, kind and topic.
    when: u128,
    /// Group, partition and position; 0 for what the kind has not.
    whose: u128,
}

impl Key {
    fn new(at: Timestamp, timer: Timer) -> Self {
        let (kind, topic, group, partition, position) = match timer {
            Timer::Lease(MessageRef { topic, group, partition, position }) => (0, topic, group, partition, position),
            Timer::Retry(MessageRef { topic, group, partition, position }) => (1, topic, group, partition, position),
            Timer::Mature(topic, partition, position) => (2, topic, GroupId(0), partition, position),
            Timer::Retention(topic, partition) => (3, topic, GroupId(0), partition, Position(0)),
        };
        Self {
            when: u128::from(at.0) << 64 | kind << 32 | u128::from(topic.0),
            whose: u128::from(group.0) << 96 | u128::from(partition.0) << 64 | u128::from(position.0),
        }
    }

    fn at(self) -> Timestamp {
        Timestamp((self.when >> 64) as u64)
    }

    fn timer(self) -> Timer {
        let topic = TopicId(self.when as u32);
        let (group, partition) = (GroupId((self.whose >> 96) as u32), PartitionId((self.whose >> 64) as u32));
        let position = Position(self.whose as u64);
        match (self.when >> 32) as u32 {
            0 => Timer::Lease(MessageRef { topic, group, partition, position }),
            1 => Timer::Retry(MessageRef { topic, group, partition, position }),
            2 => Timer::Mature(topic, partition, position),
            _ => Timer::Retention(topic, partition),
        }
    }
}

/// All timers, by moment. A million sleeping ones cost nothing until their moment comes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    /// Leases mostly end in the order they began: a map that looks at its ends first.
    timers: CowMap<Key, ()>,
    retention: BTreeMap<(TopicId, PartitionId), Timestamp>,
    sweeps: BTreeSet<(Timestamp, Sweep)>,
    /// The moments of `sweeps`: each stands there once.
    swept: BTreeMap<Sweep, Timestamp>,
}

/// Something that holds what time lets go of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sweep {
    /// The produce identities of a topic, as producers mean it.
    Dedupe(TopicName),
    /// The effects of a namespace.
    Effects(EffectNamespace),
    /// The answers of completed steps.
    Completions,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Timestamp, timer: Timer) {
        let before = self.timers.insert(Key::new(at, timer), ());
        debug_assert!(before.is_none(), "an timer is set once");
    }

    pub(crate) fn cancel(&mut self, at: Timestamp, timer: Timer) {
        self.timers.remove(&Key::new(at, timer));
    }

    /// Sets or moves a partition's retention timer; `None` takes it away.
    pub(crate) fn set_retention(&mut self, topic: TopicId, partition: PartitionId, at: Option<Timestamp>) {
        let message_ref = (topic, partition);
        let before = match at {
            Some(at) => self.retention.insert(message_ref, at),
            None => self.retention.remove(&message_ref),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.cancel(before, Timer::Retention(topic, partition));
        }
        if let Some(at) = at {
            self.set(at, Timer::Retention(topic, partition));
        }
    }

    /// Sets a sweep, unless one is set for that moment or an earlier one already.
    pub(crate) fn set_sweep(&mut self, at: Timestamp, sweep: &Sweep) {
        match self.swept.get_mut(sweep) {
            Some(set) if *set <= at => {}
            Some(set) => {
                let before = std::mem::replace(set, at);
                self.sweeps.remove(&(before, sweep.clone()));
                self.sweeps.insert((at, sweep.clone()));
            }
            None => {
                self.swept.insert(sweep.clone(), at);
                self.sweeps.insert((at, sweep.clone()));
            }
        }
    }

    /// The first timer due at `now`. It is not taken away; whoever handles it cancels it or acts so that it is.
    pub(crate) fn due(&self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        let (key, ()) = self.timers.first()?;
        (key.at() <= now).then(|| (key.at(), key.timer()))
    }

    /// Takes the first sweep that is due at `now`.
    pub(crate) fn take_due_sweep(&mut self, now: Timestamp) -> Option<Sweep> {
        if self.sweeps.first()?.0 > now {
            return None;
        }
        let (_, sweep) = self.sweeps.pop_first()?;
        self.swept.remove(&sweep);
        Some(sweep)
    }

    /// The next moment anything is due.
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
        (0..4, few(), few(), few(), position).prop_map(|(kind, topic, group, partition, position)| {
            let (topic, group) = (TopicId(topic), GroupId(group));
            let (partition, position) = (PartitionId(partition), Position(position));
            match kind {
                0 => Timer::Lease(MessageRef { topic, group, partition, position }),
                1 => Timer::Retry(MessageRef { topic, group, partition, position }),
                2 => Timer::Mature(topic, partition, position),
                _ => Timer::Retention(topic, partition),
            }
        })
    }

    proptest! {
        #[test]
        fn keys_sort_as_moments_and_alarms_do_and_come_back(
            one in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), timer()),
            other in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), timer()),
        ) {
            let (key, key_of_other) = (Key::new(one.0, one.1), Key::new(other.0, other.1));
            prop_assert_eq!(key.cmp(&key_of_other), one.cmp(&other));
            prop_assert_eq!((key.at(), key.timer()), one);
        }
    }
}
