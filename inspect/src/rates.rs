//! Event rates over the time that a log covers.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::record::Event;
use driftq_core::types::{Millis, Timestamp};
use serde::Serialize;

use crate::format::{grouped, millis, timestamp};

const INTERVALS_MAX: u64 = 20;
/// The longest bar, in characters.
const BAR_CELLS: u64 = 24;
/// Interval lengths in milliseconds. Each is a multiple of the one before, so that intervals can be joined.
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

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Messages that a producer or a completed step stored.
    pub produced: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Messages acked, by an ack or a completed step.
    pub acked: u64,
    /// Deliveries nacked.
    pub nacked: u64,
    /// Leases that expired without ack, nack or extend.
    pub expired: u64,
    /// Messages moved to a dead-letter topic.
    pub dead: u64,
}

impl EventCounts {
    fn count(&mut self, event: &Event) {
        match event {
            Event::Produced { .. } => self.produced += 1,
            Event::Delivered { .. } => self.delivered += 1,
            Event::Acked { .. } => self.acked += 1,
            Event::CumulativelyAcked { acks, .. } => self.acked += acks.len() as u64,
            Event::Completed(step) => {
                let is_dead = step.dead_letter.is_some();
                (self.acked, self.dead) = (self.acked + u64::from(!is_dead), self.dead + u64::from(is_dead));
                self.produced += step.stored() as u64;
            }
            Event::EffectDeadLettered(_) => self.dead += 1,
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

/// Event counts in at most 20 intervals of equal length, whatever the length of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    length_ms: u64,
    /// By the number of the interval since 1970.
    counts: BTreeMap<u64, EventCounts>,
}

impl Default for Rates {
    fn default() -> Self {
        Self { length_ms: LENGTHS_MS[0], counts: BTreeMap::new() }
    }
}

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateInterval {
    /// Its beginning, in milliseconds since 1970.
    pub from_ms: u64,
    /// The events in it.
    #[serde(flatten)]
    pub counts: EventCounts,
}

impl Rates {
    pub(crate) fn count(&mut self, at: Timestamp, event: &Event) {
        self.counts.entry(at.0 / self.length_ms).or_default().count(event);
        while self.interval_count() > INTERVALS_MAX {
            self.join_intervals();
        }
    }

    /// The number of intervals between the first and the last event, both included.
    fn interval_count(&self) -> u64 {
        let ends = self.counts.first_key_value().zip(self.counts.last_key_value());
        ends.map_or(0, |((first, _), (last, _))| last - first + 1)
    }

    fn join_intervals(&mut self) {
        let longer = LENGTHS_MS.into_iter().find(|length| *length > self.length_ms);
        let longer = longer.unwrap_or(self.length_ms.saturating_mul(2));
        let factor = longer / self.length_ms;
        for (number, counts) in std::mem::take(&mut self.counts) {
            self.counts.entry(number / factor).or_default().add(counts);
        }
        self.length_ms = longer;
    }

    /// The length of an interval in milliseconds.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.length_ms
    }

    /// All intervals from the first event to the last, those without events included.
    pub fn intervals(&self) -> impl Iterator<Item = RateInterval> {
        let first = self.counts.first_key_value().map_or(0, |(first, _)| *first);
        (first..first + self.interval_count()).map(|number| RateInterval {
            from_ms: number * self.length_ms,
            counts: self.counts.get(&number).copied().unwrap_or_default(),
        })
    }

    fn per_second(&self, count: u64) -> String {
        let rate = count as f64 * 1_000.0 / self.length_ms as f64;
        match rate {
            0.0 => "-".to_owned(),
            rate if rate < 0.01 => "<0.01".to_owned(),
            rate if rate < 10.0 => format!("{rate:.2}"),
            rate => grouped(rate.round() as u64),
        }
    }
}

impl Serialize for Rates {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json {
            every_ms: u64,
            rows: Vec<RateInterval>,
        }
        Json { every_ms: self.length_ms, rows: self.intervals().collect() }.serialize(serializer)
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.counts.values().map(|counts| counts.produced.max(counts.delivered)).max().unwrap_or(0).max(1);
        writeln!(f, "per second, in intervals of {}; the bar shows deliveries", millis(Millis(self.length_ms)))?;
        let head = ["produced", "delivered", "acked", "nacked", "expired", "dead"];
        writeln!(f, "  {:<24}{}", "", head.map(|name| format!("{name:>11}")).concat())?;
        for RateInterval { from_ms, counts } in self.intervals() {
            let EventCounts { produced, delivered, acked, nacked, expired, dead } = counts;
            let columns = [produced, delivered, acked, nacked, expired, dead];
            let columns = columns.map(|count| format!("{:>11}", self.per_second(count))).concat();
            // Rounded up, so that a single delivery is visible.
            let cells = (delivered * BAR_CELLS).div_ceil(most) as usize;
            let line = format!("  {:<24}{columns}  {}", timestamp(Timestamp(from_ms)), "█".repeat(cells));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
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
        Event::Produced {
            topic: TopicId(0),
            partition: PartitionId(0),
            offset: Offset(0),
            body,
            dedupe: None,
            skipped: Vec::new(),
        }
    }

    #[test]
    fn log_of_any_length_has_at_most_twenty_intervals_and_loses_no_count() {
        for distance_ms in [1, 70, 999, 60_000, 86_400_000, 40_000_000_000] {
            let mut rates = Rates::default();
            for nth in 0..1_000 {
                rates.count(Timestamp(1_766_318_400_123 + nth * distance_ms), &produced());
            }
            let intervals: Vec<_> = rates.intervals().collect();
            assert!(intervals.len() as u64 <= INTERVALS_MAX, "{distance_ms}: {}", intervals.len());
            assert!(intervals.len() >= 2, "{distance_ms}: {}", intervals.len());
            assert_eq!(intervals.iter().map(|interval| interval.counts.produced).sum::<u64>(), 1_000);
            assert!(intervals.iter().all(|interval| interval.from_ms % rates.length_ms() == 0));
        }
    }

    #[test]
    fn rates_are_per_second_and_idle_intervals_are_listed() {
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
