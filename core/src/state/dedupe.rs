//! Produce deduplication: the idempotency keys of stored messages within their window.

use crate::collections::cow::CowMap;
use crate::types::{IdentityKey, Offset, PartitionId, Timestamp};

/// The dedupe keys of one topic, the one that producers named before routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupeTable {
    /// The entry of each key and its serial number in the queue.
    known: CowMap<IdentityKey, (DedupeEntry, u64)>,
    /// The keys in the order they were inserted.
    queue: CowMap<u64, (IdentityKey, Timestamp)>,
    next: u64,
}

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
    /// The entry of `key`, unless its window has ended at `now`.
    #[must_use]
    pub fn find(&self, key: &IdentityKey, now: Timestamp) -> Option<DedupeEntry> {
        self.known.get(key).map(|(entry, _)| *entry).filter(|entry| now < entry.expires_at)
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
        self.queue.first().map(|(_, (_, expires_at))| *expires_at)
    }

    /// The number of oldest entries whose window has ended at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        let due = self.queue.iter().take_while(|(_, (_, expires_at))| *expires_at <= now);
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

    /// Adds or replaces the entry of `key` and returns the previous one.
    pub(super) fn insert(&mut self, key: IdentityKey, entry: DedupeEntry) -> Option<DedupeEntry> {
        self.queue.insert(self.next, (key.clone(), entry.expires_at));
        let before = self.known.insert(key, (entry, self.next)).map(|(before, serial)| {
            self.queue.remove(&serial);
            before
        });
        self.next += 1;
        debug_assert_eq!(self.known.len(), self.queue.len(), "every key is queued once");
        before
    }

    /// Removes the `count` oldest entries.
    pub(super) fn sweep(&mut self, count: u64) {
        for _ in 0..count {
            let Some((_, (key, _))) = self.queue.pop_first() else { return };
            self.known.remove(&key);
        }
    }

    /// The entries in the order they were inserted.
    pub(super) fn in_order(self) -> impl Iterator<Item = (IdentityKey, DedupeEntry)> + Clone {
        let known = self.known;
        self.queue
            .into_chunks()
            .flat_map(|chunk| chunk.iter().map(|(_, (key, _))| key.clone()).collect::<Vec<_>>())
            .map(move |key| {
                let (entry, _) = *known.get(&key).expect("every queued key has an entry");
                (key, entry)
            })
    }
}
