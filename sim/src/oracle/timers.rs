//! Timers: expired leases, retention and the expiry of identities, effects and replies.
//!
//! Due retries and delayed messages need no timer: dispatch reads the clock.

use driftq_core::SpaceClass;
use driftq_core::types::{DeadReason, Millis, Now, Offset, PartitionId, Timestamp};

use super::lease::Runs;
use super::model::{Asked, Model, Sweep, SweepKind, Unwritten};
use super::settle::Failure;
use super::topic::{Attempted, LastErrorText, Phase, Progress};

/// How long after the expiry of the oldest entry a sweep runs.
const SLACK: Millis = Millis(1_000);

/// The most entries or messages that one record removes.
pub(super) const PER_RECORD: usize = 1_024;

/// A due timer, by indices.
enum Due {
    Lease { topic: usize, group: usize, message: usize },
    Retention { topic: usize, partition: PartitionId },
    IdleGroup { topic: usize, group: usize },
    Deadline { topic: usize, group: usize, message: usize },
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
        }
        let scopes = self.scopes.iter().map(|scope| SweepKind::Identities(scope.asked.clone()));
        let effects = self.effects.iter().map(|effect| SweepKind::Effects(effect.namespace()));
        let all: Vec<_> = scopes.chain(effects).chain([SweepKind::Steps, SweepKind::Winners]).collect();
        all.into_iter().for_each(|what| self.plan_sweep(what));
        Ok(())
    }

    /// Advances the clocks and fires what is due: leases and retention by time, then deadlines, then sweeps.
    pub(super) fn advance(&mut self, now: Now) -> Result<(), Unwritten> {
        self.advance_broker_time(now);
        self.end_pause();
        self.advance_clock(now)?;
        self.renew_overrunning_grants()?;
        while !self.is_stalled() {
            let fired = if let Some(due) = self.first_due().or_else(|| self.first_deadline_passed()) {
                match due {
                    Due::Lease { topic, group, message } => self.lease_expired(topic, group, message),
                    Due::Retention { topic, partition } => self.expire_retained(topic, partition),
                    Due::IdleGroup { topic, group } => {
                        self.examine(topic, group);
                        Ok(())
                    }
                    Due::Deadline { topic, group, message } => self.deadline_passed(topic, group, message),
                }
            } else if let Some(what) = self.take_sweep() {
                let swept = self.sweep(&what);
                // Also one whose record the log refused.
                self.plan_sweep(what);
                swept
            } else {
                break;
            };
            self.or_pause(fired)?;
        }
        self.delete_due_groups()
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
                    let Progress::Attempted(Attempted { phase: Phase::Leased { runs, .. }, .. }) = progress else {
                        continue;
                    };
                    let Runs::Until(until) = runs else { continue };
                    if *until > self.now {
                        next = next.min(*until);
                        continue;
                    }
                    let message = &topic.messages[m];
                    let rank = (*until, 0, topic.id, group.id.0, message.partition, message.offset);
                    if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                        first = Some((rank, Due::Lease { topic: t, group: g, message: m }));
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
            for partition in (0..topic.partitions()).map(PartitionId) {
                let Some(at) = topic.retention_ends(partition) else { continue };
                let mut retained = topic.messages.iter().filter(|it| it.partition == partition && it.is_retained);
                let Some(oldest) = retained.next() else { continue };
                if at > self.now {
                    next = next.min(at);
                    continue;
                }
                let rank = (at, 1, topic.id, partition.0, PartitionId(0), oldest.offset);
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

    /// The first waiting message whose deadline has passed: by deadline, ids and the name of the group.
    fn first_deadline_passed(&mut self) -> Option<Due> {
        let wall = self.wall();
        if self.first_deadline > wall {
            return None;
        }
        let mut next = Timestamp::MAX;
        let mut first = None;
        for (t, topic) in self.topics.iter().enumerate().filter(|(_, topic)| !topic.is_dlq()) {
            for (m, message) in topic.messages.iter().enumerate() {
                let Some(deadline) = &message.content.metadata.envelope.deadline else { continue };
                next = next.min(deadline.at);
                if deadline.at > wall {
                    continue;
                }
                for (g, group) in topic.groups.iter().enumerate() {
                    let progress = &group.progress[m];
                    if progress.is_leased() || matches!(progress, Progress::Acked) {
                        continue;
                    }
                    let rank = (deadline.at, topic.id, message.partition, message.offset, &group.name);
                    if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                        first = Some((rank, Due::Deadline { topic: t, group: g, message: m }));
                    }
                }
            }
        }
        let first = first.map(|(_, due)| due);
        self.first_deadline = next;
        first
    }

    /// A message waited beyond its deadline.
    fn deadline_passed(&mut self, t: usize, g: usize, m: usize) -> Result<(), Unwritten> {
        let error = match &self.topics[t].groups[g].progress[m] {
            Progress::Attempted(attempted) => attempted.error.clone(),
            Progress::Ready | Progress::Acked => LastErrorText::None,
        };
        self.dead_letter_message(t, g, m, DeadReason::DeadlineExceeded, error.as_str())
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
    fn expire_retained(&mut self, t: usize, partition: PartitionId) -> Result<(), Unwritten> {
        let mut old = self.topics[t].over(partition, self.now);
        old.truncate(PER_RECORD);
        self.record(SpaceClass::Drain)?;
        while let Some(message) = old.pop() {
            self.topics[t].remove(message);
        }
        Ok(())
    }

    fn take_sweep(&mut self) -> Option<SweepKind> {
        if self.sweeps.is_empty() {
            return None;
        }
        let due = self.sweeps.iter().enumerate().filter(|(_, sweep)| sweep.at <= self.now);
        let at = due.min_by(|a, b| a.1.cmp(b.1)).map(|(at, _)| at)?;
        Some(self.sweeps.remove(at).what)
    }

    fn sweep(&mut self, what: &SweepKind) -> Result<(), Unwritten> {
        match what {
            SweepKind::Identities(asked) => self.sweep_identities(asked)?,
            SweepKind::Effects(namespace) => self.sweep_effects(namespace)?,
            SweepKind::Steps => {
                let expired = self.steps.iter().take_while(|step| step.until <= self.now).take(PER_RECORD).count();
                if expired > 0 {
                    self.record(SpaceClass::Drain)?;
                    self.steps.drain(..expired);
                }
            }
            SweepKind::Winners => {
                let expired = self.winners.iter().take_while(|it| it.until <= self.now).take(PER_RECORD).count();
                if expired > 0 {
                    self.record(SpaceClass::Drain)?;
                    self.winners.drain(..expired);
                }
            }
        }
        Ok(())
    }

    fn sweep_identities(&mut self, asked: &Asked) -> Result<(), Unwritten> {
        let Some(at) = self.scopes.iter().position(|known| known.asked == *asked) else { return Ok(()) };
        let expired = self.scopes[at].identities.iter().take_while(|identity| identity.expires_at <= self.now);
        let expired = expired.take(PER_RECORD).count();
        if expired > 0 {
            self.record(SpaceClass::Drain)?;
            self.scopes[at].identities.drain(..expired);
            if self.scopes[at].identities.is_empty() {
                self.scopes.remove(at);
            }
        }
        Ok(())
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
