//! `driftq-sim view`.

use std::path::{Path, PathBuf};

use driftq_core::faults::Fault;

use super::args::View;
use super::files::write;
use super::source::Source;
use super::{Ending, Misuse, say, wal};
use crate::explain::{FUTURES, Options, explain};
use crate::parallel::cores;
use crate::trace::Trace;
use crate::view::timeline::Explained;
use crate::view::{page, timeline_of};
use crate::wal::Pick;

pub(super) fn view(args: &View) -> Result<Ending, Misuse> {
    let named = Path::new(&args.subject.source);
    let name = name(named);
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.html")));
    if named.is_dir() {
        wal::show(named, &Pick::default(), &out)?;
        return Ok(Ending::Passed);
    }
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let trace = match &source {
        Source::Trace(trace) => (**trace).clone(),
        Source::Seed(..) => Trace::of(&source.run(fault), source.seed(), fault),
    };
    let mut timeline = timeline_of(&trace, fault);
    timeline.title.clone_from(&name);
    if timeline.about.is_empty() {
        timeline.about = match &source {
            Source::Seed(..) => format!("The run of {}", source.describe(fault)),
            Source::Trace(_) => format!("A {}", source.describe(fault)),
        };
    }
    timeline.explained = if args.no_explain { None } else { explained(trace, fault) };
    write(&out, &page(&timeline)).map_err(|cause| Misuse::Write { path: out.clone(), cause })?;
    match &timeline.violation {
        Some(violation) => {
            let (invariant, action) = (violation.invariant, violation.step + 1);
            say!("invariant {invariant} violated by action {action}: {}", violation.sentence);
        }
        None => say!("no invariant is violated in {} actions", timeline.steps.len()),
    }
    say!("written to {}", out.display());
    say!("open it in any browser, such as: xdg-open {}", out.display());
    Ok(Ending::Passed)
}

/// The explanation of the violation, if there is one: the curve above the axis.
fn explained(mut trace: Trace, fault: Option<Fault>) -> Option<Explained> {
    trace.header.mutant = fault;
    let options = Options { futures: FUTURES, jobs: cores() };
    explain(&trace, options).ok().map(|explanation| explanation.explained)
}

/// The name of the page: the file or directory name without extension, or the seed.
fn name(source: &Path) -> String {
    match source.file_stem().filter(|_| source.exists()) {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => format!("seed-{}", source.display()),
    }
}
