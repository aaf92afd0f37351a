//! Segments that snapshots refer to: holes between them, and those that are missing, damaged or too short.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use driftq_core::Command;
use driftq_core::codec::record as codec;
use driftq_core::command::Purge;
use driftq_core::log::{FileId, SegmentHeader, SegmentReader};
use driftq_core::record::{Event, MessageAt, Record, Referrer, Relocated};
use driftq_core::types::*;
use driftq_server::wal::WalCommand;

use super::daemon::{Start, start};
use super::support::*;

/// The messages of "kept", which are the only ones that stay.
const KEPT: [u64; 3] = [0, 1, 2];

/// A log whose first segments are gone but for one, to which a few messages refer. Returns that one.
fn with_hole() -> (tempfile::TempDir, FileId) {
    let dir = memory_dir();
    let mut now = 1_000_000;
    let mut open = || {
        now += 1_000_000;
        Broker::open(dir.path(), u64::MAX, now)
    };
    let mut broker = open();
    broker.topic("gone", 1);
    broker.topic("kept", 2);
    (0..40).for_each(|number| broker.produce("gone", number));
    drop(broker);
    let mut broker = open();
    KEPT.iter().for_each(|number| broker.produce("kept", *number));
    drop(broker);
    let mut broker = open();
    (0..40).for_each(|number| broker.produce("gone", number));
    broker.ask(Command::Purge(Purge { topic: TopicName::new("gone").unwrap() }));
    for number in 0..2 {
        broker.topic(&format!("later-{number}"), 1);
        broker.pipeline.request_snapshot();
        broker.settle();
    }
    broker.now = broker.now.after(Millis(200));
    broker.settle();
    drop(broker);
    let [listed] = referred(dir.path())[..] else { panic!("one segment is listed") };
    let segments = segments(dir.path());
    assert_eq!(segments[0], listed.file(), "the segments before it are gone");
    assert!(!segments.contains(&FileId::Segment(listed.sequence + 1)), "a hole follows: {segments:?}");
    assert!(listed.live_bytes > 0);
    (dir, listed.file())
}

fn dump(dir: &Path, json: bool) -> (u8, String) {
    run(&WalCommand::Dump { dir: dir.to_owned(), from: None, to: None, json, full: false })
}

fn kept(state: &ReadState) -> usize {
    messages(state).iter().filter(|(topic, ..)| topic == "kept").count()
}

/// A broker starts on the log, and the messages that stay are as they were produced.
fn check_kept(dir: &Path) {
    drop(Broker::open(dir, u64::MAX, 9_000_000));
    let found = state(dir);
    let expected = KEPT.map(|number| format!("kept {number} {}", "x".repeat(150)).into_bytes());
    let values: Vec<_> =
        messages(&found).into_iter().filter(|(topic, ..)| topic == "kept").map(|(.., value)| value).collect();
    assert!(values.len() == KEPT.len() && expected.iter().all(|value| values.contains(value)));
}

#[test]
fn hole_is_no_damage() {
    let (dir, listed) = with_hole();
    let (code, text) = verify(dir.path());
    assert_eq!((code, text.contains("\nok: ")), (0, true), "{text}");
    assert!(text.contains("refers to 1 segments, intact"), "{text}");
    assert_eq!(salvage(dir.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    let (code, text) = dump(dir.path(), false);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(" produced ") && text.contains("later-1") && !text.contains("stopped: "), "{text}");
    let line = text.lines().find(|line| line.contains("refers to")).expect("a list");
    assert!(line.contains(&format!("file=\"{listed}\"")) && line.contains("live_bytes="), "{line}");
    let (_, text) = dump(dir.path(), true);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let snapshots: Vec<_> = lines.iter().filter(|line| line["kind"] == "snapshot").collect();
    assert_eq!(snapshots.len(), 2);
    let segment = referred(dir.path())[0];
    assert_eq!(
        snapshots[1]["is"]["segments"],
        serde_json::json!([{
            "file": listed.to_string(), "frame": segment.last.frame.0, "lsn": segment.last.lsn.0,
            "end": segment.end, "live_bytes": segment.live_bytes,
        }])
    );
    check_kept(dir.path());
}

#[test]
fn hole_with_dead_bytes_before_it_is_no_damage() {
    let (dir, listed) = with_hole();
    let end = referred(dir.path())[0].end as usize;
    // What a torn tail left, which the header of the removed successor had cut off.
    edit(dir.path(), listed, |bytes| {
        bytes.truncate(end);
        bytes.extend([7; 90]);
    });
    let (code, text) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert_eq!(dump(dir.path(), false).0, 0);
    check_kept(dir.path());
}

#[test]
fn missing_listed_segment_is_refused_and_its_messages_are_named() {
    let (dir, listed) = with_hole();
    let bytes = referred(dir.path())[0].live_bytes;
    fs::remove_file(path(dir.path(), listed)).unwrap();
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {listed}: missing, though snap-")), "{text}");
    let damage = format!("damaged: it refers to {bytes} bytes in {listed}, which is missing");
    assert_eq!(text.matches(&damage).count(), 2, "both snapshots refer to it: {text}");
    let (text, salvaged) = salvage_checked(dir.path());
    let lost: Vec<_> = text.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert_eq!(lost.len(), KEPT.len(), "nothing else is lost: {text}");
    assert!(
        KEPT.iter().all(|offset| text.contains(&format!("lost: the payload of message kept/{offset} in partition "))),
        "{text}"
    );
    assert_eq!(kept(&salvaged), 0);
    for name in ["gone", "kept", "later-0", "later-1"] {
        assert!(salvaged.topic_named(&TopicName::new(name).unwrap()).is_some(), "{name}");
    }
    let topic = salvaged.topic_named(&TopicName::new("kept").unwrap()).unwrap();
    assert_eq!(topic.next_offset(), Offset(3), "no offset is assigned again or left out");
    check_dead_letters(dir.path(), &[], &KEPT);
}

/// A broker starts on the log and delivers the messages `whole` of "kept"; those in `lost` are dead letters without
/// their values.
fn check_dead_letters(dir: &Path, whole: &[u64], lost: &[u64]) {
    let mut broker = Broker::open(dir, u64::MAX, 9_000_100_000);
    let mut delivered = broker.consume("kept", 100);
    delivered.sort_unstable();
    assert_eq!(delivered, whole);
    broker.now = broker.now.after(Millis(1_000));
    broker.settle();
    drop(broker);
    let state = state(dir);
    let dead = state.topics().find(|topic| topic.name().as_str().starts_with("dlq.kept")).expect("dead letters");
    let mut found: Vec<_> = Vec::new();
    for (_, partition) in dead.partitions() {
        for (_, message) in partition.messages() {
            assert!(message.payload.id.is_lost());
            let fields = message.fields().expect("fields of a dead letter");
            assert!(fields.lost.as_ref().is_some_and(|damage| damage.contains("salvaged")), "{fields:?}");
            let origin = fields.dead_letter.as_ref().expect("a dead letter");
            found.push(origin.original_offset.0);
        }
    }
    found.sort_unstable();
    assert_eq!(found, lost);
    assert_eq!(verify(dir).0, 0);
}

#[test]
fn damaged_listed_segment_is_found_and_its_other_messages_are_carried_over() {
    let (dir, listed) = with_hole();
    let hit = produced(dir.path()).into_iter().find(|message| message.file == listed && message.offset == 1).unwrap();
    flip(dir.path(), listed, hit.start + 60);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(
        text.contains(&format!("\ndamaged: {listed}: corrupt at byte {}, frame {}", hit.start, hit.number)),
        "{text}"
    );
    assert!(text.contains(&format!("damaged: byte {}, frame {}: ", hit.start, hit.number)), "{text}");
    let through = format!("in {listed}, which is intact through frame {} only", hit.number.0 - 1);
    assert_eq!(text.matches(&through).count(), 2, "{text}");
    let (code, text) = dump(dir.path(), false);
    assert_eq!((code, text.contains(&format!("stopped: {listed}, byte {}", hit.start))), (1, true), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    let lost: Vec<_> = text.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert_eq!(lost.len(), 1, "{text}");
    assert!(lost[0].starts_with("lost: the payload of message kept/1 in partition "), "{text}");
    assert_eq!(kept(&salvaged), 2, "the messages before and behind the damage are kept");
    assert!(!segments(dir.path()).contains(&listed), "the damaged segment is in quarantine");
    let counted: u64 = referred(dir.path()).iter().map(|segment| segment.live_bytes).sum();
    // The broker counts the same bytes in the snapshots of its own.
    let mut broker = Broker::open(dir.path(), u64::MAX, 9_000_050_000);
    broker.ask(Command::Purge(Purge { topic: TopicName::new("new").unwrap() }));
    broker.pipeline.request_snapshot();
    broker.settle();
    drop(broker);
    let of_broker: u64 = referred(dir.path()).iter().map(|segment| segment.live_bytes).sum();
    assert_eq!(counted, of_broker);
    check_dead_letters(dir.path(), &[0, 2], &[1]);
}

#[test]
fn message_known_as_lost_stays_lost_in_a_salvage() {
    let (dir, listed) = with_hole();
    let hit = produced(dir.path()).into_iter().find(|message| message.file == listed && message.offset == 1).unwrap();
    flip(dir.path(), listed, hit.start + 60);
    salvage_checked(dir.path());
    check_dead_letters(dir.path(), &[0, 2], &[1]);
    let mut broker = Broker::open(dir.path(), u64::MAX, 9_000_200_000);
    broker.topic("lost", 1);
    broker.topic("after", 1);
    drop(broker);
    let last = *segments(dir.path()).iter().rfind(|file| !frames(dir.path(), **file).is_empty()).unwrap();
    let (byte, ..) = *frames(dir.path(), last).iter().find(|(_, _, kind)| *kind == 2).expect("a topic");
    flip(dir.path(), last, byte + 35);
    fs::remove_dir_all(quarantine(dir.path())).unwrap();
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(!text.contains("lost: the payload "), "{text}");
    assert_eq!(kept(&salvaged), 0, "the others were acked");
    let dead = salvaged.topics().find(|topic| topic.name().as_str().starts_with("dlq.kept")).expect("dead letters");
    assert_eq!(dead.partitions().map(|(_, partition)| partition.messages().count()).sum::<usize>(), 1);
}

#[test]
fn relocation_that_does_not_fit_is_no_loss_and_still_has_the_bytes() {
    let (dir, listed) = with_hole();
    Broker::open(dir.path(), u64::MAX, 8_000_000).topic("more", 1);
    let hit = produced(dir.path()).into_iter().find(|message| message.file == listed && message.offset == 1).unwrap();
    let found = state(dir.path());
    let topic = found.topic_named(&TopicName::new("kept").unwrap()).unwrap();
    let partition = topic.partitions().find_map(|(id, partition)| {
        let mut messages = partition.messages();
        messages.find_map(|(_, message)| (message.offset == Offset(1)).then_some((id, message.payload.id)))
    });
    let (partition, from) = partition.expect("the message");
    let bytes = fs::read(path(dir.path(), listed)).unwrap();
    let mut reader = SegmentReader::new(&SegmentHeader::decode(&bytes).unwrap(), &bytes);
    let body = std::iter::from_fn(|| reader.next()).find_map(|frame| {
        let record = codec::decode(frame.head.kind, frame.head.version, frame.payload).ok()?;
        record.event.bodies().find(|_| frame.head.number == hit.number).map(|(_, body)| body)
    });
    let body = body.expect("the record of the message");
    // No message is there.
    let at = MessageAt { topic: topic.id(), partition, position: Position(77) };
    let relocated = Relocated { from, referrers: vec![Referrer::Message(at)], body };
    let record = Record { at: found.clock(), event: Event::Relocated(Box::new(relocated)) };
    append(dir.path(), |chain, out| {
        let synced = chain.last().frame;
        let kind = codec::kind(&record.event);
        chain.record(out, synced, kind, codec::VERSION, |out| codec::encode(&record, out)).unwrap();
    });
    flip(dir.path(), listed, hit.start + 60);
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(kept(&salvaged), KEPT.len());
    check_kept(dir.path());
}

#[test]
fn listed_segment_that_is_too_short_is_refused_and_keeps_what_is_there() {
    let (dir, listed) = with_hole();
    let messages = produced(dir.path());
    let last = messages.iter().rfind(|message| message.file == listed).unwrap();
    edit(dir.path(), listed, |bytes| bytes.truncate(last.start + 40));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {listed}: corrupt at byte {}", last.start)), "{text}");
    assert!(text.contains(&format!("in {listed}, which is intact through frame {} only", last.number.0 - 1)), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(&format!("lost: the payload of message kept/{} in partition ", last.offset)), "{text}");
    assert_eq!(kept(&salvaged), 2);
}

#[test]
fn salvage_of_damage_elsewhere_keeps_listed_segments_in_place() {
    let (dir, listed) = with_hole();
    let before = fs::read(path(dir.path(), listed)).unwrap();
    let mut broker = Broker::open(dir.path(), u64::MAX, 8_000_000);
    broker.topic("lost", 1);
    broker.topic("after", 1);
    drop(broker);
    let last = *segments(dir.path()).iter().rfind(|file| !frames(dir.path(), **file).is_empty()).unwrap();
    let (byte, number, _) = *frames(dir.path(), last).iter().find(|(_, _, kind)| *kind == 2).expect("a topic");
    flip(dir.path(), last, byte + 35);
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(&format!("was refused: {last}: corrupt at byte {byte}, frame {number}: ")), "{text}");
    assert!(!text.contains("lost: the payload "), "{text}");
    // A start has cut it to what it holds.
    assert!(before.starts_with(&fs::read(path(dir.path(), listed)).unwrap()), "it stays in place");
    assert_eq!(kept(&salvaged), 3);
    // Salvaged once more after more damage, it still has them.
    let newest = *snapshots(dir.path()).last().unwrap();
    flip(dir.path(), newest, 4_200);
    let older = snapshots(dir.path())[0];
    flip(dir.path(), older, 4_200);
    let (code, text) = salvage(dir.path(), true);
    assert!(code == 3 || code == 0, "{text}");
    assert_eq!(kept(&state(dir.path())), 3);
}

#[test]
fn flipped_bit_under_a_queued_payload_costs_that_payload_alone() {
    let dir = plain_log(12 << 10);
    let all = produced(dir.path());
    let listed = referred(dir.path())[0];
    let hit = all.iter().rfind(|message| message.file == listed.file() && message.number <= listed.last.frame).unwrap();
    flip(dir.path(), hit.file, hit.end - 20);
    let values = |without: u64| {
        let others = all.iter().filter(|message| message.offset != without);
        others.map(|message| (message.offset, message.value.clone())).collect::<BTreeMap<_, _>>()
    };
    let expected = Start::Loses(values(hit.offset), vec![hit.offset]);
    // A start does not read it. The first who does gets what is left of it, and everything else.
    let copied = copy(dir.path());
    assert_eq!(start(copied.path()), expected);
    let (text, _) = salvage_checked(dir.path());
    let lost: Vec<_> = text.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert_eq!(lost.len(), 1, "{text}");
    assert!(lost[0].contains(&format!("message one/{} in partition 0", hit.offset)), "{text}");
    assert_eq!(start(dir.path()), expected);
}
