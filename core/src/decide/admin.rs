//! Decides commands on topics and groups: create, delete, seek, pause, resume.

use std::sync::Arc;

use super::{Decision, DecisionContext};
use crate::command::SeekTo;
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::{Overload, Refusal, Reply};
use crate::state::{Group, Topic};
use crate::types::{GroupName, GroupStart, Position, Retention, TopicName};

/// Decides the creation of a topic. Succeeds without a record if it exists with the requested partition count.
pub(crate) fn create_topic<F: Faults>(
    context: &DecisionContext<'_, F>,
    name: &TopicName,
    partitions: Option<u32>,
    retention: Retention,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = context;
    let requested = partitions.map(|count| count.max(1));
    if let Some(topic) = state.topic_named(name) {
        let partitions = topic.partition_count();
        return match requested {
            Some(requested) if requested != partitions => Err(Refusal::TopicExists { partitions }),
            _ => Ok(Decision::reply_only(Reply::TopicCreated { partitions })),
        };
    }
    let partitions = requested.unwrap_or(1);
    if partitions > limits.partitions_max {
        let (len, max) = (u64::from(partitions), u64::from(limits.partitions_max));
        return Err(Refusal::TooMany { what: "partitions", len, max });
    }
    if state.topic_count() >= limits.topics_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let event = Event::TopicCreated { topic: state.next_topic(), name: name.clone(), partitions, retention };
    Ok(Decision::new(event, Reply::TopicCreated { partitions }))
}

/// Decides the deletion of a topic.
pub(crate) fn delete_topic(topic: &Topic) -> Decision {
    Decision::new(Event::TopicDeleted { topic: topic.id() }, Reply::Success)
}

/// Decides the creation of a group. Succeeds without a record if it exists.
pub(crate) fn create_group<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    name: &GroupName,
    start: GroupStart,
) -> Result<Decision, Refusal> {
    if topic.group_named(name).is_some() {
        return Ok(Decision::reply_only(Reply::Success));
    }
    if topic.group_count() >= context.limits.groups_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let event = Event::GroupCreated { topic: topic.id(), group: topic.next_group(), name: name.clone(), start };
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
