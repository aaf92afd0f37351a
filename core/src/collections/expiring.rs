//! A map whose entries expire, and the queue of its keys in the order they expire.

use std::fmt;

use super::cow::CowMap;
use crate::types::Timestamp;

#[cfg(test)]
mod tests;

/// A value that expires.
pub(crate) trait Expires {
    /// When it expires.
    fn expires_at(&self) -> Timestamp;
}

/// A map of entries that expire, oldest first.
///
/// *Oldest* means the first to expire, and among those that expire together the first inserted. Lookups, inserts and
/// removals are those of a [`CowMap`], twice; a clone shares its entries. The entries in order are read one after the
/// other, without a lookup.
#[derive(Clone)]
pub(crate) struct ExpiringMap<K, V> {
    /// The slot of each key in the queue.
    known: CowMap<K, Slot>,
    queue: CowMap<Slot, (K, V)>,
    next: u64,
}

/// A place in the queue: the time at which an entry expires, and its serial number.
type Slot = (Timestamp, u64);

impl<K, V> ExpiringMap<K, V> {
    /// The number of entries, including expired ones that are not removed yet.
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the oldest entry expires.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.first().map(|((expires_at, _), _)| *expires_at)
    }

    /// The number of oldest entries that have expired at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        let due = self.queue.iter().take_while(|((expires_at, _), _)| *expires_at <= now);
        due.take(limit as usize).count() as u64
    }
}

impl<K: Clone + Ord, V: Clone + Expires> ExpiringMap<K, V> {
    /// The entries in the order they expire, as far as the queue and the map agree.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.queue.iter().filter_map(|(slot, (key, value))| {
            (self.known.get(key)? == slot && value.expires_at() == slot.0).then_some((key, value))
        })
    }

    /// The value of `key`, unless it has expired at `now`.
    #[must_use]
    pub(crate) fn get(&self, key: &K, now: Timestamp) -> Option<&V> {
        let slot = self.known.get(key).filter(|(expires_at, _)| now < *expires_at)?;
        self.queue.get(slot).map(|(_, value)| value)
    }

    /// Adds or replaces the value of `key`, as the newest entry, and returns the previous one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let slot = (value.expires_at(), self.next);
        self.queue.insert(slot, (key.clone(), value));
        let before = self.known.insert(key, slot);
        let before = before.and_then(|before| self.queue.remove(&before)).map(|(_, value)| value);
        self.next += 1;
        debug_assert_eq!(self.known.len(), self.queue.len(), "every key is queued once");
        before
    }

    /// Removes the `count` oldest entries. Returns false and removes none if there are fewer.
    pub(crate) fn remove_oldest(&mut self, count: u64) -> bool {
        if count > self.len() as u64 {
            return false;
        }
        for _ in 0..count {
            let (_, (key, _)) = self.queue.pop_first().expect("every key is queued once");
            self.known.remove(&key);
        }
        true
    }

    /// Removes the entries from the key `first` on, in the order of keys, for as long as `holds`.
    pub(crate) fn remove_while(&mut self, first: &K, mut holds: impl FnMut(&K) -> bool) {
        let range = self.known.range_from(first).take_while(|(key, _)| holds(key));
        let doomed: Vec<_> = range.map(|(key, slot)| (key.clone(), *slot)).collect();
        for (key, slot) in doomed {
            self.known.remove(&key);
            self.queue.remove(&slot);
        }
    }

    /// The entries, oldest first.
    pub(crate) fn in_order(self) -> impl Iterator<Item = (K, V)> + Clone {
        { self.queue.into_chunks() }.flat_map(|chunk| chunk.iter().map(|(_, entry)| entry.clone()).collect::<Vec<_>>())
    }
}

impl<K, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self { known: CowMap::new(), queue: CowMap::new(), next: 0 }
    }
}

/// Equal if the entries are, and their order; not how many there were before.
impl<K: PartialEq, V: PartialEq> PartialEq for ExpiringMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        let queued = self.queue.iter().map(|((expires_at, _), entry)| (expires_at, entry));
        queued.eq(other.queue.iter().map(|((expires_at, _), entry)| (expires_at, entry)))
    }
}

impl<K: Eq, V: Eq> Eq for ExpiringMap<K, V> {}

impl<K: Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for ExpiringMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.known.iter().filter_map(|(key, slot)| Some((key, &self.queue.get(slot)?.1)));
        f.debug_map().entries(entries).finish()
    }
}
