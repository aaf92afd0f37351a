//! Goals of the table: what a figure must reach, what is aimed at, and how figures are written.

use crate::numbers::grouped;

/// How figures are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    suffix: &'static str,
    /// Digits behind the point.
    decimals: usize,
}

/// A number without a unit, such as a ratio of rates.
pub(super) const RATIO: Unit = Unit { suffix: "", decimals: 2 };
/// A multiple of a cost.
pub(super) const TIMES: Unit = Unit { suffix: " ×", decimals: 2 };
/// Messages, steps or requests.
pub(super) const PER_SECOND: Unit = Unit { suffix: "/s", decimals: 0 };
/// CPU time per million.
pub(super) const CPU_SECONDS: Unit = Unit { suffix: " s", decimals: 1 };
pub(super) const SECONDS: Unit = Unit { suffix: " s", decimals: 2 };
pub(super) const MILLIS: Unit = Unit { suffix: " ms", decimals: 2 };
pub(super) const MICROS: Unit = Unit { suffix: " µs", decimals: 2 };
pub(super) const INSTRUCTIONS: Unit = Unit { suffix: "", decimals: 0 };
pub(super) const BYTES: Unit = Unit { suffix: " B", decimals: 0 };
pub(super) const KIBIBYTES: Unit = Unit { suffix: " KiB", decimals: 1 };
pub(super) const MEGABYTES: Unit = Unit { suffix: " MB", decimals: 0 };
pub(super) const PERCENT: Unit = Unit { suffix: " %", decimals: 2 };

impl Unit {
    /// A figure that was measured.
    pub(super) fn text(self, figure: f64) -> String {
        let number = if self.decimals == 0 {
            let sign = if figure <= -0.5 { "-" } else { "" };
            format!("{sign}{}", grouped(figure.abs().round() as u64))
        } else {
            format!("{figure:.*}", self.decimals)
        };
        format!("{number}{}", self.suffix)
    }

    /// A bound, as short as it can be written.
    fn bound(self, figure: f64) -> String {
        let number = if figure >= 1_000.0 { grouped(figure as u64) } else { figure.to_string() };
        format!("{number}{}", self.suffix)
    }
}

/// On which side of its bounds a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    AtLeast,
    AtMost,
}

/// How far a figure reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// What is aimed at.
    Goal,
    /// What must be reached.
    Must,
    /// Neither.
    No,
    /// There is no bound, or no figure.
    Unknown,
}

impl Met {
    /// As it stands in the table.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Goal => "goal",
            Self::Must => "must",
            Self::No => "no",
            Self::Unknown => "–",
        }
    }
}

/// What a figure must reach, and what is aimed at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    side: Side,
    must: Option<f64>,
    aim: Option<f64>,
    pub(super) unit: Unit,
}

impl Goal {
    /// More is better.
    pub(super) fn at_least(must: f64, unit: Unit) -> Self {
        Self { side: Side::AtLeast, must: Some(must), aim: None, unit }
    }

    /// Less is better.
    pub(super) fn at_most(must: f64, unit: Unit) -> Self {
        Self { side: Side::AtMost, must: Some(must), aim: None, unit }
    }

    /// A row that is only to be seen.
    pub(super) fn none(unit: Unit) -> Self {
        Self { side: Side::AtMost, must: None, aim: None, unit }
    }

    /// What is aimed at beyond it.
    pub(super) fn aims_at(self, aim: f64) -> Self {
        Self { aim: Some(aim), ..self }
    }

    /// How far a figure reaches.
    pub(super) fn met(&self, figure: f64) -> Met {
        let reaches = |bound: f64| match self.side {
            Side::AtLeast => figure >= bound,
            Side::AtMost => figure <= bound,
        };
        match (self.must, self.aim) {
            (None, None) => Met::Unknown,
            (_, Some(aim)) if reaches(aim) => Met::Goal,
            (Some(must), _) if reaches(must) => Met::Must,
            _ => Met::No,
        }
    }

    /// How far a measurement reaches that has no figure, or one that does not count.
    pub(super) fn unmet(&self) -> Met {
        if self.must.is_none() && self.aim.is_none() { Met::Unknown } else { Met::No }
    }

    /// What must be reached, as text.
    pub(super) fn must_text(&self) -> String {
        self.text(self.must)
    }

    /// What is aimed at, as text.
    pub(super) fn aim_text(&self) -> String {
        self.text(self.aim)
    }

    fn text(&self, bound: Option<f64>) -> String {
        let sign = if self.side == Side::AtLeast { "≥" } else { "≤" };
        bound.map_or_else(|| "–".to_owned(), |bound| format!("{sign} {}", self.unit.bound(bound)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_reaches_the_goal_the_must_or_neither() {
        let rate = Goal::at_least(0.65, RATIO).aims_at(0.75);
        assert_eq!([0.64, 0.65, 0.74, 0.75].map(|figure| rate.met(figure).text()), ["no", "must", "must", "goal"]);
        let cost = Goal::at_most(11.0, CPU_SECONDS).aims_at(9.0);
        assert_eq!([11.1, 11.0, 9.0].map(|figure| cost.met(figure).text()), ["no", "must", "goal"]);
        let bound = Goal::at_most(60.0, MEGABYTES);
        assert_eq!([1.0, 61.0].map(|figure| bound.met(figure).text()), ["must", "no"]);
        assert_eq!(Goal::none(INSTRUCTIONS).met(1.0).text(), "–");
        assert_eq!((rate.unmet(), Goal::none(RATIO).unmet()), (Met::No, Met::Unknown));
    }

    #[test]
    fn bounds_and_figures_have_units() {
        let goal = Goal::at_least(600_000.0, PER_SECOND).aims_at(900_000.0);
        assert_eq!((goal.must_text(), goal.aim_text()), ("≥ 600,000/s".to_owned(), "≥ 900,000/s".to_owned()));
        let goal = Goal::at_most(3.5, MICROS);
        assert_eq!((goal.must_text(), goal.aim_text()), ("≤ 3.5 µs".to_owned(), "–".to_owned()));
        assert_eq!(PER_SECOND.text(599_999.4), "599,999/s");
        assert_eq!(
            (MICROS.text(-1.0), BYTES.text(-2.0), BYTES.text(-0.2)),
            ("-1.00 µs".into(), "-2 B".into(), "0 B".into())
        );
    }
}
