//! `driftq-sim replay`.

use std::path::Path;

use driftq_core::faults::Fault;

use super::args::Replay;
use super::source::Source;
use super::{Ending, Misuse, say};
use crate::file_disk::FileDiskError;
use crate::report::{grouped, span};
use crate::run::{self, Run, RunOptions, replay_on_files};
use crate::trace::Trace;

pub(super) fn replay(args: &Replay) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let mut run = source.run(fault);
    if let Some(most) = args.stop_at.filter(|most| *most < run.actions.len()) {
        say!("stopped after {most} of {} steps", run.actions.len());
        run = run::replay(&run.setup, &run.actions[..most], RunOptions { fault, ..RunOptions::default() });
    }
    if let Some(path) = &args.trace {
        write(path, &Trace::of(&run, source.seed(), fault))?;
    }
    let counters = &run.counters;
    say!(
        "{} steps, {} events, {} commands, {} deliveries, {} crashes, {} of simulated time",
        run.actions.len(),
        grouped(counters.events),
        grouped(counters.commands),
        grouped(counters.deliveries),
        grouped(counters.crashes),
        span(std::time::Duration::from_millis(counters.simulated_ms)),
    );
    tell_violation(&run);
    if let (Source::Trace(trace), None) = (&source, &run.violation)
        && let Some(before) = &trace.header.violates
    {
        say!(
            "no promise is broken; when the trace was written, invariant {} was: {}",
            before.invariant,
            before.sentence
        );
    }
    let same = match &args.real {
        Some(folder) => lives_the_same_on_files(&run, fault, folder)?,
        None => true,
    };
    say!("digest {}", run.chain);
    Ok(if run.violation.is_some() || !same { Ending::Failed } else { Ending::Passed })
}

/// Lives it again with the server's files in the place of the simulated disk, and says whether it was the same life.
fn lives_the_same_on_files(run: &Run, fault: Option<Fault>, folder: &Path) -> Result<bool, Misuse> {
    let options = RunOptions { fault, ..RunOptions::default() };
    let real = match replay_on_files(&run.setup, &run.actions, options, folder) {
        Ok(real) => real,
        Err(FileDiskError::Differ(told)) => {
            say!("on real files in {} it is another life: {told}", folder.display());
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let same = real.chain == run.chain && real.violation == run.violation;
    let how = if same { "the same" } else { "another life" };
    say!("on real files in {}: digest {}, {how}", folder.display(), real.chain);
    if let Some(violation) = real.violation.filter(|_| !same) {
        say!("  there invariant {} is broken: {}: {}", violation.invariant, violation.sentence, violation.found);
    }
    Ok(same)
}

/// The broken promise, and the step that broke it.
pub(super) fn tell_violation(run: &Run) {
    let Some(violation) = &run.violation else { return };
    say!("invariant {} is broken: {}", violation.invariant, violation.sentence);
    say!("  found: {}", violation.found);
    if let Some(action) = run.actions.last() {
        let action = serde_json::to_string(action).expect("names and numbers have a form in JSON");
        say!("  by step {}: {action}", run.actions.len());
    }
}

fn write(path: &Path, trace: &Trace) -> Result<(), Misuse> {
    if path == Path::new("-") {
        say!("{}", trace.to_jsonl().trim_end());
        return Ok(());
    }
    trace.write(path).map_err(|cause| Misuse::Write { path: path.to_owned(), cause })?;
    say!("written to {}", path.display());
    Ok(())
}
