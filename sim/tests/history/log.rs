//! The core as oracle: histories of a real core with its real log, and forgeries of both.

use driftq_core::log::MemoryStorage;
use driftq_sim::history::{Check, Entry, Phase, Report, check, compare, compare_storage, read_from};
use serde_json::json;

use crate::live::Live;

/// A snapshot never comes in time.
const NEVER: u64 = u64::MAX;

fn compared(entries: &[Entry], disk: &MemoryStorage) -> Report {
    compare_storage(entries, &mut disk.clone()).expect("the log can be read")
}

#[test]
fn what_clients_of_a_real_core_see_passes_and_so_does_its_log() {
    for seed in 0..60 {
        let live = Live::of(seed, 250, NEVER);
        let entries = read_from(live.text().as_bytes()).expect("it is a history");
        let report = check(&entries).and(compared(&entries, &live.disk));
        assert!(report.passed() && report.notes.is_empty(), "seed {seed}: {report}");
        if seed == 0 {
            for check in Check::OF_HISTORY.into_iter().chain(Check::OF_LOG) {
                assert!(report.tally(check).looked_at > 0, "{check} had nothing to look at: {report}");
            }
        }
    }
}

#[test]
fn a_log_whose_beginning_is_gone_is_held_against_what_is_left_of_it() {
    let mut shortened = 0;
    for seed in 100..120 {
        let live = Live::of(seed, 400, 8 << 10);
        let report = check(&live.entries).and(compared(&live.entries, &live.disk));
        assert!(report.passed(), "seed {seed}: {report}");
        shortened +=
            usize::from(report.notes.iter().any(|note| note.starts_with("snapshots have replaced the log up to LSN")));
    }
    assert!(shortened > 0, "no log lost its beginning");
}

/// What is said when a history is changed behind its server's back.
fn forged(check: Check, words: &str, forge: impl Fn(&mut Vec<Entry>)) {
    let live = Live::of(3, 250, NEVER);
    let mut entries = live.entries.clone();
    forge(&mut entries);
    let report = compared(&entries, &live.disk);
    let told =
        report.violations.iter().find(|violation| violation.check == check && violation.sentence.contains(words));
    assert!(told.is_some(), "{report}");
}

fn last<'e>(entries: &'e mut [Entry], op: &str, phase: Phase) -> &'e mut Entry {
    entries.iter_mut().rfind(|entry| entry.op == op && entry.phase == phase).expect("there is one")
}

#[test]
fn a_produce_at_another_place_is_seen() {
    forged(Check::LogMessages, "as its producer was told, has no record in the log", |entries| {
        last(entries, "produce", Phase::Ok).result["offset"] = json!(1_000);
    });
    forged(Check::LogMessages, "as its producer was told, stands in partition", |entries| {
        last(entries, "produce", Phase::Ok).result["partition"] = json!(7);
    });
}

#[test]
fn a_delivery_that_has_no_record_is_seen() {
    forged(Check::LogDeliveries, "with token ffffffff0000000000000001 has no record in the log", |entries| {
        last(entries, "deliver", Phase::Ok).result["lease_token"] = json!("ffffffff0000000000000001");
    });
    forged(Check::LogDeliveries, "is attempt", |entries| {
        last(entries, "deliver", Phase::Ok).result["attempts"] = json!(77);
    });
    forged(Check::LogDeliveries, "was made to drain-1-", |entries| {
        last(entries, "deliver", Phase::Ok).args["owner"] = json!("somebody");
    });
}

#[test]
fn an_ack_that_left_nothing_behind_is_seen() {
    forged(Check::LogSettled, "was taken and has no record in the log", |entries| {
        let args = last(entries, "ack", Phase::Ok).args.clone();
        for entry in entries.iter_mut().filter(|entry| entry.op == "ack" && entry.args == args) {
            entry.args["offset"] = json!(1_000);
        }
    });
}

#[test]
fn a_call_that_failed_and_left_something_behind_is_seen() {
    forged(Check::LogFailed, "though what asked for it stored nothing", |entries| {
        last(entries, "produce", Phase::Ok).phase = Phase::Fail;
    });
    forged(Check::LogFailed, "and the call for it failed", |entries| {
        last(entries, "ack", Phase::Ok).phase = Phase::Fail;
    });
}

#[test]
fn a_grant_that_was_never_made_is_seen() {
    forged(Check::LogEffects, "which has no record in the log", |entries| {
        let granted = |entry: &&mut Entry| entry.op == "begin" && entry.result["decision"] == "EXECUTE";
        let begin = entries.iter_mut().find(granted).expect("there is one");
        begin.result["lease_token"] = json!("ffffffff0000000000000001");
    });
}

#[test]
fn another_digest_is_seen() {
    forged(Check::LogDigest, "the server's state hash was 0123456789abcdef, and the log gives ", |entries| {
        last(entries, "digest", Phase::Ok).result["digest"] = json!("0123456789abcdef");
    });
    forged(Check::LogDigest, "the server told its state hash at LSN 1000000, and the log ends at LSN", |entries| {
        last(entries, "digest", Phase::Ok).result["lsn"] = json!(1_000_000);
    });
}

#[test]
fn a_log_of_another_life_is_seen() {
    let (one, other) = (Live::of(3, 250, NEVER), Live::of(4, 250, NEVER));
    let report = compared(&one.entries, &other.disk);
    for check in [Check::LogMessages, Check::LogDeliveries, Check::LogSettled, Check::LogFailed, Check::LogDigest] {
        assert!(report.tally(check).violations > 0, "{check}: {report}");
    }
}

#[test]
fn a_log_that_lost_its_end_is_seen() {
    let live = Live::of(5, 250, NEVER);
    let mut disk = live.disk.clone();
    // Every start writes a segment of its own; without the last ones the log is whole, and shorter.
    let mut files = driftq_core::log::Storage::list(&mut disk).expect("it can be listed");
    files.sort_by_key(|info| info.file);
    for info in files.iter().skip(files.len() / 2) {
        disk.uproot(info.file);
    }
    let report = compared(&live.entries, &disk);
    assert!(report.tally(Check::LogSettled).violations > 0, "{report}");
}

/// The disk of a life as a folder.
fn folder_of(live: &Live) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disk = live.disk.clone();
    for info in driftq_core::log::Storage::list(&mut disk).expect("it can be listed") {
        let bytes = disk.bytes(info.file).expect("it is there");
        std::fs::write(folder.path().join(info.file.to_string()), bytes).expect("it is written");
    }
    folder
}

#[test]
fn a_folder_is_read_as_it_lies() {
    let live = Live::of(6, 100, NEVER);
    let folder = folder_of(&live);
    let report = compare(&live.entries, folder.path()).expect("the log can be read");
    assert!(report.passed() && report.tally(Check::LogDeliveries).looked_at > 0, "{report}");
    let missing = compare(&live.entries, &folder.path().join("not-there")).expect_err("there is no such folder");
    assert!(missing.to_string().contains("there is no data folder"), "{missing}");
}

#[test]
fn the_program_holds_a_data_folder_against_a_history() {
    let live = Live::of(6, 100, NEVER);
    let folder = folder_of(&live);
    let history = folder.path().join("history.jsonl");
    let run = |text: &str, data_dir: &std::path::Path| {
        std::fs::write(&history, text).expect("it is written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
        let ended = command.arg("check").arg(&history).arg("--data-dir").arg(data_dir).output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("it writes text");
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let (code, out, _) = run(&live.text(), folder.path());
    assert!(code == Some(0) && out.contains("log-digest") && out.ends_with("\nPASSED\n"), "{out}");

    let forged = live.text().replacen("\"offset\":0,\"partition\":0}", "\"offset\":900,\"partition\":0}", 1);
    let (code, out, _) = run(&forged, folder.path());
    assert!(code == Some(1) && out.contains("log-messages: ") && out.ends_with("\nFAILED\n"), "{out}");

    let (code, out, err) = run(&live.text(), &folder.path().join("not-there"));
    assert!(code == Some(2) && out.is_empty() && err.contains("cannot be compared with the history"), "{err}");
}
