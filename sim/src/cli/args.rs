//! What can be asked on the command line, and how it is explained.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use driftq_core::faults::Fault;
use driftq_core::types::TopicName;
use driftq_inspect::MessageName;

use crate::explain::FUTURES;
use crate::swarm::Profile;
use crate::trace::mutant_named;

/// Crashes a broker, lies to it about its disk and its clock, and checks what it promised.
///
/// Every seed is a life of a simulated world: clients, workers, a network, a disk, a clock, and one real broker core. The
/// same seed is always the same life, on every machine, in debug and release builds.
#[derive(Debug, Parser)]
#[command(name = "driftq-sim", version, max_term_width = 110, after_help = EXAMPLES)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  driftq-sim run                                        a thousand seeds on all cores
  driftq-sim run --for 2m --start 1000000               two minutes, from another seed on
  driftq-sim run --profile effects                      workers that run effects, above all
  driftq-sim replay 34                                  one seed, with its digest
  driftq-sim replay sim-failures/seed-34.jsonl          a trace, with no generator
  driftq-sim shrink 34 --out sim/regressions/x.jsonl    a short trace that breaks the same promise
  driftq-sim explain 34                                 when it became inevitable, and which steps it took
  driftq-sim view sim-failures/seed-34.jsonl            a life as a picture, in one HTML file
  driftq-sim soak --for 8h                              new seeds all night; goes on where it was the next
  driftq-sim run --mutant skip-token-check              see a planted bug caught
  driftq-sim mutants --out SIMULATION.md                every planted bug against every invariant
  driftq-sim exhaust                                    a small world, every way it can go

Exit codes: 0 passed, 1 a promise was broken (or a planted bug survived), 2 misuse.";

/// What can be asked; what each does is told at its arguments.
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

/// Lives many seeds with all checks on.
///
/// The first seed is lived twice and compared by digest before anything else. The run ends at the first broken promise,
/// shrinks it, writes the short trace to a file and prints the command that replays it. The last line is PASSED or FAILED. A
/// run of 2,000 seeds or more also fails if one of the rare situations in its table was never met. With --profile effects it also
/// tells how often effects were granted, run, replayed and skipped.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim run --seeds 5000
  driftq-sim run --for 2m --start 1000000 --jobs 1
  driftq-sim run --profile effects
  driftq-sim run --mutant highest-ack-watermark")]
pub(super) struct Run {
    /// How many seeds [default: 1000]
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: Option<u64>,
    /// For how long instead, such as 500ms, 30s, 2m or 1h
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(super) time: Option<Duration>,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value = "0", value_parser = seed)]
    pub(super) start: u64,
    /// What is in fashion in every world
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(super) profile: Profile,
    /// On how many threads [default: one for every core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
    /// End after so many failing seeds
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) failures: u64,
    /// Where the traces of failing seeds go
    #[arg(long, value_name = "DIR", default_value = "sim-failures")]
    pub(super) out_dir: PathBuf,
}

/// Lives one seed or trace, and prints its digest.
///
/// A trace that names a planted bug is replayed with it, unless --mutant says otherwise. The last line is the digest of
/// everything that came out of the world, the same in debug and release builds and on every machine. With --real it is lived
/// a second time with the server's files in the place of the simulated disk, and fails if anything comes out otherwise.
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
    /// Live only the first N steps
    #[arg(long, value_name = "N")]
    pub(super) stop_at: Option<usize>,
    /// Write what was lived to a file, as a trace; - for the terminal
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Live it once more over the server's own files, in a new or empty folder, and compare
    #[arg(long, value_name = "DIR")]
    pub(super) real: Option<PathBuf>,
}

/// Makes a failing seed or trace as short as it can be.
///
/// Drops commands and faults alike, makes the steps that are left simpler, and then the world they happen in, as long as the
/// same sentence is still broken. The result is a trace that is ready to be kept in sim/regressions, where a test runs it.
/// Exits with 1 if a promise is broken, and with 0 if there was nothing to shrink.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim shrink 34
  driftq-sim shrink 3 --mutant skip-token-check
  driftq-sim shrink sim-failures/seed-34.jsonl --out sim/regressions/what-was-wrong.jsonl")]
pub(super) struct Shrink {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// Where to write the short trace; else it is printed
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// Tells when a broken promise became inevitable, and which steps it took.
///
/// After chosen steps of a failing seed or trace the world is cloned and left to chance: each clone goes on with a mixture of what
/// the trace still had in store and of steps like those of the trace, drawn anew. The share of these futures that break the same
/// sentence is drawn as a curve. Below it stand the step from which on all of them do, which may be long before the one that was
/// caught, and the few steps it depends on. Exits with 1 if a promise is broken, and with 0 if there is nothing to explain.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim explain 34
  driftq-sim explain 3 --mutant skip-token-check
  driftq-sim explain sim/regressions/mutant-segment-removed-early.jsonl --json explained.json")]
pub(super) struct Explain {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// How many futures are drawn after every step that is looked at
    #[arg(long, value_name = "N", default_value_t = FUTURES, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) futures: u64,
    /// On how many threads [default: one for every core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// Write all of it to a file as well, as JSON; - for the terminal
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Lives new seeds until it is stopped, and goes on where it was the next time.
///
/// How far it is stands in a folder, with the traces of the seeds that broke a promise, shrunk beside the lives that go on: five of
/// every sentence; more of the same are only counted. One line a minute. Ctrl-C or SIGTERM ends it when what is under way is
/// done; a process that is killed lives the seeds of its last minute again and skips none. Exits with 0 if this run found nothing,
/// and with 1 if it did.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim soak
  driftq-sim soak --for 8h --dir /var/lib/driftq-soak
  driftq-sim soak --profile effects --dir sim-soak-effects
  driftq-sim soak --mutant skip-token-check --dir /tmp/see-it-work --for 10s")]
pub(super) struct Soak {
    /// The folder with its state and what it found
    #[arg(long, value_name = "DIR", default_value = "sim-soak")]
    pub(super) dir: PathBuf,
    /// For how long, such as 30s, 2m or 8h; else until it is stopped
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(super) time: Option<Duration>,
    /// How often it says how far it is
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(super) every: Duration,
    /// The first seed of a new soak [default: 17592186044416, far from the seeds of other runs]
    #[arg(long, value_name = "SEED", value_parser = seed)]
    pub(super) start: Option<u64>,
    /// What is in fashion in every world [default: each profile in turn]
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) profile: Option<Profile>,
    /// On how many threads [default: one for every core]
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker, to see it found; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
}

/// Shows a seed or a trace as a picture: one HTML file that needs nothing else.
///
/// Lanes for producers, broker, disk and workers, leases as spans, faults as signs, and for every step what was asked, what was
/// answered and what it changed. A broken promise is pinned where it broke. Arrow keys step, + and - zoom, ? tells the rest.
/// Exits with 0 whether or not a promise is broken. The data folder of a broker that has stopped is shown as well: at most 5,000
/// records of its log, the last ones unless --from is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim view sim/regressions/mutant-skip-token-check.jsonl
  driftq-sim view 34 --out seed-34.html
  driftq-sim view driftq-data
  driftq-sim view driftq-data --message orders/17
  driftq-sim view sim-failures/seed-34.jsonl --mutant none")]
pub(super) struct View {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// Where to write the page [default: the trace's name with .html, in the current folder]
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Do not look for when the broken promise became inevitable
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
    #[arg(long, value_name = "TOPIC", conflicts_with = "message")]
    pub(super) topic: Option<TopicName>,
    /// Of a data folder, only records about this message
    #[arg(long, value_name = "TOPIC/OFFSET")]
    pub(super) message: Option<MessageName>,
}

/// Plants every known bug, one at a time, and tells who catches it.
///
/// From several starts, seeds are lived until one breaks a promise with the bug and none without it. Then the same without
/// the naive model, to see which invariants kill it by themselves; then one killing seed is shrunk. Exits with 1 if a bug
/// survived.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim mutants --out SIMULATION.md
  driftq-sim mutants --only skip-token-check --only backoff-ignored
  driftq-sim mutants --starts 3 --survey 20
  driftq-sim mutants --traces sim/regressions")]
pub(super) struct Mutants {
    /// How many seeds there are to kill a bug, from every start
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: u64,
    /// From how many starts
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) starts: u64,
    /// How many seeds are lived without the naive model
    #[arg(long, value_name = "N", default_value = "100")]
    pub(super) survey: u64,
    /// Only this bug; may be given more than once. An unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) only: Vec<Fault>,
    /// A document to write the tables into, between the lines <!-- kill matrix --> and <!-- /kill matrix -->
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    pub(super) out: Option<PathBuf>,
    /// Where to write a short trace for every killed bug
    #[arg(long, value_name = "DIR")]
    pub(super) traces: Option<PathBuf>,
    /// On how many threads [default: one for every core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
}

/// Goes every way a small world can go, with all checks on.
///
/// A few messages, a few workers, a crash. From every state every move that changes something is made: a message is sent, or once
/// more; a worker connects, acks, fails, extends or gives back, by any delivery it has read, or goes; one piece of I/O
/// is done; time passes to the next timer; the broker is woken; the power goes, at every byte of what was not synced, and
/// the broker is started. Where two ways meet, one is gone on with. What goes wrong is found by a shortest way, shrunk, written to a
/// file, and the command that replays it is printed. The last line is PASSED or FAILED.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-sim exhaust
  driftq-sim exhaust --depth 7 --jobs 1
  driftq-sim exhaust --messages 1 --consumers 1 --crashes 2
  driftq-sim exhaust --mutant torn-tail-taken-for-rot")]
pub(super) struct Exhaust {
    /// How many moves away from the beginning; the default takes less than a minute on two cores, every further one three times as long
    #[arg(long, value_name = "N", default_value = "9")]
    pub(super) depth: u32,
    /// How many messages
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(super) messages: u8,
    /// How many workers
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(super) consumers: u8,
    /// How many crashes
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) crashes: u8,
    /// On how many threads [default: one for every core]; the results do not depend on it
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// A bug to plant in the broker; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = mutant_named)]
    pub(super) mutant: Option<Fault>,
    /// Where the trace of what went wrong goes [default: in the folder sim-failures]
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
}

/// The life that a command is about.
#[derive(Debug, Args)]
pub(super) struct Subject {
    /// A seed, or a file with a trace
    #[arg(value_name = "SEED|TRACE")]
    pub(super) source: String,
    /// The profile of the run that the seed is from
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(super) profile: Profile,
    /// A bug to plant in the broker, or "none"; an unknown name lists them
    #[arg(long, value_name = "NAME", value_parser = choice)]
    pub(super) mutant: Option<Choice>,
}

/// A planted bug that was named, or that there be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice(pub(super) Option<Fault>);

fn choice(text: &str) -> Result<Choice, String> {
    match text {
        "none" => Ok(Choice(None)),
        name => mutant_named(name).map(|fault| Choice(Some(fault))).map_err(|said| format!("{said}; or none")),
    }
}

/// A seed, as people write it.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| format!("\"{text}\" is not a seed; seeds are numbers from 0 to {}", u64::MAX))
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
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_and_seeds_are_read_and_nonsense_is_refused() {
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
