//! The broker as a process, tortured: a share of what `torture` does, with every promise kept, and the canary convicted.
//!
//! What needs root or a tool is skipped with a line that says so. Histories of broken promises are kept below cargo's folder for
//! temporary files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driftq_history::Check;
use driftq_tests::daemon::program;
use driftq_tests::torture::disk::FileSystem;
use driftq_tests::torture::faults;
use driftq_tests::torture::judge::Row;
use driftq_tests::torture::stage::Rig;

fn driftqd() -> &'static Path {
    static DRIFTQD: OnceLock<PathBuf> = OnceLock::new();
    DRIFTQD.get_or_init(|| program("driftq-server", "driftqd").expect("the broker"))
}

fn rig() -> Rig {
    let keep = Path::new(env!("CARGO_TARGET_TMPDIR")).join("torture");
    Rig { driftqd: driftqd().to_owned(), canary: env!("CARGO_BIN_EXE_canary").into(), seed: 1, keep: Some(keep) }
}

/// Something was tried often enough, and every promise kept; `None` where it was skipped.
fn kept(row: Result<Row, String>, runs: u64, acked: u64) -> Option<Row> {
    let row = row.expect("the driver does its part");
    if let Some(why) = &row.skipped {
        println!("skipped: {}, as {why}", row.fault);
        return None;
    }
    let sum = &row.sum;
    println!("{}: {} runs, {:?}, {:?}", row.fault, row.runs, sum.counts, row.time);
    assert!(row.passed(), "{}: {:#?}", row.fault, sum.sentences);
    assert_eq!((sum.lost, sum.resurrected, sum.stale_acks, sum.repeated_attempts, sum.other), (0, 0, 0, 0, 0));
    assert!(row.runs >= runs, "{} runs only", row.runs);
    assert!(sum.counts.acked >= acked, "{} calls acknowledged only", sum.counts.acked);
    for check in
        [Check::Lost, Check::Resurrected, Check::Attempts, Check::Drained, Check::LogMessages, Check::LogSettled]
    {
        assert!(row.looked_at(check) >= acked / 10, "{check}: {} looked at only", row.looked_at(check));
    }
    Some(row)
}

#[test]
fn two_hundred_kills_under_load_break_no_promise() {
    let Some(row) = kept(faults::kills(&rig(), 200, &|| {}), 200, 5_000) else { return };
    for check in [Check::Stale, Check::Effects, Check::Steps, Check::Order, Check::Identity, Check::Overlap] {
        assert!(row.looked_at(check) >= 200, "{check}: {} looked at only", row.looked_at(check));
    }
    assert!(row.sum.counts.dead >= 50, "{} dead letters only", row.sum.counts.dead);
    assert_eq!(row.looked_at(Check::LogDigest), 5, "the log of each history, replayed, gives the server's own digest");
}

#[test]
fn twenty_power_losses_on_ext4_break_no_promise() {
    kept(faults::power(&rig(), FileSystem::Ext4, 20, &|| {}), 20, 500);
}

#[test]
fn twenty_power_losses_on_xfs_break_no_promise() {
    kept(faults::power(&rig(), FileSystem::Xfs, 20, &|| {}), 20, 500);
}

#[test]
fn a_broker_that_does_not_sync_is_convicted_by_the_same_power_loss() {
    let row = faults::canary(&rig(), 10, &|| {}).expect("the driver does its part");
    if let Some(why) = &row.skipped {
        println!("skipped: {}, as {why}", row.fault);
        return;
    }
    println!("convicted {:?} of {}, {} lost, {:?}", row.convicted, row.runs, row.sum.lost, row.time);
    assert!(row.convicted >= Some(9) && row.runs == 10, "convicted {:?} of {}", row.convicted, row.runs);
    assert!(row.sum.lost > 0, "convicted, and not for what it does");
    assert!(row.passed());
}

#[test]
fn a_broker_killed_at_every_write_sync_and_rename_keeps_every_promise() {
    kept(faults::syscalls(&rig(), &|| {}), 60, 2_000);
}

#[test]
fn syncs_that_fail_are_the_end_and_lose_nothing_acknowledged() {
    kept(faults::failing_sync(&rig(), &|| {}), 2, 100);
}

#[test]
fn writes_that_fail_are_the_end_and_lose_nothing_acknowledged() {
    kept(faults::failing_write(&rig(), &|| {}), 2, 100);
}

#[test]
fn a_write_that_stops_in_its_middle_leaves_nothing_half() {
    kept(faults::short_write(&rig(), &|| {}), 2, 100);
}

#[test]
fn a_full_disk_takes_acks_and_goes_on_when_there_is_room() {
    kept(faults::full_disk(&rig(), &|| {}), 2, 100);
}

#[test]
fn a_slow_disk_breaks_nothing() {
    kept(faults::slow_disk(&rig(), &|| {}), 1, 50);
}

#[test]
fn a_broker_that_sleeps_past_its_leases_fences_who_is_late() {
    kept(faults::paused_server(&rig(), 4, &|| {}), 4, 100);
}

#[test]
fn a_clock_that_jumps_repeats_no_token_and_forgets_no_key() {
    kept(faults::clocks(&rig(), &|| {}), 5, 100);
}

#[test]
fn a_second_broker_on_the_folder_is_refused_and_harms_nothing() {
    kept(faults::second_server(&rig(), &|| {}), 1, 50);
}

fn torture(args: &[&str]) -> (Option<i32>, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_torture")).args(args).output().expect("the tool runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.code(), said)
}

#[test]
fn the_tool_ends_with_its_verdict_and_its_exit_code_says_the_same() {
    let driftqd = driftqd().to_str().expect("a name");
    let (code, said) = torture(&["--kills", "3", "--driftqd", driftqd]);
    assert_eq!((code, said.trim_end().lines().last()), (Some(0), Some("PASSED")), "{said}");
    assert!(said.contains("| kill -9 under load |    3 |"), "{said}");
    if FileSystem::Ext4.missing().is_none() {
        // Whoever tortures the canary by mistake is told.
        let (code, said) = torture(&["--power", "2", "--power-fs", "ext4", "--driftqd", env!("CARGO_BIN_EXE_canary")]);
        assert_eq!((code, said.trim_end().lines().last()), (Some(1), Some("FAILED")), "{said}");
    }
    let (code, said) = torture(&["--kills", "1", "--driftqd", "/nowhere/driftqd"]);
    assert!(code == Some(2) && said.contains("/nowhere/driftqd"), "{code:?} {said}");
    let (code, said) = torture(&[]);
    assert!(code == Some(2) && said.contains("--kills"), "{code:?} {said}");
}

#[test]
fn an_interrupted_run_leaves_no_disk_no_process_and_no_folder_behind() {
    if let Some(why) = FileSystem::Ext4.missing() {
        println!("skipped: an interrupted run, as {why}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
    command.args(["--power", "400", "--power-fs", "ext4", "--driftqd"]).arg(driftqd()).env("TMPDIR", folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the tool runs");
    let disks = || {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        mounts.lines().filter(|line| line.contains(folder.path().to_str().expect("a name"))).count()
    };
    let end = Instant::now() + Duration::from_secs(20);
    while disks() == 0 {
        assert!(Instant::now() < end, "no disk was ever mounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(600));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("sent");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(disks(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "something was left in the folder");
}
