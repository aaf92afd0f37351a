//! Rows of the table: what was measured beside what must be reached and what is aimed at.

use super::goals::{Goal, Met};
use crate::load::report::median;

/// What was measured for a row: a figure for each turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reading {
    figures: Vec<f64>,
    remark: Option<String>,
    shortfall: Option<String>,
}

impl Reading {
    /// The figures of several turns.
    pub(super) fn of(figures: Vec<f64>) -> Self {
        Self { figures, ..Self::default() }
    }

    /// A figure that is measured once.
    pub(super) fn once(figure: f64) -> Self {
        Self::of(vec![figure])
    }

    /// With text behind the figure.
    pub(super) fn remark(self, remark: impl Into<String>) -> Self {
        Self { remark: Some(remark.into()), ..self }
    }

    /// Short of every bound, for a reason that the figure does not show.
    pub(super) fn short(self, reason: impl Into<String>) -> Self {
        Self { shortfall: Some(reason.into()), ..self }
    }

    /// Whether there is any figure.
    pub(super) fn is_known(&self) -> bool {
        !self.figures.is_empty()
    }
}

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    work: String,
    goal: Goal,
    measured: String,
    met: Met,
}

impl Row {
    /// A row of what was measured: the median of the turns decides.
    pub(super) fn of(work: String, goal: Goal, reading: &Reading) -> Self {
        let figures = &reading.figures;
        if figures.is_empty() {
            return Self { work, goal, measured: "unknown".to_owned(), met: goal.unmet() };
        }
        let middle = median(figures.clone());
        let mut measured = goal.unit.text(middle);
        if figures.len() > 1 {
            let (least, most) = figures
                .iter()
                .fold((f64::MAX, f64::MIN), |(least, most), figure| (least.min(*figure), most.max(*figure)));
            measured.push_str(&format!(" ({} to {})", goal.unit.text(least), goal.unit.text(most)));
        }
        for text in reading.remark.iter().chain(&reading.shortfall) {
            measured.push_str(&format!("; {}", one_line(text)));
        }
        let met = if reading.shortfall.is_some() { goal.unmet() } else { goal.met(middle) };
        Self { work, goal, measured, met }
    }

    /// A row that cannot be measured here.
    pub(super) fn skipped(work: String, goal: Goal, reason: &str) -> Self {
        Self { work, goal, measured: format!("skipped: {}", one_line(reason)), met: Met::Unknown }
    }

    /// A row whose measurement failed.
    pub(super) fn failed(work: String, goal: Goal, reason: &str) -> Self {
        Self { work, goal, measured: format!("failed: {}", one_line(reason)), met: Met::No }
    }
}

fn one_line(text: &str) -> String {
    text.trim().replace(['\n', '|'], " ")
}

/// The rows as a Markdown table.
pub(super) fn markdown<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    let mut table = String::from("| work | must | goal | measured | met |\n|---|---|---|---|---|\n");
    for Row { work, goal, measured, met } in rows {
        let (must, aim, met) = (goal.must_text(), goal.aim_text(), met.text());
        table.push_str(&format!("| {work} | {must} | {aim} | {measured} | {met} |\n"));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::goals::{CPU_SECONDS, INSTRUCTIONS, MICROS, PER_SECOND, RATIO, TIMES};
    use super::*;

    fn row(work: &str, goal: Goal, figures: &[f64]) -> Row {
        Row::of(work.to_owned(), goal, &Reading::of(figures.to_vec()))
    }

    #[test]
    fn median_of_the_turns_decides() {
        let cpu = Goal::at_most(11.0, CPU_SECONDS).aims_at(9.0);
        let rows = [
            row("a", Goal::at_least(0.65, RATIO).aims_at(0.75), &[0.9, 0.6, 0.7]),
            Row::of("b".to_owned(), cpu, &Reading::once(8.0).remark("p50 1 ms")),
            row("c", Goal::at_least(600_000.0, PER_SECOND), &[599_999.4]),
            row("d", Goal::none(MICROS), &[-1.0, 1.0]),
            row("e", Goal::at_most(1.5, TIMES), &[]),
        ];
        let expected = "| work | must | goal | measured | met |\n|---|---|---|---|---|\n\
            | a | ≥ 0.65 | ≥ 0.75 | 0.70 (0.60 to 0.90) | must |\n\
            | b | ≤ 11 s | ≤ 9 s | 8.0 s; p50 1 ms | goal |\n\
            | c | ≥ 600,000/s | – | 599,999/s | no |\n\
            | d | – | – | 0.00 µs (-1.00 µs to 1.00 µs) | – |\n\
            | e | ≤ 1.5 × | – | unknown | no |\n";
        assert_eq!(markdown(&rows), expected);
    }

    #[test]
    fn row_without_a_figure_that_counts_says_why() {
        let goal = Goal::at_most(7_500.0, INSTRUCTIONS).aims_at(5_500.0);
        let short = Reading::once(5_000.0).remark("once").short("too slow");
        let rows = [
            Row::skipped("a".to_owned(), goal, "no\nvalgrind\n"),
            Row::failed("b".to_owned(), goal, "a | b"),
            Row::of("c".to_owned(), goal, &short),
        ];
        let expected = "| a | ≤ 7,500 | ≤ 5,500 | skipped: no valgrind | – |\n\
            | b | ≤ 7,500 | ≤ 5,500 | failed: a   b | no |\n\
            | c | ≤ 7,500 | ≤ 5,500 | 5,000; once; too slow | no |\n";
        assert!(markdown(&rows).ends_with(expected), "{}", markdown(&rows));
    }
}
