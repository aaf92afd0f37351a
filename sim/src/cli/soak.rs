//! `driftq-sim soak`.

use std::time::Duration;

use jiff::Timestamp;

use super::args::Soak;
use super::signals::stop_on_signals;
use super::{Ending, Misuse, print_line};
use crate::campaign::{DETERMINISTIC, check_determinism};
use crate::parallel::cores;
use crate::report::{grouped, peak_memory_kib, span};
use crate::run::RunOptions;
use crate::soak::folder::{Folder, FolderError, shrunk_path};
use crate::soak::pairs::never_met;
use crate::soak::state::{KEPT_MAX, State};
use crate::soak::{Event, Plan, soak as run_soak};
use crate::swarm::Profile;

/// The first seed of a new soak: far from the seeds of other runs.
const START: u64 = 0x1000_0000_0000;

pub(super) fn soak(args: &Soak) -> Result<Ending, Misuse> {
    let stop = stop_on_signals().map_err(Misuse::Signals)?;
    let folder = Folder::lock(&args.dir)?;
    let mut state = load_state(args, &folder)?;
    let jobs = args.jobs.unwrap_or_else(cores);
    let time = args.time.map_or("until it is stopped".to_owned(), |time| format!("for {}", span(time)));
    print_line!("driftq-sim soak in {} on {jobs} threads, {time}: {}", args.dir.display(), describe(&state));
    let (seed, before) = (state.next_seed, state.clone());
    let options = RunOptions { fault: state.mutant, profile: state.profile_of(seed), ..RunOptions::default() };
    if let Err(difference) = check_determinism(seed, options) {
        print_line!("invariant 22 violated: {DETERMINISTIC}\n  found: {difference}\nFAILED");
        return Ok(Ending::Failed);
    }
    let plan = Plan { jobs, every: args.every, time: args.time, stop: &stop };
    run_soak(&folder, &mut state, plan, &|event| report(&event, args))?;
    Ok(summary(args, &before, &state))
}

/// The state to continue from, or a new one.
fn load_state(args: &Soak, folder: &Folder) -> Result<State, Misuse> {
    let Some(state) = folder.state()? else {
        let start = args.start.unwrap_or(START);
        let why = if args.start.is_some() { "as requested" } else { "far from the seeds of other runs" };
        print_line!("new soak from seed {start}, {why}");
        let state = State::new(start, args.profile, args.mutant);
        // Written first, so that a directory which cannot be written is reported at once.
        folder.write_state(&state)?;
        return Ok(state);
    };
    let requested = State::new(0, args.profile, args.mutant);
    if describe(&requested) != describe(&state) {
        let (found, wanted) = (describe(&state), describe(&requested));
        return Err(FolderError::Another { path: args.dir.clone(), found, wanted }.into());
    }
    if args.start.is_some_and(|start| start != state.next_seed && state.seeds > 0) {
        print_line!("--start applies to a new soak only; this one continues");
    }
    print_line!(
        "{} seeds so far, {} failures; continues with seed {}",
        grouped(state.seeds),
        state.failures,
        state.next_seed
    );
    Ok(state)
}

/// The options of a soak.
fn describe(state: &State) -> String {
    let profile = state.profile.map_or("both profiles in turn".to_owned(), |only| format!("profile {}", only.name()));
    match state.mutant {
        Some(fault) => format!("{profile}, with {} planted", fault.name()),
        None => profile,
    }
}

fn report(event: &Event<'_>, args: &Soak) {
    match event {
        Event::Progress { state, seeds, events, time } => {
            let rate = |count: u64| grouped((count as f64 / time.as_secs_f64().max(1e-9)) as u64);
            let memory = peak_memory_kib().map_or(String::new(), |kib| format!(", peak {} MiB", kib / 1_024));
            print_line!(
                "{} {} seeds, {} seeds/s, {} events/s, {} failures{memory}",
                Timestamp::now().strftime("%F %H:%M:%SZ"),
                grouped(state.seeds),
                rate(*seeds),
                rate(*events),
                grouped(state.failures),
            );
        }
        Event::Failed { seed, profile, invariant, unshrunk } => {
            let profile = match profile {
                Profile::Default => String::new(),
                profile => format!(" --profile {}", profile.name()),
            };
            let mutant = args.mutant.map(|fault| format!(" --mutant {}", fault.name())).unwrap_or_default();
            print_line!("seed {seed} violated invariant {}: {}", invariant.invariant, invariant.sentence);
            print_line!("  replay the seed: driftq-sim replay {seed}{profile}{mutant}");
            print_line!("  once shrunk: driftq-sim replay {}", shrunk_path(unshrunk).display());
        }
        Event::Shrunk { path, before, after } => {
            print_line!("{} was shrunk from {before} actions to {after}", path.display());
        }
        Event::NotShrunk(path) => print_line!("the replay of {} violates nothing; it is left as it is", path.display()),
    }
}

/// The summary of this invocation and of the soak as a whole.
fn summary(args: &Soak, before: &State, state: &State) -> Ending {
    let time = Duration::from_millis(state.elapsed_ms - before.elapsed_ms);
    let failures = state.failures - before.failures;
    let (seeds, events) = (grouped(state.seeds - before.seeds), grouped(state.events - before.events));
    print_line!("{seeds} seeds, {events} events, {failures} failures in {}", span(time));
    let all = Duration::from_millis(state.elapsed_ms);
    print_line!("in total {} seeds, {} failures in {}", grouped(state.seeds), grouped(state.failures), span(all));
    for known in &state.sentences {
        let rest = if known.seeds > KEPT_MAX { format!(", of which {KEPT_MAX} are kept") } else { String::new() };
        let (count, invariant) = (grouped(known.seeds), &known.invariant);
        print_line!("  {count} violated invariant {}: {}{rest}", invariant.invariant, invariant.sentence);
    }
    let never: Vec<_> = never_met(&state.met).map(|(action, fault)| format!("{action} + {fault}")).collect();
    match never.is_empty() {
        true => print_line!("every action has met every fault"),
        false => print_line!("{} pairs of an action and a fault have never met: {}", never.len(), never.join(", ")),
    }
    print_line!("the next seed is {}; see {}", state.next_seed, args.dir.display());
    print_line!("{}", if failures == 0 { "PASSED" } else { "FAILED" });
    if failures == 0 { Ending::Passed } else { Ending::Failed }
}
