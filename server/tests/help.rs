//! Every example in a help text of `driftqd` runs: none is misspelt or obsolete.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use driftq_core::types::Timestamp;

use super::wal::support::Broker;

fn driftqd(folder: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
    command.args(arguments).current_dir(folder).env_clear();
    command
}

/// The arguments of the examples in a help text.
fn examples(folder: &Path, command: &[&str]) -> Vec<Vec<String>> {
    let arguments: Vec<String> = command.iter().chain(&["--help"]).map(|text| (*text).to_owned()).collect();
    let Output { status, stdout, .. } = driftqd(folder, &arguments).output().unwrap();
    assert!(status.success(), "{command:?}");
    let help = String::from_utf8(stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1).map_while(|line| line.strip_prefix("  "));
    // The log of this test is shorter than that of the examples.
    let shorter = |argument: &str| argument.replace("5120", "12").replace("5000", "10");
    let arguments = |line: &str| line.split_whitespace().skip(1).map(shorter).collect();
    lines.inspect(|line| assert!(line.starts_with("driftqd"), "{line}")).map(arguments).collect()
}

/// Starts a broker on a port of its own, waits until it listens, and ends it.
fn assert_serves(folder: &Path, mut arguments: Vec<String>) {
    let flag = arguments.iter().position(|argument| argument.trim_start_matches('-') == "addr");
    match flag {
        Some(at) => arguments[at + 1] = format!("{}:0", arguments[at + 1].rsplit_once(':').unwrap().0),
        None => arguments.extend(["--addr", "127.0.0.1:0"].map(ToOwned::to_owned)),
    }
    let log = folder.join("log");
    let mut child = driftqd(folder, &arguments).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let listens = loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if text.contains("listening on http://") || Instant::now() > end || child.try_wait().unwrap().is_some() {
            break text.contains("listening on http://");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(listens, "{arguments:?}: {}", std::fs::read_to_string(&log).unwrap());
}

#[test]
fn every_example_of_a_help_text_runs() {
    let folder = tempfile::tempdir().unwrap();
    // The times of the examples lie within the log.
    let mut broker = Broker::open(&folder.path().join("driftq-data"), u64::MAX, EXAMPLE_TIME_MS - 600_000);
    broker.topic("orders", 1);
    for number in 0..20 {
        broker.produce("orders", number);
    }
    broker.now = Timestamp(EXAMPLE_TIME_MS + 1_000);
    broker.produce("orders", 20);
    drop(broker);
    for command in [&[][..], &["wal", "inspect"]] {
        let examples = examples(folder.path(), command);
        assert!(examples.len() >= 5, "{command:?}: {examples:?}");
        for arguments in examples {
            match arguments.first().map(String::as_str) {
                Some("config" | "wal" | "keys") => {
                    let Output { status, stderr, .. } = driftqd(folder.path(), &arguments).output().unwrap();
                    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
                }
                _ => assert_serves(folder.path(), arguments),
            }
        }
    }
}

/// The time in an example of `driftqd wal inspect`, 2026-11-15T12:00:00Z.
const EXAMPLE_TIME_MS: u64 = 1_794_744_000_000;
