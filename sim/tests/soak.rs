//! A soak as a nightly job meets it: the real program in a folder, stopped and killed and started again.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use driftq_core::faults::Fault;
use driftq_sim::run::{RunOptions, run_seed};
use driftq_sim::soak::state::{KEPT_MAX, State};
use driftq_sim::trace::{Trace, ViolatedInvariant};

/// The folder of a soak of the test's own.
struct Soaked(PathBuf);

impl Soaked {
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

    /// Runs it to its end: its exit code and what it said.
    fn run(&self, args: &[&str]) -> (i32, String) {
        let ended = self.command(args).output().expect("the program starts");
        let text = String::from_utf8([ended.stdout, ended.stderr].concat()).expect("the program writes text");
        (ended.status.code().expect("it ends by itself"), text)
    }

    fn state(&self) -> State {
        let text = std::fs::read_to_string(self.0.join("state.json")).expect("a state");
        State::from_json(&text).expect("the state can be read")
    }

    fn traces(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).expect("a folder").map(|file| file.expect("a file").path());
        let mut traces: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
        traces.sort();
        traces
    }
}

/// A soak that is running, with what it says.
struct Running(Child, BufReader<std::process::ChildStdout>);

impl Running {
    fn start(soaked: &Soaked, args: &[&str]) -> Self {
        let mut child = soaked.command(args).spawn().expect("the program starts");
        let out = child.stdout.take().expect("its output is ours");
        Self(child, BufReader::new(out))
    }

    /// Waits for a line with these words in it.
    fn wait_for(&mut self, words: &str) {
        let mut all = String::new();
        while !all.lines().last().unwrap_or_default().contains(words) {
            assert_ne!(self.1.read_line(&mut all).expect("its output"), 0, "it ended without {words}: {all}");
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
fn a_soak_says_how_far_it_is_and_goes_on_where_it_was() {
    let soaked = Soaked::new("resumes");
    let (code, said) = soaked.run(&["--for", "600ms", "--every", "100ms", "--start", "500", "--jobs", "2"]);
    assert_eq!((code, said.lines().last()), (0, Some("PASSED")), "{said}");
    assert!(said.contains("a new soak begins with seed 500"), "{said}");
    assert!(said.contains("both profiles in turn") && said.contains(" events/s, 0 failures"), "{said}");
    let first = soaked.state();
    assert!(first.seeds > 0 && first.events > 0 && first.elapsed_ms > 0, "{first:?}");
    assert_eq!(first.next_seed, 500 + first.seeds, "none is skipped, none is counted twice");

    let (code, said) = soaked.run(&["--for", "300ms"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&format!("goes on with seed {}", first.next_seed)), "{said}");
    let second = soaked.state();
    assert_eq!(second.next_seed, 500 + second.seeds);
    assert!(second.seeds > first.seeds && second.elapsed_ms > first.elapsed_ms, "{second:?}");
    assert!(soaked.traces().is_empty());

    let (code, said) = soaked.run(&["--for", "300ms", "--profile", "effects"]);
    assert!(code == 2 && said.contains("both profiles in turn, not profile effects"), "{said}");
    assert_eq!(soaked.state(), second, "what was refused changes nothing");
}

#[test]
fn what_a_planted_bug_breaks_is_kept_short_and_replayable_and_more_of_the_same_is_counted() {
    let soaked = Soaked::new("planted");
    let args = ["--for", "2500ms", "--mutant", "skip-token-check", "--start", "0", "--jobs", "2"];
    let (code, said) = soaked.run(&args);
    assert_eq!((code, said.lines().last()), (1, Some("FAILED")), "{said}");
    let state = soaked.state();
    assert!(state.failures > 0 && said.contains("replay the seed: driftq-sim replay "), "{said}");
    let kept: u64 = state.sentences.iter().map(|known| known.seeds.min(KEPT_MAX)).sum();
    assert_eq!(soaked.traces().len() as u64, kept, "{said}");
    for path in soaked.traces() {
        let trace = Trace::read(&path).expect("a trace");
        assert!(!path.to_string_lossy().contains("whole") && trace.actions.len() <= 40, "{}", path.display());
        assert_eq!(path.file_name(), Some(format!("seed-{}.jsonl", trace.header.seed.expect("its seed")).as_ref()));
        assert_eq!(driftq_sim::regression::check(&trace), Ok(()), "{}", path.display());
    }
}

#[test]
fn one_soak_at_a_time_and_a_signal_ends_it_well() {
    let soaked = Soaked::new("signals");
    let mut running = Running::start(&soaked, &["--every", "50ms", "--jobs", "1"]);
    running.wait_for("events/s");
    let (code, said) = soaked.run(&["--for", "1s"]);
    assert!(code == 2 && said.contains("another soak is running in"), "{said}");
    running.signal("-TERM");
    let (code, said) = running.end();
    assert_eq!((code, said.lines().last()), (Some(0), Some("PASSED")), "{said}");
    let state = soaked.state();
    assert!(said.contains(&format!("the next seed is {}", state.next_seed)), "{said}");
    assert_eq!(state.next_seed, 0x1000_0000_0000 + state.seeds);

    let mut again = Running::start(&soaked, &["--every", "50ms", "--jobs", "1"]);
    again.wait_for("events/s");
    again.signal("-INT");
    assert_eq!(again.end().0, Some(0), "the lock is free again");
}

#[test]
fn a_killed_soak_lives_some_seeds_again_and_skips_none() {
    let (soaked, fault) = (Soaked::new("killed"), Fault::SkipTokenCheck);
    let args = ["--mutant", fault.name(), "--start", "40", "--every", "200ms", "--jobs", "2"];
    for _ in 0..3 {
        let mut running = Running::start(&soaked, &args);
        running.wait_for("events/s");
        running.signal("-KILL");
        assert_eq!(running.end().0, None);
        let state = soaked.state();
        assert_eq!(state.next_seed, 40 + state.seeds, "{state:?}");
    }
    // Whatever was left whole is made short.
    let (_, said) = soaked.run(&[&args[..2], &["--for", "100ms"]].concat());
    let state = soaked.state();
    let mut broken: BTreeMap<ViolatedInvariant, Vec<u64>> = BTreeMap::new();
    for seed in 40..state.next_seed {
        let profile = state.profile_of(seed);
        let run = run_seed(seed, RunOptions { fault: Some(fault), profile, ..RunOptions::default() });
        if let Some(violation) = &run.violation {
            broken.entry(ViolatedInvariant::from(violation)).or_default().push(seed);
        }
    }
    assert_eq!(state.failures, broken.values().map(Vec::len).sum::<usize>() as u64, "{state:?}");
    for seeds in broken.values() {
        for seed in seeds.iter().take(KEPT_MAX as usize) {
            assert!(soaked.0.join(format!("seed-{seed}.jsonl")).is_file(), "{seed} is not kept: {said}");
        }
    }
}

#[test]
fn a_state_that_makes_no_sense_is_refused_and_left_alone() {
    let soaked = Soaked::new("nonsense");
    std::fs::create_dir_all(&soaked.0).expect("a folder");
    let path = soaked.0.join("state.json");
    let torn = &State::new(7, None, None).to_json()[..40];
    for nonsense in ["", "{}", "hello", torn] {
        std::fs::write(&path, nonsense).expect("a file");
        let (code, said) = soaked.run(&["--for", "1s"]);
        assert!(code == 2 && said.contains("is not the state of a soak"), "{nonsense}: {said}");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), nonsense);
        assert!(soaked.traces().is_empty());
    }
    let (code, said) = Soaked("/dev/null/soak".into()).run(&["--for", "1s"]);
    assert!(code == 2 && said.contains("cannot be used"), "{said}");
}
