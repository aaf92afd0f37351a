//! Runs cases against a server, many at a time, since most of them wait for a lease to expire.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::case::{Case, Needs};
use super::cases::cases;
use super::probe::Probe;
use super::report::{Entry, Report};
use super::restart::{RestartBarrier, RestartTicket};
use super::verdict::{Finding, fail, not_applicable};
use crate::http::{Client, Request};

/// How long a restarted server may take to respond.
const RESTART_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Restarts the server under test without losing its data; returns when the new process was started.
pub type Restart = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Which cases are run, against which server.
pub struct Options {
    /// The server: `http://host:port`.
    pub url: String,
    /// How the server is restarted; without it the cases that need a restart are not applicable.
    pub restart: Option<Restart>,
    /// Only cases whose name or section contains this, ignoring case.
    pub only: Option<String>,
    /// Only cases with one of these names, if any are given.
    pub names: BTreeSet<&'static str>,
    /// How many cases run at a time.
    pub jobs: usize,
    /// How long a response or delivery that must arrive may take.
    pub timeout: Duration,
}

impl Options {
    /// All cases, against the server at `url`, without a restart.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            restart: None,
            only: None,
            names: BTreeSet::new(),
            jobs: 24,
            timeout: Duration::from_secs(5),
        }
    }

    /// The selected cases.
    #[must_use]
    pub fn selected(&self) -> Vec<Case> {
        let only = self.only.as_deref().unwrap_or_default().to_lowercase();
        let wanted = |text: &str| text.to_lowercase().contains(&only);
        let named = |name: &str| self.names.is_empty() || self.names.contains(name);
        let selected = cases().into_iter().filter(|case| wanted(case.name) || wanted(case.section));
        selected.filter(|case| named(case.name)).collect()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("url", &self.url).field("only", &self.only).finish_non_exhaustive()
    }
}

/// Why no case was run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The URL is not valid.
    #[error("{0}")]
    Url(String),
    /// The server does not respond.
    #[error("{url} does not respond: {error}")]
    Unreachable {
        /// The server.
        url: String,
        /// Why.
        error: String,
    },
    /// No case is selected.
    #[error("no case has {0:?} in its name or section; --list shows them all")]
    NothingSelected(String),
}

/// Runs the selected cases and calls `done` as each ends.
///
/// # Errors
/// If there is no server, or no case is selected.
pub fn run(options: &Options, done: &(dyn Fn(&Entry) + Sync)) -> Result<Report, RunError> {
    let began = Instant::now();
    let client = Client::from_url(&options.url, options.timeout).map_err(RunError::Url)?;
    if let Err(error) = client.call(&Request::get("/v1/healthz")) {
        return Err(RunError::Unreachable { url: options.url.clone(), error: error.to_string() });
    }
    let selected = options.selected();
    if selected.is_empty() {
        return Err(RunError::NothingSelected(options.only.clone().unwrap_or_default()));
    }
    let runner = Runner { options, client, run_id: run_id(), done, selected: &selected, entries: Mutex::default() };
    runner.run_without_restart();
    runner.run_with_restart();
    let mut entries = locked(&runner.entries).split_off(0);
    entries.sort_by_key(|(index, _)| *index);
    let entries = entries.into_iter().map(|(_, entry)| entry).collect();
    Ok(Report { url: options.url.clone(), took: began.elapsed(), entries })
}

/// An identifier that is unique on this machine, and practically unique elsewhere.
fn run_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}{:x}", std::process::id(), since.as_micros() & 0xff_ffff_ffff)
}

struct Runner<'a> {
    options: &'a Options,
    client: Client,
    run_id: String,
    done: &'a (dyn Fn(&Entry) + Sync),
    selected: &'a [Case],
    entries: Mutex<Vec<(usize, Entry)>>,
}

impl Runner<'_> {
    fn indices(&self, needs: Needs) -> Vec<usize> {
        (0..self.selected.len()).filter(|&index| self.selected[index].needs == needs).collect()
    }

    fn run_without_restart(&self) {
        let indices = self.indices(Needs::Nothing);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs.clamp(1, indices.len().max(1)) {
                scope.spawn(|| {
                    while let Some(&index) = indices.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.run_case(index, None);
                    }
                });
            }
        });
    }

    /// Runs all of them at once, since they share one restart.
    fn run_with_restart(&self) {
        let indices = self.indices(Needs::Restart);
        let Some(restart) = &self.options.restart else {
            for index in indices {
                self.report(index, Err(not_applicable("needs --restart")));
            }
            return;
        };
        if self.is_volatile() {
            for index in indices {
                self.report(index, Err(not_applicable("the server reports wal_enabled: false, so nothing survives")));
            }
            return;
        }
        let barrier = RestartBarrier::new(indices.len(), || {
            restart()?;
            self.wait_for_restart()
        });
        std::thread::scope(|scope| {
            for index in indices {
                let barrier = &barrier;
                scope.spawn(move || self.run_case(index, Some(&barrier.ticket())));
            }
        });
    }

    fn is_volatile(&self) -> bool {
        let version = self.client.call(&Request::get("/v1/version"));
        version.is_ok_and(|version| version.json()["wal_enabled"] == false)
    }

    fn wait_for_restart(&self) -> Result<(), String> {
        let deadline = Instant::now() + RESTART_WITHIN;
        loop {
            let seen = match self.client.call(&Request::get("/v1/topics")) {
                Ok(reply) if reply.status == 200 => return Ok(()),
                Ok(reply) => format!("{} to GET /v1/topics", reply.status),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(format!("{seen}, {} s after the restart", RESTART_WITHIN.as_secs()));
            }
            std::thread::sleep(POLL);
        }
    }

    fn run_case(&self, index: usize, ticket: Option<&RestartTicket<'_>>) {
        let prefix = format!("cf-{}-{index}", self.run_id);
        let probe = Probe::new(self.client.clone(), self.options.timeout, prefix, ticket);
        let run = self.selected[index].run;
        // A panic is the verdict of its case and must not affect the others.
        let finding = catch_unwind(AssertUnwindSafe(|| run(&probe)));
        self.report(index, finding.unwrap_or_else(|_| Err(fail("the case to complete", "a panic"))));
    }

    fn report(&self, index: usize, finding: Finding) {
        let verdict = finding.unwrap_or_else(|early| early);
        let entry = Entry { case: self.selected[index], verdict };
        (self.done)(&entry);
        locked(&self.entries).push((index, entry));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
