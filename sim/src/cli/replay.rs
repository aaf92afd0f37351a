//! `driftq-sim replay`.

use std::path::Path;

use driftq_core::faults::Fault;

use super::args::Replay;
use super::source::Source;
use super::{Ending, Misuse, say};
use crate::life::{Conditions, Life, relive, relive_on_files};
use crate::real::RealError;
use crate::report::{grouped, span};
use crate::trace::Trace;

pub(super) fn replay(args: &Replay) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let mut life = source.live(fault);
    if let Some(most) = args.stop_at.filter(|most| *most < life.steps.len()) {
        say!("stopped after {most} of {} steps", life.steps.len());
        life = relive(&life.setup, &life.steps[..most], Conditions { fault, ..Conditions::default() });
    }
    if let Some(path) = &args.trace {
        write(path, &Trace::of(&life, source.seed(), fault))?;
    }
    let tally = &life.tally;
    say!(
        "{} steps, {} events, {} commands, {} deliveries, {} crashes, {} of simulated time",
        life.steps.len(),
        grouped(tally.events),
        grouped(tally.commands),
        grouped(tally.deliveries),
        grouped(tally.crashes),
        span(std::time::Duration::from_millis(tally.simulated_ms)),
    );
    tell_violation(&life);
    if let (Source::Trace(trace), None) = (&source, &life.violation)
        && let Some(before) = &trace.head.violates
    {
        say!(
            "no promise is broken; when the trace was written, invariant {} was: {}",
            before.invariant,
            before.sentence
        );
    }
    let same = match &args.real {
        Some(folder) => lives_the_same_on_files(&life, fault, folder)?,
        None => true,
    };
    say!("digest {}", life.chain);
    Ok(if life.violation.is_some() || !same { Ending::Broken } else { Ending::Passed })
}

/// Lives it again with the server's files in the place of the simulated disk, and says whether it was the same life.
fn lives_the_same_on_files(life: &Life, fault: Option<Fault>, folder: &Path) -> Result<bool, Misuse> {
    let conditions = Conditions { fault, ..Conditions::default() };
    let real = match relive_on_files(&life.setup, &life.steps, conditions, folder) {
        Ok(real) => real,
        Err(RealError::Differ(told)) => {
            say!("on real files in {} it is another life: {told}", folder.display());
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let same = real.chain == life.chain && real.violation == life.violation;
    let how = if same { "the same" } else { "another life" };
    say!("on real files in {}: digest {}, {how}", folder.display(), real.chain);
    if let Some(violation) = real.violation.filter(|_| !same) {
        say!("  there invariant {} is broken: {}: {}", violation.invariant, violation.sentence, violation.found);
    }
    Ok(same)
}

/// The broken promise, and the step that broke it.
pub(super) fn tell_violation(life: &Life) {
    let Some(violation) = &life.violation else { return };
    say!("invariant {} is broken: {}", violation.invariant, violation.sentence);
    say!("  found: {}", violation.found);
    if let Some(step) = life.steps.last() {
        let step = serde_json::to_string(step).expect("names and numbers have a form in JSON");
        say!("  by step {}: {step}", life.steps.len());
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
