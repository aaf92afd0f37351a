//! `load backlog`: memory and latency with a large backlog, and the time of a restart with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::load::broker::{Broker, get_status};
use crate::load::cli::BacklogOptions;
use crate::load::client::{Connection, Effect, Item, MessageShape, ResponseState, get};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
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

/// What `backlog` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    messages: u64,
    /// Memory with the backlog.
    pub(crate) memory: Memory,
    /// Single produces on one connection to an empty broker.
    pub(crate) empty: ServerStats,
    /// The same with the backlog.
    pub(crate) full: ServerStats,
    /// From the start of the process to the first 200 of `readyz`.
    pub(crate) ready_after: Duration,
    /// From the start of the process to the first item read.
    pub(crate) delivery_after: Duration,
    memory_after: Option<Memory>,
    /// All failures.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &BacklogOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
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
        println!("         failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &BacklogOptions) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    broker.require_own()?;
    let topic = broker.create_topic(options.partitions).await?;
    let filled = fill(&broker, message(options, topic.clone()), options.messages).await?;
    let memory = broker.require_memory()?;
    let mut failures = filled.failures.clone();

    let (empty, full) = compare(options, &broker, &topic).await?;
    failures.merge(&empty.stats.failures);
    failures.merge(&full.stats.failures);

    let _progress = Progress::spinner("restarting");
    let begun = broker.kill_and_relaunch()?;
    let addr = broker.addr();
    let back = async { tokio::try_join!(first_ready(addr, begun), first_delivery(addr, &topic, begun)) };
    let (ready_after, delivery_after) = match tokio::time::timeout(RESTART_WITHIN, back).await {
        Ok(times) => times?,
        Err(_) => {
            broker.check_alive()?;
            return Err(format!("no delivery within {RESTART_WITHIN:?} after the restart").into());
        }
    };
    let memory_after = broker.memory();
    Ok(Figures { messages: filled.messages, memory, empty, full, ready_after, delivery_after, memory_after, failures })
}

fn message(options: &BacklogOptions, topic: String) -> MessageShape {
    MessageShape { topic, size: options.size, partitions: options.partitions, effect: Effect::None }
}

/// Drives an empty broker and the full one in alternating slices, with single produces on one connection.
async fn compare(options: &BacklogOptions, full: &Broker, topic: &str) -> Result<(ServerStats, ServerStats)> {
    let _progress = Progress::spinner("comparing with an empty broker");
    let empty = Broker::open(&options.broker, &[]).await?;
    let shape = |topic| Shape { message: message(options, topic), batch: 1, stamp: Stamp::Number };
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
