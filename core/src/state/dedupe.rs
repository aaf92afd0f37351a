//! Produce deduplication: the idempotency keys of stored messages within their window.

use crate::collections::expiring::{Expires, ExpiringMap};
use crate::types::{IdentityKey, Offset, PartitionId, Timestamp};

/// The dedupe keys of one topic, the one that producers named before routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupeTable(ExpiringMap<IdentityKey, DedupeEntry>);

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

impl Expires for DedupeEntry {
    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

impl DedupeTable {
    /// The keys, in the order they expire.
    pub fn entries(&self) -> impl Iterator<Item = (&IdentityKey, &DedupeEntry)> {
        self.0.entries()
    }

    /// The entry of `key`, unless its window has ended at `now`.
    #[must_use]
    pub fn find(&self, key: &IdentityKey, now: Timestamp) -> Option<DedupeEntry> {
        self.0.get(key, now).copied()
    }

    /// The number of entries, including expired ones that are not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the window of the oldest entry ends.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.0.next_expiry()
    }

    /// The number of oldest entries whose window has ended at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        self.0.expired(now, limit)
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
        self.0.insert(key, entry)
    }

    /// Removes the `count` oldest entries.
    pub(super) fn sweep(&mut self, count: u64) {
        self.0.remove_oldest(count);
    }

    /// The entries in the order they expire.
    pub(super) fn in_order(self) -> impl Iterator<Item = (IdentityKey, DedupeEntry)> + Clone {
        self.0.in_order()
    }
}
