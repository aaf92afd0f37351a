//! A chunk: the unit of sharing and copying of a [`CowMap`](super::CowMap).

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// The most entries of a chunk, and so the most that one write after a clone copies.
pub(crate) const CHUNK: usize = 128;

/// Up to [`CHUNK`] consecutive entries of a map.
#[derive(Clone, Debug)]
pub(crate) struct Chunk<K, V> {
    pub(super) entries: VecDeque<(K, V)>,
}

impl<K, V> Chunk<K, V> {
    /// The entries in ascending order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub(super) fn of_one(key: K, value: V, capacity: usize) -> Self {
        let mut entries = VecDeque::with_capacity(capacity);
        entries.push_back((key, value));
        Self { entries }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= CHUNK
    }

    pub(super) fn entry(&self, at: usize) -> Option<(&K, &V)> {
        self.entries.get(at).map(|(key, value)| (key, value))
    }

    pub(super) fn last(&self) -> Option<(&K, &V)> {
        self.entries.back().map(|(key, value)| (key, value))
    }

    /// The number of leading entries for which `before` holds; it must hold for no other.
    ///
    /// Searches in shrinking strides rather than by halves: about as many comparisons, but the branches are predictable
    /// and the loads prefetched. In a map larger than the cache a lookup is a third faster.
    pub(super) fn partition_point(&self, mut before: impl FnMut(&K, &V) -> bool) -> usize {
        let (front, back) = self.entries.as_slices();
        let (entries, skipped) = match back.first() {
            Some((key, value)) if before(key, value) => (back, front.len()),
            _ => (front, 0),
        };
        let mut at = 0;
        for stride in [16, 4, 1] {
            while let Some((key, value)) = entries.get(at + stride - 1)
                && before(key, value)
            {
                at += stride;
            }
        }
        skipped + at
    }

    /// The index of `key`, or the index at which to insert it.
    pub(super) fn search<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Queues search near their ends.
        match (self.entries.front(), self.entries.back()) {
            (Some((first, _)), _) if first.borrow() == key => return Ok(0),
            (_, Some((last, _))) if last.borrow() == key => return Ok(self.entries.len() - 1),
            (_, Some((last, _))) if last.borrow() < key => return Err(self.entries.len()),
            _ => {}
        }
        let at = self.partition_point(|other, _| other.borrow() < key);
        match self.entries.get(at) {
            Some((other, _)) if other.borrow() == key => Ok(at),
            _ => Err(at),
        }
    }

    /// The index of the first entry for which `order` returns `Equal`.
    pub(super) fn search_by(&self, mut order: impl FnMut(&K, &V) -> Ordering) -> Option<usize> {
        let at = match self.entries.front() {
            Some((key, value)) if order(key, value).is_ge() => 0,
            _ => self.partition_point(|key, value| order(key, value).is_lt()),
        };
        let (key, value) = self.entries.get(at)?;
        order(key, value).is_eq().then_some(at)
    }

    /// Inserts an entry at the index that `search` returned.
    ///
    /// The capacity grows fourfold up to [`CHUNK`], so that a queue that repeatedly fills and runs empty seldom grows.
    pub(super) fn insert(&mut self, at: usize, key: K, value: V) {
        if at == self.len() {
            return self.push(key, value);
        }
        self.grow_if_full();
        self.entries.insert(at, (key, value));
    }

    /// As [`insert`](Self::insert), behind the last entry.
    #[inline]
    pub(super) fn push(&mut self, key: K, value: V) {
        self.grow_if_full();
        self.entries.push_back((key, value));
    }

    #[inline]
    fn grow_if_full(&mut self) {
        debug_assert!(!self.is_full(), "a full chunk is split first");
        if self.entries.len() == self.entries.capacity() {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.entries.len();
        self.entries.reserve_exact((len * 4).clamp(4, CHUNK) - len);
    }

    /// Removes the entry at `at`, which must exist.
    pub(super) fn remove(&mut self, at: usize) -> (K, V) {
        let entry = if at == 0 { self.entries.pop_front() } else { self.entries.remove(at) };
        entry.expect("the index is in range")
    }
}
