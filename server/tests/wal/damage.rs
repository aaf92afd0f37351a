//! Each kind of damage: where it is said to be, and what a salvage keeps.

use std::fs;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, LogId, SegmentHeader};
use driftq_core::record::{Event, Record, Retention};
use driftq_core::types::*;

use crate::support::*;

const PRODUCED: u8 = 9;

/// An inner segment with a message in its middle: file, byte, LSN.
fn a_message_in_the_middle(dir: &std::path::Path) -> (FileId, usize, Lsn) {
    let file = segments(dir)[1];
    let frames = frames(dir, file);
    let (byte, lsn, _) = *frames[frames.len() / 2..].iter().find(|(_, _, kind)| *kind == PRODUCED).unwrap();
    (file, byte, lsn)
}

#[test]
fn a_flipped_bit_costs_its_own_message_and_no_other() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let (file, byte, lsn) = a_message_in_the_middle(dir.path());
    flip(dir.path(), file, byte + 60);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte {byte}, LSN {lsn}: ")), "{text}");
    assert!(text.contains(&format!("damaged: byte {byte}, LSN {lsn}: ")), "{text}");
    let (text, saved) = salvaged(dir.path());
    assert!(text.contains(&format!("lost: LSN {lsn} to {lsn}\n")), "{text}");
    let after = messages(&saved);
    let missing: Vec<_> = before.difference(&after).collect();
    assert!(missing.len() <= 1, "{missing:?}");
    assert!(after.len() >= before.len() - 1);
}

#[test]
fn what_a_lost_record_may_have_given_is_not_given_again() {
    let dir = log();
    let whole = state(dir.path());
    let (file, byte, _) = a_message_in_the_middle(dir.path());
    flip(dir.path(), file, byte + 60);
    let (_, saved) = salvaged(dir.path());
    assert!(saved.boot() >= whole.boot());
    for topic in whole.topics() {
        let after = saved.topic_named(topic.name()).unwrap();
        assert!(after.next_offset() > topic.next_offset());
        assert!(after.next_group() >= topic.next_group());
    }
}

#[test]
fn a_boot_whose_record_is_lost_is_not_counted_again() {
    let dir = log();
    let mut broker = Broker::open(dir.path(), u64::MAX, 8_000_000);
    broker.now = broker.now.after(Millis(200));
    broker.settle();
    let boot = broker.pipeline.state().boot();
    drop(broker);
    let file = *segments(dir.path()).iter().rfind(|file| !frames(dir.path(), **file).is_empty()).unwrap();
    let (byte, ..) = frames(dir.path(), file)[0];
    flip(dir.path(), file, byte + 20);
    assert_eq!(verify(dir.path()).0, 1, "the mark behind it proves that it was synced");
    let (_, saved) = salvaged(dir.path());
    assert!(saved.boot() >= boot);
}

#[test]
fn what_was_cut_off_stays_so() {
    let dir = log();
    // The last batch is torn, but its end is there; a start cuts it off and other records get its numbers.
    append(dir.path(), |chain, out| {
        for name in ["torn", "ghost"] {
            let (name, retention) = (TopicName::new(name).unwrap(), Retention::default());
            let event = Event::TopicCreated { topic: TopicId(2), name, partitions: 1, retention };
            let record = Record { at: Timestamp(4_000_000), event };
            chain.record(out, Lsn(0), 2, codec::VERSION, |out| codec::encode(&record, out)).unwrap();
        }
        out[20] ^= 1;
    });
    drop(Broker::open(dir.path(), u64::MAX, 8_000_000));
    let (file, byte, _) = a_message_in_the_middle(dir.path());
    flip(dir.path(), file, byte + 60);
    let (_, saved) = salvaged(dir.path());
    assert!(saved.topic_named(&TopicName::new("ghost").unwrap()).is_none());
}

#[test]
fn a_damaged_header_of_an_inner_segment_costs_nothing() {
    let dir = log();
    let whole = state(dir.path());
    let file = segments(dir.path())[2];
    flip(dir.path(), file, 50);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte 0: ")), "{text}");
    assert!(text.contains("damaged: byte 0: the header's checksum is wrong"), "{text}");
    let (text, saved) = salvaged(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&saved), messages(&whole));
    for topic in whole.topics() {
        let after = saved.topic_named(topic.name()).unwrap();
        for (before, after) in topic.groups().zip(after.groups()) {
            assert_eq!(before, after, "leases and progress are as they were");
        }
    }
}

#[test]
fn a_missing_segment_is_named_and_the_others_are_kept() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let row = segments(dir.path());
    let lost = frames(dir.path(), row[1]);
    fs::remove_file(path(dir.path(), row[1])).unwrap();
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {}: missing, though {} is there", row[1], row[2])), "{text}");
    let (text, saved) = salvaged(dir.path());
    let (first, last) = (lost.first().unwrap().1, lost.last().unwrap().1);
    assert!(text.contains(&format!("lost: LSN {first} to {last}\n")), "{text}");
    let produced = lost.iter().filter(|(_, _, kind)| *kind == PRODUCED).count();
    let after = messages(&saved);
    let missing = before.difference(&after).count();
    assert!(missing <= produced, "{missing} messages are gone, {produced} were in the segment");
    assert!(after.iter().any(|(.., value)| value.starts_with(b"one 229 ")), "the last message is kept");
}

#[test]
fn a_truncated_inner_segment_costs_what_was_cut_off() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let file = segments(dir.path())[1];
    let cut = frames(dir.path(), file);
    let (byte, lsn, _) = cut[cut.len() - 7];
    edit(dir.path(), file, |bytes| bytes.truncate(byte + 11));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {file}: corrupt at byte {byte}, LSN {lsn}: ")), "{text}");
    let (text, saved) = salvaged(dir.path());
    assert!(text.contains(&format!("lost: LSN {lsn} to {}\n", cut.last().unwrap().1)), "{text}");
    assert!(before.difference(&messages(&saved)).count() <= 7);
}

#[test]
fn a_damaged_snapshot_is_told_though_a_start_passes_over_it() {
    let dir = log_with_snapshots();
    let whole = state(dir.path());
    let newest = *snapshots(dir.path()).last().unwrap();
    flip(dir.path(), newest, 5000);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("notice: {newest}: damaged snapshot passed over")), "{text}");
    assert!(text.contains("damaged, but nothing is lost"), "{text}");
    assert_eq!(salvage(dir.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    assert_eq!(state(dir.path()), whole);
}

#[test]
fn without_any_whole_snapshot_the_segments_are_what_is_left() {
    let dir = log_with_snapshots();
    let snapshots = snapshots(dir.path());
    assert_eq!(snapshots.len(), 2);
    snapshots.iter().for_each(|file| flip(dir.path(), *file, 5000));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains("refused: wal-") && text.contains("but the log is needed from LSN 1 on"), "{text}");
    let (text, _) = salvaged(dir.path());
    assert!(text.contains("lost: LSN 1 to "), "{text}");
}

#[test]
fn damage_behind_a_snapshot_leaves_everything_in_it() {
    let dir = log_with_snapshots();
    let before = messages(&state(dir.path()));
    let file = *segments(dir.path()).iter().rfind(|file| frames(dir.path(), **file).len() > 8).unwrap();
    let (byte, ..) = frames(dir.path(), file)[3];
    flip(dir.path(), file, byte + 35);
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1, "{text}");
    let (_, saved) = salvaged(dir.path());
    assert!(before.difference(&messages(&saved)).count() <= 1);
}

#[test]
fn a_foreign_file_is_set_aside_and_costs_nothing() {
    let dir = log();
    let whole = state(dir.path());
    let sequence = segments(dir.path()).len() as u64 + 1;
    let (log_id, previous_lsn, previous_crc, synced) = (LogId([8; 16]), Lsn(0), 0, Lsn(0));
    let other = SegmentHeader { log_id, sequence, previous_lsn, previous_crc, synced };
    let last = other.file();
    fs::write(path(dir.path(), last), other.encode()).unwrap();
    fs::write(dir.path().join("notes.txt"), "not a file of the log, and left alone").unwrap();
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(text.contains(&format!("refused: {last}: belongs to log ")), "{text}");
    fs::remove_file(dir.path().join("notes.txt")).unwrap();
    let (text, saved) = salvaged(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&saved), messages(&whole));
}

/// Found by fuzzing: what was salvaged did not open, since its numbers went on from names that no log can have given.
#[test]
fn files_with_numbers_that_no_log_gives_are_set_aside_and_cost_nothing() {
    let last = u64::MAX;
    for stray in [FileId::SnapshotDraft(Lsn(last)), FileId::Snapshot(Lsn(last)), FileId::Segment(last)] {
        let dir = log();
        let whole = state(dir.path());
        fs::write(path(dir.path(), stray), "stray").unwrap();
        if let FileId::SnapshotDraft(_) = stray {
            // By itself a draft is no reason to refuse.
            flip(dir.path(), segments(dir.path())[2], 50);
        }
        let (text, saved) = salvaged(dir.path());
        assert!(!text.contains("lost: "), "{text}");
        assert_eq!(messages(&saved), messages(&whole));
    }
}

#[test]
fn a_segment_under_another_name_is_still_read() {
    let dir = log();
    let whole = state(dir.path());
    let (from, to) = (segments(dir.path())[1], FileId::Segment(77));
    fs::rename(path(dir.path(), from), path(dir.path(), to)).unwrap();
    assert_eq!(verify(dir.path()).0, 1);
    let (text, saved) = salvaged(dir.path());
    assert!(!text.contains("lost: "), "{text}");
    assert_eq!(messages(&saved), messages(&whole));
}

#[test]
fn a_record_that_contradicts_is_passed_over_and_what_follows_is_kept() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let mut wrong = Lsn(0);
    append(dir.path(), |chain, out| {
        let at = Timestamp(4_000_000);
        let (name, retention) = (TopicName::new("late").unwrap(), Retention::default());
        for event in [
            Event::Booted { boot: Boot(99) },
            Event::TopicCreated { topic: TopicId(2), name, partitions: 1, retention },
        ] {
            let record = Record { at, event };
            let kind = codec::kind(&record.event);
            let lsn = chain.record(out, Lsn(0), kind, codec::VERSION, |out| codec::encode(&record, out)).unwrap();
            wrong = if wrong == Lsn(0) { lsn } else { wrong };
        }
    });
    let (code, text) = verify(dir.path());
    assert_eq!(code, 1);
    assert!(
        text.contains(&format!("LSN {wrong}: record contradicts the state: a boot that is not the next")),
        "{text}"
    );
    let (text, saved) = salvaged(dir.path());
    assert!(text.contains(&format!("lost: the record with LSN {wrong}: ")), "{text}");
    assert!(saved.topic_named(&TopicName::new("late").unwrap()).is_some());
    assert_eq!(messages(&saved), before);
}

#[test]
fn without_one_whole_header_there_is_nothing_to_go_by() {
    let dir = log();
    let before = {
        segments(dir.path()).iter().for_each(|file| flip(dir.path(), *file, 50));
        files(dir.path())
    };
    let (code, text) = salvage(dir.path(), true);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("nothing tells whose log this is"), "{text}");
    assert_eq!(files(dir.path()), before);
    assert_eq!(verify(dir.path()).0, 1);
}
