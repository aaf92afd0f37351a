//! The only writer. What a record says happens here, the same way live and in recovery.

use std::sync::Arc;

use super::dead::without_origin;
use super::dedupe::{Accepted, IdentityKey};
use super::entry::{Entry, LastError, Phase};
use super::group::{Group, Progress};
use super::partition::Partition;
use super::shared::unshared;
use super::topic::Topic;
use super::{Contradiction, State};
use crate::body::Body;
use crate::faults::{Fault, Faults};
use crate::record::{DedupeWindow, Event, MessageRef, Record};
use crate::types::limits::PARTITIONS_CEILING;
use crate::types::{
    GroupId, LeaseToken, Millis, Offset, OwnerName, PartitionId, Position, Timestamp, TopicId, TopicName,
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
        let late = mode == Mode::Replay && faults.planted(Fault::ApplyReadsClock);
        let at = record.at.max(self.clock).after(Millis(u64::from(late)));
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
                self.store.drop_topic(&topic.name);
                self.set_dead_letters_of_source(&topic.name, None);
                self.names.remove(&topic.name);
                self.identities.remove(&topic.name);
            }
            Event::GroupCreated { topic, group, name, start } => {
                self.topic_mut(*topic)?.create_group(*group, name.clone(), *start)?;
            }
            Event::GroupDeleted { topic, group } => {
                let recount = !faults.planted(Fault::DeletedGroupCounted);
                let name = self.group_mut(*topic, *group)?.name.clone();
                let topic_name = self.topic_mut(*topic)?.name.clone();
                self.store.drop_table(&topic_name, &name);
                self.topic_mut(*topic)?.delete_group(*group, recount)?;
            }
            Event::GroupPaused { topic, group } => self.group_mut(*topic, *group)?.paused = true,
            Event::GroupResumed { topic, group } => self.group_mut(*topic, *group)?.paused = false,
            Event::GroupSought { topic, group, targets } => {
                let keep = faults.planted(Fault::SeekKeepsAcked);
                self.topic_mut(*topic)?.seek_group(*group, targets, keep)?;
            }
            Event::Produced { topic, partition, offset, body, dedupe } => {
                self.store_message(*topic, (*partition, *offset), body, dedupe.as_ref(), at, mode, faults)?;
            }
            Event::Delivered { message_ref, token, owner, until } => {
                let counted = !(mode == Mode::Replay && faults.planted(Fault::AttemptsForgottenOnReplay));
                self.deliver(message_ref, *token, owner.clone(), *until, counted)?;
            }
            Event::Acked { message_ref, commits } => {
                self.entry_mut(message_ref)?;
                if let Some(window) = commits {
                    self.commit_effect(message_ref, *window, at)?;
                }
                self.finish(message_ref)?;
                if faults.planted(Fault::HighestAckWatermark) {
                    self.finish_all_below(message_ref)?;
                }
                if faults.planted(Fault::TrimOneTooMany) {
                    self.trim_neighbour(message_ref)?;
                }
            }
            Event::Skipped { message_ref } => {
                if !faults.planted(Fault::SkipWithoutFinish) {
                    self.finish(message_ref)?;
                }
            }
            Event::Nacked { message_ref, reason, not_before } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    if let Some(reason) = reason {
                        entry.last_error = LastError::Reason(reason.clone());
                    }
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::ReasonNoted { message_ref, reason } => {
                self.entry_mut(message_ref)?.last_error = LastError::Reason(reason.clone());
            }
            Event::Expired { message_ref, not_before } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    entry.last_error = match faults.planted(Fault::ExpiryOverwritesReason) {
                        true => LastError::AckTimeout,
                        false => std::mem::take(&mut entry.last_error).after_expiry(),
                    };
                    Phase::Queued { not_before: *not_before }
                })?;
            }
            Event::Extended { message_ref, until } => self.extend(message_ref, *until)?,
            Event::Released { message_ref } => {
                self.pin_effect(message_ref, at);
                self.requeue(message_ref, |entry| {
                    entry.failures += u32::from(faults.planted(Fault::ReleaseCountsAsFailure));
                    Phase::Queued { not_before: at }
                })?;
            }
            Event::DeadLettered { message_ref, dead_topic, dead_partition, dead_offset, reason, last_error } => {
                let body = self.dead_letter(message_ref, *reason, last_error, at)?;
                self.unpin_effect(message_ref);
                self.make_dead_letter_topic(message_ref, *dead_topic)?;
                if faults.planted(Fault::DeadLetterWrittenTwice) {
                    self.topic_mut(*dead_topic)?.store(*dead_partition, *dead_offset, at, body.clone())?;
                    self.topic_mut(*dead_topic)?.store(*dead_partition, dead_offset.next(), at, body)?;
                } else {
                    self.topic_mut(*dead_topic)?.store(*dead_partition, *dead_offset, at, body)?;
                }
                if !faults.planted(Fault::SourceNotFinishedOnDeadLetter) {
                    self.finish(message_ref)?;
                }
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => {
                let target = self.topic(*topic).ok_or(Contradiction("no such topic"))?;
                self.takes_dead_letters_of(target, *dead_topic)?;
                let body = self.take_dead_letter(*dead_topic, *dead_partition, *dead_position, at)?;
                let body = if faults.planted(Fault::RedriveLosesOrigin) { without_origin(&body) } else { body };
                match faults.planted(Fault::RedriveSeenByAll) {
                    true => drop(self.topic_mut(*topic)?.store(*partition, *offset, at, body)?),
                    false => self.topic_mut(*topic)?.store_for_one(*group, *partition, *offset, at, body)?,
                }
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
            Event::EffectBegun(begun) if !lost_effect(mode, faults) => self.effect_begun(begun, at, faults)?,
            Event::EffectFinished { identity, outcome } => match self.effect_finished(identity, outcome, at, faults) {
                Err(_) if lost_effect(mode, faults) => {}
                finished => finished?,
            },
            Event::EffectRenewed { identity, until } => match self.effect_renewed(identity, *until, at) {
                Err(_) if lost_effect(mode, faults) => {}
                renewed => renewed?,
            },
            Event::EffectForgotten { identity } => {
                let forgotten = self.store.remove(identity);
                if forgotten.is_none() && !lost_effect(mode, faults) {
                    return Err(Contradiction("no such effect"));
                }
            }
            Event::EffectBegun(_) => {}
            Event::EffectsExpired { realm, count } => self.effects_expired(realm, *count, at, faults)?,
            Event::Completed(step) => self.complete(step, at, mode, faults)?,
            Event::CompletionsExpired { count } => self.completions_expired(*count)?,
            Event::Restored(image) => self.restore(image)?,
        }
        Ok(())
    }

    /// Stores a message and remembers its identity, where it has one.
    #[expect(clippy::too_many_arguments, reason = "a record's parts, and how it is applied")]
    pub(super) fn store_message(
        &mut self,
        topic: TopicId,
        (partition, offset): (PartitionId, Offset),
        body: &Body,
        dedupe: Option<&DedupeWindow>,
        at: Timestamp,
        mode: Mode,
        faults: &impl Faults,
    ) -> Result<(), Contradiction> {
        self.topic_mut(topic)?.store(partition, offset, at, body.clone())?;
        if let Some(dedupe) = dedupe
            && !(mode == Mode::Replay && faults.planted(Fault::DedupeDroppedOnReplay))
        {
            let twice = self.accept_identity(dedupe, body, at, (partition, offset));
            if !faults.planted(Fault::DuplicateTakenAsNew) {
                twice?;
            }
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
        dedupe: &DedupeWindow,
        body: &Body,
        at: Timestamp,
        (partition, offset): (PartitionId, Offset),
    ) -> Result<(), Contradiction> {
        let (tenant, key) = body.identity().ok_or(Contradiction("window of a message without an identity"))?;
        let key = IdentityKey::new(tenant, key);
        let identities = self.identities.entry(dedupe.scope.clone()).or_default();
        let accepted = Accepted { partition, offset, expires_at: dedupe.expires_at };
        match unshared(identities).accept(key, accepted) {
            Some(before) if at < before.expires_at => Err(Contradiction("identity accepted twice in its window")),
            _ => Ok(()),
        }
    }

    fn deliver(
        &mut self,
        message_ref: &MessageRef,
        token: LeaseToken,
        owner: OwnerName,
        until: Timestamp,
        counted: bool,
    ) -> Result<(), Contradiction> {
        if token.boot != self.boot {
            return Err(Contradiction("token of another boot"));
        }
        let topic = self.topic_mut(message_ref.topic)?;
        let message =
            topic.partition(message_ref.partition).and_then(|partition| partition.message(message_ref.position));
        let offset = message.ok_or(Contradiction("delivery of a message that is not there"))?.offset;
        let progress = progress_mut(topic, message_ref)?;
        if progress.done.contains(message_ref.position) {
            return Err(Contradiction("delivery of a message that is done"));
        }
        let attempts = u32::from(counted);
        // Mostly the first delivery of the furthest message so far, which needs no search.
        let known = match progress.entries.last() {
            Some((last, _)) if *last >= message_ref.position => progress.entries.get_mut(&message_ref.position),
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
                progress.entries.insert(message_ref.position, entry);
            }
        }
        progress.in_flight += 1;
        Ok(())
    }

    fn extend(&mut self, message_ref: &MessageRef, until: Timestamp) -> Result<(), Contradiction> {
        match &mut self.entry_mut(message_ref)?.phase {
            Phase::Leased { until: end } => *end = until,
            Phase::Queued { .. } => return Err(Contradiction("extension of a lease that has ended")),
        }
        Ok(())
    }

    fn requeue(
        &mut self,
        message_ref: &MessageRef,
        change: impl FnOnce(&mut Entry) -> Phase,
    ) -> Result<(), Contradiction> {
        progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?
            .requeue(message_ref.position, change)
            .ok_or(Contradiction("end of a lease that is not running"))
    }

    /// The message is done for the group.
    pub(super) fn finish(&mut self, message_ref: &MessageRef) -> Result<(), Contradiction> {
        let topic = self.topic_mut(message_ref.topic)?;
        let (groups, retention) = (topic.groups.len() as u32, topic.retention);
        let both = topic.progress_and_partition_mut(message_ref.group, message_ref.partition);
        let (progress, partition) = both.ok_or(Contradiction("no such group or partition"))?;
        if progress.done.contains(message_ref.position) {
            return Err(Contradiction("end of a message that is done"));
        }
        let offset = partition.done_in_one_more(message_ref.position, groups, retention);
        let offset = offset.ok_or(Contradiction("end of a message that is not there"))?;
        progress.remove_entry(message_ref.position);
        progress.done.insert(message_ref.position, offset);
        Ok(())
    }

    /// The planted bug of the incumbent: an ack is taken for a watermark.
    fn finish_all_below(&mut self, message_ref: &MessageRef) -> Result<(), Contradiction> {
        let floor = progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?.done.floor();
        for position in (floor.0..message_ref.position.0).map(Position) {
            if !progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?.done.contains(position) {
                self.finish(&MessageRef { position, ..*message_ref })?;
            }
        }
        Ok(())
    }

    /// The planted bug: what stands behind a message goes with it.
    fn trim_neighbour(&mut self, message_ref: &MessageRef) -> Result<(), Contradiction> {
        let partition = self.partition_mut(message_ref.topic, message_ref.partition)?;
        if partition.message(message_ref.position).is_none() {
            partition.take(message_ref.position.next());
        }
        Ok(())
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

    pub(super) fn entry_mut(&mut self, message_ref: &MessageRef) -> Result<&mut Entry, Contradiction> {
        let progress = progress_mut(self.topic_mut(message_ref.topic)?, message_ref)?;
        progress.entries.get_mut(&message_ref.position).ok_or(Contradiction("no such delivery"))
    }
}

/// The planted bug: grants are forgotten when they are replayed.
fn lost_effect(mode: Mode, faults: &impl Faults) -> bool {
    mode == Mode::Replay && faults.planted(Fault::EffectLostOnReplay)
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

fn progress_mut<'a>(topic: &'a mut Topic, message_ref: &MessageRef) -> Result<&'a mut Progress, Contradiction> {
    topic.progress_mut(message_ref.group, message_ref.partition).ok_or(Contradiction("no such group or partition"))
}
