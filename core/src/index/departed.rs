//! Groups whose consumers have departed, and since when.
//!
//! A group that came into being by consuming is watched here while it has no consumer. Whether it may be deleted is
//! decided when its time comes: it can have acked, been paused or hold leases by then.

use std::collections::{BTreeMap, BTreeSet};

use super::{Index, Timer};
use crate::state::Group;
use crate::types::{GroupId, GroupOrigin, Limits, Millis, Timestamp, TopicId};

/// The least time after which a group that could not be deleted is examined again, however short the idle time is.
const REEXAMINED_AFTER_MIN: Millis = Millis(1_000);

/// Groups without consumers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departed {
    /// The time after which a group may be deleted if it makes a partition refuse a message, and in any case.
    pub(super) idle: Option<(Millis, Millis)>,
    /// The most groups of a topic that one refused message examines.
    examined_max: usize,
    /// Groups created by consuming, since when they have no consumer, and when their timer is due.
    pub(super) groups: BTreeMap<(TopicId, GroupId), Watch>,
    /// Groups to delete now.
    pub(super) due: BTreeSet<(TopicId, GroupId)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) since: Timestamp,
    pub(super) timer: Timestamp,
}

impl Departed {
    pub(super) fn new(limits: &Limits) -> Self {
        let idle = limits.group_idle.map(|idle| (idle, limits.group_idle_max.max(idle)));
        Self { idle, examined_max: limits.work.groups_examined, ..Self::default() }
    }

    /// The next group to delete.
    pub(crate) fn first_due(&self) -> Option<(TopicId, GroupId)> {
        self.due.first().copied()
    }

    /// The group is not to be deleted now.
    pub(crate) fn spared(&mut self, topic: TopicId, group: GroupId) {
        self.due.remove(&(topic, group));
    }

    /// The groups of a topic that have been without a consumer for long enough at `now`; the longest are not the first.
    pub(crate) fn idle_groups(&self, topic: TopicId, now: Timestamp) -> impl Iterator<Item = GroupId> {
        let idle = self.idle.map(|(idle, _)| idle);
        let of_topic = self.groups.range((topic, GroupId(0))..=(topic, GroupId(u32::MAX)));
        let is_idle = move |watch: &Watch| idle.is_some_and(|idle| watch.since.after(idle) <= now);
        of_topic.take(self.examined_max).filter(move |(_, watch)| is_idle(watch)).map(|((_, group), _)| *group)
    }

    /// Deletes the group as soon as the log takes the record.
    pub(crate) fn condemn(&mut self, topic: TopicId, group: GroupId) {
        self.due.insert((topic, group));
    }
}

impl Index {
    /// The group has no consumer since `now`.
    pub(super) fn departed(&mut self, topic: TopicId, group: &Group, now: Timestamp) {
        match group.origin() {
            GroupOrigin::Requested => {}
            GroupOrigin::Ephemeral => self.departed.condemn(topic, group.id()),
            GroupOrigin::Consumed => {
                if let Some((_, longest)) = self.departed.idle {
                    self.watch_group(topic, group.id(), Watch { since: now, timer: now.after(longest) });
                }
            }
        }
    }

    /// Examines the group again after a while, since it cannot be deleted now.
    pub(crate) fn examine_later(&mut self, topic: TopicId, group: GroupId, now: Timestamp) {
        let since = self.departed.groups.get(&(topic, group)).map_or(now, |watch| watch.since);
        self.returned(topic, group);
        if let Some((idle, _)) = self.departed.idle {
            self.watch_group(topic, group, Watch { since, timer: now.after(idle.max(REEXAMINED_AFTER_MIN)) });
        }
    }

    /// The group has a consumer, is deleted, or is to stay for other reasons.
    pub(crate) fn returned(&mut self, topic: TopicId, group: GroupId) {
        self.departed.spared(topic, group);
        if let Some(watch) = self.departed.groups.remove(&(topic, group)) {
            self.timers.cancel(watch.timer, Timer::IdleGroup(topic, group));
        }
    }

    fn watch_group(&mut self, topic: TopicId, group: GroupId, watch: Watch) {
        self.returned(topic, group);
        self.departed.groups.insert((topic, group), watch);
        self.timers.set(watch.timer, Timer::IdleGroup(topic, group));
    }
}
