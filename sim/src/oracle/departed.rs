//! Groups whose streams have ended, and retained messages beyond the memory for them.

use driftq_core::types::{GroupId, GroupOrigin, Millis, PartitionId, Timestamp, TopicId};
use driftq_core::{Refusal, SpaceClass};

use super::model::{Model, Unwritten};
use super::topic::{Message, Progress, Topic};

impl Model {
    /// The group has lost its last stream, or the broker has started.
    pub(super) fn departed(&mut self, t: usize, g: usize) {
        let now = self.now;
        let key = (self.topics[t].id, self.topics[t].groups[g].id);
        let group = &mut self.topics[t].groups[g];
        match (group.origin, self.limits.group_idle) {
            (GroupOrigin::Ephemeral, _) => self.mark_due(key),
            (GroupOrigin::Consumed, Some(idle)) => {
                group.idle = Some((now, now.after(self.limits.group_idle_max.max(idle))));
                self.expect_at(Timestamp(0));
            }
            (GroupOrigin::Consumed, None) | (GroupOrigin::Requested, _) => {}
        }
    }

    /// The group has a stream, is deleted or is to stay.
    pub(super) fn returned(&mut self, t: usize, g: usize) {
        let key = (self.topics[t].id, self.topics[t].groups[g].id);
        self.topics[t].groups[g].idle = None;
        self.due_groups.retain(|due| *due != key);
    }

    pub(super) fn last_stream_ended(&mut self, topic: TopicId, group: GroupId) {
        if self.streams.iter().any(|stream| (stream.topic, stream.group) == (topic, group)) {
            return;
        }
        if let Some((t, g)) = self.indices((topic, group)) {
            self.departed(t, g);
        }
    }

    /// A full partition refused a message: groups that left it long ago are to be deleted.
    pub(super) fn note_refusal(&mut self, refusal: &Refusal) {
        let Refusal::Overloaded { full: Some(full), .. } = refusal else { return };
        let Some(idle) = self.limits.group_idle else { return };
        let Some(topic) = self.topics.iter().find(|topic| topic.name == full.topic) else { return };
        let holds = |progress: &[Progress]| {
            let mut all = topic.messages.iter().zip(progress);
            all.any(|(message, progress)| message.partition == full.partition && !matches!(progress, Progress::Acked))
        };
        let left = |since: Timestamp| since.after(idle) <= self.now;
        let mut watched: Vec<_> = topic.groups.iter().filter(|group| group.idle.is_some()).collect();
        watched.sort_by_key(|group| group.id);
        watched.truncate(self.limits.work.groups_examined);
        let groups = watched.into_iter().filter(|group| group.idle.is_some_and(|(since, _)| left(since)));
        let groups: Vec<_> = groups.filter(|group| holds(&group.progress)).map(|group| group.id).collect();
        let topic = topic.id;
        groups
            .into_iter()
            .take(self.limits.work.groups_deleted_per_call)
            .for_each(|group| self.mark_due((topic, group)));
    }

    /// A group has had no stream for the longest time.
    pub(super) fn examine(&mut self, t: usize, g: usize) {
        let (idle, now) = (self.limits.group_idle.unwrap_or_default(), self.now);
        let verdict = self.deletable(t, g);
        if verdict == Deletable::Never {
            return self.returned(t, g);
        }
        let key = (self.topics[t].id, self.topics[t].groups[g].id);
        let group = &mut self.topics[t].groups[g];
        group.idle = group.idle.map(|(since, _)| (since, now.after(idle.max(Millis(1_000)))));
        self.due_groups.retain(|due| *due != key);
        if verdict == Deletable::Now {
            self.mark_due(key);
        }
    }

    pub(super) fn delete_due_groups(&mut self) -> Result<(), Unwritten> {
        for _ in 0..self.limits.work.groups_deleted_per_call {
            let due = self.due_groups.iter().min().copied();
            let Some(key) = due.filter(|_| !self.is_stalled()) else { return Ok(()) };
            let found = self.indices(key);
            let found = found.filter(|(t, g)| self.deletable(*t, *g) == Deletable::Now);
            match found {
                Some((t, g)) => {
                    let written = self.remove_group(t, g);
                    self.or_pause(written)?;
                }
                None => self.due_groups.retain(|due| *due != key),
            }
        }
        Ok(())
    }

    fn mark_due(&mut self, key: (TopicId, GroupId)) {
        if !self.due_groups.contains(&key) {
            self.due_groups.push(key);
        }
    }

    fn indices(&self, (topic, group): (TopicId, GroupId)) -> Option<(usize, usize)> {
        let t = self.topics.iter().position(|known| known.id == topic)?;
        Some((t, self.topics[t].groups.iter().position(|known| known.id == group)?))
    }

    fn deletable(&self, t: usize, g: usize) -> Deletable {
        let (topic, group) = (&self.topics[t], &self.topics[t].groups[g]);
        let has_stream = self.streams.iter().any(|stream| (stream.topic, stream.group) == (topic.id, group.id));
        let is_leased = group.progress.iter().any(Progress::is_leased);
        match group.origin {
            _ if has_stream => Deletable::Never,
            GroupOrigin::Requested => Deletable::Never,
            GroupOrigin::Ephemeral => Deletable::Now,
            GroupOrigin::Consumed if group.has_acked => Deletable::Never,
            GroupOrigin::Consumed if group.paused || is_leased => Deletable::Later,
            GroupOrigin::Consumed => Deletable::Now,
        }
    }

    pub(super) fn exceeds_retained_bound(&self) -> bool {
        let max = self.limits.retained_bytes_max;
        max < u64::MAX && self.topics.iter().map(retained_memory).sum::<u64>() > max
    }

    /// The oldest retained messages go once all of them exceed their memory.
    pub(super) fn limit_retained(&mut self) -> Result<(), Unwritten> {
        let max = self.limits.retained_bytes_max;
        let mut memory: u64 = self.topics.iter().map(retained_memory).sum();
        if memory <= max {
            return Ok(());
        }
        let target = memory - (memory - max).max(max / 1_024);
        for _ in 0..self.limits.work.frees_per_call {
            if memory <= target || self.is_stalled() {
                break;
            }
            let mut oldest: Vec<_> = Vec::new();
            for (t, topic) in self.topics.iter().enumerate() {
                for partition in (0..topic.partitions()).map(PartitionId) {
                    let first = topic.messages.iter().find(|it| it.is_retained && it.partition == partition);
                    oldest.extend(first.map(|message| ((message.produced_at, topic.id, partition), t)));
                }
            }
            oldest.sort();
            let Some(((_, id, partition), t)) = oldest.first().copied() else { return Ok(()) };
            let next = oldest.get(1).map(|(key, _)| *key);
            let written = self.record(SpaceClass::Drain);
            self.or_pause(written)?;
            let mut left = if self.is_stalled() { 0 } else { self.limits.work.swept_per_record };
            while memory > target && left > 0 {
                left -= 1;
                let messages = &self.topics[t].messages;
                let Some(at) = messages.iter().position(|it| it.is_retained && it.partition == partition) else {
                    break;
                };
                if next.is_some_and(|next| (messages[at].produced_at, id, partition) >= next) {
                    break;
                }
                memory -= messages[at].memory();
                self.topics[t].remove(at);
            }
        }
        Ok(())
    }
}

fn retained_memory(topic: &Topic) -> u64 {
    topic.messages.iter().filter(|message| message.is_retained).map(Message::memory).sum()
}

/// Whether a group may be deleted without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletable {
    Now,
    Later,
    Never,
}
