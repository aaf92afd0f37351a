//! `driftq-sim replay`.

use std::path::Path;

use driftq_core::faults::Fault;

use super::args::Replay;
use super::source::Source;
use super::{Ending, Misuse, print_line};
use crate::file_disk::FileDiskError;
use crate::report::{grouped, span};
use crate::run::{self, Run, RunOptions, replay_on_files};
use crate::trace::Trace;

pub(super) fn replay(args: &Replay) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    print_line!("{}", source.describe(fault));
    let mut run = source.run(fault);
    if let Some(count) = args.stop_at.filter(|count| *count < run.actions.len()) {
        print_line!("stopped after {count} of {} actions", run.actions.len());
        run = run::replay(&run.setup, &run.actions[..count], RunOptions { fault, ..RunOptions::default() });
    }
    if let Some(path) = &args.trace {
        write(path, &Trace::of(&run, source.seed(), fault))?;
    }
    let counters = &run.counters;
    print_line!(
        "{} actions, {} events, {} commands, {} deliveries, {} crashes, {} of simulated time",
        run.actions.len(),
        grouped(counters.events),
        grouped(counters.commands),
        grouped(counters.deliveries),
        grouped(counters.crashes),
        span(std::time::Duration::from_millis(counters.simulated_ms)),
    );
    print_violation(&run);
    if let (Source::Trace(trace), None) = (&source, &run.violation)
        && let Some(recorded) = &trace.header.violates
    {
        print_line!(
            "no invariant is violated; when the trace was written, invariant {} was: {}",
            recorded.invariant,
            recorded.sentence
        );
    }
    let is_same = match &args.real {
        Some(folder) => is_same_on_files(&run, fault, folder)?,
        None => true,
    };
    print_line!("digest {}", run.chain);
    Ok(if run.violation.is_some() || !is_same { Ending::Failed } else { Ending::Passed })
}

/// Replays the run on the server's file storage and compares the results.
fn is_same_on_files(run: &Run, fault: Option<Fault>, folder: &Path) -> Result<bool, Misuse> {
    let options = RunOptions { fault, ..RunOptions::default() };
    let real = match replay_on_files(&run.setup, &run.actions, options, folder) {
        Ok(real) => real,
        Err(FileDiskError::Differ(difference)) => {
            print_line!("on real files in {} the run differs: {difference}", folder.display());
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let same = real.chain == run.chain && real.violation == run.violation;
    let how = if same { "the same" } else { "different" };
    print_line!("on real files in {}: digest {}, {how}", folder.display(), real.chain);
    if let Some(violation) = real.violation.filter(|_| !same) {
        print_line!("  invariant {} violated there: {}: {}", violation.invariant, violation.sentence, violation.found);
    }
    Ok(same)
}

/// Prints the violation and the action that caused it.
pub(super) fn print_violation(run: &Run) {
    let Some(violation) = &run.violation else { return };
    print_line!("invariant {} violated: {}", violation.invariant, violation.sentence);
    print_line!("  found: {}", violation.found);
    if let Some(action) = run.actions.last() {
        let action = serde_json::to_string(action).expect("the value serializes to JSON");
        print_line!("  by action {}: {action}", run.actions.len());
    }
}

fn write(path: &Path, trace: &Trace) -> Result<(), Misuse> {
    if path == Path::new("-") {
        print_line!("{}", trace.to_jsonl().trim_end());
        return Ok(());
    }
    trace.write(path).map_err(|cause| Misuse::Write { path: path.to_owned(), cause })?;
    print_line!("written to {}", path.display());
    Ok(())
}
