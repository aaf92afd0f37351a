//! `load backlog`: memory, disk and latency with a large backlog, the time of a restart with it, and drains of it.

mod drain;
mod goals;
mod steady;
mod worker;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use self::drain::{Backlog, Drained, drain};
use self::goals::{Goal, Rows};
use crate::load::broker::{Broker, get_status};
use crate::load::cli::{BacklogOptions, BrokerOptions};
use crate::load::client::{Connection, Effect, Item, MessageShape, ResponseState, get};
use crate::load::disk::Written;
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::metrics::{LogCounters, ratio};
use crate::load::modes::consumers::consume_target;
use crate::load::modes::fill;
use crate::load::modes::slices::{Pace, Target};
use crate::load::report::{Failures, ServerStats, time};
use crate::numbers::grouped;
use crate::procfs::Memory;
use crate::progress::Progress;

/// Alternating slices in which the empty broker and the full one are driven.
const SLICES: u32 = 4;
/// How long a restart may take.
const RESTART_WITHIN: Duration = Duration::from_secs(60);
/// Between two attempts to reach a starting broker.
const POLL: Duration = Duration::from_millis(1);
/// A broker whose log and snapshots have not grown for this long is at rest.
const REST: Duration = Duration::from_millis(1_500);
/// How long to wait for that.
const REST_WITHIN: Duration = Duration::from_secs(30);
/// The number of the first message that is produced one by one, beyond those of the backlog.
const FIRST_SINGLE: u64 = 1 << 40;

/// What `backlog` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    messages: u64,
    size: u32,
    memory_bytes: Option<u64>,
    /// Memory with the backlog.
    pub(crate) memory: Memory,
    /// Counters of the log with the backlog, at rest.
    log: LogCounters,
    /// What the disk was given by then.
    written: Written,
    disk_used: u64,
    /// Single produces on one connection to an empty broker.
    pub(crate) empty: ServerStats,
    /// The same with the backlog.
    pub(crate) full: ServerStats,
    /// From the start of the process to the first 200 of `readyz`.
    pub(crate) ready_after: Duration,
    /// From the start of the process to the first item read.
    pub(crate) delivery_after: Duration,
    memory_after: Option<Memory>,
    memory_limit: Option<u64>,
    cold: Option<Drained>,
    warm: Option<Drained>,
    /// All failures.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &BacklogOptions) -> Result<Failures> {
    if let Some(seconds) = options.steady {
        return steady::run(options, Duration::from_secs_f64(seconds)).await;
    }
    let figures = measure(options).await?;
    figures.print();
    figures.rows().print();
    Ok(figures.failures)
}

impl Figures {
    /// The ratio of the median produce latencies with and without the backlog.
    pub(crate) fn p50_ratio(&self) -> f64 {
        let empty = self.empty.stats.quantile(0.5).as_secs_f64();
        if empty > 0.0 { self.full.stats.quantile(0.5).as_secs_f64() / empty } else { 0.0 }
    }

    /// Prints the figures.
    pub(crate) fn print(&self) {
        let per_message = self.memory.resident_bytes as f64 / self.messages.max(1) as f64;
        println!("backlog  {} messages, {}, {per_message:.0} B each", grouped(self.messages), self.memory);
        println!("         the broker estimates its state at {} B", grouped(self.log.state));
        print_appended(&self.log, &self.written);
        println!("disk     {} used, live {}", megabytes(self.disk_used), megabytes(self.log.live));
        println!("empty    one connection: {}", self.empty.stats.latencies());
        println!("full     one connection: {}", self.full.stats.latencies());
        println!("         p50 is {:.2} × that of the empty broker", self.p50_ratio());
        println!(
            "restart  after kill -9: ready {}, first delivery {}",
            time(self.ready_after),
            time(self.delivery_after)
        );
        if let Some(memory) = self.memory_after {
            println!("         then {memory}");
        }
        if let Some(cold) = &self.cold {
            cold.print("cold");
        }
        if let Some(warm) = &self.warm {
            warm.print("warm");
        }
        println!("         failures: {}", self.failures);
    }

    /// The goals for this size.
    fn rows(&self) -> Rows {
        let (mut rows, what) = (Rows::default(), format!("{} × {} B", grouped(self.messages), self.size));
        let resident = self.memory.resident_bytes as f64 / 1e6;
        let cache = self.memory_bytes.map_or_else(|| "its default".to_owned(), grouped);
        let is_small = (900_000..=1_100_000).contains(&self.messages) && self.size == 200;
        let is_large = (9_000_000..=11_000_000).contains(&self.messages) && (1_000..=1_024).contains(&self.size);
        let goal = match (is_small, is_large, self.memory_bytes) {
            (true, _, Some(bytes)) if bytes == 16 << 20 => Goal::AtMost { goal: 60.0, moonshot: 40.0, unit: " MB" },
            (_, true, None) => Goal::AtMost { goal: 600.0, moonshot: 450.0, unit: " MB" },
            (_, true, Some(bytes)) if bytes == 256 << 20 => Goal::AtMost { goal: 600.0, moonshot: 450.0, unit: " MB" },
            _ => Goal::None,
        };
        let work = format!("{what} queued: RSS, `memory_bytes` = {cache}");
        rows.add(&work, goal, resident, &format!("{resident:.0} MB"));
        let p50 = self.p50_ratio();
        let goal = Goal::AtMost { goal: 1.2, moonshot: 1.05, unit: " ×" };
        rows.add("produce p50 at that backlog against empty", goal, p50, &format!("{p50:.2} ×"));
        if let (Some(cold), Some(warm)) = (&self.cold, &self.warm) {
            let share = if warm.rate() > 0.0 { cold.rate() / warm.rate() } else { 0.0 };
            let rates = format!("{share:.2} ({} of {}/s)", grouped(cold.rate() as u64), grouped(warm.rate() as u64));
            let goal = Goal::AtLeast { goal: 0.7, moonshot: 0.9, unit: "" };
            rows.add("draining it cold against everything cached, NDJSON acks", goal, share, &rates);
        }
        let goal = match (is_small, is_large) {
            (true, _) => Goal::AtMost { goal: 0.3, moonshot: 0.15, unit: " s" },
            (_, true) => Goal::AtMost { goal: 1.5, moonshot: 0.6, unit: " s" },
            _ => Goal::None,
        };
        let measured = format!("ready {}, first delivery {}", time(self.ready_after), time(self.delivery_after));
        rows.add(&format!("restart, kill -9, {what}"), goal, self.ready_after.as_secs_f64(), &measured);
        let used = ratio(self.disk_used, self.log.live);
        let goal = Goal::AtMost { goal: 2.5, moonshot: 2.1, unit: "" };
        rows.add("disk used / live bytes, at rest", goal, used, &format!("{used:.2}"));
        if let Some(limit) = self.memory_limit {
            let memories = [Some(self.memory), self.cold.as_ref().and_then(|cold| cold.memory)];
            let peak = memories.iter().flatten().map(|memory| memory.peak_bytes).max().unwrap_or_default();
            let measured = format!("peak RSS {} of {}, all drained", megabytes(peak), megabytes(limit));
            let whole = if self.failures.is_empty() { measured } else { format!("failed: {}", self.failures) };
            rows.add(&format!("{what} with at most {} of private memory", megabytes(limit)), Goal::None, 0.0, &whole);
        }
        rows
    }
}

/// Prints what was appended, and beside it what the disk was given.
fn print_appended(log: &LogCounters, written: &Written) {
    println!(
        "log      {} of records, {} relocated, {} of snapshots: {:.2} × the records",
        megabytes(log.records()),
        megabytes(log.relocated),
        megabytes(log.snapshots),
        log.amplification()
    );
    let counted = [("write_bytes of the process", written.process), ("all writes to its device", written.device)];
    for (counter, bytes) in counted {
        let text = bytes.map_or_else(
            || "cannot be read".to_owned(),
            |bytes| format!("{}, {:.2} × the records", megabytes(bytes), ratio(bytes, log.records())),
        );
        println!("         the kernel's counter, {counter}, zeros ahead included: {text}");
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// The broker's options with the arguments that follow from those of the mode.
fn broker_options(options: &BacklogOptions, memory_bytes: Option<u64>) -> BrokerOptions {
    let mut broker = BrokerOptions { memory_limit: options.memory_limit, ..options.broker.clone() };
    let mut add = |name: &str, bytes: u64| broker.daemon_args.extend([name.to_owned(), bytes.to_string()]);
    if let Some(limit) = options.memory_limit {
        add("--state-bytes-max", limit / 2);
    }
    if let Some(bytes) = memory_bytes {
        add("--memory-bytes", bytes);
    }
    broker
}

/// Bytes of payloads that the broker may keep in memory; `None` for its default.
fn payload_memory(options: &BacklogOptions) -> Option<u64> {
    options.memory_bytes.or(options.memory_limit.map(|limit| limit / 5))
}

/// Measures.
pub(crate) async fn measure(options: &BacklogOptions) -> Result<Figures> {
    let broker_options = broker_options(options, payload_memory(options));
    let mut broker = Broker::open(&broker_options, &[]).await?;
    broker.require_own()?;
    let topic = broker.create_topic(options.partitions).await?;
    let written_before = broker.written();
    let filled = fill(&broker, message(options, topic.clone()), options.messages).await?;
    broker.check_alive()?;
    let memory = broker.require_memory()?;
    let mut failures = filled.failures.clone();
    let log = at_rest(&broker).await?;
    let (written, disk_used) = (broker.written().since(&written_before), broker.disk_used()?);

    let (empty, full) = compare(options, &broker_options, &broker, &topic).await?;
    failures.merge(&empty.stats.failures);
    failures.merge(&full.stats.failures);

    // Counted before the kill: what a restart loses is missed.
    let backlog = counted(&broker, &topic, filled.messages + full.stats.messages, options.size).await?;
    let (ready_after, delivery_after) = restart(&mut broker, &topic).await?;
    let memory_after = broker.memory();
    let cold = match options.cold || options.memory_limit.is_some() {
        true => Some(drain(&mut broker, &backlog, options.consumers, "draining, cold").await?),
        false => None,
    };
    drop(broker);
    let warm = if options.warm { Some(warm(options).await?) } else { None };
    for drained in [&cold, &warm].into_iter().flatten() {
        failures.merge(&drained.failures);
    }
    Ok(Figures {
        messages: filled.messages,
        size: options.size,
        memory_bytes: payload_memory(options),
        memory,
        log,
        written,
        disk_used,
        empty,
        full,
        ready_after,
        delivery_after,
        memory_after,
        memory_limit: options.memory_limit,
        cold,
        warm,
        failures,
    })
}

/// A topic with the count of its messages, which are at least those that were answered as stored.
async fn counted(broker: &Broker, topic: &str, stored: u64, size: u32) -> Result<Backlog> {
    let messages = broker.message_count(topic).await?;
    if messages < stored {
        return Err(format!("the topic has {messages} messages, although {stored} were stored").into());
    }
    Ok(Backlog { topic: topic.to_owned(), messages, size })
}

/// Kills the broker and starts it again. Returns how long it took until it was ready and until the first delivery.
async fn restart(broker: &mut Broker, topic: &str) -> Result<(Duration, Duration)> {
    let _progress = Progress::spinner("restarting");
    let begun = broker.kill_and_relaunch()?;
    let addr = broker.addr();
    let back = async { tokio::try_join!(first_ready(addr, begun), first_delivery(addr, topic, begun)) };
    match tokio::time::timeout(RESTART_WITHIN, back).await {
        Ok(times) => times,
        Err(_) => {
            broker.check_alive()?;
            Err(format!("no delivery within {RESTART_WITHIN:?} after the restart").into())
        }
    }
}

/// Fills a broker that keeps every payload in memory, and drains it.
async fn warm(options: &BacklogOptions) -> Result<Drained> {
    let messages = options.messages.min(options.warm_messages);
    // Far more than the payloads take with what is kept beside them.
    let memory_bytes = messages.saturating_mul(4 * (u64::from(options.size) + 256));
    let unlimited = BacklogOptions { memory_limit: None, ..options.clone() };
    let mut broker = Broker::open(&broker_options(&unlimited, Some(memory_bytes)), &[]).await?;
    let topic = broker.create_topic(options.partitions).await?;
    let filled = fill(&broker, message(options, topic.clone()), messages).await?;
    let backlog = counted(&broker, &topic, filled.messages, options.size).await?;
    let mut drained = drain(&mut broker, &backlog, options.consumers, "draining, cached").await?;
    drained.failures.merge(&filled.failures);
    Ok(drained)
}

/// Waits until the log and the snapshots do not grow any more, and returns the counters then.
async fn at_rest(broker: &Broker) -> Result<LogCounters> {
    let _progress = Progress::spinner("waiting for rest");
    let begun = Instant::now();
    let mut before = broker.log_counters().await?;
    loop {
        tokio::time::sleep(REST).await;
        let now = broker.log_counters().await?;
        if now == before || begun.elapsed() > REST_WITHIN {
            return Ok(now);
        }
        before = now;
    }
}

fn message(options: &BacklogOptions, topic: String) -> MessageShape {
    MessageShape { topic, size: options.size, partitions: options.partitions, effect: Effect::None }
}

/// Drives an empty broker and the full one in alternating slices, with single produces on one connection.
async fn compare(
    options: &BacklogOptions,
    empty: &BrokerOptions,
    full: &Broker,
    topic: &str,
) -> Result<(ServerStats, ServerStats)> {
    let _progress = Progress::spinner("comparing with an empty broker");
    let empty = Broker::open(empty, &[]).await?;
    let stamp = Stamp::Checked { first: FIRST_SINGLE };
    let shape = |topic| Shape { message: message(options, topic), batch: 1, stamp };
    let empty_topic = empty.create_topic(options.partitions).await?;
    let pace = Pace { connections: 1, length: Duration::from_secs_f64(options.seconds.max(0.04)), rate: None };
    let mut empty_target = Target::<Produces>::connect(empty.addr(), &shape(empty_topic), pace).await?;
    let mut full_target = Target::<Produces>::connect(full.addr(), &shape(topic.to_owned()), pace).await?;
    let slice = pace.length / SLICES;
    for _ in 0..SLICES {
        empty_target.slice(slice, || empty.cpu()).await?;
        full_target.slice(slice, || full.cpu()).await?;
    }
    Ok((empty_target.server, full_target.server))
}

async fn first_ready(addr: SocketAddr, begun: Instant) -> Result<Duration> {
    loop {
        if matches!(get_status(addr, "/v1/readyz").await, Ok(200)) {
            return Ok(begun.elapsed());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Retries until a stream is opened, then reads its first item.
async fn first_delivery(addr: SocketAddr, topic: &str, begun: Instant) -> Result<Duration> {
    let request = get(addr, &consume_target(topic, "after-restart", "first", Some(1)));
    loop {
        if let Ok(mut stream) = Connection::connect_for_stream(addr).await
            && matches!(stream.open_stream(&request).await, Ok(200))
        {
            return read_first_item(stream, begun).await;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn read_first_item(mut stream: Connection, begun: Instant) -> Result<Duration> {
    loop {
        let body = stream.body();
        if let Some(end) = body.iter().position(|&byte| byte == b'\n') {
            let line = body[..end].trim_ascii();
            if !line.is_empty() {
                Item::scan(line).ok_or("the first line after the restart is not an item")?;
                return Ok(begun.elapsed());
            }
            stream.consume_body(end + 1);
        } else if stream.read_more().await? == ResponseState::Complete && stream.body().is_empty() {
            return Err("the stream ended before its first item".into());
        }
    }
}
