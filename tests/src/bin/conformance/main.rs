//! `conformance`: every clause of the DriftQ v1 specification that can be seen over HTTP, asked of a server at a URL.
//!
//! The suite itself is [`driftq_tests::conformance`]; here are its command line, its progress bar and its exit codes.

mod cli;

use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use driftq_tests::conformance::{Options, Outcome, Report, Restart, run};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::Cli;

/// The command line is wrong, or nobody answers: nothing has been tested.
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
    let mut options = Options::at(cli.url.as_deref().unwrap_or_default());
    options.only = cli.only;
    options.jobs = usize::from(cli.jobs);
    options.patience = Duration::from_millis(cli.timeout_ms);
    options.restart = cli.restart.map(restart_by);
    if cli.list {
        list(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let bar = progress(options.chosen().len());
    let report = run(&options, &|entry| {
        bar.set_message(entry.case.name);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let report = report?;
    show(&report, cli.json.as_deref())?;
    Ok(if report.count(Outcome::Fail) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The table on standard output, unless the JSON takes its place.
fn show(report: &Report, json: Option<&Path>) -> io::Result<()> {
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
    for case in options.chosen() {
        if case.section != section {
            section = case.section;
            writeln!(out, "\n{section}")?;
        }
        writeln!(out, "  {:<38}  {}", case.name, case.clause)?;
    }
    Ok(())
}

/// A bar on standard error, for a person who watches; nothing where nobody does.
fn progress(cases: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(cases as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} ({elapsed}) {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Runs a command of the user's. What it says goes to a file: a server that it leaves behind would hold a pipe open for ever.
fn restart_by(command: String) -> Restart {
    Box::new(move || {
        let mut said = tempfile::tempfile().map_err(|error| error.to_string())?;
        let handle = || said.try_clone().map_err(|error| error.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).stdin(Stdio::null()).stdout(handle()?).stderr(handle()?);
        let status = shell.status().map_err(|error| format!("sh cannot be run: {error}"))?;
        if status.success() {
            return Ok(());
        }
        said.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let text = io::read_to_string(said).unwrap_or_default();
        Err(format!("the restart command ended with {status}: {}", text.trim()))
    })
}
