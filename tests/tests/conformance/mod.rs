//! The conformance suite: conforming brokers pass, DriftQ included, and every defect of a stub broker fails the cases
//! it concerns.
//!
//! Of the cases that a defect does not concern, a third is run against it, another third against the next defect. The
//! ignored test `every_defect_fails_exactly_the_cases_it_concerns_of_all_cases` runs all of them; `.ci/run` runs it.

mod stub;
mod trials;

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::stub::{Defect, Stub};
use self::trials::{TRIALS, Trial};
use driftq_tests::conformance::{Options, Report, VerdictKind, cases, run};
use driftq_tests::daemon::{Launcher, driftqd, free_addr};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/conformance.md");

/// Held by a test while it runs whole suites. Their leases are short: two such tests at once may overload a small
/// machine, so that leases expire before they are acked.
static SUITES: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SUITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the suite, or the cases with these names, against a stub, all cases at once.
fn suite(defect: Defect, with_restart: bool, names: BTreeSet<&'static str>) -> Report {
    let stub = Stub::start(defect);
    let mut options = Options::new(&stub.url());
    options.restart = with_restart.then(|| stub.restart());
    options.names = names;
    options.jobs = 256;
    options.timeout = Duration::from_secs(4);
    run(&options, &|_| {}).expect("a server that responds")
}

#[test]
fn case_names_are_unique_and_sections_match_documentation() {
    let (mut names, mut sections) = (BTreeSet::new(), Vec::new());
    for case in cases() {
        assert!(names.insert(case.name), "duplicate name {}", case.name);
        if sections.last() != Some(&case.section) {
            sections.push(case.section);
        }
    }
    let distinct: BTreeSet<_> = sections.iter().collect();
    assert_eq!(distinct.len(), sections.len(), "a section is split: {sections:?}");
    for section in sections {
        let row = format!("| {section} | {} |\n", cases().iter().filter(|case| case.section == section).count());
        assert!(PAGE.contains(&row), "docs/conformance.md lacks {row}");
    }
    assert!(PAGE.contains(&format!("\n{} cases. ", names.len())), "docs/conformance.md does not say {}", names.len());
}

#[test]
fn conforming_stub_passes_and_every_passed_case_detects_a_defect() {
    let _alone = alone();
    let report = suite(Defect::None, true, BTreeSet::new());
    assert_eq!(report.names(VerdictKind::Fail), [""; 0], "{report}");
    assert!(report.count(VerdictKind::Pass) >= 190, "{}", report.summary());
    let detecting: BTreeSet<&str> = TRIALS.iter().flat_map(|trial| trial.detected_by).copied().collect();
    let mut untested = report.names(VerdictKind::Pass);
    untested.retain(|name| !detecting.contains(name) && !EITHER_WAY.contains(name));
    assert_eq!(untested, [""; 0], "cases that no defect fails");
}

/// Cases that accept two behaviours and fail only for a third.
const EITHER_WAY: [&str; 2] = ["identity_empty_tenant_is_not_default", "restart_effects"];

/// Whether a defect is only observable after a restart of the stub.
fn is_about_restarts(defect: Defect) -> bool {
    matches!(
        defect,
        Defect::TopicsLostOnRestart
            | Defect::MessagesLostOnRestart
            | Defect::AcksLostOnRestart
            | Defect::OffsetsRestart
    )
}

/// Which of the cases that a defect does not concern are run against it.
#[derive(Clone, Copy)]
enum Others {
    All,
    /// Every third, beginning with another one for the next defect.
    Third,
}

impl Others {
    /// The cases that are run against the defect of a trial.
    fn names(self, number: usize, trial: &Trial) -> BTreeSet<&'static str> {
        let concerned = trial.detected_by.iter().chain(trial.possibly).copied();
        let is_run = |case: usize| matches!(self, Self::All) || case % 3 == number % 3;
        let others = cases().into_iter().enumerate().filter(|(case, _)| is_run(*case)).map(|(_, case)| case.name);
        concerned.chain(others).collect()
    }
}

/// Runs the suite against a defect; the error if the cases that fail are not the expected ones.
fn check_trial(number: usize, trial: &Trial, others: Others) -> Option<String> {
    let report = suite(trial.defect, is_about_restarts(trial.defect), others.names(number, trial));
    let failed: BTreeSet<&str> = report.names(VerdictKind::Fail).into_iter().collect();
    let missed: Vec<_> = trial.detected_by.iter().filter(|name| !failed.contains(*name)).collect();
    let expected = |name: &str| trial.detected_by.contains(&name) || trial.possibly.contains(&name);
    let unexpected =
        report.entries.iter().filter(|entry| entry.verdict.kind == VerdictKind::Fail && !expected(entry.case.name));
    let unexpected: Vec<_> = unexpected.map(|entry| (entry.case.name, &entry.verdict.seen)).collect();
    let right = missed.is_empty() && unexpected.is_empty();
    (!right).then(|| format!("{:?}: not detected by {missed:?}, but by {unexpected:?}", trial.defect))
}

/// Checks these trials, `parallel` at a time. Returns the numbers and the errors of those that are wrong.
fn check_trials(numbers: &[usize], parallel: usize, others: Others) -> Vec<(usize, String)> {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| {
                while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(error) = check_trial(number, &TRIALS[number], others) {
                        wrong.lock().expect("no panic before").push((number, error));
                    }
                }
            });
        }
    });
    wrong.into_inner().expect("no panic before")
}

/// Checks every trial. Many suites at once may overload a small machine: trials that are wrong are repeated with fewer
/// others, and in the end alone.
fn check_every_trial(parallel: usize, others: Others) {
    let _alone = alone();
    let mut numbers: Vec<usize> = (0..TRIALS.len()).collect();
    let mut wrong = Vec::new();
    for parallel in [parallel, parallel / 4, 1] {
        wrong = check_trials(&numbers, parallel, others);
        numbers = wrong.iter().map(|(number, _)| *number).collect();
        eprintln!("{} of {} trials are wrong, {parallel} at a time", numbers.len(), TRIALS.len());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_defect_fails_exactly_the_cases_it_concerns() {
    check_every_trial(16, Others::Third);
}

#[test]
#[ignore = "all cases against every defect take a minute; .ci/run runs it"]
fn every_defect_fails_exactly_the_cases_it_concerns_of_all_cases() {
    check_every_trial(8, Others::All);
}

/// Runs the suite, or a part of it, against a `driftqd` that is killed and restarted in between.
fn driftqd_suite(args: &[&str], only: Option<&str>) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let addr = free_addr().expect("a free port");
    let driftqd = driftqd().expect("the broker");
    let launcher =
        Launcher::new(&driftqd, &folder.path().join("data"), &folder.path().join("log")).addr(addr).args(args);
    let daemon = Arc::new(Mutex::new(Some(launcher.start().expect("the broker starts"))));
    let running = Arc::clone(&daemon);
    let mut options = Options::new(&format!("http://{addr}"));
    options.only = only.map(str::to_owned);
    options.timeout = Duration::from_secs(10);
    options.restart = Some(Box::new(move || {
        let mut running = running.lock().map_err(|error| error.to_string())?;
        // Dropping it kills it; the folder is unlocked once the process is gone.
        drop(running.take());
        *running = Some(launcher.start()?);
        Ok(())
    }));
    run(&options, &|_| {}).expect("a server that responds")
}

/// Nothing fails, few cases are not applicable, and deviations are documented.
#[track_caller]
fn conforms(report: &Report, pass_min: usize, not_applicable_max: usize) {
    for name in report.names(VerdictKind::Deviates) {
        assert!(PAGE.contains(&format!("`{name}`")), "{name} is not in docs/conformance.md");
    }
    assert_eq!(report.names(VerdictKind::Fail), [""; 0], "{report}");
    assert!(report.count(VerdictKind::Pass) >= pass_min, "{report}");
    assert!(report.count(VerdictKind::NotApplicable) <= not_applicable_max, "{report}");
}

#[test]
fn driftqd_conforms_in_both_profiles_with_documented_deviations() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("driftqd.toml");
    std::fs::write(&config, "[limits]\ndedupe_ttl_ms = 1\n").expect("a file");
    let config = config.to_str().expect("a path of text");
    let _alone = alone();
    std::thread::scope(|scope| {
        let production = scope.spawn(|| driftqd_suite(&[], None));
        let spec = scope.spawn(|| driftqd_suite(&["--profile", "spec"], None));
        // Neither profile shows the in-flight limit: one limit is too large, the other equals the partition's capacity.
        let in_flight = scope.spawn(|| driftqd_suite(&["--max-in-flight", "2"], Some("in_flight")));
        // The window of produced keys is ten minutes in both.
        let forgetful = scope.spawn(|| driftqd_suite(&["--config", config], Some("already_done")));
        conforms(&forgetful.join().expect("a report"), 1, 0);
        conforms(&production.join().expect("a report"), 180, 21);
        conforms(&spec.join().expect("a report"), 190, 11);
        conforms(&in_flight.join().expect("a report"), 4, 0);
    });
}

fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn exit_code_and_report_match_findings() {
    let stub = Stub::start(Defect::None);
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let path = json.to_str().expect("a path of text");
    let ran = conformance(&["--url", &stub.url(), "--only", "HTTP API: topics", "--json", path]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(stdout(&ran).contains("5 cases against"), "{}", stdout(&ran));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("the report")).expect("JSON");
    assert_eq!((&report["url"], &report["counts"]["pass"]), (&Value::from(stub.url()), &Value::from(5)));
    let first = &report["cases"][0];
    assert_eq!((&first["section"], &first["result"]), (&"HTTP API: topics".into(), &"pass".into()));
    for field in ["clause", "name", "seen"] {
        assert!(first[field].is_string(), "{first}");
    }

    // The restart command is run if a case needs it, and its failure is reported.
    let marker = folder.path().join("restarted");
    let touch = format!("touch {}", marker.display());
    let restart = ["--url", &stub.url(), "--only", "restart_keeps_topics", "--restart"];
    let ran = conformance(&[&restart[..], &[&touch]].concat());
    assert_eq!((ran.status.code(), marker.exists()), (Some(0), true), "{ran:?}");
    let ran = conformance(&[&restart[..], &["echo cannot restart; exit 3"]].concat());
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(stdout(&ran).contains("cannot restart"), "{}", stdout(&ran));

    let defective = Stub::start(Defect::TopicCreatedWith200);
    let ran = conformance(&["--url", &defective.url(), "--only", "create_topic_by_json", "--json", "-"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON alone on standard output");
    assert_eq!(report["cases"][0]["result"], "fail");
    assert!(report["cases"][0]["seen"].as_str().is_some_and(|seen| seen.contains("expected 201")), "{report}");
}

#[test]
fn run_that_cannot_start_exits_with_2_and_reason() {
    let unused = format!("http://{}", free_addr().expect("a free port"));
    let stub = Stub::start(Defect::None);
    let url = stub.url();
    for args in
        [&["--url", &unused][..], &["--url", "ftp://x"], &[], &["--url", &url, "--only", "no such case"], &["--bogus"]]
    {
        let ran = conformance(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
    let listed = conformance(&["--list"]);
    assert_eq!(listed.status.code(), Some(0));
    for case in cases() {
        assert!(stdout(&listed).contains(case.name), "{} is not listed", case.name);
    }
}
