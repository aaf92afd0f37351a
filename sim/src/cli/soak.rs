//! `driftq-sim soak`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jiff::Timestamp;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::args::Soak;
use super::{Ending, Misuse, say};
use crate::campaign::{DETERMINISTIC, check_determinism};
use crate::parallel::cores;
use crate::report::{grouped, peak_memory_kib, span};
use crate::run::RunOptions;
use crate::soak::folder::{Folder, FolderError, short_name};
use crate::soak::state::{KEPT_MAX, State};
use crate::soak::{News, Plan, soak as soak_on};
use crate::swarm::Profile;

/// Where a soak begins that nobody has begun before: far from the seeds that people and tests use.
const START: u64 = 0x1000_0000_0000;
/// How a process ends that is told to stop for the second time.
const IMPATIENT: i32 = 130;

pub(super) fn soak(args: &Soak) -> Result<Ending, Misuse> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first to come sets the flag; one that finds it set does not wait.
        flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&stop)).map_err(Misuse::Signals)?;
        flag::register(signal, Arc::clone(&stop)).map_err(Misuse::Signals)?;
    }
    let folder = Folder::take(&args.dir)?;
    let mut state = begin(args, &folder)?;
    let jobs = args.jobs.unwrap_or_else(cores);
    let time = args.time.map_or("until it is stopped".to_owned(), |time| format!("for {}", span(time)));
    say!("driftq-sim soak in {} on {jobs} threads, {time}: {}", args.dir.display(), described(&state));
    let (seed, before) = (state.next_seed, state.clone());
    let options = RunOptions { fault: state.mutant, profile: state.profile_of(seed), ..RunOptions::default() };
    if let Err(differing) = check_determinism(seed, options) {
        say!("invariant 22 is broken: {DETERMINISTIC}\n  found: {differing}\nFAILED");
        return Ok(Ending::Failed);
    }
    let plan = Plan { jobs, every: args.every, time: args.time, stop: &stop };
    soak_on(&folder, &mut state, plan, &|news| tell(&news, args))?;
    Ok(summary(args, &before, &state))
}

/// Where it goes on, or where it begins.
fn begin(args: &Soak, folder: &Folder) -> Result<State, Misuse> {
    let Some(state) = folder.state()? else {
        let start = args.start.unwrap_or(START);
        let why = if args.start.is_some() { "as told" } else { "far from the seeds of other runs" };
        say!("a new soak begins with seed {start}, {why}");
        let state = State::new(start, args.profile, args.mutant);
        // Before anything else, so that a folder which cannot be written is known at once.
        folder.write_state(&state)?;
        return Ok(state);
    };
    let wanted = State::new(0, args.profile, args.mutant);
    if described(&wanted) != described(&state) {
        let (found, wanted) = (described(&state), described(&wanted));
        return Err(FolderError::Another { path: args.dir.clone(), found, wanted }.into());
    }
    if args.start.is_some_and(|start| start != state.next_seed && state.seeds > 0) {
        say!("--start is for a new soak; this one goes on where it was");
    }
    say!("{} seeds before, {} failures; goes on with seed {}", grouped(state.seeds), state.failures, state.next_seed);
    Ok(state)
}

/// Which lives a soak is about.
fn described(state: &State) -> String {
    let profile = state.profile.map_or("both profiles in turn".to_owned(), |only| format!("profile {}", only.name()));
    match state.mutant {
        Some(fault) => format!("{profile}, with {} planted", fault.name()),
        None => profile,
    }
}

fn tell(news: &News<'_>, args: &Soak) {
    match news {
        News::Far { state, seeds, events, time } => {
            let rate = |count: u64| grouped((count as f64 / time.as_secs_f64().max(1e-9)) as u64);
            let memory = peak_memory_kib().map_or(String::new(), |kib| format!(", at most {} MiB", kib / 1_024));
            say!(
                "{} {} seeds, {} seeds/s, {} events/s, {} failures{memory}",
                Timestamp::now().strftime("%F %H:%M:%SZ"),
                grouped(state.seeds),
                rate(*seeds),
                rate(*events),
                grouped(state.failures),
            );
        }
        News::Failed { seed, profile, broken, whole } => {
            let profile = match profile {
                Profile::Default => String::new(),
                profile => format!(" --profile {}", profile.name()),
            };
            let mutant = args.mutant.map(|fault| format!(" --mutant {}", fault.name())).unwrap_or_default();
            say!("seed {seed} broke invariant {}: {}", broken.invariant, broken.sentence);
            say!("  replay the seed: driftq-sim replay {seed}{profile}{mutant}");
            say!("  soon short: driftq-sim replay {}", short_name(whole).display());
        }
        News::Shrunk { path, before, after } => {
            say!("{} was shrunk from {before} steps to {after}", path.display());
        }
        News::NotShrunk(path) => say!("{} breaks nothing when it is lived again; it is left as it is", path.display()),
    }
}

/// What this run came to, and the soak as a whole.
fn summary(args: &Soak, before: &State, state: &State) -> Ending {
    let time = Duration::from_millis(state.elapsed_ms - before.elapsed_ms);
    let failures = state.failures - before.failures;
    let (seeds, events) = (grouped(state.seeds - before.seeds), grouped(state.events - before.events));
    say!("{seeds} seeds, {events} events, {failures} failures in {}", span(time));
    let all = Duration::from_millis(state.elapsed_ms);
    say!("in all {} seeds, {} failures in {}", grouped(state.seeds), grouped(state.failures), span(all));
    for known in &state.sentences {
        let rest = if known.seeds > KEPT_MAX { format!(", of which {KEPT_MAX} are kept") } else { String::new() };
        let (count, broken) = (grouped(known.seeds), &known.broken);
        say!("  {count} broke invariant {}: {}{rest}", broken.invariant, broken.sentence);
    }
    say!("the next seed is {}; {} has the rest", state.next_seed, args.dir.display());
    say!("{}", if failures == 0 { "PASSED" } else { "FAILED" });
    if failures == 0 { Ending::Passed } else { Ending::Failed }
}
