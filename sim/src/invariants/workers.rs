//! What users would call wrong, as they would say it: attempts, deaths, produced messages and winners.

use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::state::Topic;
use driftq_core::types::{DeadLetter, DeadReason, Millis, Offset, PartitionId, Position, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, GroupView, StartPoint, StoredMessage};
use super::verdict::Verdict;

#[doc = sentence!(attempt_was_seen)]
///
/// A delivery could be seen if it was released, or if it was durable when the broker crashed.
pub(super) fn attempt_was_seen(model: &GroupModel, delivery: &Delivery, at: (PartitionId, Position)) -> Verdict {
    let seen = model.could_see.get(&at).copied().unwrap_or_default();
    catalog::ATTEMPT_WAS_SEEN
        .holds(delivery.attempts <= seen + 1, || format!("{seen} deliveries could be seen before {delivery:?}"))
}

/// A message that was dead-lettered.
pub(super) struct Death<'a> {
    pub(super) dead: &'a DeadLetter,
    /// When.
    pub(super) at: Timestamp,
    /// Messages of the group that a pending command answers.
    pub(super) claimed: &'a [Offset],
}

#[doc = sentence!(dies_of_its_own_delivery)]
///
/// With adaptive credit: while an older delivery to the same stream is leased and unanswered, no expiry kills.
pub(super) fn dies_of_its_own_delivery(model: &GroupModel, death: &Death<'_>) -> Verdict {
    let dead = death.dead;
    let Some(seen) = model.seen.get(&dead.original_offset) else { return Ok(()) };
    let is_answered = |offset: &Offset| death.claimed.contains(offset);
    let has_expired = dead.reason == DeadReason::MaxAttempts && seen.may_be_held && seen.runs_until <= death.at;
    if !has_expired || seen.crashed || seen.is_uncertain || is_answered(&dead.original_offset) {
        return Ok(());
    }
    let older = model.seen.iter().find(|(offset, other)| {
        other.consumer == seen.consumer
            && other.token < seen.since_token
            && other.may_be_held
            && other.runs_until > death.at
            && !other.is_extended
            && !other.is_uncertain
            && !other.crashed
            && !is_answered(offset)
    });
    catalog::DIES_OF_ITS_OWN_DELIVERY
        .holds(older.is_none(), || format!("{dead:?} at {}: {seen:?} waited behind {older:?}", death.at))
}

#[doc = sentence!(produced_is_accounted_for)]
///
/// Expired: past its deadline it is dead-lettered; a purge, a redrive or a seek of the operator removes it.
pub(super) fn produced_is_accounted_for(
    topic: &Topic,
    view: &GroupView<'_>,
    offset: Offset,
    known: &StoredMessage,
) -> Verdict {
    let model = view.model;
    let progress = view.group.progress(known.partition);
    let is_acked = progress.is_some_and(|progress| progress.acked().contains(known.position));
    let is_there = topic.partition(known.partition).is_some_and(|at| at.message(known.position).is_some());
    let is_before = |start: StartPoint| match start {
        StartPoint::Unknown => true,
        StartPoint::Below(first) => offset < first,
    };
    let is_before_start = model.starts.is_empty() || model.starts.iter().any(|(_, _, start)| is_before(*start));
    let at = (known.partition, known.position);
    let is_delivered = model.could_see.contains_key(&at) || model.seen_before_seek.contains(&at);
    let was_trimmed_before = known.trimmed_at.is_some_and(|trimmed_at| trimmed_at <= model.created_through());
    let is_passed = known.is_removed()
        || was_trimmed_before
        || is_before_start
        || known.visible_to.is_some_and(|group| group != view.group.id())
        || model.skipped.contains(&offset)
        || model.dead.contains_key(&offset)
        || model.dead_before_seek.contains(&offset);
    let good = if is_acked { is_delivered || is_passed } else { is_there };
    catalog::PRODUCED_IS_ACCOUNTED_FOR.holds(good, || {
        let (name, starts, since) = (view.group.name(), &model.starts, model.first_seen);
        format!("{known:?} for {name}, since {since:?} from {starts:?}: acked {is_acked}, stored {is_there}")
    })
}

#[doc = sentence!(done_is_the_winners)]
///
/// Of a message that was delivered more than once. `acks` is whether the claim is that of the newest delivery.
pub(super) fn done_is_the_winners(
    model: &mut GroupModel,
    claim: &Claim,
    (at, acks): (Timestamp, bool),
    ttl: Millis,
) -> Verdict {
    let TokenClaim::Shown(token) = claim.token else { return Ok(()) };
    let newest = model.seen.get(&claim.offset).filter(|seen| seen.token == token && seen.attempts > 1);
    if acks && newest.is_some() {
        model.told_done.entry(claim.offset).or_insert((token, at));
    }
    let Some(first) = model.told_done.get(&claim.offset) else { return Ok(()) };
    let is_remembered = at < first.1.after(ttl);
    catalog::DONE_IS_THE_WINNERS.holds(first.0 == token || !is_remembered, || {
        format!("{claim:?} at {at}, but {:?} was told so at {}", first.0, first.1)
    })
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{ConsumerId, Lsn};

    use super::*;
    use crate::invariants::tests::fixtures::*;
    use crate::invariants::tracker::model::SeenDelivery;

    #[test]
    fn death_behind_an_unanswered_delivery_is_a_violation() {
        let dead = dead(DeadReason::MaxAttempts);
        let death = |claimed| Death { dead: &dead, at: Timestamp(250), claimed };
        let mut model = model();
        let died = SeenDelivery { token: token(2), since_token: token(2), ..seen() };
        model.seen.insert(Offset(3), died.clone());
        holds(dies_of_its_own_delivery(&model, &death(&[])));
        let older = SeenDelivery { runs_until: Timestamp(300), ..seen() };
        model.seen.insert(Offset(1), older.clone());
        violates(catalog::DIES_OF_ITS_OWN_DELIVERY, dies_of_its_own_delivery(&model, &death(&[])));
        holds(dies_of_its_own_delivery(&model, &death(&[Offset(1)])));
        model.seen.insert(Offset(1), SeenDelivery { runs_until: Timestamp(250), ..older.clone() });
        holds(dies_of_its_own_delivery(&model, &death(&[])));
        model.seen.insert(Offset(1), SeenDelivery { consumer: ConsumerId(9), ..older });
        holds(dies_of_its_own_delivery(&model, &death(&[])));
    }

    #[test]
    fn produced_message_that_no_group_got_is_a_violation() {
        let world = world(
            r#"{"ask":{"create":{"topic":"t0"}}}
               {"ask":{"subscribe":{"worker":"w0","topic":"t0","group":"g0","owner":"w0","prefetch":1}}}
               {"ask":{"produce":{"message":"m0","topic":"t0"}}}
               "settle"
               {"read":{"worker":"w0","count":1}}
               {"ask":{"ack":{"worker":"w0","message":"m0"}}}
               "settle""#,
        );
        let topic = world.broker().and_then(|broker| broker.state().topic_named(&topic("t0"))).expect("it exists");
        let group = topic.groups().next().expect("it exists");
        let check = |model: &GroupModel, known: &StoredMessage| {
            let view = GroupView { group, model, is_sought: false, acks: Vec::new() };
            produced_is_accounted_for(topic, &view, Offset(0), known)
        };
        let (mut model, known) = (model(), StoredMessage { position: Position(0), ..known() });
        violates(catalog::PRODUCED_IS_ACCOUNTED_FOR, check(&model, &known));
        holds(check(&model, &StoredMessage { purged: Some((Lsn(9), true)), ..known.clone() }));
        model.could_see.insert((PartitionId(0), Position(0)), 1);
        holds(check(&model, &known));
        let not_there = StoredMessage { position: Position(1), ..known };
        violates(catalog::PRODUCED_IS_ACCOUNTED_FOR, check(&model, &not_there));
    }
}
