//! `load`: how much a DriftQ broker carries, measured from outside over plain HTTP.
//!
//! Every mode starts a `driftqd` of its own on a temporary folder (or takes `--url`), drives it from one thread with
//! a client that does next to nothing per request, and prints rates, latencies, and what the broker cost in CPU and
//! memory. `--ceiling` sets a bare hyper server beside it, driven by the very same client in alternating slices, so
//! that a figure says something on a machine that is busy with other things too.
//!
//! The exit code is 0 when every request was answered with success, 1 when one failed or the run broke off, and 130
//! when it was interrupted (143 and 129 when it was terminated or its terminal went away). Started processes are ended and temporary folders removed in all of these cases.

mod broker;
mod ceiling;
mod cli;
mod client;
mod daemon;
mod disk;
mod drive;
mod modes;
mod procfs;
mod progress;
mod report;

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Command};
use crate::report::Failures;

/// What breaks off a run, said in words; single failed requests are counted in [`Failures`] instead.
type Error = Box<dyn std::error::Error + Send + Sync>;
/// A step of a run, or why it broke off.
type Result<T> = std::result::Result<T, Error>;

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    match prepare(&mut cli).and_then(|runtime| runtime.block_on(until_done_or_interrupted(cli))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What has to stand before the runtime does: the daemon's program, which cargo may have to build first.
fn prepare(cli: &mut Cli) -> Result<tokio::runtime::Runtime> {
    if let Some(options) = cli.command.broker_options_mut() {
        options.settle_program()?;
    }
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Runs the mode. An interrupt drops it where it stands, and with it the guards that end the started processes.
async fn until_done_or_interrupted(cli: Cli) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        failures = run(cli.command) => {
            let failures = failures?;
            Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
        _ = hangup.recv() => Ok(ExitCode::from(129)),
    }
}

async fn run(command: Command) -> Result<Failures> {
    match command {
        Command::Produce(options) => modes::produce::run(&options).await,
        Command::EndToEnd(options) => modes::end_to_end::run(&options).await,
        Command::Consume(options) => modes::consume::run(&options).await,
        Command::Backlog(options) => modes::backlog::run(&options).await,
        Command::Idle(options) => modes::idle::run(&options).await,
        Command::Effects(options) => modes::effects::run(&options).await,
        Command::Steps(options) => modes::steps::run(&options).await,
        Command::Table(options) => modes::table::run(&options).await,
        Command::CeilingServe => ceiling::serve().await.map(|()| Failures::default()),
    }
}
