//! `driftq-history`: checks recorded histories.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use driftq_history::{CompareError, Entry, ReadError, Report};
use indicatif::{ProgressBar, ProgressStyle};

/// Checks what clients of a DriftQ broker recorded.
#[derive(Debug, Parser)]
#[command(
    name = "driftq-history",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  driftq-history check history.jsonl
  driftq-history check history.jsonl --data-dir ./driftq-data

Exit codes: 0 passed, 1 a violation was found, 2 misuse."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(Check),
}

/// Checks a history: what clients sent to a broker and what they received.
///
/// A history is a file with one JSON object per line, written by a test driver next to the broker; docs/histories.md
/// describes the format. The check uses only what the clients saw. With --data-dir it also replays the log of the
/// broker, which must have stopped, and compares the two. The report lists what was checked and one sentence per
/// violation; the last line is PASSED or FAILED.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  driftq-history check history.jsonl
  driftq-history check history.jsonl --data-dir ./driftq-data

Exit codes: 0 passed, 1 a violation was found, 2 the history or the log cannot be read.")]
struct Check {
    /// The history file; with several, each is checked and reported on its own
    #[arg(value_name = "HISTORY", required = true)]
    histories: Vec<PathBuf>,
    /// The data folder of the broker, whose log is replayed and compared; for a single history
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Why a command could not run.
#[derive(Debug, thiserror::Error)]
enum Misuse {
    #[error("{}: {cause}", path.display())]
    History { path: PathBuf, cause: ReadError },
    #[error("{} cannot be compared with the history: {cause}", path.display())]
    Log { path: PathBuf, cause: CompareError },
    #[error("--data-dir belongs to one history, but {0} were given")]
    DataDirOfMany(usize),
}

fn main() -> ExitCode {
    let Cli { command: Command::Check(args) } = Cli::parse();
    match check(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(misuse) => {
            eprintln!("error: {misuse}");
            ExitCode::from(2)
        }
    }
}

/// Checks every history and prints its report. Returns whether all passed.
fn check(args: &Check) -> Result<bool, Misuse> {
    let Check { histories, data_dir } = args;
    if data_dir.is_some() && histories.len() > 1 {
        return Err(Misuse::DataDirOfMany(histories.len()));
    }
    let mut passed = true;
    for (index, path) in histories.iter().enumerate() {
        let report = report(path, data_dir.as_deref())?;
        let heading = match histories.len() {
            1 => String::new(),
            _ => format!("{}{}\n", if index > 0 { "\n" } else { "" }, path.display()),
        };
        let verdict = if report.passed() { "PASSED" } else { "FAILED" };
        // A closed pipe is no failure of the check.
        let _ = writeln!(io::stdout(), "{heading}{}\n\n{verdict}", report.to_string().trim_end());
        passed &= report.passed();
    }
    Ok(passed)
}

fn report(path: &Path, data_dir: Option<&Path>) -> Result<Report, Misuse> {
    let entries = read(path).map_err(|cause| Misuse::History { path: path.to_owned(), cause })?;
    let report = driftq_history::check(&entries);
    let Some(folder) = data_dir else { return Ok(report) };
    let compared = driftq_history::compare(&entries, folder);
    let compared = compared.map_err(|cause| Misuse::Log { path: folder.to_owned(), cause })?;
    Ok(report.merge(compared))
}

/// Files from this size on are read with a progress display.
const PROGRESS_BYTES_MIN: u64 = 64 << 20;
/// How often a progress line is printed where standard error is not a terminal.
const PROGRESS_LINE_EVERY: Duration = Duration::from_secs(10);

fn read(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes < PROGRESS_BYTES_MIN {
        return driftq_history::read(path);
    }
    let mut input = ProgressReader::new(file, bytes);
    let entries = driftq_history::read_from(BufReader::with_capacity(1 << 20, &mut input));
    input.bar.finish_and_clear();
    entries
}

/// A file that reports on standard error how much of it has been read: a bar on a terminal, a line now and then
/// elsewhere.
struct ProgressReader {
    file: File,
    bytes: u64,
    bytes_read: u64,
    bar: ProgressBar,
    last_line: Instant,
}

impl ProgressReader {
    fn new(file: File, bytes: u64) -> Self {
        let bar = match io::stderr().is_terminal() {
            true => ProgressBar::new(bytes),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} read, {eta} left");
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { file, bytes, bytes_read: 0, bar, last_line: Instant::now() }
    }
}

impl Read for ProgressReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes_read += count as u64;
        self.bar.set_position(self.bytes_read);
        if self.bar.is_hidden() && self.last_line.elapsed() >= PROGRESS_LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{} of {} MiB read", self.bytes_read >> 20, self.bytes >> 20);
        }
        Ok(count)
    }
}
