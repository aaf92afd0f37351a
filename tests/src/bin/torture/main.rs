//! `torture`: does everything to a real `driftqd` that machines do to programs, and holds what its clients were told against what
//! it promises.
//!
//! The exit code is 0 when every promise was kept, 1 when one was broken, 2 when the run itself could not be made, and 130 when it
//! was interrupted. Started processes are ended, disks taken off and temporary folders removed in all of these cases.
#![forbid(unsafe_code)]

mod cli;
mod show;

use std::process::ExitCode;

use clap::Parser;
use driftq_tests::daemon;
use driftq_tests::torture::disk::FileSystem;
use driftq_tests::torture::faults::{self, Tick};
use driftq_tests::torture::judge::{self, Row};
use driftq_tests::torture::stage::Rig;
use driftq_tests::torture::{interrupt, table};

use crate::cli::Cli;
use crate::show::Show;

const BROKEN: u8 = 1;
const NOT_RUN: u8 = 2;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(BROKEN),
        Err(why) => {
            eprintln!("torture: {why}");
            ExitCode::from(if interrupt::asked() { INTERRUPTED } else { NOT_RUN })
        }
    }
}

/// Tries what was asked for, and says whether every promise was kept.
fn run(cli: &Cli) -> Result<bool, String> {
    interrupt::listen().map_err(|error| error.to_string())?;
    let rig = rig(cli)?;
    println!("seed {}", rig.seed);
    let mut rows: Vec<Row> = Vec::new();
    for (name, steps, fault) in chosen(cli) {
        let show = Show::of(&name, steps);
        let row = fault(&rig, &|| show.step());
        drop(show);
        rows.push(row.map_err(|why| format!("{name}: {why}"))?);
    }
    println!("{}", table::table(&rows));
    let mut kept = true;
    for row in rows.iter().filter(|row| !row.passed()) {
        kept = false;
        for sentence in row.sum.sentences.iter().take(20) {
            println!("{}: {sentence}", row.fault);
        }
    }
    if !kept {
        println!("{}", judge::kept_in(rig.keep.as_ref()));
    }
    println!("{}", if kept { "PASSED" } else { "FAILED" });
    Ok(kept)
}

fn rig(cli: &Cli) -> Result<Rig, String> {
    let driftqd = match &cli.driftqd {
        Some(path) => path.clone(),
        None => daemon::program("driftq-server", "driftqd")?,
    };
    let canary = if cli.canary() > 0 { daemon::program("driftq-tests", "canary")? } else { driftqd.clone() };
    if !driftqd.is_file() {
        return Err(format!("there is no {}", driftqd.display()));
    }
    Ok(Rig { driftqd, canary, seed: cli.seed, keep: cli.keep.clone() })
}

type Fault = Box<dyn Fn(&Rig, Tick<'_>) -> Result<Row, String>>;

/// What was asked for, each with its name and the number of steps it has; 0 where that shows only at the end.
fn chosen(cli: &Cli) -> Vec<(String, u64, Fault)> {
    let mut chosen: Vec<(String, u64, Fault)> = Vec::new();
    let mut add = |name: &str, steps: u64, fault: Fault| chosen.push((name.to_owned(), steps, fault));
    let kills = cli.kills();
    if kills > 0 {
        add("kill -9", kills, Box::new(move |rig, tick| faults::kills(rig, kills, tick)));
    }
    let kinds: Vec<FileSystem> = cli.power_fs.iter().map(|kind| kind.file_system()).collect();
    for (place, kind) in (0..).zip(&kinds) {
        let (kind, of) = (*kind, kinds.len() as u64);
        let losses = cli.power() / of + u64::from(place < cli.power() % of);
        if losses > 0 {
            let name = format!("power loss, {}", kind.name());
            add(&name, losses, Box::new(move |rig, tick| faults::power(rig, kind, losses, tick)));
        }
    }
    if cli.all || cli.syscalls {
        add("killed at a syscall", 0, Box::new(faults::syscalls));
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
        add("pauses", 5, Box::new(|rig, tick| faults::paused_server(rig, 5, tick)));
    }
    if cli.all || cli.clocks {
        add("clock jumps", 5, Box::new(faults::clocks));
    }
    let canary = cli.canary();
    if canary > 0 {
        add("canary", canary, Box::new(move |rig, tick| faults::canary(rig, canary, tick)));
    }
    chosen
}
