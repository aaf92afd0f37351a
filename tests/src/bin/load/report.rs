//! What was measured: counts, latencies and failures gathered while driving, and how they are said.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::client::text_field;
use crate::procfs::Memory;

/// Latencies above this are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Requests that failed, by status and error code, or by what went wrong with the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    counts: BTreeMap<String, u64>,
}

impl Failures {
    /// An answer that is no success; its body may name an error code.
    pub(crate) fn answered(&mut self, status: u16, body: &[u8]) {
        let code = text_field(body, "error").map(String::from_utf8_lossy);
        let name = code.map_or_else(|| status.to_string(), |code| format!("{status} {code}"));
        self.named(&name);
    }

    /// A failure that has no status.
    pub(crate) fn named(&mut self, name: &str) {
        self.add(name, 1);
    }

    /// So many failures of one name.
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.counts.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Takes over what another part of the run has counted.
    pub(crate) fn merge(&mut self, other: &Failures) {
        for (name, count) in &other.counts {
            self.add(name, *count);
        }
    }

    /// Whether nothing failed.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.counts.is_empty() {
            return f.write_str("none");
        }
        for (index, (name, count)) in self.counts.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} × {name}", grouped(*count))?;
        }
        Ok(())
    }
}

/// What a part of a run has counted.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    /// Messages, or requests that are no messages, that were answered with success.
    pub(crate) messages: u64,
    /// How long each turn took, or each message was under way, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// How long each request of a turn took, where a turn has several.
    pub(crate) parts: Vec<Histogram<u64>>,
    /// Requests and lines that were not answered with success.
    pub(crate) failures: Failures,
}

impl Default for Tally {
    fn default() -> Self {
        Self { messages: 0, latency: no_latencies(), parts: Vec::new(), failures: Failures::default() }
    }
}

fn no_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("these bounds are allowed")
}

fn record(latencies: &mut Histogram<u64>, took: Duration) {
    latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
}

impl Tally {
    /// Records a latency.
    pub(crate) fn record(&mut self, took: Duration) {
        record(&mut self.latency, took);
    }

    /// Records the latency of one of a turn's requests, the first being number 0.
    pub(crate) fn record_part(&mut self, part: usize, took: Duration) {
        record(self.part_mut(part), took);
    }

    fn part_mut(&mut self, part: usize) -> &mut Histogram<u64> {
        if self.parts.len() <= part {
            self.parts.resize_with(part + 1, no_latencies);
        }
        &mut self.parts[part]
    }

    /// Answers recorded so far.
    pub(crate) fn answers(&self) -> u64 {
        self.latency.len() + self.parts.iter().map(Histogram::len).sum::<u64>()
    }

    /// Takes over what another slice has counted.
    pub(crate) fn merge(&mut self, other: &Tally) {
        self.messages += other.messages;
        self.latency += &other.latency;
        for (part, latencies) in other.parts.iter().enumerate() {
            *self.part_mut(part) += latencies;
        }
        self.failures.merge(&other.failures);
    }

    /// The latency below which this part of the requests stayed.
    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }

    /// The latencies, in one line.
    pub(crate) fn latencies(&self) -> String {
        latencies(&self.latency)
    }

    /// The latencies of one of a turn's requests, in one line.
    pub(crate) fn part_latencies(&self, part: usize) -> String {
        self.parts.get(part).map_or_else(|| "none".to_owned(), latencies)
    }
}

fn latencies(nanos: &Histogram<u64>) -> String {
    let at = |quantile| time(Duration::from_nanos(nanos.value_at_quantile(quantile)));
    let max = time(Duration::from_nanos(nanos.max()));
    format!("p50 {}  p99 {}  p99.9 {}  max {max}", at(0.5), at(0.99), at(0.999))
}

/// What one driven server did, over all of its slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side {
    /// Counts and latencies.
    pub(crate) tally: Tally,
    /// How long it was driven.
    pub(crate) driven: Duration,
    /// CPU time of the server meanwhile, where its process is known.
    pub(crate) cpu: Option<Duration>,
    /// CPU time of this process meanwhile.
    pub(crate) client_cpu: Duration,
    /// CPU time of everything else on the machine meanwhile, where the server's is known: what disturbed us.
    pub(crate) others_cpu: Option<Duration>,
    /// The server's memory at the end, where its process is known.
    pub(crate) memory: Option<Memory>,
}

impl Side {
    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        if self.driven.is_zero() { 0.0 } else { self.tally.messages as f64 / self.driven.as_secs_f64() }
    }

    /// Seconds of the server's CPU for a million messages.
    pub(crate) fn cpu_per_million(&self) -> Option<f64> {
        self.cpu.and_then(|cpu| per_million(cpu, self.tally.messages))
    }

    /// Cores that everything else on the machine took meanwhile.
    pub(crate) fn others_cores(&self) -> Option<f64> {
        let others = self.others_cpu.filter(|_| !self.driven.is_zero())?;
        Some(others.as_secs_f64() / self.driven.as_secs_f64())
    }

    /// Prints it under a name.
    pub(crate) fn print(&self, name: &str) {
        println!("{name:<8} {} messages/s", grouped(self.rate() as u64));
        println!("         {}", self.tally.latencies());
        self.print_cost_and_failures("messages");
    }

    /// Prints what its messages cost, whatever they are called, and which failed.
    pub(crate) fn print_cost_and_failures(&self, unit: &str) {
        let client = per_million(self.client_cpu, self.tally.messages);
        print_cost(unit, self.cpu_per_million(), client, self.memory);
        if let Some(cores) = self.others_cores() {
            println!("         other programs took {:.0} % of a core meanwhile", cores * 100.0);
        }
        println!("         failures: {}", self.tally.failures);
    }
}

/// Prints what messages, or what else was counted, cost in CPU and the server in memory, as far as it is known.
pub(crate) fn print_cost(unit: &str, server: Option<f64>, client: Option<f64>, memory: Option<Memory>) {
    let server = server.map(|seconds| format!("server CPU {seconds:.2} s per million {unit}"));
    let client = client.map(|seconds| format!("client CPU {seconds:.2} s per million"));
    let known: Vec<String> = [server, client, memory.map(|memory| memory.to_string())].into_iter().flatten().collect();
    if !known.is_empty() {
        println!("         {}", known.join(", "));
    }
}

/// CPU seconds for a million messages.
pub(crate) fn per_million(cpu: Duration, messages: u64) -> Option<f64> {
    (messages > 0).then(|| cpu.as_secs_f64() * 1e6 / messages as f64)
}

/// The line that ends a run with a ceiling.
pub(crate) fn ratio_line(server: f64, ceiling: f64) -> String {
    format!("ratio {:.2}", if ceiling > 0.0 { server / ceiling } else { 0.0 })
}

/// A time in the unit that suits it.
pub(crate) fn time(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000_000 => format!("{:.0} µs", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

/// A count with its thousands set apart.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// One row of the table of goals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// What was done.
    pub(crate) work: String,
    /// What it should come to.
    pub(crate) goal: String,
    /// What it came to.
    pub(crate) measured: String,
    /// Whether the goal was met; `None` for a row that has none.
    pub(crate) met: Option<bool>,
}

/// The rows as a markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table = String::from("| work | goal | measured | |\n|---|---|---|---|\n");
    for row in rows {
        let verdict = match row.met {
            Some(true) => "met",
            Some(false) => "short",
            None => "–",
        };
        table.push_str(&format!("| {} | {} | {} | {verdict} |\n", row.work, row.goal, row.measured));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_has_two_decimals() {
        assert_eq!(ratio_line(73_123.0, 100_000.0), "ratio 0.73");
        assert_eq!(ratio_line(100.0, 100.0), "ratio 1.00");
        assert_eq!(ratio_line(1.0, 0.0), "ratio 0.00");
    }

    #[test]
    fn failures_are_named_by_status_and_code() {
        let mut failures = Failures::default();
        assert_eq!(failures.to_string(), "none");
        failures.answered(429, br#"{"error":"RESOURCE_EXHAUSTED","message":"full"}"#);
        failures.answered(429, br#"{"error":"RESOURCE_EXHAUSTED","message":"full"}"#);
        failures.answered(500, b"");
        assert_eq!(failures.to_string(), "2 × 429 RESOURCE_EXHAUSTED, 1 × 500");
    }

    #[test]
    fn quantities_are_said_in_units_that_suit_them() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(Duration::from_micros(61)), "61 µs");
        assert_eq!(time(Duration::from_micros(1_230)), "1.23 ms");
        assert_eq!(time(Duration::from_millis(2_500)), "2.50 s");
    }

    #[test]
    fn slices_add_up() {
        let mut all = Tally::default();
        for millis in 1..=100 {
            let mut slice = Tally { messages: 2, ..Tally::default() };
            slice.record(Duration::from_millis(millis));
            slice.record_part(1, Duration::from_millis(millis));
            all.merge(&slice);
        }
        assert_eq!(all.answers(), 200);
        assert_eq!(all.part_latencies(1), all.latencies());
        assert_eq!(all.part_latencies(2), "none");
        assert_eq!(all.messages, 200);
        assert!(all.quantile(0.5).abs_diff(Duration::from_millis(50)) < Duration::from_millis(1));
        let side = Side { tally: all, driven: Duration::from_secs(2), ..Side::default() };
        assert!((side.rate() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_table_says_what_fell_short() {
        let row = |met| Row { work: "w".into(), goal: "≥ 1".into(), measured: "0".into(), met };
        let table = markdown(&[row(Some(true)), row(Some(false)), row(None)]);
        assert_eq!(
            table,
            "| work | goal | measured | |\n|---|---|---|---|\n| w | ≥ 1 | 0 | met |\n| w | ≥ 1 | 0 | short |\n\
             | w | ≥ 1 | 0 | – |\n"
        );
    }
}
