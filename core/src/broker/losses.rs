//! Payloads that were damaged on disk.

use std::ops::RangeInclusive;

use super::outputs::{Dropped, Leased};
use super::{Broker, LogRefusal, LogSink, SpaceClass};
use crate::faults::Faults;
use crate::record::{Event, PayloadLost};
use crate::reply::Refusal;
use crate::state::Topic;
use crate::types::{Lsn, MessageRef, Now, Text};

/// Records that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The records.
    pub lsns: RangeInclusive<Lsn>,
    /// Where and how they are damaged, for people.
    pub damage: Text,
}

impl<F: Faults> Broker<F> {
    /// Records were found at `now` that cannot be read any more. Their payloads are recorded as lost, and each group
    /// that waits for one of the messages gets a dead letter instead. Where a message is leased, a worker has its
    /// bytes, and the end of the lease decides.
    pub(crate) fn on_damaged(&mut self, now: impl Into<Now>, damaged: Damaged, log: &mut dyn LogSink) {
        if self.failure.is_some() || self.closing {
            return;
        }
        self.now = self.now.max(self.time_at(now.into().mono));
        self.damaged.push_back(damaged);
        self.lose_damaged(log);
    }

    /// Records the payloads of damaged records as lost, and dead-letters the messages whose deliveries were dropped for
    /// it, until the log has no space.
    pub(super) fn lose_damaged(&mut self, log: &mut dyn LogSink) {
        while self.stalled_until.is_none() {
            if let Some(dropped) = self.dropped.pop_front() {
                if self.dead_letter_dropped(&dropped, log).is_err() {
                    self.dropped.push_front(dropped);
                    self.stall();
                }
            } else if let Some(damaged) = self.damaged.pop_front() {
                if self.lose(&damaged, log).is_err() {
                    self.damaged.push_front(damaged);
                    self.stall();
                }
            } else {
                return;
            }
        }
    }

    /// Whether there are losses that are not recorded yet.
    pub(super) fn has_unrecorded_losses(&self) -> bool {
        !self.damaged.is_empty() || !self.dropped.is_empty()
    }

    fn lose(&mut self, damaged: &Damaged, log: &mut dyn LogSink) -> Result<(), LogRefusal> {
        let Damaged { lsns, damage } = damaged;
        for (payload, referrers) in self.state.referrers_within(lsns) {
            let lost = PayloadLost { payload, referrers, damage: damage.clone() };
            self.commit(Event::PayloadLost(Box::new(lost)), SpaceClass::Drain, log)?;
        }
        let state = &self.state;
        let dead_letters = |message_ref: &MessageRef| {
            state.topic(message_ref.topic).is_none_or(|topic: &Topic| !topic.name().is_dead_letter())
        };
        let dropped = self.outputs.lose(lsns, damage, self.appended, dead_letters);
        for dropped in dropped {
            let Leased { message_ref, lease } = &dropped.leased;
            self.index.release_read(message_ref, dropped.decided_at, self.now.after(*lease));
            self.index.not_delivered(dropped.consumer);
            self.dropped.push_back(dropped);
        }
        let recipients = self.outputs.take_lost();
        self.release_filled(recipients);
        Ok(())
    }

    /// A delivery was dropped before it left: if its lease still runs, it ends with a dead letter.
    fn dead_letter_dropped(&mut self, dropped: &Dropped, log: &mut dyn LogSink) -> Result<(), Refusal> {
        let message_ref = &dropped.leased.message_ref;
        let topic = self.state.topic(message_ref.topic).and_then(|topic| topic.partition(message_ref.partition));
        let message = topic.and_then(|partition| partition.message(message_ref.position));
        let is_lost = message.is_some_and(|message| message.lost().is_some());
        let is_leased = self
            .delivery_state(message_ref)
            .is_some_and(|delivery| delivery.token == dropped.token && delivery.leased_until().is_some());
        if !is_lost || !is_leased {
            return Ok(());
        }
        self.index.leases.end_undelivered(*message_ref);
        let ended = self.exceed_deadline(message_ref, log);
        self.index.leases.end_done();
        ended
    }
}
