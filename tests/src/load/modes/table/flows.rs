//! Rows of messages on their way from producers to consumers.

use super::measurement::{Turns, of_each};
use super::names::{PACED_RATE, RowName};
use super::options::TableOptions;
use super::rows::Reading;
use crate::load::cli::{AckKind, EndToEndOptions};
use crate::load::error::Result;
use crate::load::modes::end_to_end::{self, Figures};
use crate::load::report::median;
use crate::numbers::grouped;

/// What must be reached of the rate at which the latency goal applies.
const PACED_SHARE: f64 = 0.95;
/// Bytes of each value.
const SIZE: u32 = 200;
/// Producers, consumers and partitions.
const CLIENTS: u32 = 16;

type Readings = Vec<(RowName, Reading)>;

/// Measures once, with a broker of its own, and prints.
pub(super) async fn measure_once(
    options: &TableOptions,
    ack: AckKind,
    rate: Option<f64>,
    daemon_args: &[&str],
) -> Result<Figures> {
    let plan = EndToEndOptions {
        producers: CLIENTS,
        consumers: CLIENTS,
        size: SIZE,
        seconds: options.seconds,
        ack,
        prefetch: None,
        partitions: CLIENTS,
        rate,
        broker: options.broker.clone(),
    };
    let figures = end_to_end::measure(&plan, daemon_args).await?;
    figures.print();
    Ok(figures)
}

async fn measure(turns: &mut Turns<'_>, rate: Option<f64>) -> Result<Vec<Figures>> {
    let measure = async |options: &TableOptions, _turn| {
        let figures = measure_once(options, AckKind::Ndjson, rate, &[]).await?;
        let failures = figures.failures.clone();
        Ok((figures, failures))
    };
    turns.each(measure).await
}

pub(super) async fn unpaced(turns: &mut Turns<'_>) -> Result<Readings> {
    let all = measure(turns, None).await?;
    Ok(vec![
        (RowName::EndToEnd, Reading::of(of_each(&all, |figures| Some(figures.rate)))),
        (RowName::EndToEndCpu, Reading::of(of_each(&all, |figures| figures.server_cpu))),
    ])
}

pub(super) async fn paced(turns: &mut Turns<'_>) -> Result<Readings> {
    let all = measure(turns, Some(PACED_RATE)).await?;
    let p99 = of_each(&all, |figures| Some(figures.deliveries.quantile(0.99).as_secs_f64() * 1e3));
    let rate = median(of_each(&all, |figures| Some(figures.rate)));
    Ok(vec![(RowName::EndToEndP99, p99_at(p99, rate))])
}

/// The latency counts only if the rate was reached.
fn p99_at(p99: Vec<f64>, rate: f64) -> Reading {
    let (reading, rate_text) = (Reading::of(p99), grouped(rate as u64));
    if rate < PACED_RATE * PACED_SHARE {
        return reading.short(format!("only {rate_text}/s"));
    }
    reading.remark(format!("{rate_text}/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_at_a_rate_that_was_not_reached_does_not_count() {
        assert_eq!(p99_at(vec![1.0], 19_000.0), Reading::once(1.0).remark("19,000/s"));
        assert_eq!(p99_at(vec![1.0], 18_999.0), Reading::once(1.0).short("only 18,999/s"));
    }
}
