//! When the broker must be called at the latest.

use driftq_core::types::{EffectStatus, PartitionId, Timestamp};

use super::lease::Runs;
use super::model::Model;
use super::topic::{Attempted, Group, Message, Phase, Progress, Topic};

impl Model {
    /// The monotonic time at which something is due: a lease ends, a message is ready for a stream with credit, or
    /// something is to be removed. `None` if nothing is.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        if self.failed || self.closed {
            return None;
        }
        let has_excess = self.winners.len() > self.limits.completions_max || self.exceeds_retained_bound();
        let is_now =
            has_excess || self.has_unrecorded_losses() || !self.due_groups.is_empty() || self.next_group().is_some();
        let sweeps = self.sweeps.iter().map(|sweep| sweep.at);
        let topics = self.topics.iter().flat_map(|topic| self.due_in(topic));
        let times = is_now.then_some(self.now).into_iter().chain(sweeps).chain(topics).chain(self.overruns());
        let first = times.min()?.max(self.stalled_until.unwrap_or_default()).max(self.now);
        let (mono, broker) = self.started;
        Some(Timestamp(mono.saturating_add(first.0.saturating_sub(broker))))
    }

    /// Grants that run beyond the record of their effect, which is renewed then.
    fn overruns(&self) -> impl Iterator<Item = Timestamp> {
        let running = self.effects.iter().filter(|effect| effect.status == EffectStatus::InProgress);
        running.filter(|effect| !effect.runs.has_ended(effect.expires_at.max(self.now))).map(|effect| effect.expires_at)
    }

    fn due_in(&self, topic: &Topic) -> Vec<Timestamp> {
        let mut times = Vec::new();
        for group in &topic.groups {
            times.extend(group.idle.map(|(_, at)| at));
            let has_credit = self.has_credit(topic, group);
            for (message, progress) in topic.messages.iter().zip(&group.progress) {
                times.extend(self.due_of(message, progress, has_credit));
                let is_waiting = !topic.is_dlq() && !progress.is_leased() && !matches!(progress, Progress::Acked);
                times.extend(message.deadline().filter(|_| is_waiting).map(|deadline| self.latest_at(deadline)));
            }
        }
        for partition in (0..topic.partitions()).map(PartitionId) {
            times.extend(topic.retention_ends(partition));
        }
        times
    }

    /// When a lease of the message ends, or the message is ready.
    fn due_of(&self, message: &Message, progress: &Progress, has_credit: bool) -> Option<Timestamp> {
        match progress {
            Progress::Attempted(Attempted { phase: Phase::Leased { runs: Runs::Until(end), .. }, .. }) => Some(*end),
            Progress::Attempted(Attempted { phase: Phase::Queued { not_before, is_waiting, .. }, .. }) => {
                (has_credit && *is_waiting).then_some(*not_before)
            }
            Progress::Ready if has_credit && message.is_delayed => {
                Some(message.delayed_until.max(self.latest_at(message.deliver_at)))
            }
            _ => None,
        }
    }

    fn has_credit(&self, topic: &Topic, group: &Group) -> bool {
        let mut members = self.streams.iter().filter(|stream| (stream.topic, stream.group) == (topic.id, group.id));
        !group.paused && members.any(|stream| stream.has_credit(group))
    }

    /// The latest broker time at which wall time reaches `wall`: it may fall behind as far as its target.
    fn latest_at(&self, wall: Timestamp) -> Timestamp {
        let offset = self.offset().min(self.wall_clock.target);
        Timestamp((i128::from(wall.0) - i128::from(offset)).clamp(0, i128::from(u64::MAX)) as u64)
    }
}
