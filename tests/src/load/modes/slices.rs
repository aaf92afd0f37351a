//! A broker driven alone, or in alternating slices with a bare server.

use std::net::SocketAddr;
use std::time::Duration;

use crate::load::broker::Broker;
use crate::load::ceiling::Ceiling;
use crate::load::disk::SyncProbe;
use crate::load::drive::{Caller, Drive, Until, Work, drive};
use crate::load::error::Result;
use crate::load::report::{Failures, ServerStats, ratio_line, time};
use crate::procfs;

/// With a ceiling, the two are driven in slices of this length, so that other load on the machine affects both equally.
/// In shorter slices the wait for the last responses, in which connections idle, would begin to count.
const SLICE: Duration = Duration::from_millis(500);
/// Each is first driven for at most this long without counting, to warm up connections, caches and files.
const WARM_UP: Duration = Duration::from_millis(300);
/// Above this use of cores by other programs, a ratio is not reliable. Chosen: at 1.4 cores two equal servers measured
/// between 0.57 and 1.34 of each other; lower values were not measured.
const QUIET_CORES: f64 = 0.3;
/// Samples of the disk in total, spread over the pauses between slices.
const SYNCS: u32 = 200;

/// How a server is driven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Keep-alive connections.
    pub(crate) connections: u32,
    /// For how long; with a ceiling, each of the two servers.
    pub(crate) length: Duration,
    /// The most messages per second.
    pub(crate) rate: Option<f64>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    /// The broker.
    pub(crate) server: ServerStats,
    /// The bare server, if one was driven.
    pub(crate) ceiling: Option<ServerStats>,
    /// The median cost of a sync on the broker's disk, if known.
    pub(crate) fdatasync_p50: Option<Duration>,
}

impl Figures {
    /// Prints all but the ratio, each server with `print_server`.
    pub(crate) fn print(&self, print_server: impl Fn(&ServerStats, &str)) {
        if let Some(sync) = self.fdatasync_p50 {
            println!("disk     fdatasync p50 {}", time(sync));
        }
        if let Some(ceiling) = &self.ceiling {
            print_server(ceiling, "ceiling");
        }
        print_server(&self.server, "server");
        if self.ceiling.is_some() && self.server.others_cores().is_some_and(|cores| cores > QUIET_CORES) {
            eprintln!("warning: other programs were running; compare the CPU per million rather than the rates");
        }
    }

    /// Prints the ratio, if there is a ceiling.
    pub(crate) fn print_ratio(&self) {
        if let Some(ceiling) = &self.ceiling {
            println!("{}", ratio_line(self.server.rate(), ceiling.rate()));
        }
    }

    /// The ratio of the broker's rate to the ceiling's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let ceiling = self.ceiling.as_ref()?.rate();
        (ceiling > 0.0).then(|| self.server.rate() / ceiling)
    }

    /// The failures of both servers.
    pub(crate) fn failures(&self) -> Failures {
        let mut failures = self.server.stats.failures.clone();
        if let Some(ceiling) = &self.ceiling {
            failures.merge(&ceiling.stats.failures);
        }
        failures
    }
}

/// Drives the broker and, if there is one, the ceiling.
pub(crate) async fn measure<W: Work>(
    broker: &mut Broker,
    ceiling: Option<Ceiling>,
    shape: &W::Shape,
    pace: Pace,
) -> Result<Figures> {
    let mut probe = broker.probe_disk()?;
    let mut broker_target = Target::<W>::connect(broker.addr(), shape, pace).await?;
    let mut ceiling_target = match &ceiling {
        Some(ceiling) => Some(Target::<W>::connect(ceiling.addr(), shape, pace).await?),
        None => None,
    };
    let count = pace.length.as_secs_f64() / SLICE.as_secs_f64();
    let slices = if ceiling.is_some() { count.round().max(1.0) as u32 } else { 1 };
    sample(&mut probe, slices)?;
    for _ in 0..slices {
        if let (Some(target), Some(ceiling)) = (&mut ceiling_target, &ceiling) {
            target.slice(pace.length / slices, || ceiling.cpu()).await?;
        }
        broker_target.slice(pace.length / slices, || broker.cpu()).await?;
        sample(&mut probe, slices)?;
    }
    broker.warn_if_exited();
    broker_target.server.memory = broker.memory();
    let ceiling = ceiling.zip(ceiling_target).map(|(ceiling, mut target)| {
        target.server.memory = ceiling.memory();
        target.server
    });
    Ok(Figures { server: broker_target.server, ceiling, fdatasync_p50: probe.and_then(SyncProbe::p50) })
}

/// Samples the disk while nothing is driven: before the first slice and after each.
fn sample(probe: &mut Option<SyncProbe>, slices: u32) -> Result<()> {
    probe.as_mut().map_or(Ok(()), |probe| probe.sample(SYNCS.div_ceil(slices + 1)))
}

/// A server under load: its callers and its statistics so far.
#[derive(Debug)]
pub(crate) struct Target<W> {
    callers: Vec<Caller<W>>,
    rate: Option<f64>,
    /// Its statistics.
    pub(crate) server: ServerStats,
}

impl<W: Work> Target<W> {
    /// Connects and warms up.
    pub(crate) async fn connect(addr: SocketAddr, shape: &W::Shape, pace: Pace) -> Result<Self> {
        let callers = Caller::connect(addr, shape, pace.connections).await?;
        let mut target = Self { callers, rate: pace.rate, server: ServerStats::default() };
        target.slice(WARM_UP.min(pace.length), || None).await?;
        // Of the warm-up only the failures count.
        let mut server = ServerStats::default();
        server.stats.failures = std::mem::take(&mut target.server.stats.failures);
        target.server = server;
        Ok(target)
    }

    /// Drives the server for a slice.
    pub(crate) async fn slice(&mut self, length: Duration, cpu: impl Fn() -> Option<Duration>) -> Result<()> {
        self.drive(Until::Elapsed(length), cpu).await
    }

    /// Drives the server.
    pub(crate) async fn drive(&mut self, until: Until, cpu: impl Fn() -> Option<Duration>) -> Result<()> {
        let (cpu_before, own_before, all_before) = (cpu(), procfs::own_cpu_time(), procfs::machine_cpu_time());
        let (callers, stats, took) = drive(std::mem::take(&mut self.callers), Drive { until, rate: self.rate }).await?;
        self.callers = callers;
        self.server.stats.merge(&stats);
        self.server.driven += took;
        let own = procfs::own_cpu_time().saturating_sub(own_before);
        self.server.client_cpu += own;
        if let (Some(before), Some(after)) = (cpu_before, cpu()) {
            let server = after.saturating_sub(before);
            *self.server.cpu.get_or_insert_default() += server;
            let all = all_before.zip(procfs::machine_cpu_time()).map(|(before, after)| after.saturating_sub(before));
            *self.server.others_cpu.get_or_insert_default() += all.unwrap_or_default().saturating_sub(server + own);
        }
        Ok(())
    }
}
