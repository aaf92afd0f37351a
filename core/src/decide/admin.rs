//! Topics and groups: making, deleting, seeking, pausing.

use std::sync::Arc;

use super::{Decision, DecisionContext};
use crate::command::SeekTo;
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::{Overload, Refusal, Reply};
use crate::state::group::Group;
use crate::state::topic::Topic;
use crate::types::{GroupName, GroupStart, Position, Retention, TopicName};

/// Decides the making of a topic: one that is there with as many partitions is as good as made.
pub(crate) fn create_topic<F: Faults>(
    context: &DecisionContext<'_, F>,
    name: &TopicName,
    partitions: Option<u32>,
    retention: Retention,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = context;
    let asked = partitions.map(|count| count.max(1));
    if let Some(topic) = state.topic_named(name) {
        let partitions = topic.partition_count();
        return match asked {
            Some(asked) if asked != partitions => Err(Refusal::TopicExists { partitions }),
            _ => Ok(Decision::reply_only(Reply::TopicCreated { partitions })),
        };
    }
    let partitions = asked.unwrap_or(1);
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

/// Decides the making of a group; one that is there stays as it is.
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

/// Decides the end of a pause.
pub(crate) fn resume(topic: &Topic, name: &GroupName) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    let event = Event::GroupResumed { topic: topic.id(), group: group.id() };
    Ok(if group.is_paused() { Decision::new(event, Reply::Success) } else { Decision::reply_only(Reply::Success) })
}

/// Decides a seek: the first position to deliver, in every partition.
pub(crate) fn seek(topic: &Topic, name: &GroupName, to: SeekTo) -> Result<Decision, Refusal> {
    let group = group(topic, name)?;
    let targets: Arc<[Position]> = topic
        .partitions()
        .map(|(_, partition)| {
            let found = match to {
                SeekTo::Earliest => Some(Position(0)),
                SeekTo::Latest => None,
                SeekTo::Offset(offset) => partition.first_from_offset(offset).map(|(position, _)| position),
                SeekTo::Time(moment) => partition.first_from_time(moment).map(|(position, _)| position),
            };
            found.unwrap_or(partition.next_position())
        })
        .collect();
    Ok(Decision::new(Event::GroupSought { topic: topic.id(), group: group.id(), targets }, Reply::Success))
}

/// The group of that name.
pub(crate) fn group<'a>(topic: &'a Topic, name: &GroupName) -> Result<&'a Group, Refusal> {
    topic.group_named(name).ok_or_else(|| Refusal::UnknownGroup(name.clone()))
}
