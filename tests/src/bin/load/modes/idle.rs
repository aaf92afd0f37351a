//! `load idle`: what streams cost that bring nothing, and what a broker does when there is nothing to do.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;
use crate::broker::Broker;
use crate::cli::IdleOptions;
use crate::client::{Connection, get};
use crate::modes::consumers::consume_target;
use crate::procfs::Memory;
use crate::progress::Spinner;
use crate::report::{Failures, grouped};

/// Streams from one local address: well below the ports it has.
const STREAMS_PER_ADDRESS: u32 = 10_000;
/// Descriptors a process needs besides its streams.
const FURTHER_DESCRIPTORS: u64 = 200;

/// What `idle` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    streams: u32,
    before: Memory,
    after: Memory,
    /// Part of a core the broker takes without any stream.
    pub(crate) cpu_without: f64,
    /// Part of a core the broker takes with the streams open.
    pub(crate) cpu_with: f64,
    /// Streams that were refused.
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

    /// Prints them.
    pub(crate) fn print(&self) {
        println!("idle     {:.2} % of a core, {}", self.cpu_without * 100.0, self.before);
        println!("streams  {} open, {}", grouped(u64::from(self.streams)), self.after);
        println!("         {} B each, {:.2} % of a core", grouped(self.bytes_each()), self.cpu_with * 100.0);
        println!("         failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &IdleOptions) -> Result<Figures> {
    // The daemon is our child and has the same limit.
    raise_descriptor_limit(u64::from(options.streams) + FURTHER_DESCRIPTORS)?;
    let broker = Broker::open(&options.broker, &[]).await?;
    let topic = broker.new_topic(1).await?;
    let watch = Duration::from_secs_f64(options.seconds.max(0.01));
    let cpu_without = watch_cpu(&broker, watch, "watching the idle broker").await?;
    let before = memory(&broker)?;

    let mut failures = Failures::default();
    let mut streams = Vec::with_capacity(options.streams as usize);
    {
        let _spinner = Spinner::new("opening streams");
        for index in 0..options.streams {
            match open(broker.addr(), &topic, index).await {
                Ok((stream, 200)) => streams.push(stream),
                Ok((stream, status)) => failures.answered(status, stream.body()),
                Err(error) => failures.named(&format!("stream: {error}")),
            }
        }
    }
    let after = memory(&broker)?;
    let cpu_with = watch_cpu(&broker, watch, "watching the broker with idle streams").await?;
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

fn memory(broker: &Broker) -> Result<Memory> {
    broker.memory().ok_or_else(|| "the broker's memory cannot be read; with --url name its --pid".into())
}

async fn watch_cpu(broker: &Broker, length: Duration, doing: &str) -> Result<f64> {
    let _spinner = Spinner::new(doing);
    // What starting or opening streams has left behind is not idling.
    tokio::time::sleep(length.min(Duration::from_secs(1)) / 2).await;
    let unknown = "the broker's CPU time cannot be read; with --url name its --pid";
    let (before, begun) = (broker.cpu().ok_or(unknown)?, Instant::now());
    tokio::time::sleep(length).await;
    let used = broker.cpu().ok_or(unknown)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// Allows this process, and those it starts, so many descriptors.
fn raise_descriptor_limit(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .map_err(|error| format!("{wanted} descriptors are not allowed here: {error}").into())
}
