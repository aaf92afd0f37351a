//! A map by ids that are counted up.

use std::fmt;
use std::ops::Index;

use crate::types::{GroupId, TopicId};

/// An id that is given out in ascending order, from 0 on.
pub(crate) trait Id: Copy + Ord + fmt::Debug {
    /// The id as a number.
    fn number(self) -> u64;
}

impl Id for TopicId {
    fn number(self) -> u64 {
        u64::from(self.0)
    }
}

impl Id for GroupId {
    fn number(self) -> u64 {
        u64::from(self.0)
    }
}

/// A map sorted by id.
///
/// A lookup takes one step as long as no id between the first and the wanted one was removed, else O(log n). An
/// insert behind all others moves nothing; other inserts and removals move the entries behind them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct IdMap<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> Default for IdMap<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: Id, V> IdMap<K, V> {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value at `key`.
    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match self.entries.get(self.guess(*key)?) {
            Some((found, value)) if found == key => Some(value),
            _ => self.search(*key).ok().map(|at| &self.entries[at].1),
        }
    }

    /// Mutable access to the value at `key`.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let guess = self.guess(*key)?;
        match self.entries.get(guess) {
            Some((found, _)) if found == key => Some(&mut self.entries[guess].1),
            _ => self.search(*key).ok().map(|at| &mut self.entries[at].1),
        }
    }

    /// Whether there is an entry at `key`.
    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.find(*key).is_ok()
    }

    /// Sets the value at `key` and returns the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes the entry at `key` and returns its value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(*key).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// All entries, in the order of their ids.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// As [`IdMap::iter`], with mutable access to the values.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// All ids, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their ids.
    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// As [`IdMap::values`], with mutable access.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Where `key` is if no id between the first and it was removed; else it is before that. `None` without entries.
    #[inline]
    fn guess(&self, key: K) -> Option<usize> {
        let (first, _) = self.entries.first()?;
        Some(key.number().wrapping_sub(first.number()) as usize)
    }

    /// Where `key` is, or where it would be inserted.
    fn find(&self, key: K) -> Result<usize, usize> {
        match self.guess(key) {
            Some(guess) if self.entries.get(guess).is_some_and(|(found, _)| *found == key) => Ok(guess),
            _ => self.search(key),
        }
    }

    /// As [`IdMap::find`], if `key` is not known or ids before it were removed.
    #[cold]
    fn search(&self, key: K) -> Result<usize, usize> {
        match self.entries.last() {
            Some((last, _)) if *last == key => Ok(self.entries.len() - 1),
            _ => self.entries.binary_search_by_key(&key, |(key, _)| *key),
        }
    }
}

impl<K: Id, V> Index<&K> for IdMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("there is an entry with this id")
    }
}

impl<K: Id, V: fmt::Debug> fmt::Debug for IdMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_sorted_map(steps in prop::collection::vec((0_u32..12, 0_u8..3), 0..60)) {
            let (mut map, mut model) = (IdMap::default(), BTreeMap::new());
            for (serial, (number, kind)) in steps.into_iter().enumerate() {
                // Some ids far from the others.
                let key = TopicId(if number > 9 { u32::MAX - number } else { number });
                match kind {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    _ => prop_assert_eq!(map.insert(key, serial), model.insert(key, serial)),
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()));
                prop_assert_eq!(map.len(), model.len());
                for number in (0..12).chain([u32::MAX - 10, u32::MAX - 11]) {
                    prop_assert_eq!(map.contains_key(&TopicId(number)), model.contains_key(&TopicId(number)));
                }
            }
        }
    }
}
