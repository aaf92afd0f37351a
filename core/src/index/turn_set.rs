//! A set of those that can have a turn, of which there is mostly none or one.

use std::fmt;

use crate::collections::cow::OwnMap;

/// A sorted set. A single element takes no search, and none an allocation.
#[derive(Clone, Default)]
pub(super) struct TurnSet<T> {
    /// The only element; `None` if there is none or `more` has any.
    one: Option<T>,
    more: OwnMap<T, ()>,
}

impl<T: Ord + Copy> TurnSet<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.is_empty()
    }

    #[inline]
    pub(super) fn insert(&mut self, element: T) {
        if self.one.is_none() && self.more.is_empty() {
            self.one = Some(element);
        } else if self.one != Some(element) {
            if let Some(one) = self.one.take() {
                self.more.insert(one, ());
            }
            self.more.insert(element, ());
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, element: T) {
        if self.one == Some(element) {
            self.one = None;
        } else if !self.more.is_empty() {
            self.more.remove(&element);
        }
    }

    /// The first element at or after `from`; if there is none, the first of all.
    #[inline]
    pub(super) fn next_turn(&self, from: T) -> Option<T> {
        if self.more.is_empty() { self.one } else { self.next_of_more(from) }
    }

    /// Checks both ends before it searches a range, which costs more: often `from` is past the last.
    fn next_of_more(&self, from: T) -> Option<T> {
        let (first, ()) = self.more.first()?;
        let (last, ()) = self.more.last()?;
        if *first >= from || *last < from {
            return Some(*first);
        }
        self.more.range_from(&from).next().map(|(element, ())| *element)
    }

    /// All elements, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = T> {
        self.one.into_iter().chain(self.more.iter().map(|(element, ())| *element))
    }
}

impl<T: Ord + Copy + fmt::Debug> fmt::Debug for TurnSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn turn_set_equals_model(changes in prop::collection::vec((any::<bool>(), 0_u32..5, 0_u32..6), 0..100)) {
            let (mut set, mut model) = (TurnSet::default(), BTreeSet::new());
            for (insert, element, from) in changes {
                if insert {
                    set.insert(element);
                    model.insert(element);
                } else {
                    set.remove(element);
                    model.remove(&element);
                }
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.next_turn(from), model.range(from..).next().or_else(|| model.first()).copied());
                prop_assert!(set.iter().eq(model.iter().copied()));
                prop_assert_eq!(format!("{set:?}"), format!("{model:?}"));
            }
        }
    }
}
