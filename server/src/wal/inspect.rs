//! `driftqd wal inspect`: the state of a log at any point, its records, and the history of one message.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use driftq_core::types::GroupName;
use driftq_inspect::format::{duration, grouped};
use driftq_inspect::{LogPoint, LogReader, MessageName};
use serde::Serialize;

use super::error::WalError;

/// The arguments of `driftqd wal inspect`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Examples:
  driftqd wal inspect driftq-data
  driftqd wal inspect driftq-data --at 5120
  driftqd wal inspect driftq-data --at 2026-11-15T12:00:00Z
  driftqd wal inspect driftq-data --at -5m
  driftqd wal inspect driftq-data --message orders/17 --group billing
  driftqd wal inspect driftq-data --records --from 5000 --to 5120

Exit codes: 0 printed, 2 the log cannot be read, or it does not hold what was requested.")]
pub struct InspectArgs {
    /// The data folder of a broker that has stopped
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The state after this LSN, at this time (RFC 3339), or so long before the last record (-5m)
    #[arg(long, value_name = "LSN|TIME", allow_hyphen_values = true)]
    pub at: Option<LogPoint>,
    /// The history of this message; with --at, up to that point
    #[arg(long, value_name = "TOPIC/OFFSET", conflicts_with = "records")]
    pub message: Option<MessageName>,
    /// Only what concerns this group; requires --message
    #[arg(long, value_name = "GROUP", requires = "message")]
    pub group: Option<GroupName>,
    /// The records, one per line
    #[arg(long, conflicts_with = "at")]
    pub records: bool,
    /// With --records, from this LSN on
    #[arg(long, value_name = "LSN", requires = "records")]
    pub from: Option<u64>,
    /// With --records, up to this LSN
    #[arg(long, value_name = "LSN", requires = "records")]
    pub to: Option<u64>,
    /// As JSON: one object, or with --records one per line
    #[arg(long)]
    pub json: bool,
}

/// Prints what `args` request. Changes nothing in the folder.
///
/// # Errors
/// [`WalError::Inspect`] if the log cannot be read or does not hold what was requested; [`WalError::Io`] if `out`
/// cannot be written to.
pub fn inspect(args: &InspectArgs, out: &mut impl Write) -> Result<(), WalError> {
    let failed = |error| WalError::Inspect { dir: args.dir.clone(), error };
    let started = Instant::now();
    let mut reader = LogReader::open(&args.dir).map_err(failed)?;
    if args.records {
        let mut written = Ok(());
        let print = |line| {
            if written.is_ok() {
                written = print_line(out, &line, args.json);
            }
        };
        reader.records(args.from, args.to, print).map_err(failed)?;
        return printed(written);
    }
    if let Some(message) = &args.message {
        let history = reader.trace_message(message, args.group.as_ref(), args.at).map_err(failed)?;
        return printed(print_line(out, &history, args.json));
    }
    let overview = reader.overview(args.at).map_err(failed)?;
    if args.json {
        return printed(print_line(out, &overview, true));
    }
    let elapsed = started.elapsed();
    let rate = overview.records as f64 / elapsed.as_secs_f64().max(1e-9);
    let (records, rate, time) = (grouped(overview.records), grouped(rate as u64), duration(elapsed));
    printed(writeln!(out, "read {records} records in {time}, {rate} records/s"))?;
    printed(match args.at {
        Some(_) => writeln!(out, "{}", overview.state().trim_end()),
        None => print_line(out, &overview, false),
    })
}

fn print_line(out: &mut impl Write, item: &(impl Serialize + std::fmt::Display), json: bool) -> io::Result<()> {
    match json {
        true => writeln!(out, "{}", serde_json::to_string(item).map_err(io::Error::other)?),
        false => writeln!(out, "{}", item.to_string().trim_end()),
    }
}

fn printed(result: io::Result<()>) -> Result<(), WalError> {
    match result {
        // A reader such as `head` may close the pipe early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(WalError::output),
    }
}
