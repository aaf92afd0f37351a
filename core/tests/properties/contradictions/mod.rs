//! Every contradiction that recovery checks for, forged into the scenario's snapshot or log, is refused with its own
//! message.

use driftq_core::log::RecoveryError;
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Image, Record, RunImage};
use driftq_core::types::*;

use super::forged::{snapshot_of, with_log, with_snapshot};
use super::scenario::{ReadLog, scenario_log, without_snapshots};

/// Changes the event and returns true if it matches.
type Change = fn(&mut Event) -> bool;

/// Whether an image is of some kind.
type Kind = fn(&Image) -> bool;

/// A [`Change`] of events that match a pattern.
macro_rules! change {
    ($pattern:pat $(if $guard:expr)? => $change:expr) => {
        |event: &mut Event| match event {
            $pattern $(if $guard)? => {
                $change;
                true
            }
            _ => false,
        }
    };
}

/// A [`Change`] of snapshot images that match a pattern.
macro_rules! image {
    ($pattern:pat $(if $guard:expr)? => $change:expr) => {
        change!(Event::Restored($pattern) $(if $guard)? => $change)
    };
}

// After the macros, which it uses.
mod access;
mod effects;

fn make(records: &mut [Record], change: Change) {
    assert!(records.iter_mut().any(|record| change(&mut record.event)), "no event matches");
}

/// The reason for which recovery refuses the scenario with changed snapshot images.
fn refusal_of_snapshot(change: impl FnOnce(&mut Vec<Record>)) -> String {
    let storage = scenario_log();
    let (head, mut images) = snapshot_of(&storage).expect("has a snapshot");
    change(&mut images);
    match inspect(&mut with_snapshot(&storage, &head, &images), None) {
        Err(RecoveryError::Malformed { reason, .. } | RecoveryError::Contradictory { reason, .. }) => reason.reason,
        other => panic!("{other:?}"),
    }
}

fn refusal_of_log(change: impl FnOnce(&mut Vec<Record>)) -> String {
    let mut records =
        ReadLog::from(&without_snapshots(&scenario_log())).replayed.into_iter().map(|(_, record, _)| record).collect();
    change(&mut records);
    match inspect(&mut with_log(&records), None) {
        Err(RecoveryError::Malformed { reason, .. }) => reason.reason,
        other => panic!("{other:?}"),
    }
}

const ORDERS: TopicId = TopicId(0);
const AUDIT: TopicId = TopicId(1);
const DEAD: TopicId = TopicId(3);
const STEPS: TopicId = TopicId(4);
const FIRST: PartitionId = PartitionId(0);
const SECOND: PartitionId = PartitionId(1);

#[test]
fn unchanged_scenario_is_accepted() {
    let storage = scenario_log();
    let (head, images) = snapshot_of(&storage).expect("has a snapshot");
    assert!(inspect(&mut with_snapshot(&storage, &head, &images), None).is_ok());
    let records: Vec<_> = ReadLog::from(&without_snapshots(&storage)).replayed.into_iter().map(|(_, r, _)| r).collect();
    assert!(inspect(&mut with_log(&records), None).is_ok());
}

#[test]
fn snapshot_record_contradicting_others_is_named() {
    use Image::*;
    let cases: [(&str, Change); 21] = [
        (
            "the trimmed floor has no offset",
            image!(Partition { topic: DEAD, trimmed_floor_offset, .. } => *trimmed_floor_offset = None),
        ),
        (
            "a position is neither stored nor trimmed",
            image!(Partition { topic: AUDIT, next_position, .. } => *next_position = Position(4)),
        ),
        (
            "the newest offset is not the offset of the last position",
            image!(Partition { topic: AUDIT, last_offset, .. } => *last_offset = Some(Offset(1))),
        ),
        (
            "an offset is not assigned yet",
            image!(Message { topic: AUDIT, position: Position(1), offset, .. } => *offset = Offset(u64::MAX)),
        ),
        (
            "an offset is not assigned yet",
            image!(Message { topic: AUDIT, position: Position(1), offset, .. } => *offset = Offset(3)),
        ),
        (
            "offsets do not increase with positions",
            image!(Message { topic: AUDIT, position: Position(1), offset, .. } => *offset = Offset(0)),
        ),
        ("offsets do not increase with positions", image!(TrimmedRun { run, .. } => run.last_offset = Offset(0))),
        (
            "offsets do not increase with positions",
            image!(TrimmedRun { topic: STEPS, run, .. } => run.last_offset = Offset(3)),
        ),
        (
            "a message is older than the one before it, or newer than the last record",
            image!(Message { topic: ORDERS, position: Position(7), produced_at, .. } => *produced_at = Timestamp(5)),
        ),
        (
            "a message is older than the one before it, or newer than the last record",
            image!(Message { topic: AUDIT, position: Position(2), produced_at, .. } => produced_at.0 += 1),
        ),
        (
            "a message's ack count is wrong",
            image!(Message { topic: ORDERS, position: Position(5), acked_in, .. } => *acked_in = 0),
        ),
        (
            "a message is acked in every group but not retained, or the reverse",
            image!(Message { topic: ORDERS, position: Position(5), retained, .. } => *retained = true),
        ),
        (
            "a message is acked in every group but not retained, or the reverse",
            image!(Message { topic: AUDIT, position: Position(0), retained, .. } => *retained = false),
        ),
        (
            "a message is visible to a group that is not created yet",
            image!(Message { topic: ORDERS, position: Position(6), visible_to, .. } => *visible_to = Some(GroupId(3))),
        ),
        (
            "a message that was not redriven is visible to one group only",
            image!(Message { topic: ORDERS, position: Position(5), visible_to, .. } => *visible_to = Some(GroupId(1))),
        ),
        (
            "a message visible to one group only is not acked in the others",
            image!(Message { topic: ORDERS, position: Position(6), visible_to, .. } => *visible_to = Some(GroupId(1))),
        ),
        ("the floor has no offset", image!(Floor { topic: AUDIT, floor_offset, .. } => *floor_offset = None)),
        (
            "the offset of a run is not the offset of its last message",
            image!(Floor { topic: AUDIT, floor_offset, .. } => *floor_offset = Some(Offset(0))),
        ),
        (
            "the offset of a run is not the offset of its last message",
            image!(AckedRun { topic: ORDERS, run, .. } => run.last_offset = Offset(1)),
        ),
        (
            "a lease token belongs to a later boot",
            image!(DeliveryState { delivery, .. } => delivery.token.boot = Boot(2)),
        ),
        ("a message has more failures than attempts", image!(DeliveryState { delivery, .. } => delivery.failures = 3)),
    ];
    for (phrase, change) in cases {
        let refusal = refusal_of_snapshot(|images| make(images, change));
        assert!(refusal.ends_with(phrase), "{refusal:?} for {phrase:?}");
        assert!(refusal.starts_with("topic "), "{refusal}");
    }
}

#[test]
fn snapshot_record_impossible_after_earlier_ones_is_named() {
    use Image::*;
    let cases: [(&str, Change); 12] = [
        ("topic id not assigned yet", image!(Topic { topic: id @ DEAD, .. } => *id = TopicId(99))),
        ("topic id not assigned yet", image!(Topic { topic: id @ DEAD, .. } => *id = TopicId(8))),
        (
            "trimmed beyond the end of the partition",
            image!(Partition { topic: DEAD, trimmed_floor, .. } => *trimmed_floor = Position(3)),
        ),
        ("trimmed beyond the end of the partition", image!(TrimmedRun { run, .. } => run.end = Position(9))),
        (
            "offset not assigned yet",
            image!(Partition { topic: AUDIT, last_offset, .. } => *last_offset = Some(Offset(3))),
        ),
        (
            "message at a trimmed or unassigned position",
            image!(Message { topic: ORDERS, position, .. } => *position = Position(1)),
        ),
        (
            "message at a trimmed or unassigned position",
            image!(Message { topic: AUDIT, position: last @ Position(2), .. } => *last = Position(3)),
        ),
        ("message acked in more groups than were ever created", image!(Message { acked_in, .. } => *acked_in = 4)),
        ("floor beyond the end of the partition", image!(Floor { topic: AUDIT, floor, .. } => *floor = Position(4))),
        ("acked beyond the end of the partition", image!(AckedRun { run, .. } => run.end = Position(9))),
        (
            "run overlaps or touches an earlier run",
            image!(AckedRun { topic: ORDERS, run, .. } if run.start == Position(4) => run.start = Position(2)),
        ),
        (
            "delivery state of a message that is not stored or is acked",
            image!(DeliveryState { delivery, .. } => delivery.offset = Offset(2)),
        ),
    ];
    for (phrase, change) in cases {
        let refusal = refusal_of_snapshot(|images| make(images, change));
        assert_eq!(refusal, format!("record contradicts the state: {phrase}"));
    }
    let twice_begun = refusal_of_snapshot(|images| images.push(images[0].clone()));
    assert_eq!(twice_begun, "record contradicts the state: origin of a snapshot is not its first image");
}

#[test]
fn snapshot_record_missing_or_repeated_is_named() {
    let drop_run = |images: &mut Vec<Record>| {
        let run = |record: &Record| matches!(record.event, Event::Restored(Image::AckedRun { .. }));
        drop(images.remove(images.iter().position(run).expect("has a run")));
    };
    let refusal = refusal_of_snapshot(drop_run);
    assert_eq!(refusal, "topic orders, partition 0, a trimmed message is not acked in every group");
    assert_eq!(refusal_of_snapshot(Vec::clear), "the snapshot has no origin");

    let twice = |of: Kind| {
        move |images: &mut Vec<Record>| {
            let of = |record: &Record| matches!(&record.event, Event::Restored(image) if of(image));
            let at = images.iter().position(of).expect("no image matches");
            images.push(images[at].clone());
        }
    };
    let cases: [(&str, Kind); 10] = [
        ("two images of one partition", |image| matches!(image, Image::Partition { .. })),
        ("two messages at one position", |image| matches!(image, Image::Message { .. })),
        ("group exists, or its id is not assigned yet", |image| matches!(image, Image::Group { .. })),
        ("two floors of one group in one partition", |image| matches!(image, Image::Floor { .. })),
        ("run overlaps or touches an earlier run", |image| matches!(image, Image::AckedRun { .. })),
        ("two delivery states of one message", |image| matches!(image, Image::DeliveryState { .. })),
        ("two entries for one dedupe key", |image| matches!(image, Image::DedupeEntry { .. })),
        ("two effects with one identity", |image| matches!(image, Image::Effect { .. })),
        ("step completed twice", |image| matches!(image, Image::Completion { .. })),
        ("two winners of one message", |image| matches!(image, Image::Winner { .. })),
    ];
    for (phrase, of) in cases {
        let refusal = refusal_of_snapshot(twice(of));
        assert!(refusal.ends_with(phrase), "{refusal:?} for {phrase:?}");
    }
    let refusal = refusal_of_snapshot(|images| {
        twice(|image| matches!(image, Image::Topic { topic: ORDERS, .. }))(images);
        let Event::Restored(Image::Topic { name, .. }) = &mut images.last_mut().expect("just added").event else {
            return;
        };
        *name = TopicName::new("another").expect("a name");
    });
    assert!(refusal.ends_with("two topics with one id"), "{refusal}");

    // Another group under an id or a name in use, or under an id that is not assigned yet.
    let others: [fn(&mut GroupId, &mut GroupName); 3] = [
        |_, name| *name = GroupName::new("another").expect("a name"),
        |id, _| *id = GroupId(0),
        |id, name| (*id, *name) = (GroupId(3), GroupName::new("another").expect("a name")),
    ];
    for other in others {
        let refusal = refusal_of_snapshot(|images| {
            twice(|image| matches!(image, Image::Group { topic: ORDERS, .. }))(images);
            let Event::Restored(Image::Group { group, name, .. }) = &mut images.last_mut().expect("just added").event
            else {
                return;
            };
            other(group, name);
        });
        assert!(refusal.ends_with("group exists, or its id is not assigned yet"), "{refusal}");
    }
}

#[test]
fn snapshot_records_inconsistent_together_are_named() {
    use Image::*;
    // A group has acked a message it still has an entry for, and the message counts the ack.
    let refusal = refusal_of_snapshot(|images| {
        make(images, image!(Message { topic: ORDERS, position: Position(7), acked_in, .. } => *acked_in = 1));
        let run = RunImage { start: Position(7), end: Position(8), last_offset: Offset(8) };
        let image = AckedRun { topic: ORDERS, group: GroupId(2), partition: FIRST, run };
        images.push(Record { at: Timestamp::default(), event: Event::Restored(image) });
    });
    assert_eq!(refusal, "topic orders, partition 0, group g, an acked message has a delivery state");

    // Two partitions store a message with the same offset, consistently everywhere else.
    let refusal = refusal_of_snapshot(|images| {
        make(
            images,
            image!(Partition { topic: ORDERS, partition: SECOND, last_offset, .. } => *last_offset = Some(Offset(0))),
        );
        make(images, image!(Message { topic: ORDERS, partition: SECOND, offset, .. } => *offset = Offset(0)));
        for record in images {
            if let Event::Restored(DeliveryState { message_ref, delivery }) = &mut record.event
                && (message_ref.topic, message_ref.partition) == (ORDERS, SECOND)
            {
                delivery.offset = Offset(0);
            }
        }
    });
    assert_eq!(refusal, "topic orders, two partitions store a message with the same offset");

    // A stored message is trimmed by a later image; its topic has no group.
    let refusal = refusal_of_snapshot(|images| {
        make(
            images,
            image!(Partition { topic: DEAD, trimmed_floor, trimmed_floor_offset, .. } => {
                (*trimmed_floor, *trimmed_floor_offset) = (Position(0), None);
            }),
        );
        let of = |record: &Record| matches!(&record.event, Event::Restored(Message { topic: DEAD, .. }));
        let at = images.iter().position(of).expect("has a dead letter");
        let mut first = images[at].clone();
        let Event::Restored(Message { position, offset, .. }) = &mut first.event else { return };
        (*position, *offset) = (Position(0), Offset(0));
        images.insert(at, first);
        let run = RunImage { start: Position(1), end: Position(2), last_offset: Offset(1) };
        let image = TrimmedRun { topic: DEAD, partition: FIRST, run };
        images.insert(at + 2, Record { at: Timestamp::default(), event: Event::Restored(image) });
    });
    assert_eq!(refusal, "topic dlq.orders, partition 0, a position is both stored and trimmed, or not assigned yet");
}

#[test]
fn log_record_impossible_after_earlier_ones_is_named() {
    let cases: [(&str, Change); 21] = [
        ("boot is not the next", change!(Event::Booted { boot } => *boot = Boot(2))),
        ("topic exists, or its id is not the next", change!(Event::TopicCreated { topic, .. } => topic.0 += 1)),
        ("group exists, or its id is not the next", change!(Event::GroupCreated { group, .. } => group.0 += 1)),
        ("offset is not the next", change!(Event::Produced { offset, .. } => offset.0 += 1)),
        ("offset is not the next", change!(Event::DeadLettered { dead_offset, .. } => dead_offset.0 += 1)),
        (
            "dedupe window of a message without an idempotency key",
            change!(Event::Produced { body, dedupe: Some(_), .. } => *body = driftq_core::Body::pack(&Metadata::default(), b"", b"v")),
        ),
        ("lease token of another boot", change!(Event::Delivered { token, .. } => token.boot = Boot(0))),
        ("no such delivery", change!(Event::Acked { message_ref, .. } => message_ref.position = Position(3))),
        ("cumulative ack of nothing, or in disorder", change!(Event::CumulativelyAcked { acks, .. } => acks.clear())),
        (
            "cumulative ack of nothing, or in disorder",
            change!(Event::CumulativelyAcked { acks, .. } => acks.swap(0, 1)),
        ),
        (
            "cumulative ack of nothing, or in disorder",
            change!(Event::CumulativelyAcked { acks, .. } => acks[1] = acks[0]),
        ),
        ("dead letters of another topic", change!(Event::DeadLettered { dead_topic, .. } => *dead_topic = AUDIT)),
        ("dead letters of another topic", change!(Event::Redriven { topic, .. } => *topic = AUDIT)),
        ("expiry of dedupe entries within their window", change!(Event::DedupeExpired { count, .. } => *count += 1)),
        (
            "end of a lease that has ended",
            change!(Event::Nacked { message_ref, .. } => message_ref.position = Position(3)),
        ),
        (
            "delivery of a message that is not stored",
            change!(Event::Delivered { message_ref, .. } => message_ref.position = Position(99)),
        ),
        (
            "seek beyond the end of the partition",
            change!(Event::GroupSought { targets, .. } => *targets = [Position(99), Position(0)].into()),
        ),
        (
            "seek does not name every partition",
            change!(Event::GroupSought { targets, .. } => *targets = [Position(0)].into()),
        ),
        ("no such partition", change!(Event::Produced { partition, .. } => *partition = PartitionId(2))),
        (
            "skip that does not name every group",
            change!(Event::Produced { skipped, .. } if !skipped.is_empty() => skipped.push(GroupId(9))),
        ),
        (
            "skip of a message whose identity is not committed",
            change!(Event::Produced { topic: STEPS, skipped, .. } => *skipped = vec![GroupId(0)]),
        ),
    ];
    for (phrase, change) in cases {
        let refusal = refusal_of_log(|records| make(records, change));
        assert_eq!(refusal, format!("record contradicts the state: {phrase}"));
    }
    // The same message stored again at the next offset.
    let refusal = refusal_of_log(|records| {
        let of = |record: &Record| matches!(&record.event, Event::Produced { dedupe: Some(_), .. });
        let at = records.iter().position(of).expect("has an identity");
        let mut again = records[at].clone();
        let Event::Produced { offset, .. } = &mut again.event else { return };
        *offset = offset.next();
        records.insert(at + 1, again);
    });
    assert_eq!(refusal, "record contradicts the state: dedupe key stored twice in its window");
    // A skip in two groups, of which one has committed the identity.
    let refusal = refusal_of_log(|records| {
        let skips = |record: &&Record| matches!(&record.event, Event::Produced { skipped, .. } if !skipped.is_empty());
        let mut again = records.iter().find(skips).expect("one is skipped").clone();
        let Event::Produced { offset, dedupe: Some(dedupe), skipped, .. } = &mut again.event else { return };
        dedupe.scope.destination = TopicName::new("elsewhere").expect("a name");
        (*offset, *skipped) = (Offset(7), vec![GroupId(0), GroupId(1)]);
        let of = |record: &Record| matches!(record.event, Event::GroupCreated { topic: STEPS, group: GroupId(1), .. });
        let at = records.iter().position(of).expect("a second group is created");
        records.insert(at + 1, again);
    });
    assert_eq!(refusal, "record contradicts the state: skip of a message whose identity is not committed");
}
