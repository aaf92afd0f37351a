//! What a message costs, by row of a table.

use std::collections::BTreeMap;

use crate::load::report::median;

/// A row: its position and its label.
pub(crate) type Row = (u16, String);

/// Costs per message, by row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Profile {
    rows: BTreeMap<Row, f64>,
}

impl Profile {
    /// Adds to a row.
    pub(crate) fn add(&mut self, position: u16, label: &str, cost: f64) {
        *self.rows.entry((position, label.to_owned())).or_default() += cost;
    }

    /// The cost of a row; 0 if there is none.
    pub(crate) fn get(&self, row: &Row) -> f64 {
        self.rows.get(row).copied().unwrap_or_default()
    }

    /// The rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.keys()
    }

    /// The costs for each of `messages`.
    pub(crate) fn per(mut self, messages: u64) -> Self {
        self.rows.values_mut().for_each(|cost| *cost /= messages.max(1) as f64);
        self
    }

    /// These costs less others.
    pub(crate) fn less(mut self, other: &Self) -> Self {
        other.rows.iter().for_each(|((position, label), cost)| self.add(*position, label, -cost));
        self
    }

    /// The median of each row. A row that a profile lacks is 0 in it.
    pub(crate) fn median(profiles: &[Self]) -> Self {
        let mut rows = BTreeMap::new();
        for row in profiles.iter().flat_map(Self::rows) {
            rows.entry(row.clone())
                .or_insert_with(|| median(profiles.iter().map(|profile| profile.get(row)).collect()));
        }
        Self { rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(rows: &[(&str, f64)]) -> Profile {
        let mut profile = Profile::default();
        rows.iter().for_each(|(label, cost)| profile.add(0, label, *cost));
        profile
    }

    #[test]
    fn difference_has_the_rows_of_both() {
        let with = profile(&[("a", 30.0), ("b", 10.0)]).per(10);
        let without = profile(&[("a", 1.0), ("c", 2.0)]);
        assert_eq!(with.less(&without), profile(&[("a", 2.0), ("b", 1.0), ("c", -2.0)]));
    }

    #[test]
    fn median_is_that_of_each_row() {
        let turns = [profile(&[("a", 1.0)]), profile(&[("a", 9.0), ("b", 4.0)]), profile(&[("a", 2.0), ("b", 6.0)])];
        assert_eq!(Profile::median(&turns), profile(&[("a", 2.0), ("b", 4.0)]));
    }
}
