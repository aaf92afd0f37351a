//! `load crowd`: connections that never send a request. What they cost the broker in memory, and other clients in time.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::load::broker::Broker;
use crate::load::cli::{BrokerOptions, CrowdKind, CrowdOptions};
use crate::load::client::{Connection, Effect, Endpoint, MessageShape};
use crate::load::drive::{Produces, Shape, Stamp, Until};
use crate::load::error::Result;
use crate::load::modes::idle::raise_descriptor_limit;
use crate::load::modes::slices::{Pace, Target};
use crate::load::report::{Failures, median, time};
use crate::numbers::grouped;
use crate::progress::Progress;

/// Connections of the clients that are measured.
const CLIENTS: u32 = 16;
/// Connections of the crowd from one local address: well below its number of ports.
const PER_ADDRESS: u32 = 10_000;
/// Connections that are opened at a time: fewer than wait to be accepted at most.
const OPENING_MAX: usize = 256;
/// How long a connection may take to open.
const OPEN_WITHIN: Duration = Duration::from_secs(30);
/// Descriptors a process needs beside the crowd.
const FURTHER_DESCRIPTORS: u64 = 300;
/// The broker may need this much memory for ten thousand of them, and others this many times their 99th percentile.
const GOAL_BYTES: u64 = 64 << 20;
const GOAL_RATIO: f64 = 2.0;

/// The beginning of a head.
const HEAD: &[u8] = b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nX-Part: ";
/// A head whose body does not come.
const BODY: &[u8] = b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
/// The beginning of a ClientHello: a record that is announced and does not come.
const HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

/// Measures and prints.
pub(crate) async fn run(options: &CrowdOptions) -> Result<Failures> {
    let kinds = if options.kind.is_empty() { CrowdKind::value_variants() } else { &options.kind };
    let mut failures = Failures::default();
    for kind in kinds {
        let figures = measure(options, *kind).await?;
        figures.print(options, *kind);
        failures.merge(&figures.failures);
    }
    Ok(failures)
}

/// What a crowd costs.
#[derive(Debug, Default)]
struct Figures {
    /// Memory of the broker beyond that before the first of them.
    bytes: u64,
    /// How many of them were open when they had been measured, in each turn.
    open: Vec<u64>,
    /// The 99th percentiles of the other clients' produces, without and with the crowd, in each turn.
    p99: Vec<[Duration; 2]>,
    failures: Failures,
}

impl Figures {
    fn print(&self, options: &CrowdOptions, kind: CrowdKind) {
        let ratio = median(self.p99.iter().map(|[without, with]| with.as_secs_f64() / without.as_secs_f64()).collect());
        let of = |at: usize| self.p99.iter().map(|both| time(both[at])).collect::<Vec<_>>().join(", ");
        let open = self.open.iter().map(|open| grouped(*open)).collect::<Vec<_>>().join(", ");
        let name = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        println!("{name:<8} {} connections, of which at the end {open} were open", grouped(options.connections.into()));
        println!(
            "         RSS + {:.1} MiB, goal {} MiB: {}",
            self.bytes as f64 / f64::from(1 << 20),
            GOAL_BYTES >> 20,
            verdict(self.bytes <= GOAL_BYTES)
        );
        println!("         produces of others, p99 without: {}; with: {}", of(0), of(1));
        println!("         ratio {ratio:.2}, goal {GOAL_RATIO:.2}: {}", verdict(ratio <= GOAL_RATIO));
        println!("         failures: {}", self.failures);
    }
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

async fn measure(options: &CrowdOptions, kind: CrowdKind) -> Result<Figures> {
    // The daemon is a child process and inherits the limit.
    raise_descriptor_limit(u64::from(options.connections) + FURTHER_DESCRIPTORS)?;
    let has_tls = matches!(kind, CrowdKind::Hello | CrowdKind::Tls);
    let broker = Broker::open(&BrokerOptions { has_tls, ..options.broker.clone() }, &[]).await?;
    broker.require_own()?;
    let topic = broker.create_topic(1).await?;
    let message = MessageShape { topic, size: 200, partitions: 1, effect: Effect::None };
    let shape = Shape { message, batch: 1, stamp: Stamp::Number };
    let length = Duration::from_secs_f64(options.seconds);
    let pace = Pace { connections: CLIENTS, length, rate: Some(options.rate) };
    let mut figures = Figures::default();
    let mut before = None;
    for _ in 0..options.turns {
        let without = p99(&broker, &shape, pace, &mut figures).await?;
        let before = *before.get_or_insert(broker.require_memory()?.resident_bytes);
        let crowd = {
            let _progress = Progress::spinner("opening connections");
            open(&broker, options.connections, kind, &mut figures.failures).await
        };
        let opened = broker.require_memory()?.resident_bytes;
        let with = p99(&broker, &shape, pace, &mut figures).await?;
        let after = broker.require_memory()?.resident_bytes;
        figures.bytes = figures.bytes.max(opened.max(after).saturating_sub(before));
        figures.open.push(open_of(&broker, crowd.len() as u64).await?);
        figures.p99.push([without, with]);
        drop(crowd);
        wait_until_closed(&broker).await?;
    }
    Ok(figures)
}

/// The 99th percentile of produces at the rate.
async fn p99(broker: &Broker, shape: &Shape, pace: Pace, figures: &mut Figures) -> Result<Duration> {
    let _progress = Progress::spinner("producing");
    let mut target = Target::<Produces>::connect(broker.server(), shape, pace).await?;
    target.drive(Until::Elapsed(pace.length), || None).await?;
    figures.failures.merge(&target.server.stats.failures);
    Ok(target.server.stats.quantile(0.99))
}

/// How many of a crowd of `count` the broker has open, once it has seen that the other clients are gone.
async fn open_of(broker: &Broker, count: u64) -> Result<u64> {
    loop {
        // Without the one that asks.
        let open = broker.open_connections().await?.saturating_sub(1);
        if open <= count {
            return Ok(open);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn wait_until_closed(broker: &Broker) -> Result<()> {
    for _ in 0..1_000 {
        if broker.open_connections().await? <= 1 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the broker keeps connections that its clients have closed".into())
}

/// A connection that sends no request, kept open.
type Member = Box<dyn Send>;

async fn open(broker: &Broker, count: u32, kind: CrowdKind, failures: &mut Failures) -> Vec<Member> {
    let mut opening = JoinSet::new();
    let mut crowd = Vec::with_capacity(count as usize);
    let mut take = |opened: Option<std::result::Result<Result<Member>, _>>| match opened {
        Some(Ok(Ok(member))) => crowd.push(member),
        Some(Ok(Err(error))) => failures.named(&format!("connection of the crowd: {error}")),
        Some(Err(_)) | None => failures.named("connection of the crowd"),
    };
    for index in 0..count {
        if opening.len() >= OPENING_MAX {
            take(opening.join_next().await);
        }
        let server = broker.server();
        opening.spawn(async move { tokio::time::timeout(OPEN_WITHIN, open_one(server, index, kind)).await? });
    }
    while !opening.is_empty() {
        take(opening.join_next().await);
    }
    crowd
}

async fn open_one(server: Endpoint, index: u32, kind: CrowdKind) -> Result<Member> {
    let host = u8::try_from(1 + index / PER_ADDRESS).unwrap_or(u8::MAX);
    let from = Ipv4Addr::new(127, 0, 0, host).into();
    let first = match kind {
        CrowdKind::Tls => return Ok(Box::new(Connection::connect_from(from, server).await?)),
        CrowdKind::Silent => &[][..],
        CrowdKind::Head => HEAD,
        CrowdKind::Body => BODY,
        CrowdKind::Hello => HELLO,
    };
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    let mut stream = socket.connect(server.addr).await?;
    stream.write_all(first).await?;
    Ok(Box::new(stream))
}
