//! The program's interface: exit codes, first and last lines, files.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use driftq_core::faults::Fault;
use driftq_sim::mutants::{Effort, measure};
use driftq_sim::trace::Trace;

/// The result of a program run.
struct ProgramResult {
    code: i32,
    out: String,
    err: String,
}

impl ProgramResult {
    fn first(&self) -> &str {
        self.out.lines().next().unwrap_or_default()
    }

    fn last(&self) -> &str {
        self.out.lines().last().unwrap_or_default()
    }

    /// Asserts misuse: exit code 2 and an error message that names the valid choices.
    fn assert_refused(&self, text: &str) {
        assert_eq!(self.code, 2, "{} {}", self.out, self.err);
        assert!(self.err.starts_with("error: ") && self.err.contains(text), "{text}: {}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

fn sim(args: &[&str]) -> ProgramResult {
    let run = Command::new(env!("CARGO_BIN_EXE_driftq-sim")).args(args).output();
    let Output { status, stdout, stderr } = run.expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes text");
    ProgramResult { code: status.code().expect("it exits by itself"), out: text(stdout), err: text(stderr) }
}

/// An empty directory for a test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory for the test");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is valid UTF-8")
}

#[test]
fn passing_run_prints_its_options_first_and_passed_last() {
    let result = sim(&["run", "--seeds", "6", "--jobs", "2"]);
    assert_eq!((result.code, result.last()), (0, "PASSED"), "{}", result.out);
    assert_eq!(
        result.first(),
        "driftq-sim run --seeds 6 --start 0 --profile default --jobs 2 --failures 1 --out-dir sim-failures"
    );
    let expected =
        ["seed 0 run twice", "events/s", "simulated time", "predicted", "peak memory", "coverage", "a sync failed"];
    for text in expected {
        assert!(result.out.contains(text), "{text}: {}", result.out);
    }
}

#[test]
fn effects_profile_prints_how_often_effects_ran() {
    let result = sim(&["run", "--seeds", "12", "--profile", "effects"]);
    assert_eq!((result.code, result.last()), (0, "PASSED"), "{}", result.out);
    let expected = [
        "EXECUTE replies",
        "effects run by workers",
        "of them reruns, each under a grant that allows it",
        "REPLAY replies",
        "messages skipped because their identity was committed",
        "steps completed",
        "exactly-once effects: held",
    ];
    for text in expected {
        assert!(result.out.contains(text), "{text}: {}", result.out);
    }
    let counted = result.out.lines().find(|line| line.ends_with("EXECUTE replies")).expect("the figure is printed");
    assert!(!counted.trim_start().starts_with("0 "), "{counted}");
    assert!(!sim(&["run", "--seeds", "2"]).out.contains("EXECUTE replies"));
}

#[test]
fn seed_with_another_profile_is_another_run() {
    let digest = |profile| sim(&["replay", "2", "--profile", profile]).last().to_owned();
    assert_ne!(digest("default"), digest("effects"));
    assert_eq!(digest("default"), sim(&["replay", "2"]).last());
}

#[test]
fn counts_do_not_depend_on_the_number_of_jobs() {
    let counted = |jobs| {
        let out = sim(&["run", "--seeds", "12", "--start", "0x20", "--jobs", jobs, "--failures", "100"]).out;
        let timed = ["driftq-sim run", "seeds ", "events/s", "simulated time", "peak memory", "  shrunk"];
        let lines = out.lines().filter(|line| !timed.iter().any(|prefix| line.starts_with(prefix)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(counted("1"), counted("2"));
}

#[test]
fn run_with_a_duration_ends_in_time() {
    let result = sim(&["run", "--for", "50ms", "--failures", "100"]);
    assert!(result.first().contains("--for 50ms"), "{}", result.out);
    assert!(["PASSED", "FAILED"].contains(&result.last()), "{}", result.out);
}

#[test]
fn exhaust_searches_to_a_depth_and_prints_counts() {
    let result = sim(&["exhaust", "--depth", "2", "--jobs", "1"]);
    assert_eq!((result.code, result.last()), (0, "PASSED"), "{}", result.out);
    assert_eq!(
        result.first(),
        "driftq-sim exhaust --depth 2 --messages 2 --consumers 2 --crashes 1 --jobs 1 --trace \
            sim-failures/exhaust.jsonl"
    );
    for text in ["new states", "transitions", "deduplicated", "crash points", "2 of 2", "states/s"] {
        assert!(result.out.contains(text), "{text}: {}", result.out);
    }
    sim(&["exhaust", "--depth", "two"]).assert_refused("two");
    sim(&["exhaust", "--mutant", "nonsense"]).assert_refused("skip-token-check");
}

#[test]
fn planted_bug_found_by_exhaust_is_shrunk_written_and_replayed() {
    let path = folder("exhaust").join("found.jsonl");
    let result = sim(&["exhaust", "--mutant", "torn-tail-taken-for-rot", "--trace", text(&path)]);
    assert_eq!((result.code, result.last()), (1, "FAILED"), "{}", result.out);
    let replay_command =
        format!("replay the shrunk trace: cargo run --release -p driftq-sim -- replay {}", path.display());
    assert!(result.out.contains(&replay_command), "{}", result.out);
    let trace = Trace::read(&path).expect("the trace was written");
    let violated = trace.header.violates.expect("the trace names the invariant");
    assert!((trace.actions.len(), violated.invariant) <= (5, 20), "{} actions", trace.actions.len());
    assert_eq!(sim(&["replay", text(&path)]).code, 1);
    assert_eq!(sim(&["replay", text(&path), "--mutant", "none"]).code, 0);
}

#[test]
fn planted_bug_found_by_run_is_shrunk_written_and_replayed() {
    let folder = folder("planted");
    let result = sim(&["run", "--mutant", "skip-token-check", "--out-dir", text(&folder)]);
    assert_eq!((result.code, result.last()), (1, "FAILED"), "{}", result.out);
    let replay_command = "replay the shrunk trace: cargo run --release -p driftq-sim -- replay ";
    let path =
        result.out.lines().find_map(|line| line.trim().strip_prefix(replay_command)).expect("the command is printed");
    let trace = Trace::read(Path::new(path)).expect("the trace was written");
    assert!(trace.actions.len() <= 25, "{} actions", trace.actions.len());
    let violated = trace.header.violates.expect("the trace names the invariant");
    let (number, sentence) = (violated.invariant, violated.sentence);
    assert!(result.out.contains(&format!("invariant {number}: {sentence}")), "{}", result.out);

    let replayed = sim(&["replay", path]);
    assert_eq!(replayed.code, 1, "{}", replayed.out);
    assert!(replayed.out.contains(&format!("invariant {number} violated: {sentence}")), "{}", replayed.out);
    assert!(replayed.last().starts_with("digest "), "{}", replayed.out);
    let without = sim(&["replay", path, "--mutant", "none"]);
    assert_eq!(without.code, 0, "{}", without.out);
    assert!(
        without.out.contains("no invariant is violated") && without.last().starts_with("digest "),
        "{}",
        without.out
    );

    let short = folder.join("shorter.jsonl");
    let shrunk = sim(&["shrink", path, "--out", text(&short)]);
    assert_eq!(shrunk.code, 1, "{}", shrunk.out);
    assert!(shrunk.last().starts_with("shrunk from "), "{}", shrunk.out);
    assert_eq!(Trace::read(&short).expect("the trace was written").header.mutant, Some(Fault::SkipTokenCheck));
}

#[test]
fn seed_and_its_trace_have_the_same_digest() {
    let folder = folder("replay");
    let path = folder.join("deeper").join("seed.jsonl");
    let seed = sim(&["replay", "2", "--trace", text(&path)]);
    assert_eq!(seed.code, 0, "{} {}", seed.out, seed.err);
    let trace = sim(&["replay", text(&path)]);
    assert_eq!(seed.last(), trace.last());
    let digest = seed.last().strip_prefix("digest ").expect("the last line is the digest");
    assert!(digest.len() == 16 && u64::from_str_radix(digest, 16).is_ok(), "{digest}");
    assert_eq!(sim(&["replay", "2"]).last(), seed.last());

    let (ten, all) = (sim(&["replay", "2", "--stop-at", "10"]), sim(&["replay", "2", "--stop-at", "100000"]));
    assert_ne!(ten.last(), seed.last());
    assert_eq!(ten.last(), sim(&["replay", text(&path), "--stop-at", "10"]).last());
    assert_eq!(all.last(), seed.last());
    let printed = sim(&["replay", "2", "--stop-at", "3", "--trace", "-"]);
    assert!(printed.out.lines().any(|line| line.starts_with("{\"driftq_trace\":1")), "{}", printed.out);
}

#[test]
fn passing_seed_has_nothing_to_shrink() {
    let result = sim(&["shrink", "2"]);
    assert_eq!((result.code, result.last()), (0, "no invariant is violated: there is nothing to shrink"));
}

#[test]
fn violation_is_explained_with_a_curve_an_action_and_a_slice() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/mutant-dedupe-dropped-on-replay.jsonl");
    let json = folder("explain").join("explained.json");
    let result = sim(&["explain", trace, "--futures", "16", "--json", text(&json)]);
    assert_eq!(result.code, 1, "{} {}", result.out, result.err);
    let expected = [
        "with dedupe-dropped-on-replay planted",
        "invariant 20 violated: recovery accepts every disk that honoured its contract",
        "    7 #################### 100%  the broker is started",
        "inevitable after action 5; detected at action 7",
        "it depends on 7 of 7 actions, none of which can be left out:",
        "    6 {\"crash\":{\"loss\":\"all\"}}\n    7",
        "without it another is violated: invariant 18",
    ];
    for text in expected {
        assert!(result.out.contains(text), "{text}: {}", result.out);
    }
    let curve =
        result.out.lines().skip_while(|line| !line.starts_with("of 16 futures")).take_while(|line| !line.is_empty());
    assert!(curve.map(|line| line.chars().count()).all(|width| width <= 80), "{}", result.out);
    let written = std::fs::read_to_string(&json).expect("the file was written");
    let written: serde_json::Value = serde_json::from_str(&written).expect("it is JSON");
    assert_eq!((&written["inevitable"], &written["curve"][7]), (&5.into(), &serde_json::json!([7, 1.0])));

    let passing = sim(&["explain", trace, "--mutant", "none"]);
    assert_eq!((passing.code, passing.last()), (0, "no invariant is violated: there is nothing to explain"));
}

#[test]
fn surviving_planted_bug_is_a_failure() {
    let killed = sim(&["mutants", "--only", "skip-token-check", "--starts", "2", "--survey", "3"]);
    assert_eq!((killed.code, killed.last()), (0, "1 killed, 0 survived"), "{}", killed.out);
    let one = Effort { seeds: 1, starts: 1, survey: 0, shrinks: false };
    let survivor =
        Fault::ALL.iter().find(|fault| !measure(**fault, one).is_killed()).expect("one seed does not kill all");
    let survived = sim(&["mutants", "--only", survivor.name(), "--seeds", "1", "--starts", "1", "--survey", "0"]);
    assert_eq!((survived.code, survived.last()), (1, "0 killed, 1 survived"), "{}", survived.out);
    assert!(survived.out.contains("SURVIVED"), "{}", survived.out);
}

#[test]
fn kill_matrix_is_written_between_the_markers_of_a_document() {
    let folder = folder("matrix");
    let (with, without) = (folder.join("with.md"), folder.join("without.md"));
    std::fs::write(&with, "before\n<!-- kill matrix -->\nobsolete\n<!-- /kill matrix -->\nafter\n").expect("a file");
    std::fs::write(&without, "nothing\n").expect("a file");
    let quick = ["mutants", "--seeds", "1", "--starts", "1", "--survey", "0", "--no-shrink", "--out"];
    let result = sim(&[&quick[..], &[text(&with)]].concat());
    assert!(result.code < 2, "{} {}", result.out, result.err);
    let written = std::fs::read_to_string(&with).expect("the document");
    assert!(
        written.starts_with("before\n") && written.ends_with("after\n") && !written.contains("obsolete"),
        "{written}"
    );
    let rows = Fault::ALL.iter().filter(|fault| written.contains(&format!("\n| `{}` |", fault.name()))).count();
    assert_eq!(rows, Fault::ALL.len(), "{written}");
    sim(&[&quick[..], &[text(&without)]].concat()).assert_refused("<!-- kill matrix -->");
    sim(&[&quick[..], &[text(&folder.join("missing.md"))]].concat()).assert_refused("cannot be read");
}

#[test]
fn misuse_is_refused_with_the_valid_choices() {
    sim(&["replay", "no-such-file.jsonl"]).assert_refused("neither a seed");
    sim(&["shrink", "-5"]).assert_refused("-5");
    sim(&["run", "--mutant", "unknown"]).assert_refused("highest-ack-watermark");
    sim(&["replay", "1", "--mutant", "unknown"]).assert_refused("or none");
    sim(&["mutants", "--only", "unknown"]).assert_refused("skip-token-check");
    sim(&["run", "--seeds", "0"]).assert_refused("--seeds");
    sim(&["run", "--seeds", "3", "--for", "1s"]).assert_refused("--for");
    sim(&["run", "--for", "2 minutes"]).assert_refused("2m");
    sim(&["run", "--start", "x"]).assert_refused("seeds are numbers");
    sim(&["run", "--jobs", "0"]).assert_refused("--jobs");
    sim(&["explain", "no-such-file.jsonl"]).assert_refused("neither a seed");
    sim(&["explain", "1", "--futures", "0"]).assert_refused("--futures");
    sim(&["soak", "--every", "often"]).assert_refused("2m");
    sim(&["run", "--profile", "unknown"]).assert_refused("effects");
    sim(&["dance"]).assert_refused("dance");
    let folder = folder("misuse");
    let bad = folder.join("bad.jsonl");
    std::fs::write(&bad, "{\"driftq_trace\":1,\"written_by\":\"me\",\"setup\":{}}\n\"wake\"\n{\"wake\":1}\n")
        .expect("a file");
    sim(&["replay", text(&bad)]).assert_refused("line 3");
    std::fs::write(&bad, [0xff, 0xfe, 0]).expect("a file");
    sim(&["replay", text(&bad)]).assert_refused("cannot be read");
    sim(&["replay", "2", "--trace", "/dev/null/x.jsonl"]).assert_refused("cannot be written");
}

#[test]
fn file_that_is_no_trace_is_refused_before_it_fills_the_memory() {
    let folder = folder("no-trace");
    let (empty, sparse) = (folder.join("empty.jsonl"), folder.join("sparse.jsonl"));
    std::fs::write(&empty, "").expect("a file");
    std::fs::File::create(&sparse).and_then(|file| file.set_len(1 << 40)).expect("a file");
    for command in ["replay", "shrink", "explain", "view"] {
        sim(&[command, text(&empty)]).assert_refused("the file is empty");
        sim(&[command, text(&sparse)]).assert_refused("bytes; a trace never has");
        sim(&[command, "/dev/zero"]).assert_refused("bytes; a trace never has");
    }
    sim(&["replay", "/dev/null"]).assert_refused("the file is empty");
    sim(&["replay", text(&folder)]).assert_refused("neither a seed");
}

#[test]
fn interrupted_run_prints_its_summary_and_exits_with_130() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    command.args(["run", "--seeds", "1000000", "--jobs", "1"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    // The second line follows the check for determinism; signals are handled by then.
    assert!(lines.by_ref().take(2).last().expect("two lines").contains("deterministic"));
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(signalled.expect("kill runs").success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("events/s")), "{rest:?}");
    assert!(rest.last().expect("a last line").starts_with("INTERRUPTED after "), "{rest:?}");
}

#[test]
fn view_writes_one_file_and_names_the_violation() {
    let (folder, regressions) = (folder("view"), format!("{}/regressions", env!("CARGO_MANIFEST_DIR")));
    let (trace, out) = (format!("{regressions}/mutant-skip-token-check.jsonl"), folder.join("deep/view.html"));
    let result = sim(&["view", &trace, "--out", text(&out)]);
    assert_eq!(result.code, 0, "{}", result.err);
    assert!(result.out.contains("invariant 6 violated by action 8"), "{}", result.out);
    assert!(result.out.contains(&format!("written to {}", out.display())), "{}", result.out);
    let page = std::fs::read_to_string(&out).expect("a page was written");
    assert!(page.starts_with("<!doctype html>") && page.contains("<title>mutant-skip-token-check</title>"));
    let without_bug = sim(&["view", &trace, "--out", text(&out), "--mutant", "none"]);
    assert!(without_bug.out.contains("no invariant is violated in 8 actions"), "{}", without_bug.out);
    sim(&["view", "nowhere.jsonl"]).assert_refused("neither a seed");
    sim(&["view", "3", "--out", text(&folder)]).assert_refused("cannot be written");
}
