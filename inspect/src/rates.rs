//! How much happened when.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::record::Event;
use driftq_core::types::{Millis, Timestamp};
use serde::Serialize;

use crate::format::names::moment;
use crate::format::sentence::time;

/// The most rows.
const ROWS_MAX: u64 = 20;
/// The most cells of the bar in a row.
const BAR_CELLS: u64 = 24;
/// Lengths of an interval in milliseconds, each a multiple of the one before, so that rows can be joined.
const LENGTHS_MS: [u64; 18] = [
    100,
    500,
    1_000,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    604_800_000,
    2_419_200_000,
    31_449_600_000,
];

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Happened {
    /// Messages stored for whoever asked for them, those of completed steps included.
    pub produced: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Messages done by an ack or a completed step.
    pub acked: u64,
    /// Deliveries failed by their workers.
    pub nacked: u64,
    /// Leases that ended without a word.
    pub expired: u64,
    /// Messages that became dead letters.
    pub dead: u64,
}

impl Happened {
    fn count(&mut self, event: &Event) {
        match event {
            Event::Produced { .. } => self.produced += 1,
            Event::Delivered { .. } => self.delivered += 1,
            Event::Acked { .. } => self.acked += 1,
            Event::Completed(step) => {
                self.acked += 1;
                self.produced += step.stored() as u64;
            }
            Event::Nacked { .. } => self.nacked += 1,
            Event::Expired { .. } => self.expired += 1,
            Event::DeadLettered { .. } => self.dead += 1,
            _ => {}
        }
    }

    fn add(&mut self, other: Self) {
        let Self { produced, delivered, acked, nacked, expired, dead } = other;
        self.produced += produced;
        self.delivered += delivered;
        self.acked += acked;
        self.nacked += nacked;
        self.expired += expired;
        self.dead += dead;
    }
}

/// How much happened when, in a handful of intervals of equal length, however long the log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    length_ms: u64,
    /// By the number of the interval since 1970.
    rows: BTreeMap<u64, Happened>,
}

impl Default for Rates {
    fn default() -> Self {
        Self { length_ms: LENGTHS_MS[0], rows: BTreeMap::new() }
    }
}

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// When it began, in milliseconds since 1970.
    pub from_ms: u64,
    /// What happened in it.
    #[serde(flatten)]
    pub happened: Happened,
}

impl Rates {
    /// Counts a record.
    pub(super) fn count(&mut self, at: Timestamp, event: &Event) {
        self.rows.entry(at.0 / self.length_ms).or_default().count(event);
        while self.span() > ROWS_MAX {
            self.lengthen();
        }
    }

    /// How many intervals there are between the first and the last, both included.
    fn span(&self) -> u64 {
        let ends = self.rows.first_key_value().zip(self.rows.last_key_value());
        ends.map_or(0, |((first, _), (last, _))| last - first + 1)
    }

    fn lengthen(&mut self) {
        let longer = LENGTHS_MS.into_iter().find(|length| *length > self.length_ms);
        let longer = longer.unwrap_or(self.length_ms.saturating_mul(2));
        let times = longer / self.length_ms;
        for (number, happened) in std::mem::take(&mut self.rows) {
            self.rows.entry(number / times).or_default().add(happened);
        }
        self.length_ms = longer;
    }

    /// How long an interval is, in milliseconds.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.length_ms
    }

    /// All intervals from the first in which something happened to the last, the idle ones between included.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        let first = self.rows.first_key_value().map_or(0, |(first, _)| *first);
        (first..first + self.span()).map(|number| Row {
            from_ms: number * self.length_ms,
            happened: self.rows.get(&number).copied().unwrap_or_default(),
        })
    }
}

impl Serialize for Rates {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told {
            every_ms: u64,
            rows: Vec<Row>,
        }
        Told { every_ms: self.length_ms, rows: self.rows().collect() }.serialize(serializer)
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.rows.values().map(|row| row.produced.max(row.delivered)).max().unwrap_or(0).max(1);
        writeln!(f, "per second, in intervals of {}; the bar is deliveries", time(Millis(self.length_ms)))?;
        let head = ["produced", "delivered", "acked", "nacked", "expired", "dead"];
        writeln!(f, "  {:<24}{}", "", head.map(|name| format!("{name:>11}")).concat())?;
        for Row { from_ms, happened } in self.rows() {
            let Happened { produced, delivered, acked, nacked, expired, dead } = happened;
            let counts = [produced, delivered, acked, nacked, expired, dead];
            let counts = counts.map(|count| format!("{:>11}", self.per_second(count))).concat();
            // Whatever happened at all is seen.
            let cells = (delivered * BAR_CELLS).div_ceil(most) as usize;
            let line = format!("  {:<24}{counts}  {}", moment(Timestamp(from_ms)), "█".repeat(cells));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Rates {
    fn per_second(&self, count: u64) -> String {
        let rate = count as f64 * 1_000.0 / self.length_ms as f64;
        match rate {
            0.0 => "-".to_owned(),
            rate if rate < 0.01 => "<0.01".to_owned(),
            rate if rate < 10.0 => format!("{rate:.2}"),
            rate => crate::format::grouped(rate.round() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driftq_core::types::Boot;

    fn booted() -> Event {
        Event::Booted { boot: Boot(1) }
    }

    fn produced() -> Event {
        use driftq_core::types::{Offset, PartitionId, TopicId};
        let body = driftq_core::Body::bare(b"k", b"v");
        Event::Produced { topic: TopicId(0), partition: PartitionId(0), offset: Offset(0), body, dedupe: None }
    }

    #[test]
    fn however_long_a_log_is_there_are_at_most_twenty_rows_and_nothing_is_lost() {
        for step_ms in [1, 70, 999, 60_000, 86_400_000, 40_000_000_000] {
            let mut rates = Rates::default();
            for nth in 0..1_000 {
                rates.count(Timestamp(1_766_318_400_123 + nth * step_ms), &produced());
            }
            let rows: Vec<_> = rates.rows().collect();
            assert!(rows.len() as u64 <= ROWS_MAX, "{step_ms}: {}", rows.len());
            assert!(rows.len() >= 2, "{step_ms}: {}", rows.len());
            assert_eq!(rows.iter().map(|row| row.happened.produced).sum::<u64>(), 1_000);
            assert!(rows.iter().all(|row| row.from_ms % rates.length_ms() == 0));
        }
    }

    #[test]
    fn an_idle_hour_is_a_row_of_nothing_and_a_rate_is_by_the_second() {
        let mut rates = Rates::default();
        let start = 1_766_318_400_000;
        for nth in 0..6_000 {
            rates.count(Timestamp(start + nth), &produced());
        }
        rates.count(Timestamp(start + 3 * 3_600_000), &booted());
        assert_eq!(rates.length_ms(), 600_000);
        let text = rates.to_string();
        assert!(text.contains("  2025-12-21T12:00:00.000Z         10"), "{text}");
        assert!(text.contains("  2025-12-21T12:10:00.000Z          -"), "{text}");
    }
}
