//! `torture`: injects faults into a real `driftqd` under load, and verifies what its clients observed.
//!
//! Exit code: 0 if no invariant was violated, 1 if one was, 2 if the run itself failed, 130 if it was interrupted.
//! Started processes are killed, disks unmounted and temporary folders removed in all of these cases.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;
use driftq_tests::daemon;
use driftq_tests::progress::Progress;
use driftq_tests::torture::disk::FileSystem;
use driftq_tests::torture::faults::{self, OnFault};
use driftq_tests::torture::scenario::Options;
use driftq_tests::torture::verdict::{self, FaultSummary};
use driftq_tests::torture::{interrupt, table};

use crate::cli::Cli;

const VIOLATED: u8 = 1;
const FAILED: u8 = 2;
const INTERRUPTED: u8 = 130;
/// How many violations of a fault are printed.
const PRINTED_VIOLATIONS_MAX: usize = 20;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(VIOLATED),
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::from(if interrupt::requested() { INTERRUPTED } else { FAILED })
        }
    }
}

/// Injects the selected faults; returns whether all passed.
fn run(cli: &Cli) -> Result<bool, String> {
    interrupt::listen().map_err(|error| error.to_string())?;
    let options = options(cli)?;
    println!("seed {}", options.seed);
    let mut rows: Vec<FaultSummary> = Vec::new();
    for (name, steps, fault) in selected(cli) {
        let progress = Progress::bar(&name, steps);
        let row = fault(&options, &|| progress.step());
        drop(progress);
        rows.push(row.map_err(|error| format!("{name}: {error}"))?);
    }
    println!("{}", table::table(&rows));
    let mut passed = true;
    for row in rows.iter().filter(|row| !row.passed()) {
        passed = false;
        for violation in row.sum.violations.iter().take(PRINTED_VIOLATIONS_MAX) {
            println!("{}: {violation}", row.fault);
        }
    }
    if !passed {
        println!("{}", verdict::kept_in(options.keep.as_ref()));
    }
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(passed)
}

fn options(cli: &Cli) -> Result<Options, String> {
    let driftqd = match &cli.driftqd {
        Some(path) => path.clone(),
        None => daemon::driftqd()?,
    };
    let canary = if cli.canary() > 0 { daemon::program("driftq-tests", "canary")? } else { driftqd.clone() };
    if !driftqd.is_file() {
        return Err(format!("there is no file {}", driftqd.display()));
    }
    Ok(Options { driftqd, canary, seed: cli.seed, keep: cli.keep.clone() })
}

type Fault = Box<dyn Fn(&Options, OnFault<'_>) -> Result<FaultSummary, String>>;

/// The selected faults with their names and the number of injections; 0 if that is not known in advance.
fn selected(cli: &Cli) -> Vec<(String, u64, Fault)> {
    let mut selected: Vec<(String, u64, Fault)> = Vec::new();
    let mut add = |name: &str, steps: u64, fault: Fault| selected.push((name.to_owned(), steps, fault));
    let kills = cli.kills();
    if kills > 0 {
        add("kill -9", kills, Box::new(move |options, on_fault| faults::kills(options, kills, on_fault)));
    }
    let kinds: Vec<FileSystem> = cli.power_fs.iter().map(|kind| kind.file_system()).collect();
    for (index, kind) in (0..).zip(&kinds) {
        let (kind, count) = (*kind, kinds.len() as u64);
        let losses = cli.power() / count + u64::from(index < cli.power() % count);
        if losses > 0 {
            let name = format!("power loss, {}", kind.name());
            add(&name, losses, Box::new(move |options, on_fault| faults::power(options, kind, losses, on_fault)));
        }
    }
    if cli.all || cli.syscalls {
        add("killed at a syscall", 0, Box::new(faults::exact_syscalls));
    }
    if cli.all || cli.disks {
        add("failing sync", 2, Box::new(faults::failing_sync));
        add("failing write", 2, Box::new(faults::failing_write));
        add("short write", 2, Box::new(faults::short_write));
        add("full disk", 2, Box::new(faults::full_disk));
        add("slow disk", 1, Box::new(faults::slow_disk));
        add("two servers", 1, Box::new(faults::second_server));
    }
    if cli.all || cli.pauses {
        add("pauses", 5, Box::new(|options, on_fault| faults::pauses(options, 5, on_fault)));
    }
    if cli.all || cli.clocks {
        add("clock jumps", 5, Box::new(faults::clock_jumps));
    }
    let canary = cli.canary();
    if canary > 0 {
        add("canary", canary, Box::new(move |options, on_fault| faults::canary(options, canary, on_fault)));
    }
    selected
}
