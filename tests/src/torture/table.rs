//! The table at the end.

use std::fmt::Write;

use super::judge::Row;

const HEAD: [&str; 11] =
    ["fault", "runs", "calls", "acked", "deliveries", "lost", "resurrected", "stale acks", "repeated", "other", "time"];

/// All rows, as markdown that is a table for the eye, too; and, below, what was skipped and why.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 11]> = rows.iter().map(cells).collect();
    let mut width = HEAD.map(|name| name.chars().count());
    for row in &cells {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |row: &[String; 11]| {
        for (place, (cell, width)) in row.iter().zip(width).enumerate() {
            // Words to the left, figures to the right. Writing to a text cannot fail.
            let _ = if place == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text += "|\n";
    };
    line(&HEAD.map(str::to_owned));
    line(&std::array::from_fn(|place| "-".repeat(width[place])));
    cells.iter().for_each(&mut line);
    for row in rows {
        if let Some(why) = &row.skipped {
            let _ = writeln!(text, "skipped: {}, as {why}", row.fault);
        }
        if let Some(convicted) = row.convicted {
            let _ = writeln!(text, "{}: convicted in {convicted} of {} runs; 9 of 10 are wanted", row.fault, row.runs);
        }
    }
    text
}

fn cells(row: &Row) -> [String; 11] {
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

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::judge::Verdict;

    #[test]
    fn figures_stand_below_their_names_and_what_was_skipped_is_said() {
        let mut row = Row::of("kill -9");
        row.add(200, Verdict { lost: 1_234, ..Verdict::default() });
        let text = table(&[row, Row::skipped("power loss", "it takes root".into())]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[..4].iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert_eq!(lines[0].find("lost").map(|at| at + 4), lines[2].find("1,234").map(|at| at + 5), "{text}");
        assert_eq!(lines[4], "skipped: power loss, as it takes root");
    }
}
