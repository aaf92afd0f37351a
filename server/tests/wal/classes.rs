//! A salvage of each class of damage: exactly which messages it keeps, what it says, and that a broker then serves them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use driftq_core::log::{FileId, LogId, SegmentHeader};
use driftq_core::types::Lsn;

use crate::daemon::{Start, start};
use crate::support::*;

/// What a broker must serve.
type Messages = BTreeMap<u64, String>;

/// A log that is whole, its messages, and those of its second segment.
struct Before {
    dir: tempfile::TempDir,
    made: Vec<Made>,
    row: Vec<FileId>,
}

impl Before {
    fn new() -> Self {
        let dir = plain_log(u64::MAX);
        let (made, row) = (produced(dir.path()), segments(dir.path()));
        assert_eq!(made.len(), 90);
        Self { dir, made, row }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn in_second(&self) -> Vec<Made> {
        self.made.iter().filter(|made| made.file == self.row[1]).cloned().collect()
    }

    /// Everything but the messages that `lost` says.
    fn without(&self, lost: impl Fn(&Made) -> bool) -> Messages {
        self.made.iter().filter(|made| !lost(made)).map(|made| (made.offset, made.value.clone())).collect()
    }

    fn all(&self) -> Messages {
        self.without(|_| false)
    }

    /// Salvages, as an operator would, and starts a broker: it must serve exactly `kept`, and the words must be true.
    fn salvaged(&self, kept: &Messages, words: &[String]) {
        let names: Vec<String> = files(self.path()).into_keys().collect();
        let before = start(self.path());
        assert!(matches!(before, Start::Refuses(1, _)), "{before:?}");
        let (text, _) = salvaged(self.path());
        assert!(text.starts_with("was refused: "), "{text}");
        words.iter().for_each(|words| assert!(text.contains(words), "{words:?} is not in: {text}"));
        let lost = words.iter().filter(|words| words.starts_with("lost: ")).count();
        let said = text.lines().filter(|line| line.starts_with("lost: LSN ")).count();
        assert_eq!(said, lost, "nothing else is said to be lost: {text}");
        names.iter().for_each(|name| assert!(text.contains(&format!("set aside: {name}\n")), "{text}"));
        assert!(text.ends_with(&format!("kept: 1 topics, 0 groups, {} messages\n", kept.len())), "{text}");
        assert_eq!(start(self.path()), Start::Serves(kept.clone()));
    }
}

fn lost(first: Lsn, last: Lsn) -> String {
    format!("lost: LSN {first} to {last}\n")
}

#[test]
fn a_flipped_bit_in_the_middle_costs_its_own_message() {
    let before = Before::new();
    let hit = before.in_second()[7].clone();
    flip(before.path(), hit.file, hit.start + 60);
    let place = format!("{}: corrupt at byte {}, LSN {}: ", hit.file, hit.start, hit.lsn);
    before.salvaged(&before.without(|made| made.lsn == hit.lsn), &[place, lost(hit.lsn, hit.lsn)]);
}

#[test]
fn a_cut_tail_needs_no_salvage_and_leaves_what_stands_before_it() {
    let before = Before::new();
    let hit = before.made[before.made.len() - 3].clone();
    edit(before.path(), hit.file, |bytes| bytes.truncate(hit.start + 11));
    assert_eq!(salvage(before.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    assert_eq!(start(before.path()), Start::Serves(before.without(|made| made.lsn >= hit.lsn)));
}

#[test]
fn damage_to_a_tail_that_a_mark_proves_costs_its_own_message() {
    let before = Before::new();
    let hit = before.made[before.made.len() - 3].clone();
    flip(before.path(), hit.file, hit.start + 60);
    before.salvaged(&before.without(|made| made.lsn == hit.lsn), &[lost(hit.lsn, hit.lsn)]);
}

#[test]
fn a_cut_in_a_middle_segment_costs_what_was_cut_off() {
    let before = Before::new();
    let hit = before.in_second()[20].clone();
    let last = frames(before.path(), hit.file).last().unwrap().1;
    edit(before.path(), hit.file, |bytes| bytes.truncate(hit.start + 40));
    let gone = |made: &Made| made.file == hit.file && made.lsn >= hit.lsn;
    before.salvaged(
        &before.without(gone),
        &[format!("{}: corrupt at byte {}", hit.file, hit.start), lost(hit.lsn, last)],
    );
}

#[test]
fn a_missing_segment_costs_what_was_in_it() {
    let before = Before::new();
    let file = before.row[1];
    let inside = frames(before.path(), file);
    fs::remove_file(path(before.path(), file)).unwrap();
    let words = [format!("{file}: missing, though {} is there", before.row[2])];
    let words = [&words[..], &[lost(inside[0].1, inside.last().unwrap().1)]].concat();
    before.salvaged(&before.without(|made| made.file == file), &words);
}

#[test]
fn a_damaged_header_costs_nothing() {
    let before = Before::new();
    flip(before.path(), before.row[1], 50);
    before.salvaged(&before.all(), &[format!("{}: corrupt at byte 0: the header's checksum is wrong", before.row[1])]);
}

#[test]
fn a_damaged_snapshot_needs_no_salvage_and_costs_nothing() {
    let dir = plain_log(8 << 10);
    let whole = start(copy(dir.path()).path());
    assert!(matches!(&whole, Start::Serves(found) if found.len() == 90), "{whole:?}");
    let newest = *snapshots(dir.path()).last().unwrap();
    flip(dir.path(), newest, 5_000);
    assert_eq!(salvage(dir.path(), true), (0, "nothing to do: a broker starts on this log\n".to_owned()));
    assert_eq!(start(dir.path()), whole);
}

#[test]
fn a_foreign_file_costs_nothing() {
    let before = Before::new();
    let (log_id, sequence) = (LogId([8; 16]), before.row.len() as u64 + 1);
    let other = SegmentHeader { log_id, sequence, previous_lsn: Lsn(0), previous_crc: 0, synced: Lsn(0) };
    fs::write(path(before.path(), other.file()), other.encode()).unwrap();
    before.salvaged(&before.all(), &[format!("{}: belongs to log {log_id}", other.file())]);
}

#[test]
fn a_duplicated_frame_costs_nothing() {
    let before = Before::new();
    let hit = before.in_second()[7].clone();
    edit(before.path(), hit.file, |bytes| {
        let (len, copy) = (bytes.len(), bytes[hit.start..hit.end].to_vec());
        bytes.splice(hit.end..hit.end, copy);
        bytes.truncate(len);
    });
    before.salvaged(&before.all(), &[format!("LSN {}: the frame there has LSN {}", hit.lsn.next(), hit.lsn)]);
}

#[test]
fn a_zeroed_block_costs_the_messages_it_touches() {
    let before = Before::new();
    let inside = before.in_second();
    let hit = inside[12].clone();
    let block = hit.start + 20..hit.start + 20 + 512;
    edit(before.path(), hit.file, |bytes| bytes[block.clone()].fill(0));
    let gone = |made: &Made| made.file == hit.file && made.start < block.end && block.start < made.end;
    let last = inside.iter().rfind(|made| gone(made)).unwrap().lsn;
    assert!(last > hit.lsn, "the block is longer than a message");
    before.salvaged(&before.without(gone), &[lost(hit.lsn, last)]);
}

#[test]
fn swapped_segments_cost_nothing() {
    let before = Before::new();
    let (first, second) = (path(before.path(), before.row[0]), path(before.path(), before.row[1]));
    let aside = before.path().join("aside");
    fs::rename(&first, &aside).unwrap();
    fs::rename(&second, &first).unwrap();
    fs::rename(&aside, &second).unwrap();
    before.salvaged(&before.all(), &[format!("{}: is segment 2 by its header", before.row[0])]);
}

/// Were a salvage to lose one message more than it must, or to say nothing of one, it would be noticed.
#[test]
fn a_salvage_that_keeps_too_little_or_says_too_little_would_be_noticed() {
    let silent = |before: &Before, kept: &Messages, words: &[String]| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| before.salvaged(kept, words))).is_err()
    };
    let damaged = || {
        let before = Before::new();
        let hit = before.in_second()[7].clone();
        flip(before.path(), hit.file, hit.start + 60);
        (before, hit)
    };
    let (before, hit) = damaged();
    assert!(silent(&before, &before.all(), &[lost(hit.lsn, hit.lsn)]), "a message is gone that should be there");
    let (before, hit) = damaged();
    assert!(silent(&before, &before.without(|made| made.lsn == hit.lsn), &[]), "a loss is told that nobody expects");
}
