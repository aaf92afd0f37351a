//! Random operations on the message map compared with a plain map, with clones that must not change.

use std::collections::BTreeMap;

use super::*;

type Model = BTreeMap<Position, Message>;

/// A map, its model, and clones of both.
struct Pair {
    random: Random,
    map: MessageMap,
    model: Model,
    clones: Vec<(MessageMap, Model)>,
    next: u64,
}

/// Offsets and times increase with positions, so that messages can be stored in any order.
fn message(random: &mut Random, position: u64) -> Message {
    let id = PayloadId { lsn: Lsn(position * 3 + random.below(3)), part: random.below(4) as u32 / 3 };
    let value_len = if random.one_in(30) { random.next() as u32 } else { 100 + random.below(100) as u32 };
    let payload = PayloadRef { id, metadata_len: 10, key_len: random.below(2) as u32 * 8, value_len };
    let message = Message::new(Offset(position * 2 + position % 3 / 2), Timestamp(position / 3 * 7), payload, None);
    if random.one_in(25) { with_fields(&message, "key") } else { message }
}

impl Pair {
    fn new(seed: u64) -> Self {
        let (map, model) = (MessageMap::default(), Model::new());
        Self { random: Random(seed), map, model, clones: Vec::new(), next: 0 }
    }

    /// A position up to a little past the end.
    fn position(&mut self) -> Position {
        let first = self.model.keys().next().map_or(0, |first| first.0.saturating_sub(5));
        Position(first + self.random.below(self.next + 10 - first))
    }

    fn insert(&mut self, position: u64) {
        let message = message(&mut self.random, position);
        let position = Position(position);
        assert_eq!(self.map.insert(position, message.clone()), self.model.insert(position, message));
    }

    fn remove(&mut self, position: Position) {
        assert_eq!(self.map.remove(position), self.model.remove(&position));
    }

    fn append(&mut self) {
        for _ in 0..self.random.below(400) {
            if self.random.one_in(100) {
                self.next += self.random.below(300);
            }
            self.insert(self.next);
            self.next += 1;
        }
    }

    /// Removes from the front, not quite in order.
    fn ack(&mut self) {
        let window = 1 + self.random.below(30) as usize;
        for _ in 0..self.random.below(300) {
            let nth = self.random.below(window as u64) as usize;
            let Some(position) = self.model.keys().nth(nth).or(self.model.keys().next()).copied() else { return };
            self.remove(position);
        }
    }

    fn change(&mut self) {
        let position = self.position();
        let kind = self.random.below(4);
        let change = |message: &mut Message| match kind {
            0 => message.payload.id.lsn.0 += 1_000_000,
            1 => *message = with_fields(message, "changed"),
            2 => message.payload.value_len /= 2,
            _ => message.flags.has_deadline = true,
        };
        self.map.change(position, change);
        if let Some(message) = self.model.get_mut(&position) {
            change(message);
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=4 => self.append(),
            5..=8 => self.ack(),
            9 => (0..self.random.below(100)).for_each(|_| {
                let position = self.position();
                self.remove(position);
            }),
            10 => {
                let (start, every) = (self.position().0, 2 + self.random.below(60));
                let thinned = (start..start + 600).filter(|position| position % every != 0);
                thinned.for_each(|position| self.remove(Position(position)));
            }
            11 => {
                let end = self.position();
                self.map.remove_below(end);
                self.model = self.model.split_off(&end);
            }
            12 | 13 => {
                let (start, end) = (self.position(), self.position());
                self.map.remove_range(start, end);
                self.model.retain(|position, _| !(start <= *position && *position < end));
            }
            14 | 15 => (0..self.random.below(20)).for_each(|_| self.change()),
            16 => (0..self.random.below(50)).for_each(|_| {
                let position = self.position().0.min(self.next.saturating_sub(1));
                self.insert(position);
            }),
            17 => self.clones.push((self.map.clone(), self.model.clone())),
            18 if !self.clones.is_empty() => {
                let nth = self.random.below(self.clones.len() as u64) as usize;
                std::mem::swap(&mut self.map, &mut self.clones[nth].0);
                std::mem::swap(&mut self.model, &mut self.clones[nth].1);
            }
            19 if !self.clones.is_empty() => {
                let nth = self.random.below(self.clones.len() as u64) as usize;
                let (map, model) = self.clones.swap_remove(nth);
                compare(&map, &model);
                let messages = map.into_messages();
                assert!(messages.clone().eq(model.clone()) && messages.eq(model));
            }
            _ => {}
        }
        self.map.check();
    }

    /// Compares every query about one position.
    fn probe(&self, position: Position) {
        let (map, model) = (&self.map, &self.model);
        let owned = |(position, message): (&Position, &Message)| (*position, message.clone());
        assert_eq!(map.get(position).as_ref(), model.get(&position));
        assert_eq!(map.contains(position), model.contains_key(&position));
        assert_eq!(map.last_below(position), model.range(..position).next_back().map(owned));
        assert!(map.range_from(position).take(300).eq(model.range(position..).take(300).map(owned)));
        let offset = Offset(position.0 * 2);
        let exact = model.values().find(|message| message.offset == offset);
        assert_eq!(map.find(offset).map(|(_, message)| message).as_ref(), exact);
        let from_offset = model.iter().find(|(_, message)| message.offset >= offset).map(owned);
        assert_eq!(map.first_from_offset(offset), from_offset);
        let time = Timestamp(position.0 / 3 * 7 + position.0 % 2);
        let from_time = model.iter().find(|(_, message)| message.produced_at >= time).map(owned);
        assert_eq!(map.first_from_time(time), from_time);
        self.probe_sums(position);
    }

    /// Compares the sums over the messages from `start` on without a gap.
    fn probe_sums(&self, start: Position) {
        let run = (start.0..).zip(self.model.range(start..)).take_while(|(position, (at, _))| *position == at.0);
        let (mut bytes, mut retained) = (0, 0);
        for (position, (_, message)) in run {
            let (before, end) = (bytes, Position(position + 1));
            bytes += message.payload.payload_len();
            retained += message.retained_bytes();
            let is_edge = position % 40 == 0 || !self.model.contains_key(&end);
            if is_edge {
                let load = Load { messages: end.0 - start.0, bytes };
                assert_eq!(self.map.sums(start, end), (load, retained), "{start} to {end}");
                assert_eq!(self.map.first_with_bytes(start, bytes), Some(Position(position)));
                assert_eq!(self.map.first_with_bytes(start, before + 1), Some(Position(position)));
            }
            if !self.model.contains_key(&end) {
                let beyond = self.map.first_with_bytes(start, bytes + 1);
                assert!(beyond.is_none_or(|beyond| beyond >= end), "{beyond:?} is before {end}");
            }
        }
    }
}

fn compare(map: &MessageMap, model: &Model) {
    map.check();
    assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
    assert!(map.iter().eq(model.iter().map(|(position, message)| (*position, message.clone()))));
    assert_eq!(map.last(), model.last_key_value().map(|(position, message)| (*position, message.clone())));
    let mut again = MessageMap::default();
    model.iter().for_each(|(position, message)| drop(again.insert(*position, message.clone())));
    assert_eq!(*map, again);
    if let Some((position, _)) = map.last() {
        again.change(position, |message| message.payload.id.part += 1);
        assert_ne!(*map, again);
    }
}

#[test]
fn map_equals_btree_map_and_clones_do_not_change() {
    for seed in 1..=60_u64 {
        let mut pair = Pair::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..150 {
            pair.step();
            let position = pair.position();
            pair.probe(position);
        }
        compare(&pair.map, &pair.model);
        // Positions at the edges of chunks, where a search could enter the wrong chunk.
        let bounds = |slot: &Slot| {
            let last = slot.chunk.last().map_or(slot.first, |last| slot.chunk.entry(last).0);
            [slot.first.0, last.0]
        };
        let edges: Vec<_> = pair.map.slots.iter().flat_map(bounds).collect();
        for edge in edges.into_iter().take(40) {
            (edge.saturating_sub(1)..=edge + 1).for_each(|position| pair.probe(Position(position)));
        }
        for (map, model) in &pair.clones {
            compare(map, model);
        }
    }
}

#[test]
fn messages_in_no_order_never_panic() {
    let mut random = Random(11);
    for _ in 0..30 {
        let (mut map, mut model) = (MessageMap::default(), Model::new());
        for _ in 0..1000 {
            let position = match random.below(4) {
                0 => Position(u64::MAX - random.below(500)),
                1 => Position(random.next()),
                _ => Position(random.below(500)),
            };
            let id = PayloadId { lsn: Lsn(random.next()), part: random.next() as u32 };
            let (metadata_len, key_len, value_len) = (random.next() as u32, random.next() as u32, random.next() as u32);
            let payload = PayloadRef { id, metadata_len, key_len, value_len };
            let message = Message::new(Offset(random.next()), Timestamp(random.next()), payload, None);
            let (start, end) = (Position(random.below(600)), Position(random.next() >> random.below(64)));
            match random.below(40) {
                0 => {
                    map.remove_range(start, end);
                    model.retain(|position, _| !(start <= *position && *position < end));
                }
                1..=3 => assert_eq!(map.remove(position), model.remove(&position)),
                _ => assert_eq!(map.insert(position, message.clone()), model.insert(position, message)),
            }
            map.check();
            let _ =
                (map.find(Offset(end.0)), map.first_from_offset(Offset(end.0)), map.first_from_time(Timestamp(end.0)));
            let _ = (map.sums(start, end), map.sums(end, start), map.first_with_bytes(start, end.0));
            assert_eq!(map.get(position).as_ref(), model.get(&position));
        }
        assert!(map.into_messages().eq(model));
    }
}
