//! `driftq-sim view`.

use std::path::{Path, PathBuf};

use driftq_core::faults::Fault;

use super::args::View;
use super::source::Source;
use super::{Ending, Misuse, say};
use crate::explain::{FUTURES, Options, explain};
use crate::parallel::cores;
use crate::trace::Trace;
use crate::view::story::Explained;
use crate::view::{page, story_of};

pub(super) fn view(args: &View) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let trace = match &source {
        Source::Trace(trace) => (**trace).clone(),
        Source::Seed(..) => Trace::of(&source.live(fault), source.seed(), fault),
    };
    let name = name(&args.subject.source);
    let mut story = story_of(&trace, fault);
    story.title.clone_from(&name);
    if story.about.is_empty() {
        story.about = match &source {
            Source::Seed(..) => format!("The life of {}", source.describe(fault)),
            Source::Trace(_) => format!("A {}", source.describe(fault)),
        };
    }
    story.explained = if args.no_explain { None } else { explained(trace, fault) };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.html")));
    write(&out, &page(&story)).map_err(|cause| Misuse::Write { path: out.clone(), cause })?;
    match &story.broken {
        Some(broken) => {
            let (invariant, step) = (broken.invariant, broken.moment + 1);
            say!("invariant {invariant} is broken in step {step}: {}", broken.sentence);
        }
        None => say!("no promise is broken in {} steps", story.moments.len()),
    }
    say!("written to {}", out.display());
    say!("open it in any browser, such as: xdg-open {}", out.display());
    Ok(Ending::Passed)
}

/// How it came to the broken promise, if one was broken: the curve above the axis.
fn explained(mut trace: Trace, fault: Option<Fault>) -> Option<Explained> {
    trace.head.mutant = fault;
    let options = Options { futures: FUTURES, jobs: cores() };
    explain(&trace, options).ok().map(|explanation| explanation.explained)
}

/// What the page is called: the trace's file without its ending, or the seed.
fn name(source: &str) -> String {
    let path = Path::new(source);
    match path.file_stem().filter(|_| path.is_file()) {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => format!("seed-{source}"),
    }
}

/// Writes a page, making the folder it is to be in.
pub(super) fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}
