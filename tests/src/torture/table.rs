//! The table of results.

use std::fmt::Write;

use super::verdict::FaultSummary;
use crate::numbers::grouped;

const HEAD: [&str; 11] =
    ["fault", "runs", "calls", "acked", "deliveries", "lost", "resurrected", "stale acks", "repeated", "other", "time"];

/// All faults as a Markdown table with aligned columns; below it, what was skipped and why.
#[must_use]
pub fn table(rows: &[FaultSummary]) -> String {
    let cells: Vec<[String; 11]> = rows.iter().map(cells).collect();
    let mut width = HEAD.map(|name| name.chars().count());
    for row in &cells {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |row: &[String; 11]| {
        for (column, (cell, width)) in row.iter().zip(width).enumerate() {
            // Text to the left, figures to the right. Writing to a string cannot fail.
            let _ = if column == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text += "|\n";
    };
    line(&HEAD.map(str::to_owned));
    line(&std::array::from_fn(|column| "-".repeat(width[column])));
    cells.iter().for_each(&mut line);
    for row in rows {
        if let Some(reason) = &row.skipped {
            let _ = writeln!(text, "skipped: {}, because {reason}", row.fault);
        }
        if let Some(detected) = row.detected {
            let _ = writeln!(text, "{}: detected in {detected} of {} runs; 9 of 10 are required", row.fault, row.runs);
        }
    }
    text
}

fn cells(row: &FaultSummary) -> [String; 11] {
    let fault = row.fault.clone();
    if row.skipped.is_some() {
        let mut cells: [String; 11] = std::array::from_fn(|_| "–".to_owned());
        cells[0] = fault;
        cells[1] = "skipped".to_owned();
        return cells;
    }
    let sum = &row.sum;
    let figures = [
        row.runs,
        sum.counts.calls,
        sum.counts.acked,
        sum.counts.deliveries,
        sum.lost,
        sum.resurrected,
        sum.stale_acks,
        sum.repeated_attempts,
        sum.other,
    ];
    let mut cells: [String; 11] = std::array::from_fn(|_| fault.clone());
    for (cell, figure) in cells[1..10].iter_mut().zip(figures) {
        *cell = grouped(figure);
    }
    cells[10] = format!("{:.1} s", row.time.as_secs_f64());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::verdict::Verdict;

    #[test]
    fn table_aligns_columns_and_lists_skipped_faults() {
        let mut row = FaultSummary::new("kill -9");
        row.add(200, Verdict { lost: 1_234, ..Verdict::default() });
        let text = table(&[row, FaultSummary::skipped("power loss", "mounting a disk requires root".into())]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[..4].iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert_eq!(lines[0].find("lost").map(|at| at + 4), lines[2].find("1,234").map(|at| at + 5), "{text}");
        assert_eq!(lines[4], "skipped: power loss, because mounting a disk requires root");
    }
}
