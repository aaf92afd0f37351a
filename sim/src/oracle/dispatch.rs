//! Dispatch: which message goes to which stream.

use std::cmp::Reverse;

use driftq_core::SpaceClass;
use driftq_core::types::{ConsumerId, PartitionId, Timestamp};

use super::expected::{Expected, ExpectedDelivery};
use super::lease::{BegunBy, Runs};
use super::model::{Model, Unwritten};
use super::stream::Stream;
use super::topic::{Attempted, LastErrorText, Phase, Progress, Topic};

impl Model {
    /// The first group, by id, with a deliverable message gets all it can take; then the next.
    pub(super) fn dispatch(&mut self) -> Result<(), Unwritten> {
        if self.streams.is_empty() {
            return Ok(());
        }
        let mut left = self.limits.work.dispatched_per_call;
        while left > 0 && !self.is_stalled() {
            let Some((t, g)) = self.next_group() else {
                self.next_turn = Default::default();
                return Ok(());
            };
            let turn_max = left.min(self.limits.work.dispatched_per_turn);
            let mut used = 0;
            while used < turn_max
                && let Some((message, stream)) = self.next_message(t, g)
            {
                let written = self.deliver(t, g, message, stream);
                self.or_pause(written)?;
                if self.is_stalled() {
                    return Ok(());
                }
                used += 1;
            }
            if used == turn_max {
                self.next_turn = (self.topics[t].id, self.topics[t].groups[g].id.next());
            }
            left -= used;
        }
        Ok(())
    }

    pub(super) fn next_group(&self) -> Option<(usize, usize)> {
        let mut first = None;
        for (t, topic) in self.topics.iter().enumerate() {
            for (g, group) in topic.groups.iter().enumerate() {
                let before = (topic.id, group.id) < self.next_turn;
                if before && first.is_some() || self.next_message(t, g).is_none() {
                    continue;
                }
                if !before {
                    return Some((t, g));
                }
                first = Some((t, g));
            }
        }
        first
    }

    /// The next message of the group and the stream that gets it, both by index.
    fn next_message(&self, t: usize, g: usize) -> Option<(usize, usize)> {
        let topic = &self.topics[t];
        let group = &topic.groups[g];
        if group.paused {
            return None;
        }
        // In order of their ids: the first after the last served, else the first of all; silent ones last.
        let members = self.streams.iter().enumerate();
        let members = members.filter(|(_, stream)| (stream.topic, stream.group) == (topic.id, group.id));
        let able = members.filter(|(_, stream)| stream.has_credit(group));
        let turn = |stream: &Stream| (stream.is_asked_last, stream.id <= group.last_served, stream.id);
        let (stream, _) = able.min_by_key(|(_, stream)| turn(stream))?;
        let partitions = topic.partitions();
        let ready = |at: usize| match &group.progress[at] {
            Progress::Ready => !topic.messages[at].is_delayed,
            Progress::Attempted(Attempted { phase: Phase::Queued { is_waiting, .. }, .. }) => !is_waiting,
            Progress::Attempted(_) | Progress::Acked => false,
        };
        let first = (0..topic.messages.len()).find(|at| ready(*at))?;
        let mut running = vec![0; partitions as usize];
        for (message, progress) in topic.messages.iter().zip(&group.progress) {
            running[message.partition.0 as usize] += u32::from(progress.is_leased());
        }
        let mut best = None;
        for at in (first..topic.messages.len()).filter(|at| ready(*at)) {
            let message = &topic.messages[at];
            let turns = (message.partition.0 + partitions - group.last_partition.0 % partitions - 1) % partitions;
            let rank = (turns, Reverse(message.priority), at);
            if best.is_none_or(|best| rank < best) && running[message.partition.0 as usize] < self.limits.in_flight_max
            {
                best = Some(rank);
            }
        }
        best.map(|(_, _, message)| (message, stream))
    }

    fn deliver(&mut self, t: usize, g: usize, m: usize, stream: usize) -> Result<(), Unwritten> {
        let topic = &self.topics[t];
        let content = topic.messages[m].content.clone();
        if !topic.is_dlq() && topic.messages[m].deadline().is_some_and(|at| at <= self.wall()) {
            let error = match &topic.groups[g].progress[m] {
                Progress::Attempted(attempted) => attempted.error.clone(),
                Progress::Ready | Progress::Acked => LastErrorText::None,
            };
            let (reason, error) = topic.messages[m].reason_past_deadline(&error);
            return self.dead_letter_message(t, g, m, reason, &error);
        }
        // A token that no record contains is not used again.
        let token = self.new_token();
        self.record(SpaceClass::Churn)?;
        let stream = &mut self.streams[stream];
        let until = self.now.after(stream.lease);
        let topic = &mut self.topics[t];
        let (group, message) = (&mut topic.groups[g], &topic.messages[m]);
        let (attempts, failures, error) = match &group.progress[m] {
            Progress::Attempted(attempted) => {
                (attempted.attempts.saturating_add(1), attempted.failures, attempted.error.clone())
            }
            Progress::Ready | Progress::Acked => (1, 0, LastErrorText::None),
        };
        let runs = Runs::From { record: self.records, lease: stream.lease, begun_by: BegunBy::Delivery };
        let phase = Phase::Leased { until, holder: stream.id, runs };
        let attempted =
            Attempted { attempts, failures, token, owner: stream.owner.clone(), error: error.clone(), phase };
        group.progress[m] = Progress::Attempted(attempted);
        group.last_served = stream.id;
        group.last_partition = message.partition;
        stream.deliveries_left = stream.deliveries_left.map(|left| left - 1);
        let consumer: ConsumerId = stream.id;
        let delivered = (topic.id, group.id, message.offset);
        let (topic, partition, offset, produced_at) =
            (topic.id, message.partition, message.offset, message.produced_at);
        self.expect(Expected::Deliver(ExpectedDelivery {
            consumer,
            topic,
            partition,
            offset,
            attempts,
            failures,
            error,
            token,
            lease_until: until,
            produced_at,
            content,
        }));
        self.note_delivery(consumer, delivered);
        Ok(())
    }
}

/// Whether the message may be delivered at `now`, by time: its timer can fire later.
pub(super) fn is_ready(progress: &Progress, is_due: impl FnOnce() -> bool, now: Timestamp) -> bool {
    match progress {
        Progress::Ready => is_due(),
        Progress::Attempted(Attempted { phase: Phase::Queued { not_before, .. }, .. }) => *not_before <= now,
        Progress::Attempted(_) | Progress::Acked => false,
    }
}

/// The number of running leases of the group in the partition.
pub(super) fn in_flight(topic: &Topic, group: usize, partition: PartitionId) -> u32 {
    let all = topic.messages.iter().zip(&topic.groups[group].progress);
    let running = all.filter(|(message, progress)| message.partition == partition && progress.is_leased());
    running.count() as u32
}
