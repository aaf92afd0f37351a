//! Decides commands on topics and groups: create, change, delete, purge, seek, pause, resume.

use std::sync::Arc;

use super::{Decision, DecisionContext};
use crate::command::SeekTo;
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::{Overload, Refusal, Reply, TopicSetting};
use crate::state::{Group, Topic};
use crate::types::{GroupName, GroupOrigin, GroupStart, Millis, Position, Retention, Setting, TopicName};

/// Decides the creation of a topic. Succeeds without a record if it exists with the requested settings.
pub(crate) fn create_topic<F: Faults>(
    context: &DecisionContext<'_, F>,
    name: &TopicName,
    partitions: Option<u32>,
    retention: Retention,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = context;
    let requested = partitions.map(|count| count.max(1));
    if let Some(topic) = state.topic_named(name) {
        let differing = differing(topic, requested, retention);
        let reply = Reply::TopicCreated { partitions: topic.partition_count(), retention: topic.retention() };
        let is_same = differing.is_empty();
        return if is_same { Ok(Decision::reply_only(reply)) } else { Err(Refusal::TopicExists { differing }) };
    }
    let partitions = requested.unwrap_or(1);
    if partitions > limits.partitions_max {
        let (len, max) = (u64::from(partitions), u64::from(limits.partitions_max));
        return Err(Refusal::TooMany { what: "partitions", len, max });
    }
    if !state.has_tenant(name.tenant()) {
        return Err(Refusal::Invalid("the tenant of the topic is not registered"));
    }
    if state.topic_count() >= limits.topics_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let retention = context.faults.recorded_retention(retention, default_retention(context, name));
    let event = Event::TopicCreated { topic: state.next_topic(), name: name.clone(), partitions, retention };
    Ok(Decision::new(event, Reply::TopicCreated { partitions, retention }))
}

/// The settings of a topic that differ from the requested ones.
fn differing(topic: &Topic, partitions: Option<u32>, requested: Retention) -> Vec<TopicSetting> {
    let (count, retention) = (topic.partition_count(), topic.retention());
    let partitions = partitions.filter(|requested| *requested != count).map(|_| TopicSetting::Partitions(count));
    let age = requested.age.filter(|age| retention.age != Some(*age));
    let age = age.map(|_| TopicSetting::RetentionAge(retention.age));
    let bytes = requested.bytes.filter(|bytes| retention.bytes.unwrap_or(u64::MAX) != *bytes);
    let bytes = bytes.map(|_| TopicSetting::RetentionBytes(retention.bytes_max()));
    partitions.into_iter().chain(age).chain(bytes).collect()
}

/// The retention of topics with this name that do not set one: a dead-letter topic has that of its source.
fn default_retention<F: Faults>(context: &DecisionContext<'_, F>, name: &TopicName) -> Retention {
    context.state.dead_letter_source(name).map_or_else(|| context.limits.retention(), Topic::retention)
}

/// Decides a change of a topic's retention. Succeeds without a record if it stays the same.
pub(crate) fn change_retention<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    age: Setting<Millis>,
    bytes: Setting<u64>,
) -> Decision {
    let (current, defaults) = (topic.retention(), default_retention(context, topic.name()));
    let age = age.applied_to(current.age, defaults.age);
    let bytes = bytes.applied_to(current.bytes, defaults.bytes);
    let retention = Retention { age, bytes }.resolved(Retention::default());
    let reply = Reply::RetentionChanged { retention };
    match retention == current {
        true => Decision::reply_only(reply),
        false => Decision::new(Event::RetentionChanged { topic: topic.id(), retention }, reply),
    }
}

/// Decides the deletion of a topic.
pub(crate) fn delete_topic(topic: &Topic) -> Decision {
    Decision::new(Event::TopicDeleted { topic: topic.id() }, Reply::Success)
}

/// Decides a purge. Succeeds without a record if the topic stores no message.
pub(crate) fn purge<F: Faults>(context: &DecisionContext<'_, F>, topic: &Topic) -> Decision {
    let count = topic.partitions().map(|(_, partition)| partition.kept().messages).sum();
    let reply = Reply::Purged { count };
    if count == 0 {
        return Decision::reply_only(reply);
    }
    let ends = topic.partitions().map(|(_, partition)| partition.next_position()).collect();
    let winner_until = context.now.after(context.limits.completion_ttl);
    Decision::new(Event::Purged { topic: topic.id(), ends, winner_until }, reply)
}

/// Decides the creation of a group. Succeeds without a record if it exists and `origin` does not make it stay longer.
pub(crate) fn create_group<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    name: &GroupName,
    start: GroupStart,
    origin: GroupOrigin,
) -> Result<Decision, Refusal> {
    if let Some(group) = topic.group_named(name) {
        let (topic, group, before) = (topic.id(), group.id(), group.origin());
        return Ok(match (before, origin) {
            (GroupOrigin::Ephemeral, GroupOrigin::Requested | GroupOrigin::Consumed)
            | (GroupOrigin::Consumed, GroupOrigin::Requested) => {
                Decision::new(Event::GroupOriginChanged { topic, group, origin }, Reply::Success)
            }
            (GroupOrigin::Requested, _)
            | (GroupOrigin::Consumed, GroupOrigin::Consumed)
            | (_, GroupOrigin::Ephemeral) => Decision::reply_only(Reply::Success),
        });
    }
    if topic.group_count() >= context.limits.groups_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let event = Event::GroupCreated { topic: topic.id(), group: topic.next_group(), name: name.clone(), start, origin };
    Ok(Decision::new(event, Reply::Success))
}

/// Decides the deletion of a group.
pub(crate) fn delete_group(topic: &Topic, name: &GroupName) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    Ok(Decision::new(Event::GroupDeleted { topic: topic.id(), group: group.id() }, Reply::Success))
}

/// Decides a pause.
pub(crate) fn pause(topic: &Topic, name: &GroupName) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    let event = Event::GroupPaused { topic: topic.id(), group: group.id() };
    Ok(if group.is_paused() { Decision::reply_only(Reply::Success) } else { Decision::new(event, Reply::Success) })
}

/// Decides a resume.
pub(crate) fn resume(topic: &Topic, name: &GroupName) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    let event = Event::GroupResumed { topic: topic.id(), group: group.id() };
    Ok(if group.is_paused() { Decision::new(event, Reply::Success) } else { Decision::reply_only(Reply::Success) })
}

/// Decides a seek: finds the first position to deliver in each partition.
pub(crate) fn seek(topic: &Topic, name: &GroupName, to: SeekTo) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    let targets: Arc<[Position]> = topic
        .partitions()
        .map(|(_, partition)| {
            let found = match to {
                SeekTo::Earliest => Some(Position(0)),
                SeekTo::Latest => None,
                SeekTo::Offset(offset) => partition.first_from_offset(offset).map(|(position, _)| position),
                SeekTo::Time(time) => partition.first_from_time(time).map(|(position, _)| position),
            };
            found.unwrap_or(partition.next_position())
        })
        .collect();
    Ok(Decision::new(Event::GroupSought { topic: topic.id(), group: group.id(), targets }, Reply::Success))
}

/// The group named `name`, or a refusal.
pub(crate) fn group<'a>(topic: &'a Topic, name: &GroupName) -> Result<&'a Group, Refusal> {
    topic.group_named(name).ok_or_else(|| Refusal::UnknownGroup(name.clone()))
}
