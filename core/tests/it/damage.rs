//! Damage: recovery returns every acknowledged record or refuses; an unacknowledged tail is cut.

use super::test_broker::*;
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, HEADER_BYTES, MemoryStorage, RecoveryError, SegmentHeader, Storage};
use driftq_core::pipeline::OpenError;
use driftq_core::record::{Event, Image, Record};
use driftq_core::state::{Contradiction, State};
use driftq_core::types::{EffectNamespace, GroupStart, Retention, *};
use driftq_core::{Body, OpenOptions};

/// A storage with one acknowledged message in its only segment, with or without a synced mark behind it.
fn with_message(marked: bool) -> (MemoryStorage, Vec<u8>) {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "precious");
    if marked {
        broker.advance(100);
    }
    let bytes = broker.storage.bytes(FileId::Segment(1)).expect("the first segment").to_vec();
    (broker.storage.crash(), bytes)
}

/// The storage as an earlier version wrote it, without the sizes of segments in their headers.
fn without_sizes(mut storage: MemoryStorage) -> MemoryStorage {
    for info in storage.list().expect("lists") {
        let header = storage.bytes(info.file).and_then(|bytes| SegmentHeader::decode(bytes).ok());
        if let Some(header) = header {
            let encoded = SegmentHeader { capacity: 0, ..header }.encode();
            storage.bytes_mut(info.file).expect("is there").overwrite(0, &encoded);
        }
    }
    storage
}

/// Starts on the storage and returns the stored values.
fn start(storage: MemoryStorage) -> Result<Vec<String>, OpenError> {
    let mut probe = storage.clone();
    OpenOptions::new().config(small_config()).open(&mut probe, START)?;
    let mut broker = TestBroker::open(storage, small_config(), START, NoFaults);
    Ok(if broker.topics().is_empty() { vec![] } else { broker.stored_values("t") })
}

fn value_at(bytes: &[u8]) -> usize {
    bytes.windows(8).position(|window| window == b"precious").expect("the message is in the segment")
}

#[test]
fn damage_proven_synced_refuses_start_and_names_file() {
    let (mut storage, bytes) = with_message(true);
    assert_eq!(start(storage.clone()), Ok(vec!["precious".to_owned()]));
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip(value_at(&bytes) * 8);
    let before = storage.list().unwrap();
    let refused = OpenOptions::new().config(small_config()).open(&mut storage, START).map(drop);
    let Err(OpenError::Recovery(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("wal-00000000000000000001.seg"), "{error}");
    assert_eq!(storage.list().unwrap(), before, "nothing is cut or removed");
}

#[test]
fn damage_not_proven_synced_is_torn_tail_and_cut() {
    let (mut storage, bytes) = with_message(false);
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip(value_at(&bytes) * 8);
    assert_eq!(start(storage.clone()), Ok(vec![]));
    let mut broker = TestBroker::open(storage, small_config(), START, NoFaults);
    assert_eq!(broker.produce("t", "new"), Offset(0), "the log continues behind the cut");
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t"), ["new"]);
}

#[test]
fn segment_of_unknown_size_truncated_anywhere_recovers_prefix_or_refuses() {
    let (storage, bytes) = with_message(true);
    let storage = without_sizes(storage);
    let (mut cut, mut whole, mut refused) = (0, 0, 0);
    for len in (0..bytes.len()).rev().take(300) {
        let mut storage = storage.clone();
        storage.bytes_mut(FileId::Segment(1)).unwrap().truncate(len);
        match start(storage) {
            Ok(values) if values.is_empty() => cut += 1,
            Ok(values) => {
                assert_eq!(values, ["precious"], "cut at {len}");
                whole += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(cut > 0 && whole > 0, "{cut} cut, {whole} whole, {refused} refused");
}

#[test]
fn cleanly_closed_log_cut_anywhere_within_its_data_is_refused_as_cut() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    broker.produce("t", "precious");
    broker.pipeline.close();
    broker.run_until_idle();
    let storage = broker.storage.crash();
    let last = FileId::Segment(1);
    let whole = storage.bytes(last).expect("the last segment").len();
    assert_eq!(start(storage.clone()), Ok(vec!["precious".to_owned()]));
    for len in 1..whole {
        let mut storage = storage.clone();
        storage.bytes_mut(last).unwrap().truncate(len);
        match start(storage) {
            Err(OpenError::Recovery(RecoveryError::CutOff { file, len: found, .. })) => {
                assert_eq!((file, found), (last, len as u64));
            }
            Err(OpenError::Recovery(RecoveryError::DamagedHeader { file, .. })) => {
                assert!(file == last && len < HEADER_BYTES, "cut at {len}");
            }
            other => panic!("cut at {len}: {other:?}"),
        }
    }
}

#[test]
fn log_that_was_not_closed_and_is_cut_within_its_data_is_refused_as_cut() {
    let (storage, bytes) = with_message(true);
    for len in HEADER_BYTES..bytes.len() {
        let mut storage = storage.clone();
        storage.bytes_mut(FileId::Segment(1)).unwrap().truncate(len);
        let refused = start(storage);
        assert!(matches!(refused, Err(OpenError::Recovery(RecoveryError::CutOff { .. }))), "cut at {len}: {refused:?}");
    }
}

/// Applies `events` to an empty state and returns the result of the last; every other one must be accepted.
fn last_applied(events: Vec<Event>) -> Result<(), Contradiction> {
    let mut state = State::default();
    let mut result = Ok(());
    for event in events {
        assert_eq!(result, Ok(()));
        result = state.apply(&Record { at: Timestamp::default(), event });
    }
    result
}

#[test]
fn record_with_number_out_of_sequence_is_contradiction() {
    let retention = Retention::default();
    let created = |id, partitions| Event::TopicCreated { topic: TopicId(id), name: topic("t"), partitions, retention };
    let grouped = |id| Event::GroupCreated {
        topic: TopicId(0),
        group: GroupId(id),
        name: group("g"),
        start: GroupStart::Earliest,
        origin: GroupOrigin::Requested,
    };
    let produced = |offset| {
        let body = Body::pack(&Metadata::default(), b"", b"v");
        let (topic, partition, offset) = (TopicId(0), PartitionId(0), Offset(offset));
        Event::Produced { topic, partition, offset, body, dedupe: None, skipped: Vec::new() }
    };
    assert_eq!(last_applied(vec![created(0, 1), grouped(0), produced(0), produced(1)]), Ok(()));
    for other in [1, u32::MAX] {
        assert!(last_applied(vec![Event::Booted { boot: Boot(other.wrapping_add(1)) }]).is_err());
        assert!(last_applied(vec![created(other, 1)]).is_err());
        assert!(last_applied(vec![created(0, 1), grouped(other)]).is_err());
        assert!(last_applied(vec![created(0, 1), produced(u64::from(other))]).is_err());
    }
    let uncountable = Err(Contradiction("more partitions than a topic can have"));
    assert_eq!(last_applied(vec![created(0, u32::MAX)]), uncountable);
}

#[test]
fn purge_beyond_the_end_of_one_partition_is_contradiction() {
    let purged_to = |ends: [u64; 2]| {
        let (id, partitions, retention) = (TopicId(0), 2, Retention::default());
        let created = Event::TopicCreated { topic: id, name: topic("t"), partitions, retention };
        let (partition, offset, body) = (PartitionId(0), Offset(0), Body::pack(&Metadata::default(), b"", b"v"));
        let produced = Event::Produced { topic: id, partition, offset, body, dedupe: None, skipped: Vec::new() };
        let (ends, winner_until) = (ends.map(Position).into(), START);
        last_applied(vec![created, produced, Event::Purged { topic: id, ends, winner_until }])
    };
    assert_eq!(purged_to([1, 0]), Ok(()));
    for ends in [[1, 1], [1, 99], [2, 0]] {
        assert_eq!(purged_to(ends), Err(Contradiction("purge beyond the end of the partition")), "{ends:?}");
    }
}

#[test]
fn expiry_of_effects_without_any_is_contradiction() {
    for count in [0, 1] {
        let expired = Event::EffectsExpired { namespace: EffectNamespace::Shared, count };
        assert_eq!(last_applied(vec![expired]), Err(Contradiction("no such effect table")), "{count}");
    }
}

#[test]
fn snapshot_record_with_unreachable_number_is_contradiction() {
    let (clock, boot, next_topic) = (START, Boot(1), TopicId(2));
    let origin = |boot, next_topic| {
        Event::Restored(Image::Origin { last_lsn: Lsn(1), clock, wall_clock: WallClock::default(), boot, next_topic })
    };
    let restored = |partitions, next_offset, next_group| {
        let (topic, name, retention) = (TopicId(1), topic("t"), Retention::default());
        let (next_offset, next_group) = (Offset(next_offset), GroupId(next_group));
        Event::Restored(Image::Topic { topic, name, partitions, retention, next_offset, next_group })
    };
    let part = |next_position, last_offset| {
        Event::Restored(Image::Partition {
            topic: TopicId(1),
            partition: PartitionId(0),
            next_position: Position(next_position),
            last_offset: Some(Offset(last_offset)),
            trimmed_floor: Position(0),
            trimmed_floor_offset: None,
        })
    };
    let start = || origin(boot, next_topic);
    assert_eq!(last_applied(vec![start(), restored(1, 9, 3), part(4, 8)]), Ok(()));
    for bad in [
        vec![origin(Boot(u32::MAX), next_topic)],
        vec![origin(boot, TopicId(u32::MAX))],
        vec![start(), restored(u32::MAX, 9, 3)],
        vec![start(), restored(1, u64::MAX, 3)],
        vec![start(), restored(1, 9, u32::MAX)],
        vec![start(), restored(1, 9, 3), part(u64::MAX, 8)],
        vec![start(), restored(1, 9, 3), part(4, 9)],
    ] {
        assert!(last_applied(bad.clone()).is_err(), "{bad:?}");
    }
}

/// Restores a state from these snapshot records of one topic and validates it.
fn checked(partitions: u32, records: impl IntoIterator<Item = Image>) -> Result<(), String> {
    let (id, name, retention) = (TopicId(0), topic("t"), Retention::default());
    let origin = Image::Origin {
        last_lsn: Lsn(1),
        clock: START,
        wall_clock: WallClock::default(),
        boot: Boot(1),
        next_topic: TopicId(1),
    };
    let (next_offset, next_group) = (Offset(3), GroupId(1));
    let whole = Image::Topic { topic: id, name, partitions, retention, next_offset, next_group };
    let mut state = State::default();
    for image in [origin, whole].into_iter().chain(records) {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        state.apply(&record).expect("no record contradicts those before it");
    }
    state.check().map_err(|inconsistent| inconsistent.to_string())
}

#[test]
fn snapshot_with_group_behind_trimmed_floor_is_inconsistent() {
    let (topic, group_id, partition) = (TopicId(0), GroupId(0), PartitionId(0));
    let with_floor = |floor: u64| {
        let trimmed = Image::Partition {
            topic,
            partition,
            next_position: Position(3),
            last_offset: Some(Offset(2)),
            trimmed_floor: Position(3),
            trimmed_floor_offset: Some(Offset(2)),
        };
        let of = Image::Group {
            topic,
            group: group_id,
            name: group("g"),
            paused: false,
            skipped: 0,
            origin: GroupOrigin::Requested,
            has_acked: false,
        };
        let floor_offset = floor.checked_sub(1).map(Offset);
        let floor = Image::Floor { topic, group: group_id, partition, floor: Position(floor), floor_offset };
        checked(1, [trimmed, of, floor])
    };
    assert_eq!(with_floor(3), Ok(()));
    for floor in [0, 1, 2] {
        let inconsistent = with_floor(floor).expect_err("an unacked message is trimmed");
        assert_eq!(inconsistent, "topic t, partition 0, a trimmed message is not acked in every group");
    }
}

/// A partition whose only message has this offset and this time.
fn with_one_message(partition: u32, offset: u64, produced_at: Timestamp) -> [Image; 2] {
    let (topic, partition, offset) = (TopicId(0), PartitionId(partition), Offset(offset));
    let account = Image::Partition {
        topic,
        partition,
        next_position: Position(1),
        last_offset: Some(offset),
        trimmed_floor: Position(0),
        trimmed_floor_offset: None,
    };
    let message = Image::Message {
        topic,
        partition,
        position: Position(0),
        offset,
        produced_at,
        acked_in: 0,
        retained: false,
        visible_to: None,
        payload: PayloadRef { id: PayloadId { lsn: Lsn(1), part: 0 }, value_len: 1, ..PayloadRef::default() },
        fields: None,
    };
    [account, message]
}

#[test]
fn snapshot_with_offset_in_two_partitions_is_inconsistent() {
    let with_offsets = |offsets: [u64; 3]| {
        let partitions = offsets.into_iter().zip(0..);
        checked(3, partitions.flat_map(|(offset, partition)| with_one_message(partition, offset, START)))
    };
    assert_eq!(with_offsets([2, 0, 1]), Ok(()));
    for offsets in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        let inconsistent = with_offsets(offsets).expect_err("an offset is used twice");
        assert_eq!(inconsistent, "topic t, two partitions store a message with the same offset");
    }
}

#[test]
fn snapshot_with_message_of_any_time_up_to_the_last_record_is_consistent() {
    for produced_at in [Timestamp(0), START] {
        assert_eq!(checked(1, with_one_message(0, 2, produced_at)), Ok(()));
    }
    let inconsistent = checked(1, with_one_message(0, 2, START.after(Millis(1)))).expect_err("is newer");
    let newer = "topic t, partition 0, a message is older than the one before it, or newer than the last record";
    assert_eq!(inconsistent, newer);
}
