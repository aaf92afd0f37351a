//! `verify` and `dump` report what is in a log and change nothing.

use std::fs;

use driftq_core::log::FileId;
use driftq_files::DataFolder;
use driftq_server::wal::WalCommand;

use super::support::*;

fn dump(
    dir: &std::path::Path,
    change: impl FnOnce(&mut Option<u64>, &mut Option<u64>, &mut bool, &mut bool),
) -> (u8, String) {
    let (mut from, mut to, mut json, mut full) = (None, None, false, false);
    change(&mut from, &mut to, &mut json, &mut full);
    run(&WalCommand::Dump { dir: dir.to_owned(), from, to, json, full })
}

#[test]
fn intact_log_is_reported_by_file_and_left_unchanged() {
    for dir in [log(), log_with_snapshots()] {
        let before = files(dir.path());
        let (code, text) = verify(dir.path());
        assert_eq!(code, 0, "{text}");
        for file in ids(dir.path()) {
            assert!(text.contains(&file.to_string()), "{text}");
        }
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("ok: LSN ") && last.contains("2 topics, 2 groups, "), "{last}");
        let (code, text) = salvage(dir.path(), true);
        assert_eq!((code, text.as_str()), (0, "nothing to do: a broker starts on this log\n"));
        assert_eq!(files(dir.path()), before);
    }
}

#[test]
fn torn_tail_is_no_damage() {
    let dir = log();
    let last = *segments(dir.path()).iter().rfind(|file| !frames(dir.path(), **file).is_empty()).unwrap();
    let (end, ..) = *frames(dir.path(), last).last().unwrap();
    edit(dir.path(), last, |bytes| bytes[end..end + 20].fill(9));
    let (code, text) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("notice: ") && text.contains("torn tail"), "{text}");
    assert_eq!(salvage(dir.path(), true).0, 0);
}

#[test]
fn folder_in_use_and_folder_without_log_are_refused() {
    let dir = log();
    let held = DataFolder::open(dir.path()).unwrap();
    for (code, text) in [verify(dir.path()), salvage(dir.path(), true), dump(dir.path(), |_, _, _, _| {})] {
        assert_eq!(code, 2);
        assert!(text.contains("is in use by another driftqd (lock file "), "{text}");
    }
    drop(held);
    let empty = tempfile::tempdir().unwrap();
    let (code, text) = verify(empty.path());
    assert_eq!((code, text.as_str()), (2, "there is no log here"));
    assert_eq!(verify(&empty.path().join("nowhere")).0, 2);
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn dump_has_a_line_for_every_frame() {
    let dir = log();
    let count: usize = segments(dir.path()).iter().map(|file| frames(dir.path(), *file).len()).sum();
    let (code, text) = dump(dir.path(), |_, _, _, _| {});
    assert_eq!((code, text.lines().count()), (0, count));
    assert!(text.lines().next().unwrap().contains("booted boot=1"), "{text}");
    assert!(text.contains("topic created") && text.contains("acked") && text.contains("(157 bytes)"), "{text}");

    let (code, text) =
        dump(dir.path(), |from, to, json, full| (*from, *to, *json, *full) = (Some(2), Some(6), true, true));
    assert_eq!(code, 0);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lsns: Vec<_> = lines.iter().map(|line| line["lsn"].as_u64().unwrap()).collect();
    assert_eq!(lsns, [2, 3, 4, 5, 6]);
    let produced = lines.iter().find(|line| line["kind"] == "produced").unwrap();
    assert_eq!(
        produced["is"]["value"].as_str().unwrap().len(),
        produced["is"]["value_bytes"].as_u64().unwrap() as usize
    );
}

#[test]
fn dump_stops_at_damage_and_names_its_position() {
    let dir = log();
    let file = FileId::Segment(2);
    let (position, number, _) = frames(dir.path(), file)[5];
    flip(dir.path(), file, position + 40);
    let (code, text) = dump(dir.path(), |_, _, _, _| {});
    assert_eq!(code, 1);
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("stopped: {file}, byte {position}, frame {number}: not a frame: wrong checksum")),
        "{last}"
    );
}
