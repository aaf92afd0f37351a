//! A small aligned table: a header, rows, and a tone per cell.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::text::{visible, width};

/// Spaces between two columns.
const GAP: usize = 2;

/// What a cell says about the health of what it shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Faint,
}

impl Tone {
    /// The style of the tone.
    pub(crate) fn style(self) -> Style {
        let color = |color: AnsiColor| color.on_default();
        match self {
            Self::Plain => Style::new(),
            Self::Good => color(AnsiColor::Green),
            Self::Warn => color(AnsiColor::Yellow),
            Self::Bad => color(AnsiColor::Red).bold(),
            Self::Faint => Style::new().dimmed(),
        }
    }
}

/// On which side a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// One cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: visible(&text.into()), tone }
    }

    /// A number that deserves attention unless it is zero.
    pub(crate) fn attention(number: u64) -> Self {
        Self::toned(crate::units::count(number), if number == 0 { Tone::Plain } else { Tone::Bad })
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A table. A column whose title begins with `>` is aligned to the right.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    titles: Vec<&'static str>,
    sides: Vec<Side>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        let sides = titles.iter().map(|title| if title.starts_with('>') { Side::Right } else { Side::Left }).collect();
        Self { titles: titles.iter().map(|title| title.trim_start_matches('>')).collect(), sides, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.titles.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, its lines ended by line feeds. Without color there are no escape sequences in it.
    pub(crate) fn render(&self, color: bool) -> String {
        let mut widths: Vec<usize> = self.titles.iter().map(|title| width(title)).collect();
        for row in &self.rows {
            for (max, cell) in widths.iter_mut().zip(row) {
                *max = (*max).max(width(&cell.text));
            }
        }
        let mut out = String::new();
        let titles: Vec<Cell> = self.titles.iter().map(|title| Cell::toned(*title, Tone::Faint)).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            self.line(&mut out, row, &widths, color);
        }
        out
    }

    fn line(&self, out: &mut String, row: &[Cell], widths: &[usize], color: bool) {
        let mut pending = 0;
        for ((cell, side), max) in row.iter().zip(&self.sides).zip(widths) {
            let fill = max - width(&cell.text);
            let before = if *side == Side::Right { fill } else { 0 };
            // Spaces are written only in front of text: no line ends with one.
            if !cell.text.is_empty() {
                out.extend(std::iter::repeat_n(' ', pending + before));
                let style = if color { cell.tone.style() } else { Style::new() };
                // Writing to a String cannot fail.
                let _ = write!(out, "{style}{}{style:#}", cell.text);
                pending = GAP + fill - before;
            } else {
                pending += GAP + max;
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", ">LAG", "STATE"]);
        table.row(vec!["a".into(), "1,000".into(), "".into()]);
        table.row(vec!["long name".into(), Cell::attention(3), "paused".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_with_a_space() {
        let expected = "NAME         LAG  STATE\na          1,000\nlong name      3  paused\n";
        assert_eq!(table().render(false), expected);
    }

    #[test]
    fn color_changes_no_visible_character() {
        let text = table().render(true);
        assert!(text.contains("\u{1b}[1m\u{1b}[31m3\u{1b}[0m"), "{text:?}");
        let plain: String = text.split('\u{1b}').enumerate().fold(String::new(), |plain, (index, part)| {
            plain + if index == 0 { part } else { part.split_once('m').map_or(part, |(_, rest)| rest) }
        });
        assert_eq!(plain, table().render(false));
    }
}
