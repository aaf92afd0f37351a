//! Damaged snapshots, cut segments, and what is no file under the log's names.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use driftq_core::log::{FileId, HEADER_BYTES};
use driftq_core::types::*;

use super::support::*;

/// A log of one snapshot with many messages. Of the segments before it, the first, without messages, is gone.
fn only_snapshot(messages: u64) -> (tempfile::TempDir, FileId) {
    let dir = memory_dir();
    drop(Broker::open(dir.path(), u64::MAX, 1_000_000));
    let mut broker = Broker::open(dir.path(), u64::MAX, 1_000_000);
    broker.topic("orders", 2);
    for number in 0..messages {
        broker.produce("orders", number);
    }
    broker.topic("consumed", 2);
    (0..20).for_each(|number| broker.produce("consumed", number));
    broker.consume("consumed", 10);
    for _ in 0..2 {
        broker.pipeline.request_snapshot();
        broker.settle();
        broker.topic(&format!("later-{}", ids(dir.path()).len()), 1);
    }
    drop(broker);
    assert_eq!(segments(dir.path())[0], FileId::Segment(2));
    let snapshots: Vec<_> = ids(dir.path()).into_iter().filter(|file| matches!(file, FileId::Snapshot(_))).collect();
    fs::remove_file(path(dir.path(), snapshots[0])).unwrap();
    (dir, snapshots[1])
}

#[test]
fn flipped_bit_in_the_only_snapshot_loses_one_piece() {
    // A piece holds up to so many messages.
    const CHUNK: usize = 128;
    let (dir, snapshot) = only_snapshot(5_000);
    let before = messages(&state(dir.path()));
    assert!(before.len() > 5_000);
    let middle = fs::metadata(path(dir.path(), snapshot)).unwrap().len() as usize / 2;
    flip(dir.path(), snapshot, middle);
    let (text, salvaged) = salvage_checked(dir.path());
    assert!(text.contains("lost: 1 pieces of the newest snapshot\n"), "{text}");
    let after = messages(&salvaged);
    assert!(after.len() + CHUNK >= before.len() && after.is_subset(&before), "{} messages are kept", after.len());
    let snapshots = ids(dir.path()).into_iter().filter(|file| matches!(file, FileId::Snapshot(_))).count();
    assert_eq!(snapshots, 2, "a salvaged log does not depend on one file");
}

#[test]
fn topic_whose_own_piece_of_the_snapshot_is_lost_is_kept_and_named_in_the_output() {
    let (dir, snapshot) = only_snapshot(50);
    let before = state(dir.path());
    let bytes = fs::read(path(dir.path(), snapshot)).unwrap();
    let name = bytes.windows(6).position(|window| window == b"orders").expect("the topic is in the snapshot");
    flip(dir.path(), snapshot, name);
    let (text, salvaged) = salvage_checked(dir.path());
    let orders = before.topic_named(&TopicName::new("orders").unwrap()).unwrap().id();
    let given = TopicName::new(&format!("salvaged.{}", orders.0)).unwrap();
    let line = format!("lost: the name and settings of a topic, which is now named {given}\n");
    assert!(text.contains(&line), "{text}");
    let given_name = |(topic, partition, offset, value): (String, u32, u64, Vec<u8>)| {
        (if topic == "orders" { given.to_string() } else { topic }, partition, offset, value)
    };
    assert_eq!(messages(&salvaged), messages(&before).into_iter().map(given_name).collect());
}

#[test]
fn snapshot_with_any_page_lost_keeps_the_messages_of_the_others() {
    let (dir, snapshot) = only_snapshot(4_000);
    let before = messages(&state(dir.path()));
    let len = fs::metadata(path(dir.path(), snapshot)).unwrap().len() as usize;
    for page in 0..len / 4_096 {
        let dir = copy(dir.path());
        edit(dir.path(), snapshot, |bytes| bytes[page * 4_096..(page + 1) * 4_096].fill(0));
        let (code, text) = salvage(dir.path(), true);
        assert!(code == 3 || code == 0 && page == 0, "page {page}: {code} {text}");
        let salvaged = state(dir.path());
        salvaged.check().unwrap();
        let kept = messages(&salvaged).len();
        // A packed message takes three bytes at least.
        assert!(kept + 4_096 / 3 >= before.len(), "page {page}: {kept} of {} messages are kept", before.len());
    }
}

#[test]
fn name_of_a_stray_snapshot_moves_no_offset() {
    let dir = log();
    let intact = state(dir.path());
    fs::write(path(dir.path(), FileId::Snapshot(FrameNumber(1_000_000_000))), b"not a snapshot").unwrap();
    assert_eq!(verify(dir.path()).0, 1);
    let (_, salvaged) = salvage_checked(dir.path());
    assert_eq!(messages(&salvaged), messages(&intact));
    for topic in intact.topics() {
        assert_eq!(salvaged.topic_named(topic.name()).unwrap().next_offset(), topic.next_offset());
    }
}

#[test]
fn last_segment_of_a_closed_log_that_is_too_short_is_reported_as_cut() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = Broker::open(dir.path(), u64::MAX, 1_000_000);
    broker.topic("orders", 1);
    (0..20).for_each(|number| broker.produce("orders", number));
    broker.pipeline.close();
    broker.settle();
    drop(broker);
    let last = segments(dir.path())[0];
    let len = fs::metadata(path(dir.path(), last)).unwrap().len();
    assert!(len < 16 << 10, "it was cut to what it holds when the log was closed");
    assert_eq!(verify(dir.path()).0, 0);
    for cut in [len - 1, len - 30, len - 500, HEADER_BYTES as u64] {
        let dir = copy(dir.path());
        fs::File::options().write(true).open(path(dir.path(), last)).unwrap().set_len(cut).unwrap();
        let (code, text) = verify(dir.path());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&format!("refused: {last}: cut off at byte {cut}")), "{text}");
        let (text, salvaged) = salvage_checked(dir.path());
        assert!(text.contains("lost: whatever was in the part of the last segment that was cut off"), "{text}");
        let kept = messages(&salvaged).len();
        assert!(kept >= 20 || cut < len - 30, "cut at {cut}: {kept} messages are kept");
    }
}

#[test]
fn anything_but_a_file_under_a_name_of_the_log_is_named_and_refused() {
    let name = "wal-00000000000000000099.seg";
    type Put = fn(&std::path::Path);
    let puts: [(&str, Put); 3] = [
        ("a folder", |path| fs::create_dir(path).unwrap()),
        ("a pipe", |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("a link to nothing", |path| symlink("nowhere", path).unwrap()),
    ];
    for (what, put) in puts {
        let dir = log();
        put(&dir.path().join(name));
        for (code, text) in [verify(dir.path()), salvage(dir.path(), false), salvage(dir.path(), true)] {
            assert_eq!(code, 2, "{text}");
            assert!(text.contains(&format!("{name} is {what}")), "{text}");
        }
        let mut storage = driftq_files::DataFolder::open(dir.path()).unwrap().storage();
        let opened = driftq_core::OpenOptions::new().config(config(u64::MAX)).open(&mut storage, Timestamp(9_000_000));
        assert!(opened.is_err_and(|error| error.to_string().contains(&format!("{name} is {what}"))));
    }
}

#[test]
fn link_to_a_file_is_followed() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let elsewhere = tempfile::tempdir().unwrap();
    let (first, target) = (path(dir.path(), segments(dir.path())[0]), elsewhere.path().join("moved"));
    fs::rename(&first, &target).unwrap();
    symlink(&target, &first).unwrap();
    assert_eq!(verify(dir.path()).0, 0);
    assert_eq!(messages(&state(dir.path())), before);
}
