//! A sorted copy-on-write map: a clone shares all entries, and a write to either copy then copies one chunk of entries.
//!
//! A snapshot is a clone, read while the broker continues. A clone costs one reference count per chunk of up to
//! [`CHUNK`] entries; afterwards each chunk that is written to is copied once per clone that still shares it.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{VecDeque, vec_deque};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::{fmt, mem};

mod chunk;
mod holder;
#[cfg(test)]
mod tests;

pub(crate) use chunk::{CHUNK, Chunk};
use holder::{Holder, Own};

/// A chunk with fewer entries than this is merged with a neighbour if both are small.
const SPARSE: usize = CHUNK / 4;

/// The most entries of a merged chunk: half full, so that the next insert does not split it again.
const MERGED_MAX: usize = CHUNK / 2;

/// The list of chunks does not shrink below this capacity.
const SLOTS_KEPT: usize = 16;

/// An emptied map keeps its last chunk if its capacity is at most this.
const CAPACITY_KEPT: usize = 8;

/// A sorted map with cheap clones.
///
/// Lookups are O(log n). So are inserts and removals, except that adding or removing a chunk in the middle moves up to
/// n / [`CHUNK`] slots, about once per [`CHUNK`] / 4 writes. Queue operations, appending past the last key and removing
/// the first entry, move nothing. A clone is O(n / [`CHUNK`]).
///
/// A clone and its original do not affect each other. Two maps are equal if their entries are.
#[derive(Clone)]
pub(crate) struct CowMap<K, V, C = Arc<Chunk<K, V>>> {
    /// No chunk is empty, except for the only one of an empty map: without it a queue that runs empty between any two
    /// messages would allocate for each.
    slots: VecDeque<Slot<K, C>>,
    len: usize,
    values: PhantomData<V>,
}

/// The same map for what is never shared: a clone copies all entries, and a write costs no check for other owners.
pub(crate) type OwnMap<K, V> = CowMap<K, V, Own<K, V>>;

/// A chunk and a lower bound of its keys.
///
/// `first` is above every key of the chunk before. It need not be a key of the map: removing a chunk's first entry does
/// not change it.
#[derive(Clone)]
struct Slot<K, C> {
    first: K,
    chunk: C,
}

impl<K, V> CowMap<K, V> {
    /// The chunks of the map in ascending order, none empty.
    ///
    /// Reads a clone piece by piece: once a chunk is dropped, the original map writes to it without copying.
    pub(crate) fn into_chunks(mut self) -> impl ExactSizeIterator<Item = Arc<Chunk<K, V>>> + Clone
    where
        K: Clone,
        V: Clone,
    {
        if self.is_empty() {
            self.slots.clear();
        }
        self.slots.into_iter().map(|slot| slot.chunk)
    }
}

impl<K, V, C> CowMap<K, V, C> {
    /// An empty map. Allocates nothing.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self { slots: VecDeque::new(), len: 0, values: PhantomData }
    }

    /// The number of entries.
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether the map is empty.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<K, V, C: Deref<Target = Chunk<K, V>>> CowMap<K, V, C> {
    /// The entry with the smallest key.
    #[must_use]
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.slots.front()?.chunk.entry(0)
    }

    /// The entry with the greatest key.
    #[must_use]
    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        self.slots.back()?.chunk.last()
    }

    /// All entries in ascending order.
    #[must_use]
    pub(crate) fn iter(&self) -> Iter<'_, K, V, C> {
        self.iter_from(0, 0)
    }

    /// The first entry for which `order` returns `Equal`.
    ///
    /// `order` compares an entry with the target, as in `entry.cmp(target)`, and must be monotonic in the key. It may
    /// use the value, if the value is monotonic in the key.
    pub(crate) fn find_by(&self, order: impl FnMut(&K, &V) -> Ordering) -> Option<(&K, &V)> {
        let (index, at) = self.locate_by(order)?;
        self.slots[index].chunk.entry(at)
    }

    /// The entries from index `at` of slot `index` on; both can be one past the end.
    fn iter_from(&self, index: usize, at: usize) -> Iter<'_, K, V, C> {
        let mut slots = self.slots.range(index..);
        let entries = slots.next().map(|slot| slot.chunk.entries.range(at..)).unwrap_or_default();
        Iter { slots, entries }
    }

    fn locate_by(&self, mut order: impl FnMut(&K, &V) -> Ordering) -> Option<(usize, usize)> {
        let mut all_less = |slot: &Slot<K, C>| slot.chunk.last().is_some_and(|(key, value)| order(key, value).is_lt());
        // Queues search near their front.
        let index = if self.slots.front().is_some_and(|slot| !all_less(slot)) {
            0
        } else {
            self.slots.partition_point(all_less)
        };
        let at = self.slots.get(index)?.chunk.search_by(order)?;
        Some((index, at))
    }
}

impl<K: Ord, V, C: Deref<Target = Chunk<K, V>>> CowMap<K, V, C> {
    /// The value at `key`.
    #[must_use]
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunk_of(key)?;
        let at = chunk.search(key).ok()?;
        Some(&chunk.entries[at].1)
    }

    /// Whether there is an entry with `key`.
    #[must_use]
    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.chunk_of(key).is_some_and(|chunk| chunk.search(key).is_ok())
    }

    /// The entries at and above `key` in ascending order.
    #[must_use]
    pub(crate) fn range_from(&self, key: &K) -> Iter<'_, K, V, C> {
        match self.slot_of(key) {
            None => self.iter(),
            Some(index) => {
                let (Ok(at) | Err(at)) = self.slots[index].chunk.search(key);
                self.iter_from(index, at)
            }
        }
    }

    /// The entry with the greatest key below `key`.
    #[must_use]
    pub(crate) fn last_below(&self, key: &K) -> Option<(&K, &V)> {
        let index = self.slot_of(key)?;
        let (Ok(end) | Err(end)) = self.slots[index].chunk.search(key);
        self.last_of(index, end)
    }

    /// The entry with the greatest key at or below `key`.
    #[must_use]
    pub(crate) fn at_or_below(&self, key: &K) -> Option<(&K, &V)> {
        let index = self.slot_of(key)?;
        let end = self.slots[index].chunk.search(key).map_or_else(|at| at, |at| at + 1);
        self.last_of(index, end)
    }

    /// The last entry before `end` in slot `index`, or the last of the slot before it.
    fn last_of(&self, index: usize, end: usize) -> Option<(&K, &V)> {
        match end.checked_sub(1) {
            Some(at) => self.slots[index].chunk.entry(at),
            None => self.slots[index.checked_sub(1)?].chunk.last(),
        }
    }

    /// The only slot whose chunk can contain `key`; `None` if `key` is below the first slot's bound.
    fn slot_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let last = self.slots.len().checked_sub(1)?;
        if self.slots[last].first.borrow() <= key {
            return Some(last);
        }
        self.slots.partition_point(|slot| slot.first.borrow() <= key).checked_sub(1)
    }

    /// The chunk of [`slot_of`](Self::slot_of).
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Chunk<K, V>>
    where
        K: Borrow<Q>,
    {
        match self.slots.back() {
            Some(last) if last.first.borrow() <= key => Some(&last.chunk),
            _ => self.slot_of(key).map(|index| &*self.slots[index].chunk),
        }
    }

    fn locate<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(usize, usize)>
    where
        K: Borrow<Q>,
    {
        let index = self.slot_of(key)?;
        let at = self.slots[index].chunk.search(key).ok()?;
        Some((index, at))
    }
}

/// A key that is usually one of consecutive ones.
pub(crate) trait Consecutive: Ord {
    /// The number of keys from `first` to this one, if none is missing.
    fn distance(&self, first: &Self) -> usize;
}

impl Consecutive for u64 {
    fn distance(&self, first: &Self) -> usize {
        self.wrapping_sub(*first) as usize
    }
}

/// A time and a number.
impl<T: Ord, N: Consecutive> Consecutive for (T, N) {
    #[inline]
    fn distance(&self, first: &Self) -> usize {
        self.1.distance(&first.1)
    }
}

impl<K: Consecutive, V, C: Deref<Target = Chunk<K, V>>> CowMap<K, V, C> {
    /// As [`CowMap::get`], faster if the keys near this one are consecutive.
    #[must_use]
    #[inline]
    pub(crate) fn get_near(&self, key: &K) -> Option<&V> {
        let (index, at) = self.locate_near(key)?;
        Some(&self.slots[index].chunk.entries[at].1)
    }

    #[inline]
    fn locate_near(&self, key: &K) -> Option<(usize, usize)> {
        let index = self.slot_of(key)?;
        let chunk = &self.slots[index].chunk;
        let at = chunk.entries.front().map(|(first, _)| key.distance(first))?;
        match chunk.entries.get(at) {
            Some((found, _)) if found == key => Some((index, at)),
            _ => Some((index, chunk.search(key).ok()?)),
        }
    }
}

impl<K: Consecutive + Clone, V, C: Holder<K, V>> CowMap<K, V, C> {
    /// As [`CowMap::get_mut`], faster if the keys near this one are consecutive.
    #[inline]
    pub(crate) fn get_near_mut(&mut self, key: &K) -> Option<&mut V> {
        let (index, at) = self.locate_near(key)?;
        Some(&mut self.slots[index].chunk.write().entries[at].1)
    }

    /// As [`CowMap::remove`], faster if the keys near this one are consecutive.
    #[inline]
    pub(crate) fn remove_near(&mut self, key: &K) -> Option<V> {
        if self.starts_with(key) {
            return self.remove_front();
        }
        let (index, at) = self.locate_near(key)?;
        Some(self.remove_at(index, at).1)
    }
}

impl<K: Ord + Clone, V, C: Holder<K, V>> CowMap<K, V, C> {
    /// Mutable access to the value at `key`. Copies nothing if there is none.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (index, at) = self.locate(key)?;
        Some(&mut self.slots[index].chunk.write().entries[at].1)
    }

    /// As [`get_mut`](Self::get_mut), for a key that probably is at or behind index `hint` of the only chunk; `hint` is
    /// then moved behind it.
    pub(crate) fn get_mut_near(&mut self, key: &K, hint: &mut usize) -> Option<&mut V> {
        let near = match self.slots.front() {
            Some(slot) => slot.chunk.entries.get(*hint).is_some_and(|(found, _)| found == key),
            None => return None,
        };
        let (index, at) = if near { (0, *hint) } else { self.locate(key)? };
        *hint = at + 1;
        Some(&mut self.slots[index].chunk.write().entries[at].1)
    }

    /// Sets the value at `key` and returns the previous one. An equal key in the map is kept.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        // Queues add behind their end.
        if let Some(slot) = self.slots.back_mut() {
            let is_behind = match slot.chunk.last() {
                Some((last, _)) => *last < key && !slot.chunk.is_full(),
                None => {
                    slot.first = key.clone();
                    true
                }
            };
            if is_behind {
                slot.chunk.write().push(key, value);
                self.len += 1;
                return None;
            }
        }
        self.insert_anywhere(key, value)
    }

    fn insert_anywhere(&mut self, key: K, value: V) -> Option<V> {
        let index = match self.slot_of(&key) {
            Some(index) => index,
            None if self.slots.is_empty() => {
                self.slots.reserve_exact(1);
                self.slots.push_back(Slot { first: key.clone(), chunk: C::hold(Chunk::of_one(key, value, 1)) });
                self.len = 1;
                return None;
            }
            None => {
                self.slots[0].first = key.clone();
                0
            }
        };
        let chunk = &mut self.slots[index].chunk;
        let past_the_end = chunk.last().is_none_or(|(last, _)| *last < key);
        match if past_the_end { Err(chunk.len()) } else { chunk.search(&key) } {
            Ok(at) => return Some(mem::replace(&mut chunk.write().entries[at].1, value)),
            Err(at) if !chunk.is_full() => chunk.write().insert(at, key, value),
            Err(at) => self.insert_into_full(index, at, key, value),
        }
        self.len += 1;
        None
    }

    /// Removes the entry at `key` and returns its value.
    #[inline]
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Queues remove their first entry.
        if self.starts_with(key) {
            return self.remove_front();
        }
        self.remove_anywhere(key)
    }

    #[inline]
    fn starts_with<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let first = self.slots.front().and_then(|slot| slot.chunk.entries.front());
        first.is_some_and(|(first, _)| first.borrow() == key)
    }

    #[inline]
    fn remove_front(&mut self) -> Option<V> {
        let slot = self.slots.front_mut()?;
        let (_, value) = slot.chunk.write().entries.pop_front()?;
        self.len -= 1;
        let left = slot.chunk.len();
        if left == 0 || left < SPARSE && self.slots.len() > 1 {
            self.merge_or_drop(0);
        }
        Some(value)
    }

    fn remove_anywhere<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (index, at) = self.locate(key)?;
        Some(self.remove_at(index, at).1)
    }

    /// Removes and returns the entry with the smallest key.
    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        if self.is_empty() {
            return None;
        }
        Some(self.remove_at(0, 0))
    }

    /// Removes the entries below `key` and returns them. Taking all of them is O(1).
    pub(crate) fn take_below(&mut self, key: &K) -> Self {
        match self.last() {
            Some((last, _)) if *last >= *key => {}
            _ => return mem::take(self),
        }
        let Some(index) = self.slot_of(key) else { return Self::new() };
        let (Ok(at) | Err(at)) = self.slots[index].chunk.search(key);
        let mut below: VecDeque<_> = self.slots.drain(..index).collect();
        let first = &mut self.slots[0];
        let chunk = first.chunk.write();
        let upper = chunk.entries.split_off(at);
        let lower = mem::replace(&mut chunk.entries, upper);
        if !lower.is_empty() {
            let bound = mem::replace(&mut first.first, key.clone());
            below.push_back(Slot { first: bound, chunk: C::hold(Chunk { entries: lower }) });
        }
        let len = below.iter().map(|slot| slot.chunk.len()).sum();
        self.len -= len;
        let mut below = Self { slots: below, len, values: PhantomData };
        self.merge_if_sparse(0);
        self.slots.shrink_to(SLOTS_KEPT.max(2 * self.slots.len()));
        below.merge_if_sparse(below.slots.len().saturating_sub(1));
        below
    }

    /// Removes the entries from `start` to below `end` and returns them.
    pub(crate) fn take_range(&mut self, start: &K, end: &K) -> Self {
        let below = self.take_below(start);
        let taken = self.take_below(end);
        if !below.is_empty() {
            let above = mem::replace(self, below);
            if !above.is_empty() {
                let joint = self.slots.len();
                self.slots.extend(above.slots);
                self.len += above.len;
                self.merge_if_sparse(joint);
            }
        }
        taken
    }

    /// Inserts at `at` of the full chunk `index`.
    ///
    /// Past the last key of the map it starts a new chunk, so that ascending keys leave full chunks. Past the last key
    /// of another chunk it splits off a quarter, since more ascending keys are likely. Elsewhere it splits in half.
    fn insert_into_full(&mut self, index: usize, at: usize, key: K, value: V) {
        if at == CHUNK && index + 1 == self.slots.len() {
            self.slots.push_back(Slot { first: key.clone(), chunk: C::hold(Chunk::of_one(key, value, SPARSE)) });
            return;
        }
        let kept = if at == CHUNK { CHUNK - SPARSE } else { CHUNK / 2 };
        let lower = self.slots[index].chunk.write();
        let mut upper = Chunk { entries: lower.entries.split_off(kept) };
        let first = upper.entries[0].0.clone();
        if at <= kept {
            lower.insert(at, key, value);
        } else {
            upper.insert(at - kept, key, value);
        }
        self.slots.insert(index + 1, Slot { first, chunk: C::hold(upper) });
    }

    fn remove_at(&mut self, index: usize, at: usize) -> (K, V) {
        let chunk = self.slots[index].chunk.write();
        let entry = chunk.remove(at);
        self.len -= 1;
        if chunk.len() < SPARSE {
            self.merge_or_drop(index);
        }
        entry
    }

    /// Drops the sparse chunk of slot `index` if it is empty, or merges it with a neighbour if both are small. Hence no
    /// two neighbours are sparse, and there are at most `len / 16 + 1` chunks.
    fn merge_or_drop(&mut self, index: usize) {
        let chunk = &self.slots[index].chunk;
        let len = chunk.len();
        if len == 0 {
            if !self.is_empty() || chunk.entries.capacity() > CAPACITY_KEPT {
                self.remove_slot(index);
            }
            return;
        }
        let fits = |other: usize| self.slots.get(other).is_some_and(|slot| slot.chunk.len() + len <= MERGED_MAX);
        let lower = match index.checked_sub(1) {
            Some(before) if fits(before) => before,
            _ if fits(index + 1) => index,
            _ => return,
        };
        let mut upper = self.remove_slot(lower + 1).chunk.take();
        // Growth at most doubles a capacity below MERGED_MAX, so it stays within CHUNK.
        self.slots[lower].chunk.write().entries.append(&mut upper.entries);
    }

    fn merge_if_sparse(&mut self, index: usize) {
        if self.slots.get(index).is_some_and(|slot| slot.chunk.len() < SPARSE) {
            self.merge_or_drop(index);
        }
    }

    fn remove_slot(&mut self, index: usize) -> Slot<K, C> {
        let slot = self.slots.remove(index).expect("the index is in range");
        let capacity = self.slots.capacity();
        if capacity > SLOTS_KEPT && self.slots.len() < capacity / 4 {
            self.slots.shrink_to(capacity / 2);
        }
        slot
    }
}

/// An iterator over the entries of a [`CowMap`] in ascending order.
pub(crate) struct Iter<'a, K, V, C = Arc<Chunk<K, V>>> {
    slots: vec_deque::Iter<'a, Slot<K, C>>,
    entries: vec_deque::Iter<'a, (K, V)>,
}

impl<'a, K, V, C: Deref<Target = Chunk<K, V>>> Iterator for Iter<'a, K, V, C> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.entries.next() {
                return Some((key, value));
            }
            self.entries = self.slots.next()?.chunk.entries.iter();
        }
    }
}

impl<'a, K, V, C: Deref<Target = Chunk<K, V>>> IntoIterator for &'a CowMap<K, V, C> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V, C>;

    fn into_iter(self) -> Iter<'a, K, V, C> {
        self.iter()
    }
}

impl<K, V, C> Default for CowMap<K, V, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: PartialEq, V: PartialEq, C: Deref<Target = Chunk<K, V>>> PartialEq for CowMap<K, V, C> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq, C: Deref<Target = Chunk<K, V>>> Eq for CowMap<K, V, C> {}

impl<K: fmt::Debug, V: fmt::Debug, C: Deref<Target = Chunk<K, V>>> fmt::Debug for CowMap<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

/// The entries of a map; each chunk is dropped when its last entry is read.
pub(crate) fn entries_of<K, V>(map: CowMap<K, V>) -> impl Iterator<Item = (K, V)> + Clone + Send + 'static
where
    K: Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let mut chunks = map.into_chunks();
    let mut current: Option<(Arc<Chunk<K, V>>, usize)> = None;
    std::iter::from_fn(move || {
        loop {
            if let Some((chunk, next)) = &mut current
                && let Some((key, value)) = chunk.iter().nth(*next)
            {
                *next += 1;
                return Some((key.clone(), value.clone()));
            }
            current = Some((chunks.next()?, 0));
        }
    })
}
