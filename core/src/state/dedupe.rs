//! Produce deduplication: the idempotency keys of stored messages within their window.

use crate::collections::cow::CowMap;
use crate::collections::key_index::KeyIndex;
use crate::types::{IdentityKey, Offset, PartitionId, Timestamp};

/// The dedupe keys of one topic, the one that producers named before routing.
#[derive(Clone, Debug, Default)]
pub struct DedupeTable {
    /// The slot of each key in the queue.
    known: KeyIndex<Slot>,
    /// The keys in the order they expire.
    queue: CowMap<Slot, (IdentityKey, Place)>,
    next: u64,
}

/// A place in the queue: the time at which the window ends, and a serial number.
type Slot = (Timestamp, u64);

/// Partition and offset of a message.
type Place = (PartitionId, Offset);

/// The message stored with a dedupe key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeEntry {
    /// The message's partition.
    pub partition: PartitionId,
    /// The message's offset.
    pub offset: Offset,
    /// When the window ends.
    pub expires_at: Timestamp,
}

impl DedupeTable {
    /// The keys, in the order they expire, as far as they are found by their hash, too.
    pub fn entries(&self) -> impl Iterator<Item = (&IdentityKey, DedupeEntry)> {
        let found = self.queue.iter().filter(|(slot, (key, _))| self.slot_of(key) == Some(**slot));
        found.map(|(slot, (key, place))| (key, entry(*slot, *place)))
    }

    /// The entry of `key`, unless its window has ended at `now`.
    #[must_use]
    pub fn find(&self, key: &IdentityKey, now: Timestamp) -> Option<DedupeEntry> {
        let (slot, (_, place)) = self.known.get(key, |slot| entry_at(&self.queue, slot))?;
        Some(entry(slot, *place)).filter(|entry| now < entry.expires_at)
    }

    /// When the window of `key` ends, unless it has ended at `now`.
    #[must_use]
    pub(crate) fn expiry_of(&self, key: &IdentityKey, now: Timestamp) -> Option<Timestamp> {
        self.slot_of(key).map(|(expires_at, _)| expires_at).filter(|expires_at| now < *expires_at)
    }

    fn slot_of(&self, key: &IdentityKey) -> Option<Slot> {
        self.known.get(key, |slot| entry_at(&self.queue, slot)).map(|(slot, _)| slot)
    }

    /// The number of entries, including expired ones that are not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the window of the oldest entry ends.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.first().map(|((expires_at, _), _)| *expires_at)
    }

    /// The number of oldest entries whose window has ended at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        let due = self.queue.iter().take_while(|((expires_at, _), _)| *expires_at <= now);
        due.take(limit as usize).count() as u64
    }

    /// Whether `max` or more entries are within their window; expired entries do not count.
    #[must_use]
    pub(crate) fn is_full(&self, max: u64, now: Timestamp) -> bool {
        let len = self.len() as u64;
        // The number of entries that must have expired for one more to fit.
        let excess = (len + 1).saturating_sub(max);
        len >= max && self.expired(now, excess) < excess
    }

    /// Adds or replaces the entry of `key`, as the newest of those that expire with it, and returns the previous one.
    pub(super) fn insert(&mut self, key: IdentityKey, new: DedupeEntry) -> Option<DedupeEntry> {
        let slot = (new.expires_at, self.next);
        self.next += 1;
        let queue = &self.queue;
        let known = self.known.insert(&key, slot, |slot| entry_at(queue, slot));
        let before = match known {
            None => None,
            Some(known) => {
                self.known.replace(&key, slot, |slot| entry_at(queue, slot));
                self.queue.remove_near(&known).map(|(_, place)| entry(known, place))
            }
        };
        self.queue.insert(slot, (key, (new.partition, new.offset)));
        debug_assert_eq!(self.known.len(), self.queue.len(), "every key is queued once");
        before
    }

    /// Removes the `count` oldest entries.
    pub(super) fn sweep(&mut self, count: u64) {
        for _ in 0..count {
            let Some((slot, (key, _))) = self.queue.pop_first() else { return };
            self.known.remove_from(&key, slot);
        }
    }

    /// The entries in the order they expire.
    pub(super) fn in_order(self) -> impl Iterator<Item = (IdentityKey, DedupeEntry)> + Clone {
        let mut known = self.known.into_parts();
        self.queue.into_chunks().flat_map(move |chunk| {
            // Frees the index along with the queue: even if its parts are sparse, they are at most four times as many.
            known.by_ref().take(4).for_each(drop);
            chunk.iter().map(|(slot, (key, place))| (key.clone(), entry(*slot, *place))).collect::<Vec<_>>()
        })
    }
}

/// The key and the message in a slot.
fn entry_at(queue: &CowMap<Slot, (IdentityKey, Place)>, slot: Slot) -> &(IdentityKey, Place) {
    queue.get_near(&slot).expect("every key is queued")
}

fn entry((expires_at, _): Slot, (partition, offset): Place) -> DedupeEntry {
    DedupeEntry { partition, offset, expires_at }
}

/// Equal if the entries are, and their order; not how many there were before.
impl PartialEq for DedupeTable {
    fn eq(&self, other: &Self) -> bool {
        let queued = self.queue.iter().map(|((expires_at, _), entry)| (expires_at, entry));
        queued.eq(other.queue.iter().map(|((expires_at, _), entry)| (expires_at, entry)))
    }
}

impl Eq for DedupeTable {}
