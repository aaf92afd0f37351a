//! A chunk: consecutive messages of a partition, open for writing or packed.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::packed::{CHUNK, Packed};
use super::{ARC_BYTES, Sums, fields_bytes};
use crate::collections::shared::unshared;
use crate::state::message::Message;
use crate::types::{DecisionFields, Lsn, MessageFlags, Offset, Position, Timestamp};

/// An open chunk with at most this capacity is kept when it is emptied.
const CAPACITY_KEPT: usize = 8;

/// Up to [`CHUNK`] consecutive messages, each with an index. Indexes ascend with positions. Those of a packed chunk
/// stay the same when messages are removed, so that a removal changes none of the shared bytes.
#[derive(Clone)]
pub(super) enum Chunk {
    Open(Arc<Open>),
    Packed(Packed),
}

impl Chunk {
    /// The number of messages.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Open(open) => open.len(),
            Self::Packed(packed) => packed.live().len(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// One past the last index.
    pub(super) fn end(&self) -> usize {
        match self {
            Self::Open(open) => open.len(),
            Self::Packed(packed) => packed.rows(),
        }
    }

    /// The index of the first message at or after `index`.
    pub(super) fn next(&self, index: usize) -> Option<usize> {
        match self {
            Self::Open(open) => (index < open.len()).then_some(index),
            Self::Packed(packed) => packed.live().next(index),
        }
    }

    /// The index of the last message before `index`.
    pub(super) fn last_before(&self, index: usize) -> Option<usize> {
        match self {
            Self::Open(open) => open.len().min(index).checked_sub(1),
            Self::Packed(packed) => packed.live().last_below(index),
        }
    }

    /// The index of the last message.
    pub(super) fn last(&self) -> Option<usize> {
        self.last_before(CHUNK)
    }

    /// The first index at or above `position`, whether its message is removed or not.
    pub(super) fn index_from(&self, position: Position) -> usize {
        match self {
            Self::Open(open) => open.index_from(position),
            Self::Packed(packed) => packed.row_from(position),
        }
    }

    /// The index of the message at `position`.
    #[inline]
    pub(super) fn find(&self, position: Position) -> Option<usize> {
        match self {
            Self::Open(open) => open.find(position),
            Self::Packed(packed) => packed.find(position),
        }
    }

    pub(super) fn position(&self, index: usize) -> Position {
        match self {
            Self::Open(open) => open.entries[index].0,
            Self::Packed(packed) => packed.position(index),
        }
    }

    pub(super) fn offset(&self, index: usize) -> Offset {
        match self {
            Self::Open(open) => open.entries[index].1.offset,
            Self::Packed(packed) => packed.offset(index),
        }
    }

    pub(super) fn produced_at(&self, index: usize) -> Timestamp {
        match self {
            Self::Open(open) => open.entries[index].1.produced_at,
            Self::Packed(packed) => packed.produced_at(index),
        }
    }

    pub(super) fn flags(&self, index: usize) -> MessageFlags {
        match self {
            Self::Open(open) => open.entries[index].1.flags,
            Self::Packed(packed) => packed.flags(index),
        }
    }

    pub(super) fn fields(&self, index: usize) -> Option<&Arc<DecisionFields>> {
        match self {
            Self::Open(open) => open.entries[index].1.fields(),
            Self::Packed(packed) => packed.fields(index),
        }
    }

    pub(super) fn message(&self, index: usize) -> Message {
        match self {
            Self::Open(open) => open.entries[index].1.clone(),
            Self::Packed(packed) => packed.entry(index).1,
        }
    }

    pub(super) fn entry(&self, index: usize) -> (Position, Message) {
        match self {
            Self::Open(open) => open.entries[index].clone(),
            Self::Packed(packed) => packed.entry(index),
        }
    }

    /// The messages with these indexes, which can exceed the end.
    pub(super) fn entries(&self, indexes: Range<usize>) -> impl Iterator<Item = (Position, Message)> {
        let mut next = indexes.start;
        std::iter::from_fn(move || {
            let index = self.next(next).filter(|index| *index < indexes.end)?;
            next = index + 1;
            Some(self.entry(index))
        })
    }

    /// Whether the payload of a message may stand in one of the records `lsns`.
    pub(super) fn may_refer_to(&self, lsns: &RangeInclusive<Lsn>) -> bool {
        match self {
            Self::Open(_) => true,
            Self::Packed(packed) => {
                let overlaps =
                    |bounds: RangeInclusive<Lsn>| bounds.start() <= lsns.end() && lsns.start() <= bounds.end();
                packed.lsn_bounds().is_none_or(overlaps)
            }
        }
    }

    /// The sums over the messages with these indexes, which can exceed the end.
    pub(super) fn sums(&self, indexes: Range<usize>) -> Sums {
        let sum = |sums: Sums, message: &Message| sums.plus(Sums::of(message));
        match self {
            Self::Open(open) => {
                let entries = open.entries.iter().take(indexes.end).skip(indexes.start);
                entries.fold(Sums::default(), |sums, (_, message)| sum(sums, message))
            }
            Self::Packed(packed) if indexes.start == 0 && indexes.end >= packed.rows() => packed.live_sums(),
            Self::Packed(_) => self.entries(indexes).fold(Sums::default(), |sums, (_, message)| sum(sums, &message)),
        }
    }

    /// Removes the message at `index`, which is not removed yet.
    pub(super) fn remove(&mut self, index: usize) -> Message {
        match self {
            Self::Open(open) => unshared(open).remove(index),
            Self::Packed(packed) => {
                let (_, message) = packed.entry(index);
                packed.remove(index..index + 1);
                message
            }
        }
    }

    /// Removes the messages with these indexes and returns how many there were.
    pub(super) fn remove_range(&mut self, indexes: Range<usize>) -> usize {
        let before = self.len();
        match self {
            _ if indexes.is_empty() => {}
            Self::Open(open) => unshared(open).remove_range(indexes),
            Self::Packed(packed) => packed.remove(indexes),
        }
        before - self.len()
    }

    /// The chunk without removed messages, packed.
    pub(super) fn packed(&self) -> Self {
        match self {
            Self::Open(open) => Self::Packed(Packed::new(&open.entries)),
            Self::Packed(packed) => Self::Packed(packed.clone()),
        }
    }

    /// The messages of this chunk and the next one, at most [`CHUNK`], packed.
    pub(super) fn merged(&self, next: &Self) -> Self {
        let entries: Vec<_> = self.entries(0..CHUNK).chain(next.entries(0..CHUNK)).collect();
        Self::Packed(Packed::new(&entries))
    }

    /// The open chunk; a packed one is opened.
    pub(super) fn opened(&mut self) -> &mut Open {
        if let Self::Packed(packed) = self {
            let mut entries = VecDeque::with_capacity(CHUNK);
            let rows = (0..packed.rows()).filter(|row| packed.live().next(*row) == Some(*row));
            entries.extend(rows.map(|row| packed.entry(row)));
            let fields_bytes = entries.iter().map(|(_, message)| fields_bytes(message.fields())).sum();
            *self = Self::Open(Arc::new(Open { entries, fields_bytes }));
        }
        match self {
            Self::Open(open) => unshared(open),
            Self::Packed(_) => unreachable!("opened above"),
        }
    }

    /// The bytes that it holds outside of its slot, whether shared or not.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            Self::Open(open) => {
                let entries = open.entries.capacity() * size_of::<(Position, Message)>();
                ARC_BYTES + (size_of::<Open>() + entries) as u64 + open.fields_bytes
            }
            Self::Packed(packed) => packed.heap_bytes(),
        }
    }
}

/// A chunk that can be written to.
#[derive(Clone, Default)]
pub(super) struct Open {
    pub(super) entries: VecDeque<(Position, Message)>,
    /// As [`fields_bytes`], of all messages.
    fields_bytes: u64,
}

impl Open {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= CHUNK
    }

    /// Whether it is small enough to be kept empty: without it a queue that runs empty between any two messages would
    /// allocate for each.
    pub(super) fn is_small(&self) -> bool {
        self.entries.capacity() <= CAPACITY_KEPT
    }

    /// The index of the first message at or above `position`.
    pub(super) fn index_from(&self, position: Position) -> usize {
        let Some((first, _)) = self.entries.front() else { return 0 };
        let above = position.0.saturating_sub(first.0);
        // Positions seldom have gaps, and with gaps the index is smaller.
        let guess = usize::try_from(above).unwrap_or(usize::MAX).min(self.len() - 1);
        match self.entries[guess].0 {
            guessed if guessed == position => guess,
            guessed if guessed < position => guess + 1,
            _ => self.entries.partition_point(|(other, _)| *other < position),
        }
    }

    /// The index of the message at `position`.
    #[inline]
    fn find(&self, position: Position) -> Option<usize> {
        let (first, _) = self.entries.front()?;
        // Positions seldom have gaps.
        let guess = position.0.wrapping_sub(first.0) as usize;
        match self.entries.get(guess) {
            Some((guessed, _)) if *guessed == position => Some(guess),
            _ => self.search(position),
        }
    }

    #[cold]
    fn search(&self, position: Position) -> Option<usize> {
        self.entries.binary_search_by_key(&position, |(found, _)| *found).ok()
    }

    /// Adds a message past the last one.
    ///
    /// The capacity grows fourfold up to [`CHUNK`], so that a queue that repeatedly fills and runs empty seldom grows.
    pub(super) fn push(&mut self, position: Position, message: Message) {
        self.insert(self.len(), position, message);
    }

    pub(super) fn insert(&mut self, index: usize, position: Position, message: Message) {
        let len = self.len();
        if len == self.entries.capacity() {
            let capacity = if len == 0 { 1 } else { (len * 4).clamp(4, CHUNK) };
            self.entries.reserve_exact(capacity - len);
        }
        if message.fields().is_some() {
            self.fields_bytes += fields_bytes(message.fields());
        }
        if index == len {
            self.entries.push_back((position, message));
        } else {
            self.entries.insert(index, (position, message));
        }
    }

    /// Changes the message at `index`.
    pub(super) fn change(&mut self, index: usize, change: impl FnOnce(&mut Message)) {
        let message = &mut self.entries[index].1;
        self.fields_bytes -= fields_bytes(message.fields());
        change(message);
        self.fields_bytes += fields_bytes(message.fields());
    }

    fn remove(&mut self, index: usize) -> Message {
        let entry = if index == 0 { self.entries.pop_front() } else { self.entries.remove(index) };
        let (_, message) = entry.expect("the index is in range");
        if message.fields().is_some() {
            self.fields_bytes -= fields_bytes(message.fields());
        }
        message
    }

    fn remove_range(&mut self, indexes: Range<usize>) {
        let removed = self.entries.drain(indexes);
        self.fields_bytes -= removed.map(|(_, message)| fields_bytes(message.fields())).sum::<u64>();
    }

    /// Keeps the messages below `index` and returns the others.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let entries = self.entries.split_off(index);
        let fields_bytes = entries.iter().map(|(_, message)| fields_bytes(message.fields())).sum();
        self.fields_bytes -= fields_bytes;
        Self { entries, fields_bytes }
    }

    /// This chunk without its messages; `None` if it is shared.
    pub(super) fn emptied(mut self: Arc<Self>) -> Option<Arc<Self>> {
        let open = Arc::get_mut(&mut self)?;
        open.entries.clear();
        open.fields_bytes = 0;
        Some(self)
    }
}
