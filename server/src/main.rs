//! `driftqd`: the DriftQ broker process.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use driftq_server::cli::{Cli, Command};
use driftq_server::config::{Flags, Settings, init_logging, with_double_dashes};
use driftq_server::signals::Reload;
use driftq_server::{keys, memory_broker, rebase, report, serve, tls, wal};

/// Exit code if the broker cannot start.
const NOT_STARTED: u8 = 1;
/// Exit code if a flag or a setting is invalid; clap uses the same.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse_from(with_double_dashes(&Cli::command(), std::env::args_os()));
    match cli.command {
        None => run(&cli.flags),
        Some(Command::Serve(flags)) => run(&flags),
        Some(Command::Config(flags)) => print_settings(&flags),
        Some(Command::Wal { command }) => wal::run(&command),
        Some(Command::Keys { command }) => keys::run(&command),
        Some(Command::Clock { command }) => rebase::run(&command),
    }
}

fn load(flags: &Flags) -> Result<Settings, ExitCode> {
    let settings = Settings::load(flags).map_err(|error| fail(&error, USAGE))?;
    tls::check(&settings.tls).map_err(|error| fail(&error, USAGE))?;
    Ok(settings)
}

fn print_settings(flags: &Flags) -> ExitCode {
    match load(flags) {
        Ok(settings) => {
            report(&mut std::io::stdout(), &settings.to_toml());
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

fn run(flags: &Flags) -> ExitCode {
    let settings = match load(flags) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let log_level = match init_logging(&settings.log) {
        Ok(log_level) => log_level,
        Err(error) => return fail(&error, USAGE),
    };
    let reload = Reload { flags: flags.clone(), log_level };
    let ended = if settings.memory { memory_broker::run(settings, reload) } else { serve::run(settings, reload) };
    ended.unwrap_or_else(|error| fail(&error, NOT_STARTED))
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    report(&mut std::io::stderr(), &format!("driftqd: {error}\n"));
    ExitCode::from(code)
}
