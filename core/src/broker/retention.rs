//! Removes what the broker keeps no longer: retained messages, and groups whose consumers have departed.

use super::{Broker, LogSink, SpaceClass};
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::Refusal;
use crate::state::{Group, Partition, Topic};
use crate::types::{GroupId, GroupOrigin, PartitionId, TopicId};

/// Beyond the memory for retained messages, this fraction of it is freed at once, so that not every ack costs a record
/// more.
const FREED_SHARE: u64 = 1_024;

impl<F: Faults> Broker<F> {
    /// Removes retained messages that exceed the retention of their topic, and returns how many.
    pub(super) fn expire_retained(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
        log: &mut dyn LogSink,
    ) -> Result<u64, Refusal> {
        let durable = self.state.topic(topic).expect("timers of a deleted topic are cancelled");
        let messages = durable.partition(partition).expect("a retention timer names a partition");
        let before = messages.retained_load().messages;
        let through = messages.retained_over(durable.retention(), self.now, self.limits.work.swept_per_record as usize);
        let through = through.expect("the timer fires when the oldest message exceeds the retention");
        self.commit_or_refuse(Event::RetentionExpired { topic, partition, through }, SpaceClass::Drain, log)?;
        let after = self.state.topic(topic).and_then(|topic| topic.partition(partition));
        Ok(before - after.map_or(0, |messages| messages.retained_load().messages))
    }

    /// Removes the oldest retained messages beyond the memory for them. If the log refuses the record, a later call
    /// retries it.
    #[inline]
    pub(super) fn limit_retained(&mut self, log: &mut dyn LogSink) {
        let excess = self.excess_retained();
        if excess > 0 {
            self.free_retained(excess.max(self.limits.retained_bytes_max / FREED_SHARE), log);
        }
    }

    #[cold]
    fn free_retained(&mut self, memory: u64, log: &mut dyn LogSink) {
        let target = self.index.retained.memory() - memory.min(self.index.retained.memory());
        for _ in 0..self.limits.work.frees_per_call {
            let excess = self.index.retained.memory().saturating_sub(target);
            if excess == 0 || self.stalled_until.is_some() {
                return;
            }
            let Some(oldest) = self.index.retained.oldest() else { return };
            let messages = self.state.topic(oldest.topic).and_then(|topic| topic.partition(oldest.partition));
            let through = messages.and_then(|messages| {
                messages.retained_for(excess, self.limits.work.swept_per_record as usize, |produced_at| {
                    oldest.includes(produced_at)
                })
            });
            let Some(through) = through else { return };
            let event = Event::RetentionExpired { topic: oldest.topic, partition: oldest.partition, through };
            if self.commit(event, SpaceClass::Drain, log).is_err() {
                self.stall();
            }
        }
    }

    /// The memory of retained messages beyond the limit.
    pub(super) fn excess_retained(&self) -> u64 {
        self.index.retained.memory().saturating_sub(self.limits.retained_bytes_max)
    }

    /// If a full partition is held up by groups whose consumers have departed long ago, has them deleted.
    pub(super) fn index_refusal(&mut self, refusal: &Refusal) {
        let Refusal::Overloaded { full: Some(full), .. } = refusal else { return };
        let Some(topic) = self.state.topic_named(&full.topic) else { return };
        let holds = |group: &GroupId| {
            let progress = topic.group(*group).and_then(|group| group.progress(full.partition));
            let next = topic.partition(full.partition).map(Partition::next_position);
            progress.zip(next).is_some_and(|(progress, next)| progress.acked().unacked_before(next) > 0)
        };
        let idle = self.index.departed.idle_groups(topic.id(), self.now);
        let idle: Vec<_> = idle.filter(holds).take(self.limits.work.groups_deleted_per_call).collect();
        idle.into_iter().for_each(|group| self.index.departed.condemn(topic.id(), group));
    }

    /// A group has been without a consumer for the longest time: deletes it, unless it is to stay.
    pub(super) fn examine_idle_group(&mut self, topic: TopicId, group: GroupId) {
        match self.is_deletable(topic, group) {
            Some(Deletable::Never) | None => self.index.returned(topic, group),
            Some(Deletable::Later) => self.index.examine_later(topic, group, self.now),
            Some(Deletable::Now) => {
                // Examined again if the log refuses the deletion and a consumer comes and goes before it is retried.
                self.index.examine_later(topic, group, self.now);
                self.index.departed.condemn(topic, group);
            }
        }
    }

    /// Deletes the groups whose time has come.
    pub(super) fn delete_departed_groups(&mut self, log: &mut dyn LogSink) {
        // Each deletion recounts the messages of its topic.
        for _ in 0..self.limits.work.groups_deleted_per_call {
            let Some((topic, group)) = self.index.departed.first_due().filter(|_| self.stalled_until.is_none()) else {
                return;
            };
            if self.is_deletable(topic, group) != Some(Deletable::Now) {
                self.index.departed.spared(topic, group);
            } else if self.commit(Event::GroupDeleted { topic, group }, SpaceClass::Drain, log).is_err() {
                self.stall();
            }
        }
    }

    /// Whether the broker may delete a group by itself; `None` if it does not exist.
    fn is_deletable(&self, topic: TopicId, group: GroupId) -> Option<Deletable> {
        let durable: &Topic = self.state.topic(topic)?;
        let group: &Group = durable.group(group)?;
        if self.index.members(topic, group.id()).next().is_some() {
            return Some(Deletable::Never);
        }
        Some(match group.origin() {
            GroupOrigin::Requested => Deletable::Never,
            GroupOrigin::Ephemeral => Deletable::Now,
            GroupOrigin::Consumed if self.faults.has_acked(group) => Deletable::Never,
            GroupOrigin::Consumed => {
                let is_leased = group.partitions().any(|(_, progress)| progress.in_flight() > 0);
                if group.is_paused() || is_leased { Deletable::Later } else { Deletable::Now }
            }
        })
    }
}

/// Whether the broker may delete a group by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletable {
    /// It may.
    Now,
    /// Not as long as it is paused or holds leases.
    Later,
    /// It has a consumer, has acked a message or was requested.
    Never,
}
