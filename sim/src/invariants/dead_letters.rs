//! Dying, and coming back: a message dies once, at its limit and unchanged, and a redrive brings it back for the group that
//! failed it and nobody else.

use driftq_core::reply::Delivery;
use driftq_core::state::partition::Message;
use driftq_core::types::{DeadLetter, DeadReason, Envelope, GroupId, Lsn, Metadata, Offset, Redrive, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::deliveries::Handed;
use super::tracker::model::{GroupModel, Known, Waiting};
use super::verdict::Verdict;

#[doc = sentence!(dead_not_redelivered)]
pub(super) fn dead_not_redelivered(book: &GroupModel, delivery: &Delivery, at: Timestamp) -> Verdict {
    let dead = book.died(delivery.offset).filter(|(since, _)| !book.sought_since(*since));
    let good = dead.is_none_or(|(_, died)| at <= died);
    catalog::DEAD_NOT_REDELIVERED.holds(good, || format!("at {at}, died {dead:?}: {delivery:?}"))
}

#[doc = sentence!(exhausted_not_redelivered)]
pub(super) fn exhausted_not_redelivered(handed: &Handed<'_>) -> Verdict {
    let policy = handed.envelope.retry_policy;
    let most = policy.map_or(0, |policy| policy.max_attempts);
    // What is a dead letter already has nothing left to fail.
    let good = handed.is_dead_letter || most == 0 || handed.delivery.failures < most;
    catalog::EXHAUSTED_NOT_REDELIVERED.holds(good, || format!("{policy:?}: {:?}", handed.delivery))
}

#[doc = sentence!(dead_letter_unchanged)]
pub(super) fn dead_letter_unchanged(letter: &Message, dead: &DeadLetter, source: &Known, was: &Metadata) -> Verdict {
    let (envelope, kept) = (letter.body.metadata().envelope, &dead.kept);
    let cleared = Envelope { deliver_at: None, ..was.envelope.clone() };
    let again = Envelope {
        retry_policy: kept.retry_policy,
        target_topic: kept.target_topic.clone(),
        partition_override: kept.partition_override,
        deadline: kept.deadline.clone(),
        ..envelope.clone()
    };
    let acts = envelope.retry_policy.is_some()
        || envelope.deadline.is_some()
        || envelope.target_topic.is_some()
        || envelope.partition_override.is_some();
    let same = (source.body.key(), source.body.value()) == (letter.body.key(), letter.body.value());
    let good = same && again == cleared && !acts && dead.original_partition == source.partition;
    catalog::DEAD_LETTER_UNCHANGED.holds(good, || format!("{dead:?} in {envelope:?} of {was:?}"))
}

#[doc = sentence!(dead_lettered_at_limit)]
pub(super) fn dead_lettered_at_limit(dead: &DeadLetter, was: &Envelope) -> Verdict {
    let good = match dead.reason {
        DeadReason::MaxAttempts => {
            was.retry_policy.is_some_and(|policy| policy.max_attempts > 0 && dead.attempts >= policy.max_attempts)
        }
        DeadReason::DeadlineExceeded => was.deadline.as_ref().is_some_and(|deadline| deadline.at <= dead.routed_at),
    };
    catalog::DEAD_LETTERED_AT_LIMIT.holds(good, || format!("{dead:?} under {:?}", was.retry_policy))
}

#[doc = sentence!(dead_lettered_once)]
///
/// `before` is when it last died, as far as is known.
pub(super) fn dead_lettered_once(
    book: &GroupModel,
    dead: &DeadLetter,
    before: Option<(Lsn, Timestamp)>,
    done: bool,
) -> Verdict {
    let sought = before.is_none_or(|(since, _)| book.sought_since(since));
    catalog::DEAD_LETTERED_ONCE.holds(sought, || format!("{dead:?} again, before {before:?}"))?;
    // A dead letter first seen after a restart may be old, its group sought since.
    catalog::DEAD_LETTERED_ONCE.holds(done || book.crashed, || format!("{dead:?} is not done for its group"))
}

/// The second half of [`dead_lettered_once`], for a message that is not done: unless by a seek, it must not have died.
pub(super) fn dead_stays_done(waiting: &Waiting<'_>, offset: Offset, known: &Known) -> Verdict {
    let book = waiting.book;
    let dead = book.died(offset).is_some_and(|(since, _)| !book.sought_since(since));
    catalog::DEAD_LETTERED_ONCE
        .holds(!dead || waiting.is_sought, || format!("{known:?} is dead but not done for {}", waiting.group.name()))
}

/// A message that a redrive has made, and the dead letter it was.
pub(super) struct Revived<'a> {
    pub(super) message: &'a Message,
    /// The produce it comes from.
    pub(super) number: u64,
    pub(super) redrive: Redrive,
    pub(super) letter: &'a Known,
    pub(super) was: &'a Metadata,
    pub(super) is_letter_gone: bool,
}

#[doc = sentence!(redrive_names_origin)]
pub(super) fn redrive_names_origin(revived: &Revived<'_>) -> Verdict {
    let Revived { message, number, redrive, letter, was, is_letter_gone } = *revived;
    let times = was.redrive.map_or(0, |before| before.count);
    let first = was.redrive.map(|before| before.original_offset);
    let first = first.or(was.dead_letter.as_ref().map(|dead| dead.original_offset));
    let policy = was.dead_letter.as_ref().and_then(|dead| dead.kept.retry_policy);
    let good = letter.number == number
        && redrive.count == times + 1
        && first == Some(redrive.original_offset)
        && message.body.metadata().envelope.retry_policy == policy
        && is_letter_gone;
    catalog::REDRIVE_NAMES_ORIGIN.holds(good, || format!("{redrive:?} of produce {number} from {letter:?}"))
}

#[doc = sentence!(redriven_visible_to_origin)]
pub(super) fn redriven_visible_to_origin(
    redrive: Redrive,
    seen_by: Option<GroupId>,
    failed: Option<GroupId>,
) -> Verdict {
    catalog::REDRIVEN_VISIBLE_TO_ORIGIN
        .holds(seen_by == failed, || format!("{redrive:?} is seen by {seen_by:?}, not {failed:?}"))
}

#[doc = sentence!(redriven_delivered_to_origin)]
pub(super) fn redriven_delivered_to_origin(handed: &Handed<'_>) -> Verdict {
    let (known, group) = (handed.known, handed.stream.group);
    let alone = known.visible_to.is_none_or(|origin| origin == group);
    catalog::REDRIVEN_DELIVERED_TO_ORIGIN.holds(alone, || format!("to {group:?}: {known:?}"))
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
    use crate::invariants::tracker::model::Start;

    #[test]
    fn what_died_and_was_not_sought_stays_away() {
        let mut book = book();
        fine(dead_not_redelivered(&book, &delivery(), Timestamp(100)));
        book.dead.insert(Offset(3), vec![(Lsn(4), Timestamp(90))]);
        breaks(catalog::DEAD_NOT_REDELIVERED, dead_not_redelivered(&book, &delivery(), Timestamp(100)));
        book.starts.push((Lsn(5), Lsn(6), Start::Below(Offset(0))));
        fine(dead_not_redelivered(&book, &delivery(), Timestamp(100)));
    }

    #[test]
    fn nothing_dies_before_its_last_attempt_or_its_deadline() {
        let policy = |max_attempts| Some(RetryPolicy { max_attempts, ..RetryPolicy::default() });
        let under = |retry_policy| Envelope { retry_policy, ..Envelope::default() };
        let (spent, late) = (dead(DeadReason::MaxAttempts), dead(DeadReason::DeadlineExceeded));
        fine(dead_lettered_at_limit(&spent, &under(policy(2))));
        breaks(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&spent, &under(policy(3))));
        breaks(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&spent, &under(None)));
        breaks(catalog::DEAD_LETTERED_AT_LIMIT, dead_lettered_at_limit(&late, &under(None)));
    }

    #[test]
    fn a_dead_letter_that_still_acts_or_lost_something_is_changed() {
        let was = |labels| Metadata { envelope: Envelope { labels, ..Envelope::default() }, ..Metadata::default() };
        let label = || [(Text::from("k"), Text::from("v"))].into_iter().collect::<BTreeMap<_, _>>();
        let (plain, labelled) = (was(Default::default()), was(label()));
        let letter = dead(DeadReason::MaxAttempts);
        fine(dead_letter_unchanged(&message(&labelled), &letter, &known(), &labelled));
        breaks(catalog::DEAD_LETTER_UNCHANGED, dead_letter_unchanged(&message(&plain), &letter, &known(), &labelled));
        let acting = Envelope { partition_override: Some(PartitionId(0)), ..Envelope::default() };
        let acting = Metadata { envelope: acting, ..Metadata::default() };
        breaks(catalog::DEAD_LETTER_UNCHANGED, dead_letter_unchanged(&message(&acting), &letter, &known(), &acting));
        let other = Known { body: Body::bare(b"", b"8"), ..known() };
        breaks(catalog::DEAD_LETTER_UNCHANGED, dead_letter_unchanged(&message(&plain), &letter, &other, &plain));
    }

    #[test]
    fn a_redriven_message_counts_on_and_its_dead_letter_is_gone() {
        let was = Metadata { dead_letter: Some(Box::new(dead(DeadReason::MaxAttempts))), ..Metadata::default() };
        let redrive =
            |count, original| Redrive { count, dead_letter_offset: Offset(0), original_offset: Offset(original) };
        let made = |redrive, number, is_letter_gone| {
            redrive_names_origin(&Revived {
                message: &message(&Metadata::default()),
                number,
                redrive,
                letter: &known(),
                was: &was,
                is_letter_gone,
            })
        };
        fine(made(redrive(1, 3), 7, true));
        breaks(catalog::REDRIVE_NAMES_ORIGIN, made(redrive(2, 3), 7, true));
        breaks(catalog::REDRIVE_NAMES_ORIGIN, made(redrive(1, 4), 7, true));
        breaks(catalog::REDRIVE_NAMES_ORIGIN, made(redrive(1, 3), 8, true));
        breaks(catalog::REDRIVE_NAMES_ORIGIN, made(redrive(1, 3), 7, false));
        fine(redrive_within_limit(2, 2));
        breaks(catalog::REDRIVE_WITHIN_LIMIT, redrive_within_limit(3, 2));
    }

    #[test]
    fn a_redriven_message_goes_to_its_origin_alone() {
        let handed = |known: &Known| {
            let (delivery, stream, envelope) = (delivery(), stream(), Envelope::default());
            redriven_delivered_to_origin(&Handed {
                delivery: &delivery,
                consumer: ConsumerId(0),
                stream: &stream,
                known,
                envelope: &envelope,
                is_dead_letter: false,
                at: Timestamp(100),
            })
        };
        fine(handed(&Known { visible_to: Some(GroupId(0)), ..known() }));
        breaks(catalog::REDRIVEN_DELIVERED_TO_ORIGIN, handed(&Known { visible_to: Some(GroupId(1)), ..known() }));
    }
}
