//! A broker driven alone, or in alternating slices with a bare server.

use std::time::Duration;

use crate::load::broker::Broker;
use crate::load::ceiling::Ceiling;
use crate::load::cli::BrokerOptions;
use crate::load::client::Endpoint;
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
pub(crate) const QUIET_CORES: f64 = 0.3;
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
    let mut broker_target = Target::<W>::connect(broker.server(), shape, pace).await?;
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

/// Drives a broker beside a new one in turns, in alternating slices; the new one is another in every turn, so that it
/// remembers only what it is driven with in that turn. `shapes` makes the shapes of the work on the new broker and on
/// the other. Returns the statistics of each turn in the same order.
pub(crate) async fn beside_new<W: Work>(
    broker: &Broker,
    options: &BrokerOptions,
    pace: Pace,
    turns: u32,
    shapes: impl AsyncFn(&Broker, u32) -> Result<[W::Shape; 2]>,
) -> Result<Vec<[ServerStats; 2]>> {
    let slices = (pace.length.as_secs_f64() / SLICE.as_secs_f64()).round().max(1.0) as u32;
    let mut all = Vec::new();
    for turn in 0..turns {
        let new = Broker::open(options, &[]).await?;
        let [new_shape, shape] = shapes(&new, turn).await?;
        let mut new_target = Target::<W>::connect(new.addr(), &new_shape, pace).await?;
        let mut target = Target::<W>::connect(broker.addr(), &shape, pace).await?;
        for _ in 0..slices {
            new_target.slice(pace.length / slices, || new.cpu()).await?;
            target.slice(pace.length / slices, || broker.cpu()).await?;
        }
        (new_target.server.memory, target.server.memory) = (new.memory(), broker.memory());
        all.push([new_target.server, target.server]);
    }
    Ok(all)
}

/// Drives two brokers in alternating slices. Returns the statistics of each.
pub(crate) async fn in_turns<W: Work>(
    brokers: [&Broker; 2],
    shapes: &[W::Shape; 2],
    pace: Pace,
) -> Result<[ServerStats; 2]> {
    let [one, other] = brokers;
    let mut one_target = Target::<W>::connect(one.server(), &shapes[0], pace).await?;
    let mut other_target = Target::<W>::connect(other.server(), &shapes[1], pace).await?;
    let slices = (pace.length.as_secs_f64() / SLICE.as_secs_f64()).round().max(1.0) as u32;
    for _ in 0..slices {
        one_target.slice(pace.length / slices, || one.cpu()).await?;
        other_target.slice(pace.length / slices, || other.cpu()).await?;
    }
    (one_target.server.memory, other_target.server.memory) = (one.memory(), other.memory());
    Ok([one_target.server, other_target.server])
}

/// The statistics of all turns together.
pub(crate) fn sums(turns: &[[ServerStats; 2]]) -> [ServerStats; 2] {
    let mut sums = [ServerStats::default(), ServerStats::default()];
    for turn in turns {
        sums.iter_mut().zip(turn).for_each(|(sum, server)| sum.merge(server));
    }
    sums
}

/// How often a figure of the second is that of the first, for each turn where both are known and not 0.
pub(crate) fn ratios(turns: &[[ServerStats; 2]], figure: impl Fn(&ServerStats) -> Option<f64>) -> Vec<f64> {
    let ratio = |[one, other]: &[ServerStats; 2]| Some(figure(other)? / figure(one).filter(|&one| one > 0.0)?);
    turns.iter().filter_map(ratio).collect()
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
    pub(crate) async fn connect(server: impl Into<Endpoint>, shape: &W::Shape, pace: Pace) -> Result<Self> {
        let callers = Caller::connect(server, shape, pace.connections).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_each_turn_where_both_are_known() {
        let server = |cpu: Option<u64>| {
            let mut server = ServerStats { cpu: cpu.map(Duration::from_millis), ..ServerStats::default() };
            server.stats.messages = 1_000;
            server
        };
        let turns =
            [[server(Some(10)), server(Some(15))], [server(Some(0)), server(Some(9))], [server(None), server(None)]];
        assert_eq!(ratios(&turns, ServerStats::cpu_per_million), [1.5]);
        let [one, other] = sums(&turns);
        assert_eq!((one.stats.messages, other.stats.messages), (3_000, 3_000));
    }
}
