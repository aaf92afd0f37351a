//! Runs cases against a server: most of them side by side, since most of them wait for a lease to end.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::report::{Entry, Report};
use super::verdict::{Finding, fail, not_applicable};
use super::{Case, Needs, Probe, cases};
use crate::http::{Request, Server};

/// A restarted server that does not answer after this long has not come back.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const BACK_POLL: Duration = Duration::from_millis(20);

/// Restarts the server under test, its data kept; returns when a new one has been started.
pub type Restart = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What is run, and against whom.
pub struct Options {
    /// The server: `http://host:port`.
    pub url: String,
    /// How the server is restarted; without it the cases that need that are not applicable.
    pub restart: Option<Restart>,
    /// Only cases whose name or section contains this, in whatever case.
    pub only: Option<String>,
    /// How many cases run side by side.
    pub jobs: usize,
    /// How long something that must come is waited for.
    pub patience: Duration,
}

impl Options {
    /// Everything, against the server at `url`, without a restart.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self { url: url.to_owned(), restart: None, only: None, jobs: 24, patience: Duration::from_secs(5) }
    }

    /// The cases that are asked for.
    #[must_use]
    pub fn chosen(&self) -> Vec<Case> {
        let only = self.only.as_deref().unwrap_or_default().to_lowercase();
        let wanted = |text: &str| text.to_lowercase().contains(&only);
        cases().into_iter().filter(|case| wanted(case.name) || wanted(case.section)).collect()
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
    /// The URL is not one.
    #[error("{0}")]
    Url(String),
    /// Nobody answers there.
    #[error("{url} does not answer: {error}")]
    Unreachable {
        /// The server that was asked for.
        url: String,
        /// What happened instead of an answer.
        error: String,
    },
    /// There is nothing to run.
    #[error("no case has {0:?} in its name or section; --list shows them all")]
    NothingChosen(String),
}

/// Runs the chosen cases; `done` is told of each as it ends.
///
/// # Errors
/// If there is no server, or no case.
pub fn run(options: &Options, done: &(dyn Fn(&Entry) + Sync)) -> Result<Report, RunError> {
    let began = Instant::now();
    let server = Server::at(&options.url, options.patience).map_err(RunError::Url)?;
    if let Err(error) = server.call(&Request::get("/v1/healthz")) {
        return Err(RunError::Unreachable { url: options.url.clone(), error: error.to_string() });
    }
    let chosen = options.chosen();
    if chosen.is_empty() {
        return Err(RunError::NothingChosen(options.only.clone().unwrap_or_default()));
    }
    let runner = Runner { options, server, run_id: run_id(), done, chosen: &chosen, entries: Mutex::default() };
    runner.run_without_restart();
    runner.run_with_restart();
    let mut entries = locked(&runner.entries).split_off(0);
    entries.sort_by_key(|(index, _)| *index);
    let entries = entries.into_iter().map(|(_, entry)| entry).collect();
    Ok(Report { url: options.url.clone(), took: began.elapsed(), entries })
}

/// A text that no other run has had on this machine, and hardly on another.
fn run_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}{:x}", std::process::id(), since.as_micros() & 0xff_ffff_ffff)
}

struct Runner<'a> {
    options: &'a Options,
    server: Server,
    run_id: String,
    done: &'a (dyn Fn(&Entry) + Sync),
    chosen: &'a [Case],
    entries: Mutex<Vec<(usize, Entry)>>,
}

impl Runner<'_> {
    fn indices(&self, needs: Needs) -> Vec<usize> {
        (0..self.chosen.len()).filter(|&index| self.chosen[index].needs == needs).collect()
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

    /// All at once, since all of them wait for the same restart.
    fn run_with_restart(&self) {
        let indices = self.indices(Needs::Restart);
        let Some(restart) = &self.options.restart else {
            for index in indices {
                self.tell(index, Err(not_applicable("needs --restart")));
            }
            return;
        };
        if self.keeps_nothing() {
            for index in indices {
                self.tell(index, Err(not_applicable("the server says wal_enabled: false, so nothing survives")));
            }
            return;
        }
        let meeting = Meeting::of(indices.len(), || {
            restart()?;
            self.wait_until_back()
        });
        std::thread::scope(|scope| {
            for index in indices {
                let meeting = &meeting;
                scope.spawn(move || {
                    let seat = Seat { meeting, used: AtomicBool::new(false) };
                    self.run_case(index, Some(&seat));
                });
            }
        });
    }

    fn keeps_nothing(&self) -> bool {
        let version = self.server.call(&Request::get("/v1/version"));
        version.is_ok_and(|version| version.json()["wal_enabled"] == false)
    }

    fn wait_until_back(&self) -> Result<(), String> {
        let give_up = Instant::now() + BACK_WITHIN;
        loop {
            let seen = match self.server.call(&Request::get("/v1/topics")) {
                Ok(reply) if reply.status == 200 => return Ok(()),
                Ok(reply) => format!("{} to GET /v1/topics", reply.status),
                Err(error) => error.to_string(),
            };
            if Instant::now() > give_up {
                return Err(format!("{seen}, {} s after the restart", BACK_WITHIN.as_secs()));
            }
            std::thread::sleep(BACK_POLL);
        }
    }

    fn run_case(&self, index: usize, seat: Option<&Seat<'_>>) {
        let prefix = format!("cf-{}-{index}", self.run_id);
        let probe = Probe::new(self.server.clone(), self.options.patience, prefix, seat);
        let run = self.chosen[index].run;
        // A case that breaks is a finding too, and must not keep the others from theirs.
        let finding = catch_unwind(AssertUnwindSafe(|| run(&probe)));
        self.tell(index, finding.unwrap_or_else(|_| Err(fail("a case that ends", "one that panicked"))));
    }

    fn tell(&self, index: usize, finding: Finding) {
        let verdict = finding.unwrap_or_else(|early| early);
        let entry = Entry { case: self.chosen[index], verdict };
        (self.done)(&entry);
        locked(&self.entries).push((index, entry));
    }
}

/// Where cases wait for each other, so that one restart serves them all.
struct Meeting<'a> {
    restart: Box<dyn Fn() -> Result<(), String> + Sync + 'a>,
    state: Mutex<Gathering>,
    changed: Condvar,
}

struct Gathering {
    /// Cases that have neither arrived nor ended.
    awaited: usize,
    /// Set once the restart is over.
    restarted: Option<Result<(), String>>,
}

impl<'a> Meeting<'a> {
    fn of(awaited: usize, restart: impl Fn() -> Result<(), String> + Sync + 'a) -> Self {
        let state = Mutex::new(Gathering { awaited, restarted: None });
        Self { restart: Box::new(restart), state, changed: Condvar::new() }
    }

    /// One less to wait for; whoever comes last restarts the server for all.
    fn count_down(&self) -> MutexGuard<'_, Gathering> {
        let mut state = locked(&self.state);
        state.awaited -= 1;
        if state.awaited == 0 {
            state.restarted = Some((self.restart)());
            self.changed.notify_all();
        }
        state
    }
}

/// A case's place at the meeting. One that ends without having asked for the restart is not waited for.
pub(super) struct Seat<'a> {
    meeting: &'a Meeting<'a>,
    used: AtomicBool,
}

impl Seat<'_> {
    /// Waits until everybody is here and the server has been restarted.
    pub(super) fn restart(&self) -> Result<(), String> {
        if self.used.swap(true, Ordering::Relaxed) {
            return Err("a second restart, which no case may ask for".to_owned());
        }
        let mut state = self.meeting.count_down();
        loop {
            if let Some(restarted) = &state.restarted {
                return restarted.clone();
            }
            state = self.meeting.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if !self.used.load(Ordering::Relaxed) {
            drop(self.meeting.count_down());
        }
    }
}

impl fmt::Debug for Seat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("used", &self.used).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
