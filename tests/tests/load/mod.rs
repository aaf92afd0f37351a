//! The `load` program against a fake broker: what it sends, counts and prints, and that it cleans up. `load jobs`,
//! `load compare` and the rows of `load table` beside Redis run against the real one.

mod backlog;
mod budget;
mod compare;
mod fake;
mod jobs;
mod table;
mod tls;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use driftq_tests::daemon::KillOnDrop;
use tempfile::TempDir;

use self::fake::{Fake, Fault};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A finished run of the program.
struct Finished {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Finished {
    #[track_caller]
    fn expect_success(&self) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert!(self.stdout.contains("failures: none"), "{}", self.stdout);
    }

    fn last_line(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }
}

/// A running program, with its output in a temporary folder.
struct Running {
    child: KillOnDrop,
    output: TempDir,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// With environment variables; those without a value are removed.
    fn start_with(args: &[&str], variables: &[(&str, Option<&str>)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = TempDir::new().expect("a folder");
        let file = |name| File::create(output.path().join(name)).expect("a file");
        let child =
            command.args(args).stdout(file("stdout")).stderr(file("stderr")).spawn().expect("the program starts");
        Self { child: KillOnDrop(child), output }
    }

    fn finish(self) -> Finished {
        self.finish_within(TIMEOUT)
    }

    fn finish_within(mut self, limit: Duration) -> Finished {
        let status = wait_within(limit, "the program to exit", || self.child.0.try_wait().expect("a child"));
        let read = |name| fs::read_to_string(self.output.path().join(name)).expect("its output");
        Finished { code: status.code(), stdout: read("stdout"), stderr: read("stderr") }
    }
}

fn load(args: &[&str]) -> Finished {
    Running::start(args).finish()
}

#[track_caller]
fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_within(TIMEOUT, what, poll)
}

#[track_caller]
fn wait_within<T>(limit: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program with the command line of `driftqd` that serves the fake broker: this test binary, run with one ignored
/// test.
fn fake_program(folder: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("the test binary");
    let own = own.display();
    script(folder, &format!("FAKE_ARGS=\"$*\" exec '{own}' --exact load::fake_driftqd --ignored --nocapture"))
}

fn script(folder: &Path, commands: &str) -> PathBuf {
    script_named(folder, "driftqd", commands)
}

fn script_named(folder: &Path, name: &str, commands: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{commands}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

#[test]
#[ignore = "not a test: the process of the fake broker"]
fn fake_driftqd() {
    if let Ok(args) = std::env::var("FAKE_ARGS") {
        fake::serve_as_process(&args.split(' ').map(String::from).collect::<Vec<_>>());
    }
}

#[test]
fn produce_prints_rate_latency_and_cost() {
    let fake = Fake::start(Fault::None);
    let pid = std::process::id().to_string();
    let run = load(&["produce", "--url", &fake.url(), "--pid", &pid, "--connections", "4", "--seconds", "0.2"]);
    run.expect_success();
    for expected in ["messages/s", "p50", "p99.9", "max", "s per million messages", "RSS"] {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    assert!(fake.produced_and_acked().0 > 0);
}

#[test]
fn ceiling_output_ends_with_ratio() {
    let fake = Fake::start(Fault::None);
    let runs = [&["produce"][..], &["produce", "--batch", "20"], &["effects", "--connections", "4"]];
    for mode in runs {
        let run = load(&[mode, &["--url", &fake.url(), "--ceiling", "--seconds", "0.2"]].concat());
        run.expect_success();
        let ratio = run.last_line().strip_prefix("ratio ").expect("a ratio");
        assert_eq!(ratio.len() - ratio.find('.').expect("decimals"), 3, "{ratio}");
        assert!(ratio.parse::<f64>().is_ok(), "{ratio}");
    }
}

#[test]
fn batches_spread_over_partitions() {
    let fake = Fake::start(Fault::None);
    let args = ["produce", "--url", &fake.url(), "--connections", "2", "--batch", "64", "--partitions", "4"];
    load(&[&args[..], &["--seconds", "0.2"]].concat()).expect_success();
    let counts = fake.messages_by_partition();
    assert_eq!(counts.len(), 4);
    let (least, most) = (counts.values().min().expect("four"), counts.values().max().expect("four"));
    assert!(most - least <= most / 10, "{counts:?}");
}

#[test]
fn end_to_end_acks_every_message_with_both_ack_kinds() {
    for ack in ["single", "ndjson"] {
        let fake = Fake::start(Fault::None);
        let args = ["end-to-end", "--url", &fake.url(), "--producers", "3", "--consumers", "2", "--ack", ack];
        let run = load(&[&args[..], &["--seconds", "0.3", "--prefetch", "10"]].concat());
        run.expect_success();
        let (produced, acked) = fake.produced_and_acked();
        assert!(produced > 0);
        assert_eq!(produced, acked);
        assert!(run.stdout.contains("produce to delivery: p50"), "{}", run.stdout);
    }
}

#[test]
fn rate_limit_is_respected() {
    let fake = Fake::start(Fault::None);
    let args = ["end-to-end", "--url", &fake.url(), "--producers", "4", "--consumers", "1", "--ack", "ndjson"];
    load(&[&args[..], &["--seconds", "0.5", "--rate", "400"]].concat()).expect_success();
    let (produced, _) = fake.produced_and_acked();
    assert!((100..=205).contains(&produced), "{produced} in half a second at 400/s");
}

#[test]
fn consume_drains_backlog() {
    let fake = Fake::start(Fault::None);
    let args = ["consume", "--url", &fake.url(), "--messages", "5000", "--consumers", "4"];
    let run = load(&args);
    run.expect_success();
    let (produced, acked) = fake.produced_and_acked();
    assert!(produced >= 5000);
    assert_eq!(produced, acked);
}

#[test]
fn effects_are_begun_and_finished() {
    let fake = Fake::start(Fault::None);
    let pid = std::process::id().to_string();
    let args = ["effects", "--url", &fake.url(), "--pid", &pid, "--connections", "4", "--seconds", "0.2"];
    let run = load(&[&args[..], &["--result-size", "6"]].concat());
    run.expect_success();
    for expected in
        ["pairs/s", "requests/s", "begin:  p50", "finish: p50", "pair:   p50", "per million requests", "RSS"]
    {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    let (finished, with_result) = fake.effects_with("rrrr");
    assert!(finished > 0);
    assert_eq!(finished, with_result);
}

#[test]
fn effects_with_records_compares_with_empty_store() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let args = ["effects", "--records", "3000", "--connections", "4", "--seconds", "0.2"];
    let run = load(&[&args[..], &["--driftqd", path_str(&program), "--dir", path_str(disk.path())]].concat());
    run.expect_success();
    for expected in ["3,000 live", "beyond key and result: ", "B each", "× that of the empty store"] {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    assert_empty(disk.path());
}

#[test]
fn steps_produce_all_outputs() {
    for (plain, keyed) in [(&[][..], true), (&["--plain"][..], false)] {
        let fake = Fake::start(Fault::None);
        let args = ["steps", "--url", &fake.url(), "--workers", "3", "--outputs", "3", "--seconds", "0.1"];
        let run = load(&[&args[..], &["--partitions", "4"], plain].concat());
        run.expect_success();
        assert!(run.stdout.contains("exactly as many as the steps produced"), "{}", run.stdout);
        for expected in ["steps/s", "complete: p50"] {
            assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
        }
        let (produced, completed) = fake.produced_and_acked();
        assert!(completed > 0);
        let filled = produced - 3 * completed;
        assert_eq!(fake.idempotency_keys() as u64, if keyed { filled } else { 0 });
    }
}

#[test]
fn steps_end_when_input_is_exhausted() {
    let fake = Fake::start(Fault::None);
    load(&["steps", "--url", &fake.url(), "--seconds", "600", "--messages", "300"]).expect_success();
    let (produced, completed) = fake.produced_and_acked();
    assert!(completed >= 300);
    assert_eq!(produced, 3 * completed, "each message was completed with two outputs");
}

#[test]
fn steps_detect_lost_output() {
    let fake = Fake::start(Fault::EveryTenthOutput);
    let run = load(&["steps", "--url", &fake.url(), "--workers", "2", "--seconds", "0.1"]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("× output topic with "), "{}", run.stdout);
    assert!(!run.stdout.contains("exactly as many"), "{}", run.stdout);
}

#[test]
fn help_lists_options_of_effects_and_steps() {
    for (mode, options) in [
        ("effects", &["--connections", "--seconds", "--ceiling", "--records", "--result-size", "--url"][..]),
        ("steps", &["--workers", "--outputs", "--seconds", "--size", "--partitions", "--in-flight", "--driftqd"][..]),
    ] {
        let run = load(&[mode, "--help"]);
        assert_eq!(run.code, Some(0));
        for option in options {
            assert!(run.stdout.contains(option), "{option} is missing in\n{}", run.stdout);
        }
    }
    let run = load(&["effects", "--ceiling", "--records", "5"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
}

#[test]
fn failed_requests_are_listed_and_exit_code_is_1() {
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
        let run = load(&[args, &["--url", &fake.url()]].concat());
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        assert!(run.stdout.contains(&format!("× {name}")), "{}", run.stdout);
    }
}

#[test]
fn idle_opens_streams_and_measures_memory() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = fake_program(folder.path());
    let args = ["idle", "--streams", "50", "--seconds", "0.2", "--driftqd", path_str(&program)];
    let run = load(&[&args[..], &["--dir", path_str(disk.path())]].concat());
    run.expect_success();
    assert!(run.stdout.contains("50 open"), "{}", run.stdout);
    assert!(run.stdout.contains("B each"), "{}", run.stdout);
    assert_empty(disk.path());
}

#[test]
fn interrupt_removes_process_and_folder() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let noted = folder.path().join("pid");
    let own = std::env::current_exe().expect("the test binary");
    let (own, note) = (own.display(), noted.display());
    let program = script(
        folder.path(),
        &format!(
            "echo $$ > '{note}.new' && mv '{note}.new' '{note}'\n\
             FAKE_ARGS=\"$*\" exec '{own}' --exact load::fake_driftqd --ignored --nocapture"
        ),
    );
    let args = ["produce", "--seconds", "60", "--driftqd", path_str(&program), "--dir", path_str(disk.path())];
    let running = Running::start(&args);
    let daemon: u32 = wait_for("the daemon", || fs::read_to_string(&noted).ok()?.trim().parse().ok());
    let data = wait_for("the fake's journal", || {
        let made = fs::read_dir(disk.path()).ok()?.next()?.ok()?.path();
        made.join("data/journal").metadata().is_ok_and(|journal| journal.len() > 0).then_some(made)
    });
    let pid = rustix::process::Pid::from_child(&running.child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a child");
    assert_eq!(running.finish().code, Some(130));
    assert!(!Path::new(&format!("/proc/{daemon}")).exists());
    assert!(!data.exists());
    assert_empty(disk.path());
}

#[test]
fn daemon_that_does_not_start_is_quoted() {
    let folder = TempDir::new().expect("a folder");
    let disk = TempDir::new().expect("a folder");
    let program = script(folder.path(), "echo 'not part of this version' >&2; exit 2");
    let run = load(&["produce", "--driftqd", path_str(&program), "--dir", path_str(disk.path())]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("not part of this version"), "{}", run.stderr);
    assert_empty(disk.path());
}

#[test]
fn unreachable_url_is_reported() {
    let run = load(&["produce", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("127.0.0.1:1"), "{}", run.stderr);
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[track_caller]
fn assert_empty(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).expect("a folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
