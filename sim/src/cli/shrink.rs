//! `driftq-sim shrink`.

use std::time::Instant;

use super::args::Shrink;
use super::replay::print_violation;
use super::source::Source;
use super::{Ending, Misuse, print_line};
use crate::report::span;
use crate::run::RunOptions;
use crate::trace::Trace;

pub(super) fn shrink(args: &Shrink) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    print_line!("{}", source.describe(fault));
    let run = source.run(fault);
    let started = Instant::now();
    let options = RunOptions { fault, ..RunOptions::default() };
    let Some(shrunk) = crate::shrink::shrink(&run.setup, &run.actions, options) else {
        print_line!("no invariant is violated: there is nothing to shrink");
        return Ok(Ending::Passed);
    };
    let mut trace = Trace::of(&shrunk.run, source.seed(), fault);
    trace.header.about = match (&source, fault) {
        (Source::Trace(before), _) if before.header.about.is_some() => before.header.about.clone(),
        (_, fault) => fault.map(|fault| fault.description().to_owned()),
    };
    match &args.out {
        None => print_line!("{}", trace.to_jsonl().trim_end()),
        Some(path) => {
            trace.write(path).map_err(|cause| Misuse::Write { path: path.clone(), cause })?;
            print_line!("written to {}", path.display());
        }
    }
    print_violation(&shrunk.run);
    if !shrunk.is_finished {
        print_line!("the search budget ran out: shrink the result again");
    }
    let (actions, time) = (shrunk.run.actions.len(), span(started.elapsed()));
    print_line!("shrunk from {} actions to {actions} in {time}, after {} tries", shrunk.before, shrunk.tries);
    Ok(Ending::Failed)
}
