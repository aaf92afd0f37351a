//! Ack, nack, extend, release and the end of a lease, and what follows a failure.

use std::sync::Arc;

use driftq_core::command::{AckCumulative, Claim, ExpireLease, Retry, TokenClaim};
use driftq_core::types::{
    ConsumerId, DeadReason, GroupName, Millis, Offset, PartitionId, RetryPolicy, Timestamp, TopicName,
};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::lease::BegunBy;
use super::model::{MessageIndex, Model, Stop, Unwritten};
use super::topic::{Attempted, LastErrorText, Phase, Progress, Topic};

/// The longest backoff where the policy sets none.
const DEFAULT_MAX_BACKOFF_MS: u64 = 24 * 60 * 60 * 1_000;

/// How a delivery failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Nack {
        delay: Option<Millis>,
    },
    /// Whether it counts towards the attempts of the message.
    Expiry {
        counts: bool,
    },
}

impl Model {
    /// The unacked message of a valid claim; `None` if it is acked.
    pub(super) fn claimed_message(&self, claim: &Claim) -> Result<Option<MessageIndex>, Refusal> {
        let index = self.delivered((&claim.topic, &claim.group), (claim.partition, claim.offset), claim.token)?;
        let owner = index.and_then(|(t, g, m)| match &self.topics[t].groups[g].progress[m] {
            Progress::Attempted(attempted) => Some(&attempted.owner),
            _ => None,
        });
        if owner.is_some_and(|owner| *owner != claim.owner) { Err(Refusal::NotOwner) } else { Ok(index) }
    }

    /// The unacked message that was delivered with this token; `None` if it is acked.
    pub(super) fn delivered(
        &self,
        (topic, group): (&TopicName, &GroupName),
        (partition, offset): (PartitionId, Offset),
        token: TokenClaim,
    ) -> Result<Option<MessageIndex>, Refusal> {
        let (t, g) = self.group(topic, group)?;
        let topic = &self.topics[t];
        topic.has_partition(partition)?;
        let refusal = if token == TokenClaim::Absent { Refusal::NotOwner } else { Refusal::StaleLease };
        let Some(m) = topic.message(offset) else {
            // Every offset below the next was assigned; a message that is not stored was acked by every group.
            return match offset < topic.next_offset {
                true => self.check_winner((topic.id, topic.groups[g].id, partition, offset), token).map(|()| None),
                false => Err(refusal),
            };
        };
        if topic.messages[m].partition != partition {
            return Err(refusal);
        }
        match &topic.groups[g].progress[m] {
            Progress::Acked => {
                self.check_winner((topic.id, topic.groups[g].id, partition, offset), token).map(|()| None)
            }
            Progress::Ready => Err(refusal),
            Progress::Attempted(attempted) => match token {
                TokenClaim::Shown(token) if token != attempted.token => Err(Refusal::StaleLease),
                TokenClaim::Unreadable => Err(Refusal::StaleLease),
                TokenClaim::Absent | TokenClaim::Shown(_) => Ok(Some((t, g, m))),
            },
        }
    }

    pub(super) fn attempted_mut(&mut self, (t, g, m): MessageIndex) -> &mut Attempted {
        match &mut self.topics[t].groups[g].progress[m] {
            Progress::Attempted(attempted) => attempted,
            Progress::Ready | Progress::Acked => unreachable!("a valid claim refers to a delivery"),
        }
    }

    pub(super) fn ack(&mut self, claim: &Claim) -> Result<Reply, Stop> {
        if let Some(index) = self.claimed_message(claim)? {
            self.record(SpaceClass::Drain)?;
            self.ack_one(index);
        }
        Ok(Reply::Success)
    }

    fn ack_one(&mut self, (t, g, m): MessageIndex) {
        self.acked_by_stream((t, g, m));
        self.commit((t, g, m));
        if let Some(token) = self.contested((t, g, m)) {
            self.remember_winner((t, g, m), Some(token));
        }
        self.topics[t].groups[g].has_acked = true;
        self.mark_acked(t, g, m);
    }

    /// The stream that the newest delivery went to, if its answer still counts for it, and whether the lease runs.
    fn stream_of(&mut self, index: MessageIndex) -> Option<(ConsumerId, bool)> {
        match self.attempted_mut(index).phase {
            Phase::Leased { holder, .. } => Some((holder, true)),
            Phase::Queued { expired_on, .. } => expired_on.map(|stream| (stream, false)),
        }
    }

    /// The stream of a delivery answered it. `ends` is whether a running lease ends by it.
    pub(super) fn answered_by_stream(&mut self, index: MessageIndex, ends: bool) {
        let message = self.group_message(index);
        if let Some((stream, is_leased)) = self.stream_of(index) {
            self.note_answer(stream, (is_leased && ends).then_some(message));
        }
    }

    pub(super) fn acked_by_stream(&mut self, index: MessageIndex) {
        self.answered_by_stream(index, true);
        let (now, stream) = (self.now, self.stream_of(index));
        if let Some(stream) = self.streams.iter_mut().find(|known| Some(known.id) == stream.map(|(id, _)| id)) {
            stream.acked(now);
        }
    }

    /// Marks the message as acked in the group.
    pub(super) fn mark_acked(&mut self, topic: usize, group: usize, message: usize) {
        let partition = self.topics[topic].messages[message].partition;
        self.topics[topic].groups[group].progress[message] = Progress::Acked;
        self.topics[topic].reclaim(std::iter::once(partition));
        self.expect_at(Timestamp(0));
    }

    /// Messages of all partitions of the topic may now be acked by every group.
    pub(super) fn reclaim(&mut self, topic: usize) {
        let partitions = self.topics[topic].partitions();
        self.topics[topic].reclaim((0..partitions).map(PartitionId));
        self.expect_at(Timestamp(0));
    }

    /// Acks whatever went to the owner last, up to the offset, in one record.
    pub(super) fn ack_cumulative(&mut self, request: &AckCumulative) -> Result<Reply, Stop> {
        let (t, g) = self.group(&request.topic, &request.group)?;
        self.topics[t].has_partition(request.partition)?;
        let topic = &self.topics[t];
        let owner_of = |m: &usize| {
            let message = &topic.messages[*m];
            match &topic.groups[g].progress[*m] {
                Progress::Attempted(attempted) => Some(&attempted.owner)
                    .filter(|_| message.partition == request.partition && message.offset <= request.offset),
                Progress::Ready | Progress::Acked => None,
            }
        };
        let all = 0..topic.messages.len();
        let max = self.limits.work.acked_per_command;
        if all.clone().filter_map(|m| owner_of(&m)).count() > max {
            let (len, max) = (max as u64 + 1, max as u64);
            return Err(Refusal::TooMany { what: "delivered messages at or below the offset", len, max }.into());
        }
        let is_acked = |m: &usize| owner_of(m) == Some(&request.owner);
        let offsets: Vec<_> = all.filter(is_acked).map(|m| topic.messages[m].offset).collect();
        if offsets.is_empty() {
            return Ok(Reply::Success);
        }
        self.record(SpaceClass::Drain)?;
        let planned = self.sweeps.clone();
        for offset in offsets {
            // An ack before may have removed messages.
            let m = self.topics[t].message(offset).expect("an unacked message is stored");
            self.ack_one((t, g, m));
        }
        // Sweeps follow from the whole record, not from each of its acks.
        let mut changed = std::mem::replace(&mut self.sweeps, planned);
        changed.retain(|sweep| !self.sweeps.contains(sweep));
        changed.into_iter().for_each(|sweep| self.plan_sweep(sweep.what));
        Ok(Reply::Success)
    }

    /// Ends a running lease as if its time had come; a delivery that has not left is taken back.
    pub(super) fn expire(&mut self, request: &ExpireLease) -> Result<Reply, Stop> {
        let message = (request.partition, request.offset);
        let found = match self.delivered((&request.topic, &request.group), message, TokenClaim::Absent) {
            Ok(found) => found,
            Err(Refusal::NotOwner) => None,
            Err(refusal) => return Err(refusal.into()),
        };
        let leased = found.filter(|index| matches!(self.attempted_mut(*index).phase, Phase::Leased { .. }));
        let index = leased.ok_or(Refusal::NotLeased)?;
        match self.unreleased_to(index).is_some() {
            true => self.withdraw_unreleased_delivery(index)?,
            false => self.lease_expired(index.0, index.1, index.2)?,
        }
        Ok(Reply::Success)
    }

    pub(super) fn nack(&mut self, claim: &Claim, reason: &str, retry: Retry) -> Result<Reply, Stop> {
        let max = self.limits.error_text_bytes_max;
        if reason.len() > max {
            return Err(Refusal::TooLarge { what: "reason", len: reason.len() as u64, max: max as u64 }.into());
        }
        let delay = if let Retry::After(delay) = retry { Some(delay) } else { None };
        self.check_delay(delay.unwrap_or_default())?;
        let Some(index) = self.claimed_message(claim)? else { return Ok(Reply::Success) };
        let attempted = self.attempted_mut(index);
        let known = attempted.error.clone();
        let is_leased = matches!(attempted.phase, Phase::Leased { .. });
        let error = if reason.is_empty() { known.clone() } else { LastErrorText::Reason(Arc::from(reason)) };
        if retry == Retry::Never {
            self.check_dead_letter_source(index)?;
            self.answered_by_stream(index, true);
            let (t, g, m) = index;
            self.dead_letter_message(t, g, m, DeadReason::NonRetryable, error.as_str())?;
            return Ok(Reply::Success);
        }
        self.answered_by_stream(index, true);
        if is_leased {
            self.failed(index.0, index.1, index.2, error, Failure::Nack { delay })?;
        } else if error.as_str() != known.as_str() {
            // The failure was counted when the lease expired.
            self.record(SpaceClass::Drain)?;
            self.attempted_mut(index).error = error;
        }
        Ok(Reply::Success)
    }

    pub(super) fn extend(&mut self, claim: &Claim, lease: Option<Millis>) -> Result<Reply, Stop> {
        let index = self.claimed_message(claim)?.ok_or(Refusal::StaleLease)?;
        let lease = self.lease(lease);
        let end = self.now.after(lease);
        let now = self.now;
        if !matches!(self.attempted_mut(index).phase, Phase::Leased { runs, .. } if !runs.has_ended(now)) {
            return Err(Refusal::StaleLease.into());
        }
        self.record(SpaceClass::Churn)?;
        let extended = self.runs_from_now(lease, BegunBy::Extension);
        if let Phase::Leased { until, runs, .. } = &mut self.attempted_mut(index).phase {
            (*until, *runs) = (end, extended);
        }
        self.answered_by_stream(index, false);
        Ok(Reply::Extended { lease_until: end })
    }

    pub(super) fn release(&mut self, claim: &Claim) -> Result<Reply, Stop> {
        let Some(index) = self.claimed_message(claim)? else { return Ok(Reply::Success) };
        let is_leased = matches!(self.attempted_mut(index).phase, Phase::Leased { .. });
        self.answered_by_stream(index, true);
        if is_leased {
            self.requeue(index)?;
        }
        Ok(Reply::Success)
    }

    /// Requeues a message without counting a failure.
    pub(super) fn requeue(&mut self, index: MessageIndex) -> Result<(), Unwritten> {
        self.record(SpaceClass::Drain)?;
        self.pin(index);
        let now = self.now;
        self.attempted_mut(index).phase = Phase::Queued { not_before: now, is_waiting: false, expired_on: None };
        self.set_deadline_timer(index);
        Ok(())
    }

    /// A delivery failed by nack or expiry; `error` is the new failure reason.
    pub(super) fn failed(
        &mut self,
        t: usize,
        g: usize,
        m: usize,
        error: LastErrorText,
        failure: Failure,
    ) -> Result<(), Unwritten> {
        let now = self.now;
        let attempted = self.attempted_mut((t, g, m)).clone();
        let (delay, counts, expired_on) = match (failure, attempted.phase) {
            (Failure::Expiry { counts }, Phase::Leased { holder, .. }) => (None, counts, Some(holder)),
            (Failure::Expiry { counts }, Phase::Queued { .. }) => (None, counts, None),
            (Failure::Nack { delay }, _) => (delay, true, None),
        };
        let topic = &self.topics[t];
        let envelope = &topic.messages[m].content.metadata.envelope;
        let policy = envelope.retry_policy;
        if !topic.is_dlq() {
            if counts
                && policy.is_some_and(|policy| policy.max_attempts > 0 && attempted.attempts >= policy.max_attempts)
            {
                return self.dead_letter_message(t, g, m, DeadReason::MaxAttempts, error.as_str());
            }
            if topic.messages[m].deadline().is_some_and(|deadline| deadline <= self.wall()) {
                let (reason, _) = topic.messages[m].reason_past_deadline(&error);
                return self.dead_letter_message(t, g, m, reason, error.as_str());
            }
        }
        let failures = attempted.failures.saturating_add(1);
        let wait = match (delay, policy) {
            (Some(delay), _) => delay,
            (None, None) => Millis(0),
            (None, Some(policy)) => backoff(&policy, failures, jitter(topic, g, m, attempted.attempts)),
        };
        // An expiry changes a lease; what a worker reports drains the broker.
        let class = if let Failure::Expiry { .. } = failure { SpaceClass::Churn } else { SpaceClass::Drain };
        self.record(class)?;
        self.pin((t, g, m));
        let attempted = self.attempted_mut((t, g, m));
        attempted.failures = failures;
        attempted.error = error;
        let not_before = now.after(wait);
        attempted.phase = Phase::Queued { not_before, is_waiting: not_before > now, expired_on };
        self.expect_at(not_before);
        self.set_deadline_timer((t, g, m));
        Ok(())
    }
}

/// Doubles with every failure up to the maximum; the upper half is jittered.
fn backoff(policy: &RetryPolicy, failures: u32, jitter: u64) -> Millis {
    let longest = if policy.max_backoff == Millis(0) { DEFAULT_MAX_BACKOFF_MS } else { policy.max_backoff.0 };
    let mut wait = u128::from(policy.backoff.0);
    for _ in 1..failures {
        wait *= 2;
        if wait == 0 || wait > u128::from(longest) {
            break;
        }
    }
    let wait = u64::try_from(wait).unwrap_or(u64::MAX).min(longest);
    let half = wait / 2 + wait % 2;
    let chosen = half + jitter % (wait - half + 1);
    // The bounds that the specification guarantees.
    assert!((half..=wait).contains(&chosen), "a backoff of {chosen} is not between {half} and {wait}");
    Millis(chosen)
}

/// The jitter: FNV-1a (64 bit) over topic, group, partition, offset and attempt, each terminated by 0xff.
fn jitter(topic: &Topic, group: usize, message: usize, attempts: u32) -> u64 {
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
