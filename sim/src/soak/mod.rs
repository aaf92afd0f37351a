//! Soak testing: new seeds until it is stopped. Progress and findings are kept in a [`folder`].
//!
//! A seed counts as run only once the trace of its violation is in the directory, so a killed process repeats a few
//! seeds and skips none. Traces are shrunk in parallel; those that are not are shrunk by the next soak.

pub mod folder;
pub mod pairs;
pub mod state;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use self::folder::{Folder, FolderError};
use self::state::State;
use crate::parallel::in_order;
use crate::run::{Run, RunOptions, run_seed};
use crate::shrink::shrink;
use crate::swarm::Profile;
use crate::trace::{Trace, ViolatedInvariant};

/// How a soak is executed.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The number of threads, besides the one that shrinks.
    pub jobs: NonZeroUsize,
    /// The interval between progress reports and state updates.
    pub every: Duration,
    /// The duration; `None` for no limit.
    pub time: Option<Duration>,
    /// Stops the soak when set.
    pub stop: &'a AtomicBool,
}

/// A progress event.
#[derive(Debug)]
pub enum Event<'a> {
    /// A progress report.
    Progress {
        /// The state of the soak, earlier invocations included.
        state: &'a State,
        /// Seeds since the last report.
        seeds: u64,
        /// Events since the last report.
        events: u64,
        /// The time since the last report.
        time: Duration,
    },
    /// A seed violated an invariant and its trace was written.
    Failed {
        /// The seed.
        seed: u64,
        /// Its profile.
        profile: Profile,
        /// The invariant.
        invariant: ViolatedInvariant,
        /// The unshrunk trace.
        unshrunk: PathBuf,
    },
    /// A trace was shrunk.
    Shrunk {
        /// The trace.
        path: PathBuf,
        /// The number of actions before.
        before: usize,
        /// The number of actions after.
        after: usize,
    },
    /// The replay of a trace violates nothing; the trace is left as it is.
    NotShrunk(PathBuf),
}

/// Runs a soak from `state`, which is updated and written to the directory.
///
/// # Errors
/// The error of the directory, which ends the soak.
pub fn soak(
    folder: &Folder,
    state: &mut State,
    plan: Plan<'_>,
    report: &(impl Fn(Event<'_>) + Sync),
) -> Result<(), FolderError> {
    let (to_shrink, unshrunk) = mpsc::channel();
    // Traces left by an earlier soak come first.
    for path in folder.unshrunk()? {
        let _ = to_shrink.send(path);
    }
    let fault = state.mutant;
    let shrink_all = move || -> Result<(), FolderError> {
        for path in unshrunk {
            if plan.stop.load(Ordering::Relaxed) {
                break;
            }
            let shrunk = shrink_trace(folder, path);
            // Stop: further findings could not be written either.
            report(shrunk.inspect_err(|_| plan.stop.store(true, Ordering::Relaxed))?);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let shrinker = scope.spawn(shrink_all);
        let result = run_seeds(folder, state, plan, fault, |event| {
            if let Event::Failed { unshrunk, .. } = &event {
                let _ = to_shrink.send(unshrunk.clone());
            }
            report(event);
        });
        drop(to_shrink);
        let shrunk = shrinker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(shrunk)
    })
}

/// Runs seeds until the soak ends.
fn run_seeds(
    folder: &Folder,
    state: &mut State,
    plan: Plan<'_>,
    fault: Option<driftq_core::faults::Fault>,
    mut report: impl FnMut(Event<'_>),
) -> Result<(), FolderError> {
    let started = Instant::now();
    let until = plan.time.and_then(|time| started.checked_add(time));
    let is_running = |_: &u64| !plan.stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until);
    let first = state.next_seed;
    let seeds = (0..u64::MAX).map(|nth| first.wrapping_add(nth)).take_while(is_running);
    let profiles = State { sentences: Vec::new(), ..state.clone() };
    let options = |seed| RunOptions { fault, profile: profiles.profile_of(seed), ..RunOptions::default() };
    let elapsed_before = state.elapsed_ms;
    let mut last_report = (started, state.seeds, state.events);
    let mut record = |state: &mut State, seed: u64, run: &Run| -> Result<(), FolderError> {
        state.record_seed(seed, run.counters.events);
        state.elapsed_ms = elapsed_before + started.elapsed().as_millis() as u64;
        if let Some(violation) = &run.violation {
            let invariant = ViolatedInvariant::from(violation);
            if state.record_failure(&invariant) {
                let unshrunk = folder.write_unshrunk(seed, &Trace::of(run, Some(seed), fault))?;
                folder.write_state(state)?;
                report(Event::Failed { seed, profile: options(seed).profile, invariant, unshrunk });
            }
        }
        let time = last_report.0.elapsed();
        if time >= plan.every {
            folder.write_state(state)?;
            report(Event::Progress {
                state,
                seeds: state.seeds - last_report.1,
                events: state.events - last_report.2,
                time,
            });
            last_report = (Instant::now(), state.seeds, state.events);
        }
        Ok(())
    };
    let mut result = Ok(());
    in_order(
        plan.jobs,
        seeds,
        |seed| {
            let mut run = run_seed(seed, options(seed));
            let met = pairs::met(&run.actions);
            if run.violation.is_none() {
                run.actions = Vec::new();
            }
            (seed, run, met)
        },
        |(seed, run, met)| {
            state.met.extend(met);
            result = record(state, seed, &run);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    );
    result?;
    folder.write_state(state)
}

/// Shrinks a trace.
fn shrink_trace(folder: &Folder, unshrunk: PathBuf) -> Result<Event<'static>, FolderError> {
    // A trace that cannot be read was not written by a soak and is left alone.
    let Ok(trace) = Trace::read(&unshrunk) else { return Ok(Event::NotShrunk(unshrunk)) };
    let options = RunOptions { fault: trace.header.mutant, ..RunOptions::default() };
    let Some(shrunk) = shrink(&trace.header.setup, &trace.actions, options) else {
        return Ok(Event::NotShrunk(unshrunk));
    };
    let shrunk_trace = Trace::of(&shrunk.run, trace.header.seed, trace.header.mutant);
    let path = folder.replace_shrunk(&unshrunk, &shrunk_trace)?;
    Ok(Event::Shrunk { path, before: trace.actions.len(), after: shrunk_trace.actions.len() })
}
