//! `load effects`: the idempotency store under load. Every turn asks whether a new effect may be run, and says how it ended.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Result;
use crate::broker::{Broker, unused_name};
use crate::ceiling::Ceiling;
use crate::cli::EffectsOptions;
use crate::client::{Connection, EffectRequests, EffectShape, text_field};
use crate::drive::{Shared, Until, Work};
use crate::modes::turns::{self, Driven, Pace};
use crate::procfs::Memory;
use crate::progress::Spinner;
use crate::report::{Failures, Side, grouped, time};

/// The requests of a turn, as the parts of a tally are numbered.
const BEGIN: usize = 0;
const FINISH: usize = 1;
/// Requests of an effect.
const PER_EFFECT: u64 = 2;
/// Turns in which the store with few records and the one with many are driven.
const SLICES: u32 = 4;
/// Connections over which records are filled in: many, so that one sync serves many of them.
const FILL_CONNECTIONS: u32 = 256;
/// Pieces in which records are filled in, so that it can be told how far it is.
const FILL_PIECES: u64 = 50;

/// Begins and ends one effect after the other, each with a key of its own.
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

    async fn turn(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        let number = self.number;
        self.number += 1;
        let status = connection.exchange(self.requests.begin(number)).await?;
        let granted = Instant::now();
        let token = granted_token(status, connection.body());
        {
            let tally = &mut *shared.tally();
            tally.record_part(BEGIN, granted - begun);
            match token {
                Some(_) => tally.messages += 1,
                None => count_refusal(&mut tally.failures, "begin", status, connection.body()),
            }
        }
        let Some(token) = token else { return Ok(granted) };
        let finish = self.requests.finish(number, token);
        let status = connection.exchange(finish).await?;
        let ended = Instant::now();
        let tally = &mut *shared.tally();
        tally.record_part(FINISH, ended - granted);
        if status == 200 && text_field(connection.body(), "ok") == Some(b"true") {
            tally.messages += 1;
            tally.record(ended - begun);
        } else {
            count_refusal(&mut tally.failures, "finish", status, connection.body());
        }
        Ok(ended)
    }
}

/// The token of an answer that says EXECUTE.
fn granted_token(status: u16, body: &[u8]) -> Option<&[u8]> {
    (status == 200 && text_field(body, "decision") == Some(b"EXECUTE")).then(|| text_field(body, "lease_token"))?
}

/// Counts an answer that is not the wanted one, though its status may be a success.
fn count_refusal(failures: &mut Failures, request: &str, status: u16, body: &[u8]) {
    let word = |name| text_field(body, name).map(String::from_utf8_lossy);
    let said = word("error").or_else(|| word("decision")).unwrap_or_default();
    failures.named(format!("{request} {status} {said}").trim_end());
}

/// Measures and prints.
pub(crate) async fn run(options: &EffectsOptions) -> Result<Failures> {
    if let Some(records) = options.records {
        let figures = measure_records(options, records).await?;
        figures.print();
        return Ok(figures.failures);
    }
    let figures = measure(options).await?;
    figures.print(print_side);
    figures.print_ratio();
    Ok(figures.failures())
}

/// Measures the broker, and the ceiling beside it where that is wanted.
pub(crate) async fn measure(options: &EffectsOptions) -> Result<turns::Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let _spinner = Spinner::new("beginning and finishing effects");
    let pace = Pace { connections: options.connections, length: length(options), rate: None };
    turns::measure::<Effects>(&mut broker, ceiling, &shape(options), pace).await
}

fn shape(options: &EffectsOptions) -> EffectShape {
    EffectShape { prefix: unused_name(), result_size: options.result_size }
}

fn length(options: &EffectsOptions) -> Duration {
    Duration::from_secs_f64(options.seconds.max(0.01))
}

/// Prints what a server did under a name.
pub(crate) fn print_side(side: &Side, name: &str) {
    println!("{name:<8} {} pairs/s, {} requests/s", grouped(pairs_rate(side) as u64), grouped(side.rate() as u64));
    println!("         begin:  {}", side.tally.part_latencies(BEGIN));
    println!("         finish: {}", side.tally.part_latencies(FINISH));
    println!("         pair:   {}", side.tally.latencies());
    side.print_cost_and_failures("requests");
}

/// Effects begun and ended with success, per second.
fn pairs_rate(side: &Side) -> f64 {
    if side.driven.is_zero() { 0.0 } else { side.tally.latency.len() as f64 / side.driven.as_secs_f64() }
}

/// Records that were filled in, and what they weigh.
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
    /// A broker that had no records at first.
    empty: Side,
    /// The one with the records.
    full: Side,
    /// Everything that failed.
    pub(crate) failures: Failures,
}

impl RecordsFigures {
    /// Memory of each record beyond what its key and result take themselves.
    pub(crate) fn bytes_beyond(&self) -> f64 {
        self.filled.bytes_beyond()
    }

    /// The server's CPU time for a request, as a multiple of that without records; where it is known.
    pub(crate) fn cpu_ratio(&self) -> Option<f64> {
        let empty = self.empty.cpu_per_million().filter(|&cpu| cpu > 0.0)?;
        Some(self.full.cpu_per_million()? / empty)
    }

    /// The latency of a pair, as a multiple of that without records.
    pub(crate) fn p50_ratio(&self) -> f64 {
        let empty = self.empty.tally.quantile(0.5).as_secs_f64();
        if empty > 0.0 { self.full.tally.quantile(0.5).as_secs_f64() / empty } else { 0.0 }
    }

    /// Prints them.
    pub(crate) fn print(&self) {
        self.filled.print();
        print_side(&self.empty, "empty");
        print_side(&self.full, "full");
        let cpu = self.cpu_ratio().map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.2} ×"));
        println!("         server CPU per request {cpu}, pair p50 {:.2} × that of the empty store", self.p50_ratio());
        println!("all      failures: {}", self.failures);
    }
}

/// Measures a store with many records beside one that begins without any.
pub(crate) async fn measure_records(options: &EffectsOptions, records: u64) -> Result<RecordsFigures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    broker.daemon_mut()?;
    let filled = Filled::fill(&broker, &shape(options), records).await?;

    let _spinner = Spinner::new("comparing with an empty store");
    let empty_broker = Broker::open(&options.broker, &[]).await?;
    let shape = shape(options);
    let mut empty = Driven::<Effects>::connect(empty_broker.addr(), &shape, options.connections, None).await?;
    let mut full = Driven::<Effects>::connect(broker.addr(), &shape, options.connections, None).await?;
    for _ in 0..SLICES {
        empty.slice(length(options) / SLICES, || empty_broker.cpu()).await?;
        full.slice(length(options) / SLICES, || broker.cpu()).await?;
    }
    broker.warn_if_gone();
    let (mut empty, mut full) = (empty.side, full.side);
    (empty.memory, full.memory) = (empty_broker.memory(), broker.memory());
    let mut failures = filled.failures.clone();
    failures.merge(&empty.tally.failures);
    failures.merge(&full.tally.failures);
    Ok(RecordsFigures { filled, empty, full, failures })
}

impl Filled {
    /// Fills in so many records and weighs the broker before and after. The connections are there in either case.
    async fn fill(broker: &Broker, shape: &EffectShape, records: u64) -> Result<Self> {
        let spinner = Spinner::new("filling in records");
        let mut driven = Driven::<Effects>::connect(broker.addr(), shape, FILL_CONNECTIONS, None).await?;
        let before = memory(broker)?;
        let piece = records.div_ceil(FILL_PIECES);
        let mut left = records;
        while left > 0 {
            spinner.say(&format!("filling in records: {} of {}", grouped(records - left), grouped(records)));
            let now = piece.min(left);
            driven.drive(Until::Messages(now * PER_EFFECT), || None).await?;
            left -= now;
        }
        let (tally, took) = (driven.side.tally, driven.side.driven);
        let (records, payload_bytes) = (tally.latency.len(), shape.payload_bytes());
        Ok(Self { records, took, payload_bytes, before, after: memory(broker)?, failures: tally.failures })
    }

    /// Memory of each record.
    fn bytes_each(&self) -> f64 {
        let grown = self.after.resident_bytes.saturating_sub(self.before.resident_bytes);
        grown as f64 / self.records.max(1) as f64
    }

    /// Memory of each record beyond what its key and result take themselves.
    fn bytes_beyond(&self) -> f64 {
        (self.bytes_each() - self.payload_bytes as f64).max(0.0)
    }

    fn print(&self) {
        println!("records  {} live ones, filled in within {}", grouped(self.records), time(self.took));
        println!("         {}, before them {}", self.after, self.before);
        println!("         {:.0} B each, {} B of them key and result", self.bytes_each(), self.payload_bytes);
        println!("         beyond key and result: {:.0} B each", self.bytes_beyond());
    }
}

fn memory(broker: &Broker) -> Result<Memory> {
    broker.memory().ok_or_else(|| "the broker's memory cannot be read".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_execute_grants_a_token() {
        let execute: &[u8] = br#"{"decision":"EXECUTE","attempt":1,"lease_token":"t-1"}"#;
        assert_eq!(granted_token(200, execute), Some(b"t-1".as_slice()));
        assert_eq!(granted_token(409, execute), None);
        assert_eq!(granted_token(200, br#"{"decision":"REPLAY","lease_token":"t-1"}"#), None);
        assert_eq!(granted_token(200, br#"{"decision":"EXECUTE"}"#), None);
    }

    #[test]
    fn what_is_not_wanted_is_named_though_it_succeeds() {
        let mut failures = Failures::default();
        count_refusal(&mut failures, "begin", 200, br#"{"decision":"REPLAY"}"#);
        count_refusal(&mut failures, "begin", 409, br#"{"error":"FAILED_PRECONDITION","decision":"IN_PROGRESS"}"#);
        count_refusal(&mut failures, "finish", 200, b"{}");
        assert_eq!(failures.to_string(), "1 × begin 200 REPLAY, 1 × begin 409 FAILED_PRECONDITION, 1 × finish 200");
    }
}
