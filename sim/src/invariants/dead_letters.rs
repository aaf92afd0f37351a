//! Dead letters and redrive: a message is dead-lettered once, at its limit and unchanged; a redrive returns it to the
//! group that failed it, and to no other.

use driftq_core::Body;
use driftq_core::command::RedriveRest;
use driftq_core::reply::Delivery;
use driftq_core::state::Topic;
use driftq_core::types::{DeadLetter, DeadReason, Envelope, GroupId, Lsn, Metadata, Offset, RedriveOrigin, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{DeliveryContext, GroupModel, GroupView, RedriveBounds, StoredMessage};
use super::verdict::Verdict;
use crate::oracle::left_of;

#[doc = sentence!(dead_not_redelivered)]
pub(super) fn dead_not_redelivered(model: &GroupModel, delivery: &Delivery, at: Timestamp) -> Verdict {
    let dead = model.dead_lettered_at(delivery.offset).filter(|(since, _)| !model.sought_since(*since));
    let good = dead.is_none_or(|(_, dead_at)| at <= dead_at);
    catalog::DEAD_NOT_REDELIVERED.holds(good, || format!("at {at}, dead-lettered {dead:?}: {delivery:?}"))
}

#[doc = sentence!(exhausted_not_redelivered)]
///
/// With adaptive credit an expiry behind another unanswered delivery does not count, so only nacks exhaust a message.
pub(super) fn exhausted_not_redelivered(
    model: &GroupModel,
    context: &DeliveryContext<'_>,
    was_adaptive: bool,
) -> Verdict {
    let policy = context.envelope.retry_policy;
    let max_attempts = policy.map_or(0, |policy| policy.max_attempts);
    let before = model.seen.get(&context.delivery.offset);
    let is_exhausted = match was_adaptive {
        true => before.is_some_and(|seen| seen.is_exhausted && !seen.is_uncertain && !seen.crashed),
        false => max_attempts > 0 && context.delivery.failures >= max_attempts,
    };
    let is_non_retryable = before.is_some_and(|seen| seen.is_non_retryable);
    // A dead letter is not dead-lettered again.
    let good = context.is_dead_letter || !is_exhausted && !is_non_retryable;
    catalog::EXHAUSTED_NOT_REDELIVERED.holds(good, || format!("{policy:?}: {:?}", context.delivery))
}

#[doc = sentence!(dead_letter_unchanged)]
pub(super) fn dead_letter_unchanged(
    stored: &Body,
    dead: &DeadLetter,
    source: &StoredMessage,
    original: &Metadata,
) -> Verdict {
    let stored_metadata = stored.metadata();
    let left = stored_metadata.lost.as_ref().filter(|_| source.is_lost).map(|damage| left_of(original, damage));
    let original = left.as_ref().unwrap_or(original);
    let (envelope, kept) = (stored_metadata.envelope, &dead.kept);
    let expected = Envelope { deliver_at: None, delayed_until: None, ..original.envelope.clone() };
    let restored = Envelope {
        retry_policy: kept.retry_policy,
        target_topic: kept.target_topic.clone(),
        partition_override: kept.partition_override,
        deadline: kept.deadline.clone(),
        ..envelope.clone()
    };
    let has_active_fields = envelope.retry_policy.is_some()
        || envelope.deadline.is_some()
        || envelope.target_topic.is_some()
        || envelope.partition_override.is_some();
    let bytes = if left.is_some() { (&[][..], &[][..]) } else { (source.body.key(), source.body.value()) };
    let same = bytes == (stored.key(), stored.value());
    let good = same && restored == expected && !has_active_fields && dead.original_partition == source.partition;
    catalog::DEAD_LETTER_UNCHANGED.holds(good, || format!("{dead:?} in {envelope:?} of {original:?}"))
}

#[doc = sentence!(dead_lettered_at_limit)]
///
/// `is_requested` is whether a worker ruled out a retry of the message, `is_lost` whether its payload is damaged.
pub(super) fn dead_lettered_at_limit(
    dead: &DeadLetter,
    original: &Envelope,
    is_requested: bool,
    is_lost: bool,
) -> Verdict {
    let good = match dead.reason {
        DeadReason::MaxAttempts => {
            original.retry_policy.is_some_and(|policy| policy.max_attempts > 0 && dead.attempts >= policy.max_attempts)
        }
        DeadReason::DeadlineExceeded => {
            original.deadline.as_ref().is_some_and(|deadline| deadline.at <= dead.routed_at)
        }
        DeadReason::NonRetryable => is_requested,
        DeadReason::PayloadDamaged => is_lost,
    };
    catalog::DEAD_LETTERED_AT_LIMIT.holds(good, || format!("{dead:?} under {:?}", original.retry_policy))
}

#[doc = sentence!(dead_lettered_once)]
///
/// `before` is when it was last dead-lettered, if known.
pub(super) fn dead_lettered_once(
    model: &GroupModel,
    dead: &DeadLetter,
    before: Option<(Lsn, Timestamp)>,
    is_acked: bool,
) -> Verdict {
    let sought = before.is_none_or(|(since, _)| model.sought_since(since));
    catalog::DEAD_LETTERED_ONCE.holds(sought, || format!("{dead:?} again, before {before:?}"))?;
    // A dead letter first seen after a restart may be older than a seek.
    catalog::DEAD_LETTERED_ONCE.holds(is_acked || model.crashed, || format!("{dead:?} is not acked in its group"))
}

/// The second half of [`dead_lettered_once`], for an unacked message: without a seek it must not have been
/// dead-lettered.
pub(super) fn dead_lettered_is_acked(view: &GroupView<'_>, offset: Offset, known: &StoredMessage) -> Verdict {
    let model = view.model;
    let dead = model.dead_lettered_at(offset).is_some_and(|(since, _)| !model.sought_since(since));
    catalog::DEAD_LETTERED_ONCE
        .holds(!dead || view.is_sought, || format!("{known:?} is dead-lettered but not acked in {}", view.group.name()))
}

/// A redriven message and its dead letter.
pub(super) struct RedrivenMessage<'a> {
    pub(super) body: &'a Body,
    /// The number of its produce.
    pub(super) number: u64,
    pub(super) redrive: RedriveOrigin,
    pub(super) dead_letter: &'a StoredMessage,
    /// The metadata of the dead letter.
    pub(super) metadata: &'a Metadata,
    pub(super) is_dead_letter_removed: bool,
    /// The wall time of the redrive.
    pub(super) redriven_at: Timestamp,
}

#[doc = sentence!(redrive_names_origin)]
pub(super) fn redrive_names_origin(redriven_message: &RedrivenMessage<'_>) -> Verdict {
    let RedrivenMessage { body, number, redrive, dead_letter, metadata, .. } = *redriven_message;
    let earlier_redrives = metadata.redrive.map_or(0, |earlier| earlier.count);
    let original_offset = metadata.redrive.map(|earlier| earlier.original_offset);
    let original_offset = original_offset.or(metadata.dead_letter.as_ref().map(|dead| dead.original_offset));
    let kept = metadata.dead_letter.as_ref().map(|dead| dead.kept.clone()).unwrap_or_default();
    // A deadline that had passed is not restored.
    let deadline = kept.deadline.filter(|deadline| deadline.at > redriven_message.redriven_at);
    let envelope = body.metadata().envelope;
    let good = dead_letter.number == number
        && redrive.count == earlier_redrives + 1
        && original_offset == Some(redrive.original_offset)
        && (envelope.retry_policy, envelope.deadline) == (kept.retry_policy, deadline)
        && redriven_message.is_dead_letter_removed;
    catalog::REDRIVE_NAMES_ORIGIN.holds(good, || format!("{redrive:?} of produce {number} from {dead_letter:?}"))
}

#[doc = sentence!(redriven_visible_to_origin)]
pub(super) fn redriven_visible_to_origin(
    redrive: RedriveOrigin,
    seen_by: Option<GroupId>,
    failed: Option<GroupId>,
) -> Verdict {
    catalog::REDRIVEN_VISIBLE_TO_ORIGIN
        .holds(seen_by == failed, || format!("{redrive:?} is visible to {seen_by:?}, not {failed:?}"))
}

#[doc = sentence!(redriven_delivered_to_origin)]
pub(super) fn redriven_delivered_to_origin(context: &DeliveryContext<'_>) -> Verdict {
    let (known, group) = (context.known, context.stream.group);
    let is_origin = known.visible_to.is_none_or(|origin| origin == group);
    catalog::REDRIVEN_DELIVERED_TO_ORIGIN.holds(is_origin, || format!("to {group:?}: {known:?}"))
}

#[doc = sentence!(redrive_moves_what_was_there)]
pub(super) fn redrive_moves_what_was_there(source: &Topic, bounds: RedriveBounds) -> Verdict {
    let stored = source.partitions().flat_map(|(_, partition)| partition.messages());
    let moved = stored.filter(|(_, message)| message.offset >= bounds.moved_from);
    let origins = moved.filter_map(|(_, message)| message.redrive());
    let later = origins.map(|redrive| redrive.dead_letter_offset).find(|offset| *offset >= bounds.end);
    catalog::REDRIVE_MOVES_WHAT_WAS_THERE
        .holds(later.is_none(), || format!("{later:?} was stored after the redrive of what is below {}", bounds.end))
}

/// As [`redrive_moves_what_was_there`], for what a redrive of all has left.
pub(super) fn rest_was_there(rest: RedriveRest, bounds: RedriveBounds) -> Verdict {
    catalog::REDRIVE_MOVES_WHAT_WAS_THERE
        .holds(rest.below <= bounds.end, || format!("{rest:?} of what is below {}", bounds.end))
}

#[doc = sentence!(redrive_within_limit)]
pub(super) fn redrive_within_limit(count: u64, limit: u64) -> Verdict {
    catalog::REDRIVE_WITHIN_LIMIT.holds(count <= limit, || format!("{count} of {limit}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use driftq_core::Body;
    use driftq_core::types::{ConsumerId, PartitionId, RetryPolicy, Text};

    use super::*;
    use crate::invariants::tests::fixtures::*;
    use crate::invariants::tracker::model::StartPoint;

    #[test]
    fn delivery_after_dead_letter_without_seek_is_a_violation() {
        let mut model = model();
        holds(dead_not_redelivered(&model, &delivery(), Timestamp(100)));
        model.dead.insert(Offset(3), vec![(Lsn(4), Timestamp(90))]);
        violates(catalog::DEAD_NOT_REDELIVERED, dead_not_redelivered(&model, &delivery(), Timestamp(100)));
        model.starts.push((Lsn(5), Lsn(6), StartPoint::Below(Offset(0))));
        holds(dead_not_redelivered(&model, &delivery(), Timestamp(100)));
    }

    #[test]
    fn dead_letter_before_limit_or_deadline_is_a_violation() {
        let policy = |max_attempts| Some(RetryPolicy { max_attempts, ..RetryPolicy::default() });
        let under = |retry_policy| Envelope { retry_policy, ..Envelope::default() };
        let (exhausted, overdue) = (dead(DeadReason::MaxAttempts), dead(DeadReason::DeadlineExceeded));
        holds(dead_lettered_at_limit(&exhausted, &under(policy(2)), false, false));
        violates(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&exhausted, &under(policy(3)), false, false));
        violates(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&exhausted, &under(None), false, false));
        violates(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&overdue, &under(None), false, false));
    }

    #[test]
    fn dead_letter_with_active_or_lost_field_is_a_violation() {
        let metadata =
            |labels| Metadata { envelope: Envelope { labels, ..Envelope::default() }, ..Metadata::default() };
        let label = || [(Text::from("k"), Text::from("v"))].into_iter().collect::<BTreeMap<_, _>>();
        let (plain, labelled) = (metadata(Default::default()), metadata(label()));
        let dead_letter = dead(DeadReason::MaxAttempts);
        holds(dead_letter_unchanged(&Body::pack(&labelled, b"", b"7"), &dead_letter, &known(), &labelled));
        violates(
            catalog::DEAD_LETTER_UNCHANGED,
            dead_letter_unchanged(&Body::pack(&plain, b"", b"7"), &dead_letter, &known(), &labelled),
        );
        let active = Envelope { partition_override: Some(PartitionId(0)), ..Envelope::default() };
        let active = Metadata { envelope: active, ..Metadata::default() };
        violates(
            catalog::DEAD_LETTER_UNCHANGED,
            dead_letter_unchanged(&Body::pack(&active, b"", b"7"), &dead_letter, &known(), &active),
        );
        let other = StoredMessage { body: Body::bare(b"", b"8"), ..known() };
        violates(
            catalog::DEAD_LETTER_UNCHANGED,
            dead_letter_unchanged(&Body::pack(&plain, b"", b"7"), &dead_letter, &other, &plain),
        );
    }

    #[test]
    fn redrive_with_wrong_count_or_origin_or_dead_letter_left_is_a_violation() {
        let metadata = Metadata { dead_letter: Some(Box::new(dead(DeadReason::MaxAttempts))), ..Metadata::default() };
        let redrive =
            |count, original| RedriveOrigin { count, dead_letter_offset: Offset(0), original_offset: Offset(original) };
        let check = |redrive, number, is_dead_letter_removed| {
            redrive_names_origin(&RedrivenMessage {
                body: &Body::bare(b"", b"7"),
                number,
                redrive,
                dead_letter: &known(),
                metadata: &metadata,
                is_dead_letter_removed,
                redriven_at: Timestamp(0),
            })
        };
        holds(check(redrive(1, 3), 7, true));
        violates(catalog::REDRIVE_NAMES_ORIGIN, check(redrive(2, 3), 7, true));
        violates(catalog::REDRIVE_NAMES_ORIGIN, check(redrive(1, 4), 7, true));
        violates(catalog::REDRIVE_NAMES_ORIGIN, check(redrive(1, 3), 8, true));
        violates(catalog::REDRIVE_NAMES_ORIGIN, check(redrive(1, 3), 7, false));
        holds(redrive_within_limit(2, 2));
        violates(catalog::REDRIVE_WITHIN_LIMIT, redrive_within_limit(3, 2));
    }

    #[test]
    fn redriven_message_to_another_group_is_a_violation() {
        let context = |known: &StoredMessage| {
            let (delivery, stream, envelope) = (delivery(), stream(), Envelope::default());
            redriven_delivered_to_origin(&DeliveryContext {
                delivery: &delivery,
                consumer: ConsumerId(0),
                stream: &stream,
                known,
                envelope: &envelope,
                is_dead_letter: false,
                at: Timestamp(100),
                walls: (Timestamp(100), Timestamp(100)),
            })
        };
        holds(context(&StoredMessage { visible_to: Some(GroupId(0)), ..known() }));
        violates(
            catalog::REDRIVEN_DELIVERED_TO_ORIGIN,
            context(&StoredMessage { visible_to: Some(GroupId(1)), ..known() }),
        );
    }
}
