//! Markdown tables of the budget: kinds as columns, costs as rows, beside those of an earlier run.

use std::collections::BTreeMap;
use std::path::Path;

use super::kind::Kind;
use super::profile::{Profile, Row};
use crate::load::error::Result;
use crate::numbers::grouped;

/// Between the old and the new figure of a cell.
const ARROW: &str = " → ";
/// What has no figure.
const NONE: &str = "–";

/// How figures are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Whole numbers.
    Count,
    /// Two digits behind the point.
    Hundredths,
}

impl Unit {
    pub(super) fn text(self, figure: f64) -> String {
        let sign = if figure < 0.0 { "-" } else { "" };
        match self {
            Self::Count if figure.abs().round() >= 1.0 => format!("{sign}{}", grouped(figure.abs().round() as u64)),
            Self::Count => "0".to_owned(),
            // Of a figure that is rounded to nothing the sign says nothing.
            Self::Hundredths if figure.abs() < 0.005 => "0.00".to_owned(),
            Self::Hundredths => format!("{figure:.2}"),
        }
    }
}

/// A table as it was printed: cells by row and column.
type Cells = BTreeMap<(String, String), String>;

/// The tables of a page, by the heading of their first column.
#[derive(Debug, Default)]
pub(super) struct OldTables(BTreeMap<String, Cells>);

impl OldTables {
    /// Reads a page.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let page = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self::parse(&page))
    }

    /// Parses a page. Of a cell with two figures the old one is kept, and of two tables with one heading the first.
    fn parse(page: &str) -> Self {
        let mut tables = Self::default();
        let mut columns: Option<Vec<String>> = None;
        for line in page.lines() {
            let Some(inner) = line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
                columns = None;
                continue;
            };
            let cells: Vec<String> = inner.split('|').map(|cell| cell.trim().to_owned()).collect();
            match &columns {
                None => {
                    let is_new = !tables.0.contains_key(&cells[0]);
                    tables.0.entry(cells[0].clone()).or_default();
                    columns = is_new.then_some(cells).or_else(|| Some(Vec::new()));
                }
                Some(columns) => {
                    let Some(title) = columns.first() else { continue };
                    let table = tables.0.entry(title.clone()).or_default();
                    for (column, cell) in columns.iter().zip(&cells).skip(1) {
                        let old = cell.split_once(ARROW).map_or(cell.as_str(), |(old, _)| old);
                        table.insert((cells[0].clone(), column.clone()), old.to_owned());
                    }
                }
            }
        }
        tables
    }

    fn of(&self, title: &str) -> Option<&Cells> {
        self.0.get(title)
    }
}

/// The table of what kinds cost. Rows in which no figure differs from 0 are left out.
pub(super) fn markdown(title: &str, costs: &[(Kind, Profile)], unit: Unit, old: Option<&OldTables>) -> String {
    let old = old.and_then(|old| old.of(title));
    let mut rows: Vec<&Row> = costs.iter().flat_map(|(_, profile)| profile.rows()).collect();
    rows.sort();
    rows.dedup();
    let titles: Vec<&str> = costs.iter().map(|(kind, _)| kind.title()).collect();
    let mut table = format!("| {title} | {} |\n|---|{}\n", titles.join(" | "), "--:|".repeat(titles.len()));
    for row in rows {
        let is_zero = |profile: &Profile| unit.text(profile.get(row)) == unit.text(0.0);
        let label = &row.1;
        let was_there = old.is_some_and(|old| old.keys().any(|(of, _)| of == label));
        if costs.iter().all(|(_, profile)| is_zero(profile)) && !was_there {
            continue;
        }
        let cells = costs.iter().map(|(kind, profile)| {
            let new = unit.text(profile.get(row));
            let before = old.and_then(|old| old.get(&(label.clone(), kind.title().to_owned())));
            match before {
                Some(before) => format!("{before}{ARROW}{new}"),
                None if old.is_some() => format!("{NONE}{ARROW}{new}"),
                None => new,
            }
        });
        table.push_str(&format!("| {label} | {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(rows: &[(u16, &str, f64)]) -> Profile {
        let mut profile = Profile::default();
        rows.iter().for_each(|(position, label, cost)| profile.add(*position, label, *cost));
        profile
    }

    fn costs() -> Vec<(Kind, Profile)> {
        vec![
            (Kind::Produce, profile(&[(0, "JSON", 1234.4), (1, "core", 0.2), (9, "all", 1234.6)])),
            (Kind::Ack, profile(&[(0, "JSON", -20.0), (9, "all", -20.0)])),
        ]
    }

    #[test]
    fn rows_stand_in_their_order_and_empty_ones_are_left_out() {
        assert_eq!(
            markdown("per message", &costs(), Unit::Count, None),
            "| per message | produce | ack |\n|---|--:|--:|\n| JSON | 1,234 | -20 |\n| all | 1,235 | -20 |\n"
        );
        let small = vec![(Kind::Produce, profile(&[(0, "a", -0.001), (1, "b", -0.126)]))];
        assert!(markdown("t", &small, Unit::Hundredths, None).ends_with("|--:|\n| b | -0.13 |\n"));
    }

    #[test]
    fn old_figures_stand_in_front_of_the_new_ones() {
        let page = "text\n\n| per message | produce | delivery |\n|---|--:|--:|\n| JSON | 2,000 → 1,500 | 7 |\n\
            | core | 5 | 6 |\n\nmore\n\n| other | produce |\n|---|---|\n| JSON | 1 |\n\n\
            | per message | produce |\n|---|---|\n| JSON | 3 |\n";
        assert_eq!(
            markdown("per message", &costs(), Unit::Count, Some(&OldTables::parse(page))),
            "| per message | produce | ack |\n|---|--:|--:|\n| JSON | 2,000 → 1,234 | – → -20 |\n\
             | core | 5 → 0 | – → 0 |\n| all | – → 1,235 | – → -20 |\n"
        );
    }
}
