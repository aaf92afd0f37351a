//! Timers: expired leases, retries, delays, deadlines, retention and the expiry of identities, effects and replies.
//!
//! A call fires a limited number of them, the earliest first.

use driftq_core::SpaceClass;
use driftq_core::types::{Millis, Now, Offset, PartitionId, Timestamp};

use super::lease::Runs;
use super::model::{Asked, MessageIndex, Model, Sweep, SweepKind, Unwritten};
use super::settle::Failure;
use super::topic::{Attempted, LastErrorText, Phase, Progress};

/// How long after the expiry of the oldest entry a sweep runs.
const SLACK: Millis = Millis(1_000);

/// How many removed entries count as one more timer.
const REMOVED_PER_TIMER: usize = 4;

/// A due timer, by indices.
#[derive(Clone, Copy)]
enum Due {
    Lease { topic: usize, group: usize, message: usize },
    Retry { topic: usize, group: usize, message: usize },
    Delay { topic: usize, message: usize },
    Retention { topic: usize, partition: PartitionId },
    IdleGroup { topic: usize, group: usize },
    Deadline { topic: usize, message: usize },
}

impl Model {
    pub(super) fn boot(&mut self, now: Now) -> Result<(), Unwritten> {
        self.start_clock(now);
        self.record(SpaceClass::Drain)?;
        self.boot = self.boot.next();
        self.quiet_until = Timestamp(0);
        self.order_leases_of_earlier_boots();
        for t in 0..self.topics.len() {
            (0..self.topics[t].groups.len()).for_each(|g| self.departed(t, g));
            self.topics[t].messages.iter_mut().for_each(|message| message.is_delayed = false);
            self.set_timers(t);
            self.set_retries(t);
        }
        let scopes = self.scopes.iter().map(|scope| SweepKind::Identities(scope.asked.clone()));
        let effects = self.effects.iter().map(|effect| SweepKind::Effects(effect.namespace()));
        let all: Vec<_> = scopes.chain(effects).chain([SweepKind::Steps, SweepKind::Winners]).collect();
        all.into_iter().for_each(|what| self.plan_sweep(what));
        Ok(())
    }

    /// Advances the clocks and fires what is due, up to the limit of one call: by broker time, then by wall time, then
    /// sweeps.
    pub(super) fn advance(&mut self, now: Now) -> Result<(), Unwritten> {
        self.advance_broker_time(now);
        self.end_pause();
        self.advance_clock(now)?;
        self.renew_overrunning_grants()?;
        let mut fired = 0;
        while fired < self.limits.work.timers_per_call && !self.is_stalled() {
            let removed = if let Some(due) = self.first_due().or_else(|| self.first_due_by_wall_time()) {
                self.fire(due)
            } else if let Some(what) = self.take_sweep() {
                let swept = self.sweep(&what);
                // Also one whose record the log refused.
                self.plan_sweep(what);
                swept
            } else {
                break;
            };
            fired += 1 + removed.as_ref().map_or(0, |removed| removed / REMOVED_PER_TIMER);
            self.or_pause(removed.map(drop))?;
        }
        self.delete_due_groups()
    }

    /// Fires a timer and returns how many messages it removed.
    fn fire(&mut self, due: Due) -> Result<usize, Unwritten> {
        match due {
            Due::Lease { topic, group, message } => self.lease_expired(topic, group, message)?,
            Due::Retry { topic, group, message } => {
                if let Phase::Queued { is_waiting, .. } = &mut self.attempted_mut((topic, group, message)).phase {
                    *is_waiting = false;
                }
            }
            Due::Delay { topic, message } => self.topics[topic].messages[message].is_delayed = false,
            Due::Retention { topic, partition } => return self.expire_retained(topic, partition),
            Due::IdleGroup { topic, group } => self.examine(topic, group),
            Due::Deadline { topic, message } => self.deadline_passed(topic, message)?,
        }
        Ok(0)
    }

    /// The earliest due timer; at the same time leases come first, then lower ids.
    fn first_due(&mut self) -> Option<Due> {
        if self.quiet_until > self.now {
            return None;
        }
        let mut next = Timestamp::MAX;
        let mut first = None;
        for (t, topic) in self.topics.iter().enumerate() {
            for (g, group) in topic.groups.iter().enumerate() {
                for (m, progress) in group.progress.iter().enumerate() {
                    let Progress::Attempted(Attempted { phase, .. }) = progress else { continue };
                    let (at, kind) = match phase {
                        Phase::Leased { runs: Runs::Until(until), .. } => (*until, 0),
                        Phase::Queued { not_before, is_waiting: true, .. } => (*not_before, 1),
                        Phase::Leased { .. } | Phase::Queued { .. } => continue,
                    };
                    if at > self.now {
                        next = next.min(at);
                        continue;
                    }
                    let message = &topic.messages[m];
                    let rank = (at, kind, topic.id, group.id.0, message.partition, message.offset);
                    if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                        let due = match kind {
                            0 => Due::Lease { topic: t, group: g, message: m },
                            _ => Due::Retry { topic: t, group: g, message: m },
                        };
                        first = Some((rank, due));
                    }
                }
            }
            for (g, group) in topic.groups.iter().enumerate() {
                let Some((_, at)) = group.idle else { continue };
                if at > self.now {
                    next = next.min(at);
                    continue;
                }
                let rank = (at, 5, topic.id, group.id.0, PartitionId(0), Offset(0));
                if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                    first = Some((rank, Due::IdleGroup { topic: t, group: g }));
                }
            }
            for (m, message) in topic.messages.iter().enumerate() {
                let at = message.delayed_until;
                // Others are delayed until a wall time.
                if !message.is_delayed || at == Timestamp(0) {
                    continue;
                }
                if at > self.now {
                    next = next.min(at);
                    continue;
                }
                let rank = (at, 2, topic.id, 0, message.partition, message.offset);
                if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                    first = Some((rank, Due::Delay { topic: t, message: m }));
                }
            }
            for partition in (0..topic.partitions()).map(PartitionId) {
                let Some(at) = topic.retention_ends(partition) else { continue };
                let mut retained = topic.messages.iter().filter(|it| it.partition == partition && it.is_retained);
                let Some(oldest) = retained.next() else { continue };
                if at > self.now {
                    next = next.min(at);
                    continue;
                }
                let rank = (at, 3, topic.id, partition.0, PartitionId(0), oldest.offset);
                if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                    first = Some((rank, Due::Retention { topic: t, partition }));
                }
            }
        }
        if first.is_none() {
            self.quiet_until = next;
        }
        first.map(|(_, due)| due)
    }

    /// The first timer that is due by wall time: the end of a delay or a deadline.
    fn first_due_by_wall_time(&mut self) -> Option<Due> {
        let wall = self.wall();
        if self.first_deadline > wall {
            return None;
        }
        let mut next = Timestamp::MAX;
        let mut first = None;
        for (t, topic) in self.topics.iter().enumerate() {
            for (m, message) in topic.messages.iter().enumerate() {
                if message.is_delayed && message.delayed_until == Timestamp(0) {
                    next = next.min(message.deliver_at);
                    let rank = (message.deliver_at, 2, topic.id, message.partition, message.offset);
                    if message.deliver_at <= wall && first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                        first = Some((rank, Due::Delay { topic: t, message: m }));
                    }
                }
                let Some(deadline) = message.deadline().filter(|_| !topic.is_dlq()) else { continue };
                next = next.min(deadline);
                let rank = (deadline, 4, topic.id, message.partition, message.offset);
                let is_due = message.has_deadline_timer && deadline <= wall;
                if is_due && first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                    first = Some((rank, Due::Deadline { topic: t, message: m }));
                }
            }
        }
        self.first_deadline = next;
        first.map(|(_, due)| due)
    }

    /// The deadline of a message has passed: it is dead-lettered in the groups in which it waits, by name.
    fn deadline_passed(&mut self, t: usize, m: usize) -> Result<(), Unwritten> {
        let offset = self.topics[t].messages[m].offset;
        let is_waiting = |progress: &Progress| !progress.is_leased() && !matches!(progress, Progress::Acked);
        // In the last group it is removed, or retained.
        while let Some(m) = self.topics[t].message(offset) {
            let groups = self.topics[t].groups.iter().enumerate();
            let waiting = groups.filter(|(_, group)| is_waiting(&group.progress[m]));
            let Some((g, group)) = waiting.min_by(|a, b| a.1.name.cmp(&b.1.name)) else {
                self.topics[t].messages[m].has_deadline_timer = false;
                break;
            };
            let error = match &group.progress[m] {
                Progress::Attempted(attempted) => attempted.error.clone(),
                Progress::Ready | Progress::Acked => LastErrorText::None,
            };
            let (reason, error) = self.topics[t].messages[m].reason_past_deadline(&error);
            self.dead_letter_message(t, g, m, reason, &error)?;
        }
        Ok(())
    }

    /// Sets the timers of all open messages of a topic, since groups or the progress of one changed.
    pub(super) fn set_timers(&mut self, t: usize) {
        let is_dlq = self.topics[t].is_dlq();
        for m in 0..self.topics[t].messages.len() {
            if self.topics[t].is_acked_by_all(m) {
                continue;
            }
            self.set_delay(t, m);
            let message = &mut self.topics[t].messages[m];
            message.has_deadline_timer = message.deadline().is_some() && !is_dlq;
        }
    }

    /// Sets the timer of a message's delay, if it has not passed.
    pub(super) fn set_delay(&mut self, t: usize, m: usize) {
        let message = &self.topics[t].messages[m];
        if !self.is_due(message) {
            let (delayed_until, deliver_at) = (message.delayed_until, message.deliver_at);
            self.topics[t].messages[m].is_delayed = true;
            self.expect_at(delayed_until);
            self.first_deadline = self.first_deadline.min(deliver_at);
        }
    }

    /// After a start, the timers of retries that are still to come.
    fn set_retries(&mut self, t: usize) {
        let now = self.now;
        for progress in self.topics[t].groups.iter_mut().flat_map(|group| &mut group.progress) {
            if let Progress::Attempted(Attempted { phase: Phase::Queued { not_before, is_waiting, .. }, .. }) = progress
            {
                *is_waiting = *not_before > now;
            }
        }
    }

    /// A message waits again: its deadline acts, even if it has passed before.
    pub(super) fn set_deadline_timer(&mut self, (t, _, m): MessageIndex) {
        let is_dlq = self.topics[t].is_dlq();
        let message = &mut self.topics[t].messages[m];
        message.has_deadline_timer = message.deadline().is_some() && !is_dlq;
    }

    pub(super) fn lease_expired(&mut self, topic: usize, group: usize, message: usize) -> Result<(), Unwritten> {
        let Progress::Attempted(attempted) = &self.topics[topic].groups[group].progress[message] else {
            unreachable!("an expiring lease was running")
        };
        let error = attempted.error.after_expiry();
        let Phase::Leased { holder, .. } = attempted.phase else { unreachable!("an expiring lease was running") };
        let expiring = self.group_message((topic, group, message));
        let counts = !self.limits.adaptive_credit || self.is_oldest_unanswered(holder, expiring);
        self.failed(topic, group, message, error, Failure::Expiry { counts })?;
        self.note_expiry(holder, expiring);
        let (now, adaptive) = (self.now, self.limits.adaptive_credit);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == holder && adaptive) {
            stream.lease_expired(now);
        }
        Ok(())
    }

    /// Removes acked messages of a partition that exceed the retention.
    fn expire_retained(&mut self, t: usize, partition: PartitionId) -> Result<usize, Unwritten> {
        let mut old = self.topics[t].over(partition, self.now);
        old.truncate(self.per_record());
        self.record(SpaceClass::Drain)?;
        let removed = old.len();
        while let Some(message) = old.pop() {
            self.topics[t].remove(message);
        }
        Ok(removed)
    }

    /// The most entries or messages that one record removes.
    pub(super) fn per_record(&self) -> usize {
        self.limits.work.swept_per_record as usize
    }

    fn take_sweep(&mut self) -> Option<SweepKind> {
        if self.sweeps.is_empty() {
            return None;
        }
        let due = self.sweeps.iter().enumerate().filter(|(_, sweep)| sweep.at <= self.now);
        let at = due.min_by(|a, b| a.1.cmp(b.1)).map(|(at, _)| at)?;
        Some(self.sweeps.remove(at).what)
    }

    /// Removes what is due of one kind, and returns how much.
    fn sweep(&mut self, what: &SweepKind) -> Result<usize, Unwritten> {
        let (now, max) = (self.now, self.per_record());
        match what {
            SweepKind::Identities(asked) => self.sweep_identities(asked),
            SweepKind::Effects(namespace) => self.sweep_effects(namespace),
            SweepKind::Steps => {
                let expired = self.steps.iter().take_while(|step| step.until <= now).take(max).count();
                if expired > 0 {
                    self.record(SpaceClass::Drain)?;
                    self.steps.drain(..expired);
                }
                Ok(expired)
            }
            SweepKind::Winners => {
                let expired = self.winners.iter().take_while(|it| it.until <= now).take(max).count();
                if expired > 0 {
                    self.record(SpaceClass::Drain)?;
                    self.winners.drain(..expired);
                }
                Ok(expired)
            }
        }
    }

    fn sweep_identities(&mut self, asked: &Asked) -> Result<usize, Unwritten> {
        let Some(at) = self.scopes.iter().position(|known| known.asked == *asked) else { return Ok(0) };
        let expired = self.scopes[at].identities.iter().take_while(|identity| identity.expires_at <= self.now);
        let expired = expired.take(self.per_record()).count();
        if expired > 0 {
            self.record(SpaceClass::Drain)?;
            self.scopes[at].identities.drain(..expired);
            if self.scopes[at].identities.is_empty() {
                self.scopes.remove(at);
            }
        }
        Ok(expired)
    }

    /// Plans the next sweep, if there is anything to sweep and none is planned earlier.
    pub(super) fn plan_sweep(&mut self, what: SweepKind) {
        let at = match &what {
            SweepKind::Identities(asked) => {
                let known = self.scopes.iter().find(|known| known.asked == *asked);
                known.and_then(|known| known.identities.first()).map(|oldest| oldest.expires_at.after(SLACK))
            }
            SweepKind::Effects(namespace) => self.next_sweep(namespace),
            SweepKind::Steps => self.steps.first().map(|oldest| oldest.until.after(SLACK)),
            SweepKind::Winners => self.winners.first().map(|oldest| oldest.until.after(SLACK)),
        };
        let Some(at) = at else { return };
        match self.sweeps.iter_mut().find(|sweep| sweep.what == what) {
            Some(planned) => planned.at = planned.at.min(at),
            None => self.sweeps.push(Sweep { at, what }),
        }
    }
}
