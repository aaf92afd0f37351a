//! Rows of the table of goals for the storage: what was measured beside its goal and its moonshot.

use std::fmt;

/// How far a figure reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Moonshot,
    Goal,
    Neither,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Moonshot => "moonshot",
            Self::Goal => "met",
            Self::Neither => "short",
        })
    }
}

/// What a figure must not exceed, or not fall below.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// Less is better.
    AtMost { goal: f64, moonshot: f64, unit: &'static str },
    /// More is better.
    AtLeast { goal: f64, moonshot: f64, unit: &'static str },
    /// There is none for this size.
    None,
}

impl Goal {
    fn reached(&self, figure: f64) -> Option<Reached> {
        let (meets_moonshot, meets_goal) = match *self {
            Self::AtMost { goal, moonshot, .. } => (figure <= moonshot, figure <= goal),
            Self::AtLeast { goal, moonshot, .. } => (figure >= moonshot, figure >= goal),
            Self::None => return None,
        };
        Some(match (meets_moonshot, meets_goal) {
            (true, _) => Reached::Moonshot,
            (_, true) => Reached::Goal,
            _ => Reached::Neither,
        })
    }

    fn texts(&self) -> (String, String) {
        match *self {
            Self::AtMost { goal, moonshot, unit } => (format!("≤ {goal}{unit}"), format!("≤ {moonshot}{unit}")),
            Self::AtLeast { goal, moonshot, unit } => (format!("≥ {goal}{unit}"), format!("≥ {moonshot}{unit}")),
            Self::None => ("–".to_owned(), "–".to_owned()),
        }
    }
}

/// The rows of a run.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<String>);

impl Rows {
    /// Adds a row: the figure, and how it is written.
    pub(super) fn add(&mut self, work: &str, goal: Goal, figure: f64, measured: &str) {
        let verdict = goal.reached(figure).map_or_else(|| "–".to_owned(), |reached| reached.to_string());
        let (least, moonshot) = goal.texts();
        self.0.push(format!("| {work} | {least} | {moonshot} | {measured} | {verdict} |"));
    }

    /// Prints them as a Markdown table.
    pub(super) fn print(&self) {
        println!("\n| work | goal | moonshot | measured | |\n|---|---|---|---|---|\n{}", self.0.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_follows_from_the_figure() {
        let most = Goal::AtMost { goal: 2.2, moonshot: 1.6, unit: " ×" };
        let least = Goal::AtLeast { goal: 0.7, moonshot: 0.9, unit: "" };
        assert_eq!(
            [1.6, 1.7, 2.3].map(|figure| most.reached(figure)),
            [Some(Reached::Moonshot), Some(Reached::Goal), Some(Reached::Neither)]
        );
        assert_eq!(
            [0.9, 0.8, 0.6].map(|figure| least.reached(figure)),
            [Some(Reached::Moonshot), Some(Reached::Goal), Some(Reached::Neither)]
        );
        let mut rows = Rows::default();
        rows.add("w", most, 1.9, "1.90 ×");
        rows.add("v", Goal::None, 1.0, "1");
        assert_eq!(rows.0, ["| w | ≤ 2.2 × | ≤ 1.6 × | 1.90 × | met |", "| v | – | – | 1 | – |"]);
    }
}
