//! `driftq-sim mutants`.

use std::fs;
use std::ops::ControlFlow;

use driftq_core::faults::Fault;

use super::args::Mutants;
use super::{Ending, Misuse, print_line};
use crate::mutants::{Effort, Row, insert, measure, tables};
use crate::parallel::{cores, in_order};
use crate::progress::Progress;
use crate::regression::check;
use crate::report::span;

pub(super) fn mutants(args: &Mutants) -> Result<Ending, Misuse> {
    // Fail before the measurement, not after it, if the document has no markers.
    let document = args.out.as_ref().map(|path| {
        let text = fs::read_to_string(path).map_err(|cause| Misuse::Read { path: path.clone(), cause })?;
        insert(&text, "").map_err(|cause| Misuse::Markers { path: path.clone(), cause })?;
        Ok::<_, Misuse>((path, text))
    });
    let document = document.transpose()?;
    let faults: Vec<Fault> = if args.only.is_empty() { Fault::ALL.to_vec() } else { args.only.clone() };
    let effort = Effort { seeds: args.seeds, starts: args.starts, survey: args.survey, shrinks: !args.no_shrink };
    let jobs = args.jobs.unwrap_or_else(cores);
    print_line!(
        "driftq-sim mutants --seeds {} --starts {} --survey {} --jobs {jobs}: {} planted bugs",
        args.seeds,
        args.starts,
        args.survey,
        faults.len()
    );
    let mut progress = Progress::begin("planted bugs", Some(faults.len() as u64));
    let mut rows: Vec<Row> = Vec::new();
    in_order(
        jobs,
        faults.into_iter(),
        |fault| measure(fault, effort),
        |row| {
            print_line!("{}", line(&row, effort));
            rows.push(row);
            progress.at(rows.len() as u64, || rows.last().map(|row| row.fault.name().to_owned()).unwrap_or_default());
            ControlFlow::Continue(())
        },
    );
    progress.end();
    if let Some(folder) = &args.traces {
        let shortest = rows.iter().filter_map(|row| row.shortest.as_ref().map(|shortest| (row.fault, shortest)));
        // A bug that makes runs nondeterministic has no trace that demonstrates it every time.
        for (fault, shortest) in shortest.filter(|(_, shortest)| (0..3).all(|_| check(&shortest.trace).is_ok())) {
            let path = folder.join(format!("mutant-{}.jsonl", fault.name()));
            shortest.trace.write(&path).map_err(|cause| Misuse::Write { path, cause })?;
        }
    }
    if let Some((path, text)) = document {
        let text = insert(&text, &tables(&rows, effort));
        let text = text.map_err(|cause| Misuse::Markers { path: path.clone(), cause })?;
        fs::write(path, text).map_err(|cause| Misuse::Write { path: path.clone(), cause })?;
        print_line!("the tables were written to {}", path.display());
    }
    let survived = rows.iter().filter(|row| !row.is_killed()).count();
    print_line!("{} killed, {survived} survived", rows.len() - survived);
    Ok(if survived == 0 { Ending::Passed } else { Ending::Failed })
}

/// One line per bug.
fn line(row: &Row, effort: Effort) -> String {
    let name = row.fault.name();
    let Some(first) = row.first.as_ref().filter(|_| row.is_killed()) else {
        return format!("{name:<36} SURVIVED {} seeds", effort.seeds);
    };
    let seeds = |seeds: Option<u64>| seeds.map_or(format!("over {}", effort.seeds), |seeds| seeds.to_string());
    let without_oracle =
        row.first_without_oracle.as_ref().map_or("none".to_owned(), |first| first.invariant.to_string());
    let killers: Vec<String> = row.killers.iter().map(|(number, count)| format!("{number}x{count}")).collect();
    let shrunk = row.shortest.as_ref().map_or(String::new(), |shortest| {
        let (before, after) = (shortest.before, shortest.trace.actions.len());
        format!("; {before} actions shrunk to {after} in {}", span(shortest.time))
    });
    format!(
        "{name:<36} by {:>2}, without the oracle by {without_oracle} [{}]; seeds: median {}, worst {}{shrunk}",
        first.invariant,
        killers.join(" "),
        seeds(row.median()),
        seeds(row.worst()),
    )
}
