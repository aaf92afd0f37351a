//! The soak command: stopped, killed and restarted in its directory.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use driftq_core::faults::Fault;
use driftq_sim::run::{RunOptions, run_seed};
use driftq_sim::soak::state::{KEPT_MAX, State};
use driftq_sim::trace::{Trace, ViolatedInvariant};

/// The soak directory of a test.
struct SoakDirectory(PathBuf);

impl SoakDirectory {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak").join(name);
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
        command.arg("soak").arg("--dir").arg(&self.0).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end and returns the exit code and the output.
    fn run(&self, args: &[&str]) -> (i32, String) {
        let output = self.command(args).output().expect("the program starts");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("the program writes text");
        (output.status.code().expect("it exits by itself"), text)
    }

    fn state(&self) -> State {
        let text = std::fs::read_to_string(self.0.join("state.json")).expect("a state");
        State::from_json(&text).expect("the state can be read")
    }

    fn traces(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).expect("a directory").map(|file| file.expect("a file").path());
        let mut traces: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
        traces.sort();
        traces
    }
}

/// A running soak and its output.
struct Running(Child, BufReader<std::process::ChildStdout>);

impl Running {
    fn start(directory: &SoakDirectory, args: &[&str]) -> Self {
        let mut child = directory.command(args).spawn().expect("the program starts");
        let out = child.stdout.take().expect("the output is captured");
        Self(child, BufReader::new(out))
    }

    /// Waits for a line that contains `text`.
    fn wait_for(&mut self, text: &str) {
        let mut all = String::new();
        while !all.lines().last().unwrap_or_default().contains(text) {
            assert_ne!(self.1.read_line(&mut all).expect("its output"), 0, "it ended without {text}: {all}");
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.1.read_to_string(&mut rest).expect("its output");
        (self.0.wait().expect("it ends").code(), rest)
    }
}

#[test]
fn soak_reports_progress_and_continues_where_it_stopped() {
    let directory = SoakDirectory::new("resumes");
    let (code, output) = directory.run(&["--for", "600ms", "--every", "100ms", "--start", "500", "--jobs", "2"]);
    assert_eq!((code, output.lines().last()), (0, Some("PASSED")), "{output}");
    assert!(output.contains("new soak from seed 500"), "{output}");
    assert!(output.contains("both profiles in turn") && output.contains(" events/s, 0 failures"), "{output}");
    let first = directory.state();
    assert!(first.seeds > 0 && first.events > 0 && first.elapsed_ms > 0, "{first:?}");
    assert_eq!(first.next_seed, 500 + first.seeds, "no seed is skipped or counted twice");

    let (code, output) = directory.run(&["--for", "300ms"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains(&format!("continues with seed {}", first.next_seed)), "{output}");
    let second = directory.state();
    assert_eq!(second.next_seed, 500 + second.seeds);
    assert!(second.seeds > first.seeds && second.elapsed_ms > first.elapsed_ms, "{second:?}");
    assert!(directory.traces().is_empty());

    let (code, output) = directory.run(&["--for", "300ms", "--profile", "effects"]);
    assert!(code == 2 && output.contains("both profiles in turn, not profile effects"), "{output}");
    assert_eq!(directory.state(), second, "a refused soak changes nothing");
}

#[test]
fn violations_are_kept_shrunk_and_further_ones_are_counted() {
    let directory = SoakDirectory::new("planted");
    let args = ["--for", "2500ms", "--mutant", "skip-token-check", "--start", "0", "--jobs", "2"];
    let (code, output) = directory.run(&args);
    assert_eq!((code, output.lines().last()), (1, Some("FAILED")), "{output}");
    let state = directory.state();
    assert!(state.failures > 0 && output.contains("replay the seed: driftq-sim replay "), "{output}");
    let kept: u64 = state.sentences.iter().map(|known| known.seeds.min(KEPT_MAX)).sum();
    assert_eq!(directory.traces().len() as u64, kept, "{output}");
    for path in directory.traces() {
        let trace = Trace::read(&path).expect("a trace");
        assert!(!path.to_string_lossy().contains("whole") && trace.actions.len() <= 40, "{}", path.display());
        assert_eq!(path.file_name(), Some(format!("seed-{}.jsonl", trace.header.seed.expect("its seed")).as_ref()));
        assert_eq!(driftq_sim::regression::check(&trace), Ok(()), "{}", path.display());
    }
}

#[test]
fn second_soak_is_refused_and_a_signal_ends_the_first_cleanly() {
    let directory = SoakDirectory::new("signals");
    let mut running = Running::start(&directory, &["--every", "50ms", "--jobs", "1"]);
    running.wait_for("events/s");
    let (code, output) = directory.run(&["--for", "1s"]);
    assert!(code == 2 && output.contains("another soak is running in"), "{output}");
    running.signal("-TERM");
    let (code, output) = running.end();
    assert_eq!((code, output.lines().last()), (Some(0), Some("PASSED")), "{output}");
    let state = directory.state();
    assert!(output.contains(&format!("the next seed is {}", state.next_seed)), "{output}");
    assert_eq!(state.next_seed, 0x1000_0000_0000 + state.seeds);

    let mut again = Running::start(&directory, &["--every", "50ms", "--jobs", "1"]);
    again.wait_for("events/s");
    again.signal("-INT");
    assert_eq!(again.end().0, Some(0), "the lock is released");
}

#[test]
fn killed_soak_repeats_some_seeds_and_skips_none() {
    let (directory, fault) = (SoakDirectory::new("killed"), Fault::SkipTokenCheck);
    let args = ["--mutant", fault.name(), "--start", "40", "--every", "200ms", "--jobs", "2"];
    for _ in 0..3 {
        let mut running = Running::start(&directory, &args);
        running.wait_for("events/s");
        running.signal("-KILL");
        assert_eq!(running.end().0, None);
        let state = directory.state();
        assert_eq!(state.next_seed, 40 + state.seeds, "{state:?}");
    }
    // Traces left unshrunk are shrunk by the next soak.
    let (_, output) = directory.run(&[&args[..2], &["--for", "100ms"]].concat());
    let state = directory.state();
    let mut violations: BTreeMap<ViolatedInvariant, Vec<u64>> = BTreeMap::new();
    for seed in 40..state.next_seed {
        let profile = state.profile_of(seed);
        let run = run_seed(seed, RunOptions { fault: Some(fault), profile, ..RunOptions::default() });
        if let Some(violation) = &run.violation {
            violations.entry(ViolatedInvariant::from(violation)).or_default().push(seed);
        }
    }
    assert_eq!(state.failures, violations.values().map(Vec::len).sum::<usize>() as u64, "{state:?}");
    for seeds in violations.values() {
        for seed in seeds.iter().take(KEPT_MAX as usize) {
            assert!(directory.0.join(format!("seed-{seed}.jsonl")).is_file(), "seed {seed} has no trace: {output}");
        }
    }
}

#[test]
fn invalid_state_is_refused_and_left_alone() {
    let directory = SoakDirectory::new("nonsense");
    std::fs::create_dir_all(&directory.0).expect("a directory");
    let path = directory.0.join("state.json");
    let torn = &State::new(7, None, None).to_json()[..40];
    for invalid in ["", "{}", "hello", torn] {
        std::fs::write(&path, invalid).expect("a file");
        let (code, output) = directory.run(&["--for", "1s"]);
        assert!(code == 2 && output.contains("is not the state of a soak"), "{invalid}: {output}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), invalid);
        assert!(directory.traces().is_empty());
    }
    let (code, output) = SoakDirectory("/dev/null/soak".into()).run(&["--for", "1s"]);
    assert!(code == 2 && output.contains("cannot be used"), "{output}");
}
