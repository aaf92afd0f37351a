//! What an action changed: the difference of two snapshots.

use std::collections::BTreeSet;
use std::time::Duration;

use driftq_core::types::{EffectStatus, LeaseToken, Timestamp};

use super::snapshot::{EffectRecord, MessageInGroup, MessageStatus, RunningLease, Snapshot};
use super::timeline::LeaseEnd;
use crate::report;
use crate::world::START_TIME;

/// Converts the broker's timestamps to simulated time since the start of the world.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// How far broker time is ahead of simulated time.
    pub(super) ahead: i64,
}

impl Clock {
    /// The simulated time in milliseconds.
    pub(super) fn ms(self, time: Timestamp) -> u64 {
        time.0.saturating_sub(START_TIME.0).saturating_add_signed(self.ahead.saturating_neg())
    }

    /// The same as text.
    pub(super) fn text(self, time: Timestamp) -> String {
        span(self.ms(time))
    }
}

/// A duration as text, to the millisecond while it is short.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ms} ms"),
        1_000..60_000 if ms.is_multiple_of(100) => format!("{}.{} s", ms / 1_000, ms / 100 % 10),
        1_000..60_000 => format!("{}.{:03} s", ms / 1_000, ms % 1_000),
        _ => report::span(Duration::from_millis(ms)),
    }
}

/// A lease that was running before and is not after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndedLease {
    pub(super) message_key: MessageInGroup,
    pub(super) lease: RunningLease,
    pub(super) end: LeaseEnd,
}

/// The difference of two snapshots.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Whether the broker was started.
    pub(super) restarted: bool,
    /// One line per change.
    pub(super) lines: Vec<String>,
    /// Leases that ended.
    pub(super) ended: Vec<EndedLease>,
    /// Leases that were granted.
    pub(super) granted: Vec<(MessageInGroup, RunningLease)>,
    pub(super) topics: BTreeSet<String>,
    pub(super) groups: BTreeSet<String>,
    pub(super) messages: BTreeSet<String>,
}

/// The changes between two snapshots. If the broker was started in between, missing state was lost.
pub(super) fn changes(before: &Snapshot, after: &Snapshot, clock: Clock) -> Changes {
    let mut changes = Changes { restarted: before.boot != after.boot, ..Changes::default() };
    changes.of_broker(before, after);
    changes.of_topics(before, after);
    changes.of_messages(before, after);
    changes.of_message_states(before, after, clock);
    changes.of_effects(before, after, clock);
    changes.of_log(before, after);
    changes
}

impl Changes {
    fn of_broker(&mut self, before: &Snapshot, after: &Snapshot) {
        if self.restarted {
            self.lines.push(format!("boot {}", after.boot));
        }
        if let Some(why) = after.failed.as_ref().filter(|_| before.failed.is_none()) {
            self.lines.push(format!("log failure: {why}"));
        }
    }

    fn of_topics(&mut self, before: &Snapshot, after: &Snapshot) {
        for (topic, (partitions, _)) in after.topics.iter().filter(|(topic, _)| !before.topics.contains_key(*topic)) {
            let note = if *partitions == 1 { String::new() } else { format!(", with {partitions} partitions") };
            self.lines.push(format!("{topic}: created{note}"));
            self.topics.insert(topic.clone());
        }
        for topic in before.topics.keys().filter(|topic| !after.topics.contains_key(*topic)) {
            self.lines.push(format!("{topic}: deleted"));
            self.topics.insert(topic.clone());
        }
        for (key @ (topic, group), paused) in &after.groups {
            match before.groups.get(key) {
                None => self.lines.push(format!("{group} of {topic}: created")),
                Some(was) if was == paused => continue,
                Some(_) => {
                    let now = if *paused { "paused" } else { "resumed" };
                    self.lines.push(format!("{group} of {topic}: {now}"));
                }
            }
            self.topics.insert(topic.clone());
            self.groups.insert(group.clone());
        }
        for key @ (topic, group) in before.groups.keys() {
            if !after.groups.contains_key(key) {
                self.lines.push(format!("{group} of {topic}: deleted"));
                self.topics.insert(topic.clone());
                self.groups.insert(group.clone());
            }
        }
    }

    fn of_messages(&mut self, before: &Snapshot, after: &Snapshot) {
        for (key @ (topic, partition, offset), message) in &after.stored {
            if before.stored.get(key) == Some(message) {
                continue;
            }
            let many = after.topics.get(topic).is_some_and(|(partitions, _)| *partitions > 1);
            let partition = if many { format!(" of partition {partition}") } else { String::new() };
            self.lines.push(format!("{topic}: {message} stored at offset {offset}{partition}"));
            self.topics.insert(topic.clone());
            self.messages.insert(message.clone());
        }
        for (key @ (topic, partition, offset), message) in &before.stored {
            if after.stored.get(key) == Some(message) {
                continue;
            }
            self.topics.insert(topic.clone());
            self.messages.insert(message.clone());
            // A message that a group has just acked has a line of its own.
            let has_own_line = before.messages_in_groups.iter().any(|(message_key, was)| {
                (&message_key.topic, message_key.partition, message_key.offset) == (topic, *partition, *offset)
                    && *was != MessageStatus::Acked
            });
            if !has_own_line {
                self.lines.push(format!("{topic}: {message} at offset {offset} is trimmed"));
            }
        }
    }

    fn of_message_states(&mut self, before: &Snapshot, after: &Snapshot, clock: Clock) {
        let has_many_topics = before.topics.len().max(after.topics.len()) > 1;
        for (message_key, was) in &before.messages_in_groups {
            let is = after.messages_in_groups.get(message_key);
            if is == Some(was) {
                continue;
            }
            let end = end_of(message_key, was, is, before, after);
            let now = match (is, end) {
                (_, Some(LeaseEnd::Dead)) => "dead-lettered".to_owned(),
                (Some(MessageStatus::Acked) | None, _)
                    if was != &MessageStatus::Acked && newly_dead(message_key, before, after) =>
                {
                    "dead-lettered".to_owned()
                }
                (Some(is), _) => describe_status(is, clock),
                (None, _) if !after.has_group_of(message_key) => "deleted with its group".to_owned(),
                (None, _) if !after.was_stored(message_key) => "lost: it was not synced".to_owned(),
                (None, _) if *was == MessageStatus::Acked => continue,
                (None, _) => "acked".to_owned(),
            };
            self.state_line(message_key, has_many_topics, &describe_status(was, clock), &now);
            self.add_subjects(message_key);
            if let (MessageStatus::InFlight(lease), Some(end)) = (was, end) {
                self.ended.push(EndedLease { message_key: message_key.clone(), lease: lease.clone(), end });
            }
        }
        for (message_key, is) in &after.messages_in_groups {
            let was = before.messages_in_groups.get(message_key);
            if let MessageStatus::InFlight(lease) = is
                && was.and_then(MessageStatus::token) != Some(lease.token)
            {
                self.granted.push((message_key.clone(), lease.clone()));
            } else if let (MessageStatus::InFlight(lease), Some(MessageStatus::Queued { .. } | MessageStatus::Acked)) =
                (is, was)
            {
                // A crash undid the end of the lease.
                self.granted.push((message_key.clone(), lease.clone()));
            }
            if was.is_none() && *is != MessageStatus::Ready {
                self.state_line(message_key, has_many_topics, "new", &describe_status(is, clock));
                self.add_subjects(message_key);
            }
        }
    }

    fn state_line(&mut self, message_key: &MessageInGroup, has_many_topics: bool, was: &str, is: &str) {
        let topic = if has_many_topics { format!(" of {}", message_key.topic) } else { String::new() };
        self.lines.push(format!("{}{topic} for {}: {was} → {is}", message_key.message, message_key.group));
    }

    fn add_subjects(&mut self, message_key: &MessageInGroup) {
        self.topics.insert(message_key.topic.clone());
        self.groups.insert(message_key.group.clone());
        self.messages.insert(message_key.message.clone());
    }

    fn of_effects(&mut self, before: &Snapshot, after: &Snapshot, clock: Clock) {
        for (name, is) in &after.effects {
            let was = before.effects.get(name);
            if was != Some(is) {
                self.lines.push(format!("{name}: {}", describe_effect(was, is, clock)));
            }
        }
        for name in before.effects.keys().filter(|name| !after.effects.contains_key(*name)) {
            self.lines.push(format!("{name}: expired or forgotten"));
        }
    }

    fn of_log(&mut self, before: &Snapshot, after: &Snapshot) {
        if (before.appended, before.synced) != (after.appended, after.synced) {
            let at_risk = after.appended.saturating_sub(after.synced);
            let synced = match at_risk {
                0 => "all synced".to_owned(),
                1 => "the last record is not synced".to_owned(),
                more => format!("the last {more} records are not synced"),
            };
            self.lines.push(format!("log: ends at {}, {synced}", after.appended));
        }
        for frame in after.snapshots.iter().filter(|frame| !before.snapshots.contains(frame)) {
            self.lines.push(format!("log: a snapshot up to frame {frame} is complete"));
        }
    }
}

fn newly_dead(message_key: &MessageInGroup, before: &Snapshot, after: &Snapshot) -> bool {
    after.is_dead(message_key) && !before.is_dead(message_key)
}

/// How a lease ended that was running before and is not after.
fn end_of(
    message_key: &MessageInGroup,
    was: &MessageStatus,
    is: Option<&MessageStatus>,
    before: &Snapshot,
    after: &Snapshot,
) -> Option<LeaseEnd> {
    let MessageStatus::InFlight(lease) = was else { return None };
    if let Some(MessageStatus::InFlight(now)) = is
        && now.token == lease.token
    {
        return None;
    }
    let is_acked = match is {
        Some(is) => *is == MessageStatus::Acked,
        None => after.has_group_of(message_key) && after.was_stored(message_key),
    };
    if is_acked {
        return Some(if newly_dead(message_key, before, after) { LeaseEnd::Dead } else { LeaseEnd::Acked });
    }
    let attempts = is.map_or(0, MessageStatus::attempts);
    if attempts < lease.attempts {
        return Some(if before.boot != after.boot { LeaseEnd::Undone } else { LeaseEnd::Taken });
    }
    let failures = is.map_or(0, MessageStatus::failures);
    Some(match failures > lease.failures {
        true if lease.until <= after.now => LeaseEnd::Expired,
        true => LeaseEnd::Nacked,
        false => LeaseEnd::Released,
    })
}

fn describe_status(status: &MessageStatus, clock: Clock) -> String {
    match status {
        MessageStatus::Ready => "ready".to_owned(),
        MessageStatus::Delayed { until } => format!("delayed until {}", clock.text(*until)),
        MessageStatus::InFlight(RunningLease { owner, until, attempts, token, .. }) => {
            let (until, token) = (clock.text(*until), short(*token));
            format!("in flight at {owner} until {until} (attempt {attempts}, token {token})")
        }
        MessageStatus::Queued { not_before, failures, reason, .. } => {
            let failed = match failures {
                0 => "released".to_owned(),
                1 => "failed once".to_owned(),
                more => format!("failed {more} times"),
            };
            let why = if reason.is_empty() || *failures == 0 { String::new() } else { format!(", last: {reason}") };
            format!("queued until {} ({failed}{why})", clock.text(*not_before))
        }
        MessageStatus::Acked => "acked".to_owned(),
    }
}

/// A short form of a token.
pub(super) fn short(token: LeaseToken) -> String {
    format!("{}.{}", token.boot.0, token.counter)
}

fn describe_effect(was: Option<&EffectRecord>, is: &EffectRecord, clock: Clock) -> String {
    let acked = if is.committed { ", message acked" } else { "" };
    match is.status {
        EffectStatus::InProgress => {
            let owner = is.owner.as_deref().unwrap_or("no worker");
            let renewed = was.is_some_and(|was| was.status == is.status && was.attempt == is.attempt);
            let verb = if renewed { "grant renewed" } else { "granted" };
            format!("{verb} to {owner} until {} (attempt {}){acked}", clock.text(is.until), is.attempt)
        }
        EffectStatus::Succeeded => format!("succeeded{acked}"),
        EffectStatus::FailedFinal => format!("failed, final{acked}"),
        EffectStatus::FailedRetryable => format!("failed, retryable{acked}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_have_milliseconds() {
        let texts: Vec<String> = [0, 7, 2_000, 1_234, 61_000].into_iter().map(span).collect();
        assert_eq!(texts, ["0 s", "7 ms", "2.0 s", "1.234 s", "1 min 1 s"]);
    }

    #[test]
    fn timestamps_are_converted_to_simulated_time_for_any_clock_offset() {
        let time = Timestamp(START_TIME.0 + 5_000);
        assert_eq!(Clock { ahead: 3_000 }.ms(time), 2_000);
        assert_eq!(Clock { ahead: -3_000 }.ms(time), 8_000);
    }
}
