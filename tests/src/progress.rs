//! Progress on standard error while a program runs, shown only on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Slow, since it shares the cores with what is measured.
const TICK: Duration = Duration::from_millis(250);

/// A spinner or a bar, removed when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A spinner with a message and a count.
    #[must_use]
    pub fn spinner(message: &str) -> Self {
        Self::new(ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})", message)
    }

    /// A bar over `total` steps; a spinner that counts if the total is 0, for unknown.
    #[must_use]
    pub fn bar(message: &str, total: u64) -> Self {
        match total {
            0 => Self::new(ProgressBar::new_spinner(), "{spinner} {msg} {pos} ({elapsed})", message),
            _ => Self::new(ProgressBar::new(total), "{bar:40} {pos}/{len} ({elapsed}) {msg}", message),
        }
    }

    fn new(bar: ProgressBar, template: &str, message: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message.to_owned());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Changes the message.
    pub fn message(&self, message: &str) {
        self.0.set_message(message.to_owned());
    }

    /// Advances by one step.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
