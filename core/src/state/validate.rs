//! Consistency check of a state restored from a snapshot.
//!
//! Records applied one by one keep the state consistent. The images of a snapshot can each be valid and still
//! contradict each other. [`State::check`] detects that in one pass before the state is used, so that no later code has
//! to.

use std::fmt;

use super::State;
use super::group::Progress;
use super::message::Message;
use super::message_map::{SomeOffsets, Stretch};
use super::partition::Partition;
use super::topic::Topic;
use crate::types::{Boot, GroupId, GroupName, Offset, PartitionId, Position, Timestamp, TopicName};

/// Two parts of a state contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct InconsistentState {
    /// The topic.
    pub topic: Option<TopicName>,
    /// The partition.
    pub partition: Option<PartitionId>,
    /// The group.
    pub group: Option<GroupName>,
    /// What is inconsistent.
    pub what: &'static str,
}

impl fmt::Display for InconsistentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(topic) = &self.topic {
            write!(f, "topic {topic}, ")?;
        }
        if let Some(partition) = self.partition {
            write!(f, "partition {partition}, ")?;
        }
        if let Some(group) = &self.group {
            write!(f, "group {group}, ")?;
        }
        f.write_str(self.what)
    }
}

fn ensure(holds: bool, what: &'static str) -> Result<(), InconsistentState> {
    if holds { Ok(()) } else { Err(InconsistentState { what, ..InconsistentState::default() }) }
}

impl State {
    /// Checks that every position is stored or trimmed, offsets and times increase, ack counts are correct, trimmed
    /// messages are acked in every group, and acked messages have no delivery state.
    ///
    /// Reads the whole state once. A state built by [`State::apply`] from an empty one passes.
    ///
    /// # Errors
    /// [`InconsistentState`] names the first inconsistency found.
    pub fn check(&self) -> Result<(), InconsistentState> {
        for topic in self.topics.values() {
            check_topic(topic, self.boot, self.clock)
                .map_err(|inconsistent| InconsistentState { topic: Some(topic.name.clone()), ..inconsistent })?;
        }
        Ok(())
    }
}

fn check_topic(topic: &Topic, boot: Boot, clock: Timestamp) -> Result<(), InconsistentState> {
    for (id, partition) in topic.partitions() {
        let here = |inconsistent| InconsistentState { partition: Some(id), ..inconsistent };
        check_partition(topic, id, partition, clock).map_err(here)?;
        for group in topic.groups.values() {
            let progress = group.progress(id).expect("every group has every partition");
            check_progress(progress, partition, boot)
                .map_err(|inconsistent| here(InconsistentState { group: Some(group.name.clone()), ..inconsistent }))?;
        }
    }
    check_offsets(topic)
}

/// The range of offsets that are compared at once.
const OFFSETS_AT_ONCE: u64 = 1 << 18;

/// Offsets are unique in a topic. Within a partition they increase, as checked before.
fn check_offsets(topic: &Topic) -> Result<(), InconsistentState> {
    if topic.partitions.iter().filter(|partition| !partition.messages.is_empty()).count() < 2 {
        return Ok(());
    }
    let mut unread: Vec<_> = topic.partitions.iter().map(|partition| partition.messages.offsets().peekable()).collect();
    let mut seen = SeenOffsets::default();
    loop {
        let next = unread.iter_mut().filter_map(|offsets| offsets.peek().and_then(SomeOffsets::least)).min();
        let Some(first) = next.into_iter().chain(seen.beyond.iter().copied()).min() else { return Ok(()) };
        seen.begin(first);
        for offsets in &mut unread {
            while let Some(some) = offsets.next_if(|some| some.least().is_none_or(|least| seen.is_near(least))) {
                some.for_each(|offset| seen.add(offset));
            }
        }
        ensure(!seen.twice, "two partitions store a message with the same offset")?;
    }
}

/// Which offsets of a range are stored.
#[derive(Default)]
struct SeenOffsets {
    first: u64,
    bits: Vec<u64>,
    /// Offsets beyond the range.
    beyond: Vec<Offset>,
    /// Whether an offset was seen twice.
    twice: bool,
}

impl SeenOffsets {
    /// Begins a range with `first`, the least of all offsets that are not seen yet.
    fn begin(&mut self, first: Offset) {
        self.first = first.0;
        self.bits.clear();
        std::mem::take(&mut self.beyond).into_iter().for_each(|offset| self.add(offset));
    }

    fn is_near(&self, offset: Offset) -> bool {
        offset.0 - self.first < OFFSETS_AT_ONCE
    }

    fn add(&mut self, offset: Offset) {
        let above = offset.0 - self.first;
        if above >= OFFSETS_AT_ONCE {
            return self.beyond.push(offset);
        }
        let (index, bit) = ((above / 64) as usize, 1 << (above % 64));
        if index >= self.bits.len() {
            self.bits.resize(index + 1, 0);
        }
        self.twice |= self.bits[index] & bit != 0;
        self.bits[index] |= bit;
    }
}

/// A walk over a partition from its first position to its last.
struct Walk<'a> {
    topic: &'a Topic,
    id: PartitionId,
    partition: &'a Partition,
    groups: u32,
    ack_counts: AckCounts,
    clock: Timestamp,
    at: Position,
    last: Option<Offset>,
    produced_at: Timestamp,
}

fn check_partition(
    topic: &Topic,
    id: PartitionId,
    partition: &Partition,
    clock: Timestamp,
) -> Result<(), InconsistentState> {
    let mut walk = Walk {
        topic,
        id,
        partition,
        groups: topic.groups.len() as u32,
        ack_counts: AckCounts::of(topic, id),
        clock,
        at: Position(0),
        last: None,
        produced_at: Timestamp(0),
    };
    let floor = partition.trimmed.floor();
    ensure((floor == Position(0)) == partition.trimmed.floor_offset().is_none(), "the trimmed floor has no offset")?;
    let floor = partition.trimmed.floor_offset().map(|offset| (Position(0), floor, offset));
    let mut trimmed = floor.into_iter().chain(partition.trimmed.runs()).peekable();
    let mut stored = partition.messages.stretches().peekable();
    while walk.at < partition.next_position {
        if let Some((_, end, offset)) = trimmed.next_if(|(start, ..)| *start == walk.at) {
            walk.pass_trimmed(end, offset)?;
        } else if let Some(stretch) = stored.next_if(|stretch| stretch.start == walk.at) {
            walk.pass_messages(&stretch)?;
        } else {
            return ensure(false, "a position is neither stored nor trimmed");
        }
    }
    let all = walk.at == partition.next_position && trimmed.next().is_none() && stored.next().is_none();
    ensure(all, "a position is both stored and trimmed, or not assigned yet")?;
    ensure(walk.last == partition.last_offset, "the newest offset is not the offset of the last position")
}

impl Walk<'_> {
    /// Advances to `end`; `offset` belongs to the position before it. Every position in between had an offset of its
    /// own.
    fn advance(&mut self, end: Position, offset: Offset) -> Result<(), InconsistentState> {
        ensure(offset < self.topic.next_offset, "an offset is not assigned yet")?;
        let first = self.last.map_or(0, |last| last.0 + 1);
        ensure(
            offset.0 >= first && offset.0 - first >= end.0 - self.at.0 - 1,
            "offsets do not increase with positions",
        )?;
        self.last = Some(offset);
        self.at = end;
        Ok(())
    }

    fn pass_trimmed(&mut self, end: Position, offset: Offset) -> Result<(), InconsistentState> {
        let acked = self.ack_counts.is_throughout(self.at, end, self.groups);
        ensure(acked, "a trimmed message is not acked in every group")?;
        self.advance(end, offset)
    }

    fn pass_messages(&mut self, stretch: &Stretch) -> Result<(), InconsistentState> {
        let Stretch { start, end, first, last, is_in_order } = *stretch;
        self.advance(start.next(), first.0)?;
        if start.next() < end {
            self.advance(end, last.0)?;
        }
        let in_order = is_in_order && self.produced_at <= first.1 && last.1 <= self.clock;
        ensure(in_order, "a message is older than the one before it, or newer than the last record")?;
        self.produced_at = last.1;
        self.check_acks(start, end)?;
        for (position, group) in self.partition.exclusive.range(start..end) {
            let message = self.partition.message(*position);
            let message = message.as_ref().expect("the message was just passed");
            self.check_exclusive(*position, message, *group)?;
        }
        Ok(())
    }

    /// Checks the counts of `start..end`, at which messages are stored, run by run: most neighbours have the same.
    fn check_acks(&mut self, start: Position, end: Position) -> Result<(), InconsistentState> {
        let mut at = start;
        let runs = self.partition.acked_in.runs_between(start, end);
        let behind = [(end, end, 0)];
        for (from, to, acked_in) in runs.into_iter().chain(behind) {
            if at < from {
                self.check_run(at, from, 0)?;
            }
            if from < to {
                self.check_run(from, to, acked_in)?;
            }
            at = to;
        }
        Ok(())
    }

    /// Checks that each message of `start..end` is acked in `acked_in` groups, and retained if those are all.
    fn check_run(&mut self, start: Position, end: Position, acked_in: u32) -> Result<(), InconsistentState> {
        ensure(self.ack_counts.is_throughout(start, end, acked_in), "a message's ack count is wrong")?;
        let acked = self.groups > 0 && acked_in == self.groups;
        let retained = self.partition.retained.runs_between(start, end);
        let as_acked = match acked {
            true => retained.iter().map(|(from, to, _)| to.0 - from.0).sum::<u64>() == end.0 - start.0,
            false => retained.is_empty(),
        };
        ensure(as_acked, "a message is acked in every group but not retained, or the reverse")
    }

    /// A redriven message is acked in every group except its own, which can be deleted.
    fn check_exclusive(&self, position: Position, message: &Message, group: GroupId) -> Result<(), InconsistentState> {
        ensure(group < self.topic.next_group, "a message is visible to a group that is not created yet")?;
        ensure(message.redrive().is_some(), "a message that was not redriven is visible to one group only")?;
        let own = self.topic.group(group).and_then(|group| group.progress(self.id));
        let acked_here = own.is_some_and(|progress| progress.acked.contains(position));
        let hidden = self.partition.acked_in(position) + u32::from(own.is_some() && !acked_here) == self.groups;
        ensure(hidden, "a message visible to one group only is not acked in the others")
    }
}

fn check_progress(progress: &Progress, partition: &Partition, boot: Boot) -> Result<(), InconsistentState> {
    let acked = &progress.acked;
    ensure((acked.floor() == Position(0)) == acked.floor_offset().is_none(), "the floor has no offset")?;
    let floor = acked.floor_offset().map(|offset| (acked.floor(), offset));
    for (end, offset) in floor.into_iter().chain(acked.runs().map(|(_, end, offset)| (end, offset))) {
        let matches = offset_before(partition, end) == Some(offset);
        ensure(matches, "the offset of a run is not the offset of its last message")?;
    }
    for (position, delivery) in progress.deliveries.iter() {
        ensure(!acked.contains(*position), "an acked message has a delivery state")?;
        ensure(delivery.token.boot <= boot, "a lease token belongs to a later boot")?;
        let counted = delivery.attempts >= 1 && delivery.failures <= delivery.attempts;
        ensure(counted, "a message has more failures than attempts")?;
    }
    Ok(())
}

/// The offset of the message before `position`, which is stored or the last of a trimmed run.
fn offset_before(partition: &Partition, position: Position) -> Option<Offset> {
    let before = Position(position.0.checked_sub(1)?);
    let stored = partition.messages.get(before).map(|message| message.offset);
    stored.or_else(|| partition.trimmed.last_offset_below(position))
}

/// The number of groups that have acked each position of a partition, as the positions where it changes.
struct AckCounts {
    /// The count from each position on; ascending.
    changes: Vec<(Position, u32)>,
    /// The first change not passed yet.
    next: usize,
    current: u32,
}

impl AckCounts {
    fn of(topic: &Topic, partition: PartitionId) -> Self {
        let mut edges: Vec<(Position, i64)> = Vec::new();
        for progress in topic.groups.values().filter_map(|group| group.progress(partition)) {
            let floor = (Position(0), progress.acked.floor());
            let runs = progress.acked.runs().map(|(start, end, _)| (start, end));
            for (start, end) in std::iter::once(floor).chain(runs).filter(|(start, end)| start < end) {
                edges.extend([(start, 1), (end, -1)]);
            }
        }
        edges.sort_unstable();
        let (mut changes, mut sum): (Vec<(Position, u32)>, i64) = (Vec::new(), 0);
        for (position, change) in edges {
            sum += change;
            let count = u32::try_from(sum.max(0)).unwrap_or(u32::MAX);
            match changes.last_mut() {
                Some((last, last_count)) if *last == position => *last_count = count,
                _ => changes.push((position, count)),
            }
        }
        Self { changes, next: 0, current: 0 }
    }

    /// The count at `position`. Positions must not decrease from call to call.
    fn at(&mut self, position: Position) -> u32 {
        while let Some((_, count)) = self.changes.get(self.next).filter(|(from, _)| *from <= position) {
            self.current = *count;
            self.next += 1;
        }
        self.current
    }

    /// Whether the count is `groups` at each of `start..end`.
    fn is_throughout(&mut self, start: Position, end: Position, groups: u32) -> bool {
        let mut same = self.at(start) == groups;
        while let Some((_, count)) = self.changes.get(self.next).filter(|(from, _)| *from < end) {
            self.current = *count;
            self.next += 1;
            same &= *count == groups;
        }
        same
    }
}
