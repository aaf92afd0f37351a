//! `load`: measures a broker over HTTP, from outside.
//!
//! Every mode starts a `driftqd` on a temporary folder (or uses `--url`), drives it from one thread with a client that
//! does as little as possible per request, and prints rates, latencies, and the broker's CPU time and memory. With
//! `--ceiling` a bare hyper server is driven by the same client in alternating slices, so that the ratio is meaningful
//! on a busy machine too. `compare` does the same work on other brokers that are installed.
//!
//! Exit code: 0 if every request succeeded, 1 if one failed, a goal of `jobs` was missed or the run ended early, 130,
//! 143 or 129 after SIGINT, SIGTERM or SIGHUP. Started processes are killed and temporary folders removed in all of
//! these cases.

mod broker;
mod ceiling;
mod cli;
mod client;
mod disk;
mod drive;
mod error;
mod metrics;
mod modes;
mod report;
mod tls;
mod tool;

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use self::cli::{Cli, Command};
use self::error::Result;
use self::report::Failures;

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let mut cli = Cli::parse();
    match prepare(&mut cli).and_then(|runtime| runtime.block_on(run_until_signal(cli))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Finds the daemon's program before the runtime starts: cargo may have to build it.
fn prepare(cli: &mut Cli) -> Result<tokio::runtime::Runtime> {
    if let Some(options) = cli.command.broker_options_mut() {
        options.find_program()?;
    }
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Runs the mode. A signal drops it, and with it the guards that kill the started processes.
async fn run_until_signal(cli: Cli) -> Result<ExitCode> {
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
        Command::Bulk(options) => modes::bulk::run(&options).await,
        Command::Idle(options) => modes::idle::run(&options).await,
        Command::Crowd(options) => modes::crowd::run(&options).await,
        Command::Jobs(options) => modes::jobs::run(&options).await,
        Command::Effects(options) => modes::effects::run(&options).await,
        Command::Keys(options) => modes::keys::run(&options).await,
        Command::Steps(options) => modes::steps::run(&options).await,
        Command::Budget(options) => modes::budget::run(&options).await,
        Command::Table(options) => modes::table::run(&options).await,
        Command::Compare(options) => modes::compare::run(&options).await,
        Command::CeilingServe => ceiling::serve().await.map(|()| Failures::default()),
    }
}
