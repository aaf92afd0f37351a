//! A worker's word about a message: whether it has the right to give it, and what follows.

use std::sync::Arc;

use super::failure::{Outcome, after_failure};
use super::redrive::dead_letter;
use super::{Decision, topic};
use crate::command::{Claim, TokenClaim};
use crate::faults::{Fault, Faults};
use crate::record::{Event, Place};
use crate::reply::{Refusal, Reply};
use crate::state::State;
use crate::state::entry::{Entry, Phase};
use crate::state::topic::Topic;
use crate::types::{Limits, Millis, Text, Timestamp};

/// What a claim turns out to be about.
#[derive(Debug)]
pub(crate) enum Standing<'a> {
    /// A message this group is done with; whatever is said about it comes too late to matter.
    Done,
    /// The newest delivery of an unfinished message, and the caller is who it was made to.
    Newest(Place, &'a Entry),
}

/// Finds what a claim is about and whether it holds.
pub(crate) fn standing<'a>(state: &'a State, claim: &Claim, faults: &impl Faults) -> Result<Standing<'a>, Refusal> {
    let topic = topic(state, &claim.topic)?;
    let group = topic.group_named(&claim.group).ok_or_else(|| Refusal::UnknownGroup(claim.group.clone()))?;
    let progress = group.progress(claim.partition).ok_or_else(|| Refusal::PartitionOutOfRange {
        partition: claim.partition,
        partitions: topic.partition_count(),
    })?;
    let Some((position, entry)) = progress.find(claim.offset) else {
        return match is_done(topic, claim, progress.done()) {
            true => Ok(Standing::Done),
            false if claim.token == TokenClaim::Absent => Err(Refusal::NotOwner),
            false => Err(Refusal::StaleLease),
        };
    };
    let token_holds = match claim.token {
        TokenClaim::Absent => true,
        TokenClaim::Unreadable => false,
        TokenClaim::Shown(token) => token == entry.token,
    };
    if !token_holds && !faults.planted(Fault::SkipTokenCheck) {
        return Err(Refusal::StaleLease);
    }
    if claim.owner != entry.owner {
        return Err(Refusal::NotOwner);
    }
    let place = Place { topic: topic.id(), group: group.id(), partition: claim.partition, position };
    Ok(Standing::Newest(place, entry))
}

/// Whether the group is done with a message it has no history of.
fn is_done(topic: &Topic, claim: &Claim, done: &crate::state::DoneSet) -> bool {
    if claim.offset >= topic.next_offset() {
        return false;
    }
    let here = topic.partition(claim.partition).and_then(|partition| partition.find(claim.offset));
    if let Some((position, _)) = here {
        return done.contains(position);
    }
    // Not kept here. A message kept in another partition is a stranger; one kept nowhere was done in every group. Which partition
    // an offset that is gone was in is not remembered, so each is asked: late words are rare, and to remember would cost
    // every message.
    topic.partitions().all(|(_, partition)| partition.find(claim.offset).is_none())
}

/// Decides an ack.
pub(crate) fn ack(state: &State, claim: &Claim, faults: &impl Faults) -> Result<Decision, Refusal> {
    match standing(state, claim, faults)? {
        Standing::Done => Ok(Decision::nothing(Reply::Done)),
        Standing::Newest(..) if faults.planted(Fault::AckNotKept) => Ok(Decision::nothing(Reply::Done)),
        Standing::Newest(place, _) => Ok(Decision::new(Event::Acked { place }, Reply::Done)),
    }
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
    let Standing::Newest(place, entry) = standing(state, claim, faults)? else {
        return Ok(Decision::nothing(Reply::Done));
    };
    let given = (!reason.is_empty()).then(|| Arc::<str>::from(&**reason));
    if let Phase::Queued { .. } = entry.phase {
        // The failure was counted when the lease ended.
        return Ok(match given {
            Some(reason) if *reason != *entry.last_error.as_str() => {
                Decision::new(Event::ReasonNoted { place, reason }, Reply::Done)
            }
            _ => Decision::nothing(Reply::Done),
        });
    }
    let event = match after_failure(state, &place, entry, now, delay, faults) {
        Outcome::Again { not_before } => Event::Nacked { place, reason: given, not_before },
        Outcome::Dead(dead) => {
            let last_error = given.as_deref().unwrap_or(entry.last_error.as_str()).into();
            dead_letter(state, &place, dead, last_error)
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
    match standing(state, claim, faults)? {
        Standing::Newest(place, Entry { phase: Phase::Leased { until }, .. }) if *until > now => {
            let until = now.after(limits.lease(lease));
            Ok(Decision::new(Event::Extended { place, until }, Reply::Extended { lease_until: until }))
        }
        Standing::Newest(..) if faults.planted(Fault::ExtendAfterExpiry) => {
            Ok(Decision::nothing(Reply::Extended { lease_until: now.after(limits.lease(lease)) }))
        }
        Standing::Newest(..) | Standing::Done => Err(Refusal::StaleLease),
    }
}

/// Decides a release. Of a lease that has already ended it is true already.
pub(crate) fn release(state: &State, claim: &Claim, faults: &impl Faults) -> Result<Decision, Refusal> {
    match standing(state, claim, faults)? {
        Standing::Newest(place, Entry { phase: Phase::Leased { .. }, .. }) => {
            Ok(Decision::new(Event::Released { place }, Reply::Done))
        }
        Standing::Newest(..) | Standing::Done => Ok(Decision::nothing(Reply::Done)),
    }
}
