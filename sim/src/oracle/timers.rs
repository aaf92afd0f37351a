//! What happens because time passes: leases end, done messages grow too old, produce identities leave their window.
//!
//! Retries and delayed messages that come due need nothing done: whoever hands out looks at the clock.

use driftq_core::idempotency::Realm;
use driftq_core::types::{Millis, PartitionId, Timestamp, TopicName};

use super::model::{EndOfLog, Model};
use super::topic::{Begun, Phase, Progress};

/// Identities and answers of steps are forgotten this long after the oldest has left its window.
const SLACK: Millis = Millis(1_000);

/// The most identities, or messages, that one record lets go of.
const PER_RECORD: usize = 1_024;

/// Something is to be looked through at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sweep {
    pub(super) at: Timestamp,
    pub(super) what: Swept,
}

/// What time lets go of, in the order in which it is looked through at the same moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Swept {
    /// Produce identities of a scope.
    Identities(TopicName),
    Effects(Realm),
    /// Answers of completed steps.
    Steps,
}

/// Something due, by its indices.
enum Due {
    Lease { topic: usize, group: usize, message: usize },
    Retention { topic: usize, partition: PartitionId },
}

impl Model {
    pub(super) fn boot(&mut self, now: Timestamp) -> Result<(), EndOfLog> {
        self.now = self.now.max(now);
        self.record()?;
        self.boot = self.boot.next();
        self.quiet_until = Timestamp(0);
        let scopes = self.scopes.iter().map(|scope| Swept::Identities(scope.topic.clone()));
        let effects = self.effects.iter().map(|effect| Swept::Effects(effect.realm()));
        let all: Vec<_> = scopes.chain(effects).chain([Swept::Steps]).collect();
        all.into_iter().for_each(|what| self.plan_sweep(what));
        Ok(())
    }

    /// Time goes on, never back, and what is due by now happens: leases and retention by moment, then sweeps.
    pub(super) fn advance(&mut self, now: Timestamp) -> Result<(), EndOfLog> {
        self.now = self.now.max(now);
        loop {
            if let Some(due) = self.first_due() {
                match due {
                    Due::Lease { topic, group, message } => self.lease_ended(topic, group, message)?,
                    Due::Retention { topic, partition } => self.retain_out(topic, partition)?,
                }
            } else if let Some(what) = self.take_sweep() {
                self.sweep(what)?;
            } else {
                return Ok(());
            }
        }
    }

    /// The earliest of what is due; of what is due at the same moment leases come first, then the lower numbers.
    fn first_due(&mut self) -> Option<Due> {
        if self.quiet_until > self.now {
            return None;
        }
        let mut next = Timestamp::MAX;
        let mut first = None;
        for (t, topic) in self.topics.iter().enumerate() {
            for (g, group) in topic.groups.iter().enumerate() {
                for (m, progress) in group.progress.iter().enumerate() {
                    let Progress::Begun(Begun { phase: Phase::Leased { until, .. }, .. }) = progress else { continue };
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
            let Some(age) = topic.retention.age else { continue };
            for (m, message) in topic.messages.iter().enumerate() {
                if !topic.is_closed(m) {
                    continue;
                }
                let at = message.produced_at.after(age);
                if at > self.now {
                    next = next.min(at);
                    continue;
                }
                let rank = (at, 1, topic.id, message.partition.0, PartitionId(0), message.offset);
                if first.as_ref().is_none_or(|(earliest, _)| rank < *earliest) {
                    first = Some((rank, Due::Retention { topic: t, partition: message.partition }));
                }
            }
        }
        if first.is_none() {
            self.quiet_until = next;
        }
        first.map(|(_, due)| due)
    }

    fn lease_ended(&mut self, topic: usize, group: usize, message: usize) -> Result<(), EndOfLog> {
        let Progress::Begun(begun) = &self.topics[topic].groups[group].progress[message] else {
            unreachable!("a lease that ends was running")
        };
        let error = begun.error.after_silence();
        self.failed(topic, group, message, error, None)
    }

    /// Done messages of a partition are older than the topic keeps them.
    fn retain_out(&mut self, topic: usize, partition: PartitionId) -> Result<(), EndOfLog> {
        let now = self.now;
        let kept = &self.topics[topic];
        let age = kept.retention.age.expect("only topics with an age let go by age");
        let mut old: Vec<_> = (0..kept.messages.len())
            .filter(|at| kept.messages[*at].partition == partition && kept.is_closed(*at))
            .take_while(|at| kept.messages[*at].produced_at.after(age) <= now)
            .take(PER_RECORD)
            .collect();
        self.record()?;
        while let Some(message) = old.pop() {
            self.topics[topic].remove(message);
        }
        Ok(())
    }

    fn take_sweep(&mut self) -> Option<Swept> {
        if self.sweeps.is_empty() {
            return None;
        }
        let first = self.sweeps.iter().enumerate().filter(|(_, sweep)| sweep.at <= self.now);
        let at = first.min_by(|a, b| a.1.cmp(b.1)).map(|(at, _)| at)?;
        Some(self.sweeps.remove(at).what)
    }

    fn sweep(&mut self, what: Swept) -> Result<(), EndOfLog> {
        match &what {
            Swept::Identities(scope) => self.sweep_identities(scope)?,
            Swept::Effects(realm) => self.sweep_effects(realm)?,
            Swept::Steps => {
                let past = self.steps.iter().take_while(|step| step.until <= self.now).take(PER_RECORD).count();
                if past > 0 {
                    self.record()?;
                    self.steps.drain(..past);
                }
            }
        }
        self.plan_sweep(what);
        Ok(())
    }

    fn sweep_identities(&mut self, scope: &TopicName) -> Result<(), EndOfLog> {
        let Some(at) = self.scopes.iter().position(|known| known.topic == *scope) else { return Ok(()) };
        let past = self.scopes[at].identities.iter().take_while(|identity| identity.expires_at <= self.now);
        let past = past.take(PER_RECORD).count();
        if past > 0 {
            self.record()?;
            self.scopes[at].identities.drain(..past);
            if self.scopes[at].identities.is_empty() {
                self.scopes.remove(at);
            }
        }
        Ok(())
    }

    /// Plans the next look, if there is something to look at and none is planned sooner.
    pub(super) fn plan_sweep(&mut self, what: Swept) {
        let at = match &what {
            Swept::Identities(scope) => {
                let known = self.scopes.iter().find(|known| known.topic == *scope);
                known.and_then(|known| known.identities.first()).map(|oldest| oldest.expires_at.after(SLACK))
            }
            Swept::Effects(realm) => self.first_look(realm),
            Swept::Steps => self.steps.first().map(|oldest| oldest.until.after(SLACK)),
        };
        let Some(at) = at else { return };
        match self.sweeps.iter_mut().find(|sweep| sweep.what == what) {
            Some(planned) => planned.at = planned.at.min(at),
            None => self.sweeps.push(Sweep { at, what }),
        }
    }
}
