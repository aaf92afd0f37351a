//! The stored messages of a partition, by position.
//!
//! Messages are held in chunks of up to [`CHUNK`]. The last chunk is open: a queue of messages. When it is full and
//! another message follows, it is packed: its messages then take a few bytes each, and any of them is read without
//! decoding the others. Removing a message of a packed chunk clears a bit beside it; changing one opens the chunk.
//!
//! At most two chunks are open: the last one, and the one that was changed last.

use std::collections::{VecDeque, vec_deque};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

mod chunk;
mod columns;
mod lsns;
mod packed;
mod sealed;
#[cfg(test)]
mod tests;
mod write;

use chunk::Chunk;
use packed::CHUNK;
pub use sealed::{AckRun, MessageChunk};
pub(crate) use sealed::{ChunkParts, Piece, SomeOffsets, Stretch};

use super::message::Message;
use super::partition::Load;
use crate::types::{DecisionFields, Lsn, MessageFlags, Offset, Position, Timestamp};

/// The reference counts of an [`Arc`].
const ARC_BYTES: u64 = 2 * size_of::<usize>() as u64;

/// The stored messages of a partition, in the order of their positions, offsets and times.
///
/// Lookups are O(log n). So are appending a message and removing one, amortised. A clone costs at most two reference
/// counts per [`CHUNK`] messages; a clone and its original do not affect each other. Two maps are equal if their
/// messages are.
#[derive(Clone, Default)]
pub(crate) struct MessageMap {
    /// No chunk is empty, except for the last one if it is open and small.
    slots: VecDeque<Slot>,
    len: usize,
    /// A position in the chunk that was opened by a write, if that is not the last one.
    opened: Option<Position>,
    /// The bytes of all packed chunks.
    packed_bytes: u64,
}

/// A chunk and where it begins.
#[derive(Clone)]
struct Slot {
    /// At most the first position of the chunk, and above every position of the chunk before.
    first: Position,
    /// The sums over the partition up to this chunk. If no message of a chunk has been removed, the difference to the
    /// next chunk is the sum over its messages; otherwise it is greater.
    before: Sums,
    chunk: Chunk,
}

/// Sums over messages. Running sums wrap around: only their differences are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// Key and value bytes.
    bytes: u64,
    /// As [`Message::retained_bytes`].
    retained_bytes: u64,
}

impl Sums {
    fn of(message: &Message) -> Self {
        Self { bytes: message.payload.payload_len(), retained_bytes: message.retained_bytes() }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.wrapping_add(other.bytes),
            retained_bytes: self.retained_bytes.wrapping_add(other.retained_bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.wrapping_sub(other.bytes),
            retained_bytes: self.retained_bytes.wrapping_sub(other.retained_bytes),
        }
    }
}

/// An estimate of the memory of a message's decision fields. Names are shared with the topics and groups they name.
fn fields_bytes(fields: Option<&Arc<DecisionFields>>) -> u64 {
    fields.map_or(0, |fields| {
        let identity = fields.identity.as_ref().map_or(0, |identity| ARC_BYTES + identity.bytes().len() as u64);
        let error = fields.dead_letter.as_ref().map_or(0, |origin| origin.last_error.len() as u64);
        ARC_BYTES + size_of::<DecisionFields>() as u64 + identity + error
    })
}

/// The first of `indexes` for which `before` does not hold; from there on it must hold for none.
fn partition_point(indexes: Range<usize>, mut before: impl FnMut(usize) -> bool) -> usize {
    let Range { mut start, mut end } = indexes;
    while start < end {
        let middle = start.midpoint(end);
        if before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

impl MessageMap {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, position: Position) -> Option<Message> {
        self.at(position).map(|(chunk, index)| chunk.message(index))
    }

    pub(crate) fn contains(&self, position: Position) -> bool {
        self.at(position).is_some()
    }

    pub(crate) fn last(&self) -> Option<(Position, Message)> {
        // The last chunk can be empty; the one before it is not.
        let last = |slot: &Slot| slot.chunk.last().map(|index| slot.chunk.entry(index));
        self.slots.iter().rev().find_map(last)
    }

    /// The position and the flags of the last message, without a copy of it.
    pub(crate) fn last_flags(&self) -> Option<(Position, MessageFlags)> {
        if let Some(Slot { chunk: Chunk::Open(open), .. }) = self.slots.back()
            && let Some((position, message)) = open.entries.back()
        {
            return Some((*position, message.flags));
        }
        self.last().map(|(position, message)| (position, message.flags))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, Message)> {
        self.iter_from(0, 0)
    }

    /// The messages at and above `position`.
    pub(crate) fn range_from(&self, position: Position) -> impl Iterator<Item = (Position, Message)> {
        match self.slot_of(position) {
            None => self.iter_from(0, 0),
            Some(slot) => self.iter_from(slot, self.slots[slot].chunk.index_from(position)),
        }
    }

    /// The last message below `position`.
    pub(crate) fn last_below(&self, position: Position) -> Option<(Position, Message)> {
        let (slot, index) = self.find_last_below(position)?;
        Some(self.slots[slot].chunk.entry(index))
    }

    pub(crate) fn find(&self, offset: Offset) -> Option<(Position, Message)> {
        self.locate(offset).map(|(chunk, index)| chunk.entry(index))
    }

    /// The position and the flags of the message with `offset`.
    pub(crate) fn find_flags(&self, offset: Offset) -> Option<(Position, MessageFlags)> {
        self.locate(offset).map(|(chunk, index)| (chunk.position(index), chunk.flags(index)))
    }

    fn locate(&self, offset: Offset) -> Option<(&Chunk, usize)> {
        let first = self.first_after(|chunk, index| chunk.offset(index) < offset);
        first.filter(|(chunk, index)| chunk.offset(*index) == offset)
    }

    pub(crate) fn offset_at(&self, position: Position) -> Option<Offset> {
        self.at(position).map(|(chunk, index)| chunk.offset(index))
    }

    pub(crate) fn flags_at(&self, position: Position) -> Option<MessageFlags> {
        self.at(position).map(|(chunk, index)| chunk.flags(index))
    }

    pub(crate) fn fields_at(&self, position: Position) -> Option<&Arc<DecisionFields>> {
        self.at(position).and_then(|(chunk, index)| chunk.fields(index))
    }

    /// The first message at or after `offset`.
    pub(crate) fn first_from_offset(&self, offset: Offset) -> Option<(Position, Message)> {
        self.first_after(|chunk, index| chunk.offset(index) < offset).map(|(chunk, index)| chunk.entry(index))
    }

    /// The first message that was produced at or after `time`.
    pub(crate) fn first_from_time(&self, time: Timestamp) -> Option<(Position, Message)> {
        self.first_after(|chunk, index| chunk.produced_at(index) < time).map(|(chunk, index)| chunk.entry(index))
    }

    /// The first position at or after `start` up to which the messages from `start` on, all stored, have at least
    /// `bytes` of key and value.
    pub(crate) fn first_with_bytes(&self, start: Position, bytes: u64) -> Option<Position> {
        let slot = self.slot_of(start)?;
        let chunk = &self.slots[slot].chunk;
        let start = chunk.find(start)?;
        let first_with = |chunk: &Chunk, start: usize, bytes: u64| {
            let mut sum = 0;
            let mut entries = chunk.entries(start..CHUNK);
            let enough = entries.find(|(_, message)| {
                sum += message.payload.payload_len();
                sum >= bytes
            });
            enough.map(|(position, _)| position).ok_or(sum)
        };
        let rest = match first_with(chunk, start, bytes) {
            Ok(position) => return Some(position),
            Err(sum) => bytes - sum,
        };
        let next = self.slots.get(slot + 1)?.before.bytes;
        let sum_before = |slot: usize| self.slots[slot].before.bytes.wrapping_sub(next);
        // Sums of removed messages are counted, but only beyond the messages from `start` on without a gap.
        let after = partition_point(slot + 2..self.slots.len(), |slot| sum_before(slot) < rest);
        first_with(&self.slots[after - 1].chunk, 0, rest - sum_before(after - 1)).ok()
    }

    /// The load and [`Message::retained_bytes`] of the messages in `start..end`, all stored.
    pub(crate) fn sums(&self, start: Position, end: Position) -> (Load, u64) {
        let sums = self.sums_between(start, end).unwrap_or_default();
        (Load { messages: end.0.saturating_sub(start.0), bytes: sums.bytes }, sums.retained_bytes)
    }

    fn sums_between(&self, start: Position, end: Position) -> Option<Sums> {
        let slot = self.slot_of(start)?;
        let (last_slot, last) = self.find_last_below(end)?;
        let index = self.slots[slot].chunk.index_from(start);
        if slot >= last_slot {
            return Some(self.slots[slot].chunk.sums(index..last + 1));
        }
        let between = self.slots[last_slot].before.minus(self.slots[slot + 1].before);
        let (first, last) = (self.slots[slot].chunk.sums(index..CHUNK), self.slots[last_slot].chunk.sums(0..last + 1));
        Some(first.plus(between).plus(last))
    }

    /// The messages of a clone; each chunk is dropped when its last message is read.
    pub(crate) fn into_messages(self) -> impl Iterator<Item = (Position, Message)> + Clone + Send {
        let mut slots = self.slots.into_iter();
        let mut current: Option<(Chunk, usize)> = None;
        std::iter::from_fn(move || {
            loop {
                if let Some((chunk, next)) = &mut current
                    && let Some(index) = chunk.next(*next)
                {
                    *next = index + 1;
                    let entry = chunk.entry(index);
                    if chunk.next(*next).is_none() {
                        current = None;
                    }
                    return Some(entry);
                }
                current = Some((slots.next()?.chunk, 0));
            }
        })
    }

    /// The bytes that the map holds, without the overhead of the allocator. Chunks that a clone shares are counted in
    /// both. O(log n).
    pub(crate) fn memory(&self) -> u64 {
        let last = self.slots.len().saturating_sub(1);
        let opened = self.opened.and_then(|position| self.slot_of(position)).filter(|slot| *slot != last);
        let open = [opened, Some(last)].into_iter().flatten().filter_map(|slot| self.slots.get(slot));
        let open_bytes = open.filter(|slot| slot.chunk.is_open()).map(|slot| slot.chunk.heap_bytes());
        (self.slots.capacity() * size_of::<Slot>()) as u64 + self.packed_bytes + open_bytes.sum::<u64>()
    }

    /// The messages whose payloads stand in the records `lsns`.
    pub(crate) fn within(&self, lsns: &RangeInclusive<Lsn>) -> impl Iterator<Item = (Position, Message)> {
        let chunks = self.slots.iter().map(|slot| &slot.chunk).filter(|chunk| chunk.may_refer_to(lsns));
        let entries = chunks.flat_map(|chunk| chunk.entries(0..CHUNK));
        entries.filter(|(_, message)| lsns.contains(&message.payload.id.lsn))
    }

    /// The chunk that contains the message at `position`, and its index there.
    #[inline]
    fn at(&self, position: Position) -> Option<(&Chunk, usize)> {
        let slot = match self.slots.back() {
            // Most messages that are looked up are new.
            Some(last) if last.first <= position => last,
            _ => &self.slots[self.slot_of(position)?],
        };
        Some((&slot.chunk, slot.chunk.find(position)?))
    }

    /// The only slot whose chunk can contain `position`; `None` if it is below the first slot.
    fn slot_of(&self, position: Position) -> Option<usize> {
        let last = self.slots.len().checked_sub(1)?;
        if self.slots[last].first <= position {
            return Some(last);
        }
        // Most chunks are full and most positions without gaps.
        let chunks = position.0.checked_sub(self.slots[0].first.0)? / CHUNK as u64;
        let guess = usize::try_from(chunks).unwrap_or(usize::MAX).min(last - 1);
        if self.slots[guess].first <= position && position < self.slots[guess + 1].first {
            return Some(guess);
        }
        self.slots.partition_point(|slot| slot.first <= position).checked_sub(1)
    }

    /// The slot and the index of the last message below `position`.
    fn find_last_below(&self, position: Position) -> Option<(usize, usize)> {
        let slot = self.slot_of(position)?;
        let chunk = &self.slots[slot].chunk;
        match chunk.last_before(chunk.index_from(position)) {
            Some(index) => Some((slot, index)),
            None => {
                let before = slot.checked_sub(1)?;
                Some((before, self.slots[before].chunk.last()?))
            }
        }
    }

    /// The first message that is not `before`, which must hold up to some index and not from there on.
    fn first_after(&self, before: impl Fn(&Chunk, usize) -> bool) -> Option<(&Chunk, usize)> {
        let all_before = |slot: &Slot| slot.chunk.last().is_some_and(|last| before(&slot.chunk, last));
        let begins_before = |slot: &Slot| slot.chunk.next(0).is_some_and(|first| before(&slot.chunk, first));
        // Most searches are near the front of a queue, or for what was just stored.
        let slot = match (self.slots.front(), self.slots.back()) {
            (Some(front), _) if !all_before(front) => 0,
            (_, Some(back)) if begins_before(back) => self.slots.len() - 1,
            _ => self.slots.partition_point(all_before),
        };
        let chunk = &self.slots.get(slot)?.chunk;
        let index = chunk.next(partition_point(0..chunk.end(), |index| before(chunk, index)))?;
        Some((chunk, index))
    }

    /// The messages from `index` of a slot on; both can be one past the end.
    fn iter_from(&self, slot: usize, index: usize) -> Iter<'_> {
        let mut slots = self.slots.range(slot..);
        let chunk = slots.next().map(|slot| &slot.chunk);
        Iter { slots, chunk, next: index }
    }
}

/// The messages of a map in ascending order.
struct Iter<'a> {
    slots: vec_deque::Iter<'a, Slot>,
    chunk: Option<&'a Chunk>,
    next: usize,
}

impl Iterator for Iter<'_> {
    type Item = (Position, Message);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let chunk = self.chunk?;
            if let Some(index) = chunk.next(self.next) {
                self.next = index + 1;
                return Some(chunk.entry(index));
            }
            self.chunk = self.slots.next().map(|slot| &slot.chunk);
            self.next = 0;
        }
    }
}

impl PartialEq for MessageMap {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for MessageMap {}

impl fmt::Debug for MessageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
