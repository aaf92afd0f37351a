//! Where one message stands in a state.

use driftq_core::record::MessageRef;
use driftq_core::state::State;
use driftq_core::state::entry::Phase;
use driftq_core::state::group::Group;
use driftq_core::types::{PartitionId, Position, Timestamp, TopicId};

use crate::format::names::{moment, quoted};
use crate::summary::is_held_back;

/// A message_ref that one message has for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Its topic.
    pub topic: TopicId,
    /// Its partition.
    pub partition: PartitionId,
    /// Its position there.
    pub position: Position,
}

impl Spot {
    /// Where the message is that a group was handed, or is to be.
    pub fn of(message_ref: &MessageRef) -> Self {
        Self { topic: message_ref.topic, partition: message_ref.partition, position: message_ref.position }
    }

    /// Where it stands for the group of `message_ref`.
    pub fn stands_at(state: &State, message_ref: &MessageRef) -> String {
        let group = state.topic(message_ref.topic).and_then(|topic| topic.group(message_ref.group));
        group.map_or_else(|| "unknown".to_owned(), |group| Self::of(message_ref).stands(state, group))
    }

    /// Whether the message is still kept.
    pub fn is_kept(&self, state: &State) -> bool {
        let partition = state.topic(self.topic).and_then(|topic| topic.partition(self.partition));
        partition.is_some_and(|partition| partition.message(self.position).is_some())
    }

    /// Whether the group is done with it.
    pub fn is_done(&self, group: &Group) -> bool {
        group.progress(self.partition).is_some_and(|progress| progress.done().contains(self.position))
    }

    /// Where it stands for a group.
    pub fn stands(&self, state: &State, group: &Group) -> String {
        let Some(progress) = group.progress(self.partition) else { return "unknown".to_owned() };
        if progress.done().contains(self.position) {
            return "done".to_owned();
        }
        let now = state.clock();
        if let Some(entry) = progress.entry(self.position) {
            let tries = match entry.attempts {
                1 => format!("1 attempt, {} failed", entry.failures),
                attempts => format!("{attempts} attempts, {} failed", entry.failures),
            };
            let error = match entry.last_error.as_str() {
                "" => String::new(),
                error => format!(", last error {}", quoted(error.as_bytes())),
            };
            return match entry.phase {
                Phase::Leased { until } if until <= now => {
                    format!(
                        "held by {}, whose lease ended at {} and was not taken back yet ({tries}{error})",
                        entry.owner,
                        moment(until)
                    )
                }
                Phase::Leased { until } => {
                    format!("in flight, with {} until {} ({tries}{error})", entry.owner, moment(until))
                }
                Phase::Queued { not_before } => format!("{} ({tries}{error})", waits(not_before, now)),
            };
        }
        let message = state.topic(self.topic).and_then(|topic| topic.partition(self.partition));
        match message.and_then(|partition| partition.message(self.position)) {
            Some(message) if is_held_back(message, now) => "delayed, never delivered".to_owned(),
            Some(_) => "ready, never delivered".to_owned(),
            None => "gone".to_owned(),
        }
    }
}

fn waits(not_before: Timestamp, now: Timestamp) -> String {
    match not_before > now {
        true => format!("waiting until {}", moment(not_before)),
        false => "ready again".to_owned(),
    }
}
