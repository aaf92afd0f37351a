//! `driftq`: the command line of the DriftQ broker.
//!
//! [`args`] is what can be typed, [`settings`] which broker is meant, [`commands`] one module per command, [`output`]
//! how results are printed, and [`failure`] which exit code an error has.

mod args;
mod commands;
mod contexts;
mod failure;
mod interrupt;
mod metrics;
mod output;
mod progress;
mod settings;
mod table;
mod text;
mod top;
mod units;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::failure::{Exit, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new(Exit::Refused, format!("the runtime cannot start: {error}")).report(),
    };
    let result = runtime.block_on(commands::run(cli));
    // A thread that reads standard input cannot be joined.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
