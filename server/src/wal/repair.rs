//! Makes one state of the images that are left of a damaged snapshot.
//!
//! The images of a whole snapshot fit together; after a loss they do not. A message whose image is lost becomes a
//! trimmed position that every group has acked: its position is gone, and nothing else refers to it. Ack counts are
//! counted again. What a group has acked and is no longer known counts as not acked, so those messages are delivered
//! again: at-least-once delivery allows that.

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::record::{Event, Image, Record, RunImage};
use driftq_core::state::State;
use driftq_core::types::{
    Boot, DeliveryState, GroupId, Lsn, MessageRef, Offset, PartitionId, Position, Retention, TenantId, Timestamp,
    TopicId, TopicName, WallClock,
};

/// The state made of images, and which of its numbers are guesses.
#[derive(Debug)]
pub(super) struct Repaired {
    pub(super) state: State,
    /// Positions from which on the end of a partition is not known, since its image is lost.
    pub(super) unknown_from: BTreeMap<(TopicId, PartitionId), Position>,
    /// Images that are whole and fit nothing that is left.
    pub(super) unused: u64,
    /// The given names of topics whose own image is lost.
    pub(super) renamed: Vec<TopicName>,
}

/// What is left of a topic.
#[derive(Debug, Default)]
struct TopicParts {
    topic: Option<Image>,
    partitions: BTreeMap<PartitionId, PartitionParts>,
    groups: BTreeMap<GroupId, GroupParts>,
}

impl TopicParts {
    fn name(&self) -> Option<TopicName> {
        if let Some(Image::Topic { name, .. }) = &self.topic { Some(name.clone()) } else { None }
    }
}

#[derive(Debug, Default)]
struct PartitionParts {
    /// The next position and the offset of the last.
    end: Option<(Position, Option<Offset>)>,
    /// Runs of trimmed positions, with the offset of the last one.
    trimmed: Vec<RunImage>,
    messages: BTreeMap<Position, Image>,
}

#[derive(Debug, Default)]
struct GroupParts {
    group: Option<Image>,
    acked: BTreeMap<PartitionId, Vec<(Position, Position)>>,
    replayed: BTreeMap<PartitionId, Position>,
    deliveries: Vec<(MessageRef, DeliveryState)>,
}

/// A state of these images, which may be any subset of those of a snapshot written in boot `boot`.
pub(super) fn repair(images: Vec<Image>, boot: Boot) -> Repaired {
    let mut topics: BTreeMap<TopicId, TopicParts> = BTreeMap::new();
    let (mut origin, mut others, mut access) = (None, Vec::new(), Vec::new());
    let (mut last_tenant, mut next_audit) = (TenantId::DEFAULT, 0);
    let (mut newest, mut boot, mut last_lsn) = (Timestamp::default(), boot.max(Boot(1)), Lsn(0));
    for image in images.into_iter().flat_map(Image::by_message) {
        match image {
            Image::Origin { .. } => origin = Some(image),
            Image::Topic { topic, .. } => topics.entry(topic).or_default().topic = Some(image),
            Image::Partition { topic, partition, next_position, last_offset, trimmed_floor, trimmed_floor_offset } => {
                let parts = topics.entry(topic).or_default().partitions.entry(partition).or_default();
                parts.end = Some((next_position, last_offset));
                let floor = trimmed_floor_offset.filter(|_| trimmed_floor > Position(0));
                parts.trimmed.extend(floor.map(|last_offset| RunImage {
                    start: Position(0),
                    end: trimmed_floor,
                    last_offset,
                }));
            }
            Image::TrimmedRun { topic, partition, run } => {
                topics.entry(topic).or_default().partitions.entry(partition).or_default().trimmed.push(run);
            }
            Image::Message { topic, partition, position, produced_at, payload, .. } => {
                (newest, last_lsn) = (newest.max(produced_at), last_lsn.max(payload.id.lsn));
                let parts = topics.entry(topic).or_default().partitions.entry(partition).or_default();
                parts.messages.insert(position, image);
            }
            Image::Group { topic, group, .. } => {
                topics.entry(topic).or_default().groups.entry(group).or_default().group = Some(image);
            }
            Image::Floor { topic, group, partition, floor, .. } => {
                let parts = topics.entry(topic).or_default().groups.entry(group).or_default();
                parts.acked.entry(partition).or_default().push((Position(0), floor));
            }
            Image::AckedRun { topic, group, partition, run } => {
                let parts = topics.entry(topic).or_default().groups.entry(group).or_default();
                parts.acked.entry(partition).or_default().push((run.start, run.end));
            }
            Image::Replayed { topic, group, partition, below } => {
                topics.entry(topic).or_default().groups.entry(group).or_default().replayed.insert(partition, below);
            }
            Image::DeliveryState { message_ref, delivery } => {
                boot = boot.max(delivery.token.boot);
                let parts = topics.entry(message_ref.topic).or_default();
                parts.groups.entry(message_ref.group).or_default().deliveries.push((message_ref, delivery));
            }
            // Taken apart above.
            Image::Chunk { .. } => {}
            Image::Effect { ref effect, .. } => {
                let result = effect.result.as_ref().and_then(|result| result.payload);
                last_lsn = last_lsn.max(result.map_or(Lsn(0), |payload| payload.lsn));
                others.push(image);
            }
            // The numbers can be lost, and what has them not.
            Image::Access { last_tenant: last, next_audit: next } => {
                (last_tenant, next_audit) = (last_tenant.max(last), next_audit.max(next));
            }
            Image::Tenant { tenant, .. } => {
                last_tenant = last_tenant.max(tenant);
                access.push(image);
            }
            Image::Audit(ref entry) => {
                next_audit = next_audit.max(entry.number.saturating_add(1));
                access.push(image);
            }
            Image::Key(_) => access.push(image),
            Image::DedupeEntry { .. } | Image::Completion { .. } | Image::Winner { .. } => others.push(image),
        }
    }
    let next_topic = topics.keys().next_back().map_or(TopicId(0), |topic| TopicId(topic.0.saturating_add(1)));
    let (clock, wall_clock) = (newest, WallClock::default());
    let origin = origin.unwrap_or(Image::Origin { last_lsn, clock, wall_clock, boot, next_topic });
    let mut built = Repaired { state: State::default(), unknown_from: BTreeMap::new(), unused: 0, renamed: Vec::new() };
    built.put(origin);
    // Before the topics of tenants.
    if (last_tenant, next_audit) != (TenantId::DEFAULT, 0) {
        built.put(Image::Access { last_tenant, next_audit });
    }
    access.into_iter().for_each(|image| built.put(image));
    let mut names: BTreeSet<TopicName> = topics.values().filter_map(TopicParts::name).collect();
    for (id, parts) in topics {
        built.put_topic(id, parts, &mut names);
    }
    others.into_iter().for_each(|image| built.put(image));
    built
}

impl Repaired {
    /// Applies the image, or leaves it out.
    fn put(&mut self, image: Image) {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        self.unused += u64::from(self.state.apply(&record).is_err());
    }

    /// Puts a topic and what is in it; `names` are those that are taken.
    fn put_topic(&mut self, id: TopicId, mut parts: TopicParts, names: &mut BTreeSet<TopicName>) {
        let (keeps, unnamed) = match &parts.topic {
            Some(Image::Topic { retention, .. }) => (*retention, false),
            _ => (Retention::default(), true),
        };
        if unnamed {
            let Some(topic) = unnamed_topic(id, &parts, names) else { return };
            parts.topic = Some(topic);
        }
        let before = self.unused;
        parts.topic.take().into_iter().for_each(|topic| self.put(topic));
        if self.unused > before {
            return;
        }
        if unnamed {
            self.renamed.extend(self.state.topic(id).map(|topic| topic.name().clone()));
        }
        let groups: Vec<GroupId> =
            parts.groups.iter().filter(|(_, group)| group.group.is_some()).map(|(id, _)| *id).collect();
        let mut progress: Vec<Image> = Vec::new();
        for (partition, stored) in parts.partitions {
            let acked = groups.iter().map(|group| {
                let runs = parts.groups.get(group).and_then(|parts| parts.acked.get(&partition));
                (*group, runs.cloned().unwrap_or_default())
            });
            let repaired = RepairedPartition::new(stored, &acked.collect::<Vec<_>>(), keeps);
            if repaired.end_is_guessed {
                self.unknown_from.insert((id, partition), repaired.next);
            }
            repaired.images(id, partition).into_iter().for_each(|image| self.put(image));
            progress.extend(repaired.progress(id, partition));
        }
        let mut deliveries = Vec::new();
        for (group, parts) in parts.groups {
            let Some(image) = parts.group else {
                self.unused += (parts.acked.len() + parts.deliveries.len()) as u64;
                continue;
            };
            self.put(image);
            let replayed = parts.replayed.into_iter();
            progress.extend(replayed.map(|(partition, below)| Image::Replayed { topic: id, group, partition, below }));
            deliveries.extend(parts.deliveries);
        }
        progress.into_iter().for_each(|image| self.put(image));
        for (message_ref, delivery) in deliveries {
            if delivery.token.boot <= self.state.boot() {
                self.put(Image::DeliveryState { message_ref, delivery });
            } else {
                self.unused += 1;
            }
        }
    }
}

/// A topic whose image is lost, under a name that no other has, if anything is in it.
fn unnamed_topic(topic: TopicId, parts: &TopicParts, names: &mut BTreeSet<TopicName>) -> Option<Image> {
    let last = parts.partitions.keys().next_back()?;
    let offset = |image: &Image| if let Image::Message { offset, .. } = image { offset.0 } else { 0 };
    let stored = parts.partitions.values().flat_map(|partition| partition.messages.values().map(offset));
    let ends = parts.partitions.values().filter_map(|partition| Some(partition.end?.1?.0));
    let runs = parts.partitions.values().flat_map(|partition| partition.trimmed.iter().map(|run| run.last_offset.0));
    let next_offset = Offset(stored.chain(ends).chain(runs).max()?.checked_add(1)?);
    let next_group = GroupId(parts.groups.keys().next_back().map_or(Some(0), |group| group.0.checked_add(1))?);
    let (partitions, retention) = (last.0.checked_add(1)?, Retention::default());
    let name = unused_name(topic, names)?;
    names.insert(name.clone());
    Some(Image::Topic { topic, name, partitions, retention, next_offset, next_group })
}

/// A name that is not taken: `salvaged.ID`, or that with a number behind.
fn unused_name(topic: TopicId, names: &BTreeSet<TopicName>) -> Option<TopicName> {
    // One of these is free, as there is one more than there are names.
    let numbered = (2..names.len().saturating_add(3)).map(|number| format!("salvaged.{}.{number}", topic.0));
    let candidates = std::iter::once(format!("salvaged.{}", topic.0)).chain(numbered);
    candidates.filter_map(|name| TopicName::new(&name).ok()).find(|name| !names.contains(name))
}

/// The position behind, also of a number that no log assigns.
fn behind(position: Position) -> Position {
    Position(position.0.saturating_add(1))
}

/// The positions of a partition, each stored or trimmed.
struct RepairedPartition {
    next: Position,
    end_is_guessed: bool,
    last_offset: Option<Offset>,
    /// The known offsets of the last positions of trimmed runs, by the position behind.
    run_offsets: BTreeMap<Position, Offset>,
    messages: BTreeMap<Position, Image>,
    /// What each group has acked of the stored messages.
    acked: BTreeMap<GroupId, BTreeSet<Position>>,
}

impl RepairedPartition {
    fn new(parts: PartitionParts, acked: &[(GroupId, Vec<(Position, Position)>)], retention: Retention) -> Self {
        let PartitionParts { end, trimmed, messages } = parts;
        let behind_last = messages.keys().next_back().map(|last| behind(*last));
        let guessed = behind_last.into_iter().chain(trimmed.iter().map(|run| run.end)).max().unwrap_or_default();
        let (next, last_offset) = end.unwrap_or((guessed, None));
        let stored_in = |runs: &[(Position, Position)]| {
            let runs = runs.iter().filter(|(from, to)| from < to);
            runs.flat_map(|(from, to)| messages.range(*from..*to).map(|(at, _)| *at)).collect()
        };
        let acked = acked.iter().map(|(group, runs)| (*group, stored_in(runs))).collect();
        let run_offsets = trimmed.iter().map(|run| (run.end, run.last_offset)).collect();
        let messages = messages.into_iter().filter(|(at, _)| *at < next).collect();
        let mut repaired = Self { next, end_is_guessed: end.is_none(), last_offset, run_offsets, messages, acked };
        repaired.count_acks();
        repaired.remove_acked(retention);
        repaired
    }

    /// Counts in how many groups each message is acked. One that only one group sees is acked in the others.
    fn count_acks(&mut self) {
        for (at, image) in &mut self.messages {
            let Image::Message { acked_in, retained, visible_to, fields, .. } = image else { continue };
            if fields.as_ref().is_none_or(|fields| fields.redrive.is_none()) {
                *visible_to = None;
            }
            if let Some(own) = visible_to {
                for (_, acked) in self.acked.iter_mut().filter(|(group, _)| *group != own) {
                    acked.insert(*at);
                }
            }
            let count = self.acked.values().filter(|acked| acked.contains(at)).count();
            *acked_in = u32::try_from(count).unwrap_or(u32::MAX);
            *retained = count > 0 && count == self.acked.len();
        }
    }

    /// Removes the messages that every group has acked, except those that retention keeps.
    fn remove_acked(&mut self, retention: Retention) {
        let mut room = if retention.keeps_acked() { retention.bytes.unwrap_or(u64::MAX) } else { 0 };
        let mut removed = Vec::new();
        for (at, image) in self.messages.iter().rev() {
            let Image::Message { retained: true, payload, .. } = image else { continue };
            let len = payload.payload_len();
            if !retention.keeps_acked() || len > room {
                room = 0;
                removed.push(*at);
            } else {
                room -= len;
            }
        }
        removed.iter().for_each(|at| drop(self.messages.remove(at)));
    }

    /// Every run of positions without a message, and the offset of its last position.
    fn gaps(&self) -> Vec<RunImage> {
        let (mut gaps, mut at, mut last) = (Vec::new(), Position(0), None);
        let stored = self.messages.iter().filter_map(|(at, image)| Some((*at, offset_of(image)?)));
        for (end, offset) in stored.map(|(at, offset)| (at, Some(offset))).chain([(self.next, None)]) {
            if at < end {
                let known = self.run_offsets.get(&end).copied();
                let known = known.or(if offset.is_none() { self.last_offset } else { None });
                let below = offset.and_then(|offset| offset.0.checked_sub(1)).map(Offset);
                let first = last.map_or(0, |last: Offset| last.0.saturating_add(1));
                let last_offset = known.or(below).unwrap_or(Offset(first.saturating_add(end.0 - at.0 - 1)));
                gaps.push(RunImage { start: at, end, last_offset });
                last = Some(last_offset);
            }
            last = offset.or(last);
            at = behind(end);
        }
        gaps
    }

    /// The partition, its trimmed runs and its messages.
    fn images(&self, topic: TopicId, partition: PartitionId) -> Vec<Image> {
        let mut gaps = self.gaps();
        let last_message = self.messages.last_key_value().filter(|(at, _)| behind(**at) == self.next);
        let last_offset = match last_message {
            Some((_, image)) => offset_of(image),
            None => gaps.last().map(|gap| gap.last_offset),
        };
        let has_floor = gaps.first().is_some_and(|gap| gap.start == Position(0));
        let floor = has_floor.then(|| gaps.remove(0));
        let mut images = vec![Image::Partition {
            topic,
            partition,
            next_position: self.next,
            last_offset,
            trimmed_floor: floor.map_or(Position(0), |floor| floor.end),
            trimmed_floor_offset: floor.map(|floor| floor.last_offset),
        }];
        images.extend(gaps.into_iter().map(|run| Image::TrimmedRun { topic, partition, run }));
        images.extend(self.messages.values().cloned());
        images
    }

    /// What the groups have acked.
    fn progress(&self, topic: TopicId, partition: PartitionId) -> Vec<Image> {
        let mut images = Vec::new();
        let gaps = self.gaps();
        for (group, acked) in &self.acked {
            let group = *group;
            let messages = acked.iter().filter_map(|at| {
                let last_offset = offset_of(self.messages.get(at)?)?;
                Some(RunImage { start: *at, end: behind(*at), last_offset })
            });
            let mut parts: Vec<RunImage> = gaps.iter().copied().chain(messages).collect();
            parts.sort_by_key(|run| run.start);
            let mut runs: Vec<RunImage> = Vec::new();
            for part in parts {
                match runs.last_mut() {
                    Some(run) if run.end == part.start => (run.end, run.last_offset) = (part.end, part.last_offset),
                    _ => runs.push(part),
                }
            }
            for run in runs {
                images.push(if run.start == Position(0) {
                    let (floor, floor_offset) = (run.end, Some(run.last_offset));
                    Image::Floor { topic, group, partition, floor, floor_offset }
                } else {
                    Image::AckedRun { topic, group, partition, run }
                });
            }
        }
        images
    }
}

fn offset_of(image: &Image) -> Option<Offset> {
    if let Image::Message { offset, .. } = image { Some(*offset) } else { None }
}

#[cfg(test)]
mod tests;
