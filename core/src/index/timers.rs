//! Who wants to be woken when.

use std::collections::{BTreeMap, BTreeSet};

use crate::idempotency::Realm;
use crate::record::Place;
use crate::state::cow::CowMap;
use crate::types::{GroupId, PartitionId, Position, Timestamp, TopicId, TopicName};

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// A lease ends.
    Lease(Place),
    /// A message that failed may be delivered again.
    Retry(Place),
    /// A delayed message may be delivered.
    Mature(TopicId, PartitionId, Position),
    /// The oldest done message of a partition grows too old to keep.
    Retention(TopicId, PartitionId),
}

/// An alarm and its moment as they are sorted: in the order of `(Timestamp, Alarm)`, but by two comparisons where that has
/// up to six.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Moment, kind and topic.
    when: u128,
    /// Group, partition and position; 0 for what the kind has not.
    whose: u128,
}

impl Key {
    fn new(at: Timestamp, alarm: Alarm) -> Self {
        let (kind, topic, group, partition, position) = match alarm {
            Alarm::Lease(Place { topic, group, partition, position }) => (0, topic, group, partition, position),
            Alarm::Retry(Place { topic, group, partition, position }) => (1, topic, group, partition, position),
            Alarm::Mature(topic, partition, position) => (2, topic, GroupId(0), partition, position),
            Alarm::Retention(topic, partition) => (3, topic, GroupId(0), partition, Position(0)),
        };
        Self {
            when: u128::from(at.0) << 64 | kind << 32 | u128::from(topic.0),
            whose: u128::from(group.0) << 96 | u128::from(partition.0) << 64 | u128::from(position.0),
        }
    }

    fn at(self) -> Timestamp {
        Timestamp((self.when >> 64) as u64)
    }

    fn alarm(self) -> Alarm {
        let topic = TopicId(self.when as u32);
        let (group, partition) = (GroupId((self.whose >> 96) as u32), PartitionId((self.whose >> 64) as u32));
        let position = Position(self.whose as u64);
        match (self.when >> 32) as u32 {
            0 => Alarm::Lease(Place { topic, group, partition, position }),
            1 => Alarm::Retry(Place { topic, group, partition, position }),
            2 => Alarm::Mature(topic, partition, position),
            _ => Alarm::Retention(topic, partition),
        }
    }
}

/// All alarms, by moment. A million sleeping ones cost nothing until their moment comes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    /// Leases mostly end in the order they began: a map that looks at its ends first.
    alarms: CowMap<Key, ()>,
    retention: BTreeMap<(TopicId, PartitionId), Timestamp>,
    sweeps: BTreeSet<(Timestamp, Sweep)>,
    /// The moments of `sweeps`: each stands there once.
    swept: BTreeMap<Sweep, Timestamp>,
}

/// Something that holds what time lets go of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sweep {
    /// The produce identities of a topic, as producers mean it.
    Identities(TopicName),
    /// The effects of a realm.
    Effects(Realm),
    /// The answers of completed steps.
    Completions,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Timestamp, alarm: Alarm) {
        let before = self.alarms.insert(Key::new(at, alarm), ());
        debug_assert!(before.is_none(), "an alarm is set once");
    }

    pub(crate) fn cancel(&mut self, at: Timestamp, alarm: Alarm) {
        self.alarms.remove(&Key::new(at, alarm));
    }

    /// Sets or moves a partition's retention alarm; `None` takes it away.
    pub(crate) fn set_retention(&mut self, topic: TopicId, partition: PartitionId, at: Option<Timestamp>) {
        let place = (topic, partition);
        let before = match at {
            Some(at) => self.retention.insert(place, at),
            None => self.retention.remove(&place),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.cancel(before, Alarm::Retention(topic, partition));
        }
        if let Some(at) = at {
            self.set(at, Alarm::Retention(topic, partition));
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

    /// The first alarm due at `now`. It is not taken away; whoever handles it cancels it or acts so that it is.
    pub(crate) fn due(&self, now: Timestamp) -> Option<(Timestamp, Alarm)> {
        let (key, ()) = self.alarms.first()?;
        (key.at() <= now).then(|| (key.at(), key.alarm()))
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
        let alarm = self.alarms.first().map(|(key, ())| key.at());
        let sweep = self.sweeps.first().map(|(at, _)| *at);
        alarm.into_iter().chain(sweep).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alarm() -> impl Strategy<Value = Alarm> {
        let few = || prop_oneof![Just(0), 0_u32..3, Just(u32::MAX)];
        let position = prop_oneof![Just(0), 0_u64..3, Just(u64::MAX)];
        (0..4, few(), few(), few(), position).prop_map(|(kind, topic, group, partition, position)| {
            let (topic, group) = (TopicId(topic), GroupId(group));
            let (partition, position) = (PartitionId(partition), Position(position));
            match kind {
                0 => Alarm::Lease(Place { topic, group, partition, position }),
                1 => Alarm::Retry(Place { topic, group, partition, position }),
                2 => Alarm::Mature(topic, partition, position),
                _ => Alarm::Retention(topic, partition),
            }
        })
    }

    proptest! {
        #[test]
        fn keys_sort_as_moments_and_alarms_do_and_come_back(
            one in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), alarm()),
            other in (prop_oneof![0_u64..3, Just(u64::MAX)].prop_map(Timestamp), alarm()),
        ) {
            let (key, key_of_other) = (Key::new(one.0, one.1), Key::new(other.0, other.1));
            prop_assert_eq!(key.cmp(&key_of_other), one.cmp(&other));
            prop_assert_eq!((key.at(), key.alarm()), one);
        }
    }
}
