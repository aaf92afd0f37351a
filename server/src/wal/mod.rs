//! `driftqd wal`: looking at a log, and saving what can be saved of a damaged one.
//!
//! Recovery stops at damage, says where, and changes nothing; what it names as the way out is here. [`verify()`] and [`dump()`] only
//! look. [`salvage()`] makes a new log of everything that still verifies and fits together, and sets every old file aside: it
//! deletes nothing. All of them want the folder for themselves, so they refuse to run beside a broker.

mod dump;
mod inspect;
mod quarantine;
mod rebuild;
mod salvage;
mod scan;
mod verify;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use driftq_core::log::{FileId, RecoveryError, StorageFault};
use driftq_core::types::Lsn;

pub use self::dump::{DumpEnd, DumpOptions, dump};
pub use self::inspect::{InspectArgs, inspect};
pub use self::rebuild::{Loss, Skipped};
pub(crate) use self::salvage::salvage_into;
pub use self::salvage::{Consent, Contents, Salvage, salvage};
pub use self::verify::{FileReport, Verification, verify};
use driftq_files::FolderError;

/// What `driftqd wal` can be asked to do.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum WalCommand {
    /// Read a log and say whether it is whole; change nothing. Ends with 0 if it is, 1 if anything is damaged, 2 if it could
    /// not be read.
    Verify {
        /// The data folder.
        dir: PathBuf,
    },
    /// Print the records of a log, one a line, up to the first damage.
    Dump {
        /// The data folder.
        dir: PathBuf,
        /// The first LSN to print.
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// The last LSN to print.
        #[arg(long, value_name = "LSN")]
        to: Option<u64>,
        /// Each record as a JSON object.
        #[arg(long)]
        json: bool,
        /// Print keys, values and texts in full.
        #[arg(long)]
        full: bool,
    },
    /// Print the state of a log at any point, its records, or the history of one message; change nothing.
    Inspect(InspectArgs),
    /// Say what can be saved of a damaged log, and with --accept-loss save it: a new log of everything that is whole takes the place
    /// of the old files, which are set aside in a quarantine folder.
    Salvage {
        /// The data folder.
        dir: PathBuf,
        /// Really do it.
        #[arg(long)]
        accept_loss: bool,
    },
}

/// Why nothing can be said of a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The folder cannot be had.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file of the log cannot be read or written. This says nothing about what is in it.
    #[error("{}{fault}", .file.map_or_else(String::new, |file| format!("{file}: ")))]
    Storage {
        /// Which file; `None` for the folder.
        file: Option<FileId>,
        /// What the storage said.
        fault: StorageFault,
    },
    /// Recovery could not get as far as judging the data.
    #[error(transparent)]
    Recovery(RecoveryError),
    /// No file is left that says whose log this is, and no frame can be checked without that.
    #[error("no header of any segment and no snapshot is whole, so nothing tells whose log this is")]
    NoIdentity,
    /// What was saved does not hold together. Nothing was changed.
    #[error("what is left contradicts itself ({0}); nothing was changed")]
    InconsistentState(String),
    /// The result of a salvage cannot be opened. The old files are in the quarantine folder.
    #[error("the salvaged log does not open ({error}); the old files are in {}", .quarantine.display())]
    NotOpenable {
        /// Where the old files are.
        quarantine: PathBuf,
        /// Why the new ones are refused.
        error: RecoveryError,
    },
    /// The log cannot be inspected, or does not hold what was asked for.
    #[error("{}: {error}", .dir.display())]
    Inspect {
        /// The data folder.
        dir: PathBuf,
        /// What is wrong.
        error: driftq_inspect::InspectError,
    },
    /// The system refused something that is not the log's.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

impl WalError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error }
    }

    fn storage(file: FileId) -> impl FnOnce(StorageFault) -> Self {
        move |fault| Self::Storage { file: Some(file), fault }
    }
}

/// Whether a salvage of the folder was interrupted half-way. A broker must not start there: it would take the new log and clear
/// away old files that are still to be set aside.
///
/// # Errors
/// If the system does not tell.
pub fn is_salvage_pending(dir: &Path) -> io::Result<bool> {
    quarantine::is_pending(dir)
}

/// The log is whole, or has been made so.
const WHOLE: u8 = 0;
/// Something is damaged.
const DAMAGED: u8 = 1;
/// Nothing can be said.
const FAILED: u8 = 2;

/// Does what was asked, says so on standard output, and gives the exit code: 0 if the log is whole or has been made so, 1 if it is
/// damaged, 2 if nothing could be said. What went wrong in the last case is said on standard error.
#[must_use]
pub fn run(command: &WalCommand) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let ended = run_to(command, &mut out);
    let flushed = out.flush();
    match ended {
        Ok(code) if flushed.is_ok() => ExitCode::from(code),
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => {
            eprintln!("driftqd wal: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// As [`run`], with the text going to `out`.
///
/// # Errors
/// [`WalError`]: nothing can be said of the log, or `out` takes no more.
pub fn run_to(command: &WalCommand, out: &mut impl Write) -> Result<u8, WalError> {
    let printed = |result: io::Result<()>| result.map_err(WalError::io("writing to", Path::new("standard output")));
    match command {
        WalCommand::Verify { dir } => {
            let verification = verify(dir)?;
            printed(write!(out, "{verification}"))?;
            Ok(if verification.is_whole() { WHOLE } else { DAMAGED })
        }
        WalCommand::Dump { dir, from, to, json, full } => {
            let options =
                DumpOptions { from: Lsn(from.unwrap_or(0)), to: Lsn(to.unwrap_or(u64::MAX)), json: *json, full: *full };
            Ok(match dump(dir, &options, out)? {
                DumpEnd::Whole => WHOLE,
                DumpEnd::Damaged => DAMAGED,
            })
        }
        WalCommand::Inspect(args) => inspect(args, out).map(|()| WHOLE),
        WalCommand::Salvage { dir, accept_loss } => {
            let consent = if *accept_loss { Consent::AcceptLoss } else { Consent::LookOnly };
            let salvage = salvage(dir, consent)?;
            printed(write!(out, "{salvage}"))?;
            Ok(match salvage {
                Salvage::Needed { .. } | Salvage::Pending => DAMAGED,
                Salvage::NotNeeded | Salvage::Done { .. } | Salvage::Finished { .. } => WHOLE,
            })
        }
    }
}
