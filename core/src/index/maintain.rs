//! Updates the index with every applied record.

use super::cursor::Cursor;
use super::leases::EndedBy;
use super::priorities::PriorityQueue;
use super::withdraw::delivery;
use super::{Clocks, GroupIndex, Index, RetainedInPartition, Sweep, Timer, TopicIndex};
use crate::collections::partition_set::PartitionSet;
use crate::record::{Completed, DeadLetterSlot, Event, MessageAt, Record, Referrer};
use crate::state::{DedupeTable, EffectTable, Group, Message, NamespaceRef, State, Topic, View};
use crate::types::{
    DeadReason, EffectNamespace, GroupId, Identity, MessageRef, Offset, PartitionId, Phase, Position, Scope, Timestamp,
    TopicId,
};

impl Index {
    /// Removes from the index what `record` is about to change. Called before the record is applied.
    pub(crate) fn before_apply(&mut self, state: &State, record: &Record) {
        match &record.event {
            Event::Completed(step) => {
                if step.effect.is_some() {
                    self.end_grant_of(state, &step.message_ref);
                }
                let by = if step.dead_letter.is_none() { EndedBy::Ack } else { EndedBy::Answer };
                self.withdraw(state, &step.message_ref, by, record.at);
            }
            Event::CumulativelyAcked { topic, group, partition, acks } => {
                for ack in acks {
                    let (topic, group, partition, position) = (*topic, *group, *partition, ack.position);
                    let message_ref = MessageRef { topic, group, partition, position };
                    if ack.commits.is_some() {
                        self.end_grant_of(state, &message_ref);
                    }
                    self.withdraw(state, &message_ref, EndedBy::Ack, record.at);
                }
            }
            Event::EffectDeadLettered(failed) => {
                self.withdraw(state, &failed.message_ref, EndedBy::Answer, record.at);
            }
            Event::Acked { message_ref, commits, .. } => {
                if commits.is_some() {
                    self.end_grant_of(state, message_ref);
                }
                self.withdraw(state, message_ref, EndedBy::Ack, record.at);
            }
            Event::Nacked { message_ref, .. } | Event::Released { message_ref } => {
                self.withdraw(state, message_ref, EndedBy::Answer, record.at);
            }
            Event::Expired { message_ref, .. } => self.withdraw(state, message_ref, EndedBy::Expiry, record.at),
            Event::Withdrawn { message_ref } => self.withdraw(state, message_ref, EndedBy::Other, record.at),
            Event::DeadLettered { message_ref, reason, .. } => {
                let leased = delivery(state, message_ref).is_some_and(|delivery| delivery.leased_until().is_some());
                let by = match leased {
                    true => self.leases.ended_by(message_ref),
                    // A worker said so after its lease had ended.
                    false if *reason == DeadReason::NonRetryable => EndedBy::Answer,
                    false => EndedBy::Other,
                };
                self.withdraw(state, message_ref, by, record.at);
                self.forget_expired_lease(message_ref, EndedBy::Other, record.at);
            }
            Event::Extended { message_ref, .. } => self.cancel_lease_timer(message_ref),
            Event::ReasonNoted { message_ref, .. } => self.answered(message_ref),
            Event::Redriven { dead_topic, dead_partition, dead_position, .. } => {
                let groups = state.topic(*dead_topic).into_iter().flat_map(Topic::groups).map(Group::id);
                for group in groups.collect::<Vec<_>>() {
                    let message_ref =
                        MessageRef { topic: *dead_topic, group, partition: *dead_partition, position: *dead_position };
                    self.withdraw(state, &message_ref, EndedBy::Other, record.at);
                }
            }
            Event::GroupDeleted { topic, group } => {
                self.withdraw_group(state, *topic, *group, record.at);
                let topic = state.topic(*topic).expect("the topic of a group exists");
                let group = topic.group(*group).map(Group::name);
                self.deleted.push_back(state.view_of_effects(topic.name(), group));
                self.keep_removed(state, record);
            }
            Event::GroupSought { topic, group, .. } => {
                self.withdraw_group(state, *topic, *group, record.at);
                self.keep_removed(state, record);
            }
            Event::GroupCreated { .. } => self.keep_removed(state, record),
            Event::TopicDeleted { topic } => self.drop_topic(state, *topic, record.at),
            Event::Purged { topic, .. } => {
                let groups = state.topic(*topic).into_iter().flat_map(Topic::groups).map(Group::id);
                groups.for_each(|group| self.withdraw_group(state, *topic, group, record.at));
                self.deleted.extend(state.view_of(*topic));
            }
            // These end no lease and remove no queued message.
            Event::Booted { .. }
            | Event::TopicCreated { .. }
            | Event::RetentionChanged { .. }
            | Event::GroupOriginChanged { .. }
            | Event::GroupPaused { .. }
            | Event::GroupResumed { .. }
            | Event::Produced { .. }
            | Event::Delivered { .. }
            | Event::RetentionExpired { .. }
            | Event::DedupeExpired { .. }
            | Event::EffectBegun(_)
            | Event::EffectFinished { .. }
            | Event::EffectRenewed { .. }
            | Event::EffectForgotten { .. }
            | Event::EffectsExpired { .. }
            | Event::CompletionsExpired { .. }
            | Event::WinnersExpired { .. }
            | Event::Relocated(_)
            | Event::PayloadLost(_)
            | Event::WallClockAdjusted(_)
            | Event::KeyCreated(_)
            | Event::KeyRevoked { .. }
            | Event::KeyBound { .. }
            | Event::TenantCreated { .. }
            | Event::TenantDeleted { .. }
            | Event::Audited(_)
            | Event::Restored(_) => {}
        }
    }

    /// Shares what the record can remove in bulk, so that it is not freed all at once.
    fn keep_removed(&mut self, state: &State, record: &Record) {
        if let Event::GroupDeleted { topic, group } | Event::GroupSought { topic, group, .. } = &record.event {
            self.deleted.extend(state.view_of_group(*topic, *group));
        }
        if let Event::GroupCreated { topic, .. }
        | Event::GroupDeleted { topic, .. }
        | Event::GroupSought { topic, .. } = &record.event
        {
            self.before = state.partitions_of(*topic);
        }
    }

    /// Keeps the partitions that have lost many messages, as they were before, to free those in parts.
    fn reclaim_removed(&mut self, topic: &Topic) {
        let before = std::mem::take(&mut self.before);
        for ((id, partition), before) in topic.partitions().zip(before) {
            let removed = before.kept().messages.saturating_sub(partition.kept().messages);
            if removed > self.parts_freed_per_call as u64 {
                self.deleted.push_back(View::of_partition(topic.id(), id, before));
            }
        }
    }

    /// A message is acked and its effect committed: ends the grant of the effect, if it has one.
    fn end_grant_of(&mut self, state: &State, message_ref: &MessageRef) {
        if !self.leases.grants.is_empty()
            && let Some(token) = state.effect_at(message_ref).and_then(|effect| effect.token)
        {
            self.leases.grants.ended(token);
        }
    }

    /// Adds to the index what `record` has changed. Called after the record was applied.
    // One arm per event, as in `State::apply`.
    pub(crate) fn after_apply(&mut self, state: &State, record: &Record) {
        let clocks = || Clocks::of(state);
        match &record.event {
            Event::TopicCreated { topic, .. } => {
                self.add_topic(state.topic(*topic).expect("the record created it"), clocks());
            }
            Event::GroupCreated { topic, group, .. } => {
                let topic = state.topic(*topic).expect("the topic of a group exists");
                self.add_group(topic, topic.group(*group).expect("the record created it"), clocks());
                self.reclaim_removed(topic);
                self.reconcile(topic, clocks());
            }
            Event::RetentionChanged { topic, .. } => {
                let topic = state.topic(*topic).expect("the record names a topic");
                topic.partitions().for_each(|(id, partition)| self.update_retained_of(topic, id, partition));
            }
            Event::GroupOriginChanged { topic, group, .. } => self.returned(*topic, *group),
            Event::GroupDeleted { topic, group } => {
                for queue in &mut self.topic_mut(*topic).queues {
                    queue.stop_waiting(*group);
                }
                self.remove_group(*topic, *group);
                let topic = state.topic(*topic).expect("the topic of a group exists");
                self.reclaim_removed(topic);
                self.reconcile(topic, clocks());
                self.set_sweep(state, &Sweep::Winners);
            }
            Event::GroupSought { topic, group, .. } => {
                let topic = state.topic(*topic).expect("the topic of a group exists");
                self.reclaim_removed(topic);
                self.reconcile(topic, clocks());
                self.restart_group(topic, *group);
                self.set_sweep(state, &Sweep::Winners);
            }
            Event::Purged { topic, .. } => {
                let topic = state.topic(*topic).expect("the record names a topic");
                self.reconcile(topic, clocks());
                topic.groups().for_each(|group| self.restart_group(topic, group.id()));
                self.set_sweep(state, &Sweep::Winners);
            }
            Event::GroupResumed { topic, group } => self.wake(*topic, *group),
            Event::Produced { topic, partition, body, dedupe, skipped, .. } => {
                match skipped.is_empty() {
                    true if body.flags.is_in_turn() => self.wake_waiters(*topic, *partition),
                    true => self.added(state, *topic, *partition),
                    false => self.update_retained(state, *topic, *partition),
                }
                // The sweep of the oldest entry covers the others.
                if let Some(dedupe) = dedupe
                    && state.dedupe(&dedupe.scope).and_then(DedupeTable::next_expiry) == Some(dedupe.expires_at)
                {
                    self.set_sweep(state, &Sweep::Dedupe(dedupe.scope.clone()));
                }
            }
            Event::Nacked { message_ref, .. }
            | Event::Expired { message_ref, .. }
            | Event::Released { message_ref }
            | Event::Withdrawn { message_ref } => {
                self.requeued(state, message_ref);
                self.schedule_effects_of(state, message_ref);
            }
            Event::Acked { message_ref, commits, winner_until } => {
                self.acked(state, message_ref.topic, message_ref.partition, message_ref.position);
                if commits.is_some() {
                    self.schedule_effects_of(state, message_ref);
                }
                if winner_until.is_some() {
                    self.set_sweep(state, &Sweep::Winners);
                }
            }
            Event::CumulativelyAcked { topic, group, partition, acks } => {
                acks.iter().for_each(|ack| self.acked(state, *topic, *partition, ack.position));
                if let Some(first) = acks.iter().find(|ack| ack.commits.is_some()) {
                    let (topic, group, partition, position) = (*topic, *group, *partition, first.position);
                    self.schedule_effects_of(state, &MessageRef { topic, group, partition, position });
                }
                if acks.iter().any(|ack| ack.winner_until.is_some()) {
                    self.set_sweep(state, &Sweep::Winners);
                }
            }
            Event::EffectDeadLettered(failed) => {
                let message_ref = &failed.message_ref;
                self.acked(state, message_ref.topic, message_ref.partition, message_ref.position);
                self.dead_lettered(state, message_ref, &failed.dead_letter);
            }
            Event::EffectBegun(begun) => self.schedule_effects(state, &begun.identity),
            Event::EffectFinished { identity, .. } | Event::EffectRenewed { identity, .. } => {
                self.schedule_effects(state, identity);
            }
            Event::EffectsExpired { namespace, .. } => self.set_sweep(state, &Sweep::Effects(namespace.clone())),
            Event::Completed(step) => self.completed(state, step),
            Event::CompletionsExpired { .. } => self.set_sweep(state, &Sweep::Completions),
            Event::WinnersExpired { .. } => self.set_sweep(state, &Sweep::Winners),
            Event::DeadLettered { message_ref, dead_topic, dead_partition, .. } => {
                self.acked(state, message_ref.topic, message_ref.partition, message_ref.position);
                self.schedule_effects_of(state, message_ref);
                self.set_sweep(state, &Sweep::Winners);
                match self.topics.contains_key(dead_topic) {
                    true => self.added(state, *dead_topic, *dead_partition),
                    false => self.add_topic(state.topic(*dead_topic).expect("the record created it"), clocks()),
                }
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, partition, .. } => {
                self.acked(state, *dead_topic, *dead_partition, *dead_position);
                self.added(state, *topic, *partition);
            }
            Event::RetentionExpired { topic, partition, .. } => self.update_retained(state, *topic, *partition),
            Event::DedupeExpired { scope, .. } => self.set_sweep(state, &Sweep::Dedupe(scope.clone())),
            // The dispatch of a message and the extension of its lease are indexed with the LSN of the record.
            Event::Delivered { .. } | Event::Extended { .. } => {}
            // Its groups' winners are forgotten, and the oldest one left may expire earlier.
            Event::TopicDeleted { .. } => self.set_sweep(state, &Sweep::Winners),
            Event::Booted { .. } | Event::GroupPaused { .. } => {}
            Event::ReasonNoted { .. } | Event::EffectForgotten { .. } => {}
            Event::PayloadLost(lost) => lost.referrers.iter().for_each(|referrer| self.payload_lost(state, referrer)),
            // Decisions do not depend on where payloads stand.
            Event::Relocated(_) => {}
            // Timers in wall time are compared with the adjusted time when they are polled.
            Event::WallClockAdjusted(_) | Event::Restored(_) => {}
            Event::KeyCreated(_) | Event::KeyRevoked { .. } | Event::KeyBound { .. } => {}
            Event::TenantCreated { .. } | Event::TenantDeleted { .. } | Event::Audited(_) => {}
        }
    }

    /// The payload of a message was lost: no group waits for it any more, as if its deadline had passed.
    fn payload_lost(&mut self, state: &State, referrer: &Referrer) {
        let Referrer::Message(MessageAt { topic, partition, position }) = *referrer else { return };
        let topic = state.topic(topic).expect("the record names a stored message");
        let messages = topic.partition(partition).expect("the record names a stored message");
        if messages.in_backlog(position) {
            let message = messages.message(position).expect("the record names a stored message");
            self.forget_deadline((topic.id(), partition, position));
            self.watch_deadline(topic, partition, position, &message);
        }
    }

    /// A step was completed: its message is acked, its outputs are new.
    fn completed(&mut self, state: &State, step: &Completed) {
        for output in &step.outputs {
            let Some(stored) = &output.stored else { continue };
            match stored.skipped.is_empty() {
                true => self.added_at(state, stored.topic, output.partition, output.offset),
                false => self.update_retained(state, stored.topic, output.partition),
            }
            if let Some(dedupe) = &stored.dedupe {
                self.set_sweep(state, &Sweep::Dedupe(dedupe.scope.clone()));
            }
        }
        let message_ref = &step.message_ref;
        self.acked(state, message_ref.topic, message_ref.partition, message_ref.position);
        self.set_sweep(state, &Sweep::Completions);
        if let Some(slot) = &step.dead_letter {
            return self.dead_lettered(state, message_ref, slot);
        }
        if step.effect.is_some() {
            self.schedule_effects_of(state, message_ref);
        }
        if step.is_contested {
            self.set_sweep(state, &Sweep::Winners);
        }
    }

    /// A message that left its group was dead-lettered at a worker's request.
    fn dead_lettered(&mut self, state: &State, message_ref: &MessageRef, slot: &DeadLetterSlot) {
        self.schedule_effects_of(state, message_ref);
        self.set_sweep(state, &Sweep::Winners);
        match self.topics.contains_key(&slot.topic) {
            true => self.added_at(state, slot.topic, slot.partition, slot.offset),
            false => {
                let dead = state.topic(slot.topic).expect("the record created it");
                self.add_topic(dead, Clocks::of(state));
            }
        }
    }

    /// The time of an effect's expiry check can have changed.
    fn schedule_effects(&mut self, state: &State, identity: &Identity) {
        if let Scope::Consume { .. } = identity.scope {
            return self.set_sweep(state, &Sweep::Effects(EffectNamespace::of(&identity.scope)));
        }
        let next = state.store().table_in(NamespaceRef::Shared).and_then(EffectTable::next_check);
        if let Some(at) = next.filter(|at| self.sweeps.shared.is_none_or(|set| *at < set)) {
            self.timers.set_sweep(at, &Sweep::Effects(EffectNamespace::Shared));
            self.sweeps.shared = Some(at);
        }
    }

    /// As [`Index::schedule_effects`], for the effect of a message in its group.
    fn schedule_effects_of(&mut self, state: &State, message_ref: &MessageRef) {
        if state.store().is_empty() {
            return;
        }
        let topic = state.topic(message_ref.topic).expect("the topic of a message exists");
        let group = topic.group(message_ref.group).expect("the group of a delivery exists");
        let next = state.store().table_in(NamespaceRef::Group(topic.name(), group.name()));
        let Some(at) = next.and_then(EffectTable::next_check) else { return };
        let of = (topic.id(), group.id());
        if self.sweeps.of_group.is_none_or(|(known, set)| known != of || at < set) {
            let namespace = EffectNamespace::Group(topic.name().clone(), group.name().clone());
            self.timers.set_sweep(at, &Sweep::Effects(namespace));
            self.sweeps.of_group = Some((of, at));
        }
    }

    pub(super) fn add_topic(&mut self, topic: &Topic, clocks: Clocks) {
        let mut queues = Vec::with_capacity(topic.partition_count() as usize);
        for (id, partition) in topic.partitions() {
            let mut queue = PriorityQueue::default();
            for (position, message) in partition.special() {
                if partition.in_backlog(position) {
                    self.enqueue(&mut queue, (topic.id(), id, position), &message, clocks);
                    self.watch_deadline(topic, id, position, &message);
                }
            }
            queues.push(queue);
        }
        let retained = vec![RetainedInPartition::default(); queues.len()];
        self.topics.insert(topic.id(), TopicIndex { queues, retained, groups: Default::default() });
        for group in topic.groups() {
            self.add_group(topic, group, clocks);
        }
        for (id, partition) in topic.partitions() {
            self.update_retained_of(topic, id, partition);
        }
    }

    /// Adds a message to the queue of its partition and sets the timer of its delay.
    fn enqueue(
        &mut self,
        queue: &mut PriorityQueue,
        (topic, partition, position): (TopicId, PartitionId, Position),
        message: &Message,
        clocks: Clocks,
    ) {
        let delayed_until = clocks.delay_of(message);
        queue.add(position, message.flags().priority, delayed_until);
        if let Some(until) = delayed_until {
            self.timers.set(until, Timer::Delay(topic, partition, position));
        }
    }

    fn add_group(&mut self, topic: &Topic, group: &Group, clocks: Clocks) {
        let serial = self.delay_serial;
        let cursors = group.partitions().map(|(_, progress)| Cursor::new(progress, serial)).collect();
        let candidates = PartitionSet::all(topic.partition_count() as usize);
        let group_index = GroupIndex { cursors, candidates, ..GroupIndex::default() };
        self.topic_mut(topic.id()).groups.insert(group.id(), Box::new(group_index));
        for (partition, progress) in group.partitions() {
            for (position, delivery) in progress.deliveries() {
                let message_ref = MessageRef { topic: topic.id(), group: group.id(), partition, position };
                match delivery.phase {
                    // See `add_streams_of_earlier_boots`.
                    Phase::Leased { .. } => {}
                    Phase::Queued { not_before } if not_before > clocks.now => {
                        self.timers.set(not_before, Timer::Retry(message_ref));
                    }
                    Phase::Queued { .. } => {
                        let message = topic.partition(partition).and_then(|partition| partition.message(position));
                        let priority = message.expect("a delivered, unacked message is stored").flags().priority;
                        self.cursor_mut(&message_ref).requeue(priority, position);
                    }
                }
            }
        }
    }

    /// Resets the cursors of a group after a seek; its consumers stay connected.
    fn restart_group(&mut self, topic: &Topic, group: GroupId) {
        let serial = self.delay_serial;
        let durable = topic.group(group).expect("the record names a group of the topic");
        let index = self.topic_mut(topic.id());
        for queue in &mut index.queues {
            queue.stop_waiting(group);
        }
        let group_index = index.groups.get_mut(&group).expect("the index contains every group");
        group_index.cursors = durable.partitions().map(|(_, progress)| Cursor::new(progress, serial)).collect();
        group_index.candidates = PartitionSet::all(topic.partition_count() as usize);
        self.wake(topic.id(), group);
    }

    /// Removes a group and its consumers. Does not remove it from the waiters of the topic's queues.
    fn remove_group(&mut self, topic: TopicId, group: GroupId) {
        let group_index = self.topic_mut(topic).groups.remove(&group).expect("the index contains every group");
        for consumer in group_index.turns.members() {
            self.remove_consumer(*consumer);
        }
        self.returned(topic, group);
        self.work_done(topic, group);
    }

    fn drop_topic(&mut self, state: &State, topic: TopicId, now: Timestamp) {
        let groups: Vec<_> = state.topic(topic).into_iter().flat_map(Topic::groups).map(Group::id).collect();
        for group in groups {
            self.withdraw_group(state, topic, group, now);
            self.remove_group(topic, group);
        }
        let index = self.topics.remove(&topic).expect("the index contains every topic");
        for ((partition, queue), retained) in (0..).map(PartitionId).zip(&index.queues).zip(&index.retained) {
            for (position, until) in queue.delayed() {
                self.timers.cancel(until, Timer::Delay(topic, partition, position));
            }
            self.forget_retained(topic, partition, *retained);
        }
        for key in self.deadlines_of(topic) {
            self.forget_deadline(key);
        }
        self.deleted.extend(state.view_of(topic));
        let name = state.topic(topic).expect("the record is not applied yet").name();
        self.deleted.push_back(state.view_of_effects(name, None));
        self.deleted.push_back(state.view_of_dedupe_keys(name));
    }

    /// Recomputes the queues of a topic after its groups or a group's progress changed: messages can have left the
    /// backlog or returned to it.
    fn reconcile(&mut self, topic: &Topic, clocks: Clocks) {
        let id = topic.id();
        for (partition, messages) in topic.partitions() {
            let mut queue = std::mem::take(&mut self.topic_mut(id).queues[partition.0 as usize]);
            if !queue.is_plain() || messages.special().next().is_some() {
                for position in queue.special_positions() {
                    if !messages.in_backlog(position)
                        && let Some(until) = queue.remove(position)
                    {
                        self.timers.cancel(until, Timer::Delay(id, partition, position));
                    }
                }
                for (position, message) in messages.special() {
                    if messages.in_backlog(position) && !queue.is_delayed(position) {
                        self.enqueue(&mut queue, (id, partition, position), &message, clocks);
                        self.watch_deadline(topic, partition, position, &message);
                    }
                }
            }
            self.topic_mut(id).queues[partition.0 as usize] = queue;
            self.update_retained_of(topic, partition, messages);
        }
        self.reconcile_deadlines(topic);
    }

    /// A message was appended to a partition.
    fn added(&mut self, state: &State, topic: TopicId, partition: PartitionId) {
        let messages = state.topic(topic).and_then(|topic| topic.partition(partition)).expect("a message was stored");
        let newest = Position(messages.next_position().0 - 1);
        let flags = messages.last_flags().filter(|(position, _)| *position == newest);
        let scheduled = flags.filter(|(_, flags)| !flags.is_in_turn()).and_then(|_| messages.last_message());
        self.enqueue_new(state, (topic, partition), scheduled);
    }

    /// The message with `offset` was appended to a partition, possibly followed by others.
    fn added_at(&mut self, state: &State, topic: TopicId, partition: PartitionId, offset: Offset) {
        let messages = state.topic(topic).and_then(|topic| topic.partition(partition)).expect("a message was stored");
        let is_in_turn = messages.find_flags(offset).is_none_or(|(_, flags)| flags.is_in_turn());
        let scheduled = if is_in_turn { None } else { messages.find(offset) };
        self.enqueue_new(state, (topic, partition), scheduled);
    }

    fn enqueue_new(
        &mut self,
        state: &State,
        (topic, partition): (TopicId, PartitionId),
        scheduled: Option<(Position, Message)>,
    ) {
        if let Some((position, message)) = scheduled {
            let flags = message.flags();
            if flags.has_deadline {
                self.watch_deadline(state.topic(topic).expect("a message was stored"), partition, position, &message);
            }
            if flags.has_delay || flags.priority.level() > 0 {
                let mut queue = std::mem::take(&mut self.topic_mut(topic).queues[partition.0 as usize]);
                self.enqueue(&mut queue, (topic, partition, position), &message, Clocks::of(state));
                self.topic_mut(topic).queues[partition.0 as usize] = queue;
            }
        }
        self.wake_waiters(topic, partition);
    }

    fn requeued(&mut self, state: &State, message_ref: &MessageRef) {
        self.rearm_deadline(message_ref.topic, message_ref.partition, message_ref.position);
        match delivery(state, message_ref).map(|delivery| delivery.phase) {
            Some(Phase::Queued { not_before }) if not_before > state.clock() => {
                self.timers.set(not_before, Timer::Retry(*message_ref));
            }
            Some(Phase::Queued { .. }) => self.retry(state, message_ref),
            // Its only delivery was withdrawn, and its delay runs again: wall time was set back below `deliver_at`.
            None if self.is_delayed(message_ref.topic, message_ref.partition, message_ref.position) => {}
            None => self.retry(state, message_ref),
            Some(Phase::Leased { .. }) => unreachable!("the record ended the lease"),
        }
    }

    /// A group acked a message, which can have left the backlog.
    fn acked(&mut self, state: &State, topic: TopicId, partition: PartitionId, position: Position) {
        let durable = state.topic(topic).expect("the topic of a message exists");
        let (has_deadlines, keeps_acked) = (!self.deadlines.is_empty(), durable.retention().keeps_acked());
        let queue = &mut self.topic_mut(topic).queues[partition.0 as usize];
        if queue.is_plain() && !has_deadlines && !keeps_acked {
            return;
        }
        let messages = durable.partition(partition).expect("the partition of a message exists");
        if !queue.is_plain()
            && !messages.in_backlog(position)
            && let Some(until) = queue.remove(position)
        {
            self.timers.cancel(until, Timer::Delay(topic, partition, position));
        }
        if has_deadlines && !messages.in_backlog(position) {
            self.forget_deadline((topic, partition, position));
        }
        if keeps_acked {
            self.update_retained_of(durable, partition, messages);
        }
    }
}
