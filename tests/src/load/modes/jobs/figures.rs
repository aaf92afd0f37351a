//! What is counted of a case, the goal, and the table.

use std::time::Duration;

use crate::numbers::grouped;

/// What was counted of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Jobs produced.
    pub(crate) jobs: u64,
    /// Deliveries that a worker worked on, those in vain included.
    pub(crate) executions: u64,
    /// Jobs that became dead letters.
    pub(crate) dead_letters: u64,
    /// Jobs whose ack was accepted.
    pub(crate) acked: u64,
    /// From the first stream until every job was acked or dead, or until the case was given up.
    pub(crate) took: Duration,
}

impl Figures {
    /// Whether every job was acked, none is a dead letter, and there were at most 1.1 executions a job.
    pub(crate) fn meet_goal(&self) -> bool {
        self.acked == self.jobs
            && self.dead_letters == 0
            && u128::from(self.executions) * 10 <= u128::from(self.jobs) * 11
    }

    fn executions_per_job(&self) -> f64 {
        self.executions as f64 / self.jobs.max(1) as f64
    }
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name of the case.
    pub(crate) case: String,
    /// Whether the goal applies to it.
    pub(crate) has_goal: bool,
    /// Its figures, or why there are none.
    pub(crate) measured: Result<Figures, String>,
}

impl Row {
    /// Whether the goal was missed. A case without figures missed it.
    pub(crate) fn is_missed(&self) -> bool {
        !self.measured.as_ref().is_ok_and(|figures| !self.has_goal || figures.meet_goal())
    }

    fn verdict(&self) -> &'static str {
        match (self.is_missed(), self.has_goal) {
            (true, _) => "missed",
            (false, true) => "met",
            (false, false) => "no goal",
        }
    }
}

/// The rows as a Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table = String::from(
        "| case | jobs | executions | per job | dead letters | acked | seconds | 0 dead, ≤ 1.1 per job |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let cells = match &row.measured {
            Ok(figures) => format!(
                "{} | {} | {:.2} | {} | {} | {:.1}",
                grouped(figures.jobs),
                grouped(figures.executions),
                figures.executions_per_job(),
                grouped(figures.dead_letters),
                grouped(figures.acked),
                figures.took.as_secs_f64(),
            ),
            Err(reason) => format!("failed: {} | | | | |", reason.replace(['\n', '|'], " ")),
        };
        table.push_str(&format!("| {} | {cells} | {} |\n", row.case, row.verdict()));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Figures =
        Figures { jobs: 100, executions: 110, dead_letters: 0, acked: 100, took: Duration::from_millis(7_540) };

    #[test]
    fn goal_is_missed_by_a_dead_letter_a_lost_job_or_too_many_executions() {
        assert!(GOOD.meet_goal());
        assert!(!Figures { executions: 111, ..GOOD }.meet_goal());
        assert!(!Figures { dead_letters: 1, ..GOOD }.meet_goal());
        assert!(!Figures { acked: 99, ..GOOD }.meet_goal());
        // Fifty dead letters that no worker ever had.
        assert!(!Figures { jobs: 50, executions: 0, dead_letters: 50, acked: 0, took: Duration::ZERO }.meet_goal());
        assert!(!Figures { executions: u64::MAX, ..GOOD }.meet_goal());
    }

    #[test]
    fn table_names_missed_goals_and_failed_cases() {
        let row = |measured| Row { case: "c".to_owned(), has_goal: true, measured };
        let other = |measured| Row { has_goal: false, ..row(measured) };
        let bad = Figures { executions: 1_264, dead_letters: 82, acked: 18, ..GOOD };
        let rows = [
            row(Ok(GOOD)),
            row(Ok(bad.clone())),
            row(Err("no\n|strace".to_owned())),
            other(Ok(bad)),
            other(Err("no strace".to_owned())),
        ];
        let table = markdown(&rows);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| c | 100 | 110 | 1.10 | 0 | 100 | 7.5 | met |",
                "| c | 100 | 1,264 | 12.64 | 82 | 18 | 7.5 | missed |",
                "| c | failed: no  strace | | | | | | missed |",
                "| c | 100 | 1,264 | 12.64 | 82 | 18 | 7.5 | no goal |",
                "| c | failed: no strace | | | | | | missed |",
            ]
        );
    }
}
