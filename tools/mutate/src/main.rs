//! Compiles every mutant of the core into one program and switches them on one at a time.
//!
//! `cargo mutants` builds the tests once for each mutant, which takes a day. Here each change stands beside the
//! original behind a condition, so that one build serves all of them, and a mutant can be held against a program that
//! takes long to build: the simulator. See `docs/mutants.md`.

mod build;
mod listed;
mod operators;
mod plant;
mod run;

use std::path::Path;
use std::process::ExitCode;

use crate::listed::Listed;

const HELP: &str = "\
Compiles every mutant of the core into one program and switches them on one at a time.

Usage:
  mutate build REPOSITORY DIR PACKAGE [LISTED]
                                          Copies the repository to DIR with the mutants of core/src, leaves out those
                                          that do not compile and builds PACKAGE; DIR/mutants.tsv lists the mutants.
                                          With LISTED, the output of `cargo mutants --list --json`, it plants those
                                          mutants too, and DIR/listed.tsv says which of them is which
  mutate run DIR RESULTS [--jobs N] [--timeout SECONDS] [--from LIST] [--every N] -- COMMAND...
                                          Runs COMMAND in DIR once per mutant, with DRIFTQ_MUTANT set to its number, and
                                          appends to RESULTS whether it failed; a mutant that RESULTS already names is
                                          not run again. --from takes the survivors of another file of results; --every
                                          takes every n-th mutant
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["build", repository, dir, package] => {
            build::build(Path::new(repository), Path::new(dir), package, Listed::default())
        }
        ["build", repository, dir, package, listed] => Listed::read(Path::new(listed))
            .and_then(|listed| build::build(Path::new(repository), Path::new(dir), package, listed)),
        ["run", dir, results, options @ ..] => run::run(Path::new(dir), Path::new(results), options),
        _ => Err(HELP.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
