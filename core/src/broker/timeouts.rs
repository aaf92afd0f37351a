//! Fires timers: lease expiry, retries, delays, retention, deadlines and sweeps.

use super::{Broker, LogSink, SpaceClass};
use crate::decide::dead_letter::dead_letter;
use crate::decide::failure::{Failure, FailureVerdict, after_failure};
use crate::faults::Faults;
use crate::index::{Due, Sweep, Timer};
use crate::record::Event;
use crate::reply::Refusal;
use crate::state::{Group, Topic};
use crate::types::{Effect, EffectStatus, Identity, MessageRef, PartitionId, Position, Timestamp, TopicId};

/// How many swept entries count as one timer.
const SWEPT_PER_TIMER: u64 = 4;

impl<F: Faults> Broker<F> {
    /// Fires the timers that are due, up to the limit of one call; [`Broker::poll_timeout`] asks for the next at once.
    #[inline]
    pub(super) fn fire_due_timers(&mut self, log: &mut dyn LogSink) {
        if !self.index.timers.is_quiet(self.now) {
            self.fire_timers(log);
        }
    }

    fn fire_timers(&mut self, log: &mut dyn LogSink) {
        let mut handled = 0;
        while handled < self.limits.work.timers_per_call {
            if self.stalled_until.is_some() {
                return;
            }
            let timers = &self.index.timers;
            let due = timers.due(self.now).or_else(|| timers.due_in_wall_time(self.state.wall_clock(), self.now));
            let result = if let Some((due, timer)) = due {
                let swept = self.fire(due, timer, log);
                handled += 1 + swept.as_ref().map_or(0, |count| count / SWEPT_PER_TIMER) as usize;
                swept.map(drop)
            } else if let Some(sweep) = self.index.take_due_sweep(self.now) {
                let swept = self.sweep(&sweep, log);
                handled += 1 + swept.as_ref().map_or(0, |count| count / SWEPT_PER_TIMER) as usize;
                swept.map(drop)
            } else {
                return;
            };
            if result.is_err() {
                self.stall();
            }
        }
        self.faults.timers_cut_short(&mut self.index, self.now);
    }

    /// Fires one timer and returns the number of entries it swept, if it sweeps.
    fn fire(&mut self, due: Due, timer: Timer, log: &mut dyn LogSink) -> Result<u64, Refusal> {
        match timer {
            Timer::Lease(message_ref) => self.expire_lease(&message_ref, log)?,
            Timer::Retry(message_ref) => {
                self.index.timers.cancel(due, timer);
                self.index.retry(&self.state, &message_ref);
            }
            Timer::Delay(topic, partition, position) => {
                self.index.timers.cancel(due, timer);
                self.index.expire_delay(topic, partition, position);
            }
            Timer::Retention(topic, partition) => return self.expire_retained(topic, partition, log),
            Timer::IdleGroup(topic, group) => self.examine_idle_group(topic, group),
            Timer::Deadline(topic, partition, position) => {
                self.expire_waiting(topic, partition, position, log)?;
                self.index.timers.cancel(due, timer);
            }
        }
        Ok(0)
    }

    /// The deadline of a message has passed: dead-letters it in every group in which it waits. Where it is leased, the
    /// end of the lease decides.
    fn expire_waiting(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
        position: Position,
        log: &mut dyn LogSink,
    ) -> Result<(), Refusal> {
        let durable = self.state.topic(topic).expect("timers of a deleted topic are cancelled");
        let is_waiting = |group: &&Group| {
            let progress = group.progress(partition).expect("every group has every partition");
            !progress.acked().contains(position)
                && progress.delivery(position).is_none_or(|delivery| delivery.leased_until().is_none())
        };
        let waiting: Vec<_> = durable.groups().filter(is_waiting).map(Group::id).collect();
        for group in waiting {
            let message_ref = MessageRef { topic, group, partition, position };
            self.exceed_deadline(&message_ref, log)?;
        }
        Ok(())
    }

    /// A lease has expired, or a client ends it: retries or dead-letters its message.
    pub(super) fn expire_lease(&mut self, message_ref: &MessageRef, log: &mut dyn LogSink) -> Result<(), Refusal> {
        let topic = self.state.topic(message_ref.topic).expect("timers of a deleted topic are cancelled");
        let progress = topic.group(message_ref.group).and_then(|group| group.progress(message_ref.partition));
        let delivery = progress
            .and_then(|progress| progress.delivery(message_ref.position))
            .expect("timers of an ended lease are cancelled");
        let is_oldest = !self.limits.adaptive_credit || self.index.is_oldest_unanswered(message_ref);
        let failure = Failure::Expiry { counts: self.faults.expiry_counts(is_oldest) };
        self.index.leases.end_by_expiry(*message_ref);
        let expired = match after_failure(&self.state, message_ref, delivery, self.now, failure) {
            FailureVerdict::Retry { not_before } => {
                self.commit_or_refuse(Event::Expired { message_ref: *message_ref, not_before }, SpaceClass::Churn, log)
            }
            FailureVerdict::DeadLetter(reason) => {
                let last_error = delivery.last_error.clone().after_expiry();
                let event = dead_letter(&self.context(), message_ref, reason, last_error.as_str().into());
                self.commit_or_refuse(event, SpaceClass::Drain, log)
            }
        };
        self.index.leases.end_done();
        expired.inspect(|()| self.counters.expired += 1)
    }

    /// Forgets the grants whose lease has ended, and renews those that still run although their effect expires in the
    /// recorded state: their lease began later than recorded, or not yet. In the order in which the effects expire.
    pub(super) fn check_grants(&mut self, log: &mut dyn LogSink) {
        while self.stalled_until.is_none()
            && let Some((checked_at, token, grant)) = self.index.leases.grants.first_due(self.now)
        {
            let end = grant.end();
            let runs = end.is_none_or(|end| end > self.now);
            let effect = if runs { grant.effect(self.state.store()) } else { None };
            let is_granted =
                |effect: &&Effect| effect.token == Some(token) && effect.status == EffectStatus::InProgress;
            let Some(effect) = effect.filter(is_granted) else {
                self.index.leases.grants.ended(token);
                continue;
            };
            let expires_at = effect.expires_at;
            let check_at = |expires_at: Timestamp| end.map_or(expires_at, |end| end.min(expires_at));
            if check_at(expires_at) > checked_at {
                // A grant that is checked early waits its turn: on a full log, effects that expire first are renewed.
                self.index.leases.grants.check_again(token, check_at(expires_at));
                continue;
            }
            let (until, identity) = (grant.end_from(self.now), grant.identity());
            let renewed = effect.lifetime().after(until);
            if self.commit(Event::EffectRenewed { identity, until }, SpaceClass::Churn, log).is_err() {
                return self.stall();
            }
            self.index.leases.grants.check_again(token, check_at(renewed));
        }
    }

    /// Whether an effect has expired in the recorded state although its grant still runs: the log had no space to renew
    /// it. Nothing can be decided about it until it is renewed.
    pub(super) fn awaits_renewal(&self, identity: &Identity) -> bool {
        let effect = self.state.store().get(identity).filter(|effect| effect.expires_at <= self.now);
        effect.is_some_and(|effect| self.context().leased_until(effect).is_some())
    }

    /// Removes the oldest retained messages, since the disk is full; a bounded number per call. Returns whether there
    /// are more, and the log took the records.
    pub(crate) fn reclaim_retained(&mut self, log: &mut dyn LogSink) -> bool {
        for _ in 0..self.limits.work.reclaims_per_call {
            let Some((topic, partition)) = self.partition_with_oldest_retained() else { return false };
            let retained = self.state.topic(topic).and_then(|topic| topic.partition(partition));
            let max = self.limits.work.swept_per_record as usize;
            let through = retained.and_then(|messages| messages.retained().take(max).last());
            let Some(through) = through else { return false };
            if self.commit(Event::RetentionExpired { topic, partition, through }, SpaceClass::Drain, log).is_err() {
                return false;
            }
            self.counters.reclaimed += 1;
        }
        self.partition_with_oldest_retained().is_some()
    }

    fn partition_with_oldest_retained(&self) -> Option<(TopicId, PartitionId)> {
        let partitions = self.state.topics().flat_map(|topic| topic.partitions().map(|found| (topic.id(), found)));
        let oldest = partitions.filter_map(|(topic, (id, messages))| {
            let (_, message) = messages.oldest_retained()?;
            Some((message.produced_at, topic, id))
        });
        oldest.min().map(|(_, topic, partition)| (topic, partition))
    }

    /// The bytes of all stored messages.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.state.topics().flat_map(Topic::partitions).map(|(_, partition)| partition.kept().bytes).sum()
    }

    /// Whether there is a message that is not acked in every group.
    pub(crate) fn has_live_messages(&self) -> bool {
        let mut partitions = self.state.topics().flat_map(Topic::partitions);
        partitions.any(|(_, partition)| partition.backlog().messages > 0)
    }

    /// Expires the due entries of a table and returns their number.
    fn sweep(&mut self, sweep: &Sweep, log: &mut dyn LogSink) -> Result<u64, Refusal> {
        let (now, max) = (self.now, self.limits.work.swept_per_record);
        let (count, event) = match sweep {
            Sweep::Dedupe(scope) => {
                let count = self.state.dedupe(scope).map_or(0, |table| table.expired(now, max));
                (count, Event::DedupeExpired { scope: scope.clone(), count })
            }
            Sweep::Effects(namespace) => {
                let count = self.state.store().table(namespace).map_or(0, |effects| effects.due(now, max));
                (count, Event::EffectsExpired { namespace: namespace.clone(), count })
            }
            Sweep::Completions => {
                let count = self.state.completions().expired(now, max);
                (count, Event::CompletionsExpired { count })
            }
            Sweep::Winners => {
                let count = self.state.winners().expired(now, max);
                (count, Event::WinnersExpired { count })
            }
        };
        let swept = if count > 0 { self.commit_or_refuse(event, SpaceClass::Drain, log) } else { Ok(()) };
        self.index.set_sweep(&self.state, sweep);
        swept.map(|()| count)
    }
}
