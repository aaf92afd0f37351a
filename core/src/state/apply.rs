//! Applies records: the only code that changes the state, live and in recovery.

use std::sync::Arc;

use super::dedupe::DedupeEntry;
use super::group::{Group, Progress};
use super::message::NewMessage;
use super::partition::Partition;
use super::topic::Topic;
use super::{Contradiction, State};
use crate::collections::shared::unshared;
use crate::record::{DedupeWindow, Event, MessageAt, Record};
use crate::types::{
    Body, DeliveryState, GroupId, GroupOrigin, LastError, LeaseToken, MessageRef, Millis, Offset, OwnerName,
    PARTITIONS_CEILING, PartitionId, PayloadId, Phase, Retention, Timestamp, TopicId, TopicName, Winner,
};

impl State {
    /// Applies `record`, the next of the log: its LSN is one above [`State::last_lsn`].
    ///
    /// # Errors
    /// [`Contradiction`] if the record was not decided against this state, which must not be used any further then.
    // One arm per event: an exhaustive match in one place shows everything that can change the state.
    pub fn apply(&mut self, record: &Record) -> Result<(), Contradiction> {
        let at = record.at.max(self.clock);
        self.clock = at;
        if !matches!(record.event, Event::Restored(_)) {
            self.last_lsn = self.last_lsn.next();
        }
        match &record.event {
            Event::Booted { boot } => {
                // A reused boot would reuse lease tokens.
                if boot.0.checked_sub(1) != Some(self.boot.0) {
                    return Err(Contradiction("boot is not the next"));
                }
                self.boot = *boot;
            }
            Event::TopicCreated { topic, name, partitions, retention } => {
                check_partition_count(*partitions)?;
                self.insert_topic(Topic::new(*topic, name.clone(), *partitions, *retention))?;
            }
            Event::RetentionChanged { topic, retention } => self.set_retention(*topic, *retention)?,
            Event::TopicDeleted { topic } => {
                let topic = self.topics.remove(topic).ok_or(Contradiction("no such topic"))?;
                self.store.drop_topic(&topic.name);
                self.set_dead_letters_of_source(&topic.name, None);
                self.names.remove(&topic.name);
                self.dedupe.retain(|scope, _| !scope.names(&topic.name));
                self.forget_winners_of_topic(topic.id);
            }
            Event::GroupCreated { topic, group, name, start, origin } => {
                self.topic_mut(*topic)?.create_group((*group, name.clone()), *start, *origin, at)?;
            }
            Event::GroupOriginChanged { topic, group, origin } => self.group_mut(*topic, *group)?.origin = *origin,
            Event::GroupDeleted { topic, group } => {
                let name = self.group_mut(*topic, *group)?.name.clone();
                let topic_name = self.topic_mut(*topic)?.name.clone();
                self.store.drop_table(&topic_name, &name);
                self.topic_mut(*topic)?.delete_group(*group, at)?;
                self.forget_winners_of_group(*topic, *group);
            }
            Event::GroupPaused { topic, group } => self.group_mut(*topic, *group)?.paused = true,
            Event::GroupResumed { topic, group } => self.group_mut(*topic, *group)?.paused = false,
            Event::GroupSought { topic, group, targets } => {
                self.topic_mut(*topic)?.seek_group(*group, targets, at)?;
                self.forget_winners_of_group(*topic, *group);
            }
            Event::Purged { topic, ends, winner_until } => self.purge(*topic, ends, *winner_until)?,
            Event::Produced { topic, partition, offset, body, dedupe, skipped } => {
                let stored = (body, self.payload(0));
                self.store_message(*topic, (*partition, *offset), stored, dedupe.as_ref(), skipped, at)?;
            }
            Event::Delivered { message_ref, token, owner, until } => {
                self.deliver(message_ref, *token, owner.clone(), *until)?;
            }
            Event::Acked { message_ref, commits, winner_until } => {
                self.ack_delivery(message_ref, *commits, *winner_until, at)?;
            }
            Event::CumulativelyAcked { topic, group, partition, acks } => {
                if acks.is_empty() || !acks.is_sorted_by(|one, next| one.position < next.position) {
                    return Err(Contradiction("cumulative ack of nothing, or in disorder"));
                }
                for ack in acks {
                    let (topic, group, partition, position) = (*topic, *group, *partition, ack.position);
                    let message_ref = MessageRef { topic, group, partition, position };
                    self.ack_delivery(&message_ref, ack.commits, ack.winner_until, at)?;
                }
            }
            Event::Nacked { message_ref, reason, not_before } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |delivery| {
                    delivery.failures = delivery.failures.saturating_add(1);
                    if let Some(reason) = reason {
                        delivery.last_error = LastError::Reason(reason.clone());
                    }
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::ReasonNoted { message_ref, reason } => {
                self.delivery_mut(message_ref)?.last_error = LastError::Reason(reason.clone());
            }
            Event::Expired { message_ref, not_before } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |delivery| {
                    delivery.failures = delivery.failures.saturating_add(1);
                    delivery.last_error = std::mem::take(&mut delivery.last_error).after_expiry();
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::Extended { message_ref, until } => self.extend(message_ref, *until)?,
            Event::Released { message_ref } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |_| Phase::Queued { not_before: at })?;
            }
            Event::Withdrawn { message_ref } => {
                self.pin_effect(message_ref, at);
                self.withdraw_delivery(message_ref, at)?;
            }
            Event::DeadLettered {
                message_ref,
                dead_topic,
                dead_partition,
                dead_offset,
                reason,
                last_error,
                winner_until,
            } => {
                let dead = (*dead_topic, *dead_partition, *dead_offset);
                self.dead_letter_message(message_ref, dead, (*reason, last_error), *winner_until, at)?;
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => {
                let target = self.topic(*topic).ok_or(Contradiction("no such topic"))?;
                self.is_dead_letter_topic_of(target, *dead_topic)?;
                let redriven = self.take_dead_letter(*dead_topic, *dead_partition, *dead_position, at)?;
                let payload = redriven.payload.id;
                let position = self.topic_mut(*topic)?.store_for_one(*group, *partition, *offset, at, redriven)?;
                self.add_referrer(payload, MessageAt { topic: *topic, partition: *partition, position });
            }
            Event::RetentionExpired { topic, partition, through } => {
                self.partition_mut(*topic, *partition)?.expire_retained(*through);
            }
            Event::DedupeExpired { scope, count } => {
                let table = self.dedupe.get_mut(scope).ok_or(Contradiction("no such dedupe table"))?;
                if table.expired(at, *count) != *count {
                    return Err(Contradiction("expiry of dedupe entries within their window"));
                }
                unshared(table).sweep(*count);
                if table.is_empty() {
                    self.dedupe.remove(scope);
                }
            }
            Event::EffectBegun(begun) => self.effect_begun(begun, at)?,
            Event::EffectFinished { identity, outcome } => self.effect_finished(identity, outcome, at)?,
            Event::EffectDeadLettered(failed) => self.effect_dead_lettered(failed, at)?,
            Event::EffectRenewed { identity, until } => self.effect_renewed(identity, *until, at)?,
            Event::EffectForgotten { identity } => {
                self.store.remove(identity).ok_or(Contradiction("no such effect"))?;
            }
            Event::EffectsExpired { namespace, count } => self.effects_expired(namespace, *count, at)?,
            Event::Completed(step) => self.complete(step, at)?,
            Event::CompletionsExpired { count } => self.completions_expired(*count)?,
            Event::WinnersExpired { count } => self.winners_expired(*count)?,
            Event::Relocated(relocated) => self.relocate(relocated)?,
            Event::PayloadLost(lost) => self.lose_payload(lost)?,
            Event::WallClockAdjusted(adjustment) => {
                let adjusted = self.wall_clock.adjusted(*adjustment, at);
                self.wall_clock = adjusted.ok_or(Contradiction("adjustment of another wall clock"))?;
            }
            Event::KeyCreated(key) => self.create_key(key, at)?,
            Event::KeyRevoked { key } => self.revoke_key(*key)?,
            Event::KeyBound { key, certificate_san } => self.bind_key(*key, certificate_san.as_ref())?,
            Event::TenantCreated { tenant, name } => self.create_tenant(*tenant, name)?,
            Event::TenantDeleted { tenant } => self.delete_tenant(*tenant)?,
            Event::Audited(audit) => self.add_audit(audit, at),
            Event::Restored(image) => self.restore(image)?,
        }
        Ok(())
    }

    /// The place of a payload of the record that is being applied.
    pub(crate) fn payload(&self, part: u32) -> PayloadId {
        PayloadId { lsn: self.last_lsn, part }
    }

    pub(crate) fn set_retention(&mut self, topic: TopicId, retention: Retention) -> Result<(), Contradiction> {
        self.topic_mut(topic)?.retention = retention.recorded();
        Ok(())
    }

    /// Stores a message and its dedupe entry, if it has an idempotency key, and acks it in the `skipped` groups.
    pub(super) fn store_message(
        &mut self,
        topic: TopicId,
        (partition, offset): (PartitionId, Offset),
        (body, payload): (&Body, PayloadId),
        dedupe: Option<&DedupeWindow>,
        skipped: &[GroupId],
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        let new = NewMessage::produced(payload, body);
        let position = self.topic_mut(topic)?.store(partition, offset, at, new)?;
        if let Some(dedupe) = dedupe {
            self.insert_dedupe_entry(dedupe, body, at, (partition, offset))?;
        }
        if skipped.is_empty() {
            return Ok(());
        }
        let stored_in = self.topic(topic).expect("the message was stored in it");
        if !stored_in.groups().map(Group::id).eq(skipped.iter().copied()) {
            return Err(Contradiction("skip that does not name every group"));
        }
        let key = body.identity_key().ok_or(Contradiction("skip of a message without an idempotency key"))?;
        if !stored_in.groups().all(|group| self.is_done(stored_in, group, (body, &key), at)) {
            return Err(Contradiction("skip of a message whose identity is not committed"));
        }
        skipped.iter().try_for_each(|group| self.skip(&MessageRef { topic, group: *group, partition, position }))
    }

    /// Acks a message that was never delivered to the group, and counts it.
    pub(crate) fn skip(&mut self, message_ref: &MessageRef) -> Result<(), Contradiction> {
        self.ack(message_ref)?;
        let group = self.group_mut(message_ref.topic, message_ref.group)?;
        group.skipped = group.skipped.saturating_add(1);
        Ok(())
    }

    pub(super) fn insert_topic(&mut self, mut topic: Topic) -> Result<(), Contradiction> {
        if !self.has_tenant(topic.name.tenant()) {
            return Err(Contradiction("topic of a tenant that is not registered"));
        }
        if topic.id != self.next_topic || self.names.contains_key(&topic.name) {
            return Err(Contradiction("topic exists, or its id is not the next"));
        }
        self.next_topic = topic.id.next();
        topic.dead_letters = topic.dead_letter_name().and_then(|name| self.names.get(name)).copied();
        self.set_dead_letters_of_source(&topic.name, Some(topic.id));
        self.names.insert(topic.name.clone(), topic.id);
        self.topics.insert(topic.id, Arc::new(topic));
        Ok(())
    }

    /// Links the source of the dead-letter topic `name`, if it exists, to the topic or unlinks it.
    fn set_dead_letters_of_source(&mut self, name: &TopicName, dead_letters: Option<TopicId>) {
        let source = name.dead_letter_source().and_then(|source| self.names.get(&source));
        if let Some(source) = source.and_then(|id| self.topics.get_mut(id)) {
            unshared(source).dead_letters = dead_letters;
        }
    }

    fn insert_dedupe_entry(
        &mut self,
        dedupe: &DedupeWindow,
        body: &Body,
        at: Timestamp,
        (partition, offset): (PartitionId, Offset),
    ) -> Result<(), Contradiction> {
        let key = body.identity_key().ok_or(Contradiction("dedupe window of a message without an idempotency key"))?;
        let table = self.dedupe.entry(dedupe.scope.clone()).or_default();
        let entry = DedupeEntry { partition, offset, expires_at: dedupe.expires_at };
        match unshared(table).insert(key, entry) {
            Some(before) if at < before.expires_at => Err(Contradiction("dedupe key stored twice in its window")),
            _ => Ok(()),
        }
    }

    fn deliver(
        &mut self,
        message_ref: &MessageRef,
        token: LeaseToken,
        owner: OwnerName,
        until: Timestamp,
    ) -> Result<(), Contradiction> {
        if token.boot != self.boot {
            return Err(Contradiction("lease token of another boot"));
        }
        let topic = self.topic_mut(message_ref.topic)?;
        let offset =
            topic.partition(message_ref.partition).and_then(|partition| partition.offset_at(message_ref.position));
        let offset = offset.ok_or(Contradiction("delivery of a message that is not stored"))?;
        let progress = progress_mut(topic, message_ref)?;
        if progress.acked.contains(message_ref.position) {
            return Err(Contradiction("delivery of an acked message"));
        }
        // A first delivery is usually beyond all delivered messages and needs no search.
        let known = match progress.deliveries.last() {
            Some((last, _)) if *last >= message_ref.position => progress.deliveries.get_mut(&message_ref.position),
            _ => None,
        };
        match known {
            Some(delivery) => {
                if let Phase::Leased { .. } = delivery.phase {
                    return Err(Contradiction("delivery of a leased message"));
                }
                delivery.attempts = delivery.attempts.saturating_add(1);
                delivery.token = token;
                delivery.owner = owner;
                delivery.phase = Phase::Leased { until };
            }
            None => {
                let phase = Phase::Leased { until };
                let delivery = DeliveryState {
                    offset,
                    attempts: 1,
                    failures: 0,
                    token,
                    owner,
                    phase,
                    last_error: LastError::Nothing,
                };
                progress.deliveries.insert(message_ref.position, delivery);
            }
        }
        progress.in_flight += 1;
        Ok(())
    }

    fn extend(&mut self, message_ref: &MessageRef, until: Timestamp) -> Result<(), Contradiction> {
        match &mut self.delivery_mut(message_ref)?.phase {
            Phase::Leased { until: end } => *end = until,
            Phase::Queued { .. } => return Err(Contradiction("extension of a lease that has ended")),
        }
        Ok(())
    }

    fn requeue(
        &mut self,
        message_ref: &MessageRef,
        change: impl FnOnce(&mut DeliveryState) -> Phase,
    ) -> Result<(), Contradiction> {
        progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?
            .requeue(message_ref.position, change)
            .ok_or(Contradiction("end of a lease that has ended"))
    }

    /// Takes back the newest delivery of a leased message; its token stays used.
    fn withdraw_delivery(&mut self, message_ref: &MessageRef, at: Timestamp) -> Result<(), Contradiction> {
        self.requeue(message_ref, |delivery| {
            delivery.attempts = delivery.attempts.saturating_sub(1);
            Phase::Queued { not_before: at }
        })?;
        if self.delivery_mut(message_ref)?.attempts == 0 {
            progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?.remove_delivery(message_ref.position);
        }
        Ok(())
    }

    /// Acks a delivered message: commits its effect, and remembers its winner.
    #[inline]
    fn ack_delivery(
        &mut self,
        message_ref: &MessageRef,
        commits: Option<Millis>,
        winner_until: Option<Timestamp>,
        at: Timestamp,
    ) -> Result<(), Contradiction> {
        if let Some(window) = commits {
            self.commit_effect(message_ref, window, at)?;
        }
        let delivery = self.ack_delivered(message_ref)?;
        match winner_until {
            Some(until) => {
                let winner = Winner { token: Some(delivery.token), until };
                self.remember_winner(message_ref.at_offset(delivery.offset), winner)
            }
            None => Ok(()),
        }
    }

    /// Acks a message that was delivered to its group on behalf of a consumer, and returns its newest delivery.
    pub(super) fn ack_delivered(&mut self, message_ref: &MessageRef) -> Result<DeliveryState, Contradiction> {
        let (group, delivery) = self.ack_in_group(message_ref)?;
        // Snapshots from before groups had an origin do not say it of their groups, all of which were requested.
        group.has_acked |= group.origin != GroupOrigin::Requested;
        delivery.ok_or(Contradiction("no such delivery"))
    }

    /// Acks a message in its group: it was dead-lettered or skipped.
    pub(crate) fn ack(&mut self, message_ref: &MessageRef) -> Result<(), Contradiction> {
        self.ack_in_group(message_ref).map(drop)
    }

    /// Acks a message in its group, and returns the group and the newest delivery; `None` if there was none.
    #[inline]
    fn ack_in_group(&mut self, message_ref: &MessageRef) -> Result<(&mut Group, Option<DeliveryState>), Contradiction> {
        let topic = self.topic_mut(message_ref.topic)?;
        let (groups, retention) = (topic.groups.len() as u32, topic.retention);
        let (group, partition) = topic
            .group_and_partition_mut(message_ref.group, message_ref.partition)
            .ok_or(Contradiction("no such group or partition"))?;
        let progress = group.partitions.get_mut(message_ref.partition.0 as usize).map(unshared);
        let progress = progress.expect("every group has every partition");
        if progress.acked.contains(message_ref.position) {
            return Err(Contradiction("ack of an acked message"));
        }
        let offset = partition.count_ack(message_ref.position, groups, retention);
        let offset = offset.ok_or(Contradiction("ack of a message that is not stored"))?;
        progress.acked.insert(message_ref.position, offset);
        let delivery = progress.remove_delivery(message_ref.position);
        Ok((group, delivery))
    }

    pub(crate) fn partition_mut(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
    ) -> Result<&mut Partition, Contradiction> {
        self.topic_mut(topic)?.partition_mut(partition).ok_or(Contradiction("no such partition"))
    }

    pub(crate) fn group_mut(&mut self, topic: TopicId, group: GroupId) -> Result<&mut Group, Contradiction> {
        self.topic_mut(topic)?.group_mut(group).ok_or(Contradiction("no such group"))
    }

    pub(crate) fn delivery_mut(&mut self, message_ref: &MessageRef) -> Result<&mut DeliveryState, Contradiction> {
        let progress = progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?;
        progress.deliveries.get_mut(&message_ref.position).ok_or(Contradiction("no such delivery"))
    }
}

/// Rejects a counter that no log can have reached, so that it never overflows.
pub(super) fn check_counter(number: u64) -> Result<(), Contradiction> {
    if number > u64::MAX / 2 { Err(Contradiction("counter out of range")) } else { Ok(()) }
}

/// As [`check_counter`], for 32-bit counters.
pub(super) fn check_counter32(number: u32) -> Result<(), Contradiction> {
    check_counter(u64::from(number) << 32)
}

/// Rejects a partition count that no topic can have, before memory is allocated for it.
pub(super) fn check_partition_count(partitions: u32) -> Result<(), Contradiction> {
    match partitions {
        0 => Err(Contradiction("topic without partitions")),
        1..=PARTITIONS_CEILING => Ok(()),
        _ => Err(Contradiction("more partitions than a topic can have")),
    }
}

fn progress_mut<'a>(topic: &'a mut Topic, message_ref: &MessageRef) -> Result<&'a mut Progress, Contradiction> {
    topic.progress_mut(message_ref.group, message_ref.partition).ok_or(Contradiction("no such group or partition"))
}
