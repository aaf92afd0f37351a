//! The broker's counters since its start, against a recount of its records and replies.

use std::collections::BTreeMap;

use driftq_core::command::StoreCommand;
use driftq_core::record::Event;
use driftq_core::reply::StoreReply;
use driftq_core::types::{DeadReason, MessageRef, TopicId, TopicName};
use driftq_core::{Command, Counters, DeadLetterCounts, Refusal, Reply};

use super::catalog::{self, sentence};
use super::verdict::Verdict;

/// A recount since the start of the broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterRecount {
    counted: Counters,
    dead: BTreeMap<(TopicId, DeadReason), u64>,
    /// Dead letters of any cause, some of which are expired leases.
    dead_lettered: u64,
}

impl CounterRecount {
    /// A record was written.
    pub(crate) fn recorded(&mut self, event: &Event) {
        let counted = &mut self.counted;
        counted.appended += 1;
        match event {
            Event::Produced { skipped, .. } => {
                counted.produced += 1;
                counted.skipped += skipped.len() as u64;
            }
            Event::Completed(step) => {
                let stored = step.outputs.iter().filter_map(|output| output.stored.as_ref());
                counted.produced += stored.clone().count() as u64;
                counted.skipped += stored.map(|stored| stored.skipped.len() as u64).sum::<u64>();
                counted.completed += 1;
                match step.dead_letter {
                    Some(_) => self.dead_lettered(&step.message_ref, DeadReason::NonRetryable),
                    None => counted.acked += 1,
                }
            }
            Event::Delivered { .. } => counted.delivered += 1,
            Event::Acked { .. } => counted.acked += 1,
            Event::CumulativelyAcked { acks, .. } => counted.acked += acks.len() as u64,
            Event::Released { .. } => counted.released += 1,
            Event::Withdrawn { .. } => counted.withdrawn += 1,
            Event::Relocated(_) => counted.relocated += 1,
            Event::PayloadLost(_) => counted.payloads_lost += 1,
            Event::Extended { .. } => counted.extended += 1,
            Event::Expired { .. } => counted.expired += 1,
            Event::Redriven { .. } => counted.redriven += 1,
            Event::DeadLettered { message_ref, reason, .. } => {
                self.dead_lettered += 1;
                self.dead_lettered(message_ref, *reason);
            }
            Event::EffectDeadLettered(failed) => self.dead_lettered(&failed.message_ref, DeadReason::NonRetryable),
            Event::TopicDeleted { topic } => self.dead.retain(|(of, _), _| of != topic),
            _ => {}
        }
    }

    fn dead_lettered(&mut self, message_ref: &MessageRef, reason: DeadReason) {
        *self.dead.entry((message_ref.topic, reason)).or_default() += 1;
    }

    /// A reply was released.
    pub(crate) fn replied(&mut self, command: &Command, result: &Result<Reply, Refusal>) {
        if let Err(Refusal::LogFailed | Refusal::ShuttingDown) = result {
            return;
        }
        let counted = &mut self.counted;
        match (command, result) {
            (Command::Produce(_), Ok(Reply::Produced(produced))) => {
                counted.deduplicated += u64::from(produced.duplicate);
            }
            (Command::Nack(_), Ok(_)) => counted.nacked += 1,
            (Command::Purge(_), Ok(Reply::Purged { count })) => counted.purged += count,
            (Command::Store(store), result) => {
                counted.begun += u64::from(matches!(**store, StoreCommand::Begin(_)));
                match result {
                    Ok(Reply::Store(StoreReply::Execute { .. })) => counted.executed += 1,
                    Ok(Reply::Store(StoreReply::Replay { .. })) => counted.replayed += 1,
                    Err(Refusal::InProgress { .. }) => counted.in_progress += 1,
                    Err(Refusal::HashMismatch) => counted.mismatched += 1,
                    Err(Refusal::StaleLease) => counted.stale += 1,
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

#[doc = sentence!(counters_match)]
///
/// The counter of refused records is checked with the space of the log.
pub(crate) fn counters_match(
    recount: &CounterRecount,
    (told, dead_told): (Counters, &DeadLetterCounts),
    names: &BTreeMap<TopicId, TopicName>,
) -> Verdict {
    let expired = recount.counted.expired..=recount.counted.expired + recount.dead_lettered;
    let Counters { refused, reclaimed, expired: told_expired, .. } = told;
    let counted = Counters { refused, reclaimed, expired: told_expired, ..recount.counted };
    catalog::COUNTERS_MATCH.holds(counted == told && expired.contains(&told_expired), || {
        format!("{told:?}, counted {counted:?}, {expired:?} expired")
    })?;
    let named =
        recount.dead.iter().filter_map(|((topic, reason), count)| Some(((names.get(topic)?.clone(), *reason), *count)));
    let dead: DeadLetterCounts = named.collect();
    catalog::COUNTERS_MATCH.holds(dead == *dead_told, || format!("dead letters {dead_told:?}, counted {dead:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn counter_that_misses_a_record_or_a_reply_is_a_violation() {
        let mut recount = CounterRecount::default();
        recount.recorded(&Event::Delivered {
            message_ref: MessageRef {
                topic: TopicId(0),
                group: driftq_core::types::GroupId(0),
                partition: driftq_core::types::PartitionId(0),
                position: driftq_core::types::Position(0),
            },
            token: driftq_core::types::LeaseToken { boot: driftq_core::types::Boot(1), counter: 1 },
            owner: driftq_core::types::OwnerName::new("w").expect("valid name"),
            until: driftq_core::types::Timestamp(1),
        });
        let told = Counters { appended: 1, delivered: 1, ..Counters::default() };
        let (none, names) = (DeadLetterCounts::new(), BTreeMap::new());
        holds(counters_match(&recount, (told, &none), &names));
        violates(catalog::COUNTERS_MATCH, counters_match(&recount, (Counters { appended: 2, ..told }, &none), &names));
    }
}
