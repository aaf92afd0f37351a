//! Topics and groups: create, delete, seek, pause.

use driftq_core::command::SeekTo;
use driftq_core::reply::{CloseCause, Overload};
use driftq_core::types::{GroupId, GroupName, GroupStart, Retention, TopicId, TopicName};
use driftq_core::{Refusal, Reply};

use super::expected::Expected;
use super::model::{Model, Stop};
use super::topic::{Group, Progress};

impl Model {
    pub(super) fn create_topic(
        &mut self,
        name: &TopicName,
        partitions: Option<u32>,
        retention: Retention,
    ) -> Result<Reply, Stop> {
        let requested = partitions.map(|count| count.max(1));
        if let Some(topic) = self.find(name) {
            let partitions = self.topics[topic].partitions();
            if requested.is_some_and(|requested| requested != partitions) {
                return Err(Refusal::TopicExists { partitions }.into());
            }
            return Ok(Reply::TopicCreated { partitions });
        }
        let partitions = requested.unwrap_or(1);
        let max = self.limits.partitions_max;
        if partitions > max {
            return Err(Refusal::TooMany { what: "partitions", len: partitions.into(), max: max.into() }.into());
        }
        if self.topics.len() >= self.limits.topics_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        self.record()?;
        self.add_topic(name.clone(), partitions, retention);
        Ok(Reply::TopicCreated { partitions })
    }

    pub(super) fn delete_topic(&mut self, name: &TopicName) -> Result<Reply, Stop> {
        let t = self.topic(name)?;
        self.record()?;
        let mut topic = self.topics.remove(t);
        self.scopes.retain(|scope| scope.asked.0 != *name && scope.asked.1 != *name);
        self.forget_effects(name, None);
        self.forget_winners(topic.id, None);
        topic.groups.sort_by(|a, b| a.name.cmp(&b.name));
        for group in &topic.groups {
            self.close_streams(topic.id, group.id, CloseCause::TopicDeleted);
        }
        Ok(Reply::Success)
    }

    /// Creates a group of the topic, if it does not exist.
    pub(super) fn create_group(&mut self, t: usize, name: &GroupName, start: GroupStart) -> Result<(), Stop> {
        if self.topics[t].group_named(name).is_some() {
            return Ok(());
        }
        if self.topics[t].groups.len() >= self.limits.groups_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        self.record()?;
        let topic = &mut self.topics[t];
        let id = topic.next_group;
        topic.next_group = id.next();
        let is_visible = |only_for: Option<_>| start == GroupStart::Earliest && only_for.is_none();
        let progress = topic.messages.iter().map(|message| match is_visible(message.only_for) {
            true => Progress::Ready,
            false => Progress::Acked,
        });
        let (progress, name) = (progress.collect(), name.clone());
        let (last_served, last_partition, replayed_below) = Default::default();
        let (paused, skipped) = (false, 0);
        topic.groups.push(Group { id, name, paused, skipped, progress, last_served, last_partition, replayed_below });
        self.reclaim(t);
        Ok(())
    }

    pub(super) fn delete_group(&mut self, topic: &TopicName, group: &GroupName) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        self.record()?;
        let group = self.topics[t].groups.remove(g);
        self.forget_effects(topic, Some(&group.name));
        self.forget_winners(self.topics[t].id, Some(group.id));
        self.reclaim(t);
        self.close_streams(self.topics[t].id, group.id, CloseCause::GroupDeleted);
        Ok(Reply::Success)
    }

    fn close_streams(&mut self, topic: TopicId, group: GroupId, cause: CloseCause) {
        let outputs = &mut self.outputs;
        self.streams.retain(|stream| {
            let is_kept = (stream.topic, stream.group) != (topic, group);
            if !is_kept {
                outputs.push_back(Expected::Closed { consumer: stream.id, cause });
            }
            is_kept
        });
    }

    /// From the target on, every message visible to the group is as if it had never been delivered; all earlier ones
    /// are acked.
    pub(super) fn seek(&mut self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        self.record()?;
        let to = match to {
            SeekTo::Time(wall) => SeekTo::Time(self.broker_time(wall)),
            to => to,
        };
        let topic = &mut self.topics[t];
        let group = &mut topic.groups[g];
        group.replayed_below = topic.next_offset;
        for (message, progress) in topic.messages.iter().zip(&mut group.progress) {
            let is_replayed = match to {
                SeekTo::Earliest => true,
                SeekTo::Latest => false,
                SeekTo::Offset(offset) => message.offset >= offset,
                SeekTo::Time(time) => message.produced_at >= time,
            };
            let is_visible = message.only_for.is_none_or(|only| only == group.id);
            *progress = if is_replayed && is_visible { Progress::Ready } else { Progress::Acked };
        }
        let (topic, group) = (topic.id, group.id);
        self.forget_winners(topic, Some(group));
        self.reclaim(t);
        Ok(Reply::Success)
    }

    pub(super) fn pause(&mut self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        if self.topics[t].groups[g].paused != paused {
            self.record()?;
            self.topics[t].groups[g].paused = paused;
        }
        Ok(Reply::Success)
    }
}
