//! Applies a purge: removes the messages of a topic.

use super::group::Progress;
use super::partition::Partition;
use super::{Contradiction, State};
use crate::collections::shared::unshared;
use crate::types::{Offset, OffsetRef, Position, Timestamp, TopicId, Winner};

impl State {
    /// Removes the messages of a topic below `ends`, one position per partition. A message that was leased remembers
    /// until `winner_until` that no worker has acked it.
    pub(crate) fn purge(
        &mut self,
        topic: TopicId,
        ends: &[Position],
        winner_until: Timestamp,
    ) -> Result<(), Contradiction> {
        let fenced = self.leased_below(topic, ends)?;
        let topic = self.topic_mut(topic)?;
        if !ends.iter().zip(&topic.partitions).all(|(end, partition)| *end <= partition.next_position) {
            return Err(Contradiction("purge beyond the end of the partition"));
        }
        for (index, end) in ends.iter().enumerate() {
            let partition = unshared(&mut topic.partitions[index]);
            let Some(last_offset) = partition.last_offset_below(*end) else { continue };
            partition.purge(*end, last_offset);
            for group in topic.groups.values_mut().map(unshared) {
                unshared(&mut group.partitions[index]).purge(*end, last_offset);
            }
        }
        let winner = Winner { token: None, until: winner_until };
        fenced.into_iter().try_for_each(|message| self.remember_winner(message, winner))
    }

    /// The leased messages of a topic below `ends`, once per group.
    fn leased_below(&self, topic: TopicId, ends: &[Position]) -> Result<Vec<OffsetRef>, Contradiction> {
        let topic = self.topic(topic).ok_or(Contradiction("no such topic"))?;
        if ends.len() != topic.partition_count() as usize {
            return Err(Contradiction("purge does not name every partition"));
        }
        let mut leased = Vec::new();
        for group in topic.groups.values() {
            for ((partition, progress), end) in group.partitions().zip(ends) {
                let below = progress.deliveries().take_while(|(position, _)| position < end);
                let offsets = below.filter(|(_, delivery)| delivery.leased_until().is_some());
                // Most deliveries can be waiting for a retry: stops at the last lease.
                leased.extend(offsets.take(progress.in_flight as usize).map(|(_, delivery)| OffsetRef {
                    topic: topic.id,
                    group: group.id,
                    partition,
                    offset: delivery.offset,
                }));
            }
        }
        Ok(leased)
    }
}

impl Partition {
    /// Removes and trims the messages below `end`. `last_offset` is the offset of the message before `end`.
    fn purge(&mut self, end: Position, last_offset: Offset) {
        let retained = self.retained.runs_between(Position(0), end);
        let mut load = self.load_of(Position(0), end);
        for (from, to, _) in retained {
            let (retained, memory) = self.sums_of(from, to);
            self.retained_load.subtract(retained);
            self.retained_memory -= memory;
            load.subtract(retained);
        }
        self.backlog.subtract(load);
        self.messages.remove_below(end);
        self.trimmed.raise_floor(end, last_offset);
        self.forget(Position(0), end);
    }

    /// The offset of the newest message, stored or trimmed, below `position`; `None` if there never was one.
    pub(super) fn last_offset_below(&self, position: Position) -> Option<Offset> {
        let stored = self.messages.last_below(position).map(|(_, message)| message.offset);
        stored.max(self.trimmed.last_offset_below(position))
    }
}

impl Progress {
    /// Acks the messages below `end` and forgets their deliveries.
    fn purge(&mut self, end: Position, last_offset: Offset) {
        self.acked.raise_floor(end, last_offset);
        let removed = self.deliveries.take_below(&end);
        if self.deliveries.is_empty() {
            self.in_flight = 0;
        } else {
            let leased = removed.iter().filter(|(_, delivery)| delivery.leased_until().is_some());
            self.in_flight -= leased.count() as u32;
        }
    }
}
