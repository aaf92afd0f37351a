//! When chunks are packed, opened, merged, dropped, shared and kept.

use super::*;

/// The packed bytes or the open queue of a chunk: equal if and only if shared.
fn address(chunk: &Chunk) -> *const u8 {
    match chunk {
        Chunk::Open(open) => Arc::as_ptr(open).cast(),
        Chunk::Packed(packed) => packed.address(),
    }
}

fn shared(one: &MessageMap, other: &MessageMap) -> usize {
    let addresses: Vec<_> = other.slots.iter().map(|slot| address(&slot.chunk)).collect();
    one.slots.iter().filter(|slot| addresses.contains(&address(&slot.chunk))).count()
}

#[test]
fn full_chunk_is_packed_when_another_follows() {
    assert_eq!(map_of(0..128).packed(), 0);
    let map = map_of(0..300);
    assert_eq!((map.packed(), map.chunk_lens()), (2, vec![128, 128, 44]));
}

#[test]
fn acks_in_order_and_slightly_out_of_order_open_no_chunk() {
    for window in [1, 20] {
        let mut map = map_of(0..1000);
        let before = map.clone();
        for start in (0..1000).step_by(window) {
            for position in (start..start + window as u64).rev() {
                assert_eq!(map.remove(Position(position)), Some(ordinary(position)));
                map.check();
                let chunks = map.slots.iter().filter(|slot| !slot.chunk.is_open());
                assert!(chunks.clone().count() == 0 || shared(&map, &before) >= chunks.count());
            }
        }
        assert!(map.is_empty() && before.iter().eq((0..1000).map(|position| (Position(position), ordinary(position)))));
    }
}

#[test]
fn removed_range_opens_no_chunk() {
    let mut map = map_of(0..2000);
    let before = map.clone();
    map.remove_range(Position(100), Position(1500));
    map.check();
    assert_eq!(map.chunk_lens(), [100, 36, 128, 128, 128, 80]);
    assert_eq!(shared(&map, &before), 6);
    map.remove_below(Position(1600));
    assert_eq!((map.chunk_lens(), shared(&map, &before)), (vec![64, 128, 128, 80], 4));
    map.remove_below(Position(u64::MAX));
    map.check();
    assert!(map.is_empty() && before.len() == 2000);
}

#[test]
fn change_opens_a_chunk_until_another_is_changed() {
    let mut map = map_of(0..1000);
    let packed = map.memory();
    for position in [130, 131, 140, 500, 200, 999] {
        map.change(Position(position), |message| message.payload.id.lsn = Lsn(77));
        map.check();
        assert_eq!(map.get(Position(position)).unwrap().payload.id.lsn, Lsn(77));
        assert_eq!((map.packed(), map.slots.len()), (6, 8));
    }
    assert!(map.memory() > packed);
    (1000..1200).for_each(|position| drop(map.insert(Position(position), ordinary(position))));
    map.check();
    assert_eq!((map.packed(), map.slots.len()), (9, 10), "the next full chunk closes it");
    map.change(Position(5000), |_| unreachable!("no such message"));
    assert_eq!(map.packed(), 9);
}

#[test]
fn changed_lengths_are_in_the_sums() {
    let mut map = map_of(0..1000);
    map.change(Position(300), |message| message.payload.value_len = 0);
    let (load, retained) = map.sums(Position(0), Position(1000));
    assert_eq!((load, retained), (Load { messages: 1000, bytes: 208 * 1000 - 200 }, (208 + 10 + 128) * 1000 - 200));
}

#[test]
fn message_stored_again_is_counted_once() {
    let mut map = map_of(0..1000);
    for position in [128, 255, 300, 127, 0, 999] {
        let message = map.remove(Position(position)).unwrap();
        assert_eq!(map.insert(Position(position), message.clone()), None);
        map.check();
        assert_eq!(map.sums(Position(0), Position(1000)).0.bytes, 208 * 1000);
        assert_eq!(map.insert(Position(position), message.clone()), Some(message));
        assert_eq!(map.sums(Position(0), Position(1000)).0.bytes, 208 * 1000);
        assert_eq!(map.first_with_bytes(Position(0), 208 * 900), Some(Position(899)));
    }
}

#[test]
fn sparse_chunks_are_merged_and_packed() {
    let mut map = map_of(0..100_000);
    (0..100_000).filter(|position| position % 100 != 0).for_each(|position| drop(map.remove(Position(position))));
    map.check();
    assert_eq!(map.len(), 1000);
    assert!(map.slots.len() <= 1000 / 16 + 2, "{}", map.slots.len());
    assert!(map.memory() < 40_000, "{}", map.memory());
    assert!(map.iter().eq((0..1000).map(|nth| (Position(nth * 100), ordinary(nth * 100)))));
}

#[test]
fn messages_stored_in_descending_order_are_packed() {
    let map = map_of((0..5000).rev());
    assert!(map.slots.len() - map.packed() <= 2, "{} of {} chunks", map.packed(), map.slots.len());
    assert_eq!(map, map_of(0..5000));
    assert_eq!(map.sums(Position(0), Position(5000)).0.bytes, 208 * 5000);
}

#[test]
fn clone_shares_all_chunks_and_a_write_copies_one() {
    let mut map = map_of(0..1290);
    let clone = map.clone();
    assert_eq!((shared(&map, &clone), map.slots.len()), (11, 11));
    map.remove(Position(700));
    assert_eq!(shared(&map, &clone), 11, "a removal from a packed chunk copies nothing");
    map.insert(Position(1290), ordinary(1290));
    assert_eq!(shared(&map, &clone), 10);
    map.change(Position(5), |message| message.payload.id.part = 1);
    assert_eq!(shared(&map, &clone), 9);
    clone.check();
    assert!(clone.iter().eq((0..1290).map(|position| (Position(position), ordinary(position)))));
}

#[test]
fn shared_last_chunk_is_packed_beside_its_clone() {
    let mut map = map_of(0..128);
    let clone = map.clone();
    map.insert(Position(128), ordinary(128));
    assert_eq!((map.packed(), clone.packed()), (1, 0));
    assert_ne!(map, clone);
    map.remove(Position(128));
    assert_eq!(map, clone, "equality compares messages, not how they are held");
}

#[test]
fn queue_that_runs_empty_keeps_its_chunk() {
    let mut map = map_of([0]);
    map.remove(Position(0));
    let kept = address(&map.slots[0].chunk);
    let memory = map.memory();
    for position in 1..1000 {
        map.insert(Position(position), ordinary(position));
        assert_eq!(map.remove(Position(position)), Some(ordinary(position)));
        assert_eq!((address(&map.slots[0].chunk), map.memory()), (kept, memory));
    }
    map.check();
}

#[test]
fn queue_behind_a_packed_chunk_keeps_its_last_chunk() {
    let mut map = map_of(0..129);
    map.remove(Position(128));
    assert_eq!(map.chunk_lens(), [128], "a large chunk is not kept");
    map.insert(Position(129), ordinary(129));
    map.remove(Position(129));
    let kept = address(&map.slots[1].chunk);
    for position in 130..1000 {
        assert_eq!(map.last(), Some((Position(127), ordinary(127))));
        assert_eq!(map.last_below(Position(position)), Some((Position(127), ordinary(127))));
        map.insert(Position(position), ordinary(position));
        assert_eq!(map.find(Offset(position)), Some((Position(position), ordinary(position))));
        map.remove(Position(position));
        assert_eq!(address(&map.slots[1].chunk), kept);
        map.check();
    }
}

#[test]
fn short_queue_stays_in_one_chunk() {
    let mut map = map_of(0..100);
    for position in 100..1000 {
        map.insert(Position(position), ordinary(position));
        map.remove(Position(position - 100));
        assert_eq!((map.slots.len(), map.packed()), (1, 0));
    }
    map.check();
}

#[test]
fn drained_map_frees_its_memory() {
    let mut map = map_of(0..100_000);
    (0..100_000).for_each(|position| drop(map.remove(Position(position))));
    map.check();
    assert!(map.is_empty() && map.memory() < 2000, "{}", map.memory());
}

#[test]
fn chunk_is_dropped_when_its_last_message_is_read() {
    let map = map_of(0..300);
    let mut messages = map.clone().into_messages();
    let counts = |map: &MessageMap| map.slots.iter().map(|slot| slot.chunk.references()).collect::<Vec<_>>();
    assert_eq!(counts(&map), [2, 2, 2]);
    assert_eq!(messages.by_ref().take(128).last(), Some((Position(127), ordinary(127))));
    assert_eq!(counts(&map), [1, 2, 2]);
    let again = messages.clone();
    assert!(again.eq((128..300).map(|position| (Position(position), ordinary(position)))));
    drop(messages);
    assert_eq!(counts(&map), [1, 1, 1]);
}

#[test]
fn map_is_send_and_sync() {
    fn sendable<T: Send + Sync>(value: T) -> T {
        value
    }
    assert_eq!(sendable(sendable(map_of(0..3)).into_messages()).count(), 3);
}

#[test]
fn debug_prints_a_map() {
    let map = map_of([7]);
    assert_eq!(format!("{map:?}"), format!("{{Position(7): {:?}}}", ordinary(7)));
}

impl Chunk {
    fn references(&self) -> usize {
        match self {
            Self::Open(open) => Arc::strong_count(open),
            Self::Packed(packed) => packed.references(),
        }
    }
}
