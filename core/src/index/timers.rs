//! Who wants to be woken when.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::Place;
use crate::types::{PartitionId, Position, Timestamp, TopicId, TopicName};

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

/// All alarms, by moment. A million sleeping ones cost nothing until their moment comes.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    alarms: BTreeSet<(Timestamp, Alarm)>,
    retention: BTreeMap<(TopicId, PartitionId), Timestamp>,
    sweeps: BTreeSet<(Timestamp, TopicName)>,
    /// The scopes in `sweeps`: each stands there once.
    swept: BTreeSet<TopicName>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Timestamp, alarm: Alarm) {
        let fresh = self.alarms.insert((at, alarm));
        debug_assert!(fresh, "an alarm is set once");
    }

    pub(crate) fn cancel(&mut self, at: Timestamp, alarm: Alarm) {
        self.alarms.remove(&(at, alarm));
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
            self.alarms.remove(&(before, Alarm::Retention(topic, partition)));
        }
        if let Some(at) = at {
            self.alarms.insert((at, Alarm::Retention(topic, partition)));
        }
    }

    /// Sets a scope's sweep, unless one is set already.
    pub(crate) fn set_sweep(&mut self, at: Timestamp, scope: &TopicName) {
        if self.swept.insert(scope.clone()) {
            self.sweeps.insert((at, scope.clone()));
        }
    }

    /// The first alarm due at `now`. It is not taken away; whoever handles it cancels it or acts so that it is.
    pub(crate) fn due(&self, now: Timestamp) -> Option<(Timestamp, Alarm)> {
        self.alarms.first().copied().filter(|(at, _)| *at <= now)
    }

    /// Takes the first scope whose produce identities are to be swept at `now`.
    pub(crate) fn take_due_sweep(&mut self, now: Timestamp) -> Option<TopicName> {
        if self.sweeps.first()?.0 > now {
            return None;
        }
        let (_, scope) = self.sweeps.pop_first()?;
        self.swept.remove(&scope);
        Some(scope)
    }

    /// The next moment anything is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let sweep = self.sweeps.first().map(|(at, _)| *at);
        alarm.into_iter().chain(sweep).min()
    }
}
