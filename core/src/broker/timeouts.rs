//! What happens because time passes: leases end, retries and delayed messages come due, old things go.

use super::{Broker, LogSink, Need};
use crate::decide::failure::{Outcome, after_failure};
use crate::faults::Faults;
use crate::index::{Alarm, Sweep};
use crate::record::{Event, Place};
use crate::reply::Refusal;
use crate::types::{PartitionId, Timestamp, TopicId};

/// How many alarms one call handles. The rest follow in the next, which is asked for at once.
const ALARMS_PER_CALL: usize = 1_024;

/// How much of what a sweep lets go of counts as one alarm.
const SWEPT_PER_ALARM: u64 = 4;

/// How many produce identities, effects or done messages one record lets go of.
const SWEPT_PER_RECORD: u64 = 1_024;

impl<F: Faults> Broker<F> {
    /// Does what is due now.
    pub(super) fn run_due(&mut self, log: &mut impl LogSink) {
        let mut handled = 0;
        while handled < ALARMS_PER_CALL {
            if self.stalled_until.is_some() {
                return;
            }
            let done = if let Some((at, alarm)) = self.index.timers.due(self.now) {
                handled += 1;
                self.ring(at, alarm, log)
            } else if let Some(sweep) = self.index.timers.take_due_sweep(self.now) {
                let swept = self.sweep(&sweep, log);
                handled += 1 + swept.as_ref().map_or(0, |count| count / SWEPT_PER_ALARM) as usize;
                swept.map(drop)
            } else {
                return;
            };
            if done.is_err() {
                self.stall();
            }
        }
    }

    fn ring(&mut self, at: Timestamp, alarm: Alarm, log: &mut impl LogSink) -> Result<(), Refusal> {
        match alarm {
            Alarm::Lease(place) => self.expire(&place, log),
            Alarm::Retry(place) => {
                self.index.timers.cancel(at, alarm);
                self.index.retry(&self.state, &place);
                Ok(())
            }
            Alarm::Mature(topic, partition, position) => {
                self.index.timers.cancel(at, alarm);
                self.index.mature(topic, partition, position);
                Ok(())
            }
            Alarm::Retention(topic, partition) => self.retain_out(topic, partition, log),
        }
    }

    /// A lease has ended without word from its worker.
    fn expire(&mut self, place: &Place, log: &mut impl LogSink) -> Result<(), Refusal> {
        let topic = self.state.topic(place.topic).expect("an alarm goes with its topic");
        let progress = topic.group(place.group).and_then(|group| group.progress(place.partition));
        let entry = progress.and_then(|progress| progress.entry(place.position)).expect("an alarm goes with its lease");
        let done = match after_failure(&self.state, place, entry, self.now, None, &self.faults) {
            Outcome::Again { not_before } => {
                self.commit_for(Event::Expired { place: *place, not_before }, Need::Motion, log)
            }
            Outcome::Dead(reason) => {
                let last_error = entry.last_error.clone().after_expiry();
                self.bury(place, reason, last_error.as_str().into(), log)
            }
        };
        done.inspect(|()| self.tally.expired += 1)
    }

    /// Done messages have grown too old to keep.
    fn retain_out(&mut self, topic: TopicId, partition: PartitionId, log: &mut impl LogSink) -> Result<(), Refusal> {
        let durable = self.state.topic(topic).expect("an alarm goes with its topic");
        let messages = durable.partition(partition).expect("an alarm names a partition");
        let age = durable.retention().age.expect("an alarm is set where there is an age");
        let too_old = |position: &_| {
            messages.message(*position).is_some_and(|message| message.produced_at.after(age) <= self.now)
        };
        let through = messages.retained().take_while(too_old).take(SWEPT_PER_RECORD as usize).last();
        let through = through.expect("the alarm is set to the oldest");
        self.commit_for(Event::RetainedOut { topic, partition, through }, Need::Drain, log)
    }

    /// Lets go of what time lets go of, and says of how much.
    fn sweep(&mut self, sweep: &Sweep, log: &mut impl LogSink) -> Result<u64, Refusal> {
        let (now, max) = (self.now, SWEPT_PER_RECORD);
        let (count, event) = match sweep {
            Sweep::Identities(scope) => {
                let count = self.state.identities(scope).map_or(0, |identities| identities.expired(now, max));
                (count, Event::IdentitiesExpired { scope: scope.clone(), count })
            }
            Sweep::Effects(realm) => {
                let count = self.state.store().table(realm).map_or(0, |table| table.due(now, max));
                (count, Event::EffectsExpired { realm: realm.clone(), count })
            }
            Sweep::Completions => {
                let count = self.state.completions().expired(now, max);
                (count, Event::CompletionsExpired { count })
            }
        };
        let swept = if count > 0 { self.commit_for(event, Need::Drain, log) } else { Ok(()) };
        self.index.set_sweep(&self.state, sweep);
        swept.map(|()| count)
    }
}
