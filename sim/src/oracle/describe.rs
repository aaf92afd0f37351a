//! Queries.

use driftq_core::reply::{Blocked, GroupInfo, ListedGroup, PartitionInfo, ProgressInfo, TopicInfo};
use driftq_core::types::{Offset, PartitionId, TenantId, TopicName};
use driftq_core::{Refusal, Reply};

use super::dispatch::{in_flight, is_ready};
use super::expected::{ExpectedPeek, ExpectedReply};
use super::model::Model;
use super::stream::Stream;
use super::topic::{Group, Message, Progress, Topic};

impl Model {
    pub(super) fn list_topics(&self, tenant: TenantId) -> Reply {
        let names = self.topics.iter().map(|topic| topic.name.clone());
        let mut names: Vec<_> = names.filter(|name| name.tenant() == tenant).collect();
        names.sort();
        Reply::Topics(names)
    }

    pub(super) fn list_groups(&self, topic: &TopicName) -> Result<Reply, Refusal> {
        let topic = &self.topics[self.topic(topic)?];
        let listed = |group: &Group| ListedGroup { name: group.name.clone(), skipped: group.skipped };
        let mut groups: Vec<_> = topic.groups.iter().map(listed).collect();
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Reply::Groups(groups))
    }

    pub(super) fn peek(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
        limit: usize,
    ) -> Result<ExpectedReply, Refusal> {
        let topic = &self.topics[self.topic(topic)?];
        topic.has_partition(partition)?;
        let found = topic.messages.iter().filter(|message| message.partition == partition && message.offset >= offset);
        let expected_peek = |message: &Message| ExpectedPeek {
            topic: topic.id,
            partition,
            offset: message.offset,
            produced_at: message.produced_at,
            content: message.content.clone(),
        };
        Ok(ExpectedReply::Peeked(found.take(limit).map(expected_peek).collect()))
    }

    pub(super) fn describe(&self, name: &TopicName) -> Result<Reply, Refusal> {
        let topic = &self.topics[self.topic(name)?];
        let partition_ids = || (0..topic.partitions()).map(PartitionId);
        let partitions = partition_ids().map(|partition| self.describe_partition(topic, partition)).collect();
        let mut groups: Vec<_> = (0..topic.groups.len())
            .map(|g| GroupInfo {
                group: topic.groups[g].name.clone(),
                paused: topic.groups[g].paused,
                skipped: topic.groups[g].skipped,
                consumers: self.streams_of(topic, &topic.groups[g]).count(),
                partitions: partition_ids().map(|partition| self.describe_progress(topic, g, partition)).collect(),
            })
            .collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        Ok(Reply::Topic(Box::new(TopicInfo { name: name.clone(), retention: topic.retention, partitions, groups })))
    }

    fn streams_of(&self, topic: &Topic, group: &Group) -> impl Iterator<Item = &Stream> {
        let ids = (topic.id, group.id);
        self.streams.iter().filter(move |stream| (stream.topic, stream.group) == ids)
    }

    fn describe_partition(&self, topic: &Topic, partition: PartitionId) -> PartitionInfo {
        let (messages, bytes) = topic.open(partition);
        let delayed = topic.messages.iter().enumerate().filter(|(at, message)| {
            message.partition == partition && !self.is_due(message) && !topic.is_acked_by_all(*at)
        });
        let next_offset = topic.newest[partition.0 as usize].map_or(Offset(0), Offset::next);
        PartitionInfo { partition, next_offset, messages, bytes, delayed: delayed.count() as u64 }
    }

    fn describe_progress(&self, topic: &Topic, g: usize, partition: PartitionId) -> ProgressInfo {
        let all = topic.messages.iter().zip(&topic.groups[g].progress);
        let unacked: Vec<_> = all
            .filter(|(message, progress)| message.partition == partition && !matches!(progress, Progress::Acked))
            .collect();
        let in_flight = in_flight(topic, g, partition);
        let attempted =
            unacked.iter().filter(|(_, progress)| matches!(progress, Progress::Attempted(_))).count() as u64;
        let first = unacked.first().map(|(message, _)| *message);
        ProgressInfo {
            partition,
            floor: first.map_or(topic.newest[partition.0 as usize], |first| first.before),
            lag: unacked.len() as u64,
            in_flight,
            waiting: attempted - u64::from(in_flight),
            oldest_age: first.map(|first| self.now.since(first.produced_at)),
            blocked: self.blocked(topic, &topic.groups[g], &unacked, in_flight),
        }
    }

    fn blocked(
        &self,
        topic: &Topic,
        group: &Group,
        unacked: &[(&Message, &Progress)],
        in_flight: u32,
    ) -> Option<Blocked> {
        if unacked.len() == in_flight as usize {
            return None;
        }
        if group.paused {
            return Some(Blocked::Paused);
        }
        if self.streams_of(topic, group).next().is_none() {
            return Some(Blocked::NoConsumers);
        }
        if in_flight >= self.limits.in_flight_max {
            return Some(Blocked::InFlightLimit);
        }
        if !self.streams_of(topic, group).any(|stream| stream.has_credit(group)) {
            return Some(Blocked::NoCredit);
        }
        let ready = |(message, progress): &(&Message, &Progress)| is_ready(progress, || self.is_due(message), self.now);
        if unacked.iter().take(self.limits.work.unacked_examined).any(ready) { None } else { Some(Blocked::NotYetDue) }
    }
}
