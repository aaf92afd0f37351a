//! `load backlog` with a fake broker: what it prints, what it checks, and that it leaves nothing behind.

use tempfile::TempDir;

use super::{Finished, assert_empty, fake_program, load, path_str};

/// Runs `load backlog` with a fake broker as its process; nothing may be left on its disk.
fn backlog(args: &[&str]) -> Finished {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let own = ["backlog", "--driftqd", path_str(&program), "--dir", path_str(disk.path())];
    let run = load(&[&own[..], args].concat());
    assert_empty(disk.path());
    run
}

#[track_caller]
fn expect_texts(run: &Finished, texts: &[&str]) {
    for text in texts {
        assert!(run.stdout.contains(text), "{text} is missing in\n{}{}", run.stdout, run.stderr);
    }
}

#[test]
fn backlog_kills_and_restarts_daemon() {
    let run = backlog(&["--messages", "2000", "--seconds", "0.2"]);
    run.expect_success();
    let texts =
        ["RSS", "× that of the empty broker", "after kill -9: ready", "first delivery", "disk used / live bytes"];
    expect_texts(&run, &texts);
    // 90 of 100 bytes are records; 5 of snapshots come on top.
    expect_texts(&run, &["1.17 × the records", "write_bytes of the process", "all writes to its device"]);
    assert!(!run.stdout.contains("drained at"), "{}", run.stdout);
}

#[test]
fn drains_check_every_message_and_compare_rates() {
    let run = backlog(&["--messages", "2000", "--seconds", "0.1", "--cold", "--warm", "--warm-messages", "500"]);
    run.expect_success();
    expect_texts(&run, &["cold     drained at", "warm     drained at", "| draining it cold against everything cached"]);
    expect_texts(&run, &["500 acked (0 redelivered), 500 different ones with every byte as produced"]);
}

#[test]
fn value_that_is_not_what_was_produced_fails_the_drain() {
    let run = backlog(&["--messages", "500", "--seconds", "0.1", "--cold", "--daemon-arg", "--damaged-values"]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    expect_texts(&run, &["× value that is not what was produced", "× message not delivered as it was produced"]);
}

#[test]
fn memory_limit_is_kept_before_and_after_the_kill() {
    let run = backlog(&["--messages", "500", "--seconds", "0.1", "--memory-limit", "512M"]);
    run.expect_success();
    expect_texts(&run, &["with at most 536.9 MB of private memory", "all drained"]);
    // Too little for the process to go on.
    let run = backlog(&["--messages", "200000", "--size", "1000", "--seconds", "0.1", "--memory-limit", "8M"]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
}

#[test]
fn steady_backlog_is_produced_and_acked() {
    let run = backlog(&["--messages", "4000", "--steady", "1", "--rate", "4000", "--partitions", "2"]);
    run.expect_success();
    expect_texts(&run, &["messages/s produced and acked, 4,000 asked for", "cleaning: ", "busy: p50"]);
    expect_texts(&run, &["| bytes appended / record bytes, steady backlog |"]);
    let run = backlog(&["--messages", "4000", "--steady", "1", "--rate", "4000", "--daemon-arg", "--damaged-values"]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    expect_texts(&run, &["× value that is not what was produced"]);
}
