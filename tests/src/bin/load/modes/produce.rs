//! `load produce`: how many messages the broker takes, and how that compares with a server that only speaks HTTP.

use std::time::Duration;

use crate::Result;
use crate::broker::Broker;
use crate::ceiling::Ceiling;
use crate::cli::ProduceOptions;
use crate::disk::SyncProbe;
use crate::drive::{Drive, Lane, Shape, Stamp, Until, drive};
use crate::procfs;
use crate::progress::Spinner;
use crate::report::{Failures, Side, ratio_line, time};

/// With a ceiling, the two are driven in turns of this length, so that what else the machine does hits both alike. In
/// shorter turns the wait for the last answers, during which connections idle, would begin to count.
const SLICE: Duration = Duration::from_millis(500);
/// Each is driven for so long first, without counting: connections, caches and files are warm then.
const WARM_UP: Duration = Duration::from_millis(300);
/// Where other programs take more than this of a core, a ratio is doubted. A choice: at 1.4 cores two servers of the same
/// kind came out between 0.57 and 1.34 of each other; where below that it begins was not measured.
const QUIET_CORES: f64 = 0.3;
/// Samples of the disk in all, spread over the pauses between the turns.
const SYNCS: u32 = 200;

/// What `produce` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    /// The broker.
    pub(crate) server: Side,
    /// The bare server, where one was driven too.
    pub(crate) ceiling: Option<Side>,
    /// What a sync costs on the broker's disk, where that is known.
    pub(crate) fdatasync_p50: Option<Duration>,
}

/// Measures and prints.
pub(crate) async fn run(options: &ProduceOptions) -> Result<Failures> {
    let figures = measure(options, &[]).await?;
    figures.print();
    let mut failures = figures.server.tally.failures.clone();
    if let Some(ceiling) = &figures.ceiling {
        failures.merge(&ceiling.tally.failures);
        println!("{}", ratio_line(figures.server.rate(), ceiling.rate()));
    }
    Ok(failures)
}

impl Figures {
    /// Prints all but the ratio.
    pub(crate) fn print(&self) {
        if let Some(sync) = self.fdatasync_p50 {
            println!("disk     fdatasync p50 {}", time(sync));
        }
        if let Some(ceiling) = &self.ceiling {
            ceiling.print("ceiling");
        }
        self.server.print("server");
        if self.ceiling.is_some() && self.server.others_cores().is_some_and(|cores| cores > QUIET_CORES) {
            eprintln!("warning: the machine was not quiet; compare the CPU per million rather than the rates");
        }
    }

    /// The broker's part of the ceiling's rate.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let ceiling = self.ceiling.as_ref()?.rate();
        (ceiling > 0.0).then(|| self.server.rate() / ceiling)
    }
}

/// Measures; the daemon, if it is started here, is given further arguments.
pub(crate) async fn measure(options: &ProduceOptions, daemon_args: &[&str]) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, daemon_args).await?;
    let mut probe = broker.probe_disk()?;
    let topic = broker.new_topic(options.partitions).await?;
    let shape = Shape { topic, size: options.size, batch: options.batch, partitions: options.partitions };
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let _spinner = Spinner::new("producing");

    let mut server_side = Driven::connect(broker.addr(), &shape, options).await?;
    let mut ceiling_side = match &ceiling {
        Some(ceiling) => Some(Driven::connect(ceiling.addr(), &shape, options).await?),
        None => None,
    };
    let whole = Duration::from_secs_f64(options.seconds.max(0.01));
    let slices = if options.ceiling { (whole.as_secs_f64() / SLICE.as_secs_f64()).round().max(1.0) as u32 } else { 1 };
    sample(&mut probe, slices)?;
    for _ in 0..slices {
        if let (Some(side), Some(ceiling)) = (&mut ceiling_side, &ceiling) {
            side.slice(whole / slices, || ceiling.cpu()).await?;
        }
        server_side.slice(whole / slices, || broker.cpu()).await?;
        sample(&mut probe, slices)?;
    }
    broker.warn_if_gone();
    server_side.side.memory = broker.memory();
    let ceiling = ceiling.zip(ceiling_side).map(|(ceiling, mut driven)| {
        driven.side.memory = ceiling.memory();
        driven.side
    });
    Ok(Figures { server: server_side.side, ceiling, fdatasync_p50: probe.and_then(SyncProbe::p50) })
}

/// Samples the disk while nothing is driven: before the first turn, and after each of so many.
fn sample(probe: &mut Option<SyncProbe>, slices: u32) -> Result<()> {
    probe.as_mut().map_or(Ok(()), |probe| probe.sample(SYNCS.div_ceil(slices + 1)))
}

/// A server's lanes and what they have measured so far.
#[derive(Debug)]
pub(crate) struct Driven {
    lanes: Vec<Lane>,
    rate: Option<f64>,
    /// What was measured.
    pub(crate) side: Side,
}

impl Driven {
    async fn connect(addr: std::net::SocketAddr, shape: &Shape, options: &ProduceOptions) -> Result<Self> {
        Self::with(addr, shape, options.connections, options.rate).await
    }

    /// Connects and warms up.
    pub(crate) async fn with(
        addr: std::net::SocketAddr,
        shape: &Shape,
        connections: u32,
        rate: Option<f64>,
    ) -> Result<Self> {
        let lanes = Lane::connect(addr, shape, connections).await?;
        let mut driven = Self { lanes, rate, side: Side::default() };
        driven.slice(WARM_UP, || None).await?;
        // What failed in the warm-up has failed; the rest of it is not counted.
        let mut side = Side::default();
        side.tally.failures = std::mem::take(&mut driven.side.tally.failures);
        driven.side = side;
        Ok(driven)
    }

    /// Drives the server for a slice.
    pub(crate) async fn slice(&mut self, length: Duration, cpu: impl Fn() -> Option<Duration>) -> Result<()> {
        let (cpu_before, own_before, all_before) = (cpu(), procfs::own_cpu_time(), procfs::machine_cpu_time());
        let plan = Drive { until: Until::Elapsed(length), rate: self.rate, stamp: Stamp::Number };
        let (lanes, tally, took) = drive(std::mem::take(&mut self.lanes), plan).await?;
        self.lanes = lanes;
        self.side.tally.merge(&tally);
        self.side.driven += took;
        let own = procfs::own_cpu_time().saturating_sub(own_before);
        self.side.client_cpu += own;
        if let (Some(before), Some(after)) = (cpu_before, cpu()) {
            let server = after.saturating_sub(before);
            *self.side.cpu.get_or_insert_default() += server;
            let all = all_before.zip(procfs::machine_cpu_time()).map(|(before, after)| after.saturating_sub(before));
            *self.side.others_cpu.get_or_insert_default() += all.unwrap_or_default().saturating_sub(server + own);
        }
        Ok(())
    }
}
