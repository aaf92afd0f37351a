//! `driftqd wal`: verifies, dumps, inspects and salvages a log.
//!
//! Recovery stops at damage, reports where, and changes nothing; it refers to the commands here. [`verify()`],
//! [`dump()`] and [`inspect()`] only read. [`salvage()`] builds a new log from every frame that still verifies and
//! fits together, and moves the old files to a quarantine folder, except whole segments that hold payloads of its
//! messages: it deletes nothing. All of them lock the folder,
//! so none runs beside a broker.

mod dump;
mod error;
mod footers;
mod inspect;
mod payloads;
mod quarantine;
mod rebuild;
mod repair;
mod reset;
mod salvage;
mod scan;
mod verify;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use driftq_core::types::Lsn;

pub use self::dump::{DumpEnd, DumpOptions, dump};
pub use self::error::WalError;
pub use self::inspect::{InspectArgs, inspect};
pub use self::payloads::{LostMessage, LostResult};
pub use self::rebuild::{Loss, Skipped};
pub use self::reset::reset;
pub(crate) use self::salvage::salvage_into;
pub use self::salvage::{Consent, Contents, Salvage, salvage};
pub use self::verify::{FileReport, Verification, verify};

/// The subcommands of `driftqd wal`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum WalCommand {
    /// Check whether a log is intact; change nothing. Exit codes: 0 intact, 1 damaged, 2 the log cannot be read.
    Verify {
        /// The data folder.
        dir: PathBuf,
    },
    /// Print the records of a log, one per line, up to the first damage.
    Dump {
        /// The data folder.
        dir: PathBuf,
        /// The first LSN to print.
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// The last LSN to print.
        #[arg(long, value_name = "LSN")]
        to: Option<u64>,
        /// Print each record as a JSON object.
        #[arg(long)]
        json: bool,
        /// Print keys, values and texts in full.
        #[arg(long)]
        full: bool,
    },
    /// Print the state of a log at any point, its records, or the history of one message; change nothing.
    Inspect(InspectArgs),
    /// Report what can be kept of a damaged log. With --accept-loss, replace the log by a new one with everything
    /// that is intact, and move the old files to a quarantine folder. Exit codes: 0 nothing is lost, 1 the log is
    /// damaged and was not replaced, 2 the log cannot be read, 3 the log was replaced and something is lost.
    Salvage {
        /// The data folder.
        dir: PathBuf,
        /// Replace the log.
        #[arg(long)]
        accept_loss: bool,
    },
}

/// Whether a salvage of the folder was interrupted while it moved files. A broker must not start there: it would open
/// the new log and remove old files that are still to be moved.
///
/// # Errors
/// If the folder cannot be read.
pub fn is_salvage_pending(dir: &Path) -> io::Result<bool> {
    quarantine::is_pending(dir)
}

/// Exit code: the log is intact, or is now.
const INTACT: u8 = 0;
/// Exit code: the log is damaged.
const DAMAGED: u8 = 1;
/// Exit code: the command could not do its work.
const FAILED: u8 = 2;
/// Exit code: the log was salvaged, and something is lost.
const LOST: u8 = 3;

/// Runs a command, with its output on standard output and errors on standard error. Exit codes: 0 if the log is
/// intact or was made so without loss, 1 if it is damaged, 2 if the command could not do its work, 3 if a salvage lost
/// something.
#[must_use]
pub fn run(command: &WalCommand) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = run_to(command, &mut out);
    let flushed = out.flush();
    // A reader such as `head` may close the pipe early.
    let is_written = flushed.map_or_else(|error| error.kind() == io::ErrorKind::BrokenPipe, |()| true);
    match result {
        Ok(code) if is_written => ExitCode::from(code),
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => {
            crate::report(&mut std::io::stderr(), &format!("driftqd wal: {error}\n"));
            ExitCode::from(FAILED)
        }
    }
}

/// Runs a command with its output written to `out`, and returns the exit code.
///
/// # Errors
/// [`WalError`] if the command cannot do its work, or `out` cannot be written to.
pub fn run_to(command: &WalCommand, out: &mut impl Write) -> Result<u8, WalError> {
    match command {
        WalCommand::Verify { dir } => {
            let verification = verify(dir)?;
            write!(out, "{verification}").map_err(WalError::output)?;
            Ok(if verification.is_intact() { INTACT } else { DAMAGED })
        }
        WalCommand::Dump { dir, from, to, json, full } => {
            let options =
                DumpOptions { from: Lsn(from.unwrap_or(0)), to: Lsn(to.unwrap_or(u64::MAX)), json: *json, full: *full };
            Ok(match dump(dir, &options, out)? {
                DumpEnd::Complete => INTACT,
                DumpEnd::Damaged => DAMAGED,
            })
        }
        WalCommand::Inspect(args) => inspect(args, out).map(|()| INTACT),
        WalCommand::Salvage { dir, accept_loss } => {
            let consent = if *accept_loss { Consent::AcceptLoss } else { Consent::DryRun };
            let salvage = salvage(dir, consent)?;
            write!(out, "{salvage}").map_err(WalError::output)?;
            Ok(match salvage {
                Salvage::Needed { .. } | Salvage::Pending => DAMAGED,
                Salvage::Done { loss, .. } if !loss.is_empty() => LOST,
                Salvage::Resumed { has_loss: true, .. } => LOST,
                Salvage::NotNeeded | Salvage::Done { .. } | Salvage::Resumed { .. } => INTACT,
            })
        }
    }
}
