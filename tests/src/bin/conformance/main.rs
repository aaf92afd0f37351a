//! `conformance`: checks a server against every clause of the DriftQ v1 specification that is observable over HTTP.
//!
//! The suite itself is [`driftq_tests::conformance`].

mod cli;

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use driftq_tests::conformance::{Options, Report, Restart, VerdictKind, run};
use driftq_tests::progress::Progress;

use crate::cli::Cli;

/// The command line is wrong or the server does not respond: nothing was checked.
const NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match act(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(NOT_RUN)
        }
    }
}

fn act(cli: Cli) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut options = Options::new(cli.url.as_deref().unwrap_or_default());
    options.only = cli.only;
    options.jobs = usize::from(cli.jobs);
    options.timeout = Duration::from_millis(cli.timeout_ms);
    options.restart = cli.restart.map(restart_by);
    if cli.list {
        list(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::bar("", options.selected().len() as u64);
    let report = run(&options, &|entry| {
        progress.message(entry.case.name);
        progress.step();
    });
    drop(progress);
    let report = report?;
    print(&report, cli.json.as_deref())?;
    Ok(if report.count(VerdictKind::Fail) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the table, or the JSON if that goes to standard output.
fn print(report: &Report, json: Option<&Path>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json == Some(Path::new("-")) {
        return writeln!(out, "{:#}", report.json());
    }
    if let Some(path) = json {
        std::fs::write(path, format!("{:#}\n", report.json()))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    writeln!(out, "{report}")
}

fn list(options: &Options) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut section = "";
    for case in options.selected() {
        if case.section != section {
            section = case.section;
            writeln!(out, "\n{section}")?;
        }
        writeln!(out, "  {:<38}  {}", case.name, case.clause)?;
    }
    Ok(())
}

/// Runs the user's restart command. Its output goes to a file: a server that it starts in the background would keep a
/// pipe open.
fn restart_by(command: String) -> Restart {
    Box::new(move || {
        let mut output = tempfile::tempfile().map_err(|error| error.to_string())?;
        let handle = || output.try_clone().map_err(|error| error.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).stdin(Stdio::null()).stdout(handle()?).stderr(handle()?);
        let status = shell.status().map_err(|error| format!("sh cannot be run: {error}"))?;
        if status.success() {
            return Ok(());
        }
        output.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let text = io::read_to_string(output).unwrap_or_default();
        Err(format!("the restart command exited with {status}: {}", text.trim()))
    })
}
