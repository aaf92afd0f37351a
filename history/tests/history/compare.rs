//! Histories of a real core compared with its log, and forgeries of both.

use driftq_core::log::MemoryStorage;
use driftq_history::{Check, Entry, Phase, Report, check, compare, compare_storage, read_from};
use serde_json::json;

use crate::recorded::{RecordedRun, SEGMENT_BYTES};

/// No snapshots are taken.
const NEVER: Option<u64> = None;

fn compared(entries: &[Entry], disk: &MemoryStorage) -> Report {
    compare_storage(entries, &mut disk.clone()).expect("the log can be read")
}

#[test]
fn history_of_correct_core_passes_with_its_log() {
    for seed in 0..60 {
        let run = RecordedRun::new(seed, 250, NEVER);
        let entries = read_from(run.text().as_bytes()).expect("a well-formed history");
        let report = check(&entries).merge(compared(&entries, &run.disk));
        assert!(report.passed() && report.notes.is_empty(), "seed {seed}: {report}");
        if seed == 0 {
            for check in Check::OF_HISTORY.into_iter().chain(Check::OF_LOG) {
                assert!(report.tally(check).looked_at > 0, "{check} examined nothing: {report}");
            }
        }
    }
}

#[test]
fn log_shortened_by_snapshots_is_compared_from_its_base() {
    let mut shortened = 0;
    for seed in 100..120 {
        let run = RecordedRun::new(seed, 400, Some(8 << 10));
        let report = check(&run.entries).merge(compared(&run.entries, &run.disk));
        assert!(report.passed(), "seed {seed}: {report}");
        shortened +=
            usize::from(report.notes.iter().any(|note| note.starts_with("snapshots have replaced the log up to LSN")));
    }
    assert!(shortened > 0, "no log was shortened");
}

/// Asserts that a forged history causes a violation with this text.
fn forged(check: Check, text: &str, forge: impl Fn(&mut Vec<Entry>)) {
    let run = RecordedRun::new(3, 250, NEVER);
    let mut entries = run.entries.clone();
    forge(&mut entries);
    let report = compared(&entries, &run.disk);
    let found =
        report.violations.iter().find(|violation| violation.check == check && violation.sentence.contains(text));
    assert!(found.is_some(), "{report}");
}

fn last<'e>(entries: &'e mut [Entry], op: &str, phase: Phase) -> &'e mut Entry {
    entries.iter_mut().rfind(|entry| entry.op == op && entry.phase == phase).expect("an entry")
}

#[test]
fn produce_at_another_offset_is_detected() {
    forged(Check::LogMessages, "as acknowledged, has no record in the log", |entries| {
        last(entries, "produce", Phase::Ok).result["offset"] = json!(1_000);
    });
    forged(Check::LogMessages, "as acknowledged, is in partition", |entries| {
        last(entries, "produce", Phase::Ok).result["partition"] = json!(7);
    });
}

#[test]
fn delivery_without_record_is_detected() {
    forged(Check::LogDeliveries, "with token ffffffff0000000000000001 has no record in the log", |entries| {
        last(entries, "deliver", Phase::Ok).result["lease_token"] = json!("ffffffff0000000000000001");
    });
    forged(Check::LogDeliveries, "is attempt", |entries| {
        last(entries, "deliver", Phase::Ok).result["attempts"] = json!(77);
    });
    forged(Check::LogDeliveries, "was made to drain-1-", |entries| {
        last(entries, "deliver", Phase::Ok).args["owner"] = json!("another");
    });
}

#[test]
fn ack_without_record_is_detected() {
    forged(Check::LogSettled, "was accepted and has no record in the log", |entries| {
        let args = last(entries, "ack", Phase::Ok).args.clone();
        for entry in entries.iter_mut().filter(|entry| entry.op == "ack" && entry.args == args) {
            entry.args["offset"] = json!(1_000);
        }
    });
}

#[test]
fn record_of_failed_call_is_detected() {
    forged(Check::LogFailed, "though its call stored nothing", |entries| {
        last(entries, "produce", Phase::Ok).phase = Phase::Fail;
    });
    forged(Check::LogFailed, "and the call for it failed", |entries| {
        last(entries, "ack", Phase::Ok).phase = Phase::Fail;
    });
}

#[test]
fn grant_without_record_is_detected() {
    forged(Check::LogEffects, "which has no record in the log", |entries| {
        let granted = |entry: &&mut Entry| entry.op == "begin" && entry.result["decision"] == "EXECUTE";
        let begin = entries.iter_mut().find(granted).expect("an entry");
        begin.result["lease_token"] = json!("ffffffff0000000000000001");
    });
}

#[test]
fn wrong_digest_is_detected() {
    forged(Check::LogDigest, "the broker reported digest 0123456789abcdef, and the log gives ", |entries| {
        last(entries, "digest", Phase::Ok).result["digest"] = json!("0123456789abcdef");
    });
    forged(Check::LogDigest, "the broker reported a digest at LSN 1000000, and the log ends at LSN", |entries| {
        last(entries, "digest", Phase::Ok).result["lsn"] = json!(1_000_000);
    });
}

#[test]
fn log_of_another_run_is_detected() {
    let (one, other) = (RecordedRun::new(3, 250, NEVER), RecordedRun::new(4, 250, NEVER));
    let report = compared(&one.entries, &other.disk);
    for check in [Check::LogMessages, Check::LogDeliveries, Check::LogSettled, Check::LogFailed, Check::LogDigest] {
        assert!(report.tally(check).violations > 0, "{check}: {report}");
    }
}

#[test]
fn truncated_log_is_detected() {
    let run = RecordedRun::new(5, 250, NEVER);
    let mut disk = run.disk.clone();
    // Every start begins a segment and cuts the one before to what it holds.
    let mut files = driftq_core::log::Storage::list(&mut disk).expect("a list of files");
    files.sort_by_key(|info| info.file);
    let removed = files.split_off(files.len() / 2);
    for info in removed {
        disk.take_file(info.file);
    }
    let refused =
        compare_storage(&run.entries, &mut disk.clone()).expect_err("a segment behind one that was cut is missing");
    assert!(refused.to_string().contains("cut off"), "{refused}");

    // As an older copy of the log has it, the last segment is not cut: then the log is intact and shorter.
    let last = files.last().expect("half of the files").file;
    let mut bytes = disk.take_file(last).expect("the file exists");
    bytes.resize(SEGMENT_BYTES as usize, 0);
    disk.put_file(last, bytes);
    let report = compared(&run.entries, &disk);
    assert!(report.tally(Check::LogSettled).violations > 0, "{report}");
}

/// Writes the log of a run to a folder.
fn folder_of(run: &RecordedRun) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disk = run.disk.clone();
    for info in driftq_core::log::Storage::list(&mut disk).expect("a list of files") {
        let mut bytes = disk.bytes(info.file).expect("the file exists").to_vec();
        // A segment that is shorter than it was made counts as cut off.
        bytes.resize(usize::try_from(info.len).expect("a length in memory"), 0);
        std::fs::write(folder.path().join(info.file.to_string()), bytes).expect("written");
    }
    folder
}

#[test]
fn data_folder_is_compared() {
    let run = RecordedRun::new(6, 100, NEVER);
    let folder = folder_of(&run);
    let report = compare(&run.entries, folder.path()).expect("the log can be read");
    assert!(report.passed() && report.tally(Check::LogDeliveries).looked_at > 0, "{report}");
    let missing = compare(&run.entries, &folder.path().join("not-there")).expect_err("no such folder");
    assert!(missing.to_string().contains("there is no data folder"), "{missing}");
}

#[test]
fn command_compares_a_data_folder() {
    let run = RecordedRun::new(6, 100, NEVER);
    let folder = folder_of(&run);
    let history = folder.path().join("history.jsonl");
    let check = |text: &str, data_dir: &std::path::Path| {
        std::fs::write(&history, text).expect("written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_driftq-history"));
        let ended =
            command.arg("check").arg(&history).arg("--data-dir").arg(data_dir).output().expect("the program starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let (code, out, _) = check(&run.text(), folder.path());
    assert!(code == Some(0) && out.contains("log-digest") && out.ends_with("\nPASSED\n"), "{out}");

    let forged = run.text().replacen("\"offset\":0,\"partition\":0}", "\"offset\":900,\"partition\":0}", 1);
    let (code, out, _) = check(&forged, folder.path());
    assert!(code == Some(1) && out.contains("log-messages: ") && out.ends_with("\nFAILED\n"), "{out}");

    let (code, out, err) = check(&run.text(), &folder.path().join("not-there"));
    assert!(code == Some(2) && out.is_empty() && err.contains("cannot be compared with the history"), "{err}");
}
