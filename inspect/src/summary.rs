//! A state as counts: messages per topic, group and delivery state, effects, stored identities.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::state::{Group, Message, Partition, Progress, State, Topic};
use driftq_core::types::{EffectStatus, Escaped, GroupName, Phase, Position, Timestamp};
use serde::Serialize;

use crate::format::grouped;
use crate::topic_text::topic_text;

/// A state as counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateSummary {
    /// The number of broker starts.
    pub boot: u32,
    /// The topics, by name.
    pub topics: Vec<TopicSummary>,
    /// The effects in the idempotency store.
    pub effects: EffectsSummary,
    /// Produce identities within their window.
    pub identities: u64,
    /// Replies of completed steps within their window.
    pub completions: u64,
    /// Winners of messages that are remembered.
    pub winners: u64,
}

/// A topic as counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TopicSummary {
    /// Its name.
    pub topic: String,
    /// Its number of partitions.
    pub partitions: u32,
    /// The offset of its next message, which is the number of messages it ever accepted.
    pub next_offset: u64,
    /// Messages that are stored.
    pub kept: u64,
    /// Of those, messages acked in every group and held by the topic's retention.
    pub retained: u64,
    /// The key and value bytes of the stored messages.
    pub kept_bytes: u64,
    /// Its groups, by name.
    pub groups: Vec<GroupSummary>,
}

/// The messages of a topic by their state in one group. Normally the five counts add up to the messages that the topic
/// accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupSummary {
    /// The group's name.
    pub group: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Deliverable now.
    pub ready: u64,
    /// Not deliverable before a later time, by a delay or a backoff.
    pub delayed: u64,
    /// Leased to a consumer.
    pub in_flight: u64,
    /// Acked, completed or skipped, or before the group's start.
    #[serde(rename = "done")]
    pub acked: u64,
    /// Messages of this group in the dead-letter topic.
    pub dead: u64,
}

/// The idempotency store as counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EffectsSummary {
    /// All effects.
    pub all: u64,
    /// Granted and not finished.
    pub in_progress: u64,
    /// Of those, effects whose lease has expired.
    pub abandoned: u64,
    /// Finished as SUCCEEDED.
    pub succeeded: u64,
    /// Finished as FAILED_RETRYABLE.
    pub failed_retryable: u64,
    /// Finished as FAILED_FINAL.
    pub failed_final: u64,
}

impl StateSummary {
    /// Counts what is in `state` at the time `now`, or at the state's clock if that is later. Reads the whole state.
    #[must_use]
    pub fn of(state: &State, now: Timestamp) -> Self {
        let now = now.max(state.clock());
        Self {
            boot: state.boot().0,
            topics: state.topics().map(|topic| of_topic(state, topic, now)).collect(),
            effects: of_effects(state, now),
            identities: state.dedupe_tables().map(|(_, identities)| identities.len() as u64).sum(),
            completions: state.completions().len() as u64,
            winners: state.winners().len() as u64,
        }
    }
}

fn of_topic(state: &State, topic: &Topic, now: Timestamp) -> TopicSummary {
    let dead = dead_letters(state, topic);
    let kept = topic.partitions().map(|(_, partition)| partition.kept());
    let (kept, kept_bytes) =
        kept.fold((0, 0), |(messages, bytes), load| (messages + load.messages, bytes + load.bytes));
    let unacked: u64 = topic.partitions().map(|(_, partition)| partition.backlog().messages).sum();
    TopicSummary {
        topic: topic_text(topic.name()),
        partitions: topic.partition_count(),
        next_offset: topic.next_offset().0,
        kept,
        retained: kept - unacked,
        kept_bytes,
        groups: topic
            .groups()
            .map(|group| of_group(state, topic, group, dead.get(group.name()).copied().unwrap_or(0), now))
            .collect(),
    }
}

/// The messages in a topic's dead-letter topic, by the group that they are dead in.
fn dead_letters(state: &State, topic: &Topic) -> BTreeMap<GroupName, u64> {
    let mut dead = BTreeMap::new();
    let Some(dead_topic) = topic.dead_letters().and_then(|id| state.topic(id)) else { return dead };
    for (_, message) in dead_topic.partitions().flat_map(|(_, partition)| partition.messages()) {
        if let Some(dead_letter) = message.dead_letter() {
            *dead.entry(dead_letter.group.clone()).or_default() += 1;
        }
    }
    dead
}

fn of_group(state: &State, topic: &Topic, group: &Group, dead: u64, now: Timestamp) -> GroupSummary {
    let mut summary = GroupSummary { group: group.name().as_str().to_owned(), ..GroupSummary::default() };
    summary.paused = group.is_paused();
    summary.dead = dead;
    let mut acked = 0;
    for ((_, partition), (_, progress)) in topic.partitions().zip(group.partitions()) {
        let unacked = progress.acked().unacked_before(partition.next_position());
        let delayed = delayed(state, partition, progress, now);
        summary.in_flight += u64::from(progress.in_flight());
        summary.delayed += delayed;
        summary.ready += unacked.saturating_sub(u64::from(progress.in_flight())).saturating_sub(delayed);
        acked += partition.next_position().0 - unacked;
    }
    summary.acked = acked.saturating_sub(dead);
    summary
}

fn delayed(state: &State, partition: &Partition, progress: &Progress, now: Timestamp) -> u64 {
    let is_later = |phase: Phase| matches!(phase, Phase::Queued { not_before } if not_before > now);
    let in_backoff = progress.deliveries().filter(|(_, entry)| is_later(entry.phase)).count();
    let waits = |position: Position, message: &Message| {
        state.is_delayed(message, now) && !progress.acked().contains(position) && !progress.is_delivered(position)
    };
    let by_producer = partition.messages().filter(|(position, message)| waits(*position, message)).count();
    (in_backoff + by_producer) as u64
}

fn of_effects(state: &State, now: Timestamp) -> EffectsSummary {
    let mut summary = EffectsSummary { all: state.store().len() as u64, ..EffectsSummary::default() };
    for (_, table) in state.store().tables() {
        for (_, effect) in table.effects() {
            match effect.status {
                EffectStatus::InProgress => {
                    summary.in_progress += 1;
                    summary.abandoned += u64::from(!effect.is_leased(now));
                }
                EffectStatus::Succeeded => summary.succeeded += 1,
                EffectStatus::FailedRetryable => summary.failed_retryable += 1,
                EffectStatus::FailedFinal => summary.failed_final += 1,
            }
        }
    }
    summary
}

impl fmt::Display for StateSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "topics and groups, boot {}", self.boot)?;
        if self.topics.is_empty() {
            writeln!(f, "  none")?;
        }
        for topic in &self.topics {
            let TopicSummary { topic, partitions, next_offset, kept, retained, kept_bytes, groups } = topic;
            let (accepted, kept, bytes) = (grouped(*next_offset), grouped(*kept), grouped(*kept_bytes));
            let partitions =
                if *partitions == 1 { "1 partition".to_owned() } else { format!("{partitions} partitions") };
            let topic = Escaped(topic);
            write!(f, "  {topic}: {partitions}, {accepted} messages accepted, {kept} stored ({bytes} bytes)")?;
            match retained {
                0 => writeln!(f)?,
                retained => writeln!(f, ", {} of them acked in every group", grouped(*retained))?,
            }
            if groups.is_empty() {
                continue;
            }
            let head = ["ready", "delayed", "in flight", "acked", "dead"];
            writeln!(f, "    {:<24}{}", "", head.map(|name| format!("{name:>12}")).concat())?;
            for group in groups {
                let GroupSummary { group, paused, ready, delayed, in_flight, acked, dead } = group;
                let group = Escaped(group).to_string();
                let counts = [ready, delayed, in_flight, acked, dead];
                let counts = counts.map(|count| format!("{:>12}", grouped(*count))).concat();
                writeln!(f, "    {group:<24}{counts}{}", if *paused { "  paused" } else { "" })?;
            }
        }
        let EffectsSummary { all, in_progress, abandoned, succeeded, failed_retryable, failed_final } = &self.effects;
        let [all, in_progress, abandoned, succeeded, failed_retryable, failed_final] =
            [all, in_progress, abandoned, succeeded, failed_retryable, failed_final].map(|count| grouped(*count));
        writeln!(
            f,
            "effects: {all} ({in_progress} in progress, {abandoned} of them past their lease; {succeeded} succeeded, \
             {failed_retryable} failed retryable, {failed_final} failed final)"
        )?;
        let counts = [self.identities, self.completions, self.winners].map(grouped);
        let [identities, completions, winners] = counts;
        writeln!(
            f,
            "within their window: {identities} produce identities, {completions} replies of completed steps, {winners} \
             winners of messages"
        )
    }
}
