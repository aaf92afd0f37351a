//! What the broker has done since it was started, counted for whoever watches it. Nothing here decides anything.

use std::collections::BTreeMap;

use crate::record::Event;
use crate::reply::{Refusal, Reply, StoreReply};
use crate::state::State;
use crate::types::{DeadReason, TopicName};

/// How often things have happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records that were appended.
    pub appended: u64,
    /// Records the log had no room for.
    pub refused: u64,
    /// Messages stored by produces.
    pub produced: u64,
    /// Produces answered with an earlier message's message_ref.
    pub deduplicated: u64,
    /// Messages handed out, redeliveries included.
    pub delivered: u64,
    /// Messages finished by an ack.
    pub acked: u64,
    /// Failures reported by workers.
    pub nacked: u64,
    /// Leases that ended in silence.
    pub expired: u64,
    /// Messages given back unharmed.
    pub released: u64,
    /// Leases that were prolonged.
    pub extended: u64,
    /// Dead letters made live again.
    pub redriven: u64,
    /// Messages finished without being delivered, as their identity was done.
    pub skipped: u64,
    /// Steps that were completed.
    pub completed: u64,
    /// How often it was asked whether an effect may be run.
    pub begun: u64,
    /// How often the answer was to run it; reacquired ones included.
    pub executed: u64,
    /// How often the answer was what had come of it before.
    pub replayed: u64,
    /// How often somebody was running it.
    pub in_progress: u64,
    /// How often the request was not the one the key was first used for.
    pub mismatched: u64,
    /// How often a token of the store was not the newest.
    pub stale: u64,
}

/// Dead letters since the start, by the topic they come from and the reason.
pub type DeadLetterCounts = BTreeMap<(TopicName, DeadReason), u64>;

impl Counters {
    /// Counts a record that was appended.
    pub(super) fn count(&mut self, event: &Event) {
        self.appended += 1;
        match event {
            Event::Produced { .. } => self.produced += 1,
            Event::Delivered { .. } => self.delivered += 1,
            Event::Acked { .. } => self.acked += 1,
            Event::Released { .. } => self.released += 1,
            Event::Extended { .. } => self.extended += 1,
            Event::Redriven { .. } => self.redriven += 1,
            Event::Skipped { .. } => self.skipped += 1,
            Event::Completed(step) => {
                self.completed += 1;
                self.acked += 1;
                self.produced += step.stored() as u64;
            }
            _ => {}
        }
    }

    /// Counts what the idempotency store has said.
    pub(super) fn count_store(&mut self, begins: bool, answered: &Result<Reply, Refusal>) {
        self.begun += u64::from(begins);
        match answered {
            Ok(Reply::Store(StoreReply::Execute { .. })) => self.executed += 1,
            Ok(Reply::Store(StoreReply::Replay(_))) => self.replayed += 1,
            Err(Refusal::InProgress { .. }) => self.in_progress += 1,
            Err(Refusal::HashMismatch) => self.mismatched += 1,
            Err(Refusal::StaleLease) => self.stale += 1,
            _ => {}
        }
    }
}

/// Counts a dead letter, and forgets a topic that is gone: what is counted stays bounded by what there is.
pub(super) fn count_dead_letter(counters: &mut DeadLetterCounts, state: &State, event: &Event) {
    match event {
        Event::DeadLettered { message_ref, reason, .. } => {
            let topic = state.topic(message_ref.topic).expect("a message dies in a topic that is there");
            *counters.entry((topic.name().clone(), *reason)).or_default() += 1;
        }
        Event::TopicDeleted { topic } => {
            let name = state.topic(*topic).map(|topic| topic.name().clone());
            counters.retain(|(known, _), _| Some(known) != name.as_ref());
        }
        _ => {}
    }
}
