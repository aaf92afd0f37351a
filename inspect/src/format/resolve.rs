//! Resolves the ids in a record to names, in the state that the record was decided against.

use driftq_core::state::State;
use driftq_core::types::{DeliveryState, GroupId, MessageRef, Offset, TopicId};

use crate::topic_text::topic_text;

/// The name of a topic as [`topic_text`], or `#id` if the state has no such topic.
#[must_use]
pub fn topic_name(state: &State, topic: TopicId) -> String {
    state.topic(topic).map_or_else(|| format!("#{topic}"), |topic| topic_text(topic.name()))
}

/// The name of a group, or `#id` if the state has no such group.
#[must_use]
pub fn group_name(state: &State, topic: TopicId, group: GroupId) -> String {
    let found = state.topic(topic).and_then(|topic| topic.group(group));
    found.map_or_else(|| format!("#{group}"), |group| group.name().as_str().to_owned())
}

/// As [`topic_name`], escaped for a line of text.
#[must_use]
pub fn topic(state: &State, topic: TopicId) -> String {
    state.topic(topic).map_or_else(|| format!("#{topic}"), |topic| topic.name().to_string())
}

/// As [`group_name`], escaped for a line of text.
#[must_use]
pub fn group(state: &State, topic: TopicId, group: GroupId) -> String {
    let found = state.topic(topic).and_then(|topic| topic.group(group));
    found.map_or_else(|| format!("#{group}"), |group| group.name().to_string())
}

/// The offset of a message that is stored, or that its group has an entry for.
#[must_use]
pub fn offset(state: &State, message_ref: &MessageRef) -> Option<Offset> {
    let message = || state.topic(message_ref.topic)?.partition(message_ref.partition)?.message(message_ref.position);
    entry(state, message_ref).map(|entry| entry.offset).or_else(|| message().map(|message| message.offset))
}

/// The name of a message for a line of text, `topic/offset`; with an unknown offset, its partition and position.
#[must_use]
pub fn message(state: &State, message_ref: &MessageRef) -> String {
    let topic = topic(state, message_ref.topic);
    match offset(state, message_ref) {
        Some(offset) => format!("{topic}/{offset}"),
        None => format!("{topic}, partition {}, position {}", message_ref.partition, message_ref.position),
    }
}

/// The entry of a message in its group: it was delivered and is not acked.
#[must_use]
pub fn entry<'s>(state: &'s State, message_ref: &MessageRef) -> Option<&'s DeliveryState> {
    state
        .topic(message_ref.topic)?
        .group(message_ref.group)?
        .progress(message_ref.partition)?
        .delivery(message_ref.position)
}
