//! `driftq-sim view`.

use std::path::{Path, PathBuf};

use driftq_core::faults::Fault;
use driftq_inspect::LogReader;

use super::args::{RecordSelection, View};
use super::source::Source;
use super::{Ending, Misuse, say};
use crate::explain::{FUTURES, Options, explain};
use crate::parallel::cores;
use crate::report::grouped;
use crate::trace::Trace;
use crate::view::story::Explained;
use crate::view::{RecordFilter, page, story_of, timeline_of_log};

pub(super) fn view(args: &View) -> Result<Ending, Misuse> {
    let named = Path::new(&args.subject.source);
    let name = name(named);
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.html")));
    let RecordSelection { from, to, topic, message } = &args.records;
    let filter = RecordFilter { from: *from, to: *to, topic: topic.clone(), message: message.clone() };
    if named.is_dir() {
        view_data_folder(named, &filter, &out)?;
        return Ok(Ending::Passed);
    }
    if filter != RecordFilter::default() {
        return Err(Misuse::NotADataFolder(args.subject.source.clone()));
    }
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let trace = match &source {
        Source::Trace(trace) => (**trace).clone(),
        Source::Seed(..) => Trace::of(&source.live(fault), source.seed(), fault),
    };
    let mut story = story_of(&trace, fault);
    story.title.clone_from(&name);
    if story.about.is_empty() {
        story.about = match &source {
            Source::Seed(..) => format!("The life of {}", source.describe(fault)),
            Source::Trace(_) => format!("A {}", source.describe(fault)),
        };
    }
    story.explained = if args.no_explain { None } else { explained(trace, fault) };
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

/// Writes the page of a data folder's log.
fn view_data_folder(dir: &Path, filter: &RecordFilter, out: &Path) -> Result<(), Misuse> {
    let title = match (&filter.message, &filter.topic) {
        (Some(message), _) => message.to_string(),
        (None, Some(topic)) => topic.to_string(),
        (None, None) => dir.display().to_string(),
    };
    let timeline = LogReader::open(dir).and_then(|mut reader| timeline_of_log(&mut reader, &title, filter));
    let timeline = timeline.map_err(|cause| Misuse::DataFolder { path: dir.to_owned(), cause })?;
    write(out, &page(&timeline)).map_err(|cause| Misuse::Write { path: out.to_owned(), cause })?;
    say!("{} records", grouped(timeline.moments.len() as u64));
    say!("written to {}", out.display());
    Ok(())
}

/// How it came to the broken promise, if one was broken: the curve above the axis.
fn explained(mut trace: Trace, fault: Option<Fault>) -> Option<Explained> {
    trace.head.mutant = fault;
    let options = Options { futures: FUTURES, jobs: cores() };
    explain(&trace, options).ok().map(|explanation| explanation.explained)
}

/// What the page is called: the name of the file or folder without its ending, or the seed.
fn name(source: &Path) -> String {
    match source.file_stem().filter(|_| source.exists()) {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => format!("seed-{}", source.display()),
    }
}

/// Writes a page, making the folder it is to be in.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}
