//! `load effects`: the idempotency store under load. Every iteration begins and finishes a new effect.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::load::broker::{Broker, unused_name};
use crate::load::ceiling::Ceiling;
use crate::load::cli::EffectsOptions;
use crate::load::client::{Connection, EffectRequests, EffectShape, text_field};
use crate::load::drive::{Shared, Until, Work};
use crate::load::error::Result;
use crate::load::modes::slices::{self, Pace, Target};
use crate::load::report::{Failures, ServerStats, median, time};
use crate::numbers::grouped;
use crate::procfs::Memory;
use crate::progress::Progress;

/// The requests of an iteration, as numbered in its statistics.
const BEGIN: usize = 0;
const FINISH: usize = 1;
/// Requests of an effect.
const PER_EFFECT: u64 = 2;
/// Turns of `effects --records`.
const TURNS: u32 = 4;
/// Connections over which records are created: many, so that one sync covers many records.
const FILL_CONNECTIONS: u32 = 256;
/// Parts in which records are created, to show progress.
const FILL_PARTS: u64 = 50;

/// Begins and finishes effects one after the other, each with a unique key.
#[derive(Debug)]
pub(crate) struct Effects {
    requests: EffectRequests,
    number: u64,
}

impl Work for Effects {
    type Shape = EffectShape;

    fn new(addr: SocketAddr, shape: &EffectShape, sequence: u64) -> Self {
        Self { requests: EffectRequests::new(addr, shape), number: sequence }
    }

    fn messages(&self) -> u64 {
        PER_EFFECT
    }

    async fn iterate(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        let number = self.number;
        let (granted, is_granted) = self.begin(connection, begun, shared).await?;
        let token = is_granted.then(|| granted_token(200, connection.body())).flatten();
        let Some(token) = token else { return Ok(granted) };
        let finish = self.requests.finish(number, token);
        let status = connection.exchange(finish).await?;
        let ended = Instant::now();
        let stats = &mut *shared.stats();
        stats.record_part(FINISH, ended - granted);
        if status == 200 && text_field(connection.body(), "ok") == Some(b"true") {
            stats.messages += 1;
            stats.record(ended - begun);
        } else {
            count_refusal(&mut stats.failures, "finish", status, connection.body());
        }
        Ok(ended)
    }
}

impl Effects {
    /// Begins the next effect. Returns when, and whether it was granted.
    async fn begin(
        &mut self,
        connection: &mut Connection,
        begun: Instant,
        shared: &Shared,
    ) -> io::Result<(Instant, bool)> {
        let status = connection.exchange(self.requests.begin(self.number)).await?;
        let ended = Instant::now();
        self.number += 1;
        let is_granted = granted_token(status, connection.body()).is_some();
        let stats = &mut *shared.stats();
        stats.record_part(BEGIN, ended - begun);
        match is_granted {
            true => stats.messages += 1,
            false => count_refusal(&mut stats.failures, "begin", status, connection.body()),
        }
        Ok((ended, is_granted))
    }
}

/// Begins effects, each with a unique key, and finishes none.
#[derive(Debug)]
pub(crate) struct Begins(Effects);

impl Work for Begins {
    type Shape = EffectShape;

    fn new(addr: SocketAddr, shape: &EffectShape, sequence: u64) -> Self {
        Self(Effects::new(addr, shape, sequence))
    }

    fn messages(&self) -> u64 {
        1
    }

    async fn iterate(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        Ok(self.0.begin(connection, begun, shared).await?.0)
    }
}

/// The token of a response with the decision EXECUTE.
fn granted_token(status: u16, body: &[u8]) -> Option<&[u8]> {
    (status == 200 && text_field(body, "decision") == Some(b"EXECUTE")).then(|| text_field(body, "lease_token"))?
}

/// Counts a response that is not the expected one, though its status may be a success.
fn count_refusal(failures: &mut Failures, request: &str, status: u16, body: &[u8]) {
    let field = |name| text_field(body, name).map(String::from_utf8_lossy);
    let code = field("error").or_else(|| field("decision")).unwrap_or_default();
    failures.named(format!("{request} {status} {code}").trim_end());
}

/// Measures and prints.
pub(crate) async fn run(options: &EffectsOptions) -> Result<Failures> {
    if let Some(records) = options.records {
        let options = EffectsOptions { seconds: options.seconds / f64::from(TURNS), ..options.clone() };
        let figures = measure_records(&options, records, TURNS).await?;
        figures.print();
        return Ok(figures.failures);
    }
    let figures = measure(options).await?;
    figures.print(print_server);
    figures.print_ratio();
    Ok(figures.failures())
}

/// Measures the broker, and the ceiling if requested.
pub(crate) async fn measure(options: &EffectsOptions) -> Result<slices::Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let _progress = Progress::spinner("beginning and finishing effects");
    slices::measure::<Effects>(&mut broker, ceiling, &shape(options), pace(options, options.connections)).await
}

fn shape(options: &EffectsOptions) -> EffectShape {
    EffectShape { prefix: unused_name(), result_size: options.result_size }
}

fn pace(options: &EffectsOptions, connections: u32) -> Pace {
    Pace { connections, length: Duration::from_secs_f64(options.seconds.max(0.01)), rate: None }
}

/// Prints a server's statistics with a name.
pub(crate) fn print_server(server: &ServerStats, name: &str) {
    println!("{name:<8} {} pairs/s, {} requests/s", grouped(pairs_rate(server) as u64), grouped(server.rate() as u64));
    println!("         begin:  {}", server.stats.part_latencies(BEGIN));
    println!("         finish: {}", server.stats.part_latencies(FINISH));
    println!("         pair:   {}", server.stats.latencies());
    server.print_cost_and_failures("requests");
}

/// Effects begun and finished per second.
fn pairs_rate(server: &ServerStats) -> f64 {
    if server.driven.is_zero() { 0.0 } else { server.stats.latency.len() as f64 / server.driven.as_secs_f64() }
}

/// Records that were created, and their memory.
#[derive(Debug)]
struct Filled {
    records: u64,
    took: Duration,
    /// Bytes of a record's key and result.
    payload_bytes: u64,
    before: Memory,
    after: Memory,
    failures: Failures,
}

/// What `effects --records` measures.
#[derive(Debug)]
pub(crate) struct RecordsFigures {
    filled: Filled,
    /// A broker that began without records, and the one with them.
    turns: Vec<[ServerStats; 2]>,
    /// All failures.
    pub(crate) failures: Failures,
}

impl RecordsFigures {
    /// Memory per record beyond its key and result.
    pub(crate) fn bytes_beyond(&self) -> f64 {
        self.filled.bytes_beyond()
    }

    /// The ratio of the server's CPU time per request with and without the records, of each turn where it is known.
    pub(crate) fn cpu_ratios(&self) -> Vec<f64> {
        slices::ratios(&self.turns, ServerStats::cpu_per_million)
    }

    /// The ratio of the median latency of a pair with and without the records, of each turn.
    pub(crate) fn p50_ratios(&self) -> Vec<f64> {
        slices::ratios(&self.turns, |server| Some(server.stats.quantile(0.5).as_secs_f64()))
    }

    /// Prints the figures.
    pub(crate) fn print(&self) {
        self.filled.print();
        let [empty, full] = slices::sums(&self.turns);
        print_server(&empty, "empty");
        print_server(&full, "full");
        let (cpu, p50) = (self.cpu_ratios(), median(self.p50_ratios()));
        let cpu = if cpu.is_empty() { "unknown".to_owned() } else { format!("{:.2} ×", median(cpu)) };
        println!("         server CPU per request {cpu}, pair p50 {p50:.2} × that of the empty store");
        println!("all      failures: {}", self.failures);
    }
}

/// Measures a store with many records beside new ones, in turns that drive each for the options' time.
pub(crate) async fn measure_records(options: &EffectsOptions, records: u64, turns: u32) -> Result<RecordsFigures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    broker.require_own()?;
    let filled = Filled::fill(&broker, &shape(options), pace(options, FILL_CONNECTIONS), records).await?;

    let _progress = Progress::spinner("comparing with an empty store");
    let pace = pace(options, options.connections);
    let shapes = async |_: &Broker, _| Ok([shape(options), shape(options)]);
    let turns = slices::beside_new::<Effects>(&broker, &options.broker, pace, turns, shapes).await?;
    broker.warn_if_exited();
    let mut failures = filled.failures.clone();
    slices::sums(&turns).iter().for_each(|server| failures.merge(&server.stats.failures));
    Ok(RecordsFigures { filled, turns, failures })
}

impl Filled {
    /// Creates records and measures the broker's memory before and after. The connections are open in both cases.
    async fn fill(broker: &Broker, shape: &EffectShape, pace: Pace, records: u64) -> Result<Self> {
        let progress = Progress::spinner("creating records");
        let mut target = Target::<Effects>::connect(broker.addr(), shape, pace).await?;
        let before = broker.require_memory()?;
        let part = records.div_ceil(FILL_PARTS);
        let mut left = records;
        while left > 0 {
            progress.message(&format!("creating records: {} of {}", grouped(records - left), grouped(records)));
            let now = part.min(left);
            target.drive(Until::Messages(now * PER_EFFECT), || None).await?;
            left -= now;
        }
        let (stats, took) = (target.server.stats, target.server.driven);
        let (records, payload_bytes) = (stats.latency.len(), shape.payload_bytes());
        Ok(Self { records, took, payload_bytes, before, after: broker.require_memory()?, failures: stats.failures })
    }

    /// Memory per record.
    fn bytes_each(&self) -> f64 {
        let grown = self.after.resident_bytes.saturating_sub(self.before.resident_bytes);
        grown as f64 / self.records.max(1) as f64
    }

    /// Memory per record beyond its key and result.
    fn bytes_beyond(&self) -> f64 {
        (self.bytes_each() - self.payload_bytes as f64).max(0.0)
    }

    fn print(&self) {
        println!("records  {} live, created in {}", grouped(self.records), time(self.took));
        println!("         {}, before {}", self.after, self.before);
        println!("         {:.0} B each, {} B of them key and result", self.bytes_each(), self.payload_bytes);
        println!("         beyond key and result: {:.0} B each", self.bytes_beyond());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granted_token_requires_execute() {
        let execute: &[u8] = br#"{"decision":"EXECUTE","attempt":1,"lease_token":"t-1"}"#;
        assert_eq!(granted_token(200, execute), Some(b"t-1".as_slice()));
        assert_eq!(granted_token(409, execute), None);
        assert_eq!(granted_token(200, br#"{"decision":"REPLAY","lease_token":"t-1"}"#), None);
        assert_eq!(granted_token(200, br#"{"decision":"EXECUTE"}"#), None);
    }

    #[test]
    fn unexpected_decision_is_counted_as_failure() {
        let mut failures = Failures::default();
        count_refusal(&mut failures, "begin", 200, br#"{"decision":"REPLAY"}"#);
        count_refusal(&mut failures, "begin", 409, br#"{"error":"FAILED_PRECONDITION","decision":"IN_PROGRESS"}"#);
        count_refusal(&mut failures, "finish", 200, b"{}");
        assert_eq!(failures.to_string(), "1 × begin 200 REPLAY, 1 × begin 409 FAILED_PRECONDITION, 1 × finish 200");
    }
}
