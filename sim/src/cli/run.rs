//! `driftq-sim run`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use driftq_core::faults::Fault;

use super::args::Run;
use super::signals::stop_on_signals;
use super::{Ending, Misuse, print_line};
use crate::campaign::{DETERMINISTIC, Extent, Failure, Plan, check_determinism};
use crate::parallel::cores;
use crate::progress::Progress;
use crate::report::{coverage_table, effects, figures, grouped, missed, span};
use crate::run::RunOptions;
use crate::shrink::shrink;
use crate::swarm::Profile;
use crate::trace::Trace;

/// The default number of seeds.
const SEEDS: u64 = 1_000;

pub(super) fn run(args: &Run) -> Result<Ending, Misuse> {
    let stop = stop_on_signals().map_err(Misuse::Signals)?;
    let plan = Plan {
        start: args.start,
        extent: args.time.map_or(Extent::Seeds(args.seeds.unwrap_or(SEEDS)), Extent::For),
        jobs: args.jobs.unwrap_or_else(cores),
        options: RunOptions { fault: args.mutant, profile: args.profile, ..RunOptions::default() },
        failures_max: args.failures,
        stop: &stop,
    };
    print_line!("{}", command(args, &plan));
    match check_determinism(plan.start, plan.options) {
        Ok(chain) => print_line!("seed {} run twice and replayed once: deterministic, digest {chain}", plan.start),
        Err(difference) => {
            print_line!("invariant 22 violated: {DETERMINISTIC}\n  found: {difference}\nFAILED");
            return Ok(Ending::Failed);
        }
    }
    let total = if let Extent::Seeds(seeds) = plan.extent { Some(seeds) } else { None };
    let mut progress = Progress::begin("seeds", total);
    let summary = crate::campaign::run(&plan, |summary| {
        let rate = summary.counters.events as f64 / summary.elapsed.as_secs_f64().max(1e-9);
        progress.at(summary.seeds, || format!("{} events/s", grouped(rate as u64)));
    });
    progress.end();
    print_line!("\n{}\n{}", figures(&summary, plan.jobs), coverage_table(&summary.coverage));
    if args.profile == Profile::Effects {
        print_line!("{}", effects(&summary));
    }
    for failure in &summary.failures {
        report(failure, args)?;
    }
    let is_interrupted = stop.load(Ordering::Relaxed);
    if is_interrupted && summary.failures.is_empty() {
        print_line!("INTERRUPTED after {} seeds, none of which failed", grouped(summary.seeds));
        return Ok(Ending::Interrupted);
    }
    // A planted bug changes which points can be hit, and worlds of weeks have few faults.
    let is_partial = args.mutant.is_some() || args.profile == Profile::Weeks;
    let missed = if is_partial { Vec::new() } else { missed(&summary) };
    for point in &missed {
        print_line!("never hit in {} seeds: {}", grouped(summary.seeds), point.sentence());
    }
    let passed = summary.failures.is_empty() && missed.is_empty();
    print_line!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(if passed { Ending::Passed } else { Ending::Failed })
}

/// The command line with all options.
fn command(args: &Run, plan: &Plan<'_>) -> String {
    let extent = match plan.extent {
        Extent::Seeds(seeds) => format!("--seeds {seeds}"),
        Extent::For(time) => format!("--for {}ms", time.as_millis()),
    };
    let Plan { start, jobs, failures_max, .. } = plan;
    let (out, mutant) = (args.out_dir.display(), mutant_option(args.mutant));
    let profile = args.profile.name();
    format!(
        "driftq-sim run {extent} --start {start} --profile {profile} --jobs {jobs} --failures {failures_max} --out-dir \
            {out}{mutant}"
    )
}

fn mutant_option(mutant: Option<Fault>) -> String {
    mutant.map(|fault| format!(" --mutant {}", fault.name())).unwrap_or_default()
}

/// Reports a violation: shrinks it, writes its trace and prints the commands that replay it.
fn report(failure: &Failure, args: &Run) -> Result<(), Misuse> {
    let Failure { seed, run } = failure;
    let Some(violation) = &run.violation else { return Ok(()) };
    print_line!("seed {seed} violated an invariant at action {}", run.actions.len());
    print_line!("  invariant {}: {}", violation.invariant, violation.sentence);
    print_line!("  found: {}", violation.found);
    let started = Instant::now();
    let options = RunOptions { fault: args.mutant, ..RunOptions::default() };
    let command = "cargo run --release -p driftq-sim -- replay";
    if let Some(shrunk) = shrink(&run.setup, &run.actions, options) {
        let path = args.out_dir.join(match args.mutant {
            None => format!("seed-{seed}.jsonl"),
            Some(fault) => format!("seed-{seed}-{}.jsonl", fault.name()),
        });
        let trace = Trace::of(&shrunk.run, Some(*seed), args.mutant);
        trace.write(&path).map_err(|cause| Misuse::Write { path: path.clone(), cause })?;
        print_line!("  shrunk to {} actions in {}", shrunk.run.actions.len(), span(started.elapsed()));
        print_line!("  replay the shrunk trace: {command} {}", path.display());
    }
    let profile = match args.profile {
        Profile::Default => String::new(),
        profile => format!(" --profile {}", profile.name()),
    };
    print_line!("  replay the seed: {command} {seed}{profile}{}", mutant_option(args.mutant));
    print_line!("  its digest, in this version and on every machine: {}", run.chain);
    Ok(())
}
