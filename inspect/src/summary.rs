//! Where everything stands: a state in counts.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::idempotency::EffectStatus;
use driftq_core::state::State;
use driftq_core::state::entry::Phase;
use driftq_core::state::group::{Group, Progress};
use driftq_core::state::partition::{Message, Partition};
use driftq_core::state::topic::Topic;
use driftq_core::types::{GroupName, Position, Timestamp};
use serde::Serialize;

use crate::format::grouped;

/// A state in counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// How often the broker has started.
    pub boot: u32,
    /// The topics, by name.
    pub topics: Vec<TopicStanding>,
    /// The effects of the idempotency store.
    pub effects: EffectsStanding,
    /// Produce identities that are remembered.
    pub identities: u64,
    /// Answers of completed steps that are remembered.
    pub completions: u64,
}

/// A topic in counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TopicStanding {
    /// Its name.
    pub topic: String,
    /// How many partitions it has.
    pub partitions: u32,
    /// The offset its next message gets: so many it has ever taken.
    pub next_offset: u64,
    /// Messages that are kept.
    pub kept: u64,
    /// Of those, messages that are done in every group.
    pub retained: u64,
    /// The key and value bytes of those that are kept.
    pub kept_bytes: u64,
    /// Its groups, by name.
    pub groups: Vec<GroupStanding>,
}

/// A topic's messages as a group sees them, by where they are; the five sum to all the topic has taken, but for those that a retention
/// took from a group's sight unseen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupStanding {
    /// The group's name.
    pub group: String,
    /// Whether it is paused.
    pub paused: bool,
    /// To be delivered now.
    pub ready: u64,
    /// To be delivered later: by a delay, or by the backoff after a failure.
    pub delayed: u64,
    /// In somebody's hands.
    pub in_flight: u64,
    /// Done, or before the group's beginning, and not dead.
    pub done: u64,
    /// Dead letters of this group that lie in the dead-letter topic.
    pub dead: u64,
}

/// The idempotency store in counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EffectsStanding {
    /// All effects that are remembered.
    pub all: u64,
    /// Granted, and nobody has said how it ended.
    pub in_progress: u64,
    /// Of those, whose lease has ended.
    pub abandoned: u64,
    /// Done.
    pub succeeded: u64,
    /// Failed, and may be tried again.
    pub failed_retryable: u64,
    /// Failed for good.
    pub failed_final: u64,
}

impl Standing {
    /// Where everything stands in `state` at the moment `now`. Reads the whole state.
    #[must_use]
    pub fn of(state: &State, now: Timestamp) -> Self {
        let now = now.max(state.clock());
        Self {
            boot: state.boot().0,
            topics: state.topics().map(|topic| of_topic(state, topic, now)).collect(),
            effects: of_effects(state, now),
            identities: state.identity_scopes().map(|(_, identities)| identities.len() as u64).sum(),
            completions: state.completions().len() as u64,
        }
    }
}

fn of_topic(state: &State, topic: &Topic, now: Timestamp) -> TopicStanding {
    let dead = dead_letters(state, topic);
    let kept = topic.partitions().map(|(_, partition)| partition.kept());
    let (kept, kept_bytes) =
        kept.fold((0, 0), |(messages, bytes), load| (messages + load.messages, bytes + load.bytes));
    let open: u64 = topic.partitions().map(|(_, partition)| partition.open().messages).sum();
    TopicStanding {
        topic: topic.name().as_str().to_owned(),
        partitions: topic.partition_count(),
        next_offset: topic.next_offset().0,
        kept,
        retained: kept - open,
        kept_bytes,
        groups: topic
            .groups()
            .map(|group| of_group(topic, group, dead.get(group.name()).copied().unwrap_or(0), now))
            .collect(),
    }
}

/// Dead letters of a topic that lie in its dead-letter topic, by the group that failed them.
fn dead_letters(state: &State, topic: &Topic) -> BTreeMap<GroupName, u64> {
    let mut dead = BTreeMap::new();
    let Some(letters) = topic.dead_letters().and_then(|id| state.topic(id)) else { return dead };
    for (_, message) in letters.partitions().flat_map(|(_, partition)| partition.messages()) {
        if let Some(letter) = message.body.metadata().dead_letter {
            *dead.entry(letter.group).or_default() += 1;
        }
    }
    dead
}

fn of_group(topic: &Topic, group: &Group, dead: u64, now: Timestamp) -> GroupStanding {
    let mut standing = GroupStanding { group: group.name().as_str().to_owned(), ..GroupStanding::default() };
    standing.paused = group.is_paused();
    standing.dead = dead;
    let mut done = 0;
    for ((_, partition), (_, progress)) in topic.partitions().zip(group.partitions()) {
        let undone = progress.done().undone_before(partition.next_position());
        let later = later(partition, progress, now);
        standing.in_flight += u64::from(progress.in_flight());
        standing.delayed += later;
        standing.ready += undone.saturating_sub(u64::from(progress.in_flight())).saturating_sub(later);
        done += partition.next_position().0 - undone;
    }
    standing.done = done.saturating_sub(dead);
    standing
}

/// How many messages are to be delivered later.
fn later(partition: &Partition, progress: &Progress, now: Timestamp) -> u64 {
    let is_later = |phase: Phase| matches!(phase, Phase::Queued { not_before } if not_before > now);
    let backoff = progress.entries().filter(|(_, entry)| is_later(entry.phase)).count();
    let waits = |position: Position, message: &Message| {
        is_held_back(message, now) && !progress.done().contains(position) && !progress.has_entry(position)
    };
    let delayed = partition.messages().filter(|(position, message)| waits(*position, message)).count();
    (backoff + delayed) as u64
}

/// Whether a message's own delay has not passed.
pub(super) fn is_held_back(message: &Message, now: Timestamp) -> bool {
    message.body.flags().has_delay && message.body.metadata().envelope.deliver_at.is_some_and(|at| at > now)
}

fn of_effects(state: &State, now: Timestamp) -> EffectsStanding {
    let mut standing = EffectsStanding { all: state.store().len() as u64, ..EffectsStanding::default() };
    for (_, table) in state.store().tables() {
        for (_, effect) in table.effects() {
            match effect.status {
                EffectStatus::InProgress => {
                    standing.in_progress += 1;
                    standing.abandoned += u64::from(!effect.is_leased(now));
                }
                EffectStatus::Succeeded => standing.succeeded += 1,
                EffectStatus::FailedRetryable => standing.failed_retryable += 1,
                EffectStatus::FailedFinal => standing.failed_final += 1,
            }
        }
    }
    standing
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "topics and groups, boot {}", self.boot)?;
        if self.topics.is_empty() {
            writeln!(f, "  none")?;
        }
        for topic in &self.topics {
            let TopicStanding { topic, partitions, next_offset, kept, retained, kept_bytes, groups } = topic;
            let (taken, kept, bytes) = (grouped(*next_offset), grouped(*kept), grouped(*kept_bytes));
            let partitions =
                if *partitions == 1 { "1 partition".to_owned() } else { format!("{partitions} partitions") };
            write!(f, "  {topic}: {partitions}, {taken} messages taken, {kept} kept ({bytes} bytes)")?;
            match retained {
                0 => writeln!(f)?,
                retained => writeln!(f, ", {} of them done everywhere", grouped(*retained))?,
            }
            if groups.is_empty() {
                continue;
            }
            let head = ["ready", "delayed", "in flight", "done", "dead"];
            writeln!(f, "    {:<24}{}", "", head.map(|name| format!("{name:>12}")).concat())?;
            for group in groups {
                let GroupStanding { group, paused, ready, delayed, in_flight, done, dead } = group;
                let counts = [ready, delayed, in_flight, done, dead];
                let counts = counts.map(|count| format!("{:>12}", grouped(*count))).concat();
                writeln!(f, "    {group:<24}{counts}{}", if *paused { "  paused" } else { "" })?;
            }
        }
        let EffectsStanding { all, in_progress, abandoned, succeeded, failed_retryable, failed_final } = &self.effects;
        let [all, in_progress, abandoned, succeeded, failed_retryable, failed_final] =
            [all, in_progress, abandoned, succeeded, failed_retryable, failed_final].map(|count| grouped(*count));
        writeln!(
            f,
            "effects: {all} ({in_progress} in progress, {abandoned} of them past their lease; {succeeded} succeeded, \
             {failed_retryable} failed and may be tried again, {failed_final} failed for good)"
        )?;
        let (identities, completions) = (grouped(self.identities), grouped(self.completions));
        writeln!(f, "remembered: {identities} produce identities, {completions} answers of completed steps")
    }
}
