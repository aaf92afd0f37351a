//! Tests of the message map: structure, packing and random operations compared with a plain map.

use std::sync::Arc;

use super::*;
use crate::types::{DecisionFields, IdentityKey, Lsn, MessageFlags, PayloadId, PayloadRef, Priority};

mod measure;
mod model;
mod packing;
mod sealed;
mod structure;

impl MessageMap {
    /// Panics unless the structural invariants hold.
    fn check(&self) {
        let mut len = 0;
        let last = self.slots.len().saturating_sub(1);
        let (mut open, mut heap_bytes) = (Vec::new(), 0);
        for (index, slot) in self.slots.iter().enumerate() {
            let positions: Vec<_> = slot.chunk.entries(0..CHUNK).map(|(position, _)| position).collect();
            len += positions.len();
            heap_bytes += slot.chunk.heap_bytes();
            assert_eq!(positions.len(), slot.chunk.len());
            assert!(positions.len() <= CHUNK && positions.is_sorted_by(|a, b| a < b), "{positions:?}");
            assert!(positions.iter().all(|position| slot.first <= *position), "`first` is a lower bound");
            if let Chunk::Open(chunk) = &slot.chunk {
                open.push(slot.first);
                assert!(chunk.entries.capacity() <= CHUNK, "room for {}", chunk.entries.capacity());
                let is_kept = index == last && chunk.is_small();
                assert!(!positions.is_empty() || is_kept, "an empty chunk is kept if it is the last one and small");
            } else {
                assert!(!positions.is_empty(), "no packed chunk is empty");
            }
            if let Some(next) = self.slots.get(index + 1) {
                assert!(positions.last().is_none_or(|last| *last < next.first), "`first` is above the chunk before");
                let is_tail = index + 1 == last && next.chunk.is_open();
                let sparse = CHUNK / 4;
                assert!(is_tail || slot.chunk.len() >= sparse || next.chunk.len() >= sparse, "two sparse neighbours");
            }
        }
        assert_eq!(len, self.len, "the count is correct");
        assert_eq!(self.memory(), (self.slots.capacity() * size_of::<Slot>()) as u64 + heap_bytes);
        assert!(self.slots.capacity() <= 16.max(8 * self.slots.len()), "the list of chunks shrinks");
        open.retain(|first| self.slots.back().is_some_and(|last| last.first != *first));
        let opened = self.opened.and_then(|position| self.slot_of(position)).map(|slot| self.slots[slot].first);
        assert!(open.iter().all(|first| opened == Some(*first)), "{open:?} are open, {opened:?} was opened");
    }

    /// The number of packed chunks.
    fn packed(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.chunk.is_open()).count()
    }

    fn chunk_lens(&self) -> Vec<usize> {
        self.slots.iter().map(|slot| slot.chunk.len()).collect()
    }
}

/// A generator of pseudo-random numbers: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A message of regular traffic: 200 bytes, one record each, four per millisecond.
fn ordinary(position: u64) -> Message {
    let id = PayloadId { lsn: Lsn(1 + position * 3), part: 0 };
    let payload = PayloadRef { id, metadata_len: 10, key_len: 8, value_len: 200 };
    Message::new(Offset(position), Timestamp(1_000_000 + position / 4), payload, None)
}

fn with_fields(message: &Message, key: &str) -> Message {
    let fields = DecisionFields { identity: Some(IdentityKey::new("tenant", key)), ..DecisionFields::default() };
    Message::new(message.offset, message.produced_at, message.payload, Some(Arc::new(fields)))
}

fn map_of(positions: impl IntoIterator<Item = u64>) -> MessageMap {
    let mut map = MessageMap::default();
    for position in positions {
        assert_eq!(map.insert(Position(position), ordinary(position)), None);
    }
    map.check();
    map
}
