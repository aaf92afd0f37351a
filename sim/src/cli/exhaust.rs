//! `driftq-sim exhaust`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::args::Exhaust;
use super::{Ending, Misuse, print_line};
use crate::exhaust::{Level, Plan, Size, Summary, exhaust as search};
use crate::parallel::cores;
use crate::progress::Progress;
use crate::report::{grouped, span};
use crate::run::{Run, RunOptions};
use crate::shrink::shrink;
use crate::trace::Trace;

pub(super) fn exhaust(args: &Exhaust) -> Result<Ending, Misuse> {
    let Exhaust { depth, messages, consumers, crashes, batches, mutant, .. } = *args;
    let jobs = args.jobs.unwrap_or_else(cores);
    let options = RunOptions { fault: mutant, ..RunOptions::default() };
    let plan = Plan { size: Size { messages, consumers, crashes, batches }, depth, jobs, options };
    let batches_option = if batches { " --batches" } else { "" };
    let mutant_option = mutant.map(|fault| format!(" --mutant {}", fault.name())).unwrap_or_default();
    let trace = args.trace.clone().unwrap_or_else(|| default_trace(args));
    print_line!(
        "driftq-sim exhaust --depth {depth} --messages {messages} --consumers {consumers} --crashes {crashes} \
         --jobs {jobs} --trace {}{batches_option}{mutant_option}",
        trace.display()
    );
    let mut progress = Progress::begin("states", None);
    let summary = search(&plan, |summary| {
        progress.at(summary.states(), || format!("depth {}", summary.depth()));
    });
    progress.end();
    print_line!("\n{}", table(&summary.levels));
    print_line!("{}", totals(&summary, depth));
    if let Some(run) = &summary.failure {
        report(run, &summary, options, &trace)?;
    }
    let passed = summary.failure.is_none();
    print_line!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(if passed { Ending::Passed } else { Ending::Failed })
}

fn default_trace(args: &Exhaust) -> PathBuf {
    let name = args.mutant.map(|fault| format!("-{}", fault.name())).unwrap_or_default();
    Path::new("sim-failures").join(format!("exhaust{name}.jsonl"))
}

/// One line per depth.
fn table(levels: &[Level]) -> String {
    let mut lines = format!("{:>5} {:>14} {:>14} {:>14}\n", "depth", "new states", "transitions", "crashes");
    for (depth, level) in levels.iter().enumerate() {
        let [states, transitions, crashes] = [level.states, level.transitions, level.crashes].map(grouped);
        lines.push_str(&format!("{depth:>5} {states:>14} {transitions:>14} {crashes:>14}\n"));
    }
    lines
}

/// The figures of a search, one per line.
fn totals(summary: &Summary, depth: u32) -> String {
    let (states, transitions) = (summary.states(), summary.transitions());
    let seconds = summary.elapsed.as_secs_f64().max(1e-9);
    let mut lines = String::new();
    let mut row = |name: &str, value: String| lines.push_str(&format!("{name:<18} {value}\n"));
    row("states", grouped(states));
    row("transitions", grouped(transitions));
    let to_known_states = transitions.saturating_sub(states.saturating_sub(1));
    row("deduplicated", format!("{} transitions led to a known state", grouped(to_known_states)));
    row("crash points", format!("{} in {} states", grouped(summary.crashes()), grouped(summary.crash_states)));
    row("drained", format!("{} states", grouped(summary.drained)));
    let end = if summary.is_complete { ": all states explored" } else { "" };
    row("depth", format!("{} of {depth}{end}", summary.depth()));
    row("seconds", format!("{seconds:.1}"));
    row("states/s", grouped((states as f64 / seconds) as u64));
    row("transitions/s", grouped((transitions as f64 / seconds) as u64));
    lines
}

/// Reports a violation: shrinks it, writes its trace and prints the command that replays it.
fn report(run: &Run, summary: &Summary, options: RunOptions, path: &Path) -> Result<(), Misuse> {
    let Some(violation) = &run.violation else {
        print_line!("a path with a violation was replayed without one: the run is not deterministic");
        return Ok(());
    };
    print_line!("violation at depth {}, after {} states", summary.depth(), grouped(summary.states()));
    print_line!("  invariant {}: {}", violation.invariant, violation.sentence);
    print_line!("  found: {}", violation.found);
    let started = Instant::now();
    if let Some(shrunk) = shrink(&run.setup, &run.actions, options) {
        let trace = Trace::of(&shrunk.run, None, options.fault);
        trace.write(path).map_err(|cause| Misuse::Write { path: path.to_owned(), cause })?;
        print_line!(
            "  shrunk from {} actions to {} in {}",
            shrunk.before,
            shrunk.run.actions.len(),
            span(started.elapsed())
        );
        print_line!("  replay the shrunk trace: cargo run --release -p driftq-sim -- replay {}", path.display());
    }
    Ok(())
}
