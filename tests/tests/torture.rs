//! `torture` on the real broker, with fewer repetitions: no invariant is violated, and the canary is detected.
//!
//! What needs root or a tool is skipped with a line that says so. Histories with violations are kept in cargo's folder
//! for temporary files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driftq_history::Check;
use driftq_tests::daemon;
use driftq_tests::torture::disk::FileSystem;
use driftq_tests::torture::faults;
use driftq_tests::torture::scenario::Options;
use driftq_tests::torture::verdict::FaultSummary;

fn driftqd() -> &'static Path {
    static DRIFTQD: OnceLock<PathBuf> = OnceLock::new();
    DRIFTQD.get_or_init(|| daemon::driftqd().expect("the broker"))
}

fn options() -> Options {
    let keep = Path::new(env!("CARGO_TARGET_TMPDIR")).join("torture");
    Options { driftqd: driftqd().to_owned(), canary: env!("CARGO_BIN_EXE_canary").into(), seed: 1, keep: Some(keep) }
}

/// Asserts that a fault was injected often enough and no invariant was violated; `None` if it was skipped.
fn assert_passed(summary: Result<FaultSummary, String>, runs: u64, acked: u64) -> Option<FaultSummary> {
    let summary = not_skipped(summary)?;
    let sum = &summary.sum;
    println!("{}: {} runs, {:?}, {:?}", summary.fault, summary.runs, sum.counts, summary.time);
    assert!(summary.passed(), "{}: {:#?}", summary.fault, sum.violations);
    assert_eq!((sum.lost, sum.resurrected, sum.stale_acks, sum.repeated_attempts, sum.other), (0, 0, 0, 0, 0));
    assert!(summary.runs >= runs, "only {} runs", summary.runs);
    assert!(sum.counts.acked >= acked, "only {} successful calls", sum.counts.acked);
    for check in
        [Check::Lost, Check::Resurrected, Check::Attempts, Check::Drained, Check::LogMessages, Check::LogSettled]
    {
        assert!(summary.examined(check) >= acked / 10, "{check}: only {} examined", summary.examined(check));
    }
    Some(summary)
}

fn not_skipped(summary: Result<FaultSummary, String>) -> Option<FaultSummary> {
    let summary = summary.expect("the driver does not fail");
    if let Some(reason) = &summary.skipped {
        println!("skipped: {}, because {reason}", summary.fault);
        return None;
    }
    Some(summary)
}

#[test]
fn two_hundred_kills_under_load_violate_no_invariant() {
    let Some(summary) = assert_passed(faults::kills(&options(), 200, &|| {}), 200, 5_000) else { return };
    for check in [Check::Stale, Check::Effects, Check::Steps, Check::Order, Check::Identity, Check::Overlap] {
        assert!(summary.examined(check) >= 200, "{check}: only {} examined", summary.examined(check));
    }
    assert!(summary.sum.counts.dead >= 50, "only {} dead letters", summary.sum.counts.dead);
    assert_eq!(summary.examined(Check::LogDigest), 5, "the replayed log of each history has the server's digest");
}

#[test]
fn twenty_power_losses_on_ext4_violate_no_invariant() {
    assert_passed(faults::power(&options(), FileSystem::Ext4, 20, &|| {}), 20, 500);
}

#[test]
fn twenty_power_losses_on_xfs_violate_no_invariant() {
    assert_passed(faults::power(&options(), FileSystem::Xfs, 20, &|| {}), 20, 500);
}

#[test]
fn power_loss_of_broker_without_sync_is_detected() {
    let Some(summary) = not_skipped(faults::canary(&options(), 10, &|| {})) else { return };
    let (detected, runs, lost) = (summary.detected, summary.runs, summary.sum.lost);
    println!("detected {detected:?} of {runs}, {lost} lost, {:?}", summary.time);
    assert!(detected >= Some(9), "detected {detected:?} of {runs}");
    assert!(lost > 0, "detected, but not by a lost message");
    assert!(summary.passed());
}

#[test]
fn kill_at_every_write_sync_and_rename_violates_no_invariant() {
    assert_passed(faults::exact_syscalls(&options(), &|| {}), 60, 2_000);
}

#[test]
fn failing_sync_stops_broker_and_loses_nothing_acknowledged() {
    assert_passed(faults::failing_sync(&options(), &|| {}), 2, 100);
}

#[test]
fn failing_write_stops_broker_and_loses_nothing_acknowledged() {
    assert_passed(faults::failing_write(&options(), &|| {}), 2, 100);
}

#[test]
fn short_write_leaves_no_partial_record() {
    assert_passed(faults::short_write(&options(), &|| {}), 2, 100);
}

#[test]
fn full_disk_accepts_acks_and_recovers_with_space() {
    assert_passed(faults::full_disk(&options(), &|| {}), 2, 100);
}

#[test]
fn slow_disk_violates_no_invariant() {
    assert_passed(faults::slow_disk(&options(), &|| {}), 1, 50);
}

#[test]
fn pause_past_leases_fences_late_workers() {
    assert_passed(faults::pauses(&options(), 4, &|| {}), 4, 100);
}

#[test]
fn clock_jumps_repeat_no_token_and_lose_no_key() {
    assert_passed(faults::clock_jumps(&options(), &|| {}), 5, 100);
}

#[test]
fn second_broker_on_folder_is_refused_without_harm() {
    assert_passed(faults::second_server(&options(), &|| {}), 1, 50);
}

fn torture(args: &[&str]) -> (Option<i32>, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_torture")).args(args).output().expect("the program runs");
    let output = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    (run.status.code(), output)
}

#[test]
fn exit_code_and_last_line_match_result() {
    let driftqd = driftqd().to_str().expect("a name");
    let (code, output) = torture(&["--kills", "3", "--driftqd", driftqd]);
    assert_eq!((code, output.trim_end().lines().last()), (Some(0), Some("PASSED")), "{output}");
    assert!(output.contains("| kill -9 under load |    3 |"), "{output}");
    if FileSystem::Ext4.missing().is_none() {
        let canary = env!("CARGO_BIN_EXE_canary");
        let (code, output) = torture(&["--power", "2", "--power-fs", "ext4", "--driftqd", canary]);
        assert_eq!((code, output.trim_end().lines().last()), (Some(1), Some("FAILED")), "{output}");
    }
    let (code, output) = torture(&["--kills", "1", "--driftqd", "/nowhere/driftqd"]);
    assert!(code == Some(2) && output.contains("/nowhere/driftqd"), "{code:?} {output}");
    let (code, output) = torture(&[]);
    assert!(code == Some(2) && output.contains("--kills"), "{code:?} {output}");
}

#[test]
fn interrupt_removes_disk_process_and_folder() {
    if let Some(reason) = FileSystem::Ext4.missing() {
        println!("skipped: an interrupted run, because {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
    command.args(["--power", "400", "--power-fs", "ext4", "--driftqd"]).arg(driftqd()).env("TMPDIR", folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    let disks = || {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        mounts.lines().filter(|line| line.contains(folder.path().to_str().expect("a name"))).count()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while disks() == 0 {
        assert!(Instant::now() < deadline, "no disk was mounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(600));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("sent");
    assert_eq!(child.wait().expect("exited").code(), Some(130));
    assert_eq!(disks(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "files are left in the folder");
}

#[test]
fn example_of_the_help_text_runs() {
    let torture = || Command::new(env!("CARGO_BIN_EXE_torture"));
    let help = String::from_utf8(torture().arg("--help").output().expect("it runs").stdout).expect("text");
    let example = help.lines().find_map(|line| line.trim().strip_prefix("Example: ")).expect("an example");
    let (command, arguments) = example.split_once(" -- ").expect("arguments");
    assert_eq!(command, "cargo run --release -p driftq-tests --bin torture");
    // In a small size.
    let small = |text: &str| if text.parse::<u64>().is_ok() { "1".to_owned() } else { text.to_owned() };
    let arguments: Vec<String> = arguments.split_whitespace().map(small).collect();
    let output = torture().args(&arguments).arg("--driftqd").arg(driftqd()).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}
