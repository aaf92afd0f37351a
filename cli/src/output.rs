//! How results are printed: tables for people at a terminal, JSON for programs.

use std::io::{self, IsTerminal as _, Write as _};

use driftq_client::Message;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::table::{Table, Tone};
use crate::text::{cut, payload, visible};

/// What results look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Aligned columns.
    Table,
    /// JSON: one document, or one object per line for streams.
    Json,
}

/// The standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    color: bool,
    /// Columns of the terminal; none elsewhere.
    columns: Option<usize>,
}

impl Output {
    /// The format asked for, or that of the place where the output goes. Colors only on a terminal, and not with
    /// `NO_COLOR`.
    pub(crate) fn new(asked: Option<Format>) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let format = asked.unwrap_or(if is_terminal { Format::Table } else { Format::Json });
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let size = if is_terminal { ratatui::crossterm::terminal::size().ok() } else { None };
        let columns = size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0);
        Self { format, color: is_terminal && !no_color, columns }
    }

    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Prints a result: as JSON, or as what `text` makes of it.
    pub(crate) fn show<T: Serialize + ?Sized>(
        self,
        value: &T,
        text: impl FnOnce(Self) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(value),
            Format::Table => print(&text(self)),
        }
    }

    /// Prints a table, or the same as JSON.
    pub(crate) fn table<T: Serialize + ?Sized>(self, value: &T, table: &Table, none: &str) -> Result<(), Failure> {
        self.show(value, |output| if table.is_empty() { format!("{none}\n") } else { output.render(table) })
    }

    /// Prints one line of JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Failure> {
        let mut line = serde_json::to_string(value)
            .map_err(|error| Failure::new(Exit::Refused, format!("the result is no JSON: {error}")))?;
        line.push('\n');
        print(&line)
    }

    /// Columns of the terminal; without one there is no limit.
    pub(crate) fn columns(self) -> usize {
        self.columns.unwrap_or(usize::MAX)
    }

    pub(crate) fn render(self, table: &Table) -> String {
        table.render(self.color)
    }

    /// Text in the style of a tone.
    pub(crate) fn toned(self, text: &str, tone: Tone) -> String {
        let style = if self.color { tone.style() } else { anstyle::Style::new() };
        format!("{style}{text}{style:#}")
    }

    /// Prints the message of a stream: one line.
    pub(crate) fn message<T: Serialize>(self, item: &T, message: &Message) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(item),
            Format::Table => print(&self.message_line(message)),
        }
    }

    fn message_line(self, message: &Message) -> String {
        let at = format!("{:>3} {:>9}", message.partition, message.offset);
        let attempt = if message.attempts > 1 { format!(" #{}", message.attempts) } else { String::new() };
        let key = if message.key.is_empty() { String::new() } else { format!("  {}", visible(&message.key)) };
        let value = if message.lost { "(the payload is lost)".to_owned() } else { payload(&message.value) };
        let used = crate::text::width(&at) + crate::text::width(&attempt) + crate::text::width(&key) + 2;
        // What does not fit is cut, except where that would leave next to nothing.
        let room = self.columns.map_or(usize::MAX, |columns| columns.saturating_sub(used).max(20));
        let (at, attempt, key) =
            (self.toned(&at, Tone::Faint), self.toned(&attempt, Tone::Warn), self.toned(&key, Tone::Good));
        format!("{at}{attempt}{key}  {}\n", cut(&value, room))
    }
}

/// Writes to standard output at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A remark for people, which is no result: on standard error.
pub(crate) fn remark(text: &str) {
    // A remark that cannot be shown is lost.
    let _ = writeln!(io::stderr(), "driftq: {}", visible(text));
}

/// Whether a question can be asked and answered.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks before something is lost. Where there is no terminal, `--yes` is required.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !can_ask() {
        return Err(Failure::usage(format!("{question} No terminal to ask on")).advise("give --yes to do it"));
    }
    let mut err = io::stderr();
    write!(err, "{} [y/N] ", visible(question))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::usage("not done: the answer was not `y`"))
}
