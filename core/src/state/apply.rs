//! The only writer. What a record says happens here, the same way live and in recovery.

use std::sync::Arc;

use super::dedupe::{Accepted, IdentityKey};
use super::done::DoneSet;
use super::entry::{Entry, LastError, Phase};
use super::group::{Group, Progress};
use super::partition::Partition;
use super::shared::unshared;
use super::topic::Topic;
use super::{Contradiction, State};
use crate::body::Body;
use crate::faults::{Fault, Faults};
use crate::record::{Event, Gate, GroupStart, Place, Record, Retention};
use crate::types::limits::PARTITIONS_CEILING;
use crate::types::{
    DeadLetter, DeadReason, GroupId, GroupName, KeptForRedrive, LeaseToken, Metadata, Offset, OwnerName, PartitionId,
    Position, Redrive, Text, Timestamp, TopicId, TopicName,
};

/// Whether a record is applied as it is decided, or replayed. Correct code never looks; planted faults do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it is decided.
    Live,
    /// From the log or a snapshot.
    Replay,
}

impl State {
    /// Makes what `record` says true.
    ///
    /// # Errors
    /// [`Contradiction`] if the record was not decided against this state; the state is then not to be used further.
    pub fn apply(&mut self, record: &Record, mode: Mode, faults: &impl Faults) -> Result<(), Contradiction> {
        let at = record.at.max(self.clock);
        self.clock = at;
        match &record.event {
            Event::Booted { boot } => {
                // Tokens are told apart by the boot that gave them.
                if boot.0.checked_sub(1) != Some(self.boot.0) {
                    return Err(Contradiction("a boot that is not the next"));
                }
                self.boot = *boot;
            }
            Event::TopicCreated { topic, name, partitions, retention } => {
                countable(*partitions)?;
                self.insert_topic(Topic::new(*topic, name.clone(), *partitions, *retention))?;
            }
            Event::TopicDeleted { topic } => {
                let topic = self.topics.remove(topic).ok_or(Contradiction("no such topic"))?;
                self.set_dead_letters_of_source(&topic.name, None);
                self.names.remove(&topic.name);
                self.identities.remove(&topic.name);
            }
            Event::GroupCreated { topic, group, name, start } => {
                self.topic_mut(*topic)?.create_group(*group, name.clone(), *start)?;
            }
            Event::GroupDeleted { topic, group } => self.topic_mut(*topic)?.delete_group(*group)?,
            Event::GroupPaused { topic, group } => self.group_mut(*topic, *group)?.paused = true,
            Event::GroupResumed { topic, group } => self.group_mut(*topic, *group)?.paused = false,
            Event::GroupSought { topic, group, targets } => self.topic_mut(*topic)?.seek_group(*group, targets)?,
            Event::Produced { topic, partition, offset, body, gate } => {
                self.topic_mut(*topic)?.store(*partition, *offset, at, body.clone())?;
                if let Some(gate) = gate
                    && !(mode == Mode::Replay && faults.planted(Fault::DedupeDroppedOnReplay))
                {
                    self.accept_identity(gate, body, at, (*partition, *offset))?;
                }
            }
            Event::Delivered { place, token, owner, until } => {
                let counted = !(mode == Mode::Replay && faults.planted(Fault::AttemptsForgottenOnReplay));
                self.deliver(place, *token, owner.clone(), *until, counted)?;
            }
            Event::Acked { place } => {
                self.entry_mut(place)?;
                self.finish(place)?;
                if faults.planted(Fault::HighestAckWatermark) {
                    self.finish_all_below(place)?;
                }
            }
            Event::Nacked { place, reason, not_before } => {
                self.requeue(place, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    if let Some(reason) = reason {
                        entry.last_error = LastError::Reason(reason.clone());
                    }
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::ReasonNoted { place, reason } => {
                self.entry_mut(place)?.last_error = LastError::Reason(reason.clone());
            }
            Event::Expired { place, not_before } => {
                self.requeue(place, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    entry.last_error = std::mem::take(&mut entry.last_error).after_expiry();
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::Extended { place, until } => self.extend(place, *until)?,
            Event::Released { place } => self.requeue(place, |_| Phase::Queued { not_before: at })?,
            Event::DeadLettered { place, dead_topic, dead_partition, dead_offset, reason, last_error } => {
                let body = self.dead_letter(place, *reason, last_error, at)?;
                self.make_dead_letter_topic(place, *dead_topic)?;
                self.topic_mut(*dead_topic)?.store(*dead_partition, *dead_offset, at, body)?;
                if !faults.planted(Fault::SourceNotFinishedOnDeadLetter) {
                    self.finish(place)?;
                }
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => {
                let target = self.topic(*topic).ok_or(Contradiction("no such topic"))?;
                self.takes_dead_letters_of(target, *dead_topic)?;
                let body = self.take_dead_letter(*dead_topic, *dead_partition, *dead_position, at)?;
                self.topic_mut(*topic)?.store_for_one(*group, *partition, *offset, at, body)?;
            }
            Event::RetainedOut { topic, partition, through } => {
                self.partition_mut(*topic, *partition)?.retained_out(*through);
            }
            Event::IdentitiesExpired { scope, count } => {
                let identities = self.identities.get_mut(scope).ok_or(Contradiction("no such identities"))?;
                if identities.expired(at, *count) != *count {
                    return Err(Contradiction("end of identities that are in their window"));
                }
                unshared(identities).sweep(*count);
                if identities.is_empty() {
                    self.identities.remove(scope);
                }
            }
            Event::Restored(image) => self.restore(image)?,
        }
        Ok(())
    }

    pub(super) fn insert_topic(&mut self, mut topic: Topic) -> Result<(), Contradiction> {
        if topic.id != self.next_topic || self.names.contains_key(&topic.name) {
            return Err(Contradiction("topic exists, or its number is not the next"));
        }
        self.next_topic = topic.id.next();
        topic.dead_letters = topic.dead_letter_name().and_then(|name| self.names.get(name)).copied();
        self.set_dead_letters_of_source(&topic.name, Some(topic.id));
        self.names.insert(topic.name.clone(), topic.id);
        self.topics.insert(topic.id, Arc::new(topic));
        Ok(())
    }

    /// The dead-letter topic of this name has come or is gone: its source, if there is one, is told.
    fn set_dead_letters_of_source(&mut self, name: &TopicName, dead_letters: Option<TopicId>) {
        let source = name.dead_letter_source().and_then(|source| self.names.get(source));
        if let Some(source) = source.and_then(|id| self.topics.get_mut(id)) {
            unshared(source).dead_letters = dead_letters;
        }
    }

    fn accept_identity(
        &mut self,
        gate: &Gate,
        body: &Body,
        at: Timestamp,
        (partition, offset): (PartitionId, Offset),
    ) -> Result<(), Contradiction> {
        let (tenant, key) = body.identity().ok_or(Contradiction("window of a message without an identity"))?;
        let key = IdentityKey::new(tenant, key);
        let identities = self.identities.entry(gate.scope.clone()).or_default();
        let accepted = Accepted { partition, offset, expires_at: gate.expires_at };
        match unshared(identities).accept(key, accepted) {
            Some(before) if at < before.expires_at => Err(Contradiction("identity accepted twice in its window")),
            _ => Ok(()),
        }
    }

    fn deliver(
        &mut self,
        place: &Place,
        token: LeaseToken,
        owner: OwnerName,
        until: Timestamp,
        counted: bool,
    ) -> Result<(), Contradiction> {
        if token.boot != self.boot {
            return Err(Contradiction("token of another boot"));
        }
        let topic = self.topic_mut(place.topic)?;
        let message = topic.partition(place.partition).and_then(|partition| partition.message(place.position));
        let offset = message.ok_or(Contradiction("delivery of a message that is not there"))?.offset;
        let progress = progress_mut(topic, place)?;
        if progress.done.contains(place.position) {
            return Err(Contradiction("delivery of a message that is done"));
        }
        let attempts = u32::from(counted);
        // Mostly the first delivery of the furthest message so far, which needs no search.
        let known = match progress.entries.last() {
            Some((last, _)) if *last >= place.position => progress.entries.get_mut(&place.position),
            _ => None,
        };
        match known {
            Some(entry) => {
                if let Phase::Leased { .. } = entry.phase {
                    return Err(Contradiction("delivery of a message that is held"));
                }
                entry.attempts = entry.attempts.saturating_add(attempts);
                entry.token = token;
                entry.owner = owner;
                entry.phase = Phase::Leased { until };
            }
            None => {
                let phase = Phase::Leased { until };
                let entry =
                    Entry { offset, attempts, failures: 0, token, owner, phase, last_error: LastError::Nothing };
                progress.entries.insert(place.position, entry);
            }
        }
        progress.in_flight += 1;
        Ok(())
    }

    fn extend(&mut self, place: &Place, until: Timestamp) -> Result<(), Contradiction> {
        match &mut self.entry_mut(place)?.phase {
            Phase::Leased { until: end } => *end = until,
            Phase::Queued { .. } => return Err(Contradiction("extension of a lease that has ended")),
        }
        Ok(())
    }

    fn requeue(&mut self, place: &Place, change: impl FnOnce(&mut Entry) -> Phase) -> Result<(), Contradiction> {
        progress_mut(self.topic_mut(place.topic)?, place)?
            .requeue(place.position, change)
            .ok_or(Contradiction("end of a lease that is not running"))
    }

    /// The message is done for the group.
    fn finish(&mut self, place: &Place) -> Result<(), Contradiction> {
        let topic = self.topic_mut(place.topic)?;
        let (groups, retention) = (topic.groups.len() as u32, topic.retention);
        let both = topic.progress_and_partition_mut(place.group, place.partition);
        let (progress, partition) = both.ok_or(Contradiction("no such group or partition"))?;
        if progress.done.contains(place.position) {
            return Err(Contradiction("end of a message that is done"));
        }
        let offset = partition.done_in_one_more(place.position, groups, retention);
        let offset = offset.ok_or(Contradiction("end of a message that is not there"))?;
        progress.remove_entry(place.position);
        progress.done.insert(place.position, offset);
        Ok(())
    }

    /// The planted bug of the incumbent: an ack is taken for a watermark.
    fn finish_all_below(&mut self, place: &Place) -> Result<(), Contradiction> {
        let floor = progress_mut(self.topic_mut(place.topic)?, place)?.done.floor();
        for position in (floor.0..place.position.0).map(Position) {
            if !progress_mut(self.topic_mut(place.topic)?, place)?.done.contains(position) {
                self.finish(&Place { position, ..*place })?;
            }
        }
        Ok(())
    }

    /// The topic that takes a topic's dead letters comes with the first of them.
    fn make_dead_letter_topic(&mut self, place: &Place, dead_topic: TopicId) -> Result<(), Contradiction> {
        let source = self.topic(place.topic).ok_or(Contradiction("no such topic"))?;
        let name = source.dead_letter_name().ok_or(Contradiction("death of a dead letter"))?.clone();
        if self.takes_dead_letters_of(source, dead_topic)? {
            return Ok(());
        }
        let partitions = source.partition_count();
        self.insert_topic(Topic::new(dead_topic, name, partitions, Retention::default()))
    }

    /// Whether `dead_topic` is there; it is a contradiction where it takes the dead letters of another topic.
    fn takes_dead_letters_of(&self, source: &Topic, dead_topic: TopicId) -> Result<bool, Contradiction> {
        match self.topic(dead_topic) {
            Some(dead) if source.dead_letter_name() != Some(&dead.name) => {
                Err(Contradiction("dead letters of another topic"))
            }
            found => Ok(found.is_some()),
        }
    }

    /// The body a message has as a dead letter.
    fn dead_letter(
        &self,
        place: &Place,
        reason: DeadReason,
        last_error: &Text,
        at: Timestamp,
    ) -> Result<Body, Contradiction> {
        let topic = self.topic(place.topic).ok_or(Contradiction("no such topic"))?;
        let group = topic.group(place.group).ok_or(Contradiction("no such group"))?;
        let message = topic.partition(place.partition).and_then(|partition| partition.message(place.position));
        let message = message.ok_or(Contradiction("death of a message that is not there"))?;
        let entry = group.progress(place.partition).and_then(|progress| progress.entry(place.position));
        let mut meta = message.body.metadata();
        let envelope = &mut meta.envelope;
        let kept = KeptForRedrive {
            retry_policy: envelope.retry_policy.take(),
            target_topic: envelope.target_topic.take(),
            partition_override: envelope.partition_override.take(),
            deadline: envelope.deadline.take(),
        };
        envelope.deliver_at = None;
        meta.dead_letter = Some(Box::new(DeadLetter {
            original_topic: topic.name.clone(),
            original_partition: place.partition,
            original_offset: message.offset,
            group: group.name.clone(),
            attempts: entry.map_or(0, |entry| entry.attempts),
            last_error: last_error.clone(),
            reason,
            routed_at: at,
            kept,
        }));
        Ok(message.body.with_metadata(&meta))
    }

    /// Removes a dead letter from every group of its topic and gives the body it has when made live again.
    fn take_dead_letter(
        &mut self,
        dead_topic: TopicId,
        partition: PartitionId,
        position: Position,
        at: Timestamp,
    ) -> Result<Body, Contradiction> {
        let topic = self.topic_mut(dead_topic)?;
        let message = topic.partition(partition).and_then(|partition| partition.message(position));
        let message = message.ok_or(Contradiction("redrive of a message that is not there"))?;
        let (body, offset) = (revived(&message.body, message.offset, at)?, message.offset);
        let undone: Vec<_> = topic
            .groups
            .values()
            .filter(|group| group.progress(partition).is_some_and(|progress| !progress.done.contains(position)))
            .map(|group| group.id)
            .collect();
        if undone.is_empty() && !topic.groups.is_empty() {
            return Err(Contradiction("redrive of a dead letter that is done"));
        }
        for group in undone {
            let progress = topic.progress_mut(group, partition).expect("every group has every partition");
            progress.remove_entry(position);
            progress.done.insert(position, offset);
        }
        // Where nobody consumes the dead-letter topic nothing in it is ever done, and where done messages are retained a new
        // group would find it again: this one item leaves in any case, without ever being retained, so that nothing that is
        // makes room for it.
        self.partition_mut(dead_topic, partition)?.take(position);
        Ok(body)
    }

    pub(super) fn partition_mut(
        &mut self,
        topic: TopicId,
        partition: PartitionId,
    ) -> Result<&mut Partition, Contradiction> {
        self.topic_mut(topic)?.partition_mut(partition).ok_or(Contradiction("no such partition"))
    }

    pub(super) fn group_mut(&mut self, topic: TopicId, group: GroupId) -> Result<&mut Group, Contradiction> {
        self.topic_mut(topic)?.group_mut(group).ok_or(Contradiction("no such group"))
    }

    fn entry_mut(&mut self, place: &Place) -> Result<&mut Entry, Contradiction> {
        let progress = progress_mut(self.topic_mut(place.topic)?, place)?;
        progress.entries.get_mut(&place.position).ok_or(Contradiction("no such delivery"))
    }
}

/// A number that something will be counted on from must be one that counting can have come to.
pub(super) fn reached(number: u64) -> Result<(), Contradiction> {
    if number > u64::MAX / 2 { Err(Contradiction("a number that counting never reaches")) } else { Ok(()) }
}

/// [`reached`] for numbers of half the width.
pub(super) fn reached32(number: u32) -> Result<(), Contradiction> {
    reached(u64::from(number) << 32)
}

/// So many partitions a topic can have. Checked before room is made for them.
pub(super) fn countable(partitions: u32) -> Result<(), Contradiction> {
    match partitions {
        0 => Err(Contradiction("a topic has at least one partition")),
        1..=PARTITIONS_CEILING => Ok(()),
        _ => Err(Contradiction("more partitions than a topic can have")),
    }
}

fn progress_mut<'a>(topic: &'a mut Topic, place: &Place) -> Result<&'a mut Progress, Contradiction> {
    topic.progress_mut(place.group, place.partition).ok_or(Contradiction("no such group or partition"))
}

/// A dead letter's body made live: what it had kept acts again, and it names where it comes from.
fn revived(body: &Body, dead_letter_offset: Offset, at: Timestamp) -> Result<Body, Contradiction> {
    let mut meta: Metadata = body.metadata();
    let dead = meta.dead_letter.take().ok_or(Contradiction("redrive of a message that is no dead letter"))?;
    let kept = dead.kept;
    meta.envelope.retry_policy = kept.retry_policy;
    meta.envelope.target_topic = kept.target_topic;
    meta.envelope.partition_override = kept.partition_override;
    // A deadline that has passed would only send it straight back.
    meta.envelope.deadline = kept.deadline.filter(|deadline| deadline.at > at);
    let before = meta.redrive.take();
    meta.redrive = Some(Redrive {
        count: before.map_or(0, |redrive| redrive.count).saturating_add(1),
        dead_letter_offset,
        original_offset: before.map_or(dead.original_offset, |redrive| redrive.original_offset),
    });
    Ok(body.with_metadata(&meta))
}

impl Topic {
    fn store(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        body: Body,
    ) -> Result<Position, Contradiction> {
        if offset != self.next_offset {
            return Err(Contradiction("an offset that is not the next"));
        }
        self.next_offset = offset.next();
        let partition = self.partition_mut(partition).ok_or(Contradiction("no such partition"))?;
        Ok(partition.push(offset, at, body))
    }

    /// Stores a message that one group alone will see: for the others it is done from the start.
    fn store_for_one(
        &mut self,
        group: GroupId,
        partition: PartitionId,
        offset: Offset,
        at: Timestamp,
        body: Body,
    ) -> Result<(), Contradiction> {
        if !self.groups.contains_key(&group) {
            return Err(Contradiction("no such group"));
        }
        let position = self.store(partition, offset, at, body)?;
        let others: Vec<_> = self.groups.keys().copied().filter(|id| *id != group).collect();
        for other in &others {
            let progress = self.progress_mut(*other, partition).expect("every group has every partition");
            progress.done.insert(position, offset);
        }
        let partition = self.partition_mut(partition).expect("just stored into");
        partition.exclusive.insert(position, group);
        partition.set_done_in(position, others.len() as u32);
        Ok(())
    }

    fn create_group(&mut self, id: GroupId, name: GroupName, start: GroupStart) -> Result<(), Contradiction> {
        if id != self.next_group || self.group_names.contains_key(&name) {
            return Err(Contradiction("group exists, or its number is not the next"));
        }
        self.next_group = id.next();
        let mut progress = Vec::with_capacity(self.partitions.len());
        let mut moved = self.groups.is_empty() && start == GroupStart::Latest;
        for partition in &mut self.partitions {
            let mut done = match start {
                GroupStart::Earliest => partition.trimmed.clone(),
                GroupStart::Latest => DoneSet::with_floor(partition.next_position, partition.last_offset),
            };
            // What is done for the new group from the start counts at once; what other groups are done with and the new
            // one is not must be sorted anew.
            let born_done: Vec<_> = match start {
                GroupStart::Earliest => partition.exclusive.keys().copied().collect(),
                GroupStart::Latest => partition.messages().map(|(position, _)| position).collect(),
            };
            moved |= !born_done.is_empty() || !partition.retained.is_empty();
            for position in born_done {
                let partition = unshared(partition);
                done.insert(position, partition.message(position).expect("just listed").offset);
                partition.add_done_in(position, 1);
            }
            progress.push(Arc::new(Progress { done, ..Progress::default() }));
        }
        self.group_names.insert(name.clone(), id);
        self.groups.insert(id, Arc::new(Group { id, name, paused: false, partitions: progress }));
        if moved {
            self.recount();
        }
        Ok(())
    }

    fn delete_group(&mut self, id: GroupId) -> Result<(), Contradiction> {
        let group = self.groups.remove(&id).ok_or(Contradiction("no such group"))?;
        self.group_names.remove(&group.name);
        for (partition, progress) in self.partitions.iter_mut().zip(&group.partitions) {
            unshared(partition).change_done_in(|position| -i64::from(progress.done.contains(position)));
        }
        self.recount();
        Ok(())
    }

    fn seek_group(&mut self, id: GroupId, targets: &[Position]) -> Result<(), Contradiction> {
        if targets.len() != self.partitions.len() {
            return Err(Contradiction("seek does not name every partition"));
        }
        let group = self.groups.get_mut(&id).map(unshared).ok_or(Contradiction("no such group"))?;
        for ((partition, progress), target) in self.partitions.iter_mut().zip(&mut group.partitions).zip(targets) {
            let done = partition.done_below(*target, id)?;
            let before = std::mem::replace(progress, Arc::new(Progress { done, ..Progress::default() }));
            let after = &progress.done;
            unshared(partition).change_done_in(|position| {
                i64::from(after.contains(position)) - i64::from(before.done.contains(position))
            });
        }
        self.recount();
        Ok(())
    }
}

impl Partition {
    /// What is done for `group` when it is to see everything kept from `target` on.
    fn done_below(&self, target: Position, group: GroupId) -> Result<DoneSet, Contradiction> {
        if target > self.next_position {
            return Err(Contradiction("seek beyond the end"));
        }
        if target <= self.trimmed.floor() {
            let mut done = self.trimmed.clone();
            self.hide_exclusive(&mut done, group);
            return Ok(done);
        }
        let below = self.messages.last_below(&target).map(|(position, message)| (*position, message.offset));
        let gone = self.trimmed.last_offset_below(target);
        let floor_offset = match (below, gone) {
            (Some((_, kept)), Some(gone)) => Some(kept.max(gone)),
            (kept, gone) => kept.map(|(_, offset)| offset).or(gone),
        };
        let mut done = DoneSet::with_floor(target, floor_offset);
        for (start, end, last_offset) in self.trimmed.runs() {
            if end > target {
                done.extend_run(start.max(target), end, last_offset);
            }
        }
        self.hide_exclusive(&mut done, group);
        Ok(done)
    }

    /// Redriven messages of other groups stay out of sight.
    fn hide_exclusive(&self, done: &mut DoneSet, group: GroupId) {
        for (position, owner) in &self.exclusive {
            if *owner != group && !done.contains(*position) {
                done.insert(*position, self.messages.get(position).expect("exclusive messages are kept").offset);
            }
        }
    }
}
