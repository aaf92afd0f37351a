//! A partition: stored and trimmed messages, backlog and retention.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::{Message, NewMessage};
use super::message_map::{MessageChunk, MessageMap};
use crate::collections::ack_set::AckSet;
use crate::collections::counts::Counts;
use crate::collections::cow::CowMap;
use crate::types::{DecisionFields, GroupId, MessageFlags, Offset, Position, Retention, Timestamp};

/// A number of messages and their key and value bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of messages.
    pub messages: u64,
    /// Their key and value bytes.
    pub bytes: u64,
}

impl Load {
    /// The load of one message.
    fn of(message: &Message) -> Self {
        Self { messages: 1, bytes: message.payload.payload_len() }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        debug_assert!(self.messages >= other.messages, "the messages were added before");
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }
}

/// The most retained messages that one ack removes. After the retention of a topic was shortened, or a long message
/// was acked, there can be many to remove; records of their own remove the others.
const REMOVED_PER_ACK: usize = 1_024;

/// The messages of one partition, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    pub(crate) messages: MessageMap,
    pub(super) next_position: Position,
    pub(super) last_offset: Option<Offset>,
    /// Positions whose messages are removed. Acked in every group, including those created later.
    pub(super) trimmed: AckSet,
    /// Messages not yet acked in every group.
    pub(super) backlog: Load,
    /// The number of groups that have acked each stored message.
    pub(super) acked_in: Counts,
    /// Messages acked in every group and kept for replay: 1 each.
    pub(super) retained: Counts,
    pub(super) retained_load: Load,
    /// Stored messages with a priority, a delay or a deadline.
    pub(super) special: CowMap<Position, ()>,
    /// What the retained messages count towards the limit of all topics.
    pub(super) retained_memory: u64,
    /// Redriven messages and the only group to which each is visible.
    pub(super) exclusive: BTreeMap<Position, GroupId>,
}

impl Partition {
    /// The message at `position`, if it is stored.
    #[must_use]
    pub fn message(&self, position: Position) -> Option<Message> {
        self.messages.get(position)
    }

    /// The message with `offset`, if it is stored in this partition.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<(Position, Message)> {
        self.messages.find(offset)
    }

    /// The offset of the message at `position`.
    pub(crate) fn offset_at(&self, position: Position) -> Option<Offset> {
        self.messages.offset_at(position)
    }

    /// The flags of the message at `position`.
    pub(crate) fn flags_at(&self, position: Position) -> Option<MessageFlags> {
        self.messages.flags_at(position)
    }

    /// What decisions need of the metadata of the message at `position`.
    pub(crate) fn fields_at(&self, position: Position) -> Option<&Arc<DecisionFields>> {
        self.messages.fields_at(position)
    }

    /// The position and the flags of the message with `offset`.
    pub(crate) fn find_flags(&self, offset: Offset) -> Option<(Position, MessageFlags)> {
        self.messages.find_flags(offset)
    }

    /// The first stored message at or after `offset`.
    #[must_use]
    pub(crate) fn first_from_offset(&self, offset: Offset) -> Option<(Position, Message)> {
        self.messages.first_from_offset(offset)
    }

    /// The first stored message that was produced at or after `time`.
    #[must_use]
    pub(crate) fn first_from_time(&self, time: Timestamp) -> Option<(Position, Message)> {
        self.messages.first_from_time(time)
    }

    /// All stored messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = (Position, Message)> {
        self.messages.iter()
    }

    /// The last stored message.
    #[must_use]
    pub fn last_message(&self) -> Option<(Position, Message)> {
        self.messages.last()
    }

    /// The position and the flags of the last stored message.
    pub(crate) fn last_flags(&self) -> Option<(Position, MessageFlags)> {
        self.messages.last_flags()
    }

    /// The stored messages from `position` on, in order.
    pub(crate) fn messages_from(&self, position: Position) -> impl Iterator<Item = (Position, Message)> {
        self.messages.range_from(position)
    }

    /// The position of the next message.
    #[must_use]
    pub fn next_position(&self) -> Position {
        self.next_position
    }

    /// The offset of the newest message, stored or trimmed; `None` if there never was one.
    #[must_use]
    pub fn last_offset(&self) -> Option<Offset> {
        self.last_offset
    }

    /// The positions whose messages are removed.
    #[must_use]
    pub fn trimmed(&self) -> &AckSet {
        &self.trimmed
    }

    /// The messages not yet acked in every group, which backpressure counts.
    #[must_use]
    pub fn backlog(&self) -> Load {
        self.backlog
    }

    /// All stored messages: the backlog and the retained ones.
    #[must_use]
    pub fn kept(&self) -> Load {
        Load {
            messages: self.backlog.messages + self.retained_load.messages,
            bytes: self.backlog.bytes + self.retained_load.bytes,
        }
    }

    /// The memory that its stored messages take, without their payloads; an estimate.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.messages.memory()
    }

    /// The position of the oldest retained message.
    pub(crate) fn first_retained(&self) -> Option<Position> {
        self.retained.first().map(|(position, _)| position)
    }

    /// The oldest retained message.
    #[must_use]
    pub fn oldest_retained(&self) -> Option<(Position, Message)> {
        let position = self.first_retained()?;
        Some((position, self.messages.get(position).expect("a retained message is stored")))
    }

    /// The positions of retained messages, in order.
    pub fn retained(&self) -> impl Iterator<Item = Position> {
        self.retained.runs().flat_map(|(start, end, _)| (start.0..end.0).map(Position))
    }

    /// The number of groups that have acked the message at `position`; 0 if it is not stored.
    #[must_use]
    pub fn acked_in(&self, position: Position) -> u32 {
        self.acked_in.get(position)
    }

    /// The stored messages with a priority, a delay or a deadline, in order.
    pub(crate) fn special(&self) -> impl Iterator<Item = (Position, Message)> {
        let message = |position: &Position| self.messages.get(*position).expect("a special message is stored");
        self.special.iter().map(move |(position, ())| (*position, message(position)))
    }

    /// The retained messages and their key and value bytes.
    #[must_use]
    pub fn retained_load(&self) -> Load {
        self.retained_load
    }

    /// The memory of the retained messages, as [`Limits::retained_bytes_max`](crate::types::Limits) counts it.
    #[must_use]
    pub fn retained_memory(&self) -> u64 {
        self.retained_memory
    }

    /// The last of the retained messages that `retention` does not keep at `now`, at most the `max` oldest of them.
    #[must_use]
    pub(crate) fn retained_over(&self, retention: Retention, now: Timestamp, max: usize) -> Option<Position> {
        let mut bytes = self.retained_load.bytes;
        let mut is_over = |position: &Position| {
            let message = self.messages.get(*position).expect("a retained message is stored");
            let too_old = retention.age.is_some_and(|age| message.produced_at.after(age) <= now);
            let too_many = retention.bytes.is_some_and(|max| bytes > max);
            bytes = bytes.saturating_sub(message.payload.payload_len());
            too_old || too_many
        };
        self.retained().take(max).take_while(|position| is_over(position)).last()
    }

    /// The last of the oldest retained messages, at most `max`, that are `included` and whose removal frees `memory`.
    #[must_use]
    pub(crate) fn retained_for(
        &self,
        memory: u64,
        max: usize,
        included: impl Fn(Timestamp) -> bool,
    ) -> Option<Position> {
        let mut freed = 0;
        let needed = |position: &Position| {
            let message = self.messages.get(*position).expect("a retained message is stored");
            let is_needed = freed < memory && included(message.produced_at);
            freed += message.retained_bytes();
            is_needed
        };
        self.retained().take(max).take_while(needed).last()
    }

    /// Whether the message at `position` is stored and not yet acked in every group.
    #[must_use]
    pub fn in_backlog(&self, position: Position) -> bool {
        self.messages.contains(position) && (self.retained.is_empty() || self.retained.get(position) == 0)
    }

    /// The first message of the backlog at or after `from`.
    #[must_use]
    pub(crate) fn first_in_backlog(&self, from: Position) -> Option<(Position, Message)> {
        let mut from = from;
        loop {
            let (position, message) = self.messages_from(from).next()?;
            match self.retained.end_of_run(position) {
                None => return Some((position, message)),
                Some(end) => from = end,
            }
        }
    }

    /// The only group to which the message at `position` is visible, if it is a redriven one.
    #[must_use]
    pub fn visible_to(&self, position: Position) -> Option<GroupId> {
        if self.exclusive.is_empty() { None } else { self.exclusive.get(&position).copied() }
    }

    pub(super) fn push(&mut self, offset: Offset, produced_at: Timestamp, new: NewMessage) -> Position {
        let position = self.next_position;
        let message = Message::new(offset, produced_at, new.payload, new.fields);
        self.backlog.add(Load::of(&message));
        self.insert(position, message);
        self.next_position = position.next();
        self.last_offset = Some(offset);
        position
    }

    /// Stores a message and returns the one at its position, if there was one.
    pub(super) fn insert(&mut self, position: Position, message: Message) -> Option<Message> {
        self.note_special(position, &message);
        self.messages.insert(position, message)
    }

    /// Lists the message if it has a priority, a delay or a deadline.
    pub(super) fn note_special(&mut self, position: Position, message: &Message) {
        let flags = message.flags();
        if flags.has_delay || flags.has_deadline || flags.priority.level() > 0 {
            self.special.insert(position, ());
        }
    }

    /// Counts the messages of a chunk, which are stored, and their acks.
    pub(super) fn restore_acks(&mut self, chunk: &MessageChunk) {
        for (start, end, run) in chunk.acked_stretches() {
            if run.acked_in > 0 {
                self.acked_in.set(start, end, run.acked_in);
            }
            if run.retained {
                self.retained.set(start, end, 1);
            }
        }
        let (load, memory) = match chunk.acks() {
            [run] if !run.retained => return self.backlog.add(chunk.sums().0),
            [_] => chunk.sums(),
            _ => {
                let retained = chunk.acked_stretches().filter(|(_, _, run)| run.retained);
                let sums = retained.map(|(start, end, _)| self.messages.sums(start, end));
                sums.fold((Load::default(), 0), |(mut load, memory), (of_stretch, memory_of_stretch)| {
                    load.add(of_stretch);
                    (load, memory + memory_of_stretch)
                })
            }
        };
        self.retained_load.add(load);
        self.retained_memory += memory;
        let mut rest = chunk.sums().0;
        rest.subtract(load);
        self.backlog.add(rest);
    }

    /// Replaces a stored message by one with the same offset, time and lengths.
    pub(crate) fn replace(&mut self, position: Position, message: Message) {
        let flags = message.flags();
        if flags.has_deadline {
            self.special.insert(position, ());
        }
        self.messages.change(position, |stored| *stored = message);
    }

    /// Counts an ack of one of the topic's `groups`. The last one removes or retains the message, depending on
    /// `retention`. Returns the message's offset; `None` if it is not stored.
    pub(super) fn count_ack(&mut self, position: Position, groups: u32, retention: Retention) -> Option<Offset> {
        if groups == 1 && !retention.keeps_acked() {
            return self.remove_from_backlog(position);
        }
        let message = self.messages.get(position)?;
        let (offset, load) = (message.offset, Load::of(&message));
        let acked_in = if groups == 1 { 1 } else { self.acked_in.get(position) + 1 };
        assert!(acked_in <= groups, "each group acks a message at most once");
        if acked_in == groups && !retention.keeps_acked() {
            return self.remove_from_backlog(position);
        }
        self.acked_in.set(position, position.next(), acked_in);
        if acked_in == groups {
            let memory = message.retained_bytes();
            self.backlog.subtract(load);
            self.retained_load.add(load);
            self.retained_memory += memory;
            self.retained.set(position, position.next(), 1);
            self.enforce_retained_bytes(retention, REMOVED_PER_ACK);
        }
        Some(offset)
    }

    /// Removes retained messages up to `through`.
    pub(super) fn expire_retained(&mut self, through: Position) {
        while let Some((start, end)) = self.retained.first().filter(|(start, _)| *start <= through) {
            self.remove_range(start, end.min(through.next()));
        }
    }

    /// Recomputes backlog and retained messages from the ack counts, after the set of groups or a group's progress
    /// changed. Costs as much as there are runs of equal counts, not messages.
    pub(super) fn recount(&mut self, groups: u32, retention: Retention) {
        self.backlog = self.kept();
        self.retained = Counts::default();
        self.retained_load = Load::default();
        self.retained_memory = 0;
        let acked: Vec<_> = self.acked_in.runs().filter(|(_, _, count)| *count == groups).collect();
        for (start, end, _) in acked {
            if retention.keeps_acked() {
                let (load, memory) = self.sums_of(start, end);
                self.backlog.subtract(load);
                self.retained_load.add(load);
                self.retained_memory += memory;
                self.retained.set(start, end, 1);
            } else {
                self.remove_range(start, end);
            }
        }
        self.enforce_retained_bytes(retention, usize::MAX);
    }

    /// Removes a message, if it is stored, from the backlog or the retained ones.
    pub(crate) fn remove(&mut self, position: Position) {
        if self.messages.contains(position) {
            self.remove_range(position, position.next());
        }
    }

    pub(super) fn set_acked_in(&mut self, position: Position, groups: u32) {
        self.acked_in.set(position, position.next(), groups);
    }

    /// Counts the acks of a group that has acked `acked`. A [`Partition::recount`] must follow.
    pub(super) fn add_acks(&mut self, acked: &AckSet) {
        for (start, end) in ranges_of(acked) {
            for (from, to) in self.stored_stretches(start, end) {
                self.acked_in.increment(from, to);
            }
        }
    }

    /// The reverse of [`Partition::add_acks`].
    pub(super) fn subtract_acks(&mut self, acked: &AckSet) {
        ranges_of(acked).for_each(|(start, end)| self.acked_in.decrement(start, end));
    }

    /// The load of the stored messages in `start..end`.
    pub(super) fn load_of(&self, start: Position, end: Position) -> Load {
        self.sums_of(start, end).0
    }

    /// The load and the memory of the stored messages in `start..end`.
    pub(super) fn sums_of(&self, start: Position, end: Position) -> (Load, u64) {
        let (mut load, mut memory) = (Load::default(), 0);
        for (from, to) in self.stored_stretches(start, end) {
            let (of_stretch, memory_of_stretch) = self.messages.sums(from, to);
            load.add(of_stretch);
            memory += memory_of_stretch;
        }
        (load, memory)
    }

    /// The ranges of stored positions in `start..end`.
    fn stored_stretches(&self, start: Position, end: Position) -> Vec<(Position, Position)> {
        let (mut at, end) = (start, end.min(self.next_position));
        let mut stretches = Vec::new();
        loop {
            let from = self.trimmed.first_unacked_from(at);
            if from >= end {
                return stretches;
            }
            at = self.trimmed.first_acked_from(from).map_or(end, |trimmed| trimmed.min(end));
            stretches.push((from, at));
        }
    }

    /// Removes a message of the backlog and returns its offset; `None` if it is not stored.
    fn remove_from_backlog(&mut self, position: Position) -> Option<Offset> {
        let message = self.messages.remove(position)?;
        self.backlog.subtract(Load::of(&message));
        let is_new = self.trimmed.insert(position, message.offset);
        assert!(is_new, "a message is trimmed once");
        self.forget(position, position.next());
        Some(message.offset)
    }

    /// As [`Partition::remove_range`], of one retained message.
    fn remove_retained(&mut self, position: Position) {
        let message = self.messages.remove(position).expect("a retained message is stored");
        self.retained_load.subtract(Load::of(&message));
        self.retained_memory -= message.retained_bytes();
        let is_new = self.trimmed.insert(position, message.offset);
        assert!(is_new, "a message is trimmed once");
        self.forget(position, position.next());
    }

    /// Removes and trims the messages of a range, all stored and all of the backlog or all retained.
    fn remove_range(&mut self, start: Position, end: Position) {
        let (load, memory) = self.sums_of(start, end);
        match self.retained.get(start) {
            0 => self.backlog.subtract(load),
            _ => {
                self.retained_load.subtract(load);
                self.retained_memory -= memory;
            }
        }
        let (_, last) = self.messages.last_below(end).expect("the messages are stored");
        self.trimmed.extend_run(start, end, last.offset);
        match end == start.next() {
            true => drop(self.messages.remove(start)),
            false => self.messages.remove_range(start, end),
        }
        self.forget(start, end);
    }

    /// Forgets what is known of messages that were removed.
    pub(super) fn forget(&mut self, start: Position, end: Position) {
        if !self.acked_in.is_empty() {
            self.acked_in.set(start, end, 0);
        }
        if !self.retained.is_empty() {
            self.retained.set(start, end, 0);
        }
        if !self.special.is_empty() {
            match end == start.next() {
                true => drop(self.special.remove(&start)),
                false => drop(self.special.take_range(&start, &end)),
            }
        }
        while let Some((position, _)) = self.exclusive.range(start..end).next() {
            let position = *position;
            self.exclusive.remove(&position);
        }
    }

    /// Removes the oldest retained messages beyond the retention's bytes, at most `max`.
    fn enforce_retained_bytes(&mut self, retention: Retention, max: usize) {
        let Some(bytes_max) = retention.bytes else { return };
        let mut left = max as u64;
        while let Some(excess) = self.retained_load.bytes.checked_sub(bytes_max).filter(|excess| *excess > 0)
            && left > 0
        {
            let (start, end) = self.retained.first().expect("a message is retained");
            let first = self.messages.get(start).expect("a retained message is stored");
            if first.payload.payload_len() >= excess {
                return self.remove_retained(start);
            }
            let enough = self.messages.first_with_bytes(start, excess).map_or(end, Position::next);
            let removed_end = enough.min(end).min(Position(start.0.saturating_add(left)));
            left -= removed_end.0 - start.0;
            self.remove_range(start, removed_end);
        }
    }
}

/// The ranges of a set, the one below the floor first.
fn ranges_of(acked: &AckSet) -> impl Iterator<Item = (Position, Position)> {
    let runs = acked.runs().map(|(start, end, _)| (start, end));
    std::iter::once((Position(0), acked.floor())).chain(runs)
}
