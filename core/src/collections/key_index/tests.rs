//! Random operations on a [`KeyIndex`] compared with a sorted map, also with keys of the same hash.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The table whose index is tested: a place is the number of an entry, which has the key.
#[derive(Clone, Debug, Default)]
struct Table {
    entries: BTreeMap<u64, (IdentityKey, ())>,
    index: KeyIndex<u64>,
    next: u64,
}

impl Table {
    fn insert(&mut self, key: &IdentityKey) -> Option<u64> {
        let entries = &self.entries;
        let before = self.index.insert(key, self.next, |place| &entries[&place]);
        if before.is_none() {
            self.entries.insert(self.next, (key.clone(), ()));
        }
        self.next += 1;
        before
    }

    fn replace(&mut self, key: &IdentityKey) -> Option<u64> {
        let entries = &self.entries;
        let before = self.index.replace(key, self.next, |place| &entries[&place])?;
        self.entries.remove(&before);
        self.entries.insert(self.next, (key.clone(), ()));
        self.next += 1;
        Some(before)
    }

    fn remove(&mut self, key: &IdentityKey) -> Option<u64> {
        let entries = &self.entries;
        let place = self.index.remove(key, |place| &entries[&place])?;
        self.entries.remove(&place);
        Some(place)
    }

    fn get(&self, key: &IdentityKey) -> Option<u64> {
        let (place, (found, ())) = self.index.get(key, |place| &self.entries[&place])?;
        assert_eq!(found, key);
        Some(place)
    }

    fn above(&self, key: &IdentityKey) -> Vec<u64> {
        self.index.above(key, |place| &self.entries[&place]).collect()
    }

    /// Checks the bounds of nodes and leaves, and that none is empty.
    fn check(&self) {
        let mut last: Option<IdentityKey> = None;
        let mut len = 0;
        for (at, node) in self.index.nodes.iter().enumerate() {
            assert!(!node.leaves.is_empty() && node.leaves.len() <= NODE);
            for (of, leaf) in node.leaves.iter().enumerate() {
                assert!(!leaf.entries.is_empty() && leaf.entries.len() <= LEAF);
                for (hash, place) in &*leaf.entries {
                    let key = &self.entries[place].0;
                    assert_eq!(*hash, key.hash());
                    assert!(last.as_ref().is_none_or(|last| last < key));
                    assert!(of == 0 || leaf.first <= *key);
                    assert!(at == 0 || node.first <= *key);
                    last = Some(key.clone());
                    len += 1;
                }
                assert!(of == 0 || last >= Some(leaf.first.clone()));
            }
        }
        assert_eq!((len, self.index.is_empty()), (self.index.len(), len == 0));
    }
}

/// Keys of which many have the same hash, if `hashes` is small.
fn key(number: u64, hashes: u64) -> IdentityKey {
    let hash = (number % hashes).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    IdentityKey::with_hash(hash, &number.to_be_bytes())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    InsertRange(u64, u64),
    Replace(u64),
    Remove(u64),
    RemoveRange(u64, u64),
    Share,
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0_u64..3_000;
    prop_oneof![
        4 => number().prop_map(Step::Insert),
        2 => (number(), 0_u64..600).prop_map(|(from, len)| Step::InsertRange(from, len)),
        2 => number().prop_map(Step::Replace),
        4 => number().prop_map(Step::Remove),
        1 => (number(), 0_u64..600).prop_map(|(from, len)| Step::RemoveRange(from, len)),
        1 => Just(Step::Share),
    ]
}

proptest! {
    #[test]
    fn index_finds_what_a_map_finds(
        steps in prop::collection::vec(step(), 0..60),
        hashes in prop_oneof![Just(1_u64), Just(3), Just(400), Just(u64::MAX)],
    ) {
        let (mut table, mut map) = (Table::default(), BTreeMap::<IdentityKey, u64>::new());
        let mut shared: Option<(Table, BTreeMap<IdentityKey, u64>)> = None;
        for step in steps {
            let numbers = match step {
                Step::InsertRange(from, len) | Step::RemoveRange(from, len) => from..from + len,
                Step::Insert(number) | Step::Replace(number) | Step::Remove(number) => number..number + 1,
                Step::Share => 0..0,
            };
            for number in numbers {
                let key = key(number, hashes);
                match step {
                    Step::Insert(_) | Step::InsertRange(..) => {
                        let place = table.next;
                        prop_assert_eq!(table.insert(&key), map.get(&key).copied());
                        map.entry(key).or_insert(place);
                    }
                    Step::Replace(_) => {
                        let place = table.next;
                        let before = table.replace(&key);
                        prop_assert_eq!(before, map.get(&key).copied());
                        if before.is_some() {
                            map.insert(key, place);
                        }
                    }
                    Step::Remove(_) => prop_assert_eq!(table.remove(&key), map.remove(&key)),
                    Step::RemoveRange(..) => {
                        prop_assert!(!table.index.remove_from(&key, u64::MAX));
                        let place = map.remove(&key);
                        prop_assert_eq!(place.is_some_and(|place| table.index.remove_from(&key, place)), place.is_some());
                        table.entries.retain(|other, _| Some(*other) != place);
                    }
                    Step::Share => {}
                }
            }
            if let Step::Share = step {
                shared = Some((table.clone(), map.clone()));
            }
            table.check();
        }
        for (table, map) in [(table, map)].into_iter().chain(shared) {
            table.check();
            prop_assert_eq!(table.index.iter().collect::<Vec<_>>(), map.values().copied().collect::<Vec<_>>());
            let parts: Vec<_> = table.index.clone().into_parts().flat_map(|part| part.to_vec()).collect();
            prop_assert_eq!(parts.len(), map.len());
            for number in (0..3_600).step_by(97) {
                let key = key(number, hashes);
                prop_assert_eq!(table.get(&key), map.get(&key).copied());
                let above = map.range(&key..).filter(|(other, _)| **other != key);
                prop_assert_eq!(table.above(&key), above.map(|(_, place)| *place).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn many_keys_in_several_nodes_are_found_and_removed() {
    let mut table = Table::default();
    let scattered = |number: u64| key(number, u64::MAX);
    for number in 0..60_000 {
        assert_eq!(table.insert(&scattered(number)), None);
    }
    assert!(table.index.nodes.len() > 3);
    table.check();
    for number in 0..60_000 {
        assert_eq!(table.get(&scattered(number)), Some(number));
        if number % 50 != 0 {
            assert_eq!(table.remove(&scattered(number)), Some(number));
        }
    }
    table.check();
    assert_eq!((table.index.len(), table.index.nodes.len()), (1_200, 1), "sparse parts are merged");
}
