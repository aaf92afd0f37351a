//! The produce dedupe's memory: which identities were accepted, as which message, and until when that counts.

use crate::collections::cow::CowMap;
use crate::types::{IdentityKey, Offset, PartitionId, Timestamp};

/// The produce identities of one topic, as producers mean it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupeTable {
    /// Each identity's message, and its message_ref in the queue.
    known: CowMap<IdentityKey, (DedupeEntry, u64)>,
    /// The same identities in the order they were accepted.
    queue: CowMap<u64, (IdentityKey, Timestamp)>,
    next: u64,
}

/// The message an identity was accepted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeEntry {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// When the window ends.
    pub expires_at: Timestamp,
}

impl DedupeTable {
    /// The message accepted under `key`, if its window is still open at `now`.
    #[must_use]
    pub fn find(&self, key: &IdentityKey, now: Timestamp) -> Option<DedupeEntry> {
        self.known.get(key).map(|(entry, _)| *entry).filter(|entry| now < entry.expires_at)
    }

    /// How many identities are remembered, those past their window but not yet swept included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the oldest remembered window ends.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.first().map(|(_, (_, expires_at))| *expires_at)
    }

    /// How many of the oldest have left their window at `now`, counting at most `limit`.
    #[must_use]
    pub fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        let due = self.queue.iter().take_while(|(_, (_, expires_at))| *expires_at <= now);
        due.take(limit as usize).count() as u64
    }

    /// Whether `count` or more are in their window. Those beyond it that were not swept yet take no room.
    #[must_use]
    pub fn is_full(&self, max: u64, now: Timestamp) -> bool {
        let remembered = self.len() as u64;
        // As many would have to have left their window for one more to fit.
        let too_many = (remembered + 1).saturating_sub(max);
        remembered >= max && self.expired(now, too_many) < too_many
    }

    /// Remembers `key`; if it was remembered already, past its window, the old memory gives way and is handed back.
    pub(super) fn insert(&mut self, key: IdentityKey, entry: DedupeEntry) -> Option<DedupeEntry> {
        self.queue.insert(self.next, (key.clone(), entry.expires_at));
        let before = self.known.insert(key, (entry, self.next)).map(|(before, serial)| {
            self.queue.remove(&serial);
            before
        });
        self.next += 1;
        debug_assert_eq!(self.known.len(), self.queue.len(), "every identity stands in the queue once");
        before
    }

    /// Forgets the `count` oldest.
    pub(super) fn sweep(&mut self, count: u64) {
        for _ in 0..count {
            let Some((_, (key, _))) = self.queue.pop_first() else { return };
            self.known.remove(&key);
        }
    }

    /// The identities in the order they were accepted.
    pub(super) fn in_order(self) -> impl Iterator<Item = (IdentityKey, DedupeEntry)> + Clone {
        let known = self.known;
        self.queue
            .into_chunks()
            .flat_map(|chunk| chunk.iter().map(|(_, (key, _))| key.clone()).collect::<Vec<_>>())
            .map(move |key| {
                let (entry, _) = *known.get(&key).expect("every identity in the queue is known");
                (key, entry)
            })
    }
}
