//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Checks a server against every clause of the DriftQ v1 specification that is observable over HTTP.
///
/// It prints each clause with its result (pass, fail, deviates on purpose, not applicable) and what was observed. Every
/// run uses its own topics and groups, so it can be run against a server with other data; its topics are not deleted.
///
/// The exit code is 0 if nothing failed, 1 if something did, and 2 if the command line is wrong or the server cannot be
/// reached.
#[derive(Debug, Parser)]
#[command(name = "conformance", version)]
pub(crate) struct Cli {
    /// The server, e.g. http://127.0.0.1:8080
    #[arg(long, required_unless_present = "list")]
    pub(crate) url: Option<String>,
    /// A command, run once by `sh -c`, that restarts the server without losing its data (kill -9 and start) and
    /// returns. What it starts must run in the background. Without it the clauses about restarts are not applicable
    #[arg(long, value_name = "CMD")]
    pub(crate) restart: Option<String>,
    /// Also write the report as JSON; `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Only the cases with this in their name or section
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Print all cases and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// How long a response or delivery may take; more for a slow server
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(4_000..=600_000))]
    pub(crate) timeout_ms: u64,
    /// How many cases run at a time
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,
}
