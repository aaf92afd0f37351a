//! The command line. Exit codes: 0 passed, 1 an invariant was violated (or a planted bug survived), 2 misuse, 130 a
//! campaign was interrupted by a signal and had found nothing.

mod args;
mod exhaust;
mod explain;
mod files;
mod mutants;
mod replay;
mod run;
mod shrink;
mod signals;
mod soak;
mod source;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;

use self::args::{Cli, Command};
use crate::panic_capture;
use crate::trace::TraceError;

/// Prints a line. A closed pipe is no error: `driftq-sim … | head` is fine.
macro_rules! print_line {
    ($($args:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($args)*);
    }};
}
use print_line;

/// The result of a command that could be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// No invariant was violated.
    Passed,
    /// An invariant was violated.
    Failed,
    /// A signal ended the command before it was done; no invariant was violated up to then.
    Interrupted,
}

/// Why a command could not be executed.
#[derive(Debug, thiserror::Error)]
enum Misuse {
    #[error("\"{0}\" is neither a seed, a number from 0 to 18446744073709551615, nor a file with a trace")]
    NoSource(String),
    #[error("{}: {cause}", path.display())]
    Trace { path: PathBuf, cause: TraceError },
    #[error("{} cannot be written: {cause}", path.display())]
    Write { path: PathBuf, cause: std::io::Error },
    #[error(transparent)]
    Real(#[from] crate::file_disk::FileDiskError),
    #[error("{} cannot be read: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{}: {cause}", path.display())]
    Markers { path: PathBuf, cause: crate::mutants::MarkerError },
    #[error(transparent)]
    Soak(#[from] crate::soak::folder::FolderError),
    #[error("cannot register signal handlers: {0}")]
    Signals(std::io::Error),
    #[error("{}: {cause}", path.display())]
    DataFolder { path: PathBuf, cause: driftq_inspect::InspectError },
    #[error("{0} is not a data folder: --from, --to, --topic and --message select records of a log")]
    NotADataFolder(String),
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    panic_capture::install();
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Replay(args) => replay::replay(args),
        Command::Shrink(args) => shrink::shrink(args),
        Command::Explain(args) => explain::explain(args),
        Command::Soak(args) => soak::soak(args),
        Command::View(args) => view::view(args),
        Command::Mutants(args) => mutants::mutants(args),
        Command::Exhaust(args) => exhaust::exhaust(args),
    };
    match result {
        Ok(Ending::Passed) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::from(1),
        Ok(Ending::Interrupted) => ExitCode::from(signals::INTERRUPTED),
        Err(misuse) => {
            eprintln!("error: {misuse}");
            ExitCode::from(2)
        }
    }
}
