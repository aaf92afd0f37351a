//! `load jobs` on the real broker, in a small size: its goals are met, and jobs that die make it fail.

use std::fs;
use std::path::PathBuf;

use driftq_tests::daemon;
use driftq_tests::torture::tools::missing_for_syscalls;
use tempfile::TempDir;

use super::{Finished, assert_empty, load, path_str};

/// Leases of one second: a job of a busy machine is acked in time, and a test does not take long.
const LEASE_MS: &str = "1000";
/// Two leases and more: a job with two attempts would die in it.
const STALL_SECONDS: &str = "2.5";

struct Cells<'a> {
    case: &'a str,
    jobs: &'a str,
    executions: &'a str,
    dead_letters: &'a str,
    acked: &'a str,
    verdict: &'a str,
}

/// Runs a few jobs of each case.
fn run(max_attempts: &str, more: &[&str]) -> Finished {
    let driftqd: PathBuf = daemon::driftqd().expect("the broker");
    let (folder, disk) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let config = folder.path().join("driftqd.toml");
    fs::write(&config, format!("[limits]\nlease_default_ms = {LEASE_MS}\n")).expect("a file");
    let args = ["jobs", "--jobs", "20", "--sequential-jobs", "5", "--work-ms", "5", "--stalled-jobs", "5"];
    let leases = ["--lease-ms", LEASE_MS, "--max-attempts", max_attempts, "--give-up-seconds", "15"];
    let broker = ["--driftqd", path_str(&driftqd), "--dir", path_str(disk.path())];
    let config = ["--daemon-arg=--config", "--daemon-arg", path_str(&config)];
    let finished = load(&[&args[..], &leases, &broker, &config, more].concat());
    assert_empty(disk.path());
    finished
}

fn rows(run: &Finished) -> Vec<Cells<'_>> {
    let rows = run.stdout.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        match cells[..] {
            [_, case, jobs, executions, _, dead_letters, acked, _, verdict, _] => {
                Cells { case, jobs, executions, dead_letters, acked, verdict }
            }
            _ => panic!("another number of cells: {row}"),
        }
    });
    cells.collect()
}

#[test]
#[ignore = "leases of a second: on a busy machine a job is executed twice; run it alone"]
fn jobs_survive_silent_stream_slow_worker_and_stalled_disk() {
    if let Some(reason) = missing_for_syscalls() {
        println!("skipped: load jobs, because {reason}");
        return;
    }
    let run = run("2", &["--stall-seconds", STALL_SECONDS]);
    run.expect_success();
    let rows = rows(&run);
    let cases: Vec<&str> = rows.iter().map(|row| row.case).collect();
    assert_eq!(
        cases,
        [
            "silent stream; default lease, no retry policy",
            "silent stream; default lease, `max_attempts` 2",
            "silent stream; lease 1000 ms, `max_attempts` 2",
            "sequential worker, 5 ms a job; default lease, `max_attempts` 2",
            "sequential worker, 5 ms a job; lease 1000 ms, `max_attempts` 2",
            "disk stalled for 2.5 s; lease 1000 ms, `max_attempts` 2",
        ]
    );
    for row in rows {
        let verdict = if row.case.contains("a job; lease") { "no goal" } else { "met" };
        assert_eq!((row.acked, row.dead_letters, row.verdict), (row.jobs, "0", verdict), "{}", run.stdout);
        let [jobs, executions]: [u64; 2] = [row.jobs, row.executions].map(|cell| cell.parse().expect("a number"));
        assert!(executions >= jobs && executions * 10 <= jobs * 11, "{}", run.stdout);
    }
}

/// With one attempt the oldest delivery of a silent stream dies, and no other: an expiry is its failure.
#[test]
#[ignore = "leases of a second: on a busy machine a job is executed twice; run it alone"]
fn dead_letter_is_counted_and_fails_the_run() {
    let run = run("1", &["--stall-seconds", "0.01"]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let rows = rows(&run);
    let verdict = |row: &Cells<'_>| (row.dead_letters.to_owned(), row.acked.to_owned(), row.verdict.to_owned());
    let texts = |dead: &str, acked: &str, verdict: &str| (dead.to_owned(), acked.to_owned(), verdict.to_owned());
    assert_eq!(verdict(&rows[0]), texts("0", "20", "met"), "{}", run.stdout);
    for row in &rows[1..3] {
        assert_eq!(verdict(row), texts("1", "19", "missed"), "{}", run.stdout);
    }
    assert!(run.stdout.contains("1 × goal missed: silent stream; default lease, `max_attempts` 1"), "{}", run.stdout);
}

#[test]
fn broker_at_a_url_is_refused() {
    let run = load(&["jobs", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("--url cannot be used"), "{}", run.stderr);
}
