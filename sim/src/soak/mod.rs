//! New seeds until somebody stops it, night after night: how far it is stands in a [`folder`], with whatever it found.
//!
//! A seed counts as lived only when the trace of what it broke is in the folder. Whoever ends the process at any moment makes it
//! live a few seeds again, and never skip one. Traces are made short beside the lives that go on; one that was not is made
//! short by the next soak.

pub mod folder;
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
use crate::campaign::Failure;
use crate::parallel::in_order;
use crate::run::{RunOptions, run_seed};
use crate::shrink::shrink;
use crate::swarm::Profile;
use crate::trace::{Trace, ViolatedInvariant};

/// How a soak is done.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// On how many threads, beside the one that shrinks.
    pub jobs: NonZeroUsize,
    /// How often it says how far it is, and writes it down.
    pub every: Duration,
    /// For how long; none for ever.
    pub time: Option<Duration>,
    /// It ends when this is set.
    pub stop: &'a AtomicBool,
}

/// What there is to tell.
#[derive(Debug)]
pub enum News<'a> {
    /// How far it is, and what was done since the last time.
    Far {
        /// Over all runs.
        state: &'a State,
        /// Seeds since the last time.
        seeds: u64,
        /// Events since the last time.
        events: u64,
        /// How long ago that was.
        time: Duration,
    },
    /// A seed broke a promise, and its trace is kept.
    Failed {
        /// The seed.
        seed: u64,
        /// Its profile.
        profile: Profile,
        /// The promise.
        broken: ViolatedInvariant,
        /// Where its trace is until it is short.
        whole: PathBuf,
    },
    /// A trace was made short.
    Shrunk {
        /// Where it is.
        path: PathBuf,
        /// How many steps it had.
        before: usize,
        /// How many it has.
        after: usize,
    },
    /// A trace breaks nothing when it is lived again, and is left as it is.
    NotShrunk(PathBuf),
}

/// Soaks, from where `state` is, which is written down whenever there is something new. Gives what this run did to it.
///
/// # Errors
/// What went wrong with the folder, which ends it.
pub fn soak(
    folder: &Folder,
    state: &mut State,
    plan: Plan<'_>,
    tell: &(impl Fn(News<'_>) + Sync),
) -> Result<(), FolderError> {
    let (to_shrink, whole) = mpsc::channel();
    // What an earlier soak had no time for comes first.
    for path in folder.whole()? {
        let _ = to_shrink.send(path);
    }
    let fault = state.mutant;
    let shrink_all = move || -> Result<(), FolderError> {
        for path in whole {
            if plan.stop.load(Ordering::Relaxed) {
                break;
            }
            let shortened = shorten(folder, path);
            // There is no point in finding more that cannot be kept.
            tell(shortened.inspect_err(|_| plan.stop.store(true, Ordering::Relaxed))?);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let shrinker = scope.spawn(shrink_all);
        let lived = live_on(folder, state, plan, fault, |news| {
            if let News::Failed { whole, .. } = &news {
                let _ = to_shrink.send(whole.clone());
            }
            tell(news);
        });
        drop(to_shrink);
        let shrunk = shrinker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        lived.and(shrunk)
    })
}

/// Lives one seed after the other, until it is time to end.
fn live_on(
    folder: &Folder,
    state: &mut State,
    plan: Plan<'_>,
    fault: Option<driftq_core::faults::Fault>,
    mut tell: impl FnMut(News<'_>),
) -> Result<(), FolderError> {
    let begun = Instant::now();
    let until = plan.time.and_then(|time| begun.checked_add(time));
    let goes_on = |_: &u64| !plan.stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until);
    let first = state.next_seed;
    let seeds = (0..u64::MAX).map(|nth| first.wrapping_add(nth)).take_while(goes_on);
    let profiles = State { sentences: Vec::new(), ..state.clone() };
    let options = |seed| RunOptions { fault, profile: profiles.profile_of(seed), ..RunOptions::default() };
    let elapsed_before = state.elapsed_ms;
    let mut told = (begun, state.seeds, state.events);
    let mut take = |state: &mut State, Failure { seed, run }: Failure| -> Result<(), FolderError> {
        state.lived(seed, run.counters.events);
        state.elapsed_ms = elapsed_before + begun.elapsed().as_millis() as u64;
        if let Some(violation) = &run.violation {
            let broken = ViolatedInvariant::from(violation);
            if state.failed(&broken) {
                let whole = folder.keep(seed, &Trace::of(&run, Some(seed), fault))?;
                folder.write_state(state)?;
                tell(News::Failed { seed, profile: options(seed).profile, broken, whole });
            }
        }
        let time = told.0.elapsed();
        if time >= plan.every {
            folder.write_state(state)?;
            tell(News::Far { state, seeds: state.seeds - told.1, events: state.events - told.2, time });
            told = (Instant::now(), state.seeds, state.events);
        }
        Ok(())
    };
    let mut ended = Ok(());
    in_order(
        plan.jobs,
        seeds,
        |seed| {
            let mut run = run_seed(seed, options(seed));
            if run.violation.is_none() {
                run.actions = Vec::new();
            }
            Failure { seed, run }
        },
        |lived| {
            ended = take(state, lived);
            if ended.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    );
    ended?;
    folder.write_state(state)
}

/// Makes a trace short.
fn shorten(folder: &Folder, whole: PathBuf) -> Result<News<'static>, FolderError> {
    // A trace that cannot be read was not written by a soak; it is somebody else's, and none of our business.
    let Ok(trace) = Trace::read(&whole) else { return Ok(News::NotShrunk(whole)) };
    let options = RunOptions { fault: trace.header.mutant, ..RunOptions::default() };
    let Some(shrunk) = shrink(&trace.header.setup, &trace.actions, options) else {
        return Ok(News::NotShrunk(whole));
    };
    let short = Trace::of(&shrunk.run, trace.header.seed, trace.header.mutant);
    let path = folder.shorten(&whole, &short)?;
    Ok(News::Shrunk { path, before: trace.actions.len(), after: short.actions.len() })
}
