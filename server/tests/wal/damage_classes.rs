//! A salvage of each class of damage: exactly which messages it keeps, what it reports, and that a broker then serves
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use driftq_core::log::{FileId, LogId, LogPosition, SegmentHeader};
use driftq_core::types::FrameNumber;

use super::daemon::{Start, start};
use super::support::*;

/// Messages by offset.
type Messages = BTreeMap<u64, String>;

/// An intact log, its messages and its segments.
struct IntactLog {
    dir: tempfile::TempDir,
    messages: Vec<StoredMessage>,
    segments: Vec<FileId>,
}

impl IntactLog {
    fn new() -> Self {
        let dir = plain_log(u64::MAX);
        let (messages, segments) = (produced(dir.path()), segments(dir.path()));
        assert_eq!(messages.len(), 90);
        Self { dir, messages, segments }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn in_second_segment(&self) -> Vec<StoredMessage> {
        self.messages.iter().filter(|message| message.file == self.segments[1]).cloned().collect()
    }

    /// All messages except those for which `is_lost` holds.
    fn without(&self, is_lost: impl Fn(&StoredMessage) -> bool) -> Messages {
        let kept = self.messages.iter().filter(|message| !is_lost(message));
        kept.map(|message| (message.offset, message.value.clone())).collect()
    }

    fn all(&self) -> Messages {
        self.without(|_| false)
    }

    /// Salvages the log and starts a broker, which must serve exactly `kept`. The output of the salvage must contain
    /// `texts`.
    fn check_salvage(&self, kept: &Messages, texts: &[String]) {
        let names: Vec<String> = files(self.path()).into_keys().collect();
        let before = start(self.path());
        assert!(matches!(before, Start::Refuses(1, _)), "{before:?}");
        let (text, _) = salvage_checked(self.path());
        assert!(text.starts_with("was refused: "), "{text}");
        texts.iter().for_each(|expected| assert!(text.contains(expected), "{expected:?} is not in: {text}"));
        let lost = texts.iter().filter(|expected| expected.starts_with("lost: ")).count();
        let reported = text.lines().filter(|line| line.starts_with("lost: frame ")).count();
        assert_eq!(reported, lost, "nothing else is reported as lost: {text}");
        let stayed = files(self.path());
        for name in names {
            let is_set_aside = text.contains(&format!("set aside: {name}\n"));
            assert_eq!(is_set_aside, !stayed.contains_key(&name), "{name}: {text}");
        }
        assert!(text.ends_with(&format!("kept: 1 topics, 0 groups, {} messages\n", kept.len())), "{text}");
        assert_eq!(start(self.path()), Start::Serves(kept.clone()));
    }
}

fn lost(first: FrameNumber, last: FrameNumber) -> String {
    format!("lost: frame {first} to {last}\n")
}

#[test]
fn flipped_bit_loses_its_own_message() {
    let log = IntactLog::new();
    let hit = log.in_second_segment()[7].clone();
    flip(log.path(), hit.file, hit.start + 60);
    let damage = format!("{}: corrupt at byte {}, frame {}: ", hit.file, hit.start, hit.number);
    log.check_salvage(&log.without(|message| message.number == hit.number), &[damage, lost(hit.number, hit.number)]);
}

#[test]
fn truncated_tail_is_refused_as_cut_and_keeps_everything_before_it() {
    let log = IntactLog::new();
    let hit = log.messages[log.messages.len() - 3].clone();
    edit(log.path(), hit.file, |bytes| bytes.truncate(hit.start + 11));
    let damage = format!("{}: cut off at byte {}", hit.file, hit.start + 11);
    log.check_salvage(&log.without(|message| message.number >= hit.number), &[damage]);
}

#[test]
fn damaged_tail_proven_by_a_mark_loses_its_own_message() {
    let log = IntactLog::new();
    let hit = log.messages[log.messages.len() - 3].clone();
    flip(log.path(), hit.file, hit.start + 60);
    log.check_salvage(&log.without(|message| message.number == hit.number), &[lost(hit.number, hit.number)]);
}

#[test]
fn truncated_inner_segment_loses_what_was_cut_off() {
    let log = IntactLog::new();
    let hit = log.in_second_segment()[20].clone();
    let last = frames(log.path(), hit.file).last().unwrap().1;
    edit(log.path(), hit.file, |bytes| bytes.truncate(hit.start + 40));
    let is_lost = |message: &StoredMessage| message.file == hit.file && message.number >= hit.number;
    let damage = format!("{}: corrupt at byte {}", hit.file, hit.start);
    log.check_salvage(&log.without(is_lost), &[damage, lost(hit.number, last)]);
}

#[test]
fn missing_segment_loses_its_messages() {
    let log = IntactLog::new();
    let file = log.segments[1];
    let inside = frames(log.path(), file);
    fs::remove_file(path(log.path(), file)).unwrap();
    let damage = format!("{file}: missing, though {} is there", log.segments[2]);
    let texts = [damage, lost(inside[0].1, inside.last().unwrap().1)];
    log.check_salvage(&log.without(|message| message.file == file), &texts);
}

#[test]
fn damaged_header_loses_nothing() {
    let log = IntactLog::new();
    flip(log.path(), log.segments[1], 50);
    let damage = format!("{}: corrupt at byte 0: the header's checksum is wrong", log.segments[1]);
    log.check_salvage(&log.all(), &[damage]);
}

#[test]
fn damaged_snapshot_needs_no_salvage_and_loses_nothing() {
    let dir = plain_log(8 << 10);
    let intact = start(copy(dir.path()).path());
    assert!(matches!(&intact, Start::Serves(found) if found.len() == 90), "{intact:?}");
    let newest = *snapshots(dir.path()).last().unwrap();
    flip(dir.path(), newest, 5_000);
    assert_eq!(salvage(dir.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    assert_eq!(start(dir.path()), intact);
}

#[test]
fn foreign_file_loses_nothing() {
    let log = IntactLog::new();
    let (log_id, sequence) = (LogId([8; 16]), log.segments.len() as u64 + 1);
    let other = SegmentHeader {
        log_id,
        sequence,
        previous: LogPosition::default(),
        previous_crc: 0,
        synced: FrameNumber(0),
        capacity: 0,
    };
    fs::write(path(log.path(), other.file()), other.encode()).unwrap();
    log.check_salvage(&log.all(), &[format!("{}: belongs to log {log_id}", other.file())]);
}

#[test]
fn duplicated_frame_loses_nothing() {
    let log = IntactLog::new();
    let hit = log.in_second_segment()[7].clone();
    edit(log.path(), hit.file, |bytes| {
        let (len, copy) = (bytes.len(), bytes[hit.start..hit.end].to_vec());
        bytes.splice(hit.end..hit.end, copy);
        bytes.truncate(len);
    });
    log.check_salvage(&log.all(), &[format!("frame {}: the frame there has number {}", hit.number.next(), hit.number)]);
}

#[test]
fn zeroed_block_loses_the_messages_it_overlaps() {
    let log = IntactLog::new();
    let inside = log.in_second_segment();
    let hit = inside[12].clone();
    let block = hit.start + 20..hit.start + 20 + 512;
    edit(log.path(), hit.file, |bytes| bytes[block.clone()].fill(0));
    let is_lost =
        |message: &StoredMessage| message.file == hit.file && message.start < block.end && block.start < message.end;
    let last = inside.iter().rfind(|message| is_lost(message)).unwrap().number;
    assert!(last > hit.number, "the block is longer than a message");
    log.check_salvage(&log.without(is_lost), &[lost(hit.number, last)]);
}

#[test]
fn swapped_segments_lose_nothing() {
    let log = IntactLog::new();
    let (first, second) = (path(log.path(), log.segments[0]), path(log.path(), log.segments[1]));
    let aside = log.path().join("aside");
    fs::rename(&first, &aside).unwrap();
    fs::rename(&second, &first).unwrap();
    fs::rename(&aside, &second).unwrap();
    log.check_salvage(&log.all(), &[format!("{}: is segment 2 by its header", log.segments[0])]);
}

/// Canary: the check fails if a salvage loses a message more than expected, or reports a loss that is not expected.
#[test]
fn salvage_check_fails_on_missing_message_and_on_unexpected_loss() {
    let fails = |log: &IntactLog, kept: &Messages, texts: &[String]| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| log.check_salvage(kept, texts))).is_err()
    };
    let damaged = || {
        let log = IntactLog::new();
        let hit = log.in_second_segment()[7].clone();
        flip(log.path(), hit.file, hit.start + 60);
        (log, hit)
    };
    let (log, hit) = damaged();
    assert!(fails(&log, &log.all(), &[lost(hit.number, hit.number)]), "a message is missing");
    let (log, hit) = damaged();
    assert!(fails(&log, &log.without(|message| message.number == hit.number), &[]), "a loss is not expected");
}
