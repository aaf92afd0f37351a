//! Applies dead-lettering and redrive, and changes the decision fields of the message.

use std::sync::Arc;

use super::message::NewMessage;
use super::topic::Topic;
use super::{Contradiction, State};
use crate::record::{DeadLetterSlot, MessageAt};
use crate::types::{
    DeadLetterOrigin, DeadReason, DecisionFields, MessageRef, Offset, PartitionId, Position, Text, Timestamp, TopicId,
    Winner,
};

impl State {
    /// Stores a dead letter of `source`, which is not acked by this, and returns the offset of `source`.
    pub(crate) fn store_dead_letter(
        &mut self,
        source: &MessageRef,
        (dead_topic, partition, offset): (TopicId, PartitionId, Offset),
        (reason, last_error): (DeadReason, &Text),
        at: Timestamp,
    ) -> Result<Offset, Contradiction> {
        let (dead, source_offset) = self.dead_letter(source, reason, last_error, at)?;
        self.unpin_effect(source);
        self.ensure_dead_letter_topic(source, dead_topic)?;
        let payload = dead.payload.id;
        let position = self.topic_mut(dead_topic)?.store(partition, offset, at, dead)?;
        self.add_referrer(payload, MessageAt { topic: dead_topic, partition, position });
        Ok(source_offset)
    }

    /// Stores a dead letter of `source`, acks `source`, and remembers until `winner_until` that no delivery has acked
    /// it.
    pub(super) fn dead_letter_message(
        &mut self,
        source: &MessageRef,
        dead: (TopicId, PartitionId, Offset),
        why: (DeadReason, &Text),
        winner_until: Timestamp,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let offset = self.store_dead_letter(source, dead, why, at)?;
        self.ack(source)?;
        self.remember_winner(source.at_offset(offset), Winner { token: None, until: winner_until })
    }

    /// As [`State::dead_letter_message`], at a worker's request.
    pub(super) fn dead_letter_into(
        &mut self,
        source: &MessageRef,
        slot: &DeadLetterSlot,
        winner_until: Timestamp,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let (dead, why) = ((slot.topic, slot.partition, slot.offset), (DeadReason::NonRetryable, &slot.last_error));
        self.dead_letter_message(source, dead, why, winner_until, at)
    }

    /// Creates the dead-letter topic with its first dead letter.
    fn ensure_dead_letter_topic(&mut self, message_ref: &MessageRef, dead_topic: TopicId) -> Result<(), Contradiction> {
        let source = self.topic(message_ref.topic).ok_or(Contradiction("no such topic"))?;
        let name = source.dead_letter_name().ok_or(Contradiction("dead-lettering of a dead letter"))?.clone();
        if self.is_dead_letter_topic_of(source, dead_topic)? {
            return Ok(());
        }
        let (partitions, retention) = (source.partition_count(), source.retention);
        self.insert_topic(Topic::new(dead_topic, name, partitions, retention))
    }

    /// Whether `dead_topic` exists. A contradiction if it is not the dead-letter topic of `source`.
    pub(super) fn is_dead_letter_topic_of(&self, source: &Topic, dead_topic: TopicId) -> Result<bool, Contradiction> {
        match self.topic(dead_topic) {
            Some(dead) if source.dead_letter_name() != Some(&dead.name) => {
                Err(Contradiction("dead letters of another topic"))
            }
            found => Ok(found.is_some()),
        }
    }

    /// A message as a dead letter, and the message's offset.
    fn dead_letter(
        &self,
        message_ref: &MessageRef,
        reason: DeadReason,
        last_error: &Text,
        at: Timestamp,
    ) -> Result<(NewMessage, Offset), Contradiction> {
        let topic = self.topic(message_ref.topic).ok_or(Contradiction("no such topic"))?;
        let group = topic.group(message_ref.group).ok_or(Contradiction("no such group"))?;
        let message =
            topic.partition(message_ref.partition).and_then(|partition| partition.message(message_ref.position));
        let message = message.ok_or(Contradiction("dead-lettering of a message that is not stored"))?;
        let delivery =
            group.progress(message_ref.partition).and_then(|progress| progress.delivery(message_ref.position));
        let origin = DeadLetterOrigin {
            original_topic: topic.name.clone(),
            original_partition: message_ref.partition,
            original_offset: message.offset,
            group: group.name.clone(),
            attempts: delivery.map_or(0, |delivery| delivery.attempts),
            last_error: last_error.clone(),
            reason,
            routed_at: self.wall_clock.wall(at),
        };
        let fields = match message.fields() {
            Some(fields) => fields.dead_lettered(origin),
            None => DecisionFields::default().dead_lettered(origin),
        };
        Ok((NewMessage { payload: message.payload, fields: Some(Arc::new(fields)) }, message.offset))
    }

    /// Acks a dead letter in every group of its topic, removes it and returns the redriven message.
    pub(crate) fn take_dead_letter(
        &mut self,
        dead_topic: TopicId,
        partition: PartitionId,
        position: Position,
        at: Timestamp,
    ) -> Result<NewMessage, Contradiction> {
        let wall = self.wall_clock.wall(at);
        let topic = self.topic_mut(dead_topic)?;
        let message = topic.partition(partition).and_then(|partition| partition.message(position));
        let message = message.ok_or(Contradiction("redrive of a message that is not stored"))?;
        let offset = message.offset;
        let fields = message.fields().and_then(|fields| fields.redriven(offset, wall));
        let fields = fields.ok_or(Contradiction("redrive of a message that is not a dead letter"))?;
        let redriven = NewMessage { payload: message.payload, fields: Some(Arc::new(fields)) };
        let unacked: Vec<_> = topic
            .groups
            .values()
            .filter(|group| group.progress(partition).is_some_and(|progress| !progress.acked.contains(position)))
            .map(|group| group.id)
            .collect();
        if unacked.is_empty() && !topic.groups.is_empty() {
            return Err(Contradiction("redrive of an acked dead letter"));
        }
        for group in unacked {
            let progress = topic.progress_mut(group, partition).expect("every group has every partition");
            progress.remove_delivery(position);
            progress.acked.insert(position, offset);
        }
        // Removed even if the topic has no groups, and never retained: a new group must not find it again, and it must
        // not displace retained messages.
        self.partition_mut(dead_topic, partition)?.remove(position);
        Ok(redriven)
    }
}
