//! A worker's word about a message: whether it has the right to give it, and what follows.

use std::sync::Arc;

use super::failure::{Outcome, after_failure, message};
use super::redrive::dead_letter;
use super::{Decision, topic};
use crate::command::{Claim, TokenClaim};
use crate::faults::{Fault, Faults};
use crate::record::{Event, MessageRef};
use crate::reply::{Refusal, Reply};
use crate::state::State;
use crate::state::entry::{Entry, Phase};
use crate::state::topic::Topic;
use crate::types::{GroupName, Limits, Millis, Offset, PartitionId, Text, Timestamp};

/// What a claim turns out to be about.
#[derive(Debug)]
pub(crate) enum ClaimStatus<'a> {
    /// A message this group is done with; whatever is said about it comes too late to matter.
    AlreadyAcked,
    /// The newest delivery of an unfinished message, and the caller is who it was made to.
    Current(MessageRef, &'a Entry),
}

/// Finds what a claim is about and whether it holds.
pub(crate) fn claim_status<'a>(
    state: &'a State,
    claim: &Claim,
    faults: &impl Faults,
) -> Result<ClaimStatus<'a>, Refusal> {
    let topic = topic(state, &claim.topic)?;
    let shown = match faults.planted(Fault::SkipTokenCheck) && claim.token != TokenClaim::Absent {
        true => newest_token(topic, claim).unwrap_or(claim.token),
        false => claim.token,
    };
    let claim_status = delivery_status(topic, &claim.group, claim.partition, claim.offset, shown)?;
    match &claim_status {
        ClaimStatus::Current(_, entry) if claim.owner != entry.owner => Err(Refusal::NotOwner),
        _ => Ok(claim_status),
    }
}

/// The planted bug: whatever token is shown, the right one is seen.
fn newest_token(topic: &Topic, claim: &Claim) -> Option<TokenClaim> {
    let progress = topic.group_named(&claim.group)?.progress(claim.partition)?;
    progress.find(claim.offset).map(|(_, entry)| TokenClaim::Shown(entry.token))
}

/// Finds what a delivery of a message to a group has come to. A token that is shown must be the newest.
pub(crate) fn delivery_status<'a>(
    topic: &'a Topic,
    group: &GroupName,
    partition: PartitionId,
    offset: Offset,
    token: TokenClaim,
) -> Result<ClaimStatus<'a>, Refusal> {
    let group = topic.group_named(group).ok_or_else(|| Refusal::UnknownGroup(group.clone()))?;
    let partitions = topic.partition_count();
    let progress = group.progress(partition).ok_or(Refusal::PartitionOutOfRange { partition, partitions })?;
    let Some((position, entry)) = progress.find(offset) else {
        return match is_done(topic, (partition, offset), progress.done()) {
            true => Ok(ClaimStatus::AlreadyAcked),
            false if token == TokenClaim::Absent => Err(Refusal::NotOwner),
            false => Err(Refusal::StaleLease),
        };
    };
    match token {
        TokenClaim::Absent => {}
        TokenClaim::Shown(token) if token == entry.token => {}
        TokenClaim::Shown(_) | TokenClaim::Unreadable => return Err(Refusal::StaleLease),
    }
    let message_ref = MessageRef { topic: topic.id(), group: group.id(), partition, position };
    Ok(ClaimStatus::Current(message_ref, entry))
}

/// Whether the group is done with a message it has no history of.
fn is_done(topic: &Topic, (partition, offset): (PartitionId, Offset), done: &crate::state::AckSet) -> bool {
    if offset >= topic.next_offset() {
        return false;
    }
    let here = topic.partition(partition).and_then(|partition| partition.find(offset));
    if let Some((position, _)) = here {
        return done.contains(position);
    }
    // Not kept here. A message kept in another partition is a stranger; one kept nowhere was done in every group. Which partition
    // an offset that is gone was in is not remembered, so each is asked: late words are rare, and to remember would cost
    // every message.
    topic.partitions().all(|(_, partition)| partition.find(offset).is_none())
}

/// Decides an ack.
pub(crate) fn ack(state: &State, limits: &Limits, claim: &Claim, faults: &impl Faults) -> Result<Decision, Refusal> {
    match claim_status(state, claim, faults)? {
        ClaimStatus::AlreadyAcked => Ok(Decision::nothing(Reply::Done)),
        ClaimStatus::Current(..) if faults.planted(Fault::AckNotKept) => Ok(Decision::nothing(Reply::Done)),
        ClaimStatus::Current(message_ref, _) => {
            let commits = has_identity(state, &message_ref).then_some(limits.ack_ttl);
            Ok(Decision::new(Event::Acked { message_ref, commits }, Reply::Done))
        }
    }
}

/// Whether the message at `message_ref` has an idempotency key, and so an effect.
pub(super) fn has_identity(state: &State, message_ref: &MessageRef) -> bool {
    let topic = state.topic(message_ref.topic).expect("a delivery is of a topic");
    message(topic, message_ref).body.flags().has_identity
}

/// Decides a nack.
pub(crate) fn nack(
    state: &State,
    limits: &Limits,
    now: Timestamp,
    (claim, reason, delay): (&Claim, &Text, Option<Millis>),
    faults: &impl Faults,
) -> Result<Decision, Refusal> {
    if reason.len() > limits.error_text_bytes_max {
        let (len, max) = (reason.len() as u64, limits.error_text_bytes_max as u64);
        return Err(Refusal::TooLarge { what: "reason", len, max });
    }
    let ClaimStatus::Current(message_ref, entry) = claim_status(state, claim, faults)? else {
        return Ok(Decision::nothing(Reply::Done));
    };
    let given = (!reason.is_empty()).then(|| Arc::<str>::from(&**reason));
    if let Phase::Queued { .. } = entry.phase {
        // The failure was counted when the lease ended.
        return Ok(match given {
            Some(reason) if *reason != *entry.last_error.as_str() => {
                Decision::new(Event::ReasonNoted { message_ref, reason }, Reply::Done)
            }
            _ => Decision::nothing(Reply::Done),
        });
    }
    let event = match after_failure(state, &message_ref, entry, now, delay, faults) {
        Outcome::Again { not_before } => Event::Nacked { message_ref, reason: given, not_before },
        Outcome::Dead(dead) => {
            let last_error = given.as_deref().unwrap_or(entry.last_error.as_str()).into();
            dead_letter(state, &message_ref, dead, last_error)
        }
    };
    Ok(Decision::new(event, Reply::Done))
}

/// Decides an extension.
pub(crate) fn extend(
    state: &State,
    limits: &Limits,
    now: Timestamp,
    (claim, lease): (&Claim, Option<Millis>),
    faults: &impl Faults,
) -> Result<Decision, Refusal> {
    match claim_status(state, claim, faults)? {
        ClaimStatus::Current(message_ref, Entry { phase: Phase::Leased { until }, .. }) if *until > now => {
            let until = now.after(limits.lease(lease));
            Ok(Decision::new(Event::Extended { message_ref, until }, Reply::Extended { lease_until: until }))
        }
        ClaimStatus::Current(..) if faults.planted(Fault::ExtendAfterExpiry) => {
            Ok(Decision::nothing(Reply::Extended { lease_until: now.after(limits.lease(lease)) }))
        }
        ClaimStatus::Current(..) | ClaimStatus::AlreadyAcked => Err(Refusal::StaleLease),
    }
}

/// Decides a release. Of a lease that has already ended it is true already.
pub(crate) fn release(state: &State, claim: &Claim, faults: &impl Faults) -> Result<Decision, Refusal> {
    match claim_status(state, claim, faults)? {
        ClaimStatus::Current(message_ref, Entry { phase: Phase::Leased { .. }, .. }) => {
            Ok(Decision::new(Event::Released { message_ref }, Reply::Done))
        }
        ClaimStatus::Current(..) | ClaimStatus::AlreadyAcked => Ok(Decision::nothing(Reply::Done)),
    }
}
