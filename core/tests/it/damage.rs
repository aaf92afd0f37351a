//! Damage: what was acknowledged is given back or its loss is said aloud; what never was is cut.

use super::rig::*;
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, MemoryStorage, Storage};
use driftq_core::pipeline::OpenError;
use driftq_core::record::{Event, GroupStart, Image, Record, Retention};
use driftq_core::state::apply::Mode;
use driftq_core::state::{Contradiction, State};
use driftq_core::types::*;
use driftq_core::{Body, Pipeline};

/// A disk with one acknowledged message in its only segment, marked as synced or not.
fn with_message(marked: bool) -> (MemoryStorage, Vec<u8>) {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "precious");
    if marked {
        rig.pass(100);
    }
    let bytes = rig.storage.bytes(FileId::Segment(1)).expect("the first segment").to_vec();
    (rig.storage.crash(), bytes)
}

/// What a start finds: the values kept, or nothing where it refuses.
fn start(storage: MemoryStorage) -> Result<Vec<String>, OpenError> {
    let mut probe = storage.clone();
    Pipeline::open(&mut probe, small_config(), None, START, NoFaults)?;
    let mut rig = Rig::open(storage, small_config(), START, NoFaults);
    Ok(if rig.topics().is_empty() { vec![] } else { rig.kept("t") })
}

fn value_at(bytes: &[u8]) -> usize {
    bytes.windows(8).position(|window| window == b"precious").expect("the message is in the segment")
}

#[test]
fn damage_to_what_a_mark_proves_synced_stops_the_start_and_names_the_file() {
    let (mut storage, bytes) = with_message(true);
    assert_eq!(start(storage.clone()), Ok(vec!["precious".to_owned()]));
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip(value_at(&bytes) * 8);
    let before = storage.list().unwrap();
    let refused = Pipeline::open(&mut storage, small_config(), None, START, NoFaults).map(drop);
    let Err(OpenError::Recovery(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("wal-00000000000000000001.seg"), "{error}");
    assert_eq!(storage.list().unwrap(), before, "and nothing is cut or removed");
}

#[test]
fn damage_that_nothing_proves_synced_is_a_torn_tail_and_is_cut() {
    let (mut storage, bytes) = with_message(false);
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip(value_at(&bytes) * 8);
    assert_eq!(start(storage.clone()), Ok(vec![]));
    let mut rig = Rig::open(storage, small_config(), START, NoFaults);
    assert_eq!(rig.produce("t", "anew"), Offset(0), "and the log goes on behind the cut");
    rig.restart(Restart::Crash);
    assert_eq!(rig.kept("t"), ["anew"]);
}

#[test]
fn a_file_cut_anywhere_gives_back_a_beginning_of_what_was_or_refuses() {
    let (storage, bytes) = with_message(true);
    let mut outcomes = [0; 3];
    for len in (0..bytes.len()).rev().take(300) {
        let mut storage = storage.clone();
        storage.bytes_mut(FileId::Segment(1)).unwrap().truncate(len);
        match start(storage) {
            Ok(values) if values.is_empty() => outcomes[0] += 1,
            Ok(values) => {
                assert_eq!(values, ["precious"], "cut at {len}");
                outcomes[1] += 1;
            }
            Err(_) => outcomes[2] += 1,
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// Applies `events` to an empty state, each of which but the last must be taken.
fn last_applied(events: Vec<Event>) -> Result<(), Contradiction> {
    let mut state = State::default();
    let mut result = Ok(());
    for event in events {
        assert_eq!(result, Ok(()));
        result = state.apply(&Record { at: Timestamp::default(), event }, Mode::Replay, &NoFaults);
    }
    result
}

#[test]
fn a_record_whose_number_is_not_the_next_is_a_contradiction() {
    let retention = Retention::default();
    let created = |id, partitions| Event::TopicCreated { topic: TopicId(id), name: topic("t"), partitions, retention };
    let grouped = |id| Event::GroupCreated {
        topic: TopicId(0),
        group: GroupId(id),
        name: group("g"),
        start: GroupStart::Earliest,
    };
    let produced = |offset| {
        let body = Body::pack(&Metadata::default(), b"", b"v");
        Event::Produced { topic: TopicId(0), partition: PartitionId(0), offset: Offset(offset), body, gate: None }
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
fn a_piece_of_a_snapshot_with_a_number_that_counting_never_reaches_is_a_contradiction() {
    let (clock, boot, next_topic) = (START, Boot(1), TopicId(2));
    let origin = |boot, next_topic| Event::Restored(Image::Origin { clock, boot, next_topic });
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
