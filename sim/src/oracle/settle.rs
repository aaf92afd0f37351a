//! A worker's word about a message, and what becomes of one that failed.

use std::sync::Arc;

use driftq_core::command::{Claim, TokenClaim};
use driftq_core::types::{DeadReason, GroupName, Millis, Offset, PartitionId, RetryPolicy, Timestamp, TopicName};
use driftq_core::{Refusal, Reply};

use super::model::{EndOfLog, Model, Stop};
use super::topic::{Begun, FailureText, Phase, Progress, Topic};

/// A wait never grows longer than this where the policy does not say.
const A_DAY: u64 = 24 * 60 * 60 * 1_000;

/// A message of a group, by the indices of topic, group and message.
pub(super) type Place = (usize, usize, usize);

impl Model {
    /// The unfinished message a claim is rightly about; `None` if it is done already.
    pub(super) fn claimed(&self, claim: &Claim) -> Result<Option<Place>, Refusal> {
        let place = self.delivered((&claim.topic, &claim.group), (claim.partition, claim.offset), claim.token)?;
        match place {
            Some((t, g, m)) if matches!(&self.topics[t].groups[g].progress[m], Progress::Begun(begun) if begun.owner != claim.owner) => {
                Err(Refusal::NotOwner)
            }
            place => Ok(place),
        }
    }

    /// The unfinished message that was delivered with this token; `None` if it is done already.
    pub(super) fn delivered(
        &self,
        (topic, group): (&TopicName, &GroupName),
        (partition, offset): (PartitionId, Offset),
        token: TokenClaim,
    ) -> Result<Option<Place>, Refusal> {
        let (t, g) = self.group(topic, group)?;
        let topic = &self.topics[t];
        topic.has_partition(partition)?;
        let stranger = if token == TokenClaim::Absent { Refusal::NotOwner } else { Refusal::StaleLease };
        let Some(m) = topic.message(offset) else {
            // Every offset below the next was given to a message; one that is not kept was done in every group.
            return if offset < topic.next_offset { Ok(None) } else { Err(stranger) };
        };
        if topic.messages[m].partition != partition {
            return Err(stranger);
        }
        match &topic.groups[g].progress[m] {
            Progress::Done => Ok(None),
            Progress::Ready => Err(stranger),
            Progress::Begun(begun) => match token {
                TokenClaim::Shown(token) if token != begun.token => Err(Refusal::StaleLease),
                TokenClaim::Unreadable => Err(Refusal::StaleLease),
                TokenClaim::Absent | TokenClaim::Shown(_) => Ok(Some((t, g, m))),
            },
        }
    }

    fn begun(&mut self, (t, g, m): Place) -> &mut Begun {
        match &mut self.topics[t].groups[g].progress[m] {
            Progress::Begun(begun) => begun,
            Progress::Ready | Progress::Done => unreachable!("a claim is about what was begun"),
        }
    }

    pub(super) fn ack(&mut self, claim: &Claim) -> Result<Reply, Stop> {
        if let Some((t, g, m)) = self.claimed(claim)? {
            self.record()?;
            self.commit((t, g, m));
            self.finish(t, g, m);
        }
        Ok(Reply::Done)
    }

    /// The group is done with the message.
    pub(super) fn finish(&mut self, topic: usize, group: usize, message: usize) {
        self.topics[topic].groups[group].progress[message] = Progress::Done;
        self.tidy(topic);
    }

    /// Messages of the topic may be done in every group now.
    pub(super) fn tidy(&mut self, topic: usize) {
        self.topics[topic].tidy();
        if self.topics[topic].retention.age.is_some() {
            self.expect_at(Timestamp(0));
        }
    }

    pub(super) fn nack(&mut self, claim: &Claim, reason: &str, delay: Option<Millis>) -> Result<Reply, Stop> {
        let max = self.limits.error_text_bytes_max;
        if reason.len() > max {
            return Err(Refusal::TooLarge { what: "reason", len: reason.len() as u64, max: max as u64 }.into());
        }
        let Some(place) = self.claimed(claim)? else { return Ok(Reply::Done) };
        let begun = self.begun(place);
        let known = begun.error.clone();
        let running = matches!(begun.phase, Phase::Leased { .. });
        let error = if reason.is_empty() { known.clone() } else { FailureText::Said(Arc::from(reason)) };
        if running {
            self.failed(place.0, place.1, place.2, error, delay)?;
        } else if error.as_str() != known.as_str() {
            // The failure itself was counted when the lease ended.
            self.record()?;
            self.begun(place).error = error;
        }
        Ok(Reply::Done)
    }

    pub(super) fn extend(&mut self, claim: &Claim, lease: Option<Millis>) -> Result<Reply, Stop> {
        let place = self.claimed(claim)?.ok_or(Refusal::StaleLease)?;
        let end = self.now.after(self.lease(lease));
        let now = self.now;
        if !matches!(self.begun(place).phase, Phase::Leased { until, .. } if until > now) {
            return Err(Refusal::StaleLease.into());
        }
        self.record()?;
        if let Phase::Leased { until, .. } = &mut self.begun(place).phase {
            *until = end;
        }
        self.expect_at(end);
        Ok(Reply::Extended { lease_until: end })
    }

    pub(super) fn release(&mut self, claim: &Claim) -> Result<Reply, Stop> {
        if let Some(place) = self.claimed(claim)?
            && let Phase::Leased { .. } = self.begun(place).phase
        {
            self.give_back(place)?;
        }
        Ok(Reply::Done)
    }

    /// A message goes back unharmed.
    pub(super) fn give_back(&mut self, place: Place) -> Result<(), EndOfLog> {
        self.record()?;
        self.pin(place);
        let now = self.now;
        self.begun(place).phase = Phase::Queued { not_before: now };
        Ok(())
    }

    /// A delivery failed, by word or by silence: `error` is what is now known to be wrong.
    pub(super) fn failed(
        &mut self,
        t: usize,
        g: usize,
        m: usize,
        error: FailureText,
        delay: Option<Millis>,
    ) -> Result<(), EndOfLog> {
        let now = self.now;
        let begun = self.begun((t, g, m)).clone();
        let topic = &self.topics[t];
        let envelope = &topic.messages[m].content.metadata.envelope;
        let policy = envelope.retry_policy;
        if !topic.is_dead_letters() {
            if policy.is_some_and(|policy| policy.max_attempts > 0 && begun.attempts >= policy.max_attempts) {
                return self.dead_letter_message(t, g, m, DeadReason::MaxAttempts, error.as_str());
            }
            if envelope.deadline.as_ref().is_some_and(|deadline| deadline.at <= now) {
                return self.dead_letter_message(t, g, m, DeadReason::DeadlineExceeded, error.as_str());
            }
        }
        let failures = begun.failures.saturating_add(1);
        let wait = match (delay, policy) {
            (Some(delay), _) => delay,
            (None, None) => Millis(0),
            (None, Some(policy)) => backoff(&policy, failures, spread(topic, g, m, begun.attempts)),
        };
        self.record()?;
        self.pin((t, g, m));
        let begun = self.begun((t, g, m));
        begun.failures = failures;
        begun.error = error;
        begun.phase = Phase::Queued { not_before: now.after(wait) };
        Ok(())
    }
}

/// The wait doubles with every failure up to the longest allowed; its upper half is spread.
fn backoff(policy: &RetryPolicy, failures: u32, spread: u64) -> Millis {
    let longest = if policy.max_backoff == Millis(0) { A_DAY } else { policy.max_backoff.0 };
    let mut wait = u128::from(policy.backoff.0);
    for _ in 1..failures {
        wait *= 2;
        if wait == 0 || wait > u128::from(longest) {
            break;
        }
    }
    let wait = u64::try_from(wait).unwrap_or(u64::MAX).min(longest);
    let half = wait / 2 + wait % 2;
    let chosen = half + spread % (wait - half + 1);
    // However it is spread, this is what was promised.
    assert!((half..=wait).contains(&chosen), "a wait of {chosen} is not between {half} and {wait}");
    Millis(chosen)
}

/// FNV-1a of 64 bits over what names this attempt: topic, group, partition, offset, attempt, each ended by 0xff.
fn spread(topic: &Topic, group: usize, message: usize, attempts: u32) -> u64 {
    let message = &topic.messages[message];
    let mut hash = 14_695_981_039_346_656_037_u64;
    let mut mix = |part: &[u8]| {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        }
    };
    mix(topic.name.as_str().as_bytes());
    mix(topic.groups[group].name.as_str().as_bytes());
    mix(&message.partition.0.to_le_bytes());
    mix(&message.offset.0.to_le_bytes());
    mix(&attempts.to_le_bytes());
    hash ^ (hash >> 31)
}
