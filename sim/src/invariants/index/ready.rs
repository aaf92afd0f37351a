//! Ready messages: in front of a cursor, in a candidate partition, of a group with work.

use std::collections::BTreeSet;

use driftq_core::types::{Phase, Position};
use driftq_core::volatile::{CursorContents, QueueContents};

use super::{GroupPartition, IndexView};
use crate::invariants::catalog::{self, sentence};
use crate::invariants::verdict::Verdict;

#[doc = sentence!(ready_is_offered)]
pub(super) fn ready_is_offered(view: &IndexView<'_>) -> Verdict {
    for topic in view.state.topics() {
        let ids: BTreeSet<_> = topic.groups().map(driftq_core::state::Group::id).collect();
        let indexed = view.index.topics.get(&topic.id()).map(|topic| topic.groups.keys().copied().collect());
        catalog::READY_IS_OFFERED.holds(Some(&ids) == indexed.as_ref(), || {
            format!("{}: groups {ids:?}, indexed {indexed:?}", topic.name())
        })?;
    }
    for at in view.group_partitions() {
        let Some(topic) = view.index.topics.get(&at.topic.id()) else { continue };
        let Some(group) = topic.groups.get(&at.group.id()) else { continue };
        let (Some(cursor), Some(queue)) = (group.cursors.get(at.id.0 as usize), topic.queues.get(at.id.0 as usize))
        else {
            return violated(view, &at, "it has no cursor", &CursorContents::default());
        };
        check_cursor(view, &at, cursor, queue)?;
        let ready = at.partition.messages().find(|(position, _)| is_ready(&at, *position, cursor, queue));
        let is_candidate = group.candidates.contains(&at.id);
        if !is_candidate && !cursor.full && (ready.is_some() || !cursor.waiting) {
            return violated(view, &at, &format!("it is no candidate, though {ready:?} is ready"), cursor);
        }
        let has_credit = !group.with_credit.is_empty() || !group.last_resort.is_empty();
        let is_dispatched = has_credit && !at.group.is_paused();
        if is_dispatched && is_candidate && !view.index.work.contains(&(at.topic.id(), at.group.id())) {
            return violated(view, &at, "its group has no work", cursor);
        }
        let has_space = at.progress.in_flight() < view.limits.in_flight_max;
        if view.is_settled && is_dispatched && has_space && ready.is_some() {
            return violated(view, &at, &format!("{ready:?} is not dispatched"), cursor);
        }
    }
    Ok(())
}

fn violated(view: &IndexView<'_>, at: &GroupPartition<'_>, what: &str, cursor: &CursorContents) -> Verdict {
    let (topic, group) = (at.topic.name(), at.group.name());
    let found = format!("{topic} {} {group} at {}: {what}: {cursor:?}, {:?}", at.id, view.now, at.progress);
    catalog::READY_IS_OFFERED.holds(false, || found)
}

/// The cursor is consistent, and nothing is returned that is not to be delivered.
fn check_cursor(
    view: &IndexView<'_>,
    at: &GroupPartition<'_>,
    cursor: &CursorContents,
    queue: &QueueContents,
) -> Verdict {
    let waits = queue.waiters.iter().filter(|group| **group == at.group.id()).count();
    if waits != usize::from(cursor.waiting) {
        return violated(view, at, &format!("it waits {waits} times"), cursor);
    }
    if cursor.full && at.progress.in_flight() < view.limits.in_flight_max {
        return violated(view, at, "it counts as full", cursor);
    }
    for (level, position) in &cursor.returned {
        let message = at.partition.message(*position);
        let is_queued = at.progress.delivery(*position).is_none_or(|entry| entry.leased_until().is_none());
        let good = message.is_some_and(|message| message.flags().priority.level() == *level)
            && is_queued
            && !at.progress.acked().contains(*position);
        if !good {
            return violated(view, at, &format!("{position} was returned"), cursor);
        }
    }
    let lost = at.partition.messages().find(|(position, message)| {
        let level = message.flags().priority.level();
        let is_ahead = *position >= cursor.frontiers[usize::from(level)];
        let is_collected = queue.serials.get(position).is_some_and(|serial| *serial > cursor.delay_serial_seen);
        let is_new = at.progress.delivery(*position).is_none() && !at.progress.acked().contains(*position);
        is_new
            && !queue.delayed.contains_key(position)
            && !is_ahead
            && !is_collected
            && !cursor.returned.contains(&(level, *position))
    });
    match lost {
        Some(lost) => violated(view, at, &format!("{lost:?} is behind it"), cursor),
        None => Ok(()),
    }
}

/// Whether the message can be dispatched, if the group has credit.
fn is_ready(at: &GroupPartition<'_>, position: Position, cursor: &CursorContents, queue: &QueueContents) -> bool {
    let is_due = match at.progress.delivery(position).map(|entry| entry.phase) {
        None => !queue.delayed.contains_key(&position),
        Some(Phase::Leased { .. }) => false,
        Some(Phase::Queued { .. }) => cursor.returned.iter().any(|(_, returned)| *returned == position),
    };
    is_due && !at.progress.acked().contains(position)
}
