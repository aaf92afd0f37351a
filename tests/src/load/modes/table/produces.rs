//! Rows of produces: rates, latencies and CPU costs of single ones and of batches.

use std::time::Duration;

use super::measurement::{Turns, of_each};
use super::names::RowName;
use super::options::TableOptions;
use super::rows::Reading;
use crate::load::cli::ProduceOptions;
use crate::load::error::Result;
use crate::load::modes::idle::raise_descriptor_limit;
use crate::load::modes::produce;
use crate::load::modes::slices::Figures;
use crate::load::report::{ServerStats, median, time};
use crate::numbers::grouped;

/// Bytes of each value.
const SIZE: u32 = 200;
/// Connections of most rows.
const CONNECTIONS: u32 = 64;
/// Descriptors of this process and of the broker beside its connections.
const FURTHER_DESCRIPTORS: u64 = 200;
/// How often the disk's latency counts beside hyper's.
const SYNCS: f64 = 1.3;

type Readings = Vec<(RowName, Reading)>;

/// Single produces.
pub(super) fn singles(options: &TableOptions, connections: u32, ceiling: bool) -> ProduceOptions {
    ProduceOptions {
        connections,
        size: SIZE,
        seconds: options.seconds,
        batch: 1,
        partitions: 1,
        ceiling,
        tls: false,
        rate: None,
        broker: options.broker.clone(),
    }
}

/// The same in 64 connections, without a ceiling.
pub(super) fn many_singles(options: &TableOptions) -> ProduceOptions {
    singles(options, CONNECTIONS, false)
}

/// Batches of 100 from 16 connections to 16 partitions.
pub(super) fn hundreds(options: &TableOptions) -> ProduceOptions {
    ProduceOptions { batch: 100, partitions: 16, ..singles(options, 16, false) }
}

/// Measures once, with a broker of its own, and prints.
pub(super) async fn measure_once(plan: &ProduceOptions, daemon_args: &[&str]) -> Result<Figures> {
    let figures = produce::measure(plan, daemon_args).await?;
    figures.print(ServerStats::print);
    Ok(figures)
}

async fn measure(
    turns: &mut Turns<'_>,
    plan: impl Fn(&TableOptions) -> ProduceOptions,
    daemon_args: &[&str],
) -> Result<Vec<Figures>> {
    let measure = async |options: &TableOptions, _turn| {
        let figures = measure_once(&plan(options), daemon_args).await?;
        let failures = figures.failures();
        Ok((figures, failures))
    };
    turns.each(measure).await
}

fn rates(all: &[Figures]) -> Vec<f64> {
    of_each(all, |figures| Some(figures.server.rate()))
}

/// The median over the turns of a quantile of the latencies.
fn quantile(all: &[Figures], quantile: f64) -> String {
    let seconds = of_each(all, |figures| Some(figures.server.stats.quantile(quantile).as_secs_f64()));
    time(Duration::from_secs_f64(median(seconds)))
}

pub(super) async fn beside_hyper(turns: &mut Turns<'_>) -> Result<Readings> {
    let all = measure(turns, |options| singles(options, CONNECTIONS, true), &[]).await?;
    let remark = format!("{}/s, p99 {}", grouped(median(rates(&all)) as u64), quantile(&all, 0.99));
    let cpu = of_each(&all, |figures| figures.server.cpu_per_million());
    Ok(vec![
        (RowName::ProducesHyper, Reading::of(of_each(&all, Figures::ratio)).remark(remark)),
        (RowName::ProducesCpu, Reading::of(cpu)),
    ])
}

pub(super) async fn one_connection(turns: &mut Turns<'_>) -> Result<Readings> {
    let all = measure(turns, |options| singles(options, 1, true), &[]).await?;
    let p50 = |server: &ServerStats| micros(server.stats.quantile(0.5));
    let own = |figures: &Figures| Some(p50(&figures.server));
    let hyper = |figures: &Figures| figures.ceiling.as_ref().map(p50);
    let sync = |figures: &Figures| figures.fdatasync_p50.map(micros);
    let beyond = of_each(&all, |figures| Some(own(figures)? - hyper(figures)? - SYNCS * sync(figures)?));
    let middle = |of: &dyn Fn(&Figures) -> Option<f64>| format!("{:.0} µs", median(of_each(&all, of)));
    let remark = format!("p50 {}, hyper's {}, fdatasync {}", middle(&own), middle(&hyper), middle(&sync));
    Ok(vec![(RowName::OneConnection, Reading::of(beyond).remark(remark))])
}

pub(super) async fn batches(turns: &mut Turns<'_>) -> Result<Readings> {
    let all = measure(turns, hundreds, &[]).await?;
    Ok(vec![(RowName::Batches, Reading::of(rates(&all)))])
}

pub(super) async fn slow_sync(turns: &mut Turns<'_>, row: RowName, connections: u32) -> Result<Readings> {
    raise_descriptor_limit(u64::from(connections) + FURTHER_DESCRIPTORS)?;
    let all = measure(turns, |options| singles(options, connections, false), &["--sync-delay-ms", "2"]).await?;
    let remark = format!("p50 {}, p99 {}", quantile(&all, 0.5), quantile(&all, 0.99));
    Ok(vec![(row, Reading::of(rates(&all)).remark(remark))])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
