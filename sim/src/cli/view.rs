//! `driftq-sim view`.

use std::path::{Path, PathBuf};

use driftq_core::faults::Fault;
use driftq_inspect::LogReader;

use super::args::{RecordSelection, View};
use super::files::write;
use super::source::Source;
use super::{Ending, Misuse, print_line};
use crate::explain::{FUTURES, Options, explain};
use crate::parallel::cores;
use crate::report::grouped;
use crate::trace::Trace;
use crate::view::timeline::Explained;
use crate::view::{RecordFilter, page, timeline_of, timeline_of_log};

pub(super) fn view(args: &View) -> Result<Ending, Misuse> {
    let path = Path::new(&args.subject.source);
    let name = page_name(path);
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.html")));
    let RecordSelection { from, to, topic, message } = &args.records;
    let filter = RecordFilter { from: *from, to: *to, topic: topic.clone(), message: message.clone() };
    if path.is_dir() {
        view_data_folder(path, &filter, &out)?;
        return Ok(Ending::Passed);
    }
    if filter != RecordFilter::default() {
        return Err(Misuse::NotADataFolder(args.subject.source.clone()));
    }
    let (source, fault) = Source::read(&args.subject)?;
    print_line!("{}", source.describe(fault));
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
            print_line!("invariant {invariant} violated by action {action}: {}", violation.sentence);
        }
        None => print_line!("no invariant is violated in {} actions", timeline.steps.len()),
    }
    print_line!("written to {}", out.display());
    print_line!("open it in any browser, such as: xdg-open {}", out.display());
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
    print_line!("{} records", grouped(timeline.steps.len() as u64));
    print_line!("written to {}", out.display());
    Ok(())
}

/// The explanation of the violation, if there is one: the curve above the axis.
fn explained(mut trace: Trace, fault: Option<Fault>) -> Option<Explained> {
    trace.header.mutant = fault;
    let options = Options { futures: FUTURES, jobs: cores() };
    explain(&trace, options).ok().map(|explanation| explanation.explained)
}

/// The name of the page: the file or directory name without extension, or the seed.
fn page_name(source: &Path) -> String {
    match source.file_stem().filter(|_| source.exists()) {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => format!("seed-{}", source.display()),
    }
}
