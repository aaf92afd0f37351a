//! How far a long command is: a bar on a terminal, a line now and then elsewhere. All of it goes to the error stream, so
//! that what a command prints is the same on both.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Something that is under way.
#[derive(Debug)]
pub enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere.
    Lines {
        /// Of how many; none if nobody knows.
        total: Option<u64>,
        /// When the last line was printed.
        told: Instant,
        /// What is counted.
        what: &'static str,
    },
}

impl Progress {
    /// Begins. `total` is how many there will be, if that is known.
    #[must_use]
    pub fn begin(what: &'static str, total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { total, told: Instant::now(), what };
        }
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{wide_bar} {human_pos}/{human_len} {msg}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {human_pos} {msg}, {elapsed}"),
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::Bar(bar.with_style(style))
    }

    /// So many are done; `more` says what else there is to tell.
    pub fn at(&mut self, done: u64, more: impl FnOnce() -> String) {
        match self {
            Self::Bar(bar) => {
                bar.set_message(more());
                bar.set_position(done);
            }
            Self::Lines { total, told, what } => {
                if told.elapsed() >= LINE_EVERY {
                    *told = Instant::now();
                    let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
                    eprintln!("{done}{of} {what}, {}", more());
                }
            }
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
