//! Whether the parts of a state fit together.
//!
//! A state that was built record by record does so by itself. One that comes from a snapshot is only as good as whoever wrote
//! it: every piece may be whole, and yet two of them may contradict each other. [`State::check`] finds that before the
//! state is used, in one pass over everything, so that no later step has to reckon with it.

use std::fmt;

use super::State;
use super::group::Progress;
use super::partition::{Message, Partition};
use super::topic::Topic;
use crate::types::{Boot, GroupId, GroupName, Offset, PartitionId, Position, Timestamp, TopicName};

/// Two parts of a state that cannot both be true.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct InconsistentState {
    /// In this topic, if in any.
    pub topic: Option<TopicName>,
    /// In this partition of it.
    pub partition: Option<PartitionId>,
    /// In what this group knows of it.
    pub group: Option<GroupName>,
    /// What contradicts what.
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

fn demand(holds: bool, what: &'static str) -> Result<(), InconsistentState> {
    if holds { Ok(()) } else { Err(InconsistentState { what, ..InconsistentState::default() }) }
}

impl State {
    /// Whether what no piece of a snapshot shows by itself is true of all of them together: every position is kept or trimmed,
    /// offsets and moments rise, a message is done in as many groups as it says, what is gone is done everywhere, and no group
    /// holds what it is done with.
    ///
    /// Looks at every part once. A state that was built by [`State::apply`] from nothing passes.
    ///
    /// # Errors
    /// [`InconsistentState`] names the first contradiction found.
    pub fn check(&self) -> Result<(), InconsistentState> {
        for topic in self.topics.values() {
            check_topic(topic, self.boot, self.clock)
                .map_err(|unsound| InconsistentState { topic: Some(topic.name.clone()), ..unsound })?;
        }
        Ok(())
    }
}

fn check_topic(topic: &Topic, boot: Boot, clock: Timestamp) -> Result<(), InconsistentState> {
    for (id, partition) in topic.partitions() {
        let here = |unsound| InconsistentState { partition: Some(id), ..unsound };
        check_partition(topic, id, partition, clock).map_err(here)?;
        for group in topic.groups.values() {
            let progress = group.progress(id).expect("every group has every partition");
            check_progress(progress, partition, boot)
                .map_err(|unsound| here(InconsistentState { group: Some(group.name.clone()), ..unsound }))?;
        }
    }
    check_offsets(topic)
}

/// An offset is given once in a topic. Within a partition offsets are known to rise.
fn check_offsets(topic: &Topic) -> Result<(), InconsistentState> {
    if topic.partitions.iter().filter(|partition| !partition.messages.is_empty()).count() < 2 {
        return Ok(());
    }
    let kept = topic.partitions.iter().flat_map(|partition| partition.messages.iter());
    let mut offsets: Vec<Offset> = kept.map(|(_, message)| message.offset).collect();
    // Sorted partition by partition already: a sort that looks for such runs merges them.
    offsets.sort();
    demand(offsets.windows(2).all(|pair| pair[0] != pair[1]), "two partitions keep a message with the same offset")
}

/// Walks a partition from its first position to its last.
struct Walk<'a> {
    topic: &'a Topic,
    id: PartitionId,
    partition: &'a Partition,
    groups: u32,
    coverage: Coverage,
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
        coverage: Coverage::of(topic, id),
        clock,
        at: Position(0),
        last: None,
        produced_at: Timestamp(0),
    };
    let floor = partition.trimmed.floor();
    demand((floor == Position(0)) == partition.trimmed.floor_offset().is_none(), "the trimmed floor lacks its offset")?;
    let floor = partition.trimmed.floor_offset().map(|offset| (Position(0), floor, offset));
    let mut gone = floor.into_iter().chain(partition.trimmed.runs()).peekable();
    let mut kept = partition.messages.iter().peekable();
    while walk.at < partition.next_position {
        if let Some((_, end, offset)) = gone.next_if(|(start, ..)| *start == walk.at) {
            walk.pass_trimmed(end, offset)?;
        } else if let Some((_, message)) = kept.next_if(|(position, _)| **position == walk.at) {
            walk.pass_message(message)?;
        } else {
            return demand(false, "a position is neither kept nor trimmed");
        }
    }
    let all = walk.at == partition.next_position && gone.next().is_none() && kept.next().is_none();
    demand(all, "a position is kept and trimmed, or not given yet")?;
    demand(walk.last == partition.last_offset, "the newest offset is not that of the last position")?;
    let (retained, retention) = (partition.retained_load, topic.retention);
    demand(retained.messages == 0 || retention.keeps_acked(), "done messages are kept where none are to be")?;
    let within = retention.bytes.is_none_or(|max| retained.bytes <= max);
    demand(within, "more done bytes are kept than the topic's retention says")
}

impl Walk<'_> {
    /// Goes on to `end`, in front of which stands `offset`: every position on the way took an offset of its own.
    fn step(&mut self, end: Position, offset: Offset) -> Result<(), InconsistentState> {
        demand(offset < self.topic.next_offset, "an offset is still to be given")?;
        let given = self.last.map_or(0, |last| last.0 + 1);
        demand(offset.0 >= given && offset.0 - given >= end.0 - self.at.0 - 1, "offsets do not rise with positions")?;
        self.last = Some(offset);
        self.at = end;
        Ok(())
    }

    fn pass_trimmed(&mut self, end: Position, offset: Offset) -> Result<(), InconsistentState> {
        let done = self.coverage.is_throughout(self.at, end, self.groups);
        demand(done, "a message is trimmed that is not done in every group")?;
        self.step(end, offset)
    }

    fn pass_message(&mut self, message: &Message) -> Result<(), InconsistentState> {
        let position = self.at;
        self.step(position.next(), message.offset)?;
        let in_order = self.produced_at <= message.produced_at && message.produced_at <= self.clock;
        demand(in_order, "a message was accepted before the one in front of it, or after the last recorded moment")?;
        self.produced_at = message.produced_at;
        demand(
            self.coverage.at(position) == message.acked_in,
            "a message is done in more groups than it says, or fewer",
        )?;
        let done = self.groups > 0 && message.acked_in == self.groups;
        let retained = !self.partition.retained.is_empty() && self.partition.retained.contains_key(&position);
        demand(done == retained, "a message is done in every group or merely kept, but not both")?;
        match self.partition.visible_to(position) {
            None => Ok(()),
            Some(group) => self.check_exclusive(position, message, group),
        }
    }

    /// A redriven message is done from the start in every group but its own, which may be gone.
    fn check_exclusive(&self, position: Position, message: &Message, group: GroupId) -> Result<(), InconsistentState> {
        demand(group < self.topic.next_group, "a message is for a group that is still to be numbered")?;
        demand(message.body.metadata().redrive.is_some(), "a message that was not redriven is for one group only")?;
        let own = self.topic.group(group).and_then(|group| group.progress(self.id));
        let done_here = own.is_some_and(|progress| progress.acked.contains(position));
        let hidden = message.acked_in + u32::from(own.is_some() && !done_here) == self.groups;
        demand(hidden, "a message that is for one group only is not done in the others")
    }
}

fn check_progress(progress: &Progress, partition: &Partition, boot: Boot) -> Result<(), InconsistentState> {
    let acked = &progress.acked;
    demand((acked.floor() == Position(0)) == acked.floor_offset().is_none(), "its floor lacks its offset")?;
    let floor = acked.floor_offset().map(|offset| (acked.floor(), offset));
    for (end, offset) in floor.into_iter().chain(acked.runs().map(|(_, end, offset)| (end, offset))) {
        let told = offset_before(partition, end) == Some(offset);
        demand(told, "it tells another offset than the message it is done with has")?;
    }
    for (position, delivery) in progress.deliveries.iter() {
        demand(!acked.contains(*position), "it is done with a message it remembers deliveries of")?;
        demand(delivery.token.boot <= boot, "it knows a token of a boot that is still to come")?;
        let failed = delivery.attempts >= 1 && delivery.failures <= delivery.attempts;
        demand(failed, "a message failed more often than it was delivered")?;
    }
    Ok(())
}

/// The offset of the message in front of `position`, which is kept or the last of what is trimmed.
fn offset_before(partition: &Partition, position: Position) -> Option<Offset> {
    let before = Position(position.0.checked_sub(1)?);
    let kept = partition.messages.get(&before).map(|message| message.offset);
    kept.or_else(|| partition.trimmed.last_offset_below(position))
}

/// In how many groups each position of a partition is done, as the positions where that number changes.
struct Coverage {
    /// From this position on, so many; ascending.
    steps: Vec<(Position, u32)>,
    /// The first step that is not reached yet.
    next: usize,
    now: u32,
}

impl Coverage {
    fn of(topic: &Topic, partition: PartitionId) -> Self {
        let mut changes: Vec<(Position, i64)> = Vec::new();
        for progress in topic.groups.values().filter_map(|group| group.progress(partition)) {
            let floor = (Position(0), progress.acked.floor());
            let runs = progress.acked.runs().map(|(start, end, _)| (start, end));
            for (start, end) in std::iter::once(floor).chain(runs).filter(|(start, end)| start < end) {
                changes.extend([(start, 1), (end, -1)]);
            }
        }
        changes.sort_unstable();
        let (mut steps, mut count): (Vec<(Position, u32)>, i64) = (Vec::new(), 0);
        for (position, change) in changes {
            count += change;
            let covered = u32::try_from(count.max(0)).unwrap_or(u32::MAX);
            match steps.last_mut() {
                Some((last, step)) if *last == position => *step = covered,
                _ => steps.push((position, covered)),
            }
        }
        Self { steps, next: 0, now: 0 }
    }

    /// How many groups are done with `position`; asked of rising positions.
    fn at(&mut self, position: Position) -> u32 {
        while let Some((_, covered)) = self.steps.get(self.next).filter(|(step, _)| *step <= position) {
            self.now = *covered;
            self.next += 1;
        }
        self.now
    }

    /// Whether each of `start..end` is done in just so many groups.
    fn is_throughout(&mut self, start: Position, end: Position, groups: u32) -> bool {
        let mut same = self.at(start) == groups;
        while let Some((_, covered)) = self.steps.get(self.next).filter(|(step, _)| *step < end) {
            self.now = *covered;
            self.next += 1;
            same &= *covered == groups;
        }
        same
    }
}
