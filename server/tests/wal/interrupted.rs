//! A salvage that is interrupted at any point leaves the old files in place or the new log ready, and the next run
//! resumes it.

use std::fs;
use std::path::Path;

use driftq_core::log::FileId;

use super::support::*;

/// Two segments, the first with payloads of the damaged one, and two snapshots.
const NEW_FILES: usize = 4;

/// A salvaged log, and the same log with its salvage interrupted after `moves` moves. Also returns the old files.
fn interrupted(moves: usize) -> (tempfile::TempDir, tempfile::TempDir, Vec<FileId>) {
    let (done, dir) = (log(), tempfile::tempdir().unwrap());
    let (file, byte) = (segments(done.path())[1], frames(done.path(), segments(done.path())[1])[3].0);
    flip(done.path(), file, byte + 40);
    for (name, bytes) in files(done.path()) {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    assert_eq!(salvage(done.path(), true).0, 3);
    let (mut new, mut old) = (ids(done.path()), ids(dir.path()));
    let stayed: Vec<FileId> = old.iter().copied().filter(|file| new.contains(file)).collect();
    assert!(!stayed.is_empty(), "whole segments with payloads stay in place");
    new.retain(|file| !stayed.contains(file));
    old.retain(|file| !stayed.contains(file));
    assert_eq!(new.len(), NEW_FILES);
    let (temporary, aside) = (dir.path().join("salvage-tmp"), dir.path().join("quarantine-20260101T000000Z"));
    fs::create_dir(&temporary).unwrap();
    let mut plan = "quarantine quarantine-20260101T000000Z\n".to_owned();
    for file in &new {
        fs::copy(path(done.path(), *file), temporary.join(file.to_string())).unwrap();
        plan += &format!("new {file}\n");
    }
    old.iter().for_each(|file| plan += &format!("old {file}\n"));
    fs::write(temporary.join("plan"), plan + "loss\nend\n").unwrap();
    if moves > new.len() {
        fs::create_dir(&aside).unwrap();
    }
    let into = new.iter().map(|file| (path(&temporary, *file), path(dir.path(), *file)));
    let out = old.iter().map(|file| (path(dir.path(), *file), path(&aside, *file)));
    for (from, to) in into.chain(out).take(moves) {
        fs::rename(from, to).unwrap();
    }
    (done, dir, old)
}

fn check_resumed(dir: &Path, expected: &Path, old: &[FileId]) {
    let (code, text) = salvage(dir, false);
    assert_eq!((code, text.contains("add --accept-loss to finish it")), (1, true), "{text}");
    let (code, text) = salvage(dir, true);
    assert_eq!((code, text.contains("an interrupted salvage is finished")), (3, true), "{text}");
    assert_eq!(files(dir), files(expected));
    assert_eq!(ids(&quarantine(dir)), old);
    assert!(!dir.join("salvage-tmp").exists());
    assert_eq!(verify(dir).0, 0);
}

#[test]
fn salvage_interrupted_between_moves_is_resumed() {
    let (_, _, old) = interrupted(0);
    for moves in 0..=old.len() + NEW_FILES {
        let (done, dir, old) = interrupted(moves);
        // A start in between refuses, or finds the new log intact.
        let (code, text) = verify(dir.path());
        match moves {
            0..=2 => assert_eq!(code, 1, "{text}"),
            _ => assert_eq!(state(dir.path()), state(done.path()), "after {moves} moves"),
        }
        check_resumed(dir.path(), done.path(), &old);
    }
}

#[test]
fn salvage_interrupted_before_its_plan_starts_over() {
    for plan in
        [None, Some("quarantine quarantine-x\nnew wal-00000000000000000009.seg\n"), Some("quarantine ../x\nend\n")]
    {
        let dir = log();
        let (file, byte) = (segments(dir.path())[1], frames(dir.path(), segments(dir.path())[1])[3].0);
        flip(dir.path(), file, byte + 40);
        let temporary = dir.path().join("salvage-tmp");
        fs::create_dir(&temporary).unwrap();
        fs::write(temporary.join("wal-00000000000000000009.seg"), "half").unwrap();
        if let Some(plan) = plan {
            fs::write(temporary.join("plan"), plan).unwrap();
        }
        let before = files(dir.path());
        let (code, text) = salvage(dir.path(), true);
        assert_eq!((code, text.contains("was refused: ")), (3, true), "{text}");
        let stayed = files(dir.path());
        let gone = before.into_iter().filter(|(name, _)| !stayed.contains_key(name)).collect();
        assert_eq!(files(&quarantine(dir.path())), gone);
        assert!(!temporary.exists());
    }
}
