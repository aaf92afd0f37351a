//! `driftqd clock`: mends wall time that is far ahead of the wall clock.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use driftq_core::log::RecoveryError;
use driftq_core::pipeline::{OpenError, inspect};
use driftq_core::types::{Now, Timestamp};
use driftq_core::{LogFault, LogRefusal, OpenOptions};
use driftq_files::{DataFolder, FolderError};

use crate::clock::Clock;
use crate::rfc3339;
use crate::wal;

/// Up to this difference from the wall clock there is nothing to mend, in milliseconds.
const TOLERANCE_MS: i64 = 1_000;

/// The subcommands of `driftqd clock`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum ClockCommand {
    /// Set wall time in a stopped broker's log to the wall clock, also back. Deadlines and delivery times that have not
    /// been reached then count as in the future again; leases and other durations do not change.
    Rebase {
        /// The data folder.
        dir: PathBuf,
    },
}

/// Why a wall clock could not be rebased.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebaseError {
    /// The folder is in use or cannot be opened.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A salvage of the data folder was interrupted.
    #[error("a salvage of {} was interrupted: complete it with `driftqd wal salvage`", .0.display())]
    SalvagePending(PathBuf),
    /// The folder could not be read.
    #[error("reading the data folder: {0}")]
    Io(#[from] std::io::Error),
    /// Recovery refused the log.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log has no space for the record.
    #[error("writing the record: {0}")]
    Refused(#[from] LogRefusal),
    /// The log failed while the record was written.
    #[error(transparent)]
    Failed(#[from] LogFault),
}

/// What a rebase did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebase {
    /// Wall time by the log before.
    pub before: Timestamp,
    /// Wall time by the log afterwards.
    pub after: Timestamp,
    /// The wall clock.
    pub clock: Timestamp,
}

impl fmt::Display for Rebase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ahead = self.before.offset_from(self.clock);
        let text = |time| rfc3339::format(time);
        writeln!(f, "wall time by the log: {} ({ahead:+} ms from the wall clock)", text(self.before))?;
        writeln!(f, "wall clock:           {}", text(self.clock))?;
        match self.before == self.after {
            true => writeln!(f, "nothing to do"),
            false => writeln!(f, "wall time is now:     {}", text(self.after)),
        }
    }
}

/// Runs a command, with its output on standard output and errors on standard error. Exit codes: 0 if wall time is now
/// that of the wall clock, 2 if the command could not do its work.
#[must_use]
pub fn run(command: &ClockCommand) -> ExitCode {
    let ClockCommand::Rebase { dir } = command;
    match rebase(dir, Clock::system().now()) {
        Ok(rebase) => {
            crate::report(&mut std::io::stdout(), &rebase.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::report(&mut std::io::stderr(), &format!("driftqd clock: {error}\n"));
            ExitCode::from(2)
        }
    }
}

/// Sets wall time in the log of a stopped broker to the wall clock of `now`. Writes nothing if they agree to a second.
///
/// # Errors
/// [`RebaseError`]; wall time is unchanged then.
pub fn rebase(dir: &Path, now: Now) -> Result<Rebase, RebaseError> {
    let folder = DataFolder::open_existing(dir)?;
    if wal::is_salvage_pending(folder.path())? {
        return Err(RebaseError::SalvagePending(folder.path().to_owned()));
    }
    let mut storage = folder.storage();
    let (state, _) = inspect(&mut storage, None)?;
    let start = state.wall_clock().started(now.wall, state.clock());
    let before = state.wall_clock().wall(start);
    if before.offset_from(now.wall).abs() <= TOLERANCE_MS {
        return Ok(Rebase { before, after: before, clock: now.wall });
    }
    let (mut pipeline, _) = OpenOptions::new().open(&mut storage, now)?;
    pipeline.rebase_wall_clock(now)?;
    let after = pipeline.broker().wall();
    pipeline.close();
    pipeline.drive(now, &mut storage);
    match pipeline.failure() {
        Some(fault) => Err(fault.clone().into()),
        None => Ok(Rebase { before, after, clock: now.wall }),
    }
}
