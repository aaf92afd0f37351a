//! Random operations on the copy-on-write map compared with a plain map, with clones that must not change.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

impl<K: Ord, V, C: Deref<Target = Chunk<K, V>>> CowMap<K, V, C> {
    /// Panics unless the structural invariants hold.
    pub(crate) fn check(&self) {
        if self.is_empty() {
            let kept: Vec<_> =
                self.slots.iter().map(|slot| (slot.chunk.len(), slot.chunk.entries.capacity())).collect();
            assert!(kept.len() <= 1, "an empty map has at most one chunk");
            assert!(kept.iter().all(|&(len, room)| len == 0 && room <= CAPACITY_KEPT), "that chunk is small: {kept:?}");
            return;
        }
        let mut len = 0;
        let mut before: Option<&Slot<K, C>> = None;
        for slot in &self.slots {
            let entries = &slot.chunk.entries;
            len += entries.len();
            assert!(!entries.is_empty() && entries.len() <= CHUNK, "a chunk of {}", entries.len());
            assert!(entries.capacity() <= CHUNK, "room for {}", entries.capacity());
            assert!(entries.iter().is_sorted_by(|a, b| a.0 < b.0), "keys ascend within a chunk");
            assert!(slot.first <= entries[0].0, "`first` is a lower bound");
            if let Some(before) = before {
                assert!(*before.chunk.last().unwrap().0 < slot.first, "`first` is above the chunk before");
                assert!(before.chunk.len() >= SPARSE || entries.len() >= SPARSE, "no two neighbours are sparse");
            }
            before = Some(slot);
        }
        assert_eq!(len, self.len, "the count is correct");
        assert!(self.slots.len() <= len / 16 + 1, "{} chunks for {len} entries", self.slots.len());
        assert!(self.slots.capacity() <= SLOTS_KEPT.max(8 * self.slots.len()), "the list of chunks shrinks");
    }

    fn chunk_lens(&self) -> Vec<usize> {
        self.slots.iter().map(|slot| slot.chunk.len()).collect()
    }
}

impl<K: Ord, V> CowMap<K, V> {
    /// How many chunks both maps share.
    fn shared_with(&self, other: &Self) -> usize {
        let same = |slot: &&Slot<K, Arc<Chunk<K, V>>>| {
            other.slots.iter().any(|theirs| Arc::ptr_eq(&slot.chunk, &theirs.chunk))
        };
        self.slots.iter().filter(same).count()
    }
}

fn map_of(keys: impl IntoIterator<Item = u32>) -> CowMap<u32, u32> {
    let mut map = CowMap::new();
    for key in keys {
        assert_eq!(map.insert(key, key), None);
    }
    map.check();
    map
}

#[test]
fn ascending_keys_leave_full_chunks() {
    assert_eq!(map_of(0..300).chunk_lens(), [CHUNK, CHUNK, 300 - 2 * CHUNK]);
}

#[test]
fn full_chunk_in_the_middle_is_split_in_half() {
    let mut map = map_of((0..128).map(|key| key * 2));
    map.insert(77, 77);
    map.check();
    assert_eq!(map.chunk_lens(), [65, 64]);
    let mut map = map_of((0..256).map(|key| key * 2));
    map.insert(127 * 2 + 1, 0);
    map.check();
    assert_eq!(map.chunk_lens(), [96, 33, 128], "past the end of a chunk, but not of the map");
}

#[test]
fn neighbour_is_found_with_and_without_a_hint() {
    for mut map in [map_of(0..100), map_of(0..1000)] {
        let mut hint = 0;
        for key in (0..100).chain([6, 50, 7, 8, 99, 0, 1]) {
            assert_eq!(map.get_mut_near(&key, &mut hint).copied(), Some(key));
        }
        assert_eq!((map.get_mut_near(&5_000, &mut hint), hint), (None, 2));
    }
    assert_eq!(CowMap::<u32, u32>::new().get_mut_near(&1, &mut 0), None);
}

#[test]
fn short_queue_stays_in_one_chunk() {
    let mut map = map_of(0..100);
    for key in 100..1000 {
        map.insert(key, key);
        assert_eq!(map.pop_first(), Some((key - 100, key - 100)));
        map.check();
        assert_eq!(map.slots.len(), 1);
    }
}

#[test]
fn emptied_chunks_are_removed_from_the_front() {
    let mut map = map_of(0..400);
    for (key, chunks) in (0..400).map(|key| (key, [4, 3, 2, 1][key as usize / CHUNK])) {
        assert!(map.slots.len() <= chunks);
        assert_eq!(map.remove(&key), Some(key));
        map.check();
    }
    assert_eq!((map.slots.len(), map.pop_first()), (0, None));
}

#[test]
fn keys_ascending_between_two_chunks_leave_mostly_full_chunks() {
    let mut map = map_of(0..CHUNK as u32);
    for key in (1_000_000..1_001_000).chain(1_000..11_000) {
        map.insert(key, key);
    }
    map.check();
    assert!(map.slots.len() <= 11_100 / (CHUNK - SPARSE) + 2, "{}", map.slots.len());
}

#[test]
fn sparse_chunk_merges_with_either_neighbour() {
    let mut map = map_of(0..256);
    (0..98).chain(128..226).for_each(|key| assert_eq!(map.remove(&key), Some(key)));
    assert_eq!(map.chunk_lens(), [60], "the right chunk merged into the left one");
    let mut map = map_of(0..256);
    (128..224).chain(0..97).for_each(|key| assert_eq!(map.remove(&key), Some(key)));
    assert_eq!(map.chunk_lens(), [63], "the left chunk absorbed the right one");
    map.check();
}

#[test]
fn removals_free_memory() {
    let mut map = map_of(0..100_000);
    (0..100_000).filter(|key| key % 100 != 0).for_each(|key| assert_eq!(map.remove(&key), Some(key)));
    map.check();
    assert_eq!(map.len(), 1000);
    assert!(map.slots.len() <= 1000 / 16 + 1);
    assert!(map.slots.capacity() < 300, "the list of chunks shrinks too: {}", map.slots.capacity());
}

#[test]
fn map_with_one_entry_is_small() {
    let map = map_of([7]);
    assert_eq!((map.slots.capacity(), map.slots[0].chunk.entries.capacity()), (1, 1));
}

#[test]
fn emptied_queue_keeps_a_small_chunk_and_yields_none() {
    let mut map = map_of([7]);
    assert_eq!(map.pop_first(), Some((7, 7)));
    assert_eq!(map.chunk_lens(), [0]);
    assert!(map.is_empty() && map.first().is_none() && map.last().is_none() && map.iter().next().is_none());
    assert!(map.range_from(&9).next().is_none() && map.last_below(&9).is_none() && map.at_or_below(&7).is_none());
    assert!(map.find_by(|key, _| key.cmp(&7)).is_none());
    assert_eq!((map.get(&7), map.clone().remove(&7), map.clone().pop_first()), (None, None, None));
    assert_eq!((&map, map.clone().into_chunks().len()), (&CowMap::new(), 0));
    for key in [8, 3] {
        map.insert(key, key);
        map.check();
        assert_eq!((map.get(&key), map.slots.len()), (Some(&key), 1));
        assert_eq!(map.pop_first(), Some((key, key)));
    }
}

#[test]
fn write_after_clone_copies_one_chunk() {
    let mut map = map_of(0..1280);
    let clone = map.clone();
    assert_eq!(map.shared_with(&clone), 10);
    *map.get_mut(&500).unwrap() = 0;
    *map.get_mut(&501).unwrap() = 0;
    assert_eq!(map.shared_with(&clone), 9);
    map.insert(2000, 0);
    assert_eq!(map.shared_with(&clone), 9, "a new chunk is not shared");
    assert_eq!((clone.get(&500), clone.len()), (Some(&500), 1280));
}

#[test]
fn failed_lookup_copies_nothing() {
    let mut map = map_of((0..1000).map(|key| key * 2));
    let clone = map.clone();
    assert_eq!(map.get_mut(&501), None);
    assert_eq!(map.remove(&501), None);
    assert_eq!(map.shared_with(&clone), map.slots.len());
}

#[test]
fn chunk_dropped_by_clone_is_written_in_place() {
    let mut map = map_of(0..256);
    let (left, right) = (Arc::as_ptr(&map.slots[0].chunk), Arc::as_ptr(&map.slots[1].chunk));
    let mut walk = map.clone().into_chunks();
    let first: Vec<_> = walk.next().unwrap().iter().map(|(key, _)| *key).collect();
    assert_eq!(first, (0..128).collect::<Vec<_>>());
    *map.get_mut(&0).unwrap() = 1;
    *map.get_mut(&200).unwrap() = 1;
    assert_eq!(Arc::as_ptr(&map.slots[0].chunk), left);
    assert_ne!(Arc::as_ptr(&map.slots[1].chunk), right);
    assert_eq!(walk.next().unwrap().iter().nth(200 - 128), Some((&200, &200)));
}

#[test]
fn equality_compares_entries_not_chunks() {
    let (up, down) = (map_of(0..1000), map_of((0..1000).rev()));
    assert_ne!(up.chunk_lens(), down.chunk_lens());
    assert_eq!(up, down);
    let mut other = up.clone();
    *other.get_mut(&999).unwrap() = 0;
    assert_ne!(up, other);
    other.remove(&999);
    assert_ne!(up, other);
}

#[test]
fn keys_are_found_by_their_borrowed_form() {
    let mut map: CowMap<Arc<str>, u32> = CowMap::new();
    map.insert(Arc::from("a"), 1);
    *map.get_mut("a").unwrap() += 1;
    assert_eq!((map.get("a"), map.get("b"), map.contains_key("a")), (Some(&2), None, true));
    assert_eq!(map.remove("a"), Some(2));
}

#[test]
fn map_is_send_and_sync() {
    fn sendable<T: Send + Sync>() {}
    sendable::<CowMap<Arc<str>, u64>>();
    sendable::<Arc<Chunk<Arc<str>, u64>>>();
}

#[test]
fn debug_prints_a_map() {
    assert_eq!(format!("{:?}", map_of([2, 1])), "{1: 1, 2: 2}");
}

/// A value whose first field is monotonic in its key.
type Value = (u32, u32);

const KEYS: u32 = 3000;

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    Append(u32),
    Fill { from: u32, count: u32, stride: u32 },
    Remove(u32),
    Thin { from: u32, count: u32, keep_every: u32 },
    PopFirst(u32),
    TakeBelow(u32),
    TakeRange(u32, u32),
    Change(u32),
    Clone,
    ContinueWithClone(usize),
    DropClone(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..KEYS).prop_map(Op::Insert),
        2 => (1..400_u32).prop_map(Op::Append),
        4 => (0..KEYS, 1..400_u32, 1..5_u32).prop_map(|(from, count, stride)| Op::Fill { from, count, stride }),
        4 => (0..KEYS).prop_map(Op::Remove),
        4 => (0..KEYS, 1..1000_u32, 1..100_u32)
            .prop_map(|(from, count, keep_every)| Op::Thin { from, count, keep_every }),
        2 => (1..300_u32).prop_map(Op::PopFirst),
        1 => (0..KEYS).prop_map(Op::TakeBelow),
        2 => (0..KEYS, 0..KEYS).prop_map(|(from, count)| Op::TakeRange(from, from + count)),
        3 => (0..KEYS).prop_map(Op::Change),
        2 => Just(Op::Clone),
        1 => (0..5_usize).prop_map(Op::ContinueWithClone),
        1 => (0..10_usize).prop_map(Op::DropClone),
    ];
    prop::collection::vec(op, 1..60)
}

/// A map, its model, and clones of both.
#[derive(Default)]
struct Pair {
    map: CowMap<u32, Value>,
    model: BTreeMap<u32, Value>,
    clones: Vec<(CowMap<u32, Value>, BTreeMap<u32, Value>)>,
    writes: u32,
}

impl Pair {
    fn insert(&mut self, key: u32) {
        self.writes += 1;
        let value = (key * 3, self.writes);
        assert_eq!(self.map.insert(key, value), self.model.insert(key, value));
        self.map.check();
    }

    fn remove(&mut self, key: u32) {
        assert_eq!(self.map.remove(&key), self.model.remove(&key));
        self.map.check();
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Insert(key) => self.insert(key),
            Op::Append(count) => {
                let from = self.model.keys().next_back().map_or(0, |key| key + 1);
                (from..from + count).for_each(|key| self.insert(key));
            }
            Op::Fill { from, count, stride } => (0..count).for_each(|nth| self.insert(from + nth * stride)),
            Op::Remove(key) => self.remove(key),
            Op::Thin { from, count, keep_every } => {
                (from..from + count).filter(|key| key % keep_every != 0).for_each(|key| self.remove(key));
            }
            Op::PopFirst(count) => {
                for _ in 0..count {
                    assert_eq!(self.map.pop_first(), self.model.pop_first());
                    self.map.check();
                }
            }
            Op::TakeBelow(key) => {
                let above = self.model.split_off(&key);
                let below = mem::replace(&mut self.model, above);
                same(&self.map.take_below(&key), &below);
                self.map.check();
            }
            Op::TakeRange(from, to) => {
                let mut taken = self.model.split_off(&from);
                let mut above = taken.split_off(&to);
                self.model.append(&mut above);
                same(&self.map.take_range(&from, &to), &taken);
                self.map.check();
            }
            Op::Change(key) => match (self.map.get_mut(&key), self.model.get_mut(&key)) {
                (Some(ours), Some(theirs)) => (ours.1, theirs.1) = (0, 0),
                (ours, theirs) => assert_eq!(ours, theirs),
            },
            Op::Clone => self.clones.push((self.map.clone(), self.model.clone())),
            Op::ContinueWithClone(nth) if nth < self.clones.len() => {
                mem::swap(&mut self.map, &mut self.clones[nth].0);
                mem::swap(&mut self.model, &mut self.clones[nth].1);
            }
            Op::DropClone(nth) if nth < self.clones.len() => {
                let (map, model) = self.clones.swap_remove(nth);
                same(&map, &model);
                let chunks: Vec<_> = map.into_chunks().collect();
                assert!(chunks.iter().all(|chunk| chunk.iter().len() > 0));
                assert!(chunks.iter().flat_map(|chunk| chunk.iter()).eq(&model));
            }
            Op::ContinueWithClone(_) | Op::DropClone(_) => {}
        }
        assert_eq!(self.map.len(), self.model.len());
    }

    /// Compares every query about one key.
    fn probe(&self, key: u32) {
        let (map, model) = (&self.map, &self.model);
        assert_eq!(map.get(&key), model.get(&key));
        assert_eq!(map.contains_key(&key), model.contains_key(&key));
        assert_eq!(map.last_below(&key), model.range(..key).next_back());
        assert_eq!(map.at_or_below(&key), model.range(..=key).next_back());
        assert_eq!(map.find_by(|_, value| value.0.cmp(&(key * 3))), model.get_key_value(&key));
        assert!(map.range_from(&key).eq(model.range(key..)));
    }
}

fn same(map: &CowMap<u32, Value>, model: &BTreeMap<u32, Value>) {
    map.check();
    assert!(map.iter().eq(model), "{map:?} is not {model:?}");
    assert_eq!((map.first(), map.last()), (model.first_key_value(), model.last_key_value()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn map_equals_btree_map_and_clones_do_not_change(
        ops in ops(),
        probes in prop::collection::vec(0..KEYS + 1500, 20),
    ) {
        let mut pair = Pair::default();
        for op in &ops {
            pair.run(op);
        }
        same(&pair.map, &pair.model);
        probes.iter().for_each(|&key| pair.probe(key));
        // Keys at the edges of chunks, where a search could enter the wrong chunk.
        let bounds = |slot: &Slot<u32, Arc<Chunk<u32, Value>>>| [slot.first, slot.chunk.last().map_or(0, |(key, _)| *key)];
        let edges: Vec<_> = pair.map.slots.iter().flat_map(bounds).collect();
        edges.iter().for_each(|&key| (key.saturating_sub(1)..=key + 1).for_each(|key| pair.probe(key)));
        for (map, model) in &pair.clones {
            same(map, model);
        }
    }
}
