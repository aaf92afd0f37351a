//! What happens because time passes: leases end, retries and delayed messages come due, old things go.

use super::{Broker, LogSink, SpaceClass};
use crate::decide::dead_letter::dead_letter;
use crate::decide::failure::{FailureVerdict, after_failure};
use crate::faults::Faults;
use crate::index::{Sweep, Timer};
use crate::record::Event;
use crate::reply::Refusal;
use crate::types::{MessageRef, PartitionId, Timestamp, TopicId};

/// How many timers one call handles. The rest follow in the next, which is asked for at once.
const TIMERS_PER_CALL: usize = 1_024;

/// How much of what a sweep lets go of counts as one timer.
const SWEPT_PER_TIMER: u64 = 4;

/// How many produce identities, effects or done messages one record lets go of.
const SWEPT_PER_RECORD: u64 = 1_024;

impl<F: Faults> Broker<F> {
    /// Does what is due now.
    pub(super) fn run_due(&mut self, log: &mut impl LogSink) {
        let mut handled = 0;
        while handled < TIMERS_PER_CALL {
            if self.stalled_until.is_some() {
                return;
            }
            let done = if let Some((at, timer)) = self.index.timers.due(self.now) {
                handled += 1;
                self.fire(at, timer, log)
            } else if let Some(sweep) = self.index.timers.take_due_sweep(self.now) {
                let swept = self.sweep(&sweep, log);
                handled += 1 + swept.as_ref().map_or(0, |count| count / SWEPT_PER_TIMER) as usize;
                swept.map(drop)
            } else {
                return;
            };
            if done.is_err() {
                self.stall();
            }
        }
    }

    fn fire(&mut self, at: Timestamp, timer: Timer, log: &mut impl LogSink) -> Result<(), Refusal> {
        match timer {
            Timer::Lease(message_ref) => self.expire(&message_ref, log),
            Timer::Retry(message_ref) => {
                self.index.timers.cancel(at, timer);
                self.index.retry(&self.state, &message_ref);
                Ok(())
            }
            Timer::Mature(topic, partition, position) => {
                self.index.timers.cancel(at, timer);
                self.index.mature(topic, partition, position);
                Ok(())
            }
            Timer::Retention(topic, partition) => self.expire_retained(topic, partition, log),
        }
    }

    /// A lease has ended without word from its worker.
    fn expire(&mut self, message_ref: &MessageRef, log: &mut impl LogSink) -> Result<(), Refusal> {
        let topic = self.state.topic(message_ref.topic).expect("an timer goes with its topic");
        let progress = topic.group(message_ref.group).and_then(|group| group.progress(message_ref.partition));
        let delivery = progress
            .and_then(|progress| progress.delivery(message_ref.position))
            .expect("an timer goes with its lease");
        let done = match after_failure(&self.state, message_ref, delivery, self.now, None) {
            FailureVerdict::Again { not_before } => {
                self.commit_for(Event::Expired { message_ref: *message_ref, not_before }, SpaceClass::Churn, log)
            }
            FailureVerdict::Dead(reason) => {
                let last_error = delivery.last_error.clone().after_expiry();
                let event = dead_letter(&self.state, message_ref, reason, last_error.as_str().into());
                self.commit_for(event, SpaceClass::Drain, log)
            }
        };
        done.inspect(|()| self.counters.expired += 1)
    }

    /// Done messages have grown too old to keep.
    fn expire_retained(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
        log: &mut impl LogSink,
    ) -> Result<(), Refusal> {
        let durable = self.state.topic(topic).expect("an timer goes with its topic");
        let messages = durable.partition(partition).expect("an timer names a partition");
        let age = durable.retention().age.expect("an timer is set where there is an age");
        let too_old = |position: &_| {
            messages.message(*position).is_some_and(|message| message.produced_at.after(age) <= self.now)
        };
        let through = messages.retained().take_while(too_old).take(SWEPT_PER_RECORD as usize).last();
        let through = through.expect("the timer is set to the oldest");
        self.commit_for(Event::RetentionExpired { topic, partition, through }, SpaceClass::Drain, log)
    }

    /// Lets go of what time lets go of, and says of how much.
    fn sweep(&mut self, sweep: &Sweep, log: &mut impl LogSink) -> Result<u64, Refusal> {
        let (now, max) = (self.now, SWEPT_PER_RECORD);
        let (count, event) = match sweep {
            Sweep::Dedupe(scope) => {
                let count = self.state.dedupe(scope).map_or(0, |table| table.expired(now, max));
                (count, Event::DedupeExpired { scope: scope.clone(), count })
            }
            Sweep::Effects(namespace) => {
                let count = self.state.store().table(namespace).map_or(0, |table| table.due(now, max));
                (count, Event::EffectsExpired { namespace: namespace.clone(), count })
            }
            Sweep::Completions => {
                let count = self.state.completions().expired(now, max);
                (count, Event::CompletionsExpired { count })
            }
        };
        let swept = if count > 0 { self.commit_for(event, SpaceClass::Drain, log) } else { Ok(()) };
        self.index.set_sweep(&self.state, sweep);
        swept.map(|()| count)
    }
}
