//! A broker driven alone, or in turns with a bare server, and what came of it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Result;
use crate::broker::Broker;
use crate::ceiling::Ceiling;
use crate::disk::SyncProbe;
use crate::drive::{Drive, Lane, Until, Work, drive};
use crate::procfs;
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

/// How a broker is driven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Keep-alive connections.
    pub(crate) connections: u32,
    /// For how long; with a ceiling, each of the two.
    pub(crate) length: Duration,
    /// Messages per second at the most.
    pub(crate) rate: Option<f64>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    /// The broker.
    pub(crate) server: Side,
    /// The bare server, where one was driven too.
    pub(crate) ceiling: Option<Side>,
    /// What a sync costs on the broker's disk, where that is known.
    pub(crate) fdatasync_p50: Option<Duration>,
}

impl Figures {
    /// Prints all but the ratio, the sides as they are wanted.
    pub(crate) fn print(&self, print_side: impl Fn(&Side, &str)) {
        if let Some(sync) = self.fdatasync_p50 {
            println!("disk     fdatasync p50 {}", time(sync));
        }
        if let Some(ceiling) = &self.ceiling {
            print_side(ceiling, "ceiling");
        }
        print_side(&self.server, "server");
        if self.ceiling.is_some() && self.server.others_cores().is_some_and(|cores| cores > QUIET_CORES) {
            eprintln!("warning: the machine was not quiet; compare the CPU per million rather than the rates");
        }
    }

    /// Prints the ratio, where there is one.
    pub(crate) fn print_ratio(&self) {
        if let Some(ceiling) = &self.ceiling {
            println!("{}", ratio_line(self.server.rate(), ceiling.rate()));
        }
    }

    /// The broker's part of the ceiling's rate.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let ceiling = self.ceiling.as_ref()?.rate();
        (ceiling > 0.0).then(|| self.server.rate() / ceiling)
    }

    /// What failed on either side.
    pub(crate) fn failures(&self) -> Failures {
        let mut failures = self.server.tally.failures.clone();
        if let Some(ceiling) = &self.ceiling {
            failures.merge(&ceiling.tally.failures);
        }
        failures
    }
}

/// Drives the broker and, where there is one, the ceiling.
pub(crate) async fn measure<W: Work>(
    broker: &mut Broker,
    ceiling: Option<Ceiling>,
    shape: &W::Shape,
    pace: Pace,
) -> Result<Figures> {
    let mut probe = broker.probe_disk()?;
    let mut server_side = Driven::<W>::connect(broker.addr(), shape, pace.connections, pace.rate).await?;
    let mut ceiling_side = match &ceiling {
        Some(ceiling) => Some(Driven::<W>::connect(ceiling.addr(), shape, pace.connections, pace.rate).await?),
        None => None,
    };
    let turns = pace.length.as_secs_f64() / SLICE.as_secs_f64();
    let slices = if ceiling.is_some() { turns.round().max(1.0) as u32 } else { 1 };
    sample(&mut probe, slices)?;
    for _ in 0..slices {
        if let (Some(side), Some(ceiling)) = (&mut ceiling_side, &ceiling) {
            side.slice(pace.length / slices, || ceiling.cpu()).await?;
        }
        server_side.slice(pace.length / slices, || broker.cpu()).await?;
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
pub(crate) struct Driven<W> {
    lanes: Vec<Lane<W>>,
    rate: Option<f64>,
    /// What was measured.
    pub(crate) side: Side,
}

impl<W: Work> Driven<W> {
    /// Connects and warms up.
    pub(crate) async fn connect(
        addr: SocketAddr,
        shape: &W::Shape,
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
        self.drive(Until::Elapsed(length), cpu).await
    }

    /// Drives the server.
    pub(crate) async fn drive(&mut self, until: Until, cpu: impl Fn() -> Option<Duration>) -> Result<()> {
        let (cpu_before, own_before, all_before) = (cpu(), procfs::own_cpu_time(), procfs::machine_cpu_time());
        let (lanes, tally, took) = drive(std::mem::take(&mut self.lanes), Drive { until, rate: self.rate }).await?;
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
