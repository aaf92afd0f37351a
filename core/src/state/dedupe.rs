//! The produce dedupe's memory: which identities were accepted, as which message, and until when that counts.

use std::sync::Arc;

use super::cow::CowMap;
use crate::types::{Offset, PartitionId, Timestamp};

/// The produce identities of one topic, as producers mean it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// Each identity's message, and its message_ref in the queue.
    known: CowMap<IdentityKey, (Accepted, u64)>,
    /// The same identities in the order they were accepted.
    queue: CowMap<u64, (IdentityKey, Timestamp)>,
    next: u64,
}

/// Tenant and key. Ordered by a hash first, so that comparing two keys seldom has to look at their bytes, and by the bytes
/// where hashes collide, so that nobody gains anything by making them collide.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdentityKey {
    hash: u64,
    bytes: Arc<[u8]>,
}

/// The message an identity was accepted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// When the window ends.
    pub expires_at: Timestamp,
}

impl IdentityKey {
    /// The identity of `key` within `tenant`.
    #[must_use]
    pub fn new(tenant: &str, key: &str) -> Self {
        let (tenant_len, len) = crate::codec::varint(tenant.len() as u64);
        Self::joined(&[&tenant_len[..len], tenant.as_bytes(), key.as_bytes()])
    }

    /// The identity that `parts` make up: first a tenant's length and name, then whatever cannot be mistaken for anything else.
    pub(crate) fn joined(parts: &[&[u8]]) -> Self {
        Self::hashed(crate::body::join(parts))
    }

    fn hashed(bytes: Arc<[u8]>) -> Self {
        // Eight bytes at a time: keys are short, and this is done for every one.
        let (words, rest) = bytes.as_chunks();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        let hash = words.fold(bytes.len() as u64, |hash, word| {
            let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 32)
        });
        // The map is ordered by the high bits first.
        let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { hash, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> &str {
        crate::codec::Reader::new(&self.bytes).text().expect("a tenant comes first")
    }

    /// Tenant and key again.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        let mut reader = crate::codec::Reader::new(&self.bytes);
        let tenant = reader.text().expect("written by `new`");
        (tenant, std::str::from_utf8(reader.rest()).expect("written by `new`"))
    }
}

impl Identities {
    /// The message accepted under `key`, if its window is still open at `now`.
    #[must_use]
    pub fn accepted(&self, key: &IdentityKey, now: Timestamp) -> Option<Accepted> {
        self.known.get(key).map(|(accepted, _)| *accepted).filter(|accepted| now < accepted.expires_at)
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
    pub fn live_reach(&self, count: u64, now: Timestamp) -> bool {
        let remembered = self.len() as u64;
        // As many would have to have left their window for one more to fit.
        let too_many = (remembered + 1).saturating_sub(count);
        remembered >= count && self.expired(now, too_many) < too_many
    }

    /// Remembers `key`; if it was remembered already, past its window, the old memory gives way and is handed back.
    pub(super) fn accept(&mut self, key: IdentityKey, accepted: Accepted) -> Option<Accepted> {
        self.queue.insert(self.next, (key.clone(), accepted.expires_at));
        let before = self.known.insert(key, (accepted, self.next)).map(|(before, message_ref)| {
            self.queue.remove(&message_ref);
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
    pub(super) fn in_order(self) -> impl Iterator<Item = (IdentityKey, Accepted)> + Clone {
        let known = self.known;
        self.queue
            .into_chunks()
            .flat_map(|chunk| chunk.iter().map(|(_, (key, _))| key.clone()).collect::<Vec<_>>())
            .map(move |key| {
                let (accepted, _) = *known.get(&key).expect("every identity in the queue is known");
                (key, accepted)
            })
    }
}
