//! Counters since the start, for metrics. They affect no decision.

use std::collections::BTreeMap;

use crate::record::Event;
use crate::reply::{Refusal, Reply, StoreReply};
use crate::state::State;
use crate::types::{DeadReason, MessageRef, TopicName};

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Appended records.
    pub appended: u64,
    /// Payloads written again, so that segments can be removed.
    pub relocated: u64,
    /// Payloads that were damaged on disk.
    pub payloads_lost: u64,
    /// Records refused by the log.
    pub refused: u64,
    /// Messages stored by produce and complete.
    pub produced: u64,
    /// Records that removed retained messages because the disk was full.
    pub reclaimed: u64,
    /// Produces that were duplicates.
    pub deduplicated: u64,
    /// Deliveries, redeliveries included.
    pub delivered: u64,
    /// Messages acked by ack and complete.
    pub acked: u64,
    /// Nacks.
    pub nacked: u64,
    /// Leases that expired without ack, nack or extend.
    pub expired: u64,
    /// Released messages.
    pub released: u64,
    /// Deliveries withdrawn before they reached their consumer.
    pub withdrawn: u64,
    /// Extended leases.
    pub extended: u64,
    /// Redriven dead letters.
    pub redriven: u64,
    /// Messages removed by purges.
    pub purged: u64,
    /// Messages acked without delivery, since their identity was committed; once per group.
    pub skipped: u64,
    /// Completed steps.
    pub completed: u64,
    /// Begins of effects.
    pub begun: u64,
    /// Grants of effects, by begin and reacquire.
    pub executed: u64,
    /// Begins answered with the stored outcome.
    pub replayed: u64,
    /// Begins refused because the effect was leased.
    pub in_progress: u64,
    /// Begins refused because of another request hash.
    pub mismatched: u64,
    /// Commands of the idempotency store refused because of a stale token.
    pub stale: u64,
}

/// Dead letters since the start, by source topic and reason.
pub type DeadLetterCounts = BTreeMap<(TopicName, DeadReason), u64>;

impl Counters {
    /// Counts an appended record.
    #[inline]
    pub(crate) fn count(&mut self, event: &Event) {
        self.appended += 1;
        match event {
            Event::Produced { skipped, .. } => {
                self.produced += 1;
                self.skipped += skipped.len() as u64;
            }
            Event::Delivered { .. } => self.delivered += 1,
            Event::Acked { .. } => self.acked += 1,
            Event::CumulativelyAcked { acks, .. } => self.acked += acks.len() as u64,
            Event::Released { .. } => self.released += 1,
            Event::Withdrawn { .. } => self.withdrawn += 1,
            Event::Extended { .. } => self.extended += 1,
            Event::Redriven { .. } => self.redriven += 1,
            Event::Relocated(_) => self.relocated += 1,
            Event::PayloadLost(_) => self.payloads_lost += 1,
            Event::Completed(step) => {
                self.completed += 1;
                self.acked += u64::from(step.dead_letter.is_none());
                self.produced += step.stored() as u64;
                self.skipped += step.skips();
            }
            _ => {}
        }
    }

    /// Counts the result of a command of the idempotency store.
    pub(super) fn count_store(&mut self, is_begin: bool, result: &Result<Reply, Refusal>) {
        self.begun += u64::from(is_begin);
        match result {
            Ok(Reply::Store(StoreReply::Execute { .. })) => self.executed += 1,
            Ok(Reply::Store(StoreReply::Replay { .. })) => self.replayed += 1,
            Err(Refusal::InProgress { .. }) => self.in_progress += 1,
            Err(Refusal::HashMismatch) => self.mismatched += 1,
            Err(Refusal::StaleLease) => self.stale += 1,
            _ => {}
        }
    }
}

/// Counts a dead letter. Removes the counts of a deleted topic, so that they stay bounded.
#[inline]
pub(super) fn count_dead_letter(counters: &mut DeadLetterCounts, state: &State, event: &Event) {
    let mut count = |message_ref: &MessageRef, reason| {
        let topic = state.topic(message_ref.topic).expect("the topic of a message exists");
        *counters.entry((topic.name().clone(), reason)).or_default() += 1;
    };
    match event {
        Event::DeadLettered { message_ref, reason, .. } => count(message_ref, *reason),
        Event::EffectDeadLettered(failed) => count(&failed.message_ref, DeadReason::NonRetryable),
        Event::Completed(step) if step.dead_letter.is_some() => count(&step.message_ref, DeadReason::NonRetryable),
        Event::TopicDeleted { topic } => {
            let name = state.topic(*topic).map(|topic| topic.name().clone());
            counters.retain(|(known, _), _| Some(known) != name.as_ref());
        }
        _ => {}
    }
}
