//! Each kind of damage: where `verify` reports it, and what a salvage keeps.

use std::fs;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, LogId, LogPosition, SegmentHeader};
use driftq_core::record::{Event, Record};
use driftq_core::types::Retention;
use driftq_core::types::*;

use super::support::*;

const PRODUCED: u8 = 9;

/// A message in the middle of an inner segment: file, byte, frame number.
fn message_in_inner_segment(dir: &std::path::Path) -> (FileId, usize, FrameNumber) {
    let file = segments(dir)[1];
    let frames = frames(dir, file);
    let (byte, number, _) = *frames[frames.len() / 2..].iter().find(|(_, _, kind)| *kind == PRODUCED).unwrap();
    (file, byte, number)
}

#[test]
fn flipped_bit_loses_at_most_its_own_message() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let (file, byte, number) = message_in_inner_segment(dir.path());
    flip(dir.path(), file, byte + 60);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte {byte}, frame {number}: ")), "{text}");
    assert!(text.contains(&format!("damaged: byte {byte}, frame {number}: ")), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(&format!("lost: frame {number} to {number}\n")), "{text}");
    let after = messages(&salvaged);
    let missing: Vec<_> = before.difference(&after).collect();
    assert!(missing.len() <= 1, "{missing:?}");
    assert!(after.len() >= before.len() - 1);
}

#[test]
fn ids_of_lost_records_are_not_assigned_again() {
    let dir = log();
    let intact = state(dir.path());
    let (file, byte, _) = message_in_inner_segment(dir.path());
    flip(dir.path(), file, byte + 60);
    let (_, salvaged) = salvage_checked(dir.path());
    assert!(salvaged.boot() >= intact.boot());
    for topic in intact.topics() {
        let after = salvaged.topic_named(topic.name()).unwrap();
        assert!(after.next_offset() > topic.next_offset());
        assert!(after.next_group() >= topic.next_group());
    }
}

#[test]
fn boot_number_of_lost_record_is_not_assigned_again() {
    let dir = log();
    let mut broker = Broker::open(dir.path(), u64::MAX, 8_000_000);
    broker.now = broker.now.after(Millis(200));
    broker.settle();
    let boot = broker.pipeline.state().boot();
    drop(broker);
    let file = *segments(dir.path()).iter().rfind(|file| !frames(dir.path(), **file).is_empty()).unwrap();
    let (byte, ..) = frames(dir.path(), file)[0];
    flip(dir.path(), file, byte + 20);
    assert_eq!(verify(dir.path()).0, 1, "the mark after it proves that it was synced");
    let (_, salvaged) = salvage_checked(dir.path());
    assert!(salvaged.boot() >= boot);
}

#[test]
fn frames_cut_off_by_recovery_stay_cut_off() {
    let dir = log();
    // The last batch is torn, but its end is intact. A start cuts it off, and other records get its frame numbers.
    append(dir.path(), |chain, out| {
        for name in ["torn", "ghost"] {
            let (name, retention) = (TopicName::new(name).unwrap(), Retention::default());
            let event = Event::TopicCreated { topic: TopicId(2), name, partitions: 1, retention };
            let record = Record { at: Timestamp(4_000_000), event };
            chain.record(out, FrameNumber(0), 2, codec::VERSION, |out| codec::encode(&record, out)).unwrap();
        }
        out[20] ^= 1;
    });
    drop(Broker::open(dir.path(), u64::MAX, 8_000_000));
    let (file, byte, _) = message_in_inner_segment(dir.path());
    flip(dir.path(), file, byte + 60);
    let (_, salvaged) = salvage_checked(dir.path());
    assert!(salvaged.topic_named(&TopicName::new("ghost").unwrap()).is_none());
}

#[test]
fn damaged_header_of_inner_segment_loses_nothing() {
    let dir = log();
    let intact = state(dir.path());
    let file = segments(dir.path())[2];
    flip(dir.path(), file, 50);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte 0: ")), "{text}");
    assert!(text.contains("damaged: byte 0: the header's checksum is wrong"), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&salvaged), messages(&intact));
    for topic in intact.topics() {
        let after = salvaged.topic_named(topic.name()).unwrap();
        for (before, after) in topic.groups().zip(after.groups()) {
            assert_eq!(before, after, "leases and progress are unchanged");
        }
    }
}

#[test]
fn missing_segment_is_named_and_others_are_kept() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let all = segments(dir.path());
    let lost = frames(dir.path(), all[1]);
    fs::remove_file(path(dir.path(), all[1])).unwrap();
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {}: missing, though {} is there", all[1], all[2])), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    let (first, last) = (lost.first().unwrap().1, lost.last().unwrap().1);
    assert!(text.contains(&format!("lost: frame {first} to {last}\n")), "{text}");
    let produced = lost.iter().filter(|(_, _, kind)| *kind == PRODUCED).count();
    let after = messages(&salvaged);
    let missing = before.difference(&after).count();
    assert!(missing <= produced, "{missing} messages are missing, {produced} were in the segment");
    assert!(after.iter().any(|(.., value)| value.starts_with(b"one 229 ")), "the last message is kept");
}

#[test]
fn truncated_inner_segment_loses_at_most_what_was_cut_off() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let file = segments(dir.path())[1];
    let cut = frames(dir.path(), file);
    let (byte, number, _) = cut[cut.len() - 7];
    edit(dir.path(), file, |bytes| bytes.truncate(byte + 11));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte {byte}, frame {number}: ")), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(&format!("lost: frame {number} to {}\n", cut.last().unwrap().1)), "{text}");
    assert!(before.difference(&messages(&salvaged)).count() <= 7);
}

#[test]
fn damaged_snapshot_is_reported_although_startup_ignores_it() {
    let dir = log_with_snapshots();
    let intact = state(dir.path());
    let newest = *snapshots(dir.path()).last().unwrap();
    flip(dir.path(), newest, 5000);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("notice: {newest}: damaged snapshot passed over")), "{text}");
    assert!(text.contains("damaged, but nothing is lost"), "{text}");
    assert_eq!(salvage(dir.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    assert_eq!(state(dir.path()), intact);
}

#[test]
fn without_intact_snapshot_everything_whole_in_a_damaged_one_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    // A first segment without messages, which the snapshots make removable.
    drop(Broker::open(dir.path(), 12 << 10, 500_000));
    make_log(dir.path(), 12 << 10);
    let before = messages(&state(dir.path()));
    let snapshots = snapshots(dir.path());
    assert_eq!((snapshots.len(), segments(dir.path())[0]), (2, FileId::Segment(2)));
    snapshots.iter().for_each(|file| flip(dir.path(), *file, 5000));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains("refused: wal-") && text.contains("but the log is needed from frame 1 on"), "{text}");
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(" pieces of the newest snapshot\n"), "{text}");
    let lost = before.difference(&messages(&salvaged)).count();
    assert!(lost <= 2, "{lost} of {} messages are lost: {text}", before.len());
}

#[test]
fn damage_after_snapshot_keeps_everything_in_it() {
    let dir = log_with_snapshots();
    let before = messages(&state(dir.path()));
    let file = *segments(dir.path()).iter().rfind(|file| frames(dir.path(), **file).len() > 8).unwrap();
    let (byte, ..) = frames(dir.path(), file)[3];
    flip(dir.path(), file, byte + 35);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1, "{text}");
    let (_, salvaged) = salvage_checked(dir.path());
    assert!(before.difference(&messages(&salvaged)).count() <= 1);
}

#[test]
fn foreign_file_is_quarantined_and_loses_nothing() {
    let dir = log();
    let intact = state(dir.path());
    let sequence = segments(dir.path()).len() as u64 + 1;
    let (log_id, previous, synced) = (LogId([8; 16]), LogPosition::default(), FrameNumber(0));
    let other = SegmentHeader { log_id, sequence, previous, previous_crc: 0, synced, capacity: 0 };
    let last = other.file();
    fs::write(path(dir.path(), last), other.encode()).unwrap();
    fs::write(dir.path().join("notes.txt"), "not a file of the log, and left alone").unwrap();
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {last}: belongs to log ")), "{text}");
    fs::remove_file(dir.path().join("notes.txt")).unwrap();
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&salvaged), messages(&intact));
}

/// Found by fuzzing: a salvaged log could not be opened because its numbers continued from file names that no log can
/// have.
#[test]
fn files_with_impossible_numbers_are_quarantined_and_lose_nothing() {
    let last = u64::MAX;
    for stray in [FileId::SnapshotDraft(FrameNumber(last)), FileId::Snapshot(FrameNumber(last)), FileId::Segment(last)]
    {
        let dir = log();
        let intact = state(dir.path());
        fs::write(path(dir.path(), stray), "stray").unwrap();
        if let FileId::SnapshotDraft(_) = stray {
            // A draft alone does not make a start fail.
            flip(dir.path(), segments(dir.path())[2], 50);
        }
        let (text, salvaged) = salvage_checked(dir.path());
        assert!(!text.contains("lost: "), "{text}");
        assert_eq!(messages(&salvaged), messages(&intact));
    }
}

#[test]
fn renamed_segment_is_still_read() {
    let dir = log();
    let intact = state(dir.path());
    let (from, to) = (segments(dir.path())[1], FileId::Segment(77));
    fs::rename(path(dir.path(), from), path(dir.path(), to)).unwrap();
    assert_eq!(verify(dir.path()).0, 1);
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&salvaged), messages(&intact));
}

#[test]
fn contradicting_record_is_skipped_and_later_ones_are_kept() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let mut wrong = LogPosition::default();
    append(dir.path(), |chain, out| {
        let at = Timestamp(4_000_000);
        let (name, retention) = (TopicName::new("late").unwrap(), Retention::default());
        for event in [
            Event::Booted { boot: Boot(99) },
            Event::TopicCreated { topic: TopicId(2), name, partitions: 1, retention },
        ] {
            let record = Record { at, event };
            let kind = codec::kind(&record.event);
            let encode = |out: &mut Vec<u8>| codec::encode(&record, out);
            let at = chain.record(out, FrameNumber(0), kind, codec::VERSION, encode).unwrap();
            wrong = if wrong == LogPosition::default() { at } else { wrong };
        }
    });
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    let LogPosition { frame, lsn } = wrong;
    assert!(
        text.contains(&format!("frame {frame}, LSN {lsn}: record contradicts the state: boot is not the next")),
        "{text}"
    );
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains(&format!("lost: the record in frame {frame}, LSN {lsn} (booted): ")), "{text}");
    assert!(salvaged.topic_named(&TopicName::new("late").unwrap()).is_some());
    assert_eq!(messages(&salvaged), before);
}

#[test]
fn log_without_valid_header_cannot_be_salvaged() {
    let dir = log();
    let before = {
        segments(dir.path()).iter().for_each(|file| flip(dir.path(), *file, 50));
        files(dir.path())
    };
    let (code, text) = salvage(dir.path(), true);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("the id of the log is unknown"), "{text}");
    assert_eq!(files(dir.path()), before);
    assert_eq!(verify(dir.path()).0, 1);
}
