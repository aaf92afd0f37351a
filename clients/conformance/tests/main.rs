//! The judge, tried on clients: one that keeps the contract is acquitted, and each planted bug is convicted by a rule
//! that names it.

mod http;
mod traces;

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use driftq_conformance::{RULES, built_in, judge, program, trace};

const RUNNER: &str = env!("CARGO_BIN_EXE_driftq-conformance");
const ADAPTER: &str = env!("CARGO_BIN_EXE_driftq-planted-adapter");

/// Runs at a time: they mostly wait.
const JOBS: &str = "9";

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A run without a conviction leaves none.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Not built by a test of this package alone.
fn assert_has_broker() {
    let broker = program(None);
    let is_there = broker.is_file() || Command::new(&broker).arg("--version").output().is_ok();
    assert!(is_there, "no {}: build it with `cargo build -p driftq-server`, or set DRIFTQD", broker.display());
}

fn run(folder: &Folder, plant: &str, scenarios: &[&str], seeds: u64) -> Output {
    command(folder, plant, scenarios, seeds).output().expect("the runner starts")
}

fn command(folder: &Folder, plant: &str, scenarios: &[&str], seeds: u64) -> Command {
    assert_has_broker();
    let mut command = Command::new(RUNNER);
    command.args(["run", "--adapter", &format!("{ADAPTER} --plant {plant}"), "--jobs", JOBS]);
    command.args(["--seeds", &seeds.to_string()]).arg("--keep").arg(&folder.0);
    for scenario in scenarios {
        command.args(["--scenario", scenario]);
    }
    command
}

/// On a machine with much to do the judge allows for delays, and what comes late may not be provably late: then other
/// seeds are tried.
fn assert_convicted(plant: &str, scenario: &str, rule: &str) {
    const TRIES: u64 = 4;
    for first in (0..TRIES).map(|attempt| 1 + 2 * attempt) {
        let folder = Folder::new();
        let mut command = command(&folder, plant, &[scenario], 2);
        let output = command.args(["--start", &first.to_string()]).output().expect("the runner starts");
        if output.status.code() != Some(0) {
            return assert_verdict(&output, plant, scenario, rule);
        }
    }
    panic!("{plant} is acquitted in {scenario}");
}

/// The same for a plant with which no message is ever finished: the runner does not wait for that as long as usual.
fn assert_convicted_within(plant: &str, scenario: &str, within_ms: u64, rules: &[&str]) {
    let folder = Folder::new();
    fs::create_dir_all(&folder.0).expect("a folder");
    let file = folder.0.join("scenarios.json");
    let mut scenarios = built_in().expect("the file of scenarios");
    scenarios.retain(|known| known.name == scenario);
    for known in &mut scenarios {
        known.end.within_ms = within_ms;
    }
    fs::write(&file, serde_json::to_vec(&scenarios).expect("a scenario")).expect("a file");
    let mut command = command(&folder, plant, &[], 1);
    let output = command.arg("--scenarios").arg(&file).output().expect("the runner starts");
    for rule in rules {
        assert_verdict(&output, plant, scenario, rule);
    }
}

fn assert_verdict(output: &Output, plant: &str, scenario: &str, rule: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{plant} is convicted in {scenario}: {told}");
    assert!(told.contains(&format!("  {rule}: ")), "{plant} breaks {rule}: {told}");
}

#[test]
fn worker_that_keeps_the_contract_is_acquitted() {
    let folder = Folder::new();
    let scenarios =
        ["effects", "lost-lease", "restart", "kill", "side-effect", "outputs", "retries", "shutdown", "errors"];
    let output = run(&folder, "none", &scenarios, 1);
    let (table, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    assert_eq!(table.matches("| 1/1 |").count(), scenarios.len(), "{table}");
}

#[test]
fn ack_before_effect_is_convicted() {
    assert_convicted("ack-before-effect", "effects", "settled_before_effect");
}

#[test]
fn missing_heartbeat_is_convicted() {
    assert_convicted_within("no-heartbeat", "heartbeat", 8_000, &["heartbeat_late"]);
}

#[test]
fn effect_whose_lease_is_not_renewed_is_convicted() {
    assert_convicted("no-renew", "heartbeat", "heartbeat_late");
}

#[test]
fn failure_whose_delay_is_forgotten_is_convicted() {
    assert_convicted("no-delay", "retries", "other_delay");
}

#[test]
fn retry_without_key_is_convicted() {
    let folder = Folder::new();
    let output = run(&folder, "retry-without-key", &["batch", "produce-no-key"], 2);
    for rule in ["other_key", "message_twice", "unsafe_repeat"] {
        assert_verdict(&output, "retry-without-key", "batch", rule);
    }
}

#[test]
fn result_after_lost_lease_is_convicted() {
    assert_convicted("result-after-lost-lease", "lost-lease", "lost_lease_used");
}

#[test]
fn delivery_handled_for_each_of_its_lines_is_convicted() {
    assert_convicted("duplicate-line", "effects", "effect_twice");
}

#[test]
fn effect_without_begin_is_convicted() {
    assert_convicted("no-begin", "retries", "effect_without_grant");
}

#[test]
fn prefetch_above_concurrency_is_convicted() {
    assert_convicted("greedy", "no-store", "credit");
}

#[test]
fn more_handlers_than_the_concurrency_are_convicted() {
    assert_convicted("greedy", "shutdown", "too_many_handlers");
}

#[test]
fn begin_without_its_delivery_is_convicted() {
    assert_convicted("no-delivery", "retries", "begin_without_delivery");
}

#[test]
fn request_about_a_lease_without_its_token_is_convicted() {
    assert_convicted("no-token", "retries", "no_token");
}

#[test]
fn result_of_an_earlier_attempt_is_convicted() {
    assert_convicted("first-result", "retries", "stale_result");
}

#[test]
fn panic_that_ends_the_process_is_convicted() {
    assert_convicted("panic-exits", "panic", "adapter_ended");
}

#[test]
fn request_sent_again_after_its_refusal_is_convicted() {
    assert_convicted("repeat-refused", "errors", "repeat_after_refusal");
}

/// The small worker does not renew them.
#[test]
fn side_effect_whose_lease_is_not_renewed_is_convicted() {
    assert_convicted("none", "side-effect-long", "heartbeat_late");
}

/// The small worker knows no deadlines.
#[test]
fn handler_that_outlives_its_deadline_is_convicted() {
    assert_convicted("none", "deadline", "dead_letters");
}

#[test]
fn messages_that_are_not_finished_are_convicted_in_time() {
    assert_convicted_within("no-complete", "effects", 1_000, &["timed_out", "message_missing"]);
}

#[test]
fn worker_that_stops_and_holds_messages_is_convicted() {
    assert_convicted("no-release", "shutdown", "held_after_stop");
}

#[test]
fn failure_that_is_not_recorded_is_convicted() {
    assert_convicted("no-finish", "retries", "effect_twice");
}

#[test]
fn side_effect_that_runs_again_is_convicted() {
    assert_convicted("side-effect-again", "side-effect", "effect_without_grant");
}

#[test]
fn messages_of_one_key_handled_at_once_are_convicted() {
    assert_convicted("no-key-order", "key-order", "key_order");
}

#[test]
fn dead_letter_of_a_passing_failure_is_convicted() {
    assert_convicted("dead-letter", "retries", "dead_letters");
}

#[test]
fn error_of_another_kind_is_convicted() {
    assert_convicted("other-kind", "errors", "wrong_answer");
}

#[test]
fn trace_of_a_convicted_run_is_judged_the_same_again() {
    let folder = Folder::new();
    let output = run(&folder, "ack-before-effect", &["retries"], 1);
    assert_eq!(output.status.code(), Some(1));
    let files = fs::read_dir(&folder.0).expect("the folder of convicted runs");
    let path = files
        .map(|file| file.expect("a file").path())
        .find(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .expect("a trace");
    let entries = trace::read(BufReader::new(fs::File::open(&path).expect("the trace"))).expect("entries");
    let first = judge(&entries);
    assert!(first.iter().any(|conviction| conviction.rule == "settled_before_effect"), "{first:?}");
    let again = Command::new(RUNNER).arg("judge").arg(&path).output().expect("the runner starts");
    assert_eq!(again.status.code(), Some(1));
    let told = String::from_utf8_lossy(&again.stdout);
    for conviction in &first {
        assert!(told.contains(&conviction.text), "{told}");
        assert!(RULES.iter().any(|(rule, _)| *rule == conviction.rule), "{} is listed", conviction.rule);
    }
}

#[test]
fn scenarios_have_names_of_their_own() {
    let mut names: Vec<String> =
        built_in().expect("the file of scenarios").into_iter().map(|scenario| scenario.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(count >= 20, "{count}");
}

/// Of a table of the runner: the columns behind the scenario.
fn row<'a>(table: &'a str, scenario: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.starts_with(&format!("| {scenario} |"))).expect("a row");
    line.trim_matches('|').split('|').skip(1).map(str::trim).collect()
}

#[test]
fn scenarios_are_spread_evenly_over_the_seeds() {
    let folder = Folder::new();
    let scenarios = ["errors", "no-store", "retries"];
    let mut command = command(&folder, "none", &scenarios, 6);
    let output = command.args(["--spread", "1"]).output().expect("the runner starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    for scenario in scenarios {
        assert_eq!(row(&table, scenario), ["2/2"], "{table}");
    }
    assert_eq!(row(&table, "*all*"), ["6/6, 6 seeds"], "{table}");
}

#[test]
fn results_are_kept_in_a_file_and_no_run_is_started_after_its_minutes() {
    let folder = Folder::new();
    fs::create_dir_all(&folder.0).expect("a folder");
    let file = folder.0.join("results.md");
    let mut command = command(&folder, "no-store", &["errors"], 1);
    let status = command.arg("--results").arg(&file).status().expect("the runner starts");
    assert_eq!(status.code(), Some(1), "an adapter that does not start has not passed");
    let text = fs::read_to_string(&file).expect("the results");
    assert!(text.contains("1 runs with the seeds 1 to 1"), "{text}");
    assert!(text.contains("0/1 (1: not run)"), "{text}");
    let output = command.args(["--minutes", "0"]).output().expect("the runner starts");
    assert_eq!(output.status.code(), Some(2), "nothing was run, which is no success");
}
