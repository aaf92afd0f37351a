//! `load backlog`: what a large backlog costs in memory and in latency, and how fast a broker comes back with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Result;
use crate::broker::{Broker, get_status};
use crate::cli::BacklogOptions;
use crate::client::{Connection, Effect, Item, MessageShape, Progress, get};
use crate::drive::{Produces, Shape, Stamp};
use crate::modes::consumers::consume_target;
use crate::modes::fill;
use crate::modes::turns::Driven;
use crate::procfs::Memory;
use crate::progress::Spinner;
use crate::report::{Failures, Side, grouped, time};

/// Turns in which the empty broker and the full one are driven.
const SLICES: u32 = 4;
/// A broker that has not come back after this long has failed.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Between two attempts to reach a broker that is starting.
const POLL: Duration = Duration::from_millis(1);

/// What `backlog` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    messages: u64,
    /// Memory with the backlog.
    pub(crate) memory: Memory,
    /// Single produces on one connection to a broker that is empty.
    pub(crate) empty: Side,
    /// The same with the backlog.
    pub(crate) full: Side,
    /// From starting the program again to its first `readyz` of 200.
    pub(crate) ready_after: Duration,
    /// From starting the program again to the first item read.
    pub(crate) delivery_after: Duration,
    memory_after: Option<Memory>,
    /// Everything that failed.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &BacklogOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// The produce latency with the backlog, as a multiple of that without.
    pub(crate) fn p50_ratio(&self) -> f64 {
        let empty = self.empty.tally.quantile(0.5).as_secs_f64();
        if empty > 0.0 { self.full.tally.quantile(0.5).as_secs_f64() / empty } else { 0.0 }
    }

    /// Prints them.
    pub(crate) fn print(&self) {
        let per_message = self.memory.resident_bytes as f64 / self.messages.max(1) as f64;
        println!("backlog  {} messages, {}, {per_message:.0} B each", grouped(self.messages), self.memory);
        println!("empty    one connection: {}", self.empty.tally.latencies());
        println!("full     one connection: {}", self.full.tally.latencies());
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
    broker.daemon_mut()?;
    let topic = broker.new_topic(options.partitions).await?;
    let filled = fill(&broker, message(options, topic.clone()), options.messages).await?;
    let memory = broker.memory().ok_or("the broker's memory cannot be read")?;
    let mut failures = filled.failures.clone();

    let (empty, full) = compare(options, &broker, &topic).await?;
    failures.merge(&empty.tally.failures);
    failures.merge(&full.tally.failures);

    let _spinner = Spinner::new("restarting");
    let daemon = broker.daemon_mut()?;
    daemon.kill()?;
    let begun = daemon.restart()?;
    let addr = daemon.addr();
    let back = async { tokio::try_join!(first_ready(addr, begun), first_delivery(addr, &topic, begun)) };
    let (ready_after, delivery_after) = match tokio::time::timeout(BACK_WITHIN, back).await {
        Ok(times) => times?,
        Err(_) => {
            daemon.check_alive()?;
            return Err(format!("no delivery within {BACK_WITHIN:?} after the restart").into());
        }
    };
    let memory_after = crate::procfs::memory(daemon.pid());
    Ok(Figures { messages: filled.messages, memory, empty, full, ready_after, delivery_after, memory_after, failures })
}

fn message(options: &BacklogOptions, topic: String) -> MessageShape {
    MessageShape { topic, size: options.size, partitions: options.partitions, effect: Effect::None }
}

/// Drives an empty broker and the full one in turns, by single produces on one connection.
async fn compare(options: &BacklogOptions, full: &Broker, topic: &str) -> Result<(Side, Side)> {
    let _spinner = Spinner::new("comparing with an empty broker");
    let empty = Broker::open(&options.broker, &[]).await?;
    let shape = |topic| Shape { message: message(options, topic), batch: 1, stamp: Stamp::Number };
    let empty_topic = empty.new_topic(options.partitions).await?;
    let mut empty_side = Driven::<Produces>::connect(empty.addr(), &shape(empty_topic), 1, None).await?;
    let mut full_side = Driven::<Produces>::connect(full.addr(), &shape(topic.to_owned()), 1, None).await?;
    let slice = Duration::from_secs_f64(options.seconds.max(0.04)) / SLICES;
    for _ in 0..SLICES {
        empty_side.slice(slice, || empty.cpu()).await?;
        full_side.slice(slice, || full.cpu()).await?;
    }
    Ok((empty_side.side, full_side.side))
}

async fn first_ready(addr: SocketAddr, begun: Instant) -> Result<Duration> {
    loop {
        if matches!(get_status(addr, "/v1/readyz").await, Ok(200)) {
            return Ok(begun.elapsed());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Asks for a stream until there is one, then reads until there is an item.
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
                Item::scan(line).ok_or("the first line after the restart is no item")?;
                return Ok(begun.elapsed());
            }
            stream.consume_body(end + 1);
        } else if stream.read_more().await? == Progress::Done && stream.body().is_empty() {
            return Err("the stream ended before its first item".into());
        }
    }
}
