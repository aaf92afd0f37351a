//! Bugs of applying and replaying records.

use std::sync::Arc;

use super::Fault;
use crate::collections::shared::unshared;
use crate::record::{Completed, EffectBegun, Event, Image, MessageAt, Produced, Record, Referrer, Relocated};
use crate::state::{Contradiction, Message, NewMessage, Partition, State, Topic};
use crate::types::{
    DecisionFields, EffectStatus, GroupId, GroupOrigin, LastError, LeaseToken, MessageFlags, MessageRef, Millis,
    Offset, OffsetRef, PartitionId, Position, Priority, Retention, TopicId, TopicName, Winner,
};

/// Applies `record` to `state` the way `fault` does it.
pub(super) fn apply(fault: Fault, state: &mut State, record: &Record) -> Result<(), Contradiction> {
    if let Some(event) = rewritten(fault, state, &record.event) {
        return apply_event(fault, state, &Record { at: record.at, event });
    }
    apply_event(fault, state, record)
}

/// Replays `record` the way `fault` does it.
pub(super) fn replay(fault: Fault, state: &mut State, record: &Record) -> Result<(), Contradiction> {
    match (fault, &record.event) {
        (Fault::ApplyReadsClock, _) => {
            let late = record.at.max(state.clock()).after(Millis(1));
            state.apply(&Record { at: late, event: record.event.clone() })
        }
        (Fault::AttemptsForgottenOnReplay, Event::Delivered { message_ref, .. }) => {
            state.apply(record)?;
            state.delivery_mut(message_ref)?.attempts -= 1;
            Ok(())
        }
        (Fault::DedupeDroppedOnReplay, event) => match without_dedupe(event) {
            Some(event) => state.apply(&Record { at: record.at, event }),
            None => state.apply(record),
        },
        (Fault::SkippedCountLost, event) => {
            state.apply(record)?;
            for ((topic, ..), groups) in skips(event) {
                for group in groups {
                    state.group_mut(topic, group)?.skipped -= 1;
                }
            }
            Ok(())
        }
        (Fault::NameCutOnReplay, Event::TopicCreated { topic, name, partitions, retention }) => {
            let cut = name.as_str().split('/').next().and_then(|cut| TopicName::of(name.tenant(), cut).ok());
            let (topic, partitions, retention) = (*topic, *partitions, *retention);
            let name = cut.unwrap_or_else(|| name.clone());
            state.apply(&Record { at: record.at, event: Event::TopicCreated { topic, name, partitions, retention } })
        }
        (Fault::EffectLostOnReplay, Event::EffectBegun(_)) => Ok(()),
        (Fault::AdjustmentLostOnReplay, Event::WallClockAdjusted(_)) => Ok(()),
        (Fault::PurgeLostOnReplay, Event::Purged { .. }) => Ok(()),
        (Fault::PatchNotDurable, Event::RetentionChanged { .. }) => Ok(()),
        (
            Fault::EffectLostOnReplay,
            Event::EffectFinished { .. }
            | Event::EffectRenewed { .. }
            | Event::EffectForgotten { .. }
            | Event::EffectsExpired { .. },
        ) => {
            let _ = state.apply(record);
            Ok(())
        }
        _ => apply(fault, state, record),
    }
}

/// The event that is applied in place of the one in the log, where the bug changes it.
fn rewritten(fault: Fault, state: &State, event: &Event) -> Option<Event> {
    match (fault, event) {
        (Fault::DuplicateTakenAsNew, event) => without_dedupe(event),
        (Fault::WithdrawnCountsAttempt, Event::Withdrawn { message_ref }) => {
            Some(Event::Released { message_ref: *message_ref })
        }
        (Fault::RequestedGroupDeleted, Event::GroupCreated { topic, group, name, start, .. }) => {
            let (topic, group, name, start) = (*topic, *group, name.clone(), *start);
            Some(Event::GroupCreated { topic, group, name, start, origin: GroupOrigin::Consumed })
        }
        (
            Fault::EphemeralSurvives,
            Event::GroupCreated { topic, group, name, start, origin: GroupOrigin::Ephemeral },
        ) => {
            let (topic, group, name, start) = (*topic, *group, name.clone(), *start);
            Some(Event::GroupCreated { topic, group, name, start, origin: GroupOrigin::Consumed })
        }
        (Fault::HashNotCompared, Event::EffectBegun(begun)) => {
            Some(Event::EffectBegun(Box::new(EffectBegun { request_hash: None, ..(**begun).clone() })))
        }
        (Fault::CompleteWithoutProduce, Event::Completed(step)) => {
            let mut step = step.clone();
            step.outputs.iter_mut().for_each(|output| output.stored = None);
            Some(Event::Completed(step))
        }
        (Fault::FailedStepLeavesEffect, Event::Completed(step)) if step.dead_letter.is_some() => {
            Some(Event::Completed(Box::new(Completed { effect: None, ..(**step).clone() })))
        }
        (Fault::DeadLetterFinishTorn, Event::EffectDeadLettered(_)) => event.parts().pop(),
        (Fault::WinnerForgotten, Event::Acked { message_ref, commits, .. }) => {
            Some(Event::Acked { message_ref: *message_ref, commits: *commits, winner_until: None })
        }
        (Fault::WinnerForgotten | Fault::CompleteForgetsWinner, Event::Completed(step)) => {
            Some(Event::Completed(Box::new(Completed { is_contested: false, ..(**step).clone() })))
        }
        (Fault::RelocationMovesOne, Event::Relocated(relocated)) if relocated.referrers.len() > 1 => {
            let mut relocated = relocated.clone();
            relocated.referrers.truncate(1);
            Some(Event::Relocated(relocated))
        }
        (Fault::SkipTokenCheck, Event::Completed(step)) => {
            let token = newest_token(state, &step.message_ref)?;
            Some(Event::Completed(Box::new(Completed { token, ..(**step).clone() })))
        }
        _ => None,
    }
}

/// The messages refer to where their payload stood before.
fn move_back(state: &mut State, relocated: &Relocated) -> Result<(), Contradiction> {
    for referrer in &relocated.referrers {
        let Referrer::Message(at) = referrer else { continue };
        let partition = state.partition_mut(at.topic, at.partition)?;
        if let Some(mut message) = partition.message(at.position) {
            message.payload.id = relocated.from;
            partition.replace(at.position, message);
        }
    }
    Ok(())
}

/// The message that a record has stored, as one that is stored next, since it is gone.
pub(super) fn acked_referrer(state: &State, event: &Event) -> Vec<Referrer> {
    let Event::Produced { topic, partition, .. } = event else { return Vec::new() };
    let (topic, partition) = (*topic, *partition);
    let found = state.topic(topic).and_then(|topic| topic.partition(partition));
    let next = found.map(|found| MessageAt { topic, partition, position: found.next_position() });
    next.map(Referrer::Message).into_iter().collect()
}

fn is_next(state: &State, at: &MessageAt) -> bool {
    let partition = state.topic(at.topic).and_then(|topic| topic.partition(at.partition));
    partition.is_some_and(|partition| partition.next_position() == at.position)
}

fn apply_event(fault: Fault, state: &mut State, record: &Record) -> Result<(), Contradiction> {
    let at = record.at.max(state.clock());
    match (fault, &record.event) {
        (Fault::OffsetReusedAfterCrash, Event::Booted { .. }) => {
            state.apply(record)?;
            forget_offsets(state);
            Ok(())
        }
        (Fault::RelocationResurrects, Event::Relocated(relocated)) => match &relocated.referrers[..] {
            [Referrer::Message(at)] if is_next(state, at) => {
                let message = NewMessage::produced(state.payload(0), &relocated.body);
                let (topic, now) = (state.topic_mut(at.topic)?, record.at);
                let offset = topic.next_offset();
                topic.store(at.partition, offset, now, message).map(drop)
            }
            _ => state.apply(record),
        },
        (Fault::RelocationKeepsLsn, Event::Relocated(relocated)) => {
            state.apply(record)?;
            move_back(state, relocated)
        }
        (Fault::EmptyDedupeTableKept, Event::DedupeExpired { scope, .. }) => {
            state.apply(record)?;
            state.dedupe.entry(scope.clone()).or_default();
            Ok(())
        }
        (Fault::HighestAckWatermark, Event::Acked { message_ref, .. }) => {
            state.apply(record)?;
            ack_all_below(state, message_ref)
        }
        (Fault::TrimOneTooMany, Event::Acked { message_ref, .. }) => {
            state.apply(record)?;
            let partition = state.partition_mut(message_ref.topic, message_ref.partition)?;
            if partition.message(message_ref.position).is_none() {
                partition.remove(message_ref.position.next());
            }
            Ok(())
        }
        (Fault::SkipBeforeAllGroupsDone | Fault::SkipOfFinishedOnly | Fault::SkipAcrossTopics, event) => {
            let skips = skips(event);
            state.apply(&if skips.is_empty() { record.clone() } else { without_skips(record) })?;
            skips.iter().try_for_each(|(stored, groups)| skip_unchecked(state, *stored, groups))
        }
        (Fault::NewGroupMissesHistory, Event::GroupCreated { topic, .. }) => {
            let partitions = state.topic(*topic).map_or(0, Topic::partition_count);
            for partition in (0..partitions).map(PartitionId) {
                let partition = state.partition_mut(*topic, partition)?;
                let retained: Vec<_> = partition.retained().collect();
                retained.into_iter().for_each(|position| partition.remove(position));
            }
            state.apply(record)
        }
        (Fault::RetainedOutTakesAll, Event::RetentionExpired { topic, partition, .. }) => {
            let through = Position(u64::MAX / 2);
            let event = Event::RetentionExpired { topic: *topic, partition: *partition, through };
            state.apply(&Record { at: record.at, event })
        }
        (Fault::DeadLettersNotRetained, Event::DeadLettered { dead_topic, .. }) => {
            let is_new = state.topic(*dead_topic).is_none();
            state.apply(record)?;
            if is_new {
                state.set_retention(*dead_topic, Retention::NOTHING)?;
            }
            Ok(())
        }
        (Fault::ExpiryOverwritesReason, Event::Expired { message_ref, .. }) => {
            state.apply(record)?;
            state.delivery_mut(message_ref)?.last_error = LastError::AckTimeout;
            Ok(())
        }
        (Fault::DelayedDeliveredEarly, _) => apply_with_flags(state, record, |flags| flags.has_delay = false),
        (Fault::PriorityIgnored, _) => apply_with_flags(state, record, |flags| flags.priority = Priority::default()),
        (Fault::DeadlineIgnored, _) => apply_with_flags(state, record, |flags| flags.has_deadline = false),
        (Fault::ReleaseCountsAsFailure, Event::Released { message_ref }) => {
            state.apply(record)?;
            state.delivery_mut(message_ref)?.failures += 1;
            Ok(())
        }
        (Fault::DeadLetterWrittenTwice, Event::DeadLettered { dead_topic, dead_partition, dead_offset, .. }) => {
            state.apply(record)?;
            let newest = newest_message(state, *dead_topic, *dead_partition)?;
            state.topic_mut(*dead_topic)?.store(*dead_partition, dead_offset.next(), at, newest).map(drop)
        }
        (
            Fault::SourceNotFinishedOnDeadLetter,
            Event::DeadLettered { message_ref, dead_topic, dead_partition, dead_offset, reason, last_error, .. },
        ) => {
            let dead = (*dead_topic, *dead_partition, *dead_offset);
            state.store_dead_letter(message_ref, dead, (*reason, last_error), at).map(drop)
        }
        (Fault::DeadLetterHasWinner, Event::DeadLettered { message_ref, winner_until, .. }) => {
            let token = newest_token(state, message_ref);
            state.apply(record)?;
            let (message, _) = (*state.winners).clone().in_order().last().ok_or(Contradiction("no winner"))?;
            unshared(&mut state.winners).insert(message, Winner { token, until: *winner_until });
            Ok(())
        }
        (Fault::FailedStepCommits, Event::Completed(step)) if step.dead_letter.is_some() => {
            let identity = state.identity_at(&step.message_ref);
            let topic = state.topic(step.message_ref.topic).map(|topic| topic.name().clone());
            state.apply(record)?;
            if let (Some(identity), Some(topic)) = (identity, topic) {
                state.store.change(&identity, |effect| effect.commit((&topic, &topic), at, at));
            }
            Ok(())
        }
        (Fault::WinnerOutlivesGroup, Event::GroupDeleted { topic, group })
        | (Fault::SeekKeepsWinners, Event::GroupSought { topic, group, .. }) => {
            let winners = (*state.winners).clone().in_order();
            let of_group = |(message, _): &(OffsetRef, Winner)| (message.topic, message.group) == (*topic, *group);
            let kept: Vec<_> = winners.filter(of_group).collect();
            state.apply(record)?;
            let winners = unshared(&mut state.winners);
            for (message, winner) in kept {
                winners.insert(message, winner);
            }
            Ok(())
        }
        (Fault::PurgeTakesNext, Event::Purged { topic, .. }) => {
            state.apply(record)?;
            let topic = state.topic_mut(*topic)?;
            let next = topic.next_offset();
            for group in topic.groups.values_mut().map(unshared) {
                for progress in group.partitions.iter_mut().map(unshared) {
                    progress.acked.insert(progress.acked.end(), next);
                }
            }
            Ok(())
        }
        (Fault::PurgeKeepsLeases, Event::Purged { topic, .. }) => {
            let kept = state.topic(*topic).ok_or(Contradiction("no such topic"))?.groups.clone();
            state.apply(record)?;
            for (id, group) in state.topic_mut(*topic)?.groups.iter_mut() {
                for (progress, kept) in unshared(group).partitions.iter_mut().map(unshared).zip(&kept[id].partitions) {
                    (progress.deliveries, progress.in_flight) = (kept.deliveries.clone(), kept.in_flight);
                }
            }
            Ok(())
        }
        (Fault::PurgeFencesNoLease, Event::Purged { .. }) => {
            let winners = state.winners.clone();
            state.apply(record)?;
            state.winners = winners;
            Ok(())
        }
        (Fault::RedriveLosesOrigin, Event::Redriven { topic, partition, .. }) => {
            state.apply(record)?;
            change_newest(state.partition_mut(*topic, *partition)?, |fields| fields.redrive = None);
            Ok(())
        }
        (Fault::RedriveDropsDeadline, Event::Redriven { topic, partition, .. }) => {
            state.apply(record)?;
            change_newest(state.partition_mut(*topic, *partition)?, |fields| fields.deadline = None);
            Ok(())
        }
        (
            Fault::RedriveSeenByAll,
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, partition, offset, .. },
        ) => {
            let redriven = state.take_dead_letter(*dead_topic, *dead_partition, *dead_position, at)?;
            state.topic_mut(*topic)?.store(*partition, *offset, at, redriven).map(drop)
        }
        (Fault::DeletedGroupCounted, Event::GroupDeleted { topic, group }) => {
            let (topic_name, group_name) = {
                let topic = state.topic_mut(*topic)?;
                (topic.name().clone(), topic.group(*group).ok_or(Contradiction("no such group"))?.name().clone())
            };
            state.store.drop_table(&topic_name, &group_name);
            state.topic_mut(*topic)?.remove_group(*group)
        }
        (Fault::SeekKeepsAcked, Event::GroupSought { topic, group, .. }) => {
            let acked = acked_messages(state, *topic, |id| id == *group);
            state.apply(record)?;
            acked.iter().try_for_each(|message_ref| ack_if_pending(state, message_ref))
        }
        (Fault::TtlFromBegin, Event::EffectFinished { identity, .. }) => {
            let begun_at = state.store.get(identity).map(|effect| effect.updated_at);
            state.apply(record)?;
            state.store.change(identity, |effect| {
                effect.expires_at = effect.lifetime().after(begun_at.unwrap_or(at));
            });
            Ok(())
        }
        (Fault::TakeoverKeepsToken, Event::EffectBegun(begun)) => {
            let fresh = LeaseToken { boot: state.boot(), counter: u64::MAX };
            let event = Event::EffectBegun(Box::new(EffectBegun { token: fresh, ..(**begun).clone() }));
            state.apply(&Record { at: record.at, event })?;
            state.store.change(&begun.identity, |effect| effect.token = Some(begun.token));
            Ok(())
        }
        (Fault::BeginAfterSuccessExecutes, Event::EffectBegun(begun)) => {
            state.store.change(&begun.identity, |effect| {
                if effect.status.is_final() {
                    effect.status = EffectStatus::FailedRetryable;
                }
            });
            state.apply(record)
        }
        (Fault::FinishIgnoresToken, Event::EffectFinished { identity, .. }) => {
            state.store.change(identity, |effect| effect.status = EffectStatus::InProgress);
            state.apply(record)
        }
        (Fault::CompleteWithoutAck, Event::Completed(step)) => {
            // The outputs refer to this record, which `State::apply` does not count here.
            state.continue_behind(state.last_lsn().next());
            state.store_step_outputs(step, at)?;
            let offset = state.delivery_mut(&step.message_ref)?.offset;
            // A second completion under the same token finds the first reply kept.
            let _ = state.store_completion(step, offset);
            Ok(())
        }
        _ => state.apply(record),
    }
}

/// The event without the window of its produce identity, if it has one.
fn without_dedupe(event: &Event) -> Option<Event> {
    let mut event = event.clone();
    match &mut event {
        Event::Produced { dedupe, .. } => *dedupe = None,
        Event::Completed(step) => {
            let stored = step.outputs.iter_mut().filter_map(|output| output.stored.as_mut());
            stored.for_each(|stored| stored.dedupe = None);
        }
        _ => return None,
    }
    Some(event)
}

/// Applies `record` and changes the flags of the messages that it stores; their metadata stays as it is.
fn apply_with_flags(
    state: &mut State,
    record: &Record,
    change: impl Fn(&mut MessageFlags),
) -> Result<(), Contradiction> {
    state.apply(record)?;
    let stored: Vec<(TopicId, PartitionId, Offset)> = match &record.event {
        Event::Produced { topic, partition, offset, .. }
        | Event::Restored(Image::Message { topic, partition, offset, .. }) => vec![(*topic, *partition, *offset)],
        Event::Restored(Image::Chunk { topic, partition, chunk }) => {
            let offset = |image| if let Image::Message { offset, .. } = image { Some(offset) } else { None };
            let offsets = chunk.images(*topic, *partition).filter_map(offset);
            offsets.map(|offset| (*topic, *partition, offset)).collect()
        }
        Event::Completed(step) => {
            let stored = step.outputs.iter().filter_map(|output| Some((output.stored.as_ref()?.topic, output)));
            stored.map(|(topic, output)| (topic, output.partition, output.offset)).collect()
        }
        _ => Vec::new(),
    };
    for (topic, partition, offset) in stored {
        let partition = state.partition_mut(topic, partition)?;
        if let Some((position, _)) = partition.find(offset) {
            partition.messages.change(position, |message| change(&mut message.flags));
        }
    }
    Ok(())
}

/// The messages that an event stores for groups that skip them, and these groups.
fn skips(event: &Event) -> Vec<((TopicId, PartitionId, Offset), Vec<GroupId>)> {
    let mut skips = match event {
        Event::Produced { topic, partition, offset, skipped, .. } => {
            vec![((*topic, *partition, *offset), skipped.clone())]
        }
        Event::Completed(step) => {
            let stored = step.outputs.iter().filter_map(|output| Some((output, output.stored.as_ref()?)));
            let of = |output: &Produced, topic| (topic, output.partition, output.offset);
            stored.map(|(output, stored)| (of(output, stored.topic), stored.skipped.clone())).collect()
        }
        _ => Vec::new(),
    };
    skips.retain(|(_, groups)| !groups.is_empty());
    skips
}

/// The record with messages that no group skips.
fn without_skips(record: &Record) -> Record {
    let mut record = record.clone();
    match &mut record.event {
        Event::Produced { skipped, .. } => skipped.clear(),
        Event::Completed(step) => {
            let stored = step.outputs.iter_mut().filter_map(|output| output.stored.as_mut());
            stored.for_each(|stored| stored.skipped.clear());
        }
        _ => {}
    }
    record
}

/// Acks a message in `groups`, whether they have committed its identity or not.
fn skip_unchecked(
    state: &mut State,
    (topic, partition, offset): (TopicId, PartitionId, Offset),
    groups: &[GroupId],
) -> Result<(), Contradiction> {
    let found = state.partition_mut(topic, partition)?.find(offset).map(|(position, _)| position);
    let position = found.ok_or(Contradiction("no such message"))?;
    groups.iter().try_for_each(|group| state.skip(&MessageRef { topic, group: *group, partition, position }))
}

/// Every topic continues its offsets from the newest message it still stores.
fn forget_offsets(state: &mut State) {
    for topic in state.topics.values_mut().map(unshared) {
        let stored = topic.partitions().filter_map(|(_, partition)| partition.messages().last());
        topic.next_offset = stored.map(|(_, message)| message.offset.next()).max().unwrap_or_default();
    }
}

fn ack_all_below(state: &mut State, message_ref: &MessageRef) -> Result<(), Contradiction> {
    (0..message_ref.position.0)
        .map(Position)
        .try_for_each(|position| ack_if_pending(state, &MessageRef { position, ..*message_ref }))
}

fn ack_if_pending(state: &mut State, message_ref: &MessageRef) -> Result<(), Contradiction> {
    let topic = state.topic(message_ref.topic).ok_or(Contradiction("no such topic"))?;
    let progress = topic.group(message_ref.group).and_then(|group| group.progress(message_ref.partition));
    let is_pending = progress.is_some_and(|progress| !progress.acked().contains(message_ref.position));
    let is_stored = topic.partition(message_ref.partition).is_some_and(|it| it.message(message_ref.position).is_some());
    if is_pending && is_stored { state.ack(message_ref) } else { Ok(()) }
}

/// Messages still stored that a group of `topic` has acked.
fn acked_messages(state: &State, topic: TopicId, of: impl Fn(crate::types::GroupId) -> bool) -> Vec<MessageRef> {
    let topic = state.topic(topic).into_iter();
    let groups = topic.flat_map(|topic| topic.groups().map(move |group| (topic, group)));
    let mut acked = Vec::new();
    for (topic, group) in groups.filter(|(_, group)| of(group.id())) {
        for (partition, progress) in group.partitions() {
            let stored = topic.partition(partition).into_iter().flat_map(Partition::messages);
            let done = stored.filter(|(position, _)| progress.acked().contains(*position));
            let message_ref = |position| MessageRef { topic: topic.id(), group: group.id(), partition, position };
            acked.extend(done.map(|(position, _)| message_ref(position)));
        }
    }
    acked
}

/// Changes the decision fields of a partition's newest message.
fn change_newest(partition: &mut Partition, change: impl FnOnce(&mut DecisionFields)) {
    let newest = Position(partition.next_position().0 - 1);
    partition.messages.change(newest, |message| {
        let mut fields = message.fields().map_or_else(DecisionFields::default, |fields| (**fields).clone());
        change(&mut fields);
        *message = Message::new(message.offset, message.produced_at, message.payload, Some(Arc::new(fields)));
    });
}

fn newest_token(state: &State, message_ref: &MessageRef) -> Option<LeaseToken> {
    let group = state.topic(message_ref.topic)?.group(message_ref.group)?;
    group.progress(message_ref.partition)?.delivery(message_ref.position).map(|delivery| delivery.token)
}

fn newest_message(state: &State, topic: TopicId, partition: PartitionId) -> Result<NewMessage, Contradiction> {
    let partition = state.topic(topic).and_then(|topic| topic.partition(partition));
    let newest = partition.and_then(Partition::last_message);
    let (_, message) = newest.ok_or(Contradiction("no such message"))?;
    Ok(NewMessage { payload: message.payload, fields: message.fields().cloned() })
}
