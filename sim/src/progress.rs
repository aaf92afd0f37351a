//! Progress of a long command, on the error stream: a bar on a terminal, a line every ten seconds elsewhere. Standard
//! output is the same on both.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The interval between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of a command.
#[derive(Debug)]
pub enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere.
    Lines {
        /// The total, if known.
        total: Option<u64>,
        /// When the last line was printed.
        printed_at: Instant,
        /// What is counted.
        what: &'static str,
    },
}

impl Progress {
    /// Starts; `total` is the expected total, if known.
    #[must_use]
    pub fn begin(what: &'static str, total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { total, printed_at: Instant::now(), what };
        }
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{wide_bar} {human_pos}/{human_len} {msg}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {human_pos} {msg}, {elapsed}"),
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::Bar(bar.with_style(style))
    }

    /// Reports `done` items; `more` supplies further details.
    pub fn at(&mut self, done: u64, more: impl FnOnce() -> String) {
        match self {
            Self::Bar(bar) => {
                bar.set_message(more());
                bar.set_position(done);
            }
            Self::Lines { total, printed_at, what } => {
                if printed_at.elapsed() >= LINE_EVERY {
                    *printed_at = Instant::now();
                    let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
                    eprintln!("{done}{of} {what}, {}", more());
                }
            }
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
