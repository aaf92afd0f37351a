//! `load idle`: memory of idle streams, and CPU time of an idle broker.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::load::broker::Broker;
use crate::load::cli::IdleOptions;
use crate::load::client::{Connection, get};
use crate::load::error::Result;
use crate::load::modes::consumers::consume_target;
use crate::load::report::Failures;
use crate::numbers::grouped;
use crate::procfs::Memory;
use crate::progress::Progress;

/// Streams from one local address: well below its number of ports.
const STREAMS_PER_ADDRESS: u32 = 10_000;
/// Descriptors a process needs beside its streams.
const FURTHER_DESCRIPTORS: u64 = 200;

/// What `idle` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    streams: u32,
    before: Memory,
    after: Memory,
    /// Share of a core that the broker uses without streams.
    pub(crate) cpu_without: f64,
    /// Share of a core that the broker uses with the streams open.
    pub(crate) cpu_with: f64,
    /// Streams that failed.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &IdleOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// Memory of each stream.
    pub(crate) fn bytes_each(&self) -> u64 {
        self.after.resident_bytes.saturating_sub(self.before.resident_bytes) / u64::from(self.streams.max(1))
    }

    /// Prints the figures.
    pub(crate) fn print(&self) {
        println!("idle     {:.2} % of a core, {}", self.cpu_without * 100.0, self.before);
        println!("streams  {} open, {}", grouped(u64::from(self.streams)), self.after);
        println!("         {} B each, {:.2} % of a core", grouped(self.bytes_each()), self.cpu_with * 100.0);
        println!("         failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &IdleOptions) -> Result<Figures> {
    // The daemon is a child process and inherits the limit.
    raise_descriptor_limit(u64::from(options.streams) + FURTHER_DESCRIPTORS)?;
    let broker = Broker::open(&options.broker, &[]).await?;
    let topic = broker.create_topic(1).await?;
    let watch = Duration::from_secs_f64(options.seconds.max(0.01));
    let cpu_without = measure_cpu(&broker, watch, "measuring the idle broker").await?;
    let before = broker.require_memory()?;

    let mut failures = Failures::default();
    let mut streams = Vec::with_capacity(options.streams as usize);
    {
        let _progress = Progress::spinner("opening streams");
        for index in 0..options.streams {
            match open(broker.addr(), &topic, index).await {
                Ok((stream, 200)) => streams.push(stream),
                Ok((stream, status)) => failures.status(status, stream.body()),
                Err(error) => failures.named(&format!("stream: {error}")),
            }
        }
    }
    let after = broker.require_memory()?;
    let cpu_with = measure_cpu(&broker, watch, "measuring the broker with idle streams").await?;
    let streams = u32::try_from(streams.len())?;
    Ok(Figures { streams, before, after, cpu_without, cpu_with, failures })
}

async fn open(addr: SocketAddr, topic: &str, index: u32) -> std::io::Result<(Connection, u16)> {
    let request = get(addr, &consume_target(topic, "idle", &format!("i{index}"), None));
    let mut stream = match addr.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let host = u8::try_from(1 + index / STREAMS_PER_ADDRESS).unwrap_or(u8::MAX);
            Connection::connect_from(Ipv4Addr::new(127, 0, 0, host).into(), addr).await?
        }
        _ => Connection::connect(addr).await?,
    };
    let status = stream.open_stream(&request).await?;
    Ok((stream, status))
}

async fn measure_cpu(broker: &Broker, length: Duration, doing: &str) -> Result<f64> {
    let _progress = Progress::spinner(doing);
    // Work left from the start or from opening streams is not idle time.
    tokio::time::sleep(length.min(Duration::from_secs(1)) / 2).await;
    let unknown = "the broker's CPU time cannot be read; with --url add --pid";
    let (before, begun) = (broker.cpu().ok_or(unknown)?, Instant::now());
    tokio::time::sleep(length).await;
    let used = broker.cpu().ok_or(unknown)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// Raises the descriptor limit of this process and its children.
pub(crate) fn raise_descriptor_limit(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .map_err(|error| format!("{wanted} descriptors are not allowed here: {error}").into())
}
