//! Where a message is stored, and its state in a group.

use driftq_core::state::{Group, State};
use driftq_core::types::{MessageRef, PartitionId, Phase, Position, Timestamp, TopicId};

use crate::format::{quoted, timestamp};

/// Where a message is stored. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLocation {
    /// The topic.
    pub topic: TopicId,
    /// The partition.
    pub partition: PartitionId,
    /// The position in the partition.
    pub position: Position,
}

impl From<&MessageRef> for MessageLocation {
    fn from(message_ref: &MessageRef) -> Self {
        Self { topic: message_ref.topic, partition: message_ref.partition, position: message_ref.position }
    }
}

impl MessageLocation {
    /// Whether the message is stored in `state`.
    #[must_use]
    pub fn is_stored(&self, state: &State) -> bool {
        let partition = state.topic(self.topic).and_then(|topic| topic.partition(self.partition));
        partition.is_some_and(|partition| partition.message(self.position).is_some())
    }

    /// Whether the message is acked in `group`.
    #[must_use]
    pub fn is_acked(&self, group: &Group) -> bool {
        group.progress(self.partition).is_some_and(|progress| progress.acked().contains(self.position))
    }

    /// Describes the state of the message in `group`.
    #[must_use]
    pub fn describe(&self, state: &State, group: &Group) -> String {
        let Some(progress) = group.progress(self.partition) else { return "unknown".to_owned() };
        if progress.acked().contains(self.position) {
            return "acked".to_owned();
        }
        let now = state.clock();
        if let Some(entry) = progress.delivery(self.position) {
            let attempts = match entry.attempts {
                1 => format!("1 attempt, {} failed", entry.failures),
                attempts => format!("{attempts} attempts, {} failed", entry.failures),
            };
            let error = match entry.last_error.as_str() {
                "" => String::new(),
                error => format!(", last error {}", quoted(error.as_bytes())),
            };
            let status = match entry.phase {
                Phase::Leased { until } if until <= now => {
                    format!("in flight with {}, lease past its end at {}", entry.owner, timestamp(until))
                }
                Phase::Leased { until } => format!("in flight with {} until {}", entry.owner, timestamp(until)),
                Phase::Queued { not_before } => ready_or_delayed(not_before, now),
            };
            return format!("{status} ({attempts}{error})");
        }
        let partition = state.topic(self.topic).and_then(|topic| topic.partition(self.partition));
        match partition.and_then(|partition| partition.message(self.position)) {
            Some(message) if state.is_delayed(&message, now) => "delayed, never delivered".to_owned(),
            Some(_) => "ready, never delivered".to_owned(),
            None => "removed".to_owned(),
        }
    }

    /// Describes the state of the message that `message_ref` names, in the group that it names.
    #[must_use]
    pub fn describe_ref(state: &State, message_ref: &MessageRef) -> String {
        let group = state.topic(message_ref.topic).and_then(|topic| topic.group(message_ref.group));
        group.map_or_else(|| "unknown".to_owned(), |group| Self::from(message_ref).describe(state, group))
    }
}

fn ready_or_delayed(not_before: Timestamp, now: Timestamp) -> String {
    match not_before > now {
        true => format!("delayed until {}", timestamp(not_before)),
        false => "ready again".to_owned(),
    }
}
