//! What the numbers in a record are called, by the state it was decided against, and how moments and texts are written.

use driftq_core::record::MessageRef;
use driftq_core::state::State;
use driftq_core::state::entry::Entry;
use driftq_core::types::{GroupId, Offset, Timestamp, TopicId};
use jiff::fmt::temporal::DateTimePrinter;

/// The most bytes of a key, reason or result that are shown.
const SHOWN_BYTES: usize = 120;

/// A topic's name; its number where it is not there.
pub fn topic(state: &State, topic: TopicId) -> String {
    state.topic(topic).map_or_else(|| format!("#{topic}"), |topic| topic.name().as_str().to_owned())
}

/// A group's name; its number where it is not there.
pub fn group(state: &State, topic: TopicId, group: GroupId) -> String {
    let found = state.topic(topic).and_then(|topic| topic.group(group));
    found.map_or_else(|| format!("#{group}"), |group| group.name().as_str().to_owned())
}

/// The offset of a message, while anybody knows it.
pub fn offset(state: &State, message_ref: &MessageRef) -> Option<Offset> {
    let message = || state.topic(message_ref.topic)?.partition(message_ref.partition)?.message(message_ref.position);
    entry(state, message_ref).map(|entry| entry.offset).or_else(|| message().map(|message| message.offset))
}

/// A message's name: its topic and its offset.
pub fn message(state: &State, message_ref: &MessageRef) -> String {
    let topic = topic(state, message_ref.topic);
    match offset(state, message_ref) {
        Some(offset) => format!("{topic}/{offset}"),
        None => format!("{topic}, partition {}, position {}", message_ref.partition, message_ref.position),
    }
}

/// What the group knows of a message that was delivered and is not done.
pub fn entry<'s>(state: &'s State, message_ref: &MessageRef) -> Option<&'s Entry> {
    state
        .topic(message_ref.topic)?
        .group(message_ref.group)?
        .progress(message_ref.partition)?
        .entry(message_ref.position)
}

/// A moment as the API spells it. Any that cannot be spelled is written as the last that can.
pub fn moment(at: Timestamp) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let moment = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    PRINTER.timestamp_to_string(&moment.unwrap_or(jiff::Timestamp::MAX))
}

/// A text in quotes, on one line, shortened.
pub fn quoted(text: &[u8]) -> String {
    let shown = &text[..text.len().min(SHOWN_BYTES)];
    let shown = String::from_utf8_lossy(shown);
    let cut = text.len() > SHOWN_BYTES;
    let shown = if cut { shown.trim_end_matches('\u{fffd}') } else { &*shown };
    let more = if cut { format!("… ({} bytes)", text.len()) } else { String::new() };
    format!("{shown:?}{more}")
}
