//! The pipeline as a user runs it, for a few seconds.

use std::path::Path;
use std::process::{Command, Output};

/// Kills workers four times a second and the broker every other second.
const SHORT: [&str; 8] = ["--seconds", "3", "--requests", "90", "--pauses", "0.25", "--seed", "7"];

/// Runs the program. The folder that it keeps after a failure is removed.
fn pipeline(arguments: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_pipeline"))
        .args(arguments)
        .arg("--no-build")
        .env("TMPDIR", folder.path())
        .output()
        .expect("the program runs");
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    (output, text)
}

#[test]
fn requests_are_handled_exactly_once_while_workers_and_broker_are_killed() {
    let (output, text) = pipeline(&SHORT);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("each of 90 requests was planned, charged and reported exactly once"), "{text}");
    let kills = text.lines().find(|line| line.starts_with("kills")).unwrap_or_default();
    assert!(!kills.contains(" 0 "), "both were killed: {kills}");
}

#[test]
fn plain_at_least_once_delivery_is_convicted_by_the_counts() {
    let (output, text) = pipeline(&[&SHORT[..], &["--no-store"]].concat());
    assert_eq!(output.status.code(), Some(1), "{text}");
    // Which step is hit, and whether between a produce and its ack, depends on the moment of a kill.
    assert!(text.contains("FAILED:") && text.contains("more than once"), "{text}");
}

#[test]
fn missing_package_is_named_with_the_command_that_installs_it() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("no-such-python");
    let (output, text) = pipeline(&["--language", "python", "--python", &python.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("pip install clients/python"), "{text}");
}
