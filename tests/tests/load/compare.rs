//! `load compare` on the real broker and on each other system that is installed, for a fraction of a second.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use driftq_tests::daemon;
use tempfile::TempDir;

use super::{Finished, Running, assert_empty, path_str, wait_for};

/// Some servers start in seconds, and longer on a machine that is busy.
const WITHIN: Duration = Duration::from_secs(240);
const SKIPPED: &str = "skipped: ";

/// Compares with one system, on a folder in which nothing may be left.
fn compare(competitor: &str, env: &[(&str, Option<&str>)]) -> Finished {
    let disk = TempDir::new().expect("a folder");
    // RabbitMQ confirms nothing for half a second where other tests keep the disk and both cores busy.
    let seconds = if competitor == "rabbitmq" { "2" } else { "0.2" };
    let finished = start(competitor, disk.path(), &["--turns", "1", "--seconds", seconds], env).finish_within(WITHIN);
    assert_empty(disk.path());
    assert_eq!(processes_with(disk.path()), Vec::<String>::new());
    finished
}

fn start(competitor: &str, disk: &Path, more: &[&str], env: &[(&str, Option<&str>)]) -> Running {
    // A server that runs as another user must be able to reach its folder.
    fs::set_permissions(disk, fs::Permissions::from_mode(0o755)).expect("its mode");
    let driftqd = daemon::driftqd().expect("the broker");
    let args = ["compare", "--only", competitor, "--connections", "8", "--driftqd", path_str(&driftqd)];
    Running::start_with(&[&args[..], &["--dir", path_str(disk)], more].concat(), env)
}

/// The command lines of running processes that name a folder.
fn processes_with(folder: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(path_str(folder))).collect()
}

/// The cells of the row of a system.
fn cells<'a>(run: &'a Finished, system: &str) -> Vec<&'a str> {
    let row = run.stdout.lines().find(|line| line.starts_with(&format!("| {system} |")));
    let row = row.unwrap_or_else(|| panic!("no row of {system} in\n{}{}", run.stdout, run.stderr));
    row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).skip(1).collect()
}

/// Runs a system, and requires figures without failures of each kind of work that it has.
fn expect_figures(competitor: &str, system: &str, works: usize) {
    let run = compare(competitor, &[]);
    if let Some(line) = run.stdout.lines().find(|line| line.starts_with(SKIPPED)) {
        println!("{line}");
        // Whatever is installed has to work. An old NATS on a file system in memory cannot be made to sync.
        assert!(line.ends_with("is not installed") || line.contains("has no sync attribute"), "{line}");
        return;
    }
    run.expect_success();
    for (system, works) in [("DriftQ", 3), (system, works)] {
        let cells = cells(&run, system);
        let measured: Vec<&&str> = cells.iter().filter(|cell| **cell != "–").collect();
        assert_eq!((cells.len(), measured.len()), (3, works), "{cells:?}");
        for cell in measured {
            for expected in ["/s**<br>p50 ", ", p99 ", "<br>CPU ", "<br>ratio ", " checked"] {
                assert!(cell.contains(expected), "{expected} is missing in {cell}");
            }
            assert!(!cell.contains("<br>0 checked"), "{cell}");
        }
        // A system that is slow on a busy machine may finish nothing within the time of one kind of work.
        assert!(cells.iter().any(|cell| cell.contains("/s**") && !cell.starts_with("**0/s")), "{cells:?}");
    }
    assert!(run.stdout.contains(&format!("* {system} (")), "{}", run.stdout);
}

#[test]
fn redis_is_compared_where_it_is_installed() {
    expect_figures("redis", "Redis Streams", 3);
}

#[test]
fn nats_is_compared_where_it_is_installed() {
    expect_figures("nats", "NATS JetStream", 3);
}

#[test]
fn nats_without_syncs_is_compared_where_it_is_installed() {
    expect_figures("nats-unsynced", "NATS JetStream, unsynced", 3);
}

#[test]
fn postgres_is_compared_where_it_is_installed() {
    expect_figures("postgres", "PostgreSQL, SKIP LOCKED", 3);
}

#[test]
fn beanstalkd_is_compared_where_it_is_installed() {
    expect_figures("beanstalkd", "beanstalkd", 2);
}

#[test]
fn rabbitmq_is_compared_where_it_is_installed() {
    expect_figures("rabbitmq", "RabbitMQ, quorum queue", 3);
}

/// A folder with a program of this name, for the path.
fn fake_server(name: &str, commands: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{commands}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    folder
}

#[test]
fn server_that_is_not_installed_or_does_not_start_is_skipped_with_one_line() {
    let empty = TempDir::new().expect("a folder");
    let broken = fake_server("redis-server", "echo 'no such option' >&2; exit 3");
    let cases = [(&empty, "redis-server is not installed"), (&broken, "exit status: 3. It logged: no such option")];
    for (path, reason) in cases {
        let run = compare("redis", &[("PATH", Some(path_str(path.path())))]);
        run.expect_success();
        let skipped: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with(SKIPPED)).collect();
        assert_eq!(skipped.len(), 1, "{}", run.stdout);
        assert!(skipped[0].contains("Redis Streams: ") && skipped[0].contains(reason), "{}", skipped[0]);
        assert!(!run.stdout.contains("| Redis"), "{}", run.stdout);
        assert_eq!(cells(&run, "DriftQ").len(), 3);
    }
}

#[test]
fn interrupt_removes_the_server_and_its_folder() {
    let disk = TempDir::new().expect("a folder");
    // It has its folder among its arguments, and does not answer.
    let path = fake_server("redis-server", "/bin/sleep 1000 & wait");
    let running = start("redis", disk.path(), &["--seconds", "0.05"], &[("PATH", Some(path_str(path.path())))]);
    let has_started = || processes_with(disk.path()).iter().any(|line| line.contains("--appendonly")).then_some(());
    wait_for("the fake server", has_started);
    let pid = rustix::process::Pid::from_child(&running.child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a child");
    assert_eq!(running.finish().code, Some(130));
    assert_eq!(processes_with(disk.path()), Vec::<String>::new());
    assert_empty(disk.path());
}

#[test]
fn running_broker_cannot_be_compared() {
    let run = super::load(&["compare", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("--url cannot be used"), "{}", run.stderr);
}
