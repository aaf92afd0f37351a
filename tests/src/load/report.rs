//! Counts, latencies and failures of a run, and how they are printed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::load::client::text_field;
use crate::numbers::grouped;
use crate::procfs::Memory;

/// Latencies above this are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Failed requests, by status and error code or by connection error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    counts: BTreeMap<String, u64>,
}

impl Failures {
    /// Counts a response that is not a success, by its status and the error code in its body.
    pub(crate) fn status(&mut self, status: u16, body: &[u8]) {
        let code = text_field(body, "error").map(String::from_utf8_lossy);
        let name = code.map_or_else(|| status.to_string(), |code| format!("{status} {code}"));
        self.named(&name);
    }

    /// Counts a failure without a status.
    pub(crate) fn named(&mut self, name: &str) {
        self.add(name, 1);
    }

    /// Counts several failures of one name.
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.counts.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Takes the responses of one status out, and returns how many there were.
    pub(crate) fn take_status(&mut self, status: u16) -> u64 {
        let (prefix, mut taken) = (status.to_string(), 0);
        self.counts.retain(|name, count| {
            let is_other = !name.starts_with(&prefix);
            taken += if is_other { 0 } else { *count };
            is_other
        });
        taken
    }

    /// How often a failure of exactly this name was counted.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or_default()
    }

    /// Adds the failures of another part of the run.
    pub(crate) fn merge(&mut self, other: &Failures) {
        for (name, count) in &other.counts {
            self.add(name, *count);
        }
    }

    /// The same, with text in front of each name.
    pub(crate) fn merge_named(&mut self, front: &str, other: &Failures) {
        for (name, count) in &other.counts {
            self.add(&format!("{front}{name}"), *count);
        }
    }

    /// Whether there are none.
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

/// Statistics of a part of a run.
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    /// Messages, or requests in modes without messages, that succeeded.
    pub(crate) messages: u64,
    /// How long each iteration, or each message from produce to delivery, took in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// How long each request of an iteration took, if an iteration has several.
    pub(crate) parts: Vec<Histogram<u64>>,
    /// Requests and lines that did not succeed.
    pub(crate) failures: Failures,
}

impl Default for Stats {
    fn default() -> Self {
        Self { messages: 0, latency: empty_histogram(), parts: Vec::new(), failures: Failures::default() }
    }
}

fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("these bounds are allowed")
}

fn record(latencies: &mut Histogram<u64>, took: Duration) {
    latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
}

impl Stats {
    /// Records a latency.
    pub(crate) fn record(&mut self, took: Duration) {
        record(&mut self.latency, took);
    }

    /// Records the latency of one of an iteration's requests, counted from 0.
    pub(crate) fn record_part(&mut self, part: usize, took: Duration) {
        record(self.part_mut(part), took);
    }

    fn part_mut(&mut self, part: usize) -> &mut Histogram<u64> {
        if self.parts.len() <= part {
            self.parts.resize_with(part + 1, empty_histogram);
        }
        &mut self.parts[part]
    }

    /// Responses recorded so far.
    pub(crate) fn responses(&self) -> u64 {
        self.latency.len() + self.parts.iter().map(Histogram::len).sum::<u64>()
    }

    /// Adds the statistics of another slice.
    pub(crate) fn merge(&mut self, other: &Stats) {
        self.messages += other.messages;
        self.latency += &other.latency;
        for (part, latencies) in other.parts.iter().enumerate() {
            *self.part_mut(part) += latencies;
        }
        self.failures.merge(&other.failures);
    }

    /// A quantile of the latencies.
    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }

    /// The latencies as one line of text.
    pub(crate) fn latencies(&self) -> String {
        latencies(&self.latency)
    }

    /// The latencies of one of an iteration's requests as one line of text.
    pub(crate) fn part_latencies(&self, part: usize) -> String {
        self.parts.get(part).map_or_else(|| "none".to_owned(), latencies)
    }
}

/// The quantiles of these times as one line of text.
pub(crate) fn latencies_of(times: &[Duration]) -> String {
    let mut stats = Stats::default();
    times.iter().for_each(|time| stats.record(*time));
    stats.latencies()
}

fn latencies(nanos: &Histogram<u64>) -> String {
    let at = |quantile| time(Duration::from_nanos(nanos.value_at_quantile(quantile)));
    let max = time(Duration::from_nanos(nanos.max()));
    format!("p50 {}  p99 {}  p99.9 {}  max {max}", at(0.5), at(0.99), at(0.999))
}

/// Statistics of one server over all slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerStats {
    /// Counts and latencies.
    pub(crate) stats: Stats,
    /// How long it was driven.
    pub(crate) driven: Duration,
    /// CPU time of the server in that time, if its process is known.
    pub(crate) cpu: Option<Duration>,
    /// CPU time of this process in that time.
    pub(crate) client_cpu: Duration,
    /// CPU time of everything else on the machine in that time, if the server's is known.
    pub(crate) others_cpu: Option<Duration>,
    /// The server's memory at the end, if its process is known.
    pub(crate) memory: Option<Memory>,
}

impl ServerStats {
    /// Adds another time in which such a server was driven. Memory is that of the end.
    pub(crate) fn merge(&mut self, later: &Self) {
        let sum = |one: Option<Duration>, other: Option<Duration>| one.map_or(other, |one| Some(one + other?));
        self.stats.merge(&later.stats);
        self.driven += later.driven;
        self.cpu = sum(self.cpu, later.cpu);
        self.client_cpu += later.client_cpu;
        self.others_cpu = sum(self.others_cpu, later.others_cpu);
        self.memory = later.memory.or(self.memory);
    }

    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        if self.driven.is_zero() { 0.0 } else { self.stats.messages as f64 / self.driven.as_secs_f64() }
    }

    /// The server's CPU seconds per million messages.
    pub(crate) fn cpu_per_million(&self) -> Option<f64> {
        self.cpu.and_then(|cpu| per_million(cpu, self.stats.messages))
    }

    /// Cores used by everything else on the machine in that time.
    pub(crate) fn others_cores(&self) -> Option<f64> {
        let others = self.others_cpu.filter(|_| !self.driven.is_zero())?;
        Some(others.as_secs_f64() / self.driven.as_secs_f64())
    }

    /// Prints the statistics with a name.
    pub(crate) fn print(&self, name: &str) {
        println!("{name:<8} {} messages/s", grouped(self.rate() as u64));
        println!("         {}", self.stats.latencies());
        self.print_cost_and_failures("messages");
    }

    /// Prints the cost per million of `unit`, and the failures.
    pub(crate) fn print_cost_and_failures(&self, unit: &str) {
        let client = per_million(self.client_cpu, self.stats.messages);
        print_cost(unit, self.cpu_per_million(), client, self.memory);
        if let Some(cores) = self.others_cores() {
            println!("         other programs used {:.0} % of a core", cores * 100.0);
        }
        println!("         failures: {}", self.stats.failures);
    }
}

/// Prints CPU seconds per million of `unit` and the server's memory, as far as they are known.
pub(crate) fn print_cost(unit: &str, server: Option<f64>, client: Option<f64>, memory: Option<Memory>) {
    let server = server.map(|seconds| format!("server CPU {seconds:.2} s per million {unit}"));
    let client = client.map(|seconds| format!("client CPU {seconds:.2} s per million"));
    let known: Vec<String> = [server, client, memory.map(|memory| memory.to_string())].into_iter().flatten().collect();
    if !known.is_empty() {
        println!("         {}", known.join(", "));
    }
}

/// CPU seconds per million messages.
pub(crate) fn per_million(cpu: Duration, messages: u64) -> Option<f64> {
    (messages > 0).then(|| cpu.as_secs_f64() * 1e6 / messages as f64)
}

/// The median; the mean of the two in the middle, or 0 if there is nothing.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match figures[..] {
        [] => 0.0,
        _ if figures.len() % 2 == 1 => figures[half],
        _ => f64::midpoint(figures[half - 1], figures[half]),
    }
}

/// The last line of a run with a ceiling.
pub(crate) fn ratio_line(server: f64, ceiling: f64) -> String {
    format!("ratio {:.2}", if ceiling > 0.0 { server / ceiling } else { 0.0 })
}

/// A duration with a suitable unit.
pub(crate) fn time(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000_000 => format!("{:.0} µs", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_has_two_decimals() {
        assert_eq!(ratio_line(73_123.0, 100_000.0), "ratio 0.73");
        assert_eq!(ratio_line(100.0, 100.0), "ratio 1.00");
        assert_eq!(ratio_line(1.0, 0.0), "ratio 0.00");
    }

    #[test]
    fn median_is_the_figure_in_the_middle() {
        assert_eq!((median(vec![]), median(vec![3.0, 1.0]), median(vec![3.0, 1.0, 9.0])), (0.0, 2.0, 3.0));
    }

    #[test]
    fn failures_are_named_by_status_and_code() {
        let mut failures = Failures::default();
        assert_eq!(failures.to_string(), "none");
        failures.status(429, br#"{"error":"RESOURCE_EXHAUSTED","message":"full"}"#);
        failures.status(429, br#"{"error":"RESOURCE_EXHAUSTED","message":"full"}"#);
        failures.status(500, b"");
        assert_eq!(failures.to_string(), "2 × 429 RESOURCE_EXHAUSTED, 1 × 500");
        assert_eq!(failures.take_status(429), 2);
        assert_eq!(failures.to_string(), "1 × 500");
    }

    #[test]
    fn times_have_suitable_units() {
        assert_eq!(time(Duration::from_micros(61)), "61 µs");
        assert_eq!(time(Duration::from_micros(1_230)), "1.23 ms");
        assert_eq!(time(Duration::from_millis(2_500)), "2.50 s");
    }

    #[test]
    fn stats_of_slices_add_up() {
        let mut all = Stats::default();
        for millis in 1..=100 {
            let mut slice = Stats { messages: 2, ..Stats::default() };
            slice.record(Duration::from_millis(millis));
            slice.record_part(1, Duration::from_millis(millis));
            all.merge(&slice);
        }
        assert_eq!(all.responses(), 200);
        assert_eq!(all.part_latencies(1), all.latencies());
        assert_eq!(all.part_latencies(2), "none");
        assert_eq!(all.messages, 200);
        assert!(all.quantile(0.5).abs_diff(Duration::from_millis(50)) < Duration::from_millis(1));
        let cpu = Some(Duration::from_millis(1));
        let server = ServerStats { stats: all, driven: Duration::from_secs(2), cpu, ..ServerStats::default() };
        assert!((server.rate() - 100.0).abs() < 1e-9);
        let mut twice = ServerStats::default();
        [&server, &server].into_iter().for_each(|server| twice.merge(server));
        assert!((twice.rate() - 100.0).abs() < 1e-9);
        assert_eq!((twice.stats.messages, twice.cpu), (400, Some(Duration::from_millis(2))));
    }
}
