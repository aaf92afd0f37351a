//! Topics and groups: create, delete, seek, pause.

use driftq_core::command::SeekTo;
use driftq_core::reply::{CloseCause, Overload, TopicSetting};
use driftq_core::types::{
    GroupId, GroupName, GroupOrigin, GroupStart, Millis, Retention, Setting, Timestamp, TopicId, TopicName,
};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::expected::Expected;
use super::model::{Model, Stop, Unwritten};
use super::stream::Stream;
use super::topic::{Group, Phase, Progress};

impl Model {
    pub(super) fn create_topic(
        &mut self,
        name: &TopicName,
        partitions: Option<u32>,
        retention: Retention,
    ) -> Result<Reply, Stop> {
        let requested = partitions.map(|count| count.max(1));
        if let Some(topic) = self.find(name) {
            let (partitions, known) = (self.topics[topic].partitions(), self.topics[topic].retention);
            let mut differing = Vec::new();
            if requested.is_some_and(|requested| requested != partitions) {
                differing.push(TopicSetting::Partitions(partitions));
            }
            if retention.age.is_some() && retention.age != known.age {
                differing.push(TopicSetting::RetentionAge(known.age));
            }
            if retention.bytes.is_some_and(|bytes| bytes != known.bytes.unwrap_or(u64::MAX)) {
                differing.push(TopicSetting::RetentionBytes(known.bytes.filter(|bytes| *bytes != u64::MAX)));
            }
            return match differing.is_empty() {
                true => Ok(Reply::TopicCreated { partitions, retention: known }),
                false => Err(Refusal::TopicExists { differing }.into()),
            };
        }
        let partitions = requested.unwrap_or(1);
        let max = self.limits.partitions_max;
        if partitions > max {
            return Err(Refusal::TooMany { what: "partitions", len: partitions.into(), max: max.into() }.into());
        }
        if self.topics.len() >= self.limits.topics_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        self.record(SpaceClass::Growth)?;
        let defaults = self.default_retention(name);
        let retention = or_everything(retention.age.or(defaults.age), retention.bytes.or(defaults.bytes));
        self.add_topic(name.clone(), partitions, retention);
        Ok(Reply::TopicCreated { partitions, retention })
    }

    /// What a topic retains that does not say: what the server does, but dead letters what their source does.
    fn default_retention(&self, name: &TopicName) -> Retention {
        let source = self.topics.iter().find(|topic| topic.dlq_name.as_ref() == Some(name));
        source.map_or_else(|| self.limits.retention(), |source| source.retention)
    }

    pub(super) fn change_retention(
        &mut self,
        name: &TopicName,
        age: Setting<Millis>,
        bytes: Setting<u64>,
    ) -> Result<Reply, Stop> {
        let t = self.topic(name)?;
        let (known, defaults) = (self.topics[t].retention, self.default_retention(name));
        let age = match age {
            Setting::Unchanged => known.age,
            Setting::ServerDefault => defaults.age,
            Setting::Value(age) => Some(age),
        };
        let bytes = match bytes {
            Setting::Unchanged => known.bytes,
            Setting::ServerDefault => defaults.bytes,
            Setting::Value(bytes) => Some(bytes),
        };
        let retention = or_everything(age, bytes);
        if retention != known {
            self.record(SpaceClass::Drain)?;
            self.topics[t].retention = retention;
            self.expect_at(Timestamp(0));
        }
        Ok(Reply::RetentionChanged { retention })
    }

    pub(super) fn delete_topic(&mut self, name: &TopicName) -> Result<Reply, Stop> {
        let t = self.topic(name)?;
        self.record(SpaceClass::Drain)?;
        let mut topic = self.topics.remove(t);
        self.due_groups.retain(|(of, _)| *of != topic.id);
        self.scopes.retain(|scope| scope.asked.0 != *name && scope.asked.1 != *name);
        self.forget_effects(name, None);
        self.forget_winners(topic.id, None);
        topic.groups.sort_by(|a, b| a.name.cmp(&b.name));
        for group in &topic.groups {
            self.close_streams(topic.id, group.id, CloseCause::TopicDeleted);
        }
        Ok(Reply::Success)
    }

    /// Removes every message of a topic. Those that are leased have no winner.
    pub(super) fn purge(&mut self, name: &TopicName) -> Result<Reply, Stop> {
        let t = self.topic(name)?;
        let count = self.topics[t].messages.len();
        if count > 0 {
            self.record(SpaceClass::Drain)?;
            for g in 0..self.topics[t].groups.len() {
                let is_leased = |m: &usize| match &self.topics[t].groups[g].progress[*m] {
                    Progress::Attempted(attempted) => matches!(attempted.phase, Phase::Leased { .. }),
                    _ => false,
                };
                let mut leased: Vec<usize> = (0..count).filter(is_leased).collect();
                leased.sort_by_key(|m| (self.topics[t].messages[*m].partition, *m));
                leased.into_iter().for_each(|m| self.remember_winner((t, g, m), None));
            }
            let topic = &mut self.topics[t];
            topic.messages.clear();
            topic.groups.iter_mut().for_each(|group| group.progress.clear());
        }
        Ok(Reply::Purged { count: count as u64 })
    }

    /// Creates a group of the topic, if it does not exist. One that exists may become a more durable one.
    pub(super) fn create_group(
        &mut self,
        t: usize,
        name: &GroupName,
        start: GroupStart,
        origin: GroupOrigin,
    ) -> Result<(), Stop> {
        if let Some(g) = self.topics[t].group_named(name) {
            let durability = |origin| match origin {
                GroupOrigin::Ephemeral => 0,
                GroupOrigin::Consumed => 1,
                GroupOrigin::Requested => 2,
            };
            if durability(origin) > durability(self.topics[t].groups[g].origin) {
                self.record(SpaceClass::Drain)?;
                self.topics[t].groups[g].origin = origin;
                self.returned(t, g);
            }
            return Ok(());
        }
        if self.topics[t].groups.len() >= self.limits.groups_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        self.record(SpaceClass::Drain)?;
        let now = self.now;
        let topic = &mut self.topics[t];
        topic.remove_over(now);
        let id = topic.next_group;
        topic.next_group = id.next();
        let is_visible = |only_for: Option<_>| start == GroupStart::Earliest && only_for.is_none();
        let progress = topic.messages.iter().map(|message| match is_visible(message.only_for) {
            true => Progress::Ready,
            false => Progress::Acked,
        });
        let (progress, name) = (progress.collect(), name.clone());
        let (last_served, last_partition, replayed_below) = Default::default();
        topic.groups.push(Group {
            id,
            name,
            paused: false,
            skipped: 0,
            origin,
            has_acked: false,
            idle: None,
            progress,
            last_served,
            last_partition,
            replayed_below,
        });
        self.reclaim(t);
        self.set_timers(t);
        Ok(())
    }

    pub(super) fn delete_group(&mut self, topic: &TopicName, group: &GroupName) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        let (topic, group) = (self.topics[t].id, self.topics[t].groups[g].id);
        self.remove_group(t, g)?;
        self.close_streams(topic, group, CloseCause::GroupDeleted);
        Ok(Reply::Success)
    }

    /// Deletes a group, whose streams are left to close.
    pub(super) fn remove_group(&mut self, t: usize, g: usize) -> Result<(), Unwritten> {
        self.record(SpaceClass::Drain)?;
        self.returned(t, g);
        let now = self.now;
        self.topics[t].remove_over(now);
        let (topic, group) = (self.topics[t].name.clone(), self.topics[t].groups.remove(g));
        self.forget_effects(&topic, Some(&group.name));
        self.forget_winners(self.topics[t].id, Some(group.id));
        self.reclaim(t);
        self.set_timers(t);
        Ok(())
    }

    fn close_streams(&mut self, topic: TopicId, group: GroupId, cause: CloseCause) {
        let is_closed = |stream: &mut Stream| (stream.topic, stream.group) == (topic, group);
        let closed: Vec<_> = self.streams.extract_if(.., is_closed).map(|stream| stream.id).collect();
        closed.into_iter().for_each(|consumer| self.expect(Expected::Closed { consumer, cause }));
    }

    /// From the target on, every message visible to the group is as if it had never been delivered; all earlier ones
    /// are acked.
    pub(super) fn seek(&mut self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        self.record(SpaceClass::Drain)?;
        let to = match to {
            SeekTo::Time(wall) => SeekTo::Time(self.broker_time(wall)),
            to => to,
        };
        let now = self.now;
        let topic = &mut self.topics[t];
        // The targets are found before what is over is removed, which makes no difference.
        topic.remove_over(now);
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
        self.set_timers(t);
        Ok(Reply::Success)
    }

    pub(super) fn pause(&mut self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<Reply, Stop> {
        let (t, g) = self.group(topic, group)?;
        if self.topics[t].groups[g].paused != paused {
            self.record(SpaceClass::Drain)?;
            self.topics[t].groups[g].paused = paused;
        }
        Ok(Reply::Success)
    }
}

/// Without any limit, everything is kept.
fn or_everything(age: Option<Millis>, bytes: Option<u64>) -> Retention {
    if age.is_none() && bytes.is_none() { Retention::EVERYTHING } else { Retention { age, bytes } }
}
