//! The file in which the results of a long run are kept: rewritten while it goes on, so that one that is stopped has
//! them, too.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::run::rfc3339;
use crate::suite::{RunResult, table};

/// The file is not rewritten more often.
const WRITE_EVERY: Duration = Duration::from_secs(20);

/// Results so far.
#[derive(Debug)]
pub struct Results {
    path: Option<PathBuf>,
    head: String,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    written: Instant,
    results: Vec<RunResult>,
}

impl Results {
    /// Keeps them in the file `path`, if there is one, below when, where and of which commit they are.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        let date = rfc3339(SystemTime::now());
        let head = format!(
            "Begun {} at commit {}, on {}.\n",
            date.split('T').next().unwrap_or_default(),
            commit().unwrap_or_else(|| "unknown".to_owned()),
            machine()
        );
        let start = Instant::now();
        Self { path, head, start, state: Mutex::new(State { written: start, results: Vec::new() }) }
    }

    /// Adds one, and rewrites the file if that was long ago.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&self, result: RunResult) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.results.push(result);
        if state.written.elapsed() < WRITE_EVERY {
            return Ok(());
        }
        state.written = Instant::now();
        self.write(&state.results)
    }

    /// Rewrites the file, and returns all results.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<Vec<RunResult>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&state.results)?;
        drop(state);
        Ok(self.state.into_inner().unwrap_or_else(PoisonError::into_inner).results)
    }

    fn write(&self, results: &[RunResult]) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let (runs, minutes) = (results.len(), self.start.elapsed().as_secs() / 60);
        let repeated = results.iter().filter(|result| result.repeats > 0).count();
        let seeds = results.iter().map(|result| result.seed);
        let (first, last) = (seeds.clone().min().unwrap_or(0), seeds.max().unwrap_or(0));
        let text = format!(
            "{}{runs} runs with the seeds {first} to {last}, in {minutes} minutes; {repeated} of them repeated, \
             because the machine stood still.\n\n{}",
            self.head,
            table(results)
        );
        // A reader finds the old file or the new one.
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }
}

fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn machine() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{cores} cores of {}", model.map_or("unknown make", |(_, name)| name.trim()))
}
