//! Writes to a [`MessageMap`].

use std::mem;
use std::sync::Arc;

use super::chunk::{Chunk, Open};
use super::packed::{CHUNK, Packed};
use super::{MessageMap, Slot, Sums};
use crate::collections::shared::unshared;
use crate::state::message::Message;
use crate::types::Position;

/// A chunk with fewer messages than this is merged with a neighbour if both are small.
const SPARSE: usize = CHUNK / 4;

/// The most messages of a merged chunk.
const MERGED_MAX: usize = CHUNK / 2;

/// The list of chunks does not shrink below this capacity.
const SLOTS_KEPT: usize = 16;

impl MessageMap {
    /// Stores a message and returns the one at its position, if there was one. Offsets and times increase with
    /// positions.
    pub(crate) fn insert(&mut self, position: Position, message: Message) -> Option<Message> {
        match self.slots.back_mut() {
            Some(Slot { first, chunk: Chunk::Open(open), .. })
                if *first <= position && open.entries.back().is_none_or(|(last, _)| *last < position) =>
            {
                if open.is_full() {
                    self.append_slot(position, message);
                } else {
                    unshared(open).push(position, message);
                }
            }
            Some(Slot { chunk: Chunk::Packed(packed), .. })
                if packed.live().last_below(CHUNK).is_some_and(|last| packed.position(last) < position) =>
            {
                if packed.live().len() <= MERGED_MAX {
                    // After a restart the last chunk is packed, however short it is.
                    let last = self.slots.len() - 1;
                    self.open(last).push(position, message);
                } else {
                    self.append_slot(position, message);
                }
            }
            Some(_) => return self.insert_in_the_middle(position, message),
            None => {
                self.slots.reserve_exact(1);
                self.append_slot(position, message);
            }
        }
        self.len += 1;
        None
    }

    /// Changes a message, if it is stored. Its offset and time stay as they are.
    pub(crate) fn change(&mut self, position: Position, change: impl FnOnce(&mut Message)) {
        let Some(slot) = self.slot_of(position) else { return };
        if self.slots[slot].chunk.find(position).is_none() {
            return;
        }
        let open = self.open(slot);
        let index = open.index_from(position);
        let before = Sums::of(&open.entries[index].1);
        open.change(index, change);
        if Sums::of(&open.entries[index].1) != before {
            self.update_sums_after(slot);
        }
    }

    pub(crate) fn remove(&mut self, position: Position) -> Option<Message> {
        let slot = self.slot_of(position)?;
        let chunk = &mut self.slots[slot].chunk;
        let index = chunk.find(position)?;
        let message = chunk.remove(index);
        self.len -= 1;
        if chunk.len() < SPARSE {
            self.merge_or_drop(slot);
        }
        Some(message)
    }

    /// Removes the messages below `end`.
    pub(crate) fn remove_below(&mut self, end: Position) {
        self.remove_range(Position(0), end);
    }

    /// Removes the messages in `start..end`.
    pub(crate) fn remove_range(&mut self, start: Position, end: Position) {
        let Some(last) = self.slot_of(end).filter(|_| start < end) else { return };
        let first = self.slot_of(start).unwrap_or(0);
        let from = self.slots[first].chunk.index_from(start);
        let to = self.slots[last].chunk.index_from(end);
        if first == last {
            self.len -= self.slots[first].chunk.remove_range(from..to);
        } else {
            let end = self.slots[first].chunk.end();
            self.len -= self.slots[first].chunk.remove_range(from..end);
            self.len -= self.slots[last].chunk.remove_range(0..to);
            for slot in self.slots.drain(first + 1..last) {
                self.len -= slot.chunk.len();
                self.packed_bytes -= slot.packed_bytes();
            }
            self.merge_or_drop(first + 1);
        }
        self.merge_or_drop(first);
        self.shrink();
    }

    /// Adds a slot for a message past the last one, and packs the chunk before it.
    fn append_slot(&mut self, position: Position, message: Message) {
        self.pack_opened();
        let (mut emptied, mut before) = (None, Sums::default());
        if let Some(last) = self.slots.back_mut() {
            before = last.before.plus(last.chunk.sums(0..CHUNK));
            if last.chunk.is_open() {
                let packed = last.chunk.packed();
                if let Chunk::Open(full) = mem::replace(&mut last.chunk, packed) {
                    emptied = full.emptied();
                }
                self.packed_bytes += last.packed_bytes();
            }
        }
        let mut open = emptied.unwrap_or_default();
        unshared(&mut open).push(position, message);
        self.slots.push_back(Slot { first: position, before, chunk: Chunk::Open(open) });
    }

    /// Adds a packed chunk of `len` messages past the last message.
    pub(super) fn append_packed(&mut self, first: Position, packed: Packed, len: usize) {
        self.pack_opened();
        let mut before = Sums::default();
        if let Some(last) = self.slots.back_mut() {
            before = last.before.plus(last.chunk.sums(0..CHUNK));
            let is_empty = last.chunk.len() == 0;
            let last = self.slots.len() - 1;
            match is_empty {
                true => drop(self.remove_slot(last)),
                false => self.pack(last),
            }
        }
        let slot = Slot { first, before, chunk: Chunk::Packed(packed) };
        self.packed_bytes += slot.packed_bytes();
        self.slots.push_back(slot);
        self.len += len;
    }

    /// Stores a message that is not past the last one.
    fn insert_in_the_middle(&mut self, position: Position, message: Message) -> Option<Message> {
        let mut slot = self.slot_of(position).unwrap_or(0);
        self.slots[slot].first = self.slots[slot].first.min(position);
        let chunk = &self.slots[slot].chunk;
        if chunk.find(position).is_some() {
            let open = self.open(slot);
            let index = open.index_from(position);
            let mut message = message;
            open.change(index, |stored| mem::swap(stored, &mut message));
            self.update_sums_after(slot);
            return Some(message);
        }
        if chunk.len() >= CHUNK {
            slot = self.split(slot, position);
        }
        let open = self.open(slot);
        open.insert(open.index_from(position), position, message);
        self.len += 1;
        self.update_sums_after(slot);
        None
    }

    /// Splits a full chunk in two and returns the slot for `position`. Past the last position of the chunk it splits
    /// off a quarter, since more ascending positions are likely; elsewhere half.
    fn split(&mut self, slot: usize, position: Position) -> usize {
        self.pack_opened();
        let open = self.open(slot);
        let index = open.index_from(position);
        let kept = if index == CHUNK { CHUNK - SPARSE } else { CHUNK / 2 };
        let upper = open.split_off(kept);
        let first = upper.entries[0].0;
        let upper = Slot { first, before: Sums::default(), chunk: Chunk::Open(Arc::new(upper)) };
        self.slots.insert(slot + 1, upper);
        self.update_sums_after(slot);
        self.update_sums_after(slot + 1);
        let (target, other) = if index <= kept { (slot, slot + 1) } else { (slot + 1, slot) };
        if !self.is_last(other) {
            self.pack(other);
        }
        self.opened = Some(self.slots[target].first).filter(|_| !self.is_last(target));
        target
    }

    /// The open chunk of a slot. Before a packed one is opened, the one opened before is packed.
    fn open(&mut self, slot: usize) -> &mut Open {
        if !self.slots[slot].chunk.is_open() {
            self.pack_opened();
            self.packed_bytes -= self.slots[slot].packed_bytes();
            self.opened = Some(self.slots[slot].first).filter(|_| !self.is_last(slot));
        }
        self.slots[slot].chunk.opened()
    }

    /// Packs the chunk that a write has opened, unless it is the last one.
    fn pack_opened(&mut self) {
        if let Some(position) = self.opened.take()
            && let Some(slot) = self.slot_of(position)
            && !self.is_last(slot)
        {
            self.pack(slot);
        }
    }

    fn pack(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if slot.chunk.is_open() {
            slot.chunk = slot.chunk.packed();
            self.packed_bytes += slot.packed_bytes();
        }
    }

    fn is_last(&self, slot: usize) -> bool {
        slot + 1 == self.slots.len()
    }

    /// Makes the sums up to the chunk after this one correct, and moves all later ones by the same difference.
    fn update_sums_after(&mut self, slot: usize) {
        let through = self.slots[slot].before.plus(self.slots[slot].chunk.sums(0..CHUNK));
        let Some(next) = self.slots.get(slot + 1) else { return };
        let difference = through.minus(next.before);
        if difference != Sums::default() {
            self.slots.range_mut(slot + 1..).for_each(|slot| slot.before = slot.before.plus(difference));
        }
    }

    /// After a removal: drops a chunk if it is empty, or merges it with a neighbour if it is sparse and both are small.
    /// The open chunk at the end is not merged. Hence no two neighbours before it are sparse.
    fn merge_or_drop(&mut self, slot: usize) {
        let len = self.slots[slot].chunk.len();
        let is_tail = |slot: usize| self.is_last(slot) && self.slots[slot].chunk.is_open();
        if len == 0 {
            let is_kept = is_tail(slot) && matches!(&self.slots[slot].chunk, Chunk::Open(open) if open.is_small());
            if !is_kept {
                self.remove_slot(slot);
            }
            return;
        }
        if len >= SPARSE || is_tail(slot) {
            return;
        }
        let fits = |other: usize| {
            self.slots.get(other).is_some_and(|slot| slot.chunk.len() + len <= MERGED_MAX) && !is_tail(other)
        };
        let lower = match slot.checked_sub(1) {
            Some(before) if fits(before) => before,
            _ if fits(slot + 1) => slot,
            _ => return,
        };
        let upper = self.remove_slot(lower + 1);
        let lower = &mut self.slots[lower];
        self.packed_bytes -= lower.packed_bytes();
        lower.chunk = lower.chunk.merged(&upper.chunk);
        self.packed_bytes += lower.packed_bytes();
    }

    fn remove_slot(&mut self, slot: usize) -> Slot {
        let slot = self.slots.remove(slot).expect("the slot exists");
        self.packed_bytes -= slot.packed_bytes();
        self.shrink();
        slot
    }

    fn shrink(&mut self) {
        let capacity = self.slots.capacity();
        if capacity > SLOTS_KEPT && self.slots.len() < capacity / 4 {
            self.slots.shrink_to(SLOTS_KEPT.max(2 * self.slots.len()));
        }
    }
}

impl Slot {
    /// The bytes of its chunk if that is packed.
    fn packed_bytes(&self) -> u64 {
        if self.chunk.is_open() { 0 } else { self.chunk.heap_bytes() }
    }
}
