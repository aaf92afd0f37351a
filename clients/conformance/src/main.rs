//! The command line of `driftq-conformance`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use driftq_conformance::{Plan, RULES, Results, RunResult, Scenario, Suite, built_in, judge, program, table, trace};

/// Most of a run is spent waiting: for leases, for handlers, for faults.
const JOBS_PER_CORE: usize = 4;

/// Runs clients of DriftQ against a broker that misbehaves, and judges what they did.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs scenarios with many seeds, and prints a table of clients and scenarios. Fails if a client is convicted.
    Run {
        #[command(flatten)]
        what: What,
        /// How many seeds.
        #[arg(long, default_value_t = 20)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        start: u64,
        /// With so many of the scenarios each client meets a seed, in turn, instead of with all.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        spread: Option<u16>,
        /// How many runs at a time; four for each core, if it is not given.
        #[arg(long)]
        jobs: Option<usize>,
        /// Starts no run after so many minutes.
        #[arg(long)]
        minutes: Option<u64>,
        /// Keeps the table in this file, too, with date, commit and machine, and rewrites it as runs end.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Runs one scenario with one seed again, and prints what it is convicted of.
    Replay {
        #[command(flatten)]
        what: What,
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// How often, until there is a conviction.
        #[arg(long, default_value_t = 1)]
        times: u64,
    },
    /// Judges a trace again, and prints the entries that prove each conviction.
    Judge {
        /// The trace.
        trace: PathBuf,
    },
    /// Lists the scenarios and the rules.
    List,
}

#[derive(Args)]
struct What {
    /// A command line that starts an adapter; several for several clients.
    #[arg(long, required = true)]
    adapter: Vec<String>,
    /// Only scenarios of this name; several for several ones.
    #[arg(long)]
    scenario: Vec<String>,
    /// A file with scenarios instead of the built-in ones.
    #[arg(long)]
    scenarios: Option<PathBuf>,
    /// The broker's program, else `DRIFTQD`, else `driftqd` beside this one, else of the search path.
    #[arg(long)]
    driftqd: Option<PathBuf>,
    /// The folder with the vectors of keys and hashes.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors"))]
    vectors: PathBuf,
    /// Where traces and logs of convicted runs are kept.
    #[arg(long, default_value = "conformance-failures")]
    keep: PathBuf,
    /// Keeps those of all runs.
    #[arg(long)]
    keep_all: bool,
}

fn main() -> ExitCode {
    match command(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn command(command: Command) -> io::Result<bool> {
    match command {
        Command::Run { what, seeds, start, spread, jobs, minutes, results } => {
            let suite = suite(&what)?;
            let plan = Plan {
                seeds: start..start.saturating_add(seeds),
                spread: spread.map(usize::from),
                jobs: jobs.unwrap_or_else(|| JOBS_PER_CORE * thread::available_parallelism().map_or(1, usize::from)),
                until: minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes)),
            };
            let results = Results::new(results);
            suite.run(&plan, &|result| {
                if !result.passed() {
                    eprintln!("{result}");
                }
                if let Err(error) = results.add(result) {
                    eprintln!("the results are not kept: {error}");
                }
            });
            let results = results.finish()?;
            if results.is_empty() {
                return Err(io::Error::other("nothing was run: no seed, or no time"));
            }
            print!("{}", table(&results));
            Ok(results.iter().all(RunResult::passed))
        }
        Command::Replay { what, seed, times } => {
            let suite = suite(&what)?;
            let plan = Plan { seeds: seed..seed.saturating_add(1), spread: None, jobs: 1, until: None };
            for _ in 0..times.max(1) {
                let has_failed = AtomicBool::new(false);
                suite.run(&plan, &|result| {
                    println!("{result}");
                    has_failed.fetch_or(!result.passed(), Ordering::SeqCst);
                });
                if has_failed.into_inner() {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Command::Judge { trace: path } => {
            let entries = trace::read(BufReader::new(File::open(path)?))?;
            let convictions = judge(&entries);
            let mut out = io::stdout().lock();
            for conviction in &convictions {
                writeln!(out, "{}: {}", conviction.rule, conviction.text)?;
                for &entry in &conviction.entries {
                    writeln!(out, "  {entry}: {}", serde_json::to_string(&entries[entry])?)?;
                }
            }
            Ok(convictions.is_empty())
        }
        Command::List => {
            for Scenario { name, about, .. } in built_in()? {
                println!("{name}: {about}");
            }
            println!();
            for (rule, demand) in RULES {
                println!("{rule}: {demand}");
            }
            Ok(true)
        }
    }
}

/// What is to be run, checked.
fn suite(what: &What) -> io::Result<Suite> {
    let mut scenarios = match &what.scenarios {
        Some(path) => serde_json::from_reader(BufReader::new(File::open(path)?))?,
        None => built_in()?,
    };
    for name in &what.scenario {
        if !scenarios.iter().any(|scenario: &Scenario| scenario.name == *name) {
            return Err(io::Error::other(format!("there is no scenario {name:?}; `list` shows them")));
        }
    }
    scenarios.retain(|scenario| what.scenario.is_empty() || what.scenario.contains(&scenario.name));
    Ok(Suite {
        driftqd: program(what.driftqd.clone()),
        adapters: what.adapter.clone(),
        scenarios,
        vectors: what.vectors.clone(),
        keep: what.keep.clone(),
        keep_all: what.keep_all,
    })
}
