//! A bar on standard error for a person who watches; nothing where nobody does.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far something is, until it is dropped.
#[derive(Debug)]
pub(crate) struct Show(ProgressBar);

impl Show {
    /// `steps` is 0 where nobody knows how many there will be.
    pub(crate) fn of(name: &str, steps: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match steps {
            0 => (ProgressBar::new_spinner(), "{spinner} {msg} {pos} ({elapsed})"),
            _ => (ProgressBar::new(steps), "{msg} [{bar:40}] {pos}/{len} ({elapsed})"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self(bar)
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
