//! What one step changed, by what was to be seen before it and after it.

use std::collections::BTreeSet;
use std::time::Duration;

use driftq_core::idempotency::EffectStatus;
use driftq_core::types::{LeaseToken, Timestamp};

use super::snapshot::{Hold, Known, Snapshot, Standing, Task};
use super::timeline::LeaseEnd;
use crate::report;
use crate::world::START_TIME;

/// How the broker's moments are told: counted from the beginning of the world, by the world's time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// By how much the broker's clock is ahead.
    pub(super) skew: i64,
}

impl Clock {
    /// When that is, in milliseconds from the beginning.
    pub(super) fn ms(self, time: Timestamp) -> u64 {
        time.0.saturating_sub(START_TIME.0).saturating_add_signed(self.skew.saturating_neg())
    }

    /// The same for people.
    pub(super) fn says(self, time: Timestamp) -> String {
        span(self.ms(time))
    }
}

/// A time for people, to the millisecond where it is short.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ms} ms"),
        1_000..60_000 if ms.is_multiple_of(100) => format!("{}.{} s", ms / 1_000, ms / 100 % 10),
        1_000..60_000 => format!("{}.{:03} s", ms / 1_000, ms % 1_000),
        _ => report::span(Duration::from_millis(ms)),
    }
}

/// A lease that was there before and is not there after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) task: Task,
    pub(super) hold: Hold,
    pub(super) end: LeaseEnd,
}

/// What changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Whether the broker was started.
    pub(super) restarted: bool,
    /// A line for each thing.
    pub(super) lines: Vec<String>,
    /// Leases that ended.
    pub(super) ended: Vec<Ended>,
    /// Leases that were made.
    pub(super) made: Vec<(Task, Hold)>,
    pub(super) topics: BTreeSet<String>,
    pub(super) groups: BTreeSet<String>,
    pub(super) messages: BTreeSet<String>,
}

/// What is different after a step. Where the broker was started in it, what is missing was undone.
pub(super) fn changes(before: &Snapshot, after: &Snapshot, clock: Clock) -> Changes {
    let mut changes = Changes { restarted: before.boot != after.boot, ..Changes::default() };
    changes.of_broker(before, after);
    changes.of_topics(before, after);
    changes.of_messages(before, after);
    changes.of_tasks(before, after, clock);
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
            self.lines.push(format!("the log has failed: {why}"));
        }
    }

    fn of_topics(&mut self, before: &Snapshot, after: &Snapshot) {
        for (topic, (partitions, _)) in after.topics.iter().filter(|(topic, _)| !before.topics.contains_key(*topic)) {
            let of = if *partitions == 1 { String::new() } else { format!(", with {partitions} partitions") };
            self.lines.push(format!("{topic}: there is such a topic now{of}"));
            self.topics.insert(topic.clone());
        }
        for topic in before.topics.keys().filter(|topic| !after.topics.contains_key(*topic)) {
            self.lines.push(format!("{topic}: gone"));
            self.topics.insert(topic.clone());
        }
        for (key @ (topic, group), paused) in &after.groups {
            match before.groups.get(key) {
                None => self.lines.push(format!("{group} of {topic}: there is such a group now")),
                Some(was) if was == paused => continue,
                Some(_) => {
                    let now = if *paused { "paused" } else { "goes on" };
                    self.lines.push(format!("{group} of {topic}: {now}"));
                }
            }
            self.topics.insert(topic.clone());
            self.groups.insert(group.clone());
        }
        for key @ (topic, group) in before.groups.keys() {
            if !after.groups.contains_key(key) {
                self.lines.push(format!("{group} of {topic}: gone"));
                self.topics.insert(topic.clone());
                self.groups.insert(group.clone());
            }
        }
    }

    fn of_messages(&mut self, before: &Snapshot, after: &Snapshot) {
        for (key @ (topic, partition, offset), message) in &after.kept {
            if before.kept.get(key) == Some(message) {
                continue;
            }
            let many = after.topics.get(topic).is_some_and(|(partitions, _)| *partitions > 1);
            let place = if many { format!(" of partition {partition}") } else { String::new() };
            self.lines.push(format!("{topic}: {message} stored at offset {offset}{place}"));
            self.topics.insert(topic.clone());
            self.messages.insert(message.clone());
        }
        for (key @ (topic, partition, offset), message) in &before.kept {
            if after.kept.get(key) == Some(message) {
                continue;
            }
            self.topics.insert(topic.clone());
            self.messages.insert(message.clone());
            // What a group has just finished says so itself.
            let told = before.tasks.iter().any(|(task, was)| {
                (&task.topic, task.partition, task.offset) == (topic, *partition, *offset) && *was != Standing::Done
            });
            if !told {
                self.lines.push(format!("{topic}: {message} at offset {offset} is kept no longer"));
            }
        }
    }

    fn of_tasks(&mut self, before: &Snapshot, after: &Snapshot, clock: Clock) {
        let several = before.topics.len().max(after.topics.len()) > 1;
        for (task, was) in &before.tasks {
            let is = after.tasks.get(task);
            if is == Some(was) {
                continue;
            }
            let end = end_of(task, was, is, before, after);
            let now = match (is, end) {
                (_, Some(LeaseEnd::Dead)) => "dead".to_owned(),
                (Some(Standing::Done) | None, _) if was != &Standing::Done && newly_dead(task, before, after) => {
                    "dead".to_owned()
                }
                (Some(is), _) => tell(is, clock),
                (None, _) if !after.has_group_of(task) => "gone with its group".to_owned(),
                (None, _) if !after.knows(task) => "never stored: it was not synced".to_owned(),
                (None, _) if *was == Standing::Done => continue,
                (None, _) => "done".to_owned(),
            };
            self.task_line(task, several, &tell(was, clock), &now);
            self.touch(task);
            if let (Standing::HeldDelivery(hold), Some(end)) = (was, end) {
                self.ended.push(Ended { task: task.clone(), hold: hold.clone(), end });
            }
        }
        for (task, is) in &after.tasks {
            let was = before.tasks.get(task);
            if let Standing::HeldDelivery(hold) = is
                && was.and_then(Standing::token) != Some(hold.token)
            {
                self.made.push((task.clone(), hold.clone()));
            } else if let (Standing::HeldDelivery(hold), Some(Standing::Waiting { .. } | Standing::Done)) = (is, was) {
                // A crash took the end of the lease back.
                self.made.push((task.clone(), hold.clone()));
            }
            if was.is_none() && *is != Standing::Ready {
                self.task_line(task, several, "new", &tell(is, clock));
                self.touch(task);
            }
        }
    }

    fn task_line(&mut self, task: &Task, several: bool, was: &str, is: &str) {
        let topic = if several { format!(" of {}", task.topic) } else { String::new() };
        self.lines.push(format!("{}{topic} for {}: {was} → {is}", task.message, task.group));
    }

    fn touch(&mut self, task: &Task) {
        self.topics.insert(task.topic.clone());
        self.groups.insert(task.group.clone());
        self.messages.insert(task.message.clone());
    }

    fn of_effects(&mut self, before: &Snapshot, after: &Snapshot, clock: Clock) {
        for (name, is) in &after.effects {
            let was = before.effects.get(name);
            if was != Some(is) {
                self.lines.push(format!("{name}: {}", tell_effect(was, is, clock)));
            }
        }
        for name in before.effects.keys().filter(|name| !after.effects.contains_key(*name)) {
            self.lines.push(format!("{name}: forgotten"));
        }
    }

    fn of_log(&mut self, before: &Snapshot, after: &Snapshot) {
        if (before.appended, before.synced) != (after.appended, after.synced) {
            let at_risk = after.appended.saturating_sub(after.synced);
            let of_it = match at_risk {
                0 => "all of it synced".to_owned(),
                1 => "the last record is not synced yet".to_owned(),
                more => format!("the last {more} records are not synced yet"),
            };
            self.lines.push(format!("log: reaches to {}, {of_it}", after.appended));
        }
        for lsn in after.snapshots.iter().filter(|lsn| !before.snapshots.contains(lsn)) {
            self.lines.push(format!("log: a snapshot of everything up to {lsn} is ready"));
        }
    }
}

fn newly_dead(task: &Task, before: &Snapshot, after: &Snapshot) -> bool {
    after.is_dead(task) && !before.is_dead(task)
}

/// How the lease ended that was running before, if it is not running after.
fn end_of(task: &Task, was: &Standing, is: Option<&Standing>, before: &Snapshot, after: &Snapshot) -> Option<LeaseEnd> {
    let Standing::HeldDelivery(hold) = was else { return None };
    if let Some(Standing::HeldDelivery(now)) = is
        && now.token == hold.token
    {
        return None;
    }
    let done = match is {
        Some(is) => *is == Standing::Done,
        None => after.has_group_of(task) && after.knows(task),
    };
    if done {
        return Some(if newly_dead(task, before, after) { LeaseEnd::Dead } else { LeaseEnd::Acked });
    }
    let attempts = is.map_or(0, Standing::attempts);
    if attempts < hold.attempts {
        return Some(if before.boot != after.boot { LeaseEnd::Undone } else { LeaseEnd::Taken });
    }
    let failures = is.map_or(0, Standing::failures);
    Some(match failures > hold.failures {
        true if hold.until <= after.now => LeaseEnd::Expired,
        true => LeaseEnd::Nacked,
        false => LeaseEnd::Released,
    })
}

fn tell(standing: &Standing, clock: Clock) -> String {
    match standing {
        Standing::Ready => "ready".to_owned(),
        Standing::Delayed { until } => format!("held back until {}", clock.says(*until)),
        Standing::HeldDelivery(Hold { owner, until, attempts, token, .. }) => {
            let (until, token) = (clock.says(*until), short(*token));
            format!("held by {owner} until {until} (attempt {attempts}, token {token})")
        }
        Standing::Waiting { not_before, failures, reason, .. } => {
            let failed = match failures {
                0 => "given back".to_owned(),
                1 => "failed once".to_owned(),
                more => format!("failed {more} times"),
            };
            let why = if reason.is_empty() || *failures == 0 { String::new() } else { format!(", last: {reason}") };
            format!("waits to be delivered again from {} on ({failed}{why})", clock.says(*not_before))
        }
        Standing::Done => "done".to_owned(),
    }
}

/// A token as people can tell it from another.
pub(super) fn short(token: LeaseToken) -> String {
    format!("{}.{}", token.boot.0, token.counter)
}

fn tell_effect(was: Option<&Known>, is: &Known, clock: Clock) -> String {
    let done = if is.committed { ", and its message is done" } else { "" };
    match is.status {
        EffectStatus::InProgress => {
            let owner = is.owner.as_deref().unwrap_or("nobody");
            let renewed = was.is_some_and(|was| was.status == is.status && was.attempt == is.attempt);
            let verb = if renewed { "still granted" } else { "granted" };
            format!("{verb} to {owner} until {} (attempt {}){done}", clock.says(is.until), is.attempt)
        }
        EffectStatus::Succeeded => format!("succeeded{done}"),
        EffectStatus::FailedFinal => format!("failed for good{done}"),
        EffectStatus::FailedRetryable => format!("failed, and may be tried again{done}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_the_millisecond_while_they_are_short() {
        let told: Vec<String> = [0, 7, 2_000, 1_234, 61_000].into_iter().map(span).collect();
        assert_eq!(told, ["0 s", "7 ms", "2.0 s", "1.234 s", "1 min 1 s"]);
    }

    #[test]
    fn moments_are_told_by_the_worlds_time_however_wrong_the_brokers_clock_is() {
        let time = Timestamp(START_TIME.0 + 5_000);
        assert_eq!(Clock { skew: 3_000 }.ms(time), 2_000);
        assert_eq!(Clock { skew: -3_000 }.ms(time), 8_000);
    }
}
