//! Logs that this program does not support are refused by a start and by every `driftqd wal` command, and are not
//! treated as damaged.

use std::path::Path;
use std::process::Command as Process;

use driftq_core::log::FileId;

use super::daemon::{Start, start};
use super::support::*;

/// Runs `driftqd` and returns its exit code and everything it printed.
fn driftqd(args: &[&str]) -> (i32, String) {
    let run = Process::new(env!("CARGO_BIN_EXE_driftqd")).args(args).output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    (run.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Changes bytes of a header and corrects its checksum.
fn edit_header(dir: &Path, file: FileId, change: impl FnOnce(&mut [u8])) {
    edit(dir, file, |bytes| {
        change(&mut bytes[..124]);
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    });
}

/// Every command refuses the folder with these texts, and changes nothing.
fn assert_refused(dir: &Path, texts: &[&str]) {
    let before = files(dir);
    let folder = dir.to_str().unwrap();
    let commands: [&[&str]; 5] = [
        &["wal", "verify", folder],
        &["wal", "dump", folder],
        &["wal", "inspect", folder],
        &["wal", "salvage", folder],
        &["wal", "salvage", folder, "--accept-loss"],
    ];
    let Start::Refuses(_, start) = start(dir) else { panic!("the broker starts") };
    let refusals = commands.map(|command| {
        let (code, text) = driftqd(command);
        assert_eq!(code, 2, "{command:?}: {text}");
        (command, text)
    });
    for (command, text) in refusals.into_iter().chain([(&["start"][..], start)]) {
        for part in texts {
            assert!(text.contains(part), "{command:?}: {part:?} is not in {text:?}");
        }
        assert!(!text.contains("damaged") && !text.contains("wal salvage DIR"), "{command:?}: {text}");
    }
    assert_eq!(files(dir), before);
}

#[test]
fn folder_of_preview_format_is_refused_by_every_command_and_by_a_start() {
    let dir = log();
    let first = segments(dir.path())[0];
    // The header of format version 1: sequence, first LSN, previous LSN, its CRC, synced LSN, size.
    edit_header(dir.path(), first, |header| {
        header[8] = 1;
        header[40..76].fill(0);
        header[40] = 1;
    });
    let texts = [
        &format!("{first}: written in format version 1, which this program cannot read"),
        "preview 0.1",
        "Run the program that wrote it until every message is consumed, then start this one in an empty folder",
    ];
    assert_refused(dir.path(), &texts);
}

#[test]
fn snapshot_of_preview_format_is_refused_by_every_command_and_by_a_start() {
    let dir = log_with_snapshots();
    let snapshot = files(dir.path()).into_keys().find(|name| name.ends_with(".snap")).unwrap();
    edit_header(dir.path(), snapshot.parse().unwrap(), |header| header[8] = 1);
    assert_refused(dir.path(), &[&format!("{snapshot}: written in format version 1"), "preview 0.1"]);
}

#[test]
fn folder_of_newer_format_is_refused_by_every_command_and_by_a_start() {
    let dir = log();
    let first = segments(dir.path())[0];
    edit_header(dir.path(), first, |header| header[8] = 3);
    assert_refused(dir.path(), &["written in format version 3", "use a newer version of the program"]);
}

#[test]
fn folder_of_cluster_node_is_refused_by_every_command_and_by_a_start() {
    let dir = log();
    let first = segments(dir.path())[0];
    // The cluster id.
    edit_header(dir.path(), first, |header| header[84] = 1);
    assert_refused(dir.path(), &[&format!("{first}: belongs to a node of a cluster")]);
}
