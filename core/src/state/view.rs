//! A view of the state at one time, read image by image while the state changes.
//!
//! Taking a view clones shared pointers. Reading it yields [`Image`]s in a fixed order and drops each part once it is
//! read, so that memory which only the view still holds is freed piece by piece, never all at once.

use std::sync::Arc;
use std::vec::IntoIter;

use super::State;
use super::dedupe::{DedupeEntry, DedupeTable};
use super::group::{Group, Progress};
use super::message_map::Piece;
use super::partition::Partition;
use super::referrers::Referrers;
use super::topic::Topic;
use crate::codec::record as codec;
use crate::collections::ack_set::AckSet;
use crate::collections::cow::entries_of;
use crate::record::{Event, Image, Record, RunImage};
use crate::state::{Completions, EffectTable, Winners};
use crate::types::{
    EffectNamespace, GroupId, GroupName, IdentityKey, Lsn, MessageRef, PartitionId, PayloadId, Position, ProduceScope,
    Timestamp, TopicId, TopicName,
};

/// The images of a state, in an order that rebuilds it. A clone continues from where it was taken.
#[derive(Clone, Debug)]
pub struct View {
    /// A stack: the last task is read next.
    tasks: Vec<Task>,
    referrers: Referrers,
    /// Whether packed chunks are read as one image.
    in_chunks: bool,
}

/// A part of the state that is not read yet.
#[derive(Clone)]
enum Task {
    One(Image),
    Topics(IntoIter<Arc<Topic>>),
    Partitions(TopicRef, IntoIter<(PartitionId, Arc<Partition>)>),
    Groups(TopicId, IntoIter<Arc<Group>>),
    Progress(TopicId, GroupId, IntoIter<(PartitionId, Arc<Progress>)>),
    Dedupe(IntoIter<(ProduceScope, Arc<DedupeTable>)>),
    Effects(IntoIter<(EffectNamespace, Arc<EffectTable>)>),
    Completions(Arc<Completions>),
    Winners(Arc<Winners>),
    /// Messages, runs, delivery states, dedupe entries, effects, completions or winners.
    Many(Box<dyn Images>),
}

/// A clonable iterator of images.
pub(super) trait Images: Iterator<Item = Image> + Send {
    fn boxed_clone(&self) -> Box<dyn Images>;
}

impl<I: Iterator<Item = Image> + Clone + Send + 'static> Images for I {
    fn boxed_clone(&self) -> Box<dyn Images> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Images> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

#[derive(Clone, Copy)]
struct TopicRef {
    topic: TopicId,
    groups: u32,
}

impl State {
    /// As [`State::view`], with many messages in one image where they are packed: equal states can have different
    /// images. Reading it costs little more than the memory that the messages take.
    #[must_use]
    pub fn view_in_chunks(&self) -> View {
        View { in_chunks: true, ..self.view() }
    }

    /// A view of the current state, with one image for each message; later changes do not affect it.
    #[must_use]
    pub fn view(&self) -> View {
        let dedupe: Vec<_> = self.dedupe.iter().map(|(scope, table)| (scope.clone(), table.clone())).collect();
        let topics: Vec<_> = self.topics.values().cloned().collect();
        let origin = Image::Origin {
            last_lsn: self.last_lsn,
            clock: self.clock,
            wall_clock: self.wall_clock,
            boot: self.boot,
            next_topic: self.next_topic,
        };
        let effects: Vec<_> = self.store.tables().map(|(namespace, table)| (namespace, table.clone())).collect();
        let mut tasks = vec![
            Task::Winners(self.winners.clone()),
            Task::Completions(self.completions.clone()),
            Task::Effects(effects.into_iter()),
            Task::Dedupe(dedupe.into_iter()),
            Task::Topics(topics.into_iter()),
        ];
        // Before what belongs to tenants.
        tasks.extend(self.access.images().into_iter().rev().map(Task::Many));
        tasks.push(Task::One(origin));
        View { tasks, referrers: self.referrers.clone(), in_chunks: false }
    }

    /// A view of the effects of a topic, or of one of its groups.
    pub(crate) fn view_of_effects(&self, topic: &TopicName, group: Option<&GroupName>) -> View {
        let is_included = |namespace: &EffectNamespace| {
            group.is_none_or(|group| matches!(namespace, EffectNamespace::Group(_, name) if name == group))
        };
        let tables = self.store.tables_of(topic).filter(|(namespace, _)| is_included(namespace));
        let tables: Vec<_> = tables.map(|(namespace, table)| (namespace, table.clone())).collect();
        View::of(Task::Effects(tables.into_iter()))
    }

    /// A view of one topic, if it exists.
    pub(crate) fn view_of(&self, topic: TopicId) -> Option<View> {
        let topic = self.topics.get(&topic)?.clone();
        Some(View::of(Task::Topics(vec![topic].into_iter())))
    }

    /// A view of one group, if it exists.
    pub(crate) fn view_of_group(&self, topic: TopicId, group: GroupId) -> Option<View> {
        let of = self.topics.get(&topic)?.groups.get(&group)?.clone();
        Some(View::of(Task::Groups(topic, vec![of].into_iter())))
    }

    /// A view of the dedupe keys that a deletion of `topic` removes.
    pub(crate) fn view_of_dedupe_keys(&self, topic: &TopicName) -> View {
        let tables = self.dedupe.iter().filter(|(scope, _)| scope.names(topic));
        let tables: Vec<_> = tables.map(|(scope, table)| (scope.clone(), table.clone())).collect();
        View::of(Task::Dedupe(tables.into_iter()))
    }

    /// The partitions of a topic, shared.
    pub(crate) fn partitions_of(&self, topic: TopicId) -> Vec<Arc<Partition>> {
        self.topics.get(&topic).map_or_else(Vec::new, |topic| topic.partitions.clone())
    }

    /// A digest of the whole state, equal for equal states and, up to collisions of a CRC-based hash, only for those.
    ///
    /// Reads the whole state; for tests, simulation and inspection.
    #[must_use]
    pub fn digest(&self) -> u64 {
        Self::digest_of(self.view())
    }

    /// As [`State::digest`], but equal for states that differ in LSNs only: `content` stands for a payload.
    #[must_use]
    pub fn digest_by_content(&self, content: impl Fn(PayloadId) -> u64) -> u64 {
        Self::digest_of(self.view().map(|mut image| {
            match &mut image {
                Image::Origin { last_lsn, .. } => *last_lsn = Lsn(0),
                Image::Message { payload, .. } => payload.id = PayloadId { lsn: Lsn(content(payload.id)), part: 0 },
                Image::Effect { effect, .. } => {
                    let payload = effect.result.as_mut().and_then(|result| result.payload.as_mut());
                    payload.into_iter().for_each(|id| *id = PayloadId { lsn: Lsn(content(*id)), part: 0 });
                }
                _ => {}
            }
            image
        }))
    }

    fn digest_of(images: impl Iterator<Item = Image>) -> u64 {
        let mut bytes = Vec::new();
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for image in images {
            bytes.clear();
            let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
            bytes.push(codec::kind(&record.event));
            codec::encode(&record, &mut bytes);
            let low = crc32fast::hash(&bytes);
            digest = (digest.rotate_left(29) ^ (u64::from(low) << 32 | bytes.len() as u64))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        digest
    }
}

impl Iterator for View {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        self.read_next()
    }
}

impl View {
    fn of(task: Task) -> Self {
        Self { tasks: vec![task], referrers: Referrers::default(), in_chunks: false }
    }

    /// Whether more than one message may refer to a payload.
    pub(crate) fn is_shared(&self, payload: PayloadId) -> bool {
        self.referrers.contains(payload)
    }

    /// Whether more than one message may refer to a payload of one of these records.
    pub(crate) fn is_any_shared(&self, first: Lsn, last: Lsn) -> bool {
        self.referrers.contains_any(first, last)
    }

    /// A view of the messages of a partition.
    pub(crate) fn of_partition(topic: TopicId, id: PartitionId, partition: Arc<Partition>) -> Self {
        let of = TopicRef { topic, groups: 0 };
        Self::of(Task::Partitions(of, vec![(id, partition)].into_iter()))
    }

    fn read_next(&mut self) -> Option<Image> {
        loop {
            // A task that has more is pushed back below the tasks that its next part adds.
            match self.tasks.pop()? {
                Task::One(image) => return Some(image),
                Task::Topics(mut topics) => {
                    let Some(topic) = topics.next() else { continue };
                    self.tasks.push(Task::Topics(topics));
                    return Some(self.enter_topic(&topic));
                }
                Task::Partitions(of, mut partitions) => {
                    let Some((id, partition)) = partitions.next() else { continue };
                    self.tasks.push(Task::Partitions(of, partitions));
                    if partition.next_position > Position(0) {
                        return Some(self.enter_partition(of, id, &partition));
                    }
                }
                Task::Groups(topic, mut groups) => {
                    let Some(group) = groups.next() else { continue };
                    self.tasks.push(Task::Groups(topic, groups));
                    let progress: Vec<_> = (0..).map(PartitionId).zip(group.partitions.iter().cloned()).collect();
                    self.tasks.push(Task::Progress(topic, group.id, progress.into_iter()));
                    return Some(Image::Group {
                        topic,
                        group: group.id,
                        name: group.name.clone(),
                        paused: group.paused,
                        skipped: group.skipped,
                        origin: group.origin,
                        has_acked: group.has_acked,
                    });
                }
                Task::Progress(topic, group, mut partitions) => {
                    let Some((partition, progress)) = partitions.next() else { continue };
                    self.tasks.push(Task::Progress(topic, group, partitions));
                    if *progress != Progress::default() {
                        return Some(self.enter_progress(topic, group, partition, &progress));
                    }
                }
                Task::Dedupe(mut scopes) => {
                    let Some((scope, table)) = scopes.next() else { continue };
                    self.tasks.push(Task::Dedupe(scopes));
                    let images = Arc::unwrap_or_clone(table).in_order();
                    let images = images.map(move |(key, entry)| dedupe_image(&scope, &key, entry));
                    self.tasks.push(Task::Many(Box::new(images)));
                }
                Task::Effects(mut tables) => {
                    let Some((namespace, table)) = tables.next() else { continue };
                    self.tasks.push(Task::Effects(tables));
                    let images = Arc::unwrap_or_clone(table).into_effects();
                    self.tasks.push(Task::Many(Box::new(
                        images.map(move |(key, effect)| Image::Effect { identity: namespace.identity(&key), effect }),
                    )));
                }
                Task::Completions(completions) => {
                    let images = Arc::unwrap_or_clone(completions).in_order();
                    self.tasks.push(Task::Many(Box::new(
                        images.map(|(token, completion)| Image::Completion { token, completion }),
                    )));
                }
                Task::Winners(winners) => {
                    let images = Arc::unwrap_or_clone(winners).in_order();
                    self.tasks
                        .push(Task::Many(Box::new(images.map(|(message, winner)| Image::Winner { message, winner }))));
                }
                Task::Many(mut images) => {
                    if let Some(image) = images.next() {
                        self.tasks.push(Task::Many(images));
                        return Some(image);
                    }
                }
            }
        }
    }

    fn enter_topic(&mut self, topic: &Topic) -> Image {
        let groups: Vec<_> = topic.groups.values().cloned().collect();
        let partitions: Vec<_> = (0..).map(PartitionId).zip(topic.partitions.iter().cloned()).collect();
        let of = TopicRef { topic: topic.id, groups: groups.len() as u32 };
        self.tasks.push(Task::Groups(topic.id, groups.into_iter()));
        self.tasks.push(Task::Partitions(of, partitions.into_iter()));
        Image::Topic {
            topic: topic.id,
            name: topic.name.clone(),
            partitions: topic.partition_count(),
            retention: topic.retention,
            next_offset: topic.next_offset,
            next_group: topic.next_group,
        }
    }

    fn enter_partition(&mut self, of: TopicRef, id: PartitionId, partition: &Partition) -> Image {
        let (exclusive, acked_in) = (partition.exclusive.clone(), partition.acked_in.clone());
        let acks = move |position| {
            let acked_in = if acked_in.is_empty() { 0 } else { acked_in.get(position) };
            (acked_in, of.groups > 0 && acked_in == of.groups)
        };
        let messages = partition.messages.clone();
        let image = move |piece| match piece {
            Piece::Chunk(chunk) => {
                let visible_to = |start, end| exclusive.range(start..end).map(|(at, group)| (*at, *group)).collect();
                Image::Chunk { topic: of.topic, partition: id, chunk: chunk.image(&acks, visible_to) }
            }
            Piece::Message(position, message) => {
                let (acked_in, retained) = acks(position);
                Image::Message {
                    topic: of.topic,
                    partition: id,
                    position,
                    offset: message.offset,
                    produced_at: message.produced_at,
                    acked_in,
                    retained,
                    visible_to: exclusive.get(&position).copied(),
                    payload: message.payload,
                    fields: message.fields().cloned(),
                }
            }
        };
        self.tasks.push(match self.in_chunks {
            true => Task::Many(Box::new(messages.into_pieces().map(image))),
            false => {
                let pieces = messages.into_messages().map(|(position, message)| Piece::Message(position, message));
                Task::Many(Box::new(pieces.map(image)))
            }
        });
        self.push_runs(partition.trimmed.clone(), move |run| Image::TrimmedRun { topic: of.topic, partition: id, run });
        Image::Partition {
            topic: of.topic,
            partition: id,
            next_position: partition.next_position,
            last_offset: partition.last_offset,
            trimmed_floor: partition.trimmed.floor(),
            trimmed_floor_offset: partition.trimmed.floor_offset(),
        }
    }

    fn enter_progress(&mut self, topic: TopicId, group: GroupId, partition: PartitionId, progress: &Progress) -> Image {
        let deliveries = entries_of(progress.deliveries.clone());
        self.tasks.push(Task::Many(Box::new(deliveries.map(move |(position, delivery)| {
            let message_ref = MessageRef { topic, group, partition, position };
            Image::DeliveryState { message_ref, delivery }
        }))));
        self.push_runs(progress.acked.clone(), move |run| Image::AckedRun { topic, group, partition, run });
        let below = progress.replayed_below;
        if below > Position(0) {
            self.tasks.push(Task::One(Image::Replayed { topic, group, partition, below }));
        }
        Image::Floor {
            topic,
            group,
            partition,
            floor: progress.acked.floor(),
            floor_offset: progress.acked.floor_offset(),
        }
    }

    fn push_runs(&mut self, acked: AckSet, image: impl Fn(RunImage) -> Image + Clone + Send + 'static) {
        if acked.acked_above() > 0 {
            let runs =
                acked.into_runs().map(move |(start, end, last_offset)| image(RunImage { start, end, last_offset }));
            self.tasks.push(Task::Many(Box::new(runs)));
        }
    }
}

fn dedupe_image(scope: &ProduceScope, key: &IdentityKey, entry: DedupeEntry) -> Image {
    let (tenant, key) = key.parts();
    Image::DedupeEntry {
        scope: scope.clone(),
        tenant: tenant.into(),
        key: key.into(),
        partition: entry.partition,
        offset: entry.offset,
        expires_at: entry.expires_at,
    }
}
