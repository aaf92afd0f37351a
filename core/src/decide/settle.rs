//! Validates and decides ack, cumulative ack, nack, extend, release, withdraw and the early end of a lease.

use std::sync::Arc;

use super::dead_letter::{check_source, dead_letter};
use super::failure::{Failure, FailureVerdict, after_failure};
use super::{Decision, DecisionContext, check_delay, check_len};
use crate::collections::ack_set::AckSet;
use crate::command::{AckCumulative, Claim, ExpireLease, Retry, TokenClaim};
use crate::faults::Faults;
use crate::record::{CumulativeAck, Event};
use crate::reply::{Refusal, Reply};
use crate::state::{Progress, State, Topic};
use crate::types::{
    DeadReason, DeliveryState, GroupName, MessageRef, Millis, Offset, OffsetRef, PartitionId, Phase, ProduceScope, Text,
};

/// The status of a valid claim.
#[derive(Debug)]
pub(crate) enum ClaimStatus<'a> {
    /// The group has acked the message; the claim has no effect.
    AlreadyAcked,
    /// The claim is on the newest delivery of an unacked message; the progress is its group's in the partition.
    Current(MessageRef, &'a DeliveryState, &'a Progress),
}

/// Checks a claim against the newest delivery of its message: group, token and owner.
pub(crate) fn claim_status<'a, F: Faults>(
    context: &DecisionContext<'a, F>,
    claim: &Claim,
) -> Result<ClaimStatus<'a>, Refusal> {
    let topic = context.topic(&claim.topic)?;
    let status = delivery_status(context, topic, &claim.group, (claim.partition, claim.offset), claim.token)?;
    match &status {
        ClaimStatus::Current(_, delivery, _) if claim.owner != delivery.owner => Err(Refusal::NotOwner),
        _ => Ok(status),
    }
}

/// Finds the newest delivery of a message to a group. A token that is shown must be the token of that delivery, or of
/// the winner if the message is acked and its winner remembered.
pub(crate) fn delivery_status<'a, F: Faults>(
    context: &DecisionContext<'a, F>,
    topic: &'a Topic,
    group: &GroupName,
    (partition, offset): (PartitionId, Offset),
    token: TokenClaim,
) -> Result<ClaimStatus<'a>, Refusal> {
    let group = topic.group_named(group).ok_or_else(|| Refusal::UnknownGroup(group.clone()))?;
    let partitions = topic.partition_count();
    let progress = group.progress(partition).ok_or(Refusal::PartitionOutOfRange { partition, partitions })?;
    let Some((position, delivery)) = progress.find_delivery(offset) else {
        return match is_acked(topic, (partition, offset), progress.acked()) {
            true => {
                let message = OffsetRef { topic: topic.id(), group: group.id(), partition, offset };
                check_winner(context, &message, token).map(|()| ClaimStatus::AlreadyAcked)
            }
            false if token == TokenClaim::Absent => Err(Refusal::NotOwner),
            false => Err(Refusal::StaleLease),
        };
    };
    match token {
        TokenClaim::Absent => {}
        TokenClaim::Shown(token) if context.faults.lease_token_matches(delivery, token) => {}
        TokenClaim::Shown(_) | TokenClaim::Unreadable => return Err(Refusal::StaleLease),
    }
    let message_ref = MessageRef { topic: topic.id(), group: group.id(), partition, position };
    Ok(ClaimStatus::Current(message_ref, delivery, progress))
}

/// Refuses a token that is not the winner's, as long as the winner is remembered.
fn check_winner<F: Faults>(
    context: &DecisionContext<'_, F>,
    message: &OffsetRef,
    token: TokenClaim,
) -> Result<(), Refusal> {
    let shown = match token {
        TokenClaim::Absent => return Ok(()),
        TokenClaim::Shown(token) => Some(token),
        TokenClaim::Unreadable => None,
    };
    match context.state.winners().get(message, context.now) {
        Some(winner) if shown.is_none() || winner.token != shown => Err(Refusal::StaleLease),
        _ => Ok(()),
    }
}

/// Whether another delivery of the message to this group can exist: it was delivered more than once, or was stored
/// before the group's last seek and can have been delivered before it.
pub(super) fn is_contested(message_ref: &MessageRef, delivery: &DeliveryState, progress: &Progress) -> bool {
    delivery.attempts > 1 || message_ref.position < progress.replayed_below()
}

/// Whether the group has acked a message of which it stores no delivery state.
fn is_acked(topic: &Topic, (partition, offset): (PartitionId, Offset), acked: &AckSet) -> bool {
    if offset >= topic.next_offset() {
        return false;
    }
    let stored = topic.partition(partition).and_then(|partition| partition.find(offset));
    if let Some((position, _)) = stored {
        return acked.contains(position);
    }
    // Stored in another partition: the claim names the wrong one. Stored in none: acked in every group and trimmed. The
    // partition of a trimmed offset is not recorded, so all are searched; late claims are rare, and a record would cost
    // every message.
    topic.partitions().all(|(_, partition)| partition.find(offset).is_none())
}

/// Decides an ack.
///
/// Checks in this order: topic, group, partition, delivery, token (if one is shown), owner. An expired lease is no
/// reason to refuse: until the redelivery its token is the newest. An acked message is a success for any claim, except
/// one that shows another token than its remembered winner's.
pub(crate) fn ack<F: Faults>(context: &DecisionContext<'_, F>, claim: &Claim) -> Result<Decision, Refusal> {
    let ClaimStatus::Current(message_ref, delivery, progress) = claim_status(context, claim)? else {
        return Ok(Decision::reply_only(Reply::Success));
    };
    let CumulativeAck { commits, winner_until, .. } = ack_of(context, &message_ref, delivery, progress);
    Ok(Decision::new(Event::Acked { message_ref, commits, winner_until }, Reply::Success))
}

/// What the ack of a message leaves behind.
#[inline]
fn ack_of<F: Faults>(
    context: &DecisionContext<'_, F>,
    message_ref: &MessageRef,
    delivery: &DeliveryState,
    progress: &Progress,
) -> CumulativeAck {
    let commits = duplicate_for(context, message_ref);
    let is_contested = is_contested(message_ref, delivery, progress);
    let winner_until = is_contested.then(|| context.now.after(context.limits.completion_ttl));
    CumulativeAck { position: message_ref.position, commits, winner_until }
}

/// Decides a cumulative ack: one record acks everything, or nothing is acked.
pub(crate) fn ack_cumulative<F: Faults>(
    context: &DecisionContext<'_, F>,
    request: &AckCumulative,
) -> Result<Decision, Refusal> {
    let topic = context.topic(&request.topic)?;
    let group = topic.group_named(&request.group).ok_or_else(|| Refusal::UnknownGroup(request.group.clone()))?;
    let (partition, partitions) = (request.partition, topic.partition_count());
    let progress = group.progress(partition).ok_or(Refusal::PartitionOutOfRange { partition, partitions })?;
    let delivered = progress.deliveries().take_while(|(_, delivery)| delivery.offset <= request.offset);
    let max = context.limits.work.acked_per_command;
    let (mut acks, mut seen) = (Vec::new(), 0);
    for (position, delivery) in delivered {
        seen += 1;
        if seen > max {
            let (len, max) = (seen as u64, max as u64);
            return Err(Refusal::TooMany { what: "delivered messages at or below the offset", len, max });
        }
        if context.faults.acks_cumulatively(delivery, &request.owner) {
            let message_ref = MessageRef { topic: topic.id(), group: group.id(), partition, position };
            acks.push(ack_of(context, &message_ref, delivery, progress));
        }
    }
    if acks.is_empty() {
        return Ok(Decision::reply_only(Reply::Success));
    }
    let event = Event::CumulativelyAcked { topic: topic.id(), group: group.id(), partition, acks };
    Ok(Decision::new(event, Reply::Success))
}

/// The message whose lease a client ends early.
pub(crate) fn leased_message<F: Faults>(
    context: &DecisionContext<'_, F>,
    request: &ExpireLease,
) -> Result<MessageRef, Refusal> {
    let topic = context.topic(&request.topic)?;
    let message = (request.partition, request.offset);
    match delivery_status(context, topic, &request.group, message, TokenClaim::Absent) {
        Ok(ClaimStatus::Current(message_ref, DeliveryState { phase: Phase::Leased { .. }, .. }, _)) => Ok(message_ref),
        Ok(ClaimStatus::Current(..) | ClaimStatus::AlreadyAcked) | Err(Refusal::NotOwner) => Err(Refusal::NotLeased),
        Err(refusal) => Err(refusal),
    }
}

/// For how long a produce of the message is still a duplicate; `None` if it has no idempotency key.
fn duplicate_for<F: Faults>(context: &DecisionContext<'_, F>, message_ref: &MessageRef) -> Option<Millis> {
    let topic = context.state.topic(message_ref.topic).expect("a delivery belongs to a topic");
    let partition = topic.partition(message_ref.partition).expect("a delivery belongs to a partition");
    let fields = partition.fields_at(message_ref.position)?;
    let key = fields.identity_key()?;
    let table = match &fields.requested {
        Some(requested) => context.state.dedupe(requested),
        None => context.state.dedupe(&ProduceScope::new(topic.name(), None)),
    };
    let expires_at = table.and_then(|table| table.expiry_of(key, context.now));
    Some(expires_at.map_or(Millis(0), |expires_at| expires_at.since(context.now)))
}

/// Whether the message has an idempotency key, and so an effect.
pub(super) fn has_identity(state: &State, message_ref: &MessageRef) -> bool {
    let topic = state.topic(message_ref.topic).expect("a delivery belongs to a topic");
    let partition = topic.partition(message_ref.partition);
    let flags = partition.and_then(|partition| partition.flags_at(message_ref.position));
    flags.expect("a delivered, unacked message is stored").has_identity
}

/// Decides a nack.
pub(crate) fn nack<F: Faults>(
    context: &DecisionContext<'_, F>,
    claim: &Claim,
    reason: &Text,
    retry: Retry,
) -> Result<Decision, Refusal> {
    check_len("reason", reason.len(), context.limits.error_text_bytes_max)?;
    let delay = match retry {
        Retry::After(delay) => Some(delay),
        Retry::ByPolicy | Retry::Never => None,
    };
    check_delay(delay.unwrap_or_default(), context.limits.delay_max)?;
    let ClaimStatus::Current(message_ref, delivery, _) = claim_status(context, claim)? else {
        return Ok(Decision::reply_only(Reply::Success));
    };
    let given = (!reason.is_empty()).then(|| Arc::<str>::from(&**reason));
    let last_error = || Text::from(given.as_deref().unwrap_or(delivery.last_error.as_str()));
    if retry == Retry::Never {
        // Also where the lease has expired or was released: its worker knows that a retry is useless.
        check_source(context.state, &message_ref)?;
        let event = dead_letter(context, &message_ref, DeadReason::NonRetryable, last_error());
        return Ok(Decision::new(event, Reply::Success));
    }
    if let Phase::Queued { .. } = delivery.phase {
        // The failure was counted when the lease expired.
        return Ok(match given {
            Some(reason) if *reason != *delivery.last_error.as_str() => {
                Decision::new(Event::ReasonNoted { message_ref, reason }, Reply::Success)
            }
            _ => Decision::answer_only(message_ref, Reply::Success),
        });
    }
    let failure = Failure::Nack { delay };
    let event = match after_failure(context.state, &message_ref, delivery, context.now, failure) {
        FailureVerdict::DeadLetter(why) => dead_letter(context, &message_ref, why, last_error()),
        FailureVerdict::Retry { not_before } => Event::Nacked { message_ref, reason: given, not_before },
    };
    Ok(Decision::new(event, Reply::Success))
}

/// Decides an extension.
pub(crate) fn extend<F: Faults>(
    context: &DecisionContext<'_, F>,
    claim: &Claim,
    lease: Option<Millis>,
) -> Result<Decision, Refusal> {
    match claim_status(context, claim)? {
        ClaimStatus::Current(message_ref, ..) if context.faults.is_extendable(context.is_leased(&message_ref)) => {
            let until = context.now.after(context.limits.lease(lease));
            Ok(Decision::new(Event::Extended { message_ref, until }, Reply::Extended { lease_until: until }))
        }
        ClaimStatus::Current(..) | ClaimStatus::AlreadyAcked => Err(Refusal::StaleLease),
    }
}

/// Decides a release. Succeeds without a record if the lease has ended.
pub(crate) fn release<F: Faults>(context: &DecisionContext<'_, F>, claim: &Claim) -> Result<Decision, Refusal> {
    match claim_status(context, claim)? {
        ClaimStatus::Current(message_ref, DeliveryState { phase: Phase::Leased { .. }, .. }, _) => {
            Ok(Decision::new(Event::Released { message_ref }, Reply::Success))
        }
        ClaimStatus::Current(message_ref, ..) => Ok(Decision::answer_only(message_ref, Reply::Success)),
        ClaimStatus::AlreadyAcked => Ok(Decision::reply_only(Reply::Success)),
    }
}

/// Decides the withdrawal of a delivery that never reached its consumer.
pub(crate) fn withdraw<F: Faults>(context: &DecisionContext<'_, F>, claim: &Claim) -> Result<Decision, Refusal> {
    if claim.token == TokenClaim::Absent {
        return Err(Refusal::Invalid("a withdrawal needs the lease token of the delivery"));
    }
    match claim_status(context, claim)? {
        ClaimStatus::Current(message_ref, DeliveryState { phase: Phase::Leased { .. }, .. }, _) => {
            Ok(Decision::new(Event::Withdrawn { message_ref }, Reply::Success))
        }
        ClaimStatus::Current(..) | ClaimStatus::AlreadyAcked => Ok(Decision::reply_only(Reply::Success)),
    }
}
