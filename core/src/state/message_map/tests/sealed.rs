//! Chunks as a snapshot stores them: read back exactly, and refused if they are not in order.

use super::super::sealed::{ChunkParts, MessageChunk, Piece};
use super::*;
use crate::codec::record as codec;
use crate::record::{Event, Image, Record};
use crate::types::{GroupId, PartitionId, TopicId};
use crate::wire::Malformed;

const TOPIC: TopicId = TopicId(1);
const PARTITION: PartitionId = PartitionId(2);

fn message(number: u64, random: &mut Random) -> Message {
    let fields = match random.below(9) {
        0 => Some(Arc::new(DecisionFields { identity: Some(IdentityKey::new("t", "key")), ..Default::default() })),
        1 => Some(Arc::new(DecisionFields { priority: Priority::new(7).unwrap(), ..Default::default() })),
        _ => None,
    };
    let id = PayloadId { lsn: Lsn(number + 1 + random.below(3)), part: random.below(2) as u32 };
    let lens = [random.below(3) as u32, random.below(40) as u32, random.below(300) as u32];
    let payload = PayloadRef { id, metadata_len: lens[0], key_len: lens[1], value_len: lens[2] };
    Message::new(Offset(number * 3), Timestamp(1_000 + number / 5), payload, fields)
}

/// Messages at `0..count`, of which a part is removed.
fn map(count: u64, removed_in_256: u64, random: &mut Random) -> MessageMap {
    let mut map = MessageMap::default();
    for number in 0..count {
        map.insert(Position(number), message(number, random));
    }
    for number in 0..count {
        if random.below(256) < removed_in_256 {
            map.remove(Position(number));
        }
    }
    map
}

fn acks(position: Position) -> (u32, bool) {
    ((position.0 / 100 % 3) as u32, position.0 / 100 % 3 == 2)
}

fn visible_to(position: Position) -> Option<GroupId> {
    position.0.is_multiple_of(50).then_some(GroupId(position.0 as u32))
}

/// The images that a snapshot has of a map.
fn images(map: &MessageMap) -> Vec<Image> {
    let image = |piece| match piece {
        Piece::Chunk(chunk) => {
            let of_range = |start: Position, end: Position| {
                let positions = (start.0..end.0).map(Position);
                positions.filter_map(|position| Some((position, visible_to(position)?))).collect()
            };
            Image::Chunk { topic: TOPIC, partition: PARTITION, chunk: chunk.image(acks, of_range) }
        }
        Piece::Message(position, message) => Image::Message {
            topic: TOPIC,
            partition: PARTITION,
            position,
            offset: message.offset,
            produced_at: message.produced_at,
            acked_in: acks(position).0,
            retained: acks(position).1,
            visible_to: visible_to(position),
            payload: message.payload,
            fields: message.fields().cloned(),
        },
    };
    map.clone().into_pieces().map(image).collect()
}

fn encoded(image: &Image) -> (u8, Vec<u8>) {
    let record = Record { at: Timestamp::default(), event: Event::Restored(image.clone()) };
    let mut bytes = Vec::new();
    codec::encode(&record, &mut bytes);
    (codec::kind(&record.event), bytes)
}

fn decoded(kind: u8, bytes: &[u8]) -> Result<Image, String> {
    match codec::decode(kind, codec::VERSION, bytes).map_err(|error| error.to_string())?.event {
        Event::Restored(image) => Ok(image),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn chunk_is_read_back_exactly() {
    let mut random = Random(7);
    for (count, removed) in
        [(0, 0), (7, 0), (8, 0), (128, 0), (129, 0), (1_000, 0), (1_000, 20), (1_000, 200), (5_000, 250)]
    {
        let map = map(count, removed, &mut random);
        let (mut restored, mut by_message) = (MessageMap::default(), Vec::new());
        for image in images(&map) {
            let (kind, bytes) = encoded(&image);
            let read = decoded(kind, &bytes).expect("what was encoded is decoded");
            assert_eq!(read, image);
            match &read {
                Image::Chunk { chunk, .. } => {
                    restored.append_chunk(chunk).expect("chunks are in order");
                    let stretches: Vec<_> = chunk.stretches().flat_map(|(start, end)| start.0..end.0).collect();
                    let sums = map.sums_one_by_one(&stretches);
                    assert_eq!(chunk.sums(), sums);
                    let acked = chunk
                        .acked_stretches()
                        .flat_map(|(start, end, run)| (start.0..end.0).map(move |at| (at, run.acked_in, run.retained)));
                    let expected = stretches.iter().map(|at| (*at, acks(Position(*at)).0, acks(Position(*at)).1));
                    assert!(acked.eq(expected));
                    let payloads = chunk.payloads().map(|payload| payload.encoded_len().max(1)).sum::<u64>();
                    assert_eq!(chunk.payload_bytes(), payloads);
                }
                Image::Message { position, offset, produced_at, payload, fields, .. } => {
                    restored.insert(*position, Message::new(*offset, *produced_at, *payload, fields.clone()));
                }
                _ => unreachable!("an image of a message"),
            }
            by_message.extend(read.by_message());
        }
        assert_eq!(restored, map);
        restored.check();
        assert_eq!(by_message.len(), map.len());
        for (image, (at, stored)) in by_message.iter().zip(map.iter()) {
            let Image::Message { position, acked_in, retained, visible_to: group, payload, .. } = image else {
                panic!()
            };
            assert_eq!((*position, *payload), (at, stored.payload));
            assert_eq!(((*acked_in, *retained), *group), (acks(at), visible_to(at)));
        }
        let mut offsets = Vec::new();
        restored.offsets().for_each(|some| some.for_each(|offset| offsets.push(offset)));
        assert!(offsets.into_iter().eq(map.iter().map(|(_, message)| message.offset)));
        let stretches = restored.stretches().flat_map(|stretch| stretch.start.0..stretch.end.0);
        assert!(stretches.eq(map.iter().map(|(position, _)| position.0)));
        restored.insert(Position(count), message(count, &mut random));
        restored.check();
    }
}

impl MessageMap {
    fn sums_one_by_one(&self, positions: &[u64]) -> (Load, u64) {
        let messages = positions.iter().map(|position| self.get(Position(*position)).expect("it is stored"));
        messages.fold((Load::default(), 0), |(load, memory), message| {
            let bytes = load.bytes + message.payload.payload_len();
            (Load { messages: load.messages + 1, bytes }, memory + message.retained_bytes())
        })
    }
}

#[test]
fn ordinary_messages_take_less_than_four_bytes() {
    let mut map = MessageMap::default();
    for number in 0..128_000 {
        let id = PayloadId { lsn: Lsn(number + 1), part: 0 };
        let payload = PayloadRef { id, metadata_len: 0, key_len: 8, value_len: 200 };
        map.insert(Position(number), Message::new(Offset(number), Timestamp(number / 5), payload, None));
    }
    let bytes: usize = images(&map).iter().map(|image| encoded(image).1.len()).sum();
    assert!(bytes < 4 * 128_000, "{bytes}");
}

#[test]
fn short_chunk_at_the_end_is_filled_after_a_restart() {
    let mut random = Random(9);
    let mut map = map(20, 0, &mut random);
    for round in 0..30 {
        let mut restored = MessageMap::default();
        for image in images(&map) {
            let Image::Chunk { chunk, .. } = image else { panic!("twenty messages are a chunk") };
            restored.append_chunk(&chunk).unwrap();
        }
        assert_eq!(restored, map);
        for number in 20 + 10 * round..30 + 10 * round {
            restored.insert(Position(number), message(number, &mut random));
            map.insert(Position(number), restored.get(Position(number)).unwrap());
        }
        restored.check();
        map = restored;
    }
    assert!(map.chunk_lens().len() <= 5, "{:?}", map.chunk_lens());
}

#[test]
fn chunk_that_is_not_past_the_last_message_is_refused() {
    let mut random = Random(3);
    let chunks: Vec<_> = images(&map(300, 0, &mut random)).into_iter().collect();
    let Image::Chunk { chunk, .. } = &chunks[0] else { panic!() };
    let mut map = MessageMap::default();
    map.append_chunk(chunk).unwrap();
    assert_eq!(map.append_chunk(chunk), None);
    assert_eq!(map.len(), 128);
    map.check();
}

#[test]
fn parts_that_are_no_chunk_are_refused() {
    let mut random = Random(5);
    let Some(Image::Chunk { chunk, .. }) = images(&map(100, 30, &mut random)).into_iter().next() else { panic!() };
    type Change = fn(&mut ChunkParts<'_>, &mut Vec<u8>);
    let changes: [(&str, Change); 9] = [
        ("a chunk ends early", |_, columns| columns.truncate(50)),
        ("a chunk has no rows, or too many", |_, columns| columns[0] = 0),
        ("the rows of a chunk have another length", |_, columns| columns.push(0)),
        ("a column of a chunk is too wide", |_, columns| columns[2] = 9),
        ("a chunk has no messages, or more than rows", |parts, _| parts.live = Some(0)),
        ("no message of a chunk is removed", |parts, columns| parts.live = Some((1 << columns[0]) - 1)),
        ("the ack counts of a chunk are not those of its messages", |parts, _| parts.acks[0].messages += 1),
        ("a group that sees a row that is not there", |parts, _| parts.visible_to.push((200, GroupId(0)))),
        ("decision fields of a row that is not there", |parts, _| parts.fields.reverse()),
    ];
    for (reason, change) in changes {
        let mut parts = chunk.parts();
        let mut columns = parts.columns.to_vec();
        change(&mut parts, &mut columns);
        let parts = ChunkParts { columns: &columns, ..parts };
        assert_eq!(MessageChunk::decode(parts).map(|_| ()), Err(Malformed(reason)));
    }
}

#[test]
fn any_change_of_a_byte_is_refused_or_read_exactly() {
    let mut random = Random(11);
    for removed in [0, 60] {
        for image in images(&map(150, removed, &mut random)) {
            let (kind, bytes) = encoded(&image);
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << random.below(8);
                if let Ok(read) = decoded(kind, &bytes) {
                    assert_eq!(encoded(&read), (kind, bytes));
                    let mut map = MessageMap::default();
                    if let Image::Chunk { chunk, .. } = &read {
                        map.append_chunk(chunk).expect("the map is empty");
                        assert_eq!(map.iter().count(), chunk.len());
                        assert!(map.stretches().all(|stretch| stretch.is_in_order));
                        let found = |(position, message): (Position, Message)| map.get(position) == Some(message);
                        assert!(map.iter().all(found), "every message is found by its position");
                    }
                }
            }
        }
    }
}
