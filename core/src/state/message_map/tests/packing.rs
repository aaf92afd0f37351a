//! Packed messages equal those that were packed, whatever their values, and take few bytes.

use super::super::packed::Packed;
use super::*;

impl Packed {
    pub(super) fn address(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    pub(super) fn references(&self) -> usize {
        Arc::strong_count(self.bytes())
    }
}

/// Packs the messages, compares each row, and returns the bytes.
fn packed_bytes(entries: &[(Position, Message)]) -> u64 {
    let packed = Packed::new(entries);
    assert_eq!(packed.rows(), entries.len());
    for (row, (position, message)) in entries.iter().enumerate() {
        assert_eq!(packed.entry(row), (*position, message.clone()), "row {row}");
        assert_eq!(packed.position(row), *position);
        assert_eq!((packed.offset(row), packed.produced_at(row)), (message.offset, message.produced_at));
        assert_eq!(packed.row_from(*position), row);
        assert_eq!(packed.row_from(Position(position.0.saturating_add(1))), row + usize::from(position.0 < u64::MAX));
    }
    assert_eq!(packed.row_from(Position(0)), 0);
    packed.heap_bytes()
}

fn entry(position: u64, [offset, time, lsn]: [u64; 3], [part, metadata, key, value]: [u32; 4]) -> (Position, Message) {
    let id = PayloadId { lsn: Lsn(lsn), part };
    let payload = PayloadRef { id, metadata_len: metadata, key_len: key, value_len: value };
    (Position(position), Message::new(Offset(offset), Timestamp(time), payload, None))
}

/// A number of any magnitude.
fn any(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - random.below(300),
        3 => (1 << random.below(64)) - 1,
        _ => random.next() >> random.below(64),
    }
}

#[test]
fn extreme_values_are_packed_exactly() {
    let max = (u64::MAX, u32::MAX);
    packed_bytes(&[entry(0, [0; 3], [0; 4])]);
    packed_bytes(&[entry(max.0, [max.0; 3], [max.1; 4])]);
    packed_bytes(&[entry(0, [0; 3], [0; 4]), entry(max.0, [max.0; 3], [max.1; 4])]);
    packed_bytes(&[entry(0, [max.0; 3], [max.1; 4]), entry(max.0, [0; 3], [0; 4])]);
    packed_bytes(&[
        entry(0, [0, max.0, 1], [0, max.1, 0, 1]),
        entry(1, [1 << 63, 0, max.0], [max.1, 0, 1, 0]),
        entry(max.0 - 1, [(1 << 63) - 1, 1 << 63, 0], [1, 0, max.1, 0]),
        entry(max.0, [max.0, max.0, max.0], [0, 0, 0, max.1]),
    ]);
}

#[test]
fn any_values_are_packed_exactly() {
    let mut random = Random(7);
    for _ in 0..3000 {
        let count = 1 + random.below(CHUNK as u64);
        let mut positions: Vec<_> = (0..count).map(|_| any(&mut random)).collect();
        if random.one_in(2) {
            let first = positions[0].min(u64::MAX - 500);
            positions = (first..first + count).collect();
        }
        positions.sort_unstable();
        positions.dedup();
        let entries: Vec<_> = positions
            .iter()
            .map(|position| {
                let numbers = std::array::from_fn(|_| any(&mut random));
                let lengths = std::array::from_fn(|_| any(&mut random) as u32);
                let (position, message) = entry(*position, numbers, lengths);
                let is_special = random.one_in(10);
                (position, if is_special { with_fields(&message, "key") } else { message })
            })
            .collect();
        packed_bytes(&entries);
    }
}

#[test]
fn regular_traffic_takes_few_bytes() {
    let chunk = |message: &dyn Fn(u64) -> (Position, Message)| {
        let entries: Vec<_> = (1000..1000 + CHUNK as u64).map(message).collect();
        packed_bytes(&entries) - ARC_BYTES
    };
    let head = 98;
    let constant = chunk(&|at| entry(at, [at * 8, 5, 1 + at * 2], [0, 10, 8, 200]));
    assert_eq!(constant, head, "lines need no rows");
    let batch = chunk(&|at| entry(at, [at, 5, 77], [at as u32 - 1000, 10, 8, 200]));
    assert_eq!(batch, head + 128, "one record with all messages: its parts");
    let mut random = Random(3);
    let jitter = |random: &mut Random| random.below(8);
    let random = std::cell::RefCell::new(&mut random);
    let usual = chunk(&|at| {
        let random = &mut **random.borrow_mut();
        let numbers = [at * 4 + jitter(random) % 4, at / 3, at * 5 + jitter(random)];
        entry(at, numbers, [0, 10, 8, 150 + random.below(100) as u32])
    });
    assert_eq!(usual, head + 4 * 128, "offsets among four partitions, time, LSN and value length");
}

#[test]
fn flags_without_fields_are_kept() {
    let flags = MessageFlags { priority: Priority::new(3).unwrap(), ..MessageFlags::default() };
    let mut map = map_of(0..300);
    map.change(Position(5), |message| message.flags = flags);
    map.change(Position(200), |message| message.flags.has_delay = true);
    map.check();
    assert_eq!(map.packed(), 1);
    assert_eq!(map.get(Position(5)).unwrap().flags, flags);
    assert_eq!(map.get(Position(6)), Some(ordinary(6)));
}

#[test]
fn messages_with_fields_are_packed_and_counted() {
    let mut map = MessageMap::default();
    let message = |position: u64| match position % 10 {
        0 => with_fields(&ordinary(position), &format!("key {position}")),
        _ => ordinary(position),
    };
    (0..1000).for_each(|position| drop(map.insert(Position(position), message(position))));
    map.check();
    assert_eq!((map.packed(), map.len()), (7, 1000));
    assert!(map.iter().eq((0..1000).map(|position| (Position(position), message(position)))));
    let fields = fields_bytes(message(0).fields());
    assert!(fields > size_of::<DecisionFields>() as u64);
    assert!(map.memory() > map_of(0..1000).memory() + 100 * fields);
    map.remove_below(Position(990));
    map.check();
    (991..1000).for_each(|position| drop(map.remove(Position(position))));
    assert_eq!(map.iter().collect::<Vec<_>>(), [(Position(990), message(990))]);
}
