//! Runs a command once per mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the simulator prints before it shrinks a violation: the verdict is known then.
const VIOLATED: [&str; 2] = ["violated an invariant", " violated: "];

struct Options<'a> {
    jobs: usize,
    timeout: Duration,
    from: Option<&'a Path>,
    every: usize,
    command: &'a [&'a str],
}

fn parse<'a>(mut options: &'a [&'a str]) -> Result<Options<'a>, String> {
    let mut parsed = Options { jobs: 1, timeout: Duration::from_secs(60), from: None, every: 1, command: &[] };
    let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    loop {
        options = match options {
            ["--jobs", value, rest @ ..] => {
                parsed.jobs = number(value)?.max(1);
                rest
            }
            ["--timeout", value, rest @ ..] => {
                parsed.timeout = Duration::from_secs(number(value)? as u64);
                rest
            }
            ["--from", value, rest @ ..] => {
                parsed.from = Some(Path::new(value));
                rest
            }
            ["--every", value, rest @ ..] => {
                parsed.every = number(value)?.max(1);
                rest
            }
            ["--", command @ ..] if !command.is_empty() => {
                parsed.command = command;
                return Ok(parsed);
            }
            other => return Err(format!("not understood: {other:?}")),
        }
    }
}

/// The verdicts of a file of results, by mutant.
fn results(path: &Path) -> BTreeMap<u32, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (id, rest) = line.split_once('\t')?;
        Some((id.parse().ok()?, rest.split('\t').next()?.to_owned()))
    });
    lines.collect()
}

/// Runs what has no result yet.
pub(crate) fn run(dir: &Path, path: &Path, options: &[&str]) -> Result<(), String> {
    let options = parse(options)?;
    let list = fs::read_to_string(dir.join("mutants.tsv")).map_err(|e| format!("mutants.tsv: {e}"))?;
    let done: BTreeSet<u32> = results(path).into_keys().collect();
    let survived = options.from.map(|from| results(from).into_iter().filter(|(_, verdict)| verdict == "survived"));
    let survived: Option<BTreeSet<u32>> = survived.map(|survived| survived.map(|(id, _)| id).collect());
    let wanted = list.lines().step_by(options.every).filter_map(|line| {
        let id = line.split('\t').next()?.parse().ok()?;
        let is_wanted = !done.contains(&id) && survived.as_ref().is_none_or(|survived| survived.contains(&id));
        is_wanted.then_some((id, line))
    });
    let wanted: Vec<(u32, &str)> = wanted.collect();
    println!("{} mutants to run", wanted.len());
    let out = OpenOptions::new().create(true).append(true).open(path).map_err(|e| format!("{path:?}: {e}"))?;
    let (out, next) = (Mutex::new(out), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some((id, line)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = one(dir, *id, &options);
                    let rest = line.split_once('\t').map_or("", |(_, rest)| rest);
                    let mut out = out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let _ = writeln!(out, "{id}\t{}\t{}\t{rest}", verdict.0, verdict.1);
                }
            });
        }
    });
    let all = results(path);
    let survived = all.values().filter(|verdict| *verdict == "survived").count();
    println!("{} run in all, {survived} survived", all.len());
    Ok(())
}

/// Runs the command with one mutant on: the verdict and what the command said.
fn one(dir: &Path, id: u32, options: &Options<'_>) -> (&'static str, String) {
    let mut command = Command::new(options.command[0]);
    command.args(&options.command[1..]).current_dir(dir).env("DRIFTQ_MUTANT", id.to_string());
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null()).spawn();
    let Ok(mut child) = spawned else { return ("not run", String::new()) };
    let said = Arc::new(Mutex::new(String::new()));
    let reader = child.stdout.take().map(|stdout| {
        let said = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if VIOLATED.iter().any(|sign| line.contains(sign)) {
                    *said.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = line;
                    return true;
                }
            }
            false
        })
    });
    let verdict = wait(&mut child, options.timeout, || {
        reader.as_ref().is_some_and(|reader| reader.is_finished())
            && !said.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_empty()
    });
    let _ = child.kill();
    let _ = child.wait();
    let said = said.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    (verdict, said.chars().take(120).collect())
}

fn wait(child: &mut Child, timeout: Duration, is_violated: impl Fn() -> bool) -> &'static str {
    let started = Instant::now();
    loop {
        if is_violated() {
            return "killed";
        }
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return "survived",
            Ok(Some(_)) => return "killed",
            Err(_) => return "not run",
            Ok(None) if started.elapsed() > timeout => return "timeout",
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
