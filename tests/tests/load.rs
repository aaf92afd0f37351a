//! The load tool against a fake broker: what it sends, what it counts, what it says, and what it leaves behind.

mod fake;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use fake::{Fake, Fault};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// What a run of the tool came to.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    #[track_caller]
    fn expect_success(&self) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert!(self.stdout.contains("failures: none"), "{}", self.stdout);
    }

    fn last_line(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }
}

/// A run of the tool under way, its output in a folder of its own.
struct Running {
    child: Child,
    output: TempDir,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let output = TempDir::new().expect("a folder");
        let file = |name| File::create(output.path().join(name)).expect("a file");
        let child = Command::new(env!("CARGO_BIN_EXE_load"))
            .args(args)
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("the tool starts");
        Self { child, output }
    }

    fn finish(mut self) -> Ran {
        let status = wait_for("the tool's end", || self.child.try_wait().expect("our own child"));
        let read = |name| fs::read_to_string(self.output.path().join(name)).expect("its output");
        Ran { code: status.code(), stdout: read("stdout"), stderr: read("stderr") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(args: &[&str]) -> Ran {
    Running::start(args).finish()
}

#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < give_up, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program that behaves as `driftqd` does: this test program, told to be the fake.
fn fake_program(folder: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("our own path");
    let own = own.display();
    script(folder, &format!("FAKE_ARGS=\"$*\" exec '{own}' --exact stands_in_for_driftqd --ignored --nocapture"))
}

fn script(folder: &Path, commands: &str) -> PathBuf {
    let path = folder.join("driftqd");
    fs::write(&path, format!("#!/bin/sh\n{commands}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

#[test]
#[ignore = "not a test: the process that stands in for driftqd"]
fn stands_in_for_driftqd() {
    if let Ok(args) = std::env::var("FAKE_ARGS") {
        fake::serve_as_process(&args.split(' ').map(String::from).collect::<Vec<_>>());
    }
}

#[test]
fn single_produces_are_counted_and_timed() {
    let fake = Fake::start(Fault::None);
    let pid = std::process::id().to_string();
    let ran = load(&["produce", "--url", &fake.url(), "--pid", &pid, "--connections", "4", "--seconds", "0.2"]);
    ran.expect_success();
    for expected in ["messages/s", "p50", "p99.9", "max", "s per million messages", "RSS"] {
        assert!(ran.stdout.contains(expected), "{expected} is missing in\n{}", ran.stdout);
    }
    assert!(fake.produced_and_acked().0 > 0);
}

#[test]
fn a_ceiling_ends_the_output_with_a_ratio() {
    let fake = Fake::start(Fault::None);
    let runs = [&["produce"][..], &["produce", "--batch", "20"], &["effects", "--connections", "4"]];
    for run in runs {
        let ran = load(&[run, &["--url", &fake.url(), "--ceiling", "--seconds", "0.2"]].concat());
        ran.expect_success();
        let ratio = ran.last_line().strip_prefix("ratio ").expect("a ratio");
        assert_eq!(ratio.len() - ratio.find('.').expect("decimals"), 3, "{ratio}");
        assert!(ratio.parse::<f64>().is_ok(), "{ratio}");
    }
}

#[test]
fn batches_are_spread_over_the_partitions() {
    let fake = Fake::start(Fault::None);
    let args = ["produce", "--url", &fake.url(), "--connections", "2", "--batch", "64", "--partitions", "4"];
    load(&[&args[..], &["--seconds", "0.2"]].concat()).expect_success();
    let counts = fake.messages_by_partition();
    assert_eq!(counts.len(), 4);
    let (least, most) = (counts.values().min().expect("four"), counts.values().max().expect("four"));
    assert!(most - least <= most / 10, "{counts:?}");
}

#[test]
fn every_message_goes_the_whole_way_with_either_kind_of_ack() {
    for ack in ["single", "ndjson"] {
        let fake = Fake::start(Fault::None);
        let args = ["end-to-end", "--url", &fake.url(), "--producers", "3", "--consumers", "2", "--ack", ack];
        let ran = load(&[&args[..], &["--seconds", "0.3", "--prefetch", "10"]].concat());
        ran.expect_success();
        let (produced, acked) = fake.produced_and_acked();
        assert!(produced > 0);
        assert_eq!(produced, acked);
        assert!(ran.stdout.contains("produce to delivery: p50"), "{}", ran.stdout);
    }
}

#[test]
fn a_rate_is_kept() {
    let fake = Fake::start(Fault::None);
    let args = ["end-to-end", "--url", &fake.url(), "--producers", "4", "--consumers", "1", "--ack", "ndjson"];
    load(&[&args[..], &["--seconds", "0.5", "--rate", "400"]].concat()).expect_success();
    let (produced, _) = fake.produced_and_acked();
    assert!((100..=205).contains(&produced), "{produced} in half a second at 400/s");
}

#[test]
fn a_backlog_is_drained() {
    let fake = Fake::start(Fault::None);
    let args = ["consume", "--url", &fake.url(), "--messages", "5000", "--consumers", "4"];
    let ran = load(&args);
    ran.expect_success();
    let (produced, acked) = fake.produced_and_acked();
    assert!(produced >= 5000);
    assert_eq!(produced, acked);
}

#[test]
fn every_effect_is_begun_and_finished() {
    let fake = Fake::start(Fault::None);
    let pid = std::process::id().to_string();
    let args = ["effects", "--url", &fake.url(), "--pid", &pid, "--connections", "4", "--seconds", "0.2"];
    let ran = load(&[&args[..], &["--result-size", "6"]].concat());
    ran.expect_success();
    for expected in
        ["pairs/s", "requests/s", "begin:  p50", "finish: p50", "pair:   p50", "per million requests", "RSS"]
    {
        assert!(ran.stdout.contains(expected), "{expected} is missing in\n{}", ran.stdout);
    }
    let (finished, as_told) = fake.effects_with("rrrr");
    assert!(finished > 0);
    assert_eq!(finished, as_told);
}

#[test]
fn live_records_are_weighed_beside_an_empty_store() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let args = ["effects", "--records", "3000", "--connections", "4", "--seconds", "0.2"];
    let ran = load(&[&args[..], &["--driftqd", path_str(&program), "--dir", path_str(disk.path())]].concat());
    ran.expect_success();
    for expected in ["3,000 live ones", "beyond key and result: ", "B each", "× that of the empty store"] {
        assert!(ran.stdout.contains(expected), "{expected} is missing in\n{}", ran.stdout);
    }
    assert_empty(disk.path());
}

#[test]
fn every_step_hands_on_all_its_messages() {
    for (plain, keyed) in [(&[][..], true), (&["--plain"][..], false)] {
        let fake = Fake::start(Fault::None);
        let args = ["steps", "--url", &fake.url(), "--workers", "3", "--outputs", "3", "--seconds", "0.1"];
        let ran = load(&[&args[..], &["--partitions", "4"], plain].concat());
        ran.expect_success();
        assert!(ran.stdout.contains("exactly as many as the steps made"), "{}", ran.stdout);
        for expected in ["steps/s", "complete: p50"] {
            assert!(ran.stdout.contains(expected), "{expected} is missing in\n{}", ran.stdout);
        }
        let (produced, completed) = fake.produced_and_acked();
        assert!(completed > 0);
        let filled = produced - 3 * completed;
        assert_eq!(fake.idempotency_keys() as u64, if keyed { filled } else { 0 });
    }
}

#[test]
fn steps_end_when_there_is_nothing_left_to_do() {
    let fake = Fake::start(Fault::None);
    load(&["steps", "--url", &fake.url(), "--seconds", "600", "--messages", "300"]).expect_success();
    let (produced, completed) = fake.produced_and_acked();
    assert!(completed >= 300);
    assert_eq!(produced, 3 * completed, "each message was completed with two more");
}

#[test]
fn a_lost_output_is_noticed() {
    let fake = Fake::start(Fault::EveryTenthOutput);
    let ran = load(&["steps", "--url", &fake.url(), "--workers", "2", "--seconds", "0.1"]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("× output topic with "), "{}", ran.stdout);
    assert!(!ran.stdout.contains("exactly as many"), "{}", ran.stdout);
}

#[test]
fn the_modes_of_effects_and_steps_explain_themselves() {
    for (mode, options) in [
        ("effects", &["--connections", "--seconds", "--ceiling", "--records", "--result-size", "--url"][..]),
        ("steps", &["--workers", "--outputs", "--seconds", "--size", "--partitions", "--under-way", "--driftqd"][..]),
    ] {
        let ran = load(&[mode, "--help"]);
        assert_eq!(ran.code, Some(0));
        for option in options {
            assert!(ran.stdout.contains(option), "{option} is missing in\n{}", ran.stdout);
        }
    }
    let ran = load(&["effects", "--ceiling", "--records", "5"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn failed_requests_are_named_and_the_exit_code_tells() {
    let cases = [
        (Fault::EveryTenthProduce, &["produce", "--connections", "2", "--seconds", "0.1"][..], "500 INTERNAL"),
        (Fault::EveryTenthProduce, &["produce", "--batch", "15", "--seconds", "0.1"][..], "500 INTERNAL"),
        (
            Fault::EveryTenthAck,
            &["consume", "--messages", "200", "--ack", "ndjson", "--give-up-seconds", "0.6"][..],
            "409 FAILED_PRECONDITION",
        ),
        (
            Fault::EveryTenthAck,
            &["consume", "--messages", "200", "--ack", "single", "--give-up-seconds", "0.6"][..],
            "409 FAILED_PRECONDITION",
        ),
        (Fault::EveryTenthAck, &["steps", "--workers", "2", "--seconds", "0.1"][..], "409 FAILED_PRECONDITION"),
        (Fault::EveryTenthReplayed, &["effects", "--connections", "2", "--seconds", "0.1"][..], "begin 200 REPLAY"),
        (
            Fault::EveryTenthFinish,
            &["effects", "--connections", "2", "--seconds", "0.1"][..],
            "finish 409 FAILED_PRECONDITION",
        ),
    ];
    for (fault, args, name) in cases {
        let fake = Fake::start(fault);
        let ran = load(&[args, &["--url", &fake.url()]].concat());
        assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(&format!("× {name}")), "{}", ran.stdout);
    }
}

#[test]
fn a_daemon_is_killed_restarted_and_found_again() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let args = ["backlog", "--messages", "2000", "--seconds", "0.2", "--driftqd", path_str(&program)];
    let ran = load(&[&args[..], &["--dir", path_str(disk.path())]].concat());
    ran.expect_success();
    for expected in ["RSS", "× that of the empty broker", "after kill -9: ready", "first delivery"] {
        assert!(ran.stdout.contains(expected), "{expected} is missing in\n{}", ran.stdout);
    }
    assert_empty(disk.path());
}

#[test]
fn idle_streams_are_opened_and_weighed() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let args = ["idle", "--streams", "50", "--seconds", "0.2", "--driftqd", path_str(&program)];
    let ran = load(&[&args[..], &["--dir", path_str(disk.path())]].concat());
    ran.expect_success();
    assert!(ran.stdout.contains("50 open"), "{}", ran.stdout);
    assert!(ran.stdout.contains("B each"), "{}", ran.stdout);
    assert_empty(disk.path());
}

#[test]
fn the_table_has_every_row_and_tells_which_one_broke_off() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let own = std::env::current_exe().expect("our own path");
    let own = own.display();
    let program = script(
        folder.path(),
        &format!(
            "case \"$*\" in *--sync-delay-ms*) echo 'what is a delay?' >&2; exit 2;; esac\n\
             FAKE_ARGS=\"$*\" exec '{own}' --exact stands_in_for_driftqd --ignored --nocapture"
        ),
    );
    let args = ["table", "--seconds", "0.1", "--backlog", "500", "--streams", "10", "--records", "500"];
    let ran = load(&[&args[..], &["--driftqd", path_str(&program), "--dir", path_str(disk.path())]].concat());
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let works = [
        "single produces, 64 keep-alive connections",
        "single produces, 1 connection, p50",
        "NDJSON batches of 100, 16 connections, 16 partitions",
        "produce → stream → ack, 16 producers, 16 consumers, one ack request per message",
        "the same with NDJSON acks",
        "500-message backlog of 200 B: RSS",
        "restart with that backlog (kill -9), exec to first delivery",
        "server CPU, single produces",
        "10 idle streams",
        "idle broker",
        "begin + finish of an effect, 64 keep-alive connections",
        "500 live idempotency records",
        "complete with two outputs, 16 workers",
        "single produces, sync slowed to 2 ms",
    ];
    assert_eq!(rows.len(), works.len(), "{}", ran.stdout);
    for (row, work) in rows.iter().zip(works) {
        assert!(row.starts_with(&format!("| {work} |")), "{row}");
        assert!(row.ends_with("| met |") || row.ends_with("| short |"), "{row}");
        assert_eq!(row.contains("broke off"), work.contains("slowed"), "{row}");
    }
    assert!(rows.last().is_some_and(|row| row.contains("what is a delay?")), "{}", ran.stdout);
    assert_empty(disk.path());
}

#[test]
fn an_interrupt_leaves_neither_process_nor_folder() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let noted = folder.path().join("pid");
    let own = std::env::current_exe().expect("our own path");
    let (own, note) = (own.display(), noted.display());
    let program = script(
        folder.path(),
        &format!(
            "echo $$ > '{note}.new' && mv '{note}.new' '{note}'\n\
             FAKE_ARGS=\"$*\" exec '{own}' --exact stands_in_for_driftqd --ignored --nocapture"
        ),
    );
    let args = ["produce", "--seconds", "60", "--driftqd", path_str(&program), "--dir", path_str(disk.path())];
    let running = Running::start(&args);
    let daemon: u32 = wait_for("the daemon", || fs::read_to_string(&noted).ok()?.trim().parse().ok());
    let data = wait_for("its journal", || {
        let made = fs::read_dir(disk.path()).ok()?.next()?.ok()?.path();
        made.join("data/journal").metadata().is_ok_and(|journal| journal.len() > 0).then_some(made)
    });
    let pid = rustix::process::Pid::from_child(&running.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our own child");
    assert_eq!(running.finish().code, Some(130));
    assert!(!Path::new(&format!("/proc/{daemon}")).exists());
    assert!(!data.exists());
    assert_empty(disk.path());
}

#[test]
fn a_daemon_that_does_not_start_is_quoted() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = script(folder.path(), "echo 'not part of this version' >&2; exit 2");
    let ran = load(&["produce", "--driftqd", path_str(&program), "--dir", path_str(disk.path())]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("not part of this version"), "{}", ran.stderr);
    assert_empty(disk.path());
}

#[test]
fn nobody_there_is_said_so() {
    let ran = load(&["produce", "--url", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("127.0.0.1:1"), "{}", ran.stderr);
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[track_caller]
fn assert_empty(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).expect("a folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
