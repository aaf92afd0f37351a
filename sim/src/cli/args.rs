//! The command line arguments and their help texts.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use driftq_core::faults::Fault;
use driftq_core::types::TopicName;
use driftq_inspect::{MessageName, parse_topic};

use crate::explain::FUTURES;
use crate::swarm::Profile;
use crate::trace::mutant_named;

/// Runs the broker core in a simulated world with crashes, disk faults and clock faults, and checks its invariants.
///
/// Every seed stands for one run: clients, workers, a network, a disk and a clock, all simulated, around one real
/// broker core. The same seed gives the same run on every machine, in debug and release builds.
#[derive(Debug, Parser)]
#[command(name = "driftq-sim", version, max_term_width = 110, after_help = EXAMPLES)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  driftq-sim run                                        a thousand seeds on all cores
  driftq-sim run --for 2m --start 1000000               two minutes, from another seed
  driftq-sim run --profile effects                      workers that use the idempotency store
  driftq-sim replay 34                                  one seed, with its digest
  driftq-sim replay sim-failures/seed-34.jsonl          a trace, independent of the generator
  driftq-sim shrink 12 --mutant skip-token-check        a short trace that violates the same invariant
  driftq-sim explain 12 --mutant skip-token-check       when it became inevitable, and which actions it depends on
  driftq-sim view sim-failures/seed-34.jsonl            a run as a timeline, in one HTML file
  driftq-sim soak --for 8h                              new seeds all night; continues the next time
  driftq-sim run --mutant skip-token-check              a planted bug and its detection
  driftq-sim mutants                                    every planted bug against every invariant
  driftq-sim exhaust                                    all runs of a small world

Exit codes: 0 passed, 1 an invariant was violated (or a planted bug survived), 2 misuse, 130 interrupted by a signal
before anything was found.";

/// The commands; each is described at its arguments.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Run(Run),
    Replay(Replay),
    Shrink(Shrink),
    Explain(Explain),
    View(View),
    Soak(Soak),
    Mutants(Mutants),
    Exhaust(Exhaust),
}

/// Runs many seeds with all checks.
///
/// First the determinism of the first seed is checked: it is run twice, replayed once and compared by digest. The
/// command ends at the first violation, shrinks it, writes the shrunk trace to a file and prints the command that
/// replays it. The last line is PASSED or FAILED. Ctrl-C or SIGTERM ends it once the current seeds are done: the
/// summary so far is printed, the last line begins with INTERRUPTED and the exit code is 130, or 1 if a seed has
/// failed. A campaign of 2,000 seeds or more also fails if a coverage point was never hit. With --profile effects it
/// also prints how often effects were granted, run, replayed and skipped.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim run --seeds 5000
  driftq-sim run --for 2m --start 1000000 --jobs 1
  driftq-sim run --profile effects
  driftq-sim run --mutant highest-ack-watermark")]
pub(super) struct Run {
    /// Number of seeds [default: 1000]
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: Option<u64>,
    /// Duration instead, such as 500ms, 30s, 2m or 1h
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(super) time: Option<Duration>,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value = "0", value_parser = seed)]
    pub(super) start: u64,
    /// Workload profile
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(super) profile: Profile,
    /// Number of threads [default: one per core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
    /// End after this many failing seeds
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) failures: u64,
    /// Directory for the traces of failing seeds
    #[arg(long, value_name = "DIR", default_value = "sim-failures")]
    pub(super) out_dir: PathBuf,
}

/// Replays one seed or trace, and prints its digest.
///
/// A trace that names a planted bug is replayed with it, unless --mutant overrides it. The last line is the digest of
/// all outputs, the same in debug and release builds and on every machine. With --real the run is repeated on the
/// server's file storage in the place of the simulated disk, and fails if any output differs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim replay 34
  driftq-sim replay 34 --trace seed-34.jsonl
  driftq-sim replay seed-34.jsonl --stop-at 12
  driftq-sim replay seed-34.jsonl --real /tmp/seed-34
  driftq-sim replay sim/regressions/mutant-skip-token-check.jsonl --mutant none")]
pub(super) struct Replay {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// Execute only the first N actions
    #[arg(long, value_name = "N")]
    pub(super) stop_at: Option<usize>,
    /// Write the run to a file, as a trace; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Repeat the run on the server's file storage, in a new or empty directory, and compare
    #[arg(long, value_name = "DIR")]
    pub(super) real: Option<PathBuf>,
}

/// Shrinks a failing seed or trace.
///
/// Drops requests and faults, simplifies the remaining actions and then the limits of the world, as long as the same
/// invariant is violated. The result is a trace for sim/regressions, where a test replays it. Exits with 1 if an
/// invariant is violated, and with 0 if there was nothing to shrink.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim shrink 12 --mutant skip-token-check
  driftq-sim shrink 3 --mutant skip-token-check
  driftq-sim shrink sim-failures/seed-34.jsonl --out sim/regressions/what-was-wrong.jsonl")]
pub(super) struct Shrink {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// File for the shrunk trace [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// Explains when a violation became inevitable, and which actions it depends on.
///
/// After chosen actions of a failing seed or trace the world is cloned. Each clone continues with a mixture of the
/// remaining actions of the trace and new actions like them. The share of these futures that violate the same invariant
/// is drawn as a curve, followed by the action from which on all of them do, which may be long before the detection,
/// and the actions that the violation depends on. Exits with 1 if an invariant is violated, and with 0 if there is
/// nothing to explain.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim explain 12 --mutant skip-token-check
  driftq-sim explain 3 --mutant skip-token-check
  driftq-sim explain sim/regressions/mutant-segment-removed-early.jsonl --json explained.json")]
pub(super) struct Explain {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// Number of futures after every examined action
    #[arg(long, value_name = "N", default_value_t = FUTURES, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) futures: u64,
    /// Number of threads [default: one per core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// Also write the explanation to a file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Runs new seeds until it is stopped, and continues the next time.
///
/// The state is kept in a directory, with the shrunk traces of failing seeds: five per invariant; more are only
/// counted. Prints one line per minute. Ctrl-C or SIGTERM ends it once the current seeds are done; a killed process
/// repeats the seeds of its last minute and skips none. Exits with 0 if this invocation found nothing, and with 1
/// otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim soak
  driftq-sim soak --for 8h --dir /var/lib/driftq-soak
  driftq-sim soak --profile effects --dir sim-soak-effects
  driftq-sim soak --mutant skip-token-check --dir /tmp/see-it-work --for 10s")]
pub(super) struct Soak {
    /// Directory with the state and the traces
    #[arg(long, value_name = "DIR", default_value = "sim-soak")]
    pub(super) dir: PathBuf,
    /// Duration, such as 30s, 2m or 8h [default: until it is stopped]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(super) time: Option<Duration>,
    /// Interval between progress lines
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(super) every: Duration,
    /// The first seed of a new soak [default: 17592186044416, far from the seeds of other runs]
    #[arg(long, value_name = "SEED", value_parser = seed)]
    pub(super) start: Option<u64>,
    /// Workload profile [default: each profile in turn]
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) profile: Option<Profile>,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker, to see it detected; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
}

/// Writes the timeline of a seed or trace as a self-contained HTML file.
///
/// The timeline has tracks for producers, broker, disk and workers, leases as bars, faults as symbols, and for every
/// action the request, the replies and the state changes. A violation is marked. Arrow keys navigate, + and - zoom, ?
/// lists all keys. Exits with 0 whether or not an invariant is violated. Given the data folder of a stopped server,
/// shows its last 5,000 records.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim view sim/regressions/mutant-skip-token-check.jsonl
  driftq-sim view 34 --out seed-34.html
  driftq-sim view driftq-data
  driftq-sim view sim-failures/seed-34.jsonl --mutant none")]
pub(super) struct View {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// File for the page [default: the name of the trace with .html, in the current directory]
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Skip the explanation of a violation
    #[arg(long)]
    pub(super) no_explain: bool,
    #[command(flatten)]
    pub(super) records: RecordSelection,
}

/// Which records of a data folder's log to show.
#[derive(Debug, Args)]
pub(super) struct RecordSelection {
    /// Of a data folder, only records from this LSN on
    #[arg(long, value_name = "LSN")]
    pub(super) from: Option<u64>,
    /// Of a data folder, only records up to this LSN
    #[arg(long, value_name = "LSN")]
    pub(super) to: Option<u64>,
    /// Of a data folder, only records about this topic
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic, conflicts_with = "message")]
    pub(super) topic: Option<TopicName>,
    /// Of a data folder, only records about this message
    #[arg(long, value_name = "TOPIC/OFFSET")]
    pub(super) message: Option<MessageName>,
}

/// Plants every known bug, one at a time, and reports which invariants detect it.
///
/// From several starts, seeds are run until one fails with the bug and passes without it. Then the same without the
/// oracle, to see which invariants detect the bug by themselves; then one failing seed is shrunk. Exits with 1 if a bug
/// survived.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim mutants --out docs/simulation/kill-matrix.md
  driftq-sim mutants --only skip-token-check --only backoff-ignored
  driftq-sim mutants --starts 3 --survey 20 --no-shrink
  driftq-sim mutants --traces sim/regressions")]
pub(super) struct Mutants {
    /// Number of seeds to kill a bug, from every start
    #[arg(long, value_name = "N", default_value = "300", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: u64,
    /// Number of starts
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) starts: u64,
    /// Number of seeds run without the oracle
    #[arg(long, value_name = "N", default_value = "100")]
    pub(super) survey: u64,
    /// Only this bug; repeatable. An unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) only: Vec<Fault>,
    /// Document for the tables, between the lines <!-- kill matrix --> and <!-- /kill matrix -->
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    pub(super) out: Option<PathBuf>,
    /// Directory for a shrunk trace of every killed bug
    #[arg(long, value_name = "DIR")]
    pub(super) traces: Option<PathBuf>,
    /// Shrink no failing seed
    #[arg(long, conflicts_with = "traces")]
    pub(super) no_shrink: bool,
    /// Number of threads [default: one per core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
}

/// Explores all runs of a small world, with all checks.
///
/// A few messages, a few workers, a crash. From every state every transition that changes something is taken: a message
/// is sent or resent; a worker subscribes, unsubscribes, or acks, nacks, extends or releases any delivery it has read;
/// one I/O operation is performed; time advances to the next timeout; the timeout handler is called; the machine
/// crashes, at every byte of the unsynced data, and the broker is started. Equivalent states are explored once. A
/// violation is found by a shortest path, shrunk and written to a file, and the command that replays it is printed. The
/// last line is PASSED or FAILED.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim exhaust
  driftq-sim exhaust --depth 7 --jobs 1
  driftq-sim exhaust --messages 1 --consumers 1 --crashes 2
  driftq-sim exhaust --messages 1 --consumers 1 --crashes 0 --batches --depth 14
  driftq-sim exhaust --mutant torn-tail-taken-for-rot")]
pub(super) struct Exhaust {
    /// Number of transitions from the initial state; the default takes less than a minute on two cores, each further
    /// one three times as long
    #[arg(long, value_name = "N", default_value = "9")]
    pub(super) depth: u32,
    /// Number of messages
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(super) messages: u8,
    /// Number of workers
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(super) consumers: u8,
    /// Number of crashes
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) crashes: u8,
    /// Write each batch of the log by one transition, send each message once and let no worker leave: a lease can then
    /// be extended and a message fail twice within the depth
    #[arg(long)]
    pub(super) batches: bool,
    /// Number of threads [default: one per core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
    /// File for the trace of a violation [default: in the directory sim-failures]
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
}

/// The run that a command examines.
#[derive(Debug, Args)]
pub(super) struct Subject {
    /// A seed, or a file with a trace
    #[arg(value_name = "SEED|TRACE")]
    pub(super) source: String,
    /// Workload profile of the seed
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(super) profile: Profile,
    /// A bug to plant in the broker, or "none"; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_choice)]
    pub(super) mutant: Option<MutantChoice>,
}

/// A planted bug, or explicitly none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MutantChoice(pub(super) Option<Fault>);

fn mutant_choice(text: &str) -> Result<MutantChoice, String> {
    match text {
        "none" => Ok(MutantChoice(None)),
        name => mutant_named(name).map(|fault| MutantChoice(Some(fault))).map_err(|error| format!("{error}; or none")),
    }
}

/// Parses a seed, decimal or hexadecimal.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("\"{text}\" is not a seed; seeds are numbers from 0 to {}", u64::MAX))
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let ms = digits.parse::<u64>().ok().zip(unit_ms).and_then(|(count, unit_ms)| count.checked_mul(unit_ms));
    let time = ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    time.ok_or_else(|| format!("\"{text}\" is not a time; write 500ms, 30s, 2m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_and_seeds_are_parsed_and_invalid_ones_refused() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "2", "m", "0s", "-1s", "2d", "1.5h", "99999999999999999999s"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(seed("0xff"), Ok(255));
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "x", "0x", "18446744073709551616"] {
            assert!(seed(text).is_err(), "{text}");
        }
    }
}
