//! Reads: describe, peek, and what becomes of routing.

use super::Broker;
use crate::command::{Complete, Peek};
use crate::decide;
use crate::faults::Faults;
use crate::index::Due;
use crate::reply::{Blocked, GroupInfo, PartitionInfo, ProgressInfo, Refusal, Reply, RouterUse, TopicInfo};
use crate::state::{Group, Message, Partition, Progress, Topic};
use crate::types::{Offset, PartitionId, Phase, Position, TopicId, TopicName};

impl<F: Faults> Broker<F> {
    /// What becomes of the router's decision about each output of `step` if the step is the next command and is
    /// accepted. `None` if it was completed before: its reply is repeated, and nothing is stored.
    ///
    /// The reply does not say so, because it is kept in the log to be repeated.
    #[must_use]
    pub fn router_uses(&self, step: &Complete) -> Option<Vec<RouterUse>> {
        decide::complete::router_uses(&self.state, self.now, step)
    }

    pub(super) fn describe(&self, name: &TopicName) -> Result<Reply, Refusal> {
        let topic = decide::topic(&self.state, name)?;
        let partitions = topic.partitions().map(|(id, partition)| self.describe_partition(topic, id, partition));
        let groups = topic.groups().map(|group| GroupInfo {
            group: group.name().clone(),
            paused: group.is_paused(),
            skipped: group.skipped(),
            consumers: self.index.members(topic.id(), group.id()).count(),
            partitions: group
                .partitions()
                .map(|(id, progress)| self.describe_progress(topic, group, id, progress))
                .collect(),
        });
        Ok(Reply::Topic(Box::new(TopicInfo {
            name: name.clone(),
            retention: topic.retention(),
            partitions: partitions.collect(),
            groups: groups.collect(),
        })))
    }

    /// The messages of a peek.
    pub(super) fn peeked(&self, peek: &Peek) -> Result<Vec<Message>, Refusal> {
        let Peek { topic, partition, offset, limit } = peek;
        let (topic, partition) = (decide::topic(&self.state, topic)?, *partition);
        let messages = topic
            .partition(partition)
            .ok_or(Refusal::PartitionOutOfRange { partition, partitions: topic.partition_count() })?;
        let Some((first, _)) = messages.first_from_offset(*offset) else { return Ok(Vec::new()) };
        Ok(messages.messages_from(first).take(*limit).map(|(_, message)| message).collect())
    }

    fn describe_partition(&self, topic: &Topic, id: PartitionId, partition: &Partition) -> PartitionInfo {
        PartitionInfo {
            partition: id,
            next_offset: partition.last_offset().map_or(Offset(0), Offset::next),
            messages: partition.backlog().messages,
            bytes: partition.backlog().bytes,
            delayed: self.delayed_len(topic.id(), id),
        }
    }

    /// The number of delayed messages of a partition.
    fn delayed_len(&self, topic: TopicId, partition: PartitionId) -> u64 {
        if !self.has_late_timers() {
            return self.index.delayed_len(topic, partition);
        }
        self.index.delays(topic, partition).filter(|(_, until)| !self.has_passed(*until)).count() as u64
    }

    /// Whether there are timers that are due: they wait while the log has no space, or for the next call.
    fn has_late_timers(&self) -> bool {
        let timers = &self.index.timers;
        self.stalled_until.is_some()
            || timers.due(self.now).is_some()
            || timers.due_in_wall_time(self.state.wall_clock(), self.now).is_some()
    }

    /// Whether a message waits for the end of its delay, which can be over before its timer fires.
    fn is_delayed(&self, topic: TopicId, partition: PartitionId, position: Position) -> bool {
        self.index.is_delayed(topic, partition, position)
            && (!self.has_late_timers()
                || self.index.delays(topic, partition).any(|(at, until)| at == position && !self.has_passed(until)))
    }

    fn has_passed(&self, time: Due) -> bool {
        match time {
            Due::Broker(at) => at <= self.now,
            Due::Wall(at) => at <= self.wall(),
        }
    }

    fn describe_progress(&self, topic: &Topic, group: &Group, id: PartitionId, progress: &Progress) -> ProgressInfo {
        let partition = topic.partition(id).expect("every group has every partition");
        let oldest = partition.message(progress.acked().floor());
        ProgressInfo {
            partition: id,
            floor: progress.acked().floor_offset(),
            lag: progress.acked().unacked_before(partition.next_position()),
            in_flight: progress.in_flight(),
            waiting: progress.waiting(),
            oldest_age: oldest.map(|message| self.now.since(message.produced_at)),
            blocked: self.blocked(topic, group, id, progress),
        }
    }

    /// Why nothing is dispatched, if unacked messages are not in flight.
    fn blocked(&self, topic: &Topic, group: &Group, id: PartitionId, progress: &Progress) -> Option<Blocked> {
        let partition = topic.partition(id).expect("every group has every partition");
        let lag = progress.acked().unacked_before(partition.next_position());
        if lag == u64::from(progress.in_flight()) {
            return None;
        }
        if group.is_paused() {
            return Some(Blocked::Paused);
        }
        if self.index.members(topic.id(), group.id()).next().is_none() {
            return Some(Blocked::NoConsumers);
        }
        if progress.in_flight() >= self.limits.in_flight_max {
            return Some(Blocked::InFlightLimit);
        }
        if !self.index.group_has_credit(topic.id(), group.id()) {
            return Some(Blocked::NoCredit);
        }
        let unacked = |from: Position| {
            let position = progress.acked().first_unacked_from(from);
            (position < partition.next_position()).then_some(position)
        };
        let unacked = std::iter::successors(unacked(Position(0)), |position| unacked(position.next()));
        // The result is informational.
        let mut due = unacked.take(self.limits.work.unacked_examined).filter(|position| {
            match progress.delivery(*position).map(|delivery| delivery.phase) {
                None => !self.is_delayed(topic.id(), id, *position),
                Some(Phase::Leased { .. }) => false,
                // Its delay has passed once, also if wall time was set back since.
                Some(Phase::Queued { not_before }) => not_before <= self.now,
            }
        });
        if due.next().is_some() { None } else { Some(Blocked::NotYetDue) }
    }
}
